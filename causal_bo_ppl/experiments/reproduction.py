"""Do the paper's tables and figures come out again? Each is computed, written and drawn.

Six reproductions: "theory" (the chain), "transfer" (the funnels), "benchmarks" (the main table),
"sweep" (b1583 by the size of sets), "ablation" (all methods there) and "noise" (exact and noisy
outcomes, which the paper does not tell apart). Each writes into its folder
every trace (netCDF), a table with the published figures beside ours (CSV and Markdown) and figures.
"""

import html
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl import plots
from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.experiments.benchmarks import (
    run_ablation,
    run_benchmarks,
    run_noise,
    run_sizes,
)
from causal_bo_ppl.experiments.comparison import Comparison, require_results
from causal_bo_ppl.experiments.execution import Computed, Where, keep_workers
from causal_bo_ppl.experiments.result_files import Result, write_result
from causal_bo_ppl.experiments.tables import (
    comparison_words,
    origin_words,
    theory_words,
    transfer_words,
)
from causal_bo_ppl.experiments.theory_checks import diagnose, run_theory
from causal_bo_ppl.experiments.theory_checks import tabulate as tabulate_theory
from causal_bo_ppl.experiments.transfers import run_transfer
from causal_bo_ppl.experiments.transfers import tabulate as tabulate_errors
from causal_bo_ppl.experiments.units import read_seeds
from causal_bo_ppl.inputs import require_float64

FOLDER = "results"
SEEDS = {
    "theory": 60,
    "transfer": 60,
    "benchmarks": 20,
    "sweep": 60,
    "ablation": 60,
    "noise": 20,
}
QUICK = 2  # seeds
ALL = "all"
REFERENCE = "gc-cbo"  # what other methods are compared with
NO_DIFFERENCES = pd.DataFrame(columns=["system", "method", "of"])
Draw = Callable[[], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """One of the paper's tables, computed again; made by `reproduce`.

    table: ours with the published figures beside it. differences: between methods in pairs, where
    they were run on the same seeds. traces: what every seed gave. failed: units that could not be
    computed, with the reason. files: what was written. seconds: what this call took; wall: what the
    units took that it computed, in `workers` processes (0: a cluster); busy: the time of one
    processor that they needed. origin: a warning where units were computed by different states of
    the code.
    """

    name: str
    table: pd.DataFrame
    differences: pd.DataFrame
    traces: xr.Dataset
    failed: pd.DataFrame
    files: tuple[Path, ...]
    seconds: float
    wall: float
    busy: float
    workers: int
    origin: str = ""

    @property
    def pace(self) -> str:
        """How long it took, and how many times as fast as on one processor."""
        if not self.busy > 0:
            return f"{self.seconds:.0f} s; every unit had been computed before"
        many = "" if self.workers == 1 else "s"
        where = f"{self.workers} worker{many}" if self.workers else "a cluster"
        return (
            f"{self.seconds:.0f} s in all; units that need {self.busy:.0f} s of one processor took "
            f"{self.wall:.0f} s on {where}: a speed-up of {self.busy / self.wall:.2f}"
        )

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} units failed" if len(self.failed) else ""
        return f"Reproduction({self.name}, {len(self.table)} rows{lost}; {self.pace})"

    def _repr_html_(self) -> str:
        table = self.table.to_html(index=False, float_format="{:.4g}".format, na_rep="")
        lost = self.failed.to_html(index=False) if len(self.failed) else ""
        return f"<p>{html.escape(repr(self))}</p>{table}{lost}"


