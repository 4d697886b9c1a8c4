"""How do methods compare on systems with known truth? Sweeps over seeds, and their results.

Every system, method and seed is a unit. Methods are `cb.Settings`, or the keywords of one; two more
show the value of experiments: "no experiment" recommends by the posterior mean of the observations,
and "more observations" does so after as many more observations as there were experiments.

The result holds every trace, tables over seeds, and files for readers. A gap is the difference of
an intervention's true effect from the true optimum, at least 0. There are two, and both are shown:
of what a method *recommended*, which is what a user gets, and of the best that it *tried*, which is
known only where the truth is. Files (netCDF, CSV, Markdown tables like the paper's, PNG) are
written whole or not at all.
"""

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl import models, plots
from causal_bo_ppl.errors import ArgumentError, DataError, SettingsError, listed, unknown
from causal_bo_ppl.experiments.execution import UnitRunner
from causal_bo_ppl.experiments.units import (
    Loaded,
    NoExperiment,
    Optimization,
    Unit,
    UserSystem,
    encode,
    make_folder,
    read_seeds,
    refer_to,
)
from causal_bo_ppl.inference.datatree import replace_file
from causal_bo_ppl.inputs import read_share, read_size
from causal_bo_ppl.optimization import Settings
from causal_bo_ppl.optimization.settings import PRESETS
from causal_bo_ppl.systems import CausalSystem

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
OPTIMIZE, NO_EXPERIMENT, MORE = "optimize", "no experiment", "more observations"
SETTING_NAMES = tuple(each.name for each in fields(Settings))
LEARNING_SETTINGS = "mechanisms inference prior accept noise observations".split()
DEFAULT_ROUNDS = 10  # of a sweep that gives neither rounds nor a budget
System = CausalSystem | str | Loaded
SystemReference = Loaded | UserSystem


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


@dataclass(frozen=True, eq=False)
class Case:
    """A system with the settings that belong to it.

    Parameters
    ----------
    system:
        A `CausalSystem`, such as `cb.models.gaussian_network(path, target=...)`, or the name of one
        that `cb.models.load` knows.
    settings:
        Keywords of `cb.Settings` that hold for every method on this system.
    by_method:
        {method: keywords} that hold for one method only.
    methods:
        The methods that are run on this system; None for all.
    """

    system: System
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    methods: tuple[str, ...] | None = None


class SweepMethod(NamedTuple):
    """A method by its name in tables, with the keywords of its settings.

    kind: "optimize", "no experiment" or "more observations". base, group: the name without that of
    the settings it is combined with, and the name of the latter.
    """

    name: str
    keywords: dict[str, Any]
    kind: str = OPTIMIZE
    base: str = ""
    group: str = ""


