"""How are draws kept in a file, and may a file from elsewhere be believed? netCDF, written whole or not at all."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from causal_bo_ppl.errors import StoreError, listed
from causal_bo_ppl.problem import Problem

if TYPE_CHECKING:
    import xarray as xr

LARGEST = 4 * 2**30  # bytes that a file may declare
TEXTS = 100_000  # of variable length, in one array
GROUPS = {"posterior", "prior", "posterior_predictive", "log_likelihood", "log_prior", "observed_data", "sample_stats"}
DECODED = {"scale_factor", "add_offset", "units", "calendar"}  # attributes by which a reader changes numbers


def write_datatree(tree: "xr.DataTree", path: str | Path) -> Path:
    """Write a DataTree as netCDF: to a file beside it first, so that a crash leaves what was there untouched."""
    path = _read_path(path)
    if not path.parent.is_dir() or path.is_dir():
        raise StoreError(f"cannot write {str(path)!r}: its directory must exist, and it must not be one")
    part = path.parent / f".{path.name[:100]}.{uuid4().hex}.part"
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        tree.to_netcdf(part, engine="h5netcdf")
        with open(part, "rb") as written:
            os.fsync(written.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def _read_path(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise StoreError(f"a file needs a path, got {path!r}")
    return Path(os.path.realpath(path))  # what a link leads to is written, not the link


def read_datatree(path: str | Path, problem: Problem, *, largest: int = LARGEST) -> "xr.DataTree":
    """Read what `write_datatree` wrote for this problem, all of it, and close the file.

    Refuses what is no netCDF file, links to other files, unknown or nested groups, data of odd types, more than
    `largest` bytes, attributes that would change the numbers, and the posterior of another problem.
    """
    path = _read_path(path)
    if not path.is_file():
        raise StoreError(f"there is no file {str(path)!r}")
    try:
        tree = _read(path, largest)
        _require_posterior(tree, problem)
    except StoreError as error:
        raise StoreError(f"{str(path)!r} {error}") from None
    except Exception as error:  # a damaged file can fail anywhere in three libraries
        raise StoreError(f"{str(path)!r} cannot be read: {error}") from error
    return tree


def _read(path: Path, largest: int) -> "xr.DataTree":
    import h5py
    import xarray as xr

    if not h5py.is_hdf5(path):
        raise StoreError("is not a netCDF file, or was cut off; write it with post.to_netcdf(path)")
    with h5py.File(path, "r") as file:
        total = path.stat().st_size + sum(_measure(file, name) for name in _members(file, h5py.Group))
    if total > largest:
        raise StoreError(f"declares {total:,} bytes, more than {largest:,}; pass `largest` if you trust it")
    with xr.open_datatree(path, engine="h5netcdf", mask_and_scale=False, decode_times=False) as opened:
        tree = opened.load()
    for group in tree.children.values():
        for variable in group.variables.values():
            variable.attrs.pop("_FillValue", None)  # netCDF's mark for what is missing: NaN, as it is
    return tree


def _members(group: Any, kind: type) -> list[str]:
    """Names within a group, all of one kind and none a link to elsewhere."""
    import h5py

    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise StoreError(f"holds a link at {name!r}, which may lead to another file; it is not opened")
        if not isinstance(group[name], kind):
            raise StoreError(f"holds a {type(group[name]).__name__} at {name!r}, which no posterior has there")
    return list(group)


def _measure(file: Any, group: str) -> int:
    """Bytes declared in a group, after refusing what points elsewhere or is strange."""
    import h5py

    if group not in GROUPS:
        raise StoreError(f"has the group {group!r}, which no posterior has")
    total = 0
    for name in _members(file[group], h5py.Dataset):
        found = file[group][name]
        text = h5py.check_string_dtype(found.dtype)
        if found.is_virtual or found.external:
            raise StoreError(f"keeps {name!r} in another file; it is not opened")
        if found.shape is None or not (found.dtype.kind in "biufS" or text) or (text and found.size > TEXTS):
            raise StoreError(f"holds {name!r} of type {found.dtype} and shape {found.shape}, which no posterior has")
        if odd := sorted(DECODED.intersection(found.attrs)):
            raise StoreError(f"has the attribute {odd[0]!r} on {name!r}, which would change its numbers")
        total += found.size * max(found.dtype.itemsize, 1)
    return total


def _require_posterior(tree: "xr.DataTree", problem: Problem) -> None:
    if "posterior" not in tree.children or "theta" not in tree["posterior"].data_vars:
        raise StoreError("holds no posterior of theta; write it with post.to_netcdf(path)")
    theta = tree["posterior"]["theta"]
    if theta.dims != ("chain", "draw", "coordinate") or theta.dtype != float:
        raise StoreError(f"has theta with dimensions {theta.dims} and type {theta.dtype}; expected float64 draws")
    if str(tree.attrs.get("problem")) != problem.fingerprint:
        raise StoreError(
            "is of another problem (graph, target, domains, sets or known coefficients differ); "
            "read it with the problem it was fitted for"
        )
    strange = set(map(str, np.asarray(tree["posterior"]["variable"]))) - set(problem.graph.nodes)
    if strange:
        raise StoreError(f"has variables that the graph does not: {listed(sorted(strange))}")
