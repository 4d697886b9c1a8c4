"""Where are finished units kept, so that a sweep that was cut off goes on and repeats nothing?

Each unit is a netCDF file in the folder `units`, named by what it computes. A file is written whole
or not at all, so that one that is there is finished, and ends with a checksum. Units whose files
cannot be read, or were changed, are computed again.
"""

import io
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import xarray as xr

from causal_bo_ppl.errors import CausalBOWarning, StoreError
from causal_bo_ppl.experiments.units import Unit
from causal_bo_ppl.inference.files import write_whole
from causal_bo_ppl.inference.netcdf import require_sealed, seal

ENGINE: Literal["h5netcdf"] = "h5netcdf"


class Store:
    """The finished units of a folder; of none, those of this process."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else make_folder(folder, "units")
        self._results: dict[str, xr.Dataset] = {}

    def find(self, unit: Unit) -> xr.Dataset | None:
        """Return the result of a unit, or None where it has not been computed."""
        if unit.identity in self._results:
            result = self._results[unit.identity]
        else:
            path = self._path(unit.identity)
            if path is None or not path.is_file():
                return None
            opened = _read(path, unit)
            if opened is None:
                return None
            self._results[unit.identity] = result = opened
        # the same numbers may be wanted under other names
        return result.assign_attrs(case=unit.case, method=unit.method)

    def missing(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units that have not been computed, each once."""
        wanted = {unit.identity: unit for unit in units}
        return [unit for unit in wanted.values() if self.find(unit) is None]

    def keep(self, unit: Unit, result: xr.Dataset) -> None:
        """Keep the result of a unit."""
        path = self._path(unit.identity)
        if path is not None:
            data = encode(result)
            write_whole(path, [data, seal(data)])
        self._results[unit.identity] = result

    def _path(self, identity: str) -> Path | None:
        return None if self.folder is None else self.folder / "units" / f"{identity}.nc"


def make_folder(folder: str | Path, inside: str = "") -> Path:
    """Return a folder, made where it does not exist, together with one inside of it."""
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise StoreError(f"a folder needs a path, got {folder!r}")
    path = Path(os.path.realpath(folder))
    try:
        (path / inside).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the folder {str(path / inside)!r}: {error.strerror}; name one that can "
            "be written"
        ) from None
    return path


def _read(path: Path, unit: Unit) -> xr.Dataset | None:
    """Return what a file holds; None, with a warning, where it is not what the unit computes."""
    try:
        data = path.read_bytes()
        require_sealed(data)
        with xr.open_dataset(io.BytesIO(data), engine=ENGINE) as opened:
            result = opened.load()
        if result.attrs.get("identity") == unit.identity:
            return result
        why = "it holds another unit"
    except Exception as error:  # a damaged file can fail anywhere in three libraries
        why = str(error)
    warnings.warn(
        f"{str(path)!r} cannot be used: {why}; its unit is computed again",
        CausalBOWarning,
        stacklevel=4,
    )
    return None


def encode(dataset: xr.Dataset) -> bytes:
    """Return a Dataset as the bytes of a netCDF file."""
    plain = dataset.drop_encoding()
    plain.attrs = {name: _plain(value) for name, value in plain.attrs.items()}
    with plain.to_netcdf(engine=ENGINE) as view:  # Python 3.13 complains of an open view
        return bytes(view)


def _plain(value: object) -> object:
    """Return an attribute as netCDF can hold it."""
    if isinstance(value, str | int | float | np.number):
        return value
    return json.dumps(value, default=str)
