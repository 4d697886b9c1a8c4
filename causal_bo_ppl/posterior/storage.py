"""How are draws kept in a file, and may a file from elsewhere be believed? netCDF, written whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import StoreError, listed
from causal_bo_ppl.problem import Problem

if TYPE_CHECKING:
    import h5py
    import xarray as xr

LARGEST = 4 * 2**30  # bytes that a file may declare
GROUPS = {"posterior", "prior", "posterior_predictive", "log_likelihood", "log_prior", "observed_data", "sample_stats"}


def write_datatree(tree: "xr.DataTree", path: str | Path) -> Path:
    """Write a DataTree as netCDF: to a file beside it first, so that a crash leaves what was there untouched."""
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        tree.to_netcdf(name, engine="h5netcdf")
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def read_datatree(path: str | Path, problem: Problem, *, largest: int = LARGEST) -> "xr.DataTree":
    """Read what `write_datatree` wrote for this problem, all of it, and close the file.

    Refuses what is no netCDF file, links to other files, unknown groups, data of odd types, more than `largest` bytes,
    and the posterior of another problem.
    """
    import h5py
    import xarray as xr

    path = Path(path)
    if not path.is_file():
        raise StoreError(f"there is no file {str(path)!r}")
    if not h5py.is_hdf5(path):
        raise StoreError(f"{str(path)!r} is not a netCDF file, or was cut off; write it with post.to_netcdf(path)")
    try:
        with h5py.File(path, "r") as file:
            total = _measure(file, str(path))
            if total > largest:
                raise StoreError(
                    f"{str(path)!r} declares {total:,} bytes, more than {largest:,}; pass `largest` if you trust it"
                )
        with xr.open_datatree(path, engine="h5netcdf") as opened:
            tree = opened.load()
    except (OSError, RuntimeError, KeyError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{str(path)!r} cannot be read: {error}") from error
    _require_posterior(tree, problem, str(path))
    return tree


def _measure(group: "h5py.Group", path: str) -> int:
    """Bytes declared below a group, after refusing everything that points elsewhere."""
    import h5py

    total = 0
    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise StoreError(f"{path!r} holds a link at {name!r}, which may lead to another file; it is not opened")
        found = group[name]
        if isinstance(found, h5py.Group):
            total += _measure(found, path)
        elif not isinstance(found, h5py.Dataset):
            raise StoreError(f"{path!r} holds a {type(found).__name__} at {name!r}, which no posterior has")
        elif found.is_virtual or found.external:
            raise StoreError(f"{path!r} keeps {name!r} in another file; it is not opened")
        elif found.dtype.kind not in "biufSO" or (found.dtype.kind == "O" and not h5py.check_string_dtype(found.dtype)):
            raise StoreError(f"{path!r} holds {name!r} of type {found.dtype}, which no posterior has")
        else:
            total += found.size * max(found.dtype.itemsize, 1)
    return total


def _require_posterior(tree: "xr.DataTree", problem: Problem, path: str) -> None:
    unknown = sorted(set(tree.children) - GROUPS)
    if unknown:
        raise StoreError(f"{path!r} has the groups {listed(unknown)}, which no posterior has")
    if "posterior" not in tree.children or "theta" not in tree["posterior"].data_vars:
        raise StoreError(f"{path!r} holds no posterior of theta; write it with post.to_netcdf(path)")
    theta = tree["posterior"]["theta"]
    if theta.dims != ("chain", "draw", "coordinate") or theta.dtype != float:
        raise StoreError(
            f"theta in {path!r} has dimensions {theta.dims} and type {theta.dtype}; expected float64 draws"
        )
    if tree.attrs.get("problem") != problem.fingerprint:
        raise StoreError(
            f"{path!r} is of another problem (graph, target, domains, sets or known coefficients differ); "
            "read it with the problem it was fitted for"
        )
    strange = set(map(str, np.asarray(tree["posterior"]["variable"]))) - set(problem.graph.nodes)
    if strange:
        raise StoreError(f"{path!r} has variables that the graph does not: {listed(sorted(strange))}")
