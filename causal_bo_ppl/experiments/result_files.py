"""Which files hold a result for people? Traces, tables and figures, each whole or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from causal_bo_ppl import plots
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.experiments.store import encode, make_folder
from causal_bo_ppl.experiments.tables import markdown
from causal_bo_ppl.inference.files import write_whole


class Result(NamedTuple):
    """What is written of a comparison or a reproduction.

    words: what a reader of the table must know. command: what made it. axes: {end of the file's
    name: Axes} of every figure.
    """

    table: pd.DataFrame
    differences: pd.DataFrame
    traces: xr.Dataset
    failed: pd.DataFrame
    words: str
    command: str
    axes: Mapping[str, Any]


def write_result(folder: str | Path, name: str, result: Result) -> tuple[Path, ...]:
    """Write netCDF, CSV, Markdown and PNG files; files of an earlier result are removed."""
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise ModelError(f"a result needs a name without folders, got {name!r}")
    folder = make_folder(folder)
    kept = {f"{name}.nc": encode(result.traces), f"{name}.csv": _csv(result.table)}
    kept[f"{name}.md"] = markdown(
        name, result.table, result.differences, result.failed, result.words, result.command
    ).encode()
    for end, table in (("differences", result.differences), ("failed", result.failed)):
        if len(table):
            kept[f"{name}-{end}.csv"] = _csv(table)
        else:
            (folder / f"{name}-{end}.csv").unlink(missing_ok=True)
    kept |= {f"{name}{end}.png": plots.to_png(axes) for end, axes in result.axes.items()}
    for file, data in kept.items():
        write_whole(folder / file, [data])
    return tuple(folder / file for file in kept)


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False).encode()
