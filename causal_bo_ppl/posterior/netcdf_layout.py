"""Does a netCDF file hold only what a posterior has, and all of it itself? Asked before loading."""

from typing import Any

from causal_bo_ppl.errors import StoreError

TEXTS = 100_000  # of variable length, in one array
GROUPS = {
    "posterior",
    "prior",
    "posterior_predictive",
    "log_likelihood",
    "log_prior",
    "observed_data",
    "sample_stats",
}
DECODED = {"scale_factor", "add_offset", "units", "calendar"}  # by these a reader changes numbers


def measure(file: Any) -> int:
    """Return the bytes that an open HDF5 file declares in all its groups.

    Raises
    ------
    StoreError
        If the file holds links, data kept elsewhere, unknown or nested groups, or odd types. The
        message begins with a verb, so that the caller can put the path before it.
    """
    import h5py

    return sum(_measure_group(file, name) for name in _members(file, h5py.Group))


def _members(group: Any, kind: type) -> list[str]:
    """Names within a group, all of one kind and none a link to elsewhere."""
    import h5py

    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            advice = "it is not opened"
            raise StoreError(f"holds a link at {name!r}, which may lead to another file; {advice}")
        if not isinstance(group[name], kind):
            found = type(group[name]).__name__
            raise StoreError(f"holds a {found} at {name!r}, which no posterior has there")
    return list(group)


def _measure_group(file: Any, group: str) -> int:
    import h5py

    if group not in GROUPS:
        raise StoreError(f"has the group {group!r}, which no posterior has")
    total = 0
    for name in _members(file[group], h5py.Dataset):
        found = file[group][name]
        _require_plain(name, found)
        total += found.size * max(found.dtype.itemsize, 1)
    return total


def _require_plain(name: str, found: Any) -> None:
    """Refuse data that are kept elsewhere, of an odd type, or would change when decoded."""
    import h5py

    if found.is_virtual or found.external:
        raise StoreError(f"keeps {name!r} in another file; it is not opened")
    text = h5py.check_string_dtype(found.dtype)
    known = found.dtype.kind in "biufS" or text
    if found.shape is None or not known or (text and found.size > TEXTS):
        what = f"{name!r} of type {found.dtype} and shape {found.shape}"
        raise StoreError(f"holds {what}, which no posterior has")
    if odd := sorted(DECODED.intersection(found.attrs)):
        raise StoreError(f"has the attribute {odd[0]!r} on {name!r}, which would change numbers")