def sweep(
    systems: System | Case | Iterable[System] | Mapping[str, System | Case],
    methods: Iterable[str] | Mapping[str, Any] = ("gc-cbo", "cbo", "bo"),
    *,
    settings: Mapping[str, Any] | None = None,
    seeds: int | Iterable[int] = 20,
    folder: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Comparison:
    """Run methods on systems with known truth, over many seeds, and compare their gaps.

    Units with the same seed share observations and noise. What a unit computes does not depend on
    where or in which order it runs.

    Parameters
    ----------
    systems:
        A system, several, or {label: system}. A system is a `CausalSystem`, the name of one for
        `cb.models.load`, or a `cb.experiments.Case`, which has further settings.
    methods:
        Names of `optimize`'s methods, or {label: keywords of `cb.Settings`}. "no experiment" and
        "more observations" recommend by the posterior mean of the observations, the second after
        as many more observations as the first method ran experiments.
    settings:
        Keywords of `cb.Settings` for all methods, such as {"budget": 40, "mechanisms": "gp"}; or
        {label: keywords} of several, each of which is combined with every method.
    seeds:
        How many, or which.
    folder:
        Where every unit is stored as soon as it is finished. A sweep with the same folder resumes
        one that was interrupted, and repeats nothing. By default results are kept in memory only.
    workers:
        The number of Dask workers, which are processes of this machine; by default one for every
        core.
    scheduler:
        The address of a running Dask cluster, which computes instead.
    progress:
        Whether a progress bar is shown when it takes more than a few seconds.

    Returns
    -------
    Comparison
        `table()`, `curves()` and `differences(against)` over seeds, and every trace in `traces`.

    Raises
    ------
    ArgumentError
        If a system, a method or another argument is unknown; before anything is computed.
    SettingsError
        If a setting is unknown or contradicts another; before anything is computed.
    DataError
        If no unit at all could be computed. Units that failed are in `failed` otherwise.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> comparison = cb.experiments.sweep(
    ...     "chain", ["gc-cbo", "no experiment"], settings={"rounds": 3}, seeds=2, workers=1
    ... )
    >>> comparison.table()[["system", "method", "seeds", "recommended_mean"]]
      system         method  seeds  recommended_mean
    0  chain         gc-cbo      2               0.0
    1  chain  no experiment      2               0.0
    """
    cases, named = read_cases(systems), read_methods(methods)
    require_known(cases, named)
    chosen, read = cross(named, settings), read_seeds(seeds)
    with UnitRunner(folder, workers=workers, scheduler=scheduler, progress=progress) as runner:
        return compare(cases, chosen, read, runner)


def compare(
    cases: Mapping[str, Case],
    methods: Sequence[SweepMethod],
    seeds: Sequence[int],
    runner: UnitRunner,
) -> Comparison:
    """Plan the units, compute them, and join their results."""
    systems = {label: _refer(case) for label, case in cases.items()}
    plan = [
        (label, method)
        for label, case in cases.items()
        for method in methods
        if case.methods is None or method.base in case.methods
    ]
    if not plan:
        raise ArgumentError("no case has one of the methods; see `methods` of the cases")
    units = [
        _unit(label, cases[label], systems[label], method, seed)
        for label, method in plan
        if method.kind != MORE
        for seed in seeds
    ]
    parts = [runner.compute(units)]
    parts.append(runner.compute(_observe_more(plan, cases, systems, parts[0].results)))
    order = {(label, method.name): index for index, (label, method) in enumerate(plan)}
    results = sorted(
        (result for part in parts for result in part.results),
        key=lambda result: order[result.attrs["case"], result.attrs["method"]],
    )
    failed = pd.concat([part.failed for part in parts], ignore_index=True)
    require_results(results, failed)
    wall = sum(part.wall for part in parts)
    return Comparison(tuple(results), failed, wall, max(part.workers for part in parts))


def _refer(case: Case) -> SystemReference:
    system = case.system
    if isinstance(system, CausalSystem):
        return refer_to(system)
    return Loaded(system) if isinstance(system, str) else system


def _unit(label: str, case: Case, system: SystemReference, method: SweepMethod, seed: int) -> Unit:
    made = _settings(case, method)
    if method.kind == NO_EXPERIMENT:
        return NoExperiment(label, method.name, seed, system, _for_learning(made))
    return Optimization(label, method.name, seed, system, made)


def _settings(case: Case, method: SweepMethod) -> Settings:
    """Return the settings of a method on a system: its own, then those of the case."""
    own = case.by_method.get(method.base, {})
    return make_settings(method.name, {**method.keywords, **case.settings, **own})


def _for_learning(settings: Settings) -> Settings:
    """Return the settings that matter without experiments: how a model is fitted."""
    return Settings(**{name: getattr(settings, name) for name in LEARNING_SETTINGS})


def _observe_more(
    plan: Sequence[tuple[str, SweepMethod]],
    cases: Mapping[str, Case],
    systems: Mapping[str, SystemReference],
    results: Sequence[xr.Dataset],
) -> list[Unit]:
    """Return the units with as many more observations as the first method ran experiments."""
    first: dict[tuple[str, str], str] = {}
    for label, method in plan:
        if method.kind == OPTIMIZE:
            first.setdefault((label, method.group), method.name)
    return [
        NoExperiment(
            label,
            method.name,
            int(result.attrs["seed"]),
            systems[label],
            _for_learning(_settings(cases[label], method)),
            int(result["tried"].notnull().sum()),
        )
        for label, method in plan
        if method.kind == MORE
        for result in results
        if result.attrs["case"] == label
        and result.attrs["method"] == first.get((label, method.group))
    ]


def read_cases(systems: Any) -> dict[str, Case]:
    """Return systems with their labels; each is loaded once, so that mistakes are found early."""
    if isinstance(systems, CausalSystem | str | Loaded | Case):
        systems = [systems]
    if not isinstance(systems, Iterable):
        raise ArgumentError(
            "sweep needs a CausalSystem, the name of one, several, or {label: system}; got "
            f"{type(systems).__name__}"
        )
    named = systems.items() if isinstance(systems, Mapping) else ((_label(s), s) for s in systems)
    cases: dict[str, Case] = {}
    for label, given in named:
        case = given if isinstance(given, Case) else Case(given)
        if not isinstance(case.system, CausalSystem | str | Loaded):
            raise ArgumentError(
                f"the system {label!r} must be a CausalSystem, the name of one or a Case; got "
                f"{type(case.system).__name__}"
            )
        for name in ("settings", "by_method"):
            if not isinstance(getattr(case, name), Mapping):
                raise ArgumentError(
                    f"{name} of the system {label!r} must be a dictionary of keywords"
                )
        if str(label) in cases:
            raise ArgumentError(f"two systems are called {label!r}; give {{label: system}}")
        if isinstance(case.system, str):
            models.load(case.system)
        cases[str(label)] = case
    if not cases:
        raise ArgumentError("there is no system to compare methods on; give at least one")
    return cases


def _label(given: object) -> str:
    system = given.system if isinstance(given, Case) else given
    return system if isinstance(system, str) else str(getattr(system, "name", system))


def read_methods(methods: Any) -> list[SweepMethod]:
    """Return methods by name, with the keywords of their settings."""
    if isinstance(methods, str):
        methods = [methods]
    if isinstance(methods, Mapping):
        read = [_read_method(str(name), given) for name, given in methods.items()]
    elif isinstance(methods, Iterable):
        read = [_read_method(name, {}) for name in methods]
    else:
        raise ArgumentError(
            f"methods are names, or {{label: keywords of cb.Settings}}; got {methods!r}"
        )
    names = [method.name for method in read]
    if not read or len(set(names)) < len(names):
        raise ArgumentError(f"methods must be at least one and all different; got {names}")
    return read


def _read_method(name: object, given: object) -> SweepMethod:
    if isinstance(given, Settings):
        usual = Settings.preset("gc-cbo")
        own = {key: getattr(given, key) for key in SETTING_NAMES}
        given = {key: value for key, value in own.items() if value != getattr(usual, key)}
        given["preset"] = "gc-cbo"
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"the method {name!r} needs keywords of cb.Settings as a dictionary, or cb.Settings; "
            f"got {given!r}"
        )
    keywords, label = dict(given), str(name)
    if label in (NO_EXPERIMENT, MORE):
        return SweepMethod(label, keywords, label, label)
    if not keywords and label not in PRESETS:
        raise ArgumentError(unknown("method", name, [*PRESETS, NO_EXPERIMENT, MORE]))
    if label in PRESETS:
        keywords.setdefault("preset", label)
    return SweepMethod(label, keywords, OPTIMIZE, label)


