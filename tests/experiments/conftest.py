"""One Dask cluster for all tests of this folder: its workers have imported JAX once."""

import logging
import os

import pytest
from helpers.scripted_units import soon


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory):
    from distributed import LocalCluster

    before = dict(os.environ)
    with LocalCluster(
        n_workers=2,
        processes=True,
        threads_per_worker=1,
        memory_limit=None,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
        local_directory=str(tmp_path_factory.mktemp("dask")),
    ) as cluster:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        yield cluster


@pytest.fixture
def cluster(shared_cluster):
    """Return the cluster, whose killed workers have been replaced."""
    shared_cluster.scale(2)
    soon(lambda: len(shared_cluster.scheduler.workers) == 2)
    return shared_cluster
