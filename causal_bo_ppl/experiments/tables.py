"""How are results written for readers? As netCDF, CSV, Markdown tables like the paper's, and PNG.

Every file is written whole or not at all.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from causal_bo_ppl import plots
from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.experiments.units import encode, make_folder
from causal_bo_ppl.inference.datatree import replace_file

SHOWN_COLUMNS = (  # of a comparison, that are shown to a reader
    "system outcomes method seeds mean sd median cost cost_within optimum recommended_mean "
    "recommended_median tried_mean tried_median published_mean published_sd published_median "
    "published_cost published_within published_optimum published_gap"
).split()
HEADINGS = {name: name.replace("_", " ") for name in SHOWN_COLUMNS} | {
    "system": "experiment",
    "cost_within": "cost to 1 %",
    "recommended_mean": "gap, recommended: mean",
    "recommended_median": "gap, recommended: median",
    "tried_mean": "gap, tried: mean",
    "tried_median": "gap, tried: median",
    "published_within": "published cost to eps",
}
SCREEN_HEADINGS = {  # a screen has room for fewer
    "system": "experiment",
    "method": "method",
    "cost": "cost",
    "recommended_mean": "recommended",
    "tried_mean": "tried",
    "tried_median": "tried, median",
    "published_gap": "published",
}
SMALLEST_SHOWN = 1e-12  # what is smaller is written as 0
COMPARISON_NOTES = (
    "mean, sd and median are true effects of the best intervention tried, over seeds, as "
    "published. A gap is the difference of a true effect from the true optimum: of what the method "
    "recommended at the end, which is what a user gets, and of the best that it tried, which "
    "is known only where the truth is. The published optima of ecoli70 belong to "
    "other domains, and the published values of healthcare are noisy samples: compare gaps. "
    "Outcomes are exact, the effect itself, or noisy, a single draw. "
    "cost is what the interventions cost on average, 1 for every variable that is set."
)
TRANSFER_NOTES = (
    "Median over seeds (with quartiles) of the error of predicted responses of sets that were "
    "never tried, by the number of outcomes (budget) of four other sets. ratio: over the "
    "median of cbo-noprior at the same budget. own: over the method's own median at budget 0, "
    "the gain from outcomes. covered: the share of held-out responses within their 90 % "
    "intervals. The published figures are of a funnel that the paper does not define; ours is "
    "another, and the published cbo is compared with cbo-noprior."
)
THEORY_NOTES = (
    "Quantities of the linear chain over data sets of 100 observations. The noise is chosen such "
    "that kappa^2 over it is 7.33, as in the published bound; the rest of the published scales is "
    "not known, so that structure is compared, not digits. The control, 'independent gain, "
    "causal', has the causal kernel within every set and none between sets."
)


class Result(NamedTuple):
    """What is written of a comparison or a reproduction.

    notes: what a reader of the table must know. axes: {end of the file's name: Axes} of every
    figure.
    """

    table: pd.DataFrame
    differences: pd.DataFrame
    traces: xr.Dataset
    failed: pd.DataFrame
    notes: str
    axes: Mapping[str, Any]


def write_result(folder: str | Path, name: str, result: Result, command: str) -> tuple[Path, ...]:
    """Write netCDF, CSV, Markdown and PNG files; files of an earlier result are removed."""
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise ArgumentError(f"a result needs a name without folders, got {name!r}")
    folder = make_folder(folder)
    tables = {"": result.table, "-differences": result.differences, "-failed": result.failed}
    files = {
        f"{name}.nc": encode(result.traces),
        f"{name}.md": markdown(name, result, command).encode(),
    }
    for end, table in tables.items():
        if len(table):
            files[f"{name}{end}.csv"] = table.to_csv(index=False).encode()
        else:
            (folder / f"{name}{end}.csv").unlink(missing_ok=True)
    files |= {f"{name}{end}.png": plots.to_png(axes) for end, axes in result.axes.items()}
    for file, data in files.items():
        replace_file(folder / file, data)
    return tuple(folder / file for file in files)


def markdown(name: str, result: Result, command: str) -> str:
    """Return a result as a Markdown text, with the command that made it."""
    shown = result.table
    if "tried_mean" in shown:
        shown = _select(shown, HEADINGS).dropna(axis="columns", how="all")
    parts = [f"# {name}", f"Made by `{command}`.", result.notes, as_markdown(shown)]
    if len(result.failed):
        lost = result.failed[["system", "method", "seed", "error"]]
        parts += ["## Units that failed, and are not in the tables", as_markdown(lost)]
    if len(result.differences):
        level = f"{result.differences.attrs.get('level', 0.9):.0%}"
        parts += [
            "## Differences of final gaps, in pairs",
            f"Mean over seeds of the method's gap less that of the other, with {level} bootstrap "
            "intervals. Negative: the method is better. Methods may have spent different costs.",
            as_markdown(result.differences),
        ]
    return "\n\n".join(parts) + "\n"


def for_screen(table: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return a title and a table of texts with the columns that a narrow screen has room for."""
    if "tried_mean" in table:
        title, shown = "Mean gaps to the true optimum", _select(table, SCREEN_HEADINGS)
    elif "budget" in table:
        keys = ["system", "observations", "method"]
        shown = table.pivot_table("median", keys, "budget", sort=False).reset_index()
        title = "Median error on sets that were never tried, by the number of outcomes"
    else:
        shown = table[["quantity", "median", "published", "must hold", "holds in"]]
        title = "Quantities of the theory"
    return title, shown.dropna(axis="columns", how="all").map(_cell)


def _select(table: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    return table[[each for each in headings if each in table]].rename(columns=headings)


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table in Markdown, numbers with five significant digits."""
    lines = [_line(table.columns), _line(["---"] * table.shape[1])]
    lines += [_line(map(_cell, row)) for row in table.itertuples(index=False, name=None)]
    return "\n".join(lines)


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _cell(value: object) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "-"
        return "0" if abs(value) < SMALLEST_SHOWN else f"{value:.5g}"
    return str(value).replace("|", "\\|")


def as_html(title: str, *tables: pd.DataFrame) -> str:
    """Return a title and tables as HTML; tables without rows are omitted."""
    shown = (
        each.to_html(index=False, float_format="{:.4g}".format, na_rep="")
        for each in tables
        if len(each)
    )
    return f"<p>{html.escape(title)}</p>{''.join(shown)}"


def origin_note(results: Sequence[xr.Dataset]) -> str:
    """Return a warning where units were computed by different code, or "" where all are of one."""
    states = {(each.attrs.get("versions"), each.attrs.get("code")) for each in results}
    if len(states) < 2:
        return ""
    versions = sorted({str(each.attrs.get("versions")) for each in results})
    apart = "; ".join(versions) if len(versions) > 1 else "the same versions, other source files"
    return (
        f"**These units were computed by {len(states)} different states of the code** ({apart}). "
        "Empty the folder and compute them again if what changed matters to their numbers."
    )
