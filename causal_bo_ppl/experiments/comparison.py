"""What are the results of a comparison? Every trace, tables over seeds, and files for readers.

A gap is the difference of an intervention's true effect from the true optimum, at least 0. There
are two, and both are shown: of what a method *recommended*, which is what a user gets, and of the
best that it *tried*, which is known only where the truth is. Files (netCDF, CSV, Markdown tables
like the paper's, PNG) are written whole or not at all.
"""

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl import plots
from causal_bo_ppl.errors import ArgumentError, DataError, unknown
from causal_bo_ppl.experiments.units import encode, make_folder
from causal_bo_ppl.inference.datatree import replace_file
from causal_bo_ppl.inputs import read_share, read_size

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


TRACED = ("cost", "recommended", "tried", "outcome", "effect", "recommended_effect")
GAPS = ("recommended", "tried")
ZERO_GAP = 1e-9  # a gap of at most this is a gap of 0
BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True, eq=False)
class Comparison:
    """The traces of several methods on several systems; made by `sweep`.

    results: the Dataset of every unit that was computed, in the order of the units. failed: a table
    of the units that could not be computed, with the reason. wall: seconds that the computation
    took; workers: the number of worker processes on this machine, 0 on another cluster.
    """

    results: tuple[xr.Dataset, ...]
    failed: pd.DataFrame
    wall: float = 0.0
    workers: int = 0

    @cached_property
    def units(self) -> pd.DataFrame:
        """A row for every unit: system, method, seed, experiments, cost, both gaps, seconds."""
        return pd.DataFrame([_summarize(result) for result in self.results])

    @cached_property
    def traces(self) -> xr.Dataset:
        """Every trace, padded with NaN, with the coordinates system, method and seed of a unit."""
        longest = max((result.sizes["experiment"] for result in self.results), default=0)
        shape = (len(self.results), longest)
        columns = {name: np.full(shape, np.nan) for name in TRACED}
        columns["set"] = np.full(shape, "", object)
        for index, result in enumerate(self.results):
            for name, values in columns.items():
                values[index, : result.sizes["experiment"]] = result[name].to_numpy()
        columns["set"] = columns["set"].astype(str)
        labels = {"system": "case", "method": "method", "seed": "seed"}
        return xr.Dataset(
            {name: (("unit", "experiment"), values) for name, values in columns.items()}
            | self._attributes("optimum", "seconds", "identity", "warnings", "versions"),
            coords={"experiment": np.arange(1, longest + 1)} | self._attributes(**labels),
        )

    def _attributes(self, *names: str, **renamed: str) -> dict[str, Any]:
        """Return attributes of the units as variables of a Dataset."""
        return {
            label: ("unit", [result.attrs[name] for result in self.results])
            for label, name in (dict(zip(names, names, strict=True)) | renamed).items()
        }

    def table(self, epsilon: float = 0.01) -> pd.DataFrame:
        """Return a table with a row for every system and method.

        The column `outcomes` is "exact" or "noisy".

        Parameters
        ----------
        epsilon:
            The largest median gap of the best tried, relative to the size of the optimum, for the
            column `cost_within`: the first cost at which the gap is that small.

        Returns
        -------
        pd.DataFrame
            mean, sd and median over seeds of the true effect of the best tried; optimum; the mean
            and the median of both gaps; `share_optimal`, the share of seeds in which the best tried
            is the optimum; cost, what was spent on average; seconds for one seed.
        """
        epsilon = read_size("epsilon", epsilon)
        rows = [self._row(case, method, epsilon) for case, method in self.pairs]
        return pd.DataFrame(rows)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every system with every method that was run on it, in order."""
        return list(dict.fromkeys(zip(self.units["system"], self.units["method"], strict=True)))

    def _row(self, case: str, method: str, epsilon: float) -> dict[str, object]:
        units = self.units.query("system == @case and method == @method")
        optimum = float(units["optimum"].iloc[0])
        effects, within = units["effect"], np.nan
        if units["tried"].notna().all():
            curve = self._curve(case, method, "tried")
            near = curve["median"] <= epsilon * max(abs(optimum), 1e-300)
            within = float(curve["cost"][near].min()) if near.any() else np.nan
        tried = units["tried"]
        return {
            "system": case,
            "outcomes": units["outcomes"].iloc[0],
            "method": method,
            "seeds": len(units),
            "mean": effects.mean(),
            "sd": effects.std(ddof=1) if len(units) > 1 else np.nan,
            "median": effects.median(),
            "optimum": optimum,
            "cost": units["cost"].mean(),
            "cost_within": within,
            "recommended_mean": units["recommended"].mean(),
            "recommended_median": units["recommended"].median(),
            "tried_mean": tried.mean(),
            "tried_median": tried.median(),
            "share_optimal": (tried <= ZERO_GAP).mean() if tried.notna().all() else np.nan,
            "seconds": units["seconds"].mean(),
        }

    def curves(self, of: str = "recommended") -> pd.DataFrame:
        """Return quartiles over seeds of a gap against the cumulative cost of interventions.

        Every trace is a step function of the cost. A curve begins where the first experiment of all
        seeds is done; a trace that has ended keeps its last value.
        """
        _require_gap(of)
        parts = [self._curve(case, method, of) for case, method in self.pairs]
        table = pd.concat(parts, ignore_index=True).dropna(subset="median")
        table.attrs = {"of": of, "seeds": int(self.units["seed"].nunique())}
        return table

    def _curve(self, case: str, method: str, of: str) -> pd.DataFrame:
        traces = [
            result
            for result in self.results
            if (result.attrs["case"], result.attrs["method"]) == (case, method)
        ]
        ticks = np.unique(np.concatenate([trace["cost"].to_numpy() for trace in traces]))
        values = np.array(
            [_step(trace["cost"].to_numpy(), trace[of].to_numpy(), ticks) for trace in traces]
        )
        begun = ~np.isnan(values).any(axis=0)
        ticks, values = ticks[begun], values[:, begun]
        lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        columns = {"cost": ticks, "lower": lower, "median": median, "upper": upper}
        return pd.DataFrame({"system": case, "method": method, **columns})

    def differences(
        self, against: str, of: str = "recommended", *, level: float = 0.9
    ) -> pd.DataFrame:
        """Return mean differences of final gaps from those of one method, over shared seeds.

        Observations and noise of a seed are shared, so that differences of pairs are compared. A
        negative difference means that the method is better than `against`.

        Parameters
        ----------
        against:
            The method that all others are compared with.
        of:
            "recommended" or "tried".
        level:
            Of the bootstrap interval of the mean, by resampling seeds.
        """
        _require_gap(of)
        level = read_share("level", level)
        methods = list(dict.fromkeys(self.units["method"]))
        if against not in methods:
            raise ArgumentError(unknown("method", against, methods))
        rows = []
        for case, method in self.pairs:
            if method == against:
                continue
            paired = self._paired(case, method, against, of)
            if len(paired):
                rows.append((case, method, against, len(paired), *bootstrap(paired, level)))
        columns = ["system", "method", "against", "seeds", "mean", "lower", "upper"]
        table = pd.DataFrame(rows, columns=columns)
        table.attrs = {"of": of, "level": level}
        return table

    def _paired(self, case: str, method: str, against: str, of: str) -> np.ndarray:
        gaps = self.units[self.units["system"] == case].pivot(
            index="seed", columns="method", values=of
        )
        if against not in gaps:
            return np.empty(0)
        return np.asarray((gaps[method] - gaps[against]).dropna().to_numpy())

    def write(
        self, folder: str | Path, name: str = "comparison", *, against: str | None = None
    ) -> tuple[Path, ...]:
        """Write every trace, the tables and the figures, and return the files.

        Parameters
        ----------
        folder:
            Where they are written; it is made if it does not exist.
        name:
            What the files are called: NAME.nc, NAME.csv, NAME.md and figures NAME-....png.
        against:
            The method that others are compared with in pairs; by default the first.

        Returns
        -------
        tuple of Path
            The files, each of which was written whole.
        """
        reference = self.pairs[0][1] if against is None else against
        table, differences = self.table(), self.both_differences(reference)
        axes = self.draw(differences)
        notes = "\n\n".join(filter(None, [COMPARISON_NOTES, origin_note(self.results)]))
        result = Result(table, differences, self.traces, self.failed, notes, axes)
        return write_result(folder, name, result, "Comparison.write")

    def both_differences(self, against: str) -> pd.DataFrame:
        """Return the differences of both gaps in one table, with a column `of`."""
        parts = [self.differences(against, of).assign(of=of) for of in GAPS]
        return pd.concat(parts, ignore_index=True).dropna(subset="mean")

    def draw(self, differences: pd.DataFrame) -> dict[str, Any]:
        """Draw curves of both gaps and the differences; {end of a file's name: Axes}."""
        drawn: dict[str, Any] = {
            f"-{of}": plots.draw_convergence(curves)
            for of in GAPS
            if len(curves := self.curves(of))
        }
        shown = differences[differences["of"] == GAPS[0]].dropna()
        if len(shown):
            drawn["-differences"] = plots.draw_differences(shown)
        return drawn

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} units failed" if len(self.failed) else ""
        seeds, systems = self.units["seed"].nunique(), self.units["system"].nunique()
        methods = self.units["method"].nunique()
        return f"Comparison({systems} systems, {methods} methods, {seeds} seeds{lost})"

    def _repr_html_(self) -> str:
        title = f"{self!r}: gaps to the true optimum, of what was recommended and of the best tried"
        return as_html(title, self.table(), self.failed)


