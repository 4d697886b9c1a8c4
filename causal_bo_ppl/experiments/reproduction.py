"""Are the paper's tables and figures reproduced? Each is computed, written and drawn.

Six reproductions: "theory" (the chain), "transfer" (the funnels), "benchmarks" (the main table),
"sweep" (b1583 by the size of sets), "ablation" (all methods there) and "noise" (exact and noisy
outcomes, which the paper does not separate). Each writes into its folder every trace (netCDF), a
table with the published figures beside ours (CSV and Markdown) and figures.

Costs are those of the published runs, or less. Toy, synthetic and healthcare have exact outcomes,
the effects themselves, and mechanisms learned as Gaussian processes; the networks of ecoli70 have
noisy outcomes and linear mechanisms. `gc-cbo` learns from outcomes alone, as published; on
nonlinear systems its model discrepancy is chosen by evidence, as `cb.optimize` has it by default.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl import plots
from causal_bo_ppl.errors import ArgumentError, unknown
from causal_bo_ppl.experiments.comparison import (
    COMPARISON_NOTES,
    MORE,
    NO_EXPERIMENT,
    THEORY_NOTES,
    TRANSFER_NOTES,
    Case,
    Comparison,
    Result,
    SweepMethod,
    as_html,
    compare,
    origin_note,
    read_methods,
    require_results,
    write_result,
)
from causal_bo_ppl.experiments.execution import Computed, UnitRunner
from causal_bo_ppl.experiments.paper_checks import (
    ABLATION,
    BENCHMARKS,
    SIZES,
    Published,
    beside,
    diagnose,
    run_theory,
    run_transfer,
    tabulate_errors,
    tabulate_theory,
)
from causal_bo_ppl.experiments.units import Loaded, read_seeds
from causal_bo_ppl.inputs import require_float64
from causal_bo_ppl.models.ecoli70 import FILE as NETWORK
from causal_bo_ppl.models.networks import gaussian_network

OUTCOMES_ONLY: dict[str, Any] = {"learn_from": "target", "discrepancy": False}
BASELINES = {name: {"preset": name} for name in ("bo", "cbo", "cbo-noprior")}
COUPLED_METHODS = {
    name: {"preset": name, **OUTCOMES_ONLY}
    for name in ("gc-cbo", "gc-cbo-ei", "gc-cbo-nocoupling", "gc-cbo-fixed")
}
FULL = {"learn_from": "rows"}  # learns from all variables, not the target alone
UNPUBLISHED = {
    "gc-cbo, all variables": FULL,
    "gc-cbo, all variables, Thompson": FULL | {"acquisition": "thompson"},
    "gc-cbo, Thompson": {"acquisition": "thompson", **OUTCOMES_ONLY},
    "gc-cbo, look-ahead": {"acquisition": "look-ahead", **OUTCOMES_ONLY},
    "gc-cbo, discrepancy by evidence": {"learn_from": "target", "discrepancy": "auto"},
}
METHODS = BASELINES | COUPLED_METHODS | UNPUBLISHED | {NO_EXPERIMENT: {}, MORE: {}}
MAIN = ("bo", "cbo", "gc-cbo", NO_EXPERIMENT, MORE)
NONLINEAR: dict[str, Any] = {"mechanisms": "gp", "noise": 0.0, "observations": 100}
LINEAR: dict[str, Any] = {"noise": None, "observations": 100}
SIZE_COSTS = {2: 30.0, 3: 45.0, 5: 63.0}  # of b1583: about 15 interventions; 63.4 was published
NOT_BO = tuple(name for name in MAIN if name != "bo")  # where the size of sets is limited
CAUSES = ("cspG", "lacA", "lacZ")  # of yaeM
Tabulated = tuple[Comparison, pd.DataFrame]
EPSILON = 0.01  # of the optimum: the gap for which the cost is given


def b1583(size: int) -> Loaded:
    """Return the network with target b1583, its parents not manipulable, sets up to a size."""
    return Loaded("ecoli70", {"target": "b1583", "parents": False, "max_size": size})


def yaem(size: int) -> Loaded:
    """Return the network with target yaeM, sets up to a size."""
    return Loaded("ecoli70", {"target": "yaeM", "max_size": size})


def benchmark_cases() -> dict[str, Case]:
    """Return the benchmarks, each with the published cost of every method or less.

    The published `bo` on yaeM paid 3 for an intervention: it set the three direct causes only. That
    is a system of its own here, for all methods.
    """
    synthetic = Loaded("synthetic", {"variant": "paper"})
    network = gaussian_network(NETWORK, target="yaeM", manipulable=CAUSES, name="ecoli70-yaeM")
    return {
        "toy": Case(Loaded("toy"), NONLINEAR, _costs(86, 46, 46)),
        "synthetic": Case(synthetic, NONLINEAR, _costs(198, 155, 60)),
        "healthcare": Case(Loaded("healthcare"), NONLINEAR, _costs(66, 65, 20)),
        "yaeM": Case(Loaded("ecoli70", {"target": "yaeM"}), LINEAR, _costs(33, 38, 39, False)),
        "yaeM, direct causes": Case(network, LINEAR, _costs(33, 38, 39, False)),
        "b1583": Case(b1583(5), LINEAR, _costs(63, 39, 63, False), NOT_BO),
    }


def _costs(bo: float, cbo: float, ours: float, nonlinear: bool = True) -> dict[str, dict[str, Any]]:
    """Return what each method may spend; on a nonlinear system, a discrepancy by evidence."""
    own = {"budget": float(ours)} | ({"discrepancy": "auto"} if nonlinear else {})
    return {"bo": {"budget": float(bo)}, "cbo": {"budget": float(cbo)}, "gc-cbo": own}


def quick_benchmark_cases() -> dict[str, Case]:
    """Return two of the benchmarks with low budgets, to test that everything works."""
    return {
        "toy": Case(Loaded("toy"), NONLINEAR, _costs(12, 6, 6)),
        "yaeM": Case(Loaded("ecoli70", {"target": "yaeM"}), LINEAR, _costs(18, 6, 6, False)),
    }


def run_benchmarks(seeds: Sequence[int], runner: UnitRunner, quick: bool) -> Tabulated:
    """Run the main table on every benchmark; quick: on two, with low budgets.

    Published figures are those of the full budgets only.
    """
    cases = quick_benchmark_cases() if quick else benchmark_cases()
    comparison = compare(cases, _methods(MAIN), seeds, runner)
    return comparison, lay_out(comparison, lambda *of: None if quick else published_benchmark(*of))


def published_benchmark(system: str, method: str) -> Published | None:
    """Return the published figures of a method on a benchmark; None where there are none."""
    if system.startswith("yaeM"):
        fits = (method == "bo") == (system != "yaeM")
        return BENCHMARKS.get(("yaeM", method)) if fits else None
    return BENCHMARKS.get((system, method))


def run_sizes(seeds: Sequence[int], runner: UnitRunner, quick: bool) -> Tabulated:
    """Run b1583 without its parents, for sets of up to 2, 3 and 5 variables; quick: yaeM."""
    systems = {
        size: Case(b1583(size), LINEAR | {"budget": SIZE_COSTS[size]}) for size in SIZE_COSTS
    }
    gene = "b1583"
    if quick:
        gene = "yaeM"
        systems = {size: Case(yaem(size), LINEAR | {"budget": 6.0}) for size in (1, 2)}
    labels = {f"{gene}, sets of up to {size}": size for size in systems}
    full = ("gc-cbo, all variables", "gc-cbo, all variables, Thompson")
    names = ("gc-cbo", "cbo", "cbo-noprior", *full, NO_EXPERIMENT, MORE)
    cases = {label: systems[size] for label, size in labels.items()}
    comparison = compare(cases, _methods(names), seeds, runner)
    table = lay_out(
        comparison, lambda system, method: None if quick else SIZES.get((labels[system], method))
    )
    table.insert(1, "size", [labels[system] for system in table["system"]])
    return comparison, table


def run_ablation(seeds: Sequence[int], runner: UnitRunner, quick: bool) -> Tabulated:
    """Run every method on b1583 with sets of up to 5 variables; quick: on yaeM, up to 2."""
    cases = {"b1583": Case(b1583(5), LINEAR | {"budget": SIZE_COSTS[5]})}
    if quick:
        cases = {"yaeM": Case(yaem(2), LINEAR | {"budget": 6.0})}
    names = ("gc-cbo", *(name for name in METHODS if name not in ("gc-cbo", "bo")))
    comparison = compare(cases, _methods(names), seeds, runner)
    return comparison, lay_out(
        comparison, lambda _, method: None if quick else ABLATION.get(method)
    )


def run_noise(seeds: Sequence[int], runner: UnitRunner, quick: bool) -> Tabulated:
    """Run toy and b1583 with exact and with noisy outcomes; toy also with linear mechanisms.

    The paper does not state which outcomes it has. quick: the chain.
    """
    toy, noisy = Loaded("toy"), {"noise": None}
    costs, network = _costs(46, 46, 46), _costs(63, 63, 63, False)
    linear = {name: own | {"mechanisms": "linear"} for name, own in costs.items()}
    cases = {
        "toy, exact": Case(toy, NONLINEAR, costs),
        "toy, noisy": Case(toy, NONLINEAR | noisy, costs),
        "toy, noisy, linear": Case(toy, NONLINEAR | noisy, linear, ("cbo", "gc-cbo")),
        "b1583, exact": Case(b1583(5), LINEAR | {"noise": 0.0}, network, ("cbo", "gc-cbo")),
        "b1583, noisy": Case(b1583(5), LINEAR, network, ("cbo", "gc-cbo")),
    }
    if quick:
        few = _costs(4, 4, 4, False)
        modes = {"exact": LINEAR | {"noise": 0.0}, "noisy": LINEAR}
        cases = {f"chain, {mode}": Case("chain", own, few) for mode, own in modes.items()}
    comparison = compare(cases, _methods(("gc-cbo", "cbo", "bo")), seeds, runner)
    return comparison, lay_out(comparison, lambda system, method: None)


def _methods(names: Sequence[str]) -> list[SweepMethod]:
    return read_methods({name: METHODS[name] for name in names})


def lay_out(
    comparison: Comparison, published: Callable[[str, str], Published | None]
) -> pd.DataFrame:
    """Return the table over seeds, with the published figures beside it."""
    table = comparison.table(EPSILON)
    figures = [published(system, method) for system, method in comparison.pairs]
    return pd.concat([table, beside(figures)], axis=1)


RESULTS_FOLDER = "results"
DEFAULT_SEEDS = {
    "theory": 60,
    "transfer": 60,
    "benchmarks": 20,
    "sweep": 60,
    "ablation": 60,
    "noise": 20,
}
QUICK_SEEDS = 2
REFERENCE = "gc-cbo"  # the method that others are compared with
NO_TABLE = pd.DataFrame(columns=["system", "method", "of"])
Reproduced = tuple[Computed | Comparison, Result]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """One of the paper's tables, reproduced; made by `reproduce`.

    table: ours with the published figures beside it. differences: between methods in pairs, where
    they were run on the same seeds. traces: the results of every seed. failed: units that could not
    be computed, with the reason. files: what was written. seconds: the duration of this call; wall:
    that of the units which it computed, in `workers` processes (0: another cluster); busy: the
    processor time that they needed. origin: a warning where units were computed by different states
    of the code.
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
        """How long it took, and the speed-up over one processor."""
        if not self.busy > 0:
            return f"{self.seconds:.0f} s; every unit had been computed before"
        many = "" if self.workers == 1 else "s"
        cluster = f"{self.workers} worker{many}" if self.workers else "a cluster"
        return (
            f"{self.seconds:.0f} s in all; units that need {self.busy:.0f} s of one processor took "
            f"{self.wall:.0f} s on {cluster}: a speed-up of {self.busy / self.wall:.2f}"
        )

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} units failed" if len(self.failed) else ""
        return f"Reproduction({self.name}, {len(self.table)} rows{lost}; {self.pace})"

    def _repr_html_(self) -> str:
        return as_html(repr(self), self.table, self.failed)