def require_known(cases: Mapping[str, Case], methods: Sequence[SweepMethod]) -> None:
    """Refuse cases that name a method which is not run: it would be ignored silently."""
    names = [method.base for method in methods]
    for label, case in cases.items():
        for name in (*(case.methods or ()), *case.by_method):
            if name not in names:
                raise ArgumentError(f"the system {label!r}: {unknown('method', name, names)}")


def cross(methods: Sequence[SweepMethod], settings: Mapping[str, Any] | None) -> list[SweepMethod]:
    """Return every method with every one of several settings."""
    given = {} if settings is None else settings
    if not isinstance(given, Mapping):
        raise ArgumentError(f"settings are keywords of cb.Settings as a dictionary; got {given!r}")
    several = bool(given) and all(isinstance(each, Mapping) for each in given.values())
    groups = dict(given) if several else {"": given}
    crossed = []
    for (label, common), method in product(groups.items(), methods):
        name = f"{method.name}, {label}" if label else method.name
        made = SweepMethod(name, {**common, **method.keywords}, method.kind, method.base, label)
        make_settings(name, made.keywords)
        crossed.append(made)
    return crossed


def make_settings(name: str, keywords: Mapping[str, Any]) -> Settings:
    """Return the settings of a method; ten rounds where neither rounds nor a budget are given."""
    if extra := sorted(set(keywords) - {"preset", *SETTING_NAMES}):
        raise SettingsError(
            f"the method {name!r} has the unknown settings {listed(extra)}; known are preset and "
            f"{listed(SETTING_NAMES)}"
        )
    changes = {key: value for key, value in keywords.items() if key != "preset"}
    made = Settings.preset(keywords.get("preset", "gc-cbo"), **changes)
    if made.rounds is None and made.budget is None:
        made = replace(made, rounds=DEFAULT_ROUNDS)
    return made