def _summarize(result: xr.Dataset) -> dict[str, object]:
    last = result.isel(experiment=-1)
    sign = 1.0 if result.attrs["objective"] == "min" else -1.0
    tried = float(last["tried"])
    noise = json.loads(result.attrs["unit"])["settings"]["noise"]
    return {
        "system": result.attrs["case"],
        "method": result.attrs["method"],
        "seed": int(result.attrs["seed"]),
        "experiments": int(result["tried"].notnull().sum()),
        "cost": float(last["cost"]),
        "recommended": float(last["recommended"]),
        "tried": tried,
        "effect": result.attrs["optimum"] + sign * tried,
        "recommended_effect": float(last["recommended_effect"]),
        "optimum": float(result.attrs["optimum"]),
        "outcomes": "exact" if noise == 0 else "noisy",
        "seconds": float(result.attrs["seconds"]),
        "warnings": str(result.attrs["warnings"]),
    }


def _step(costs: np.ndarray, values: np.ndarray, ticks: np.ndarray) -> np.ndarray:
    """Return a step function at ticks; NaN before its first cost."""
    index = np.searchsorted(costs, ticks, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)


def bootstrap(values: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return the mean and its bootstrap interval."""
    if len(values) < 2:
        return float(values.mean()), float("nan"), float("nan")
    draws = np.random.default_rng(len(values))
    again = values[draws.integers(len(values), size=(BOOTSTRAP_SAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(again, ((1 - level) / 2, (1 + level) / 2))
    return float(values.mean()), float(low), float(high)


def _require_gap(of: object) -> None:
    if of not in GAPS:
        raise ArgumentError(f'a gap is of what was "recommended" or "tried"; got {of!r}')


def require_results(results: Sequence[xr.Dataset], failed: pd.DataFrame) -> None:
    """Refuse a comparison without any result."""
    if not results and len(failed):
        first = failed.iloc[0]
        raise DataError(
            f"none of {len(failed)} units could be computed; the first, {first['method']} on "
            f"{first['system']} with seed {first['seed']}: {first['error']}"
        )