def reproduce(
    name: str,
    *,
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
    folder: str | Path = RESULTS_FOLDER,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Reproduction:
    """Compute one of the paper's tables again, and write it with its figures.

    Parameters
    ----------
    name:
        "theory", "transfer", "benchmarks", "sweep", "ablation" or "noise".
    seeds:
        How many, or which; by default 60, for benchmarks and noise 20.
    quick:
        Small systems, low budgets and two seeds, to test that everything works.
    folder:
        Where results are written. Finished units are stored there: a call that was interrupted is
        resumed by the same call, and repeats nothing.
    workers, scheduler, progress:
        As in `sweep`.

    Returns
    -------
    Reproduction
        `table` has the published figures beside ours; `files` are the files that were written.

    Raises
    ------
    ArgumentError
        If there is no such table, or the seeds or the workers are not usable.
    DataError
        If no unit at all could be computed.

    Examples
    --------
    >>> import tempfile
    >>> import causal_bo_ppl as cb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     theory = cb.experiments.reproduce("theory", seeds=1, folder=folder, workers=1)
    ...     names = sorted(path.name for path in theory.files)
    >>> names
    ['theory.csv', 'theory.md', 'theory.nc', 'theory.png']
    >>> float(theory.table.set_index("quantity").loc["rank", "median"])
    2.0
    """
    require_known(name)
    with UnitRunner(folder, workers=workers, scheduler=scheduler, progress=progress) as runner:
        return next(reproduce_each([name], runner, folder, seeds=seeds, quick=quick))


def require_known(name: str) -> None:
    """Refuse the name of a table that is not known."""
    if name not in NAMES:
        raise ArgumentError(unknown("reproduction", name, NAMES))


def reproduce_each(
    names: Sequence[str],
    runner: UnitRunner,
    folder: str | Path,
    *,
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
) -> Iterator[Reproduction]:
    """Compute several of the paper's tables, one after another, with the same workers."""
    require_float64()
    chosen = None if seeds is None else read_seeds(seeds)
    for name in names:
        usual = read_seeds(QUICK_SEEDS if quick else DEFAULT_SEEDS[name])
        begun = time.perf_counter()
        computed, result = REPRODUCTIONS[name](chosen or usual, runner, quick)
        origin = origin_note(computed.results)
        result = result._replace(notes="\n\n".join(filter(None, [result.notes, origin])))
        label = f"{name}-quick" if quick else name
        files = write_result(folder, label, result, _command(name, seeds, quick))
        new = {
            each.attrs["identity"]: float(each.attrs["processor_seconds"])
            for each in computed.results
            if each.attrs["is_new"]
        }
        yield Reproduction(
            name,
            *result[:4],
            files,
            time.perf_counter() - begun,
            computed.wall,
            sum(new.values()),
            computed.workers,
            origin,
        )


def _theory(seeds: Sequence[int], runner: UnitRunner, quick: bool) -> Reproduced:
    computed = run_theory(seeds, runner)
    require_results(computed.results, computed.failed)
    own = [int(each.attrs["seed"]) for each in computed.results]
    values = [each["value"] for each in computed.results]
    traces = xr.concat(values, pd.Index(own, name="seed")).to_dataset()
    table, axes = tabulate_theory(computed.results), {"": plots.draw_theory(diagnose(own[0]))}
    return computed, Result(table, NO_TABLE, traces, computed.failed, THEORY_NOTES, axes)


def _transfer(seeds: Sequence[int], runner: UnitRunner, quick: bool) -> Reproduced:
    computed = run_transfer(("linear",) if quick else ("linear", "nonlinear"), seeds, runner)
    require_results(computed.results, computed.failed)
    table, traces = tabulate_errors(computed.results), _join_errors(computed.results)
    axes = {"": plots.draw_transfer(table)}
    return computed, Result(table, NO_TABLE, traces, computed.failed, TRANSFER_NOTES, axes)


def _join_errors(results: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return the errors of all units, with the coordinates system, method and seed."""
    names = ("case", "method", "seed")
    labels = {name: ("unit", [each.attrs[name] for each in results]) for name in names}
    joined = xr.concat([each.drop_attrs() for each in results], "unit")
    return joined.assign_coords(labels).rename(case="system")


def _compared(comparison: Comparison, table: pd.DataFrame) -> Reproduced:
    has_reference = (comparison.units["method"] == REFERENCE).any()
    differences = comparison.both_differences(REFERENCE) if has_reference else NO_TABLE
    axes = comparison.draw(differences)
    if "size" in table:
        axes["-sizes"] = plots.draw_sizes(_by_size(table, comparison))
    traces, failed = comparison.traces, comparison.failed
    return comparison, Result(table, differences, traces, failed, COMPARISON_NOTES, axes)


def _by_size(table: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """Return mean gaps of what was recommended by size, with quartiles over seeds."""
    gaps = comparison.units.groupby(["system", "method"], sort=False)["recommended"]
    shown = pd.DataFrame(
        {
            "size": table["size"],
            "method": table["method"],
            "mean": table["recommended_mean"],
            "median": table["recommended_median"],
            "lower": gaps.quantile(0.25).to_numpy(),  # in the order of the table
            "upper": gaps.quantile(0.75).to_numpy(),
        }
    )
    shown.attrs = {"of": "recommended", "interval": "middle half of the seeds"}
    return shown


REPRODUCTIONS: dict[str, Callable[[Sequence[int], UnitRunner, bool], Reproduced]] = {
    "theory": _theory,
    "transfer": _transfer,
    "benchmarks": lambda *given: _compared(*run_benchmarks(*given)),
    "sweep": lambda *given: _compared(*run_sizes(*given)),
    "ablation": lambda *given: _compared(*run_ablation(*given)),
    "noise": lambda *given: _compared(*run_noise(*given)),
}
NAMES = tuple(REPRODUCTIONS)


def _command(name: str, seeds: object, quick: bool) -> str:
    """Return the command that reproduces a table, or the call where there is no such command."""
    if seeds is not None and not isinstance(seeds, int | np.integer):
        return f"cb.experiments.reproduce({name!r}, seeds={list(seeds)!r}, quick={quick})"  # type: ignore[call-overload]
    options = " --quick" if quick else ""
    options += "" if seeds is None else f" --seeds {seeds}"
    return f"causal-bo reproduce {name}{options}"