@overload
def reproduce(  # type: ignore[overload-overlap]  # the one name that stands for several tables
    name: Literal["all"],
    *,
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
    folder: str | Path = FOLDER,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> tuple[Reproduction, ...]: ...


@overload
def reproduce(
    name: str,
    *,
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
    folder: str | Path = FOLDER,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Reproduction: ...


def reproduce(
    name: str,
    *,
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
    folder: str | Path = FOLDER,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Reproduction | tuple[Reproduction, ...]:
    """Compute one of the paper's tables again, or all, and write it with its figures.

    Parameters
    ----------
    name:
        "theory", "transfer", "benchmarks", "sweep", "ablation" or "noise"; or "all".
    seeds:
        How many, or which; by default 60, for benchmarks and noise 20.
    quick:
        Small systems, low budgets and two seeds, to see that everything works.
    folder:
        Where results are written. Finished units are kept there: a call that was cut off goes on
        where it was, and repeats nothing.
    workers, scheduler, progress:
        As in `sweep`.

    Returns
    -------
    Reproduction
        `table` has the published figures beside ours; `files` says what was written. Of "all", a
        tuple with one for every table.

    Examples
    --------
    >>> import tempfile
    >>> import causal_bo_ppl as cb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = cb.experiments.reproduce("theory", seeds=1, folder=folder, workers=1)
    ...     names = sorted(path.name for path in found.files)
    >>> names
    ['theory.csv', 'theory.md', 'theory.nc', 'theory.png']
    >>> float(found.table.set_index("quantity").loc["rank", "median"])
    2.0
    """
    where = Where(folder, workers, scheduler, progress)
    names = NAMES if name == ALL else (name,)
    found = tuple(reproduce_each(names, where, seeds=seeds, quick=quick))
    return found if name == ALL else found[0]


def reproduce_each(
    names: Sequence[str],
    where: Where,
    *,
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
) -> Iterator[Reproduction]:
    """Compute several of the paper's tables, one after another, in the same processes."""
    require_float64()
    for name in names:
        if name not in REPRODUCTIONS:
            raise ModelError(unknown("reproduction", name, [*REPRODUCTIONS, ALL]))
    chosen = None if seeds is None else read_seeds(seeds)
    with keep_workers(where) as position:
        for name in names:
            command = _command(name, seeds, quick)
            yield _reproduce(name, position, chosen, quick, command)


def _reproduce(
    name: str, where: Where, seeds: tuple[int, ...] | None, quick: bool, command: str
) -> Reproduction:
    usual = read_seeds(QUICK if quick else SEEDS[name])
    begun = time.perf_counter()
    computation = REPRODUCTIONS[name](usual if seeds is None else seeds, where, quick)
    computed = computation.computed
    origin = origin_words(computed.results)
    result = Result(
        computation.table,
        computation.differences,
        computation.traces,
        computed.failed,
        "\n\n".join(filter(None, [computation.words, origin])),
        command,
        computation.draw(),
    )
    assert where.folder is not None  # noqa: S101  (`reproduce` has a default)
    files = write_result(where.folder, f"{name}-quick" if quick else name, result)
    own = {each.attrs["identity"]: each for each in computed.results if each.attrs["is_new"]}
    busy = sum(float(each.attrs["processor_seconds"]) for each in own.values())
    return Reproduction(
        name,
        computation.table,
        computation.differences,
        computation.traces,
        computed.failed,
        files,
        time.perf_counter() - begun,
        computed.wall,
        busy,
        computed.workers,
        origin,
    )


@dataclass(frozen=True, eq=False)
class Computation:
    """What a reproduction computed, before it is written.

    draw: makes the figures, {end of the file's name: Axes}. words: what a reader must know.
    """

    computed: Computed
    table: pd.DataFrame
    differences: pd.DataFrame
    traces: xr.Dataset
    draw: Draw
    words: str


def _theory(seeds: Sequence[int], where: Where, quick: bool) -> Computation:
    computed = run_theory(seeds, where)
    require_results(computed.results, computed.failed)
    own = [int(each.attrs["seed"]) for each in computed.results]
    traces = xr.concat(
        [each["value"] for each in computed.results], pd.Index(own, name="seed")
    ).to_dataset()
    return Computation(
        computed,
        tabulate_theory(computed.results),
        pd.DataFrame(),
        traces,
        lambda: {"": plots.draw_theory(diagnose(own[0]))},
        theory_words(),
    )


def _transfer(seeds: Sequence[int], where: Where, quick: bool) -> Computation:
    variants = ("linear",) if quick else ("linear", "nonlinear")
    computed = run_transfer(variants, seeds, where)
    require_results(computed.results, computed.failed)
    table = tabulate_errors(computed.results)
    return Computation(
        computed,
        table,
        pd.DataFrame(),
        _join_errors(computed.results),
        lambda: {"": plots.draw_transfer(table)},
        transfer_words(),
    )


def _join_errors(results: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return the errors of all units, with the coordinates system, method and seed."""
    names = ("case", "method", "seed")
    labels = {name: ("unit", [each.attrs[name] for each in results]) for name in names}
    joined = xr.concat([each.drop_attrs() for each in results], "unit")
    return joined.assign_coords(labels).rename(case="system")


def _benchmarks(seeds: Sequence[int], where: Where, quick: bool) -> Computation:
    return _compared(*run_benchmarks(seeds, where, quick))


def _sweep(seeds: Sequence[int], where: Where, quick: bool) -> Computation:
    comparison, table = run_sizes(seeds, where, quick)
    return _compared(
        comparison, table, lambda: {"-sizes": plots.draw_sizes(_by_size(table, comparison))}
    )


def _by_size(table: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """Return mean gaps of what was recommended by size, with quartiles over seeds."""
    quartiles = comparison.units.groupby(["system", "method"], sort=False)["recommended"]
    low, high = (quartiles.quantile(share) for share in (0.25, 0.75))
    positions = list(zip(table["system"], table["method"], strict=True))
    shown = pd.DataFrame(
        {
            "size": table["size"],
            "method": table["method"],
            "mean": table["recommended_mean"],
            "median": table["recommended_median"],
            "lower": [low[position] for position in positions],
            "upper": [high[position] for position in positions],
        }
    )
    shown.attrs = {"of": "recommended", "interval": "middle half of the seeds"}
    return shown


def _ablation(seeds: Sequence[int], where: Where, quick: bool) -> Computation:
    return _compared(*run_ablation(seeds, where, quick))


def _noise(seeds: Sequence[int], where: Where, quick: bool) -> Computation:
    return _compared(*run_noise(seeds, where, quick))


def _compared(comparison: Comparison, table: pd.DataFrame, draw: Draw | None = None) -> Computation:
    has_reference = (comparison.units["method"] == REFERENCE).any()
    differences = comparison.both_differences(REFERENCE) if has_reference else NO_DIFFERENCES
    computed = Computed(comparison.results, comparison.failed, comparison.wall, comparison.workers)
    return Computation(
        computed,
        table,
        differences,
        comparison.traces,
        lambda: comparison.draw(differences) | ({} if draw is None else draw()),
        comparison_words(),
    )


REPRODUCTIONS: dict[str, Callable[[Sequence[int], Where, bool], Computation]] = {
    "theory": _theory,
    "transfer": _transfer,
    "benchmarks": _benchmarks,
    "sweep": _sweep,
    "ablation": _ablation,
    "noise": _noise,
}
NAMES = tuple(REPRODUCTIONS)


def _command(name: str, seeds: object, quick: bool) -> str:
    """Return the command, or the call where no command does it."""
    if seeds is not None and not isinstance(seeds, int | np.integer):
        return f"cb.experiments.reproduce({name!r}, seeds={list(seeds)!r}, quick={quick})"  # type: ignore[call-overload]
    words = ["causal-bo", "reproduce", name]
    if quick:
        words.append("--quick")
    if seeds is not None:
        words += ["--seeds", str(seeds)]
    return " ".join(words)
