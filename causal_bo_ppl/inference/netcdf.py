"""How are draws kept in a file, and may a file from elsewhere be believed?

A file is netCDF, made in memory, with the SHA-256 of all its bytes in a last line after them.
Readers of netCDF ignore that line; `open_datatree` compares it before anything in the file is
interpreted. The checksum shows damage and edits. It is no signature: a file that was made to
deceive can have a right one. So before its data are loaded, a file is refused that holds more than
a posterior has, or refers to data elsewhere, and what it says is checked against the problem too.
"""

import hashlib
import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from causal_bo_ppl.errors import StoreError
from causal_bo_ppl.inference.tree_checks import require_posterior
from causal_bo_ppl.problem import Problem

if TYPE_CHECKING:
    import xarray as xr


TEXTS = 100_000  # texts of variable length that one array may have
GROUPS = {
    "posterior",
    "prior",
    "posterior_predictive",
    "log_likelihood",
    "log_prior",
    "observed_data",
    "constant_data",
    "unconstrained_posterior",
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
    """Return the names within a group, all of one kind and none a link to elsewhere."""
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


FORMAT = "2"  # raise it when a reader of the one before would misread a file
LARGEST = 4 * 2**30  # bytes that a file may have and declare
SIGNATURE = b"\x89HDF\r\n\x1a\n"
LABEL = b"\ncausal_bo_ppl sha256 "
AGAIN = "write it again with post.to_netcdf(path)"


def write_datatree(tree: "xr.DataTree", path: str | Path) -> Path:
    """Write a DataTree as netCDF, whole or not at all.

    The bytes are made in memory, read back for comparison, and written to a temporary file beside
    the target, which then replaces it. A failure or a crash leaves what was there untouched.

    Parameters
    ----------
    tree:
        Groups of a posterior, as `post.to_datatree()` makes them.
    path:
        A new or an existing regular file in an existing directory. A symbolic link is followed;
        if it leads to no file yet, the file that it names is made.

    Returns
    -------
    Path
        The path of the file that was written, links resolved.

    Raises
    ------
    StoreError
        If the tree cannot be kept in a file without change, the target is no regular file, or the
        system refuses to write, as on a full disk.

    Examples
    --------
    >>> import tempfile
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> tree = cb.fit(system.problem, system.observe(50, 0)).to_datatree(draws=40)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = cb.write_datatree(tree, f"{folder}/posterior.nc")
    ...     again = cb.open_datatree(path, system.problem)
    >>> dict(again["posterior"]["theta"].sizes)
    {'chain': 4, 'draw': 10, 'coordinate': 4}
    """
    from causal_bo_ppl.inference.files import write_whole

    path = _read_path(path)
    if not path.parent.is_dir():
        raise StoreError(f"cannot write {str(path)!r}: its directory does not exist; make it first")
    data = _encode(tree)
    write_whole(path, [data, seal(data)])
    return path


def seal(data: bytes | memoryview) -> bytes:
    """Return the line that ends a file: the checksum of all bytes before it."""
    return LABEL + hashlib.sha256(data).hexdigest().encode() + b"\n"


def _read_path(path: str | Path) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise StoreError(f"a file needs a path, got {path!r}")
    return Path(os.path.realpath(text))  # what a link leads to is written, not the link


def _encode(tree: "xr.DataTree") -> bytes:
    """Make the bytes of a netCDF file that reads back as this tree."""
    import xarray as xr

    import causal_bo_ppl

    if not isinstance(tree, xr.DataTree):
        kind = type(tree).__name__
        raise StoreError(f"only a DataTree can be written, got {kind}; see post.to_datatree()")
    stamp = {"causal_bo_ppl": causal_bo_ppl.__version__, "format": FORMAT}
    try:
        plain = xr.DataTree.from_dict(_datasets(tree))
        plain.attrs.update(dict(tree.attrs) | stamp)
        with plain.to_netcdf(engine="h5netcdf") as view:  # Python 3.13 complains of an open view
            data = bytes(view)
        again = _decode(data, sys.maxsize)
    except StoreError as error:
        raise StoreError(f"the tree cannot be written: it {error}") from None
    except Exception as error:  # a foreign object can fail anywhere in three libraries
        advice = "keep to numbers and texts that netCDF can hold"
        raise StoreError(f"the tree cannot be written: {error}; {advice}") from error
    _require_same(plain, again)
    return data


def _datasets(tree: "xr.DataTree") -> dict[str, "xr.Dataset"]:
    """Return the groups without encodings, which would change numbers on their way to a file."""
    for name, group in tree.children.items():
        if group.children:
            raise StoreError(f"has groups within the group {name!r}; only one level can be kept")
    if tree.to_dataset().variables:
        raise StoreError("has variables outside its groups; put them into a group")
    return {name: group.to_dataset().drop_encoding() for name, group in tree.children.items()}


def _require_same(tree: "xr.DataTree", again: "xr.DataTree") -> None:
    """Refuse a tree of which its file would say something else."""
    for name in ("/", *tree.children):
        given, found = tree[name].to_dataset(), again[name].to_dataset()
        if not given.identical(found) or _number_types(given) != _number_types(found):
            raise StoreError(
                f"the tree cannot be written: its group {name!r} would not be read back as it is; "
                "keep to numbers and texts, and to attributes that are single numbers or texts"
            )


def _number_types(group: "xr.Dataset") -> dict[Any, np.dtype[Any]]:
    types = {name: variable.dtype for name, variable in group.variables.items()}
    return {name: kind for name, kind in types.items() if kind.kind in "biufc"}


def open_datatree(path: str | Path, problem: Problem, *, largest: int = LARGEST) -> "xr.DataTree":
    """Read the tree that `write_datatree` wrote for this problem, and close the file.

    `cb.read_datatree` makes the posterior again from it.

    Parameters
    ----------
    path:
        A file that `write_datatree` or `post.to_netcdf` wrote.
    problem:
        The problem that the posterior was fitted for.
    largest:
        Bytes that the file and what it declares may have together.

    Returns
    -------
    xr.DataTree
        The tree as it was written; its root attributes also name the format and the package's
        version.

    Raises
    ------
    StoreError
        If the file is not netCDF, has no checksum or another one, or comes from a newer version;
        if it holds links to other files, unknown or nested groups, data of odd types, more than
        `largest` bytes, or attributes that would change its numbers; and if its names or numbers
        are not those that a posterior of this problem can have.

    Examples
    --------
    >>> import tempfile
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     post = cb.fit(system.problem, system.observe(50, 0))
    ...     path = post.to_netcdf(f"{folder}/posterior.nc", draws=40)
    ...     tree = cb.open_datatree(path, system.problem)
    >>> tree.attrs["verdict"]
    'exact'
    """
    _require_problem(problem)
    path = _read_path(path)
    if not path.is_file():
        raise StoreError(f"there is no file {str(path)!r}")
    try:
        data = _read_bytes(path, largest)
        require_sealed(data)
        tree = _decode(data, largest)
        require_posterior(tree, problem)
    except StoreError as error:
        raise StoreError(f"{str(path)!r} {error}") from None
    except Exception as error:  # a strange file can fail anywhere in three libraries
        raise StoreError(f"{str(path)!r} cannot be read: {error}; {AGAIN}") from error
    return tree


def require_tree(tree: object, problem: Problem) -> "xr.DataTree":
    """Return a tree in memory if a posterior of this problem can have it."""
    import xarray as xr

    _require_problem(problem)
    if not isinstance(tree, xr.DataTree):
        kind = type(tree).__name__
        raise StoreError(
            f"a posterior is read from a file's path or a DataTree, got {kind}; see "
            "post.to_netcdf and post.to_datatree"
        )
    try:
        require_posterior(tree, problem)
    except StoreError as error:
        raise StoreError(f"the tree {error}") from None
    return tree


def _require_problem(problem: object) -> None:
    if not isinstance(problem, Problem):
        kind = type(problem).__name__
        raise StoreError(f"a file is read for a Problem, got {kind}; of a system take its .problem")


def _read_bytes(path: Path, largest: int) -> bytes:
    """Read the file once, so that what is checked is what is read."""
    with open(path, "rb") as file:
        _require_size(os.fstat(file.fileno()).st_size, largest)
        return file.read()


def _require_size(total: int, largest: int) -> None:
    if total > largest:
        advice = "pass `largest` if you trust it"
        raise StoreError(f"declares {total:,} bytes, more than {largest:,}; {advice}")


def require_sealed(data: bytes) -> None:
    """Refuse the bytes of a file that has no checksum at its end, or another one."""
    if not data.startswith(SIGNATURE):
        raise StoreError(f"is not a netCDF file, or its beginning is damaged; {AGAIN}")
    length = len(seal(b""))
    if not data[-length:].startswith(LABEL):
        raise StoreError(
            "has no checksum at its end: an older version of causal_bo_ppl wrote it, another "
            f"program changed it, or it was cut off; {AGAIN}"
        )
    if data[-length:] != seal(memoryview(data)[:-length]):
        raise StoreError(
            "does not match its checksum: it was damaged or edited after it was written; "
            f"take a copy that was not, or {AGAIN}"
        )


def _decode(data: bytes, largest: int) -> "xr.DataTree":
    """Read a tree from the bytes of a file, after refusing what points elsewhere or is strange."""
    import h5py
    import xarray as xr

    with h5py.File(io.BytesIO(data), "r") as file:
        _require_version(file.attrs.get("format"), file.attrs.get("causal_bo_ppl"))
        _require_size(len(data) + measure(file), largest)
    options: dict[str, Any] = {"engine": "h5netcdf", "mask_and_scale": False, "decode_times": False}
    with xr.open_datatree(io.BytesIO(data), **options) as opened:
        # tree.load() passes over a variable called as a group is: `prior` is both
        loaded = {name: opened[name].to_dataset().load() for name in ("/", *opened.children)}
    for group in loaded.values():
        for variable in group.variables.values():
            variable.attrs.pop("_FillValue", None)  # netCDF's mark for what is missing: NaN
    return xr.DataTree.from_dict(loaded)


def _require_version(form: object, version: object) -> None:
    """Refuse another format, and what a newer version of the package wrote."""
    import causal_bo_ppl

    ours = causal_bo_ppl.__version__
    is_version = re.match(r"\d", str(version))
    if str(form) == FORMAT and is_version and _release(str(version)) <= _release(ours):
        return
    is_older = str(form).isdecimal() and int(str(form)) < int(FORMAT)
    advice = AGAIN if is_older else f"upgrade causal_bo_ppl, or {AGAIN}"
    raise StoreError(
        f"was written by version {version} of causal_bo_ppl, in format {form}; "
        f"this is version {ours}, which reads format {FORMAT}: {advice}"
    )


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (0, 1, 0) of "0.1.0.dev3"."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
