"""How much do outcomes of some sets inform predictions of others? The funnel, linear and nonlinear.

Outcomes come from four sets in turn, at random values; the error is that of the predicted responses
of sets that were never tried: the root mean square over a grid of each, averaged over the sets.
Gaussian processes are fitted in closed form given the most probable hyperparameters ("conjugate").
Training points, observations and noise of a seed are shared by all methods. Budget 0 is the error
with the observations alone, so that the value of outcomes is separated from that of observations.

Two further methods on the linear funnel show what limits transfer. "gc-cbo, means known" knows that
every variable has mean 0, as in the model of the paper, so that slopes alone are learned.
"gc-cbo, exact outcomes" learns from the effects themselves, without noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import t as student

from causal_bo_ppl.experiments.execution import Computed, UnitRunner
from causal_bo_ppl.experiments.published import BUDGETS, TRANSFER
from causal_bo_ppl.experiments.units import Loaded, Unit
from causal_bo_ppl.inference import fit
from causal_bo_ppl.inputs import as_key
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.surrogates import CoupledMaker, IndependentMaker, SurrogateMaker

GRID_POINTS = 5  # of every variable in the grid of a response
ALL_BUDGETS = (0, *BUDGETS)
DATA_SIZES = (30, 100)


class Learning(NamedTuple):
    """How a method learns: its mechanisms, its method of inference and its surrogate.

    intercepts: whether intercepts are learned; otherwise every mean is known to be 0. is_exact:
    whether its outcomes are the effects themselves.
    """

    mechanisms: str
    inference: str
    surrogate: SurrogateMaker
    intercepts: bool = True
    is_exact: bool = False


COUPLED = CoupledMaker(False, True)
LINEAR = Learning("linear", "wishart", COUPLED)
FITS = {
    "gc-cbo": LINEAR,
    "gc-cbo, linear": LINEAR,
    "gc-cbo, means known": LINEAR._replace(intercepts=False),
    "gc-cbo, exact outcomes": LINEAR._replace(is_exact=True),
    "gc-cbo, nonlinear": Learning("gp", "conjugate", COUPLED),
    "cbo": LINEAR._replace(surrogate=IndependentMaker()),
    "cbo-noprior": LINEAR._replace(surrogate=IndependentMaker(causal_prior=False)),
}
METHODS = {
    "linear": ("gc-cbo", "gc-cbo, means known", "gc-cbo, exact outcomes", "cbo", "cbo-noprior"),
    "nonlinear": ("gc-cbo, nonlinear", "gc-cbo, linear", "cbo", "cbo-noprior"),
}


@dataclass(frozen=True, eq=False)
class Transfer(Unit):
    """Errors on sets that were never tried, by the number of outcomes of others."""

    observations: int
    budgets: tuple[int, ...] = ALL_BUDGETS

    def describe(self) -> dict[str, object]:
        """Return everything that the numbers depend on."""
        own = {"observations": self.observations, "budgets": list(self.budgets)}
        return super().describe() | own | {"fit": self.method}

    def measure(self) -> xr.Dataset:
        """Learn from observations and outcomes, and compare predictions with exact responses."""
        from causal_bo_ppl.models import funnel

        system = self.system.load()
        problem = system.problem
        data_key, value_key, noise_key = jax.random.split(as_key(self.seed), 3)
        data = system.observe(self.observations, data_key)
        queries = draw_training(problem, funnel.TRAINING, max(self.budgets), value_key)
        learning = FITS[self.method]
        outcomes, noise = system.experiment(queries, noise_key).outcomes, None
        if learning.is_exact:
            outcomes, noise = np.asarray(system.effect(queries)), 0.0
        held, ends = held_out(problem, funnel.HELD_OUT)
        truth = np.asarray(system.effect(held))
        post = fit(
            problem,
            data,
            mechanisms=learning.mechanisms,
            method=learning.inference,
            intercepts=learning.intercepts,
            key=data_key,
        )
        prior: Any = learning.surrogate.begin(post)
        errors, covered = [], []
        for budget in self.budgets:
            surrogate = prior
            if budget:
                surrogate = prior.tell(queries[:budget], outcomes[:budget], noise)
                relinearize = offered(surrogate, "relinearize")
                surrogate = surrogate if relinearize is None else relinearize()
            mean, sd = surrogate.predict(held)
            parts = np.split((mean - truth) ** 2, ends)
            errors.append(float(np.mean([np.sqrt(part.mean()) for part in parts])))
            width = student.ppf(0.95, getattr(surrogate, "degrees", np.inf)) * sd
            covered.append(float((np.abs(mean - truth) <= width).mean()))
        return xr.Dataset(
            {"error": ("budget", errors), "covered": ("budget", covered)},
            coords={"budget": list(self.budgets)},
        )


def draw_training(
    problem: Problem, sets: Sequence[tuple[str, ...]], count: int, key: jax.Array
) -> Queries:
    """Draw interventions on some sets in turn, uniform over their domains."""
    shares = np.asarray(jax.random.uniform(key, (count, max(map(len, sets)))))
    drawn = []
    for index in range(count):
        names = sets[index % len(sets)]
        ends = [problem.domains[name] for name in names]
        drawn.append(
            {
                name: float(low + share * (high - low))
                for name, (low, high), share in zip(names, ends, shares[index], strict=False)
            }
        )
    return problem.queries(drawn)


def held_out(problem: Problem, sets: Sequence[tuple[str, ...]]) -> tuple[Queries, list[int]]:
    """Return a grid of every set, and the index at which that of each further set begins."""
    held, ends = [], []
    for names in sets:
        axes = np.meshgrid(*[np.linspace(*problem.domains[name], GRID_POINTS) for name in names])
        points = np.stack([axis.ravel() for axis in axes], axis=1)
        held += [dict(zip(names, map(float, point), strict=True)) for point in points]
        ends.append(len(held))
    return problem.queries(held), ends[:-1]


def run_transfer(variants: Sequence[str], seeds: Sequence[int], runner: UnitRunner) -> Computed:
    """Run the transfer tests, a unit for every variant, number of observations, method and seed."""
    units = [
        Transfer(
            f"funnel, {variant}, {size} observations",
            method,
            seed,
            Loaded("funnel", {"variant": variant, "seed": seed}),
            size,
        )
        for variant in variants
        for size in DATA_SIZES
        for method in METHODS[variant]
        for seed in seeds
    ]
    return runner.compute(units)


def tabulate(results: Sequence[xr.Dataset]) -> pd.DataFrame:
    """Return quartiles over seeds of the error, by system, observations, method and budget.

    rows: the number of observations. ratio: the median over that of `cbo-noprior` at the same
    budget. own: over the method's own median at budget 0. Both are also computed from means over
    seeds.
    """
    groups: dict[tuple[str, str], list[xr.Dataset]] = {}
    for result in results:
        groups.setdefault((result.attrs["case"], result.attrs["method"]), []).append(result)
    parts = []
    for (case, method), own in groups.items():
        errors = np.array([each["error"].to_numpy() for each in own])
        lower, median, upper = np.quantile(errors, (0.25, 0.5, 0.75), axis=0)
        means = np.array([column.mean() for column in errors.T])
        _, variant, size = case.split(", ")
        label = {"cbo": "", "cbo-noprior": "cbo"}.get(method, method)
        published = dict(zip(BUDGETS, TRANSFER.get((variant, label), ()), strict=False))
        budgets = own[0]["budget"].to_numpy()
        columns = {
            "system": f"funnel, {variant}",
            "rows": int(size.split()[0]),
            "method": method,
            "budget": budgets,
            "seeds": len(own),
            "lower": lower,
            "median": median,
            "upper": upper,
            "mean": means,
            "covered": np.mean([each["covered"].to_numpy() for each in own], axis=0),
            "own": median / median[0],
            "own_of_means": means / means[0],
            "published": [published.get(budget, np.nan) for budget in budgets.tolist()],
        }
        parts.append(pd.DataFrame(columns))
    table = pd.concat(parts, ignore_index=True)
    plain = table[table["method"] == "cbo-noprior"].set_index(["system", "rows", "budget"])
    keys = list(zip(table["system"], table["rows"], table["budget"], strict=True))
    ratios = {"ratio": "median", "ratio_of_means": "mean", "published_ratio": "published"}
    for name, column in ratios.items():
        table[name] = table[column] / np.array([plain[column].get(key, np.nan) for key in keys])
    table.attrs = {"seeds": int(table["seeds"].max())}
    return table
