"""One Dask cluster for all tests of this folder: its workers have imported JAX once."""

import logging
import os
import time

import pytest


def soon(claim, seconds=60.0):
    """Wait until a claim holds."""
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.02)


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
    soon(lambda: len(shared_cluster.scheduler.workers) == 2)
    return shared_cluster


@pytest.fixture(scope="session")
def scheduler(shared_cluster):
    return shared_cluster.scheduler_address
