"""How much do outcomes of some sets teach about others? The funnel, linear and nonlinear.

Outcomes come from four sets in turn, at random values; the error is that of the predicted responses
of sets that were never tried: the root mean square over a grid of each, averaged over the sets.
Gaussian processes are fitted in closed form given the most probable hyperparameters ("conjugate").
Training points, rows and noise of a seed are shared by all methods. Budget 0 is what the rows alone
say, so that the value of outcomes can be told from that of the rows.

Two further methods on the linear funnel show what limits transfer. "gc-cbo, levels known" is told
that every variable has mean 0, as the model of the paper has it, so that slopes alone are learned.
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

from causal_bo_ppl.experiments.execution import Computed, Where, compute
from causal_bo_ppl.experiments.published import BUDGETS, TRANSFER
from causal_bo_ppl.experiments.units import Loaded, Unit
from causal_bo_ppl.inference import fit
from causal_bo_ppl.inputs import as_key
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.surrogates import CoupledMaker, IndependentMaker, SurrogateMaker

TICKS = 5  # of every variable in the grid of a response
ALL_BUDGETS = (0, *BUDGETS)
ROWS = (30, 100)


class Learning(NamedTuple):
    """How a method learns: its mechanisms, its method of inference and its surrogate.

    intercepts: whether levels are learned; otherwise every mean is known to be 0. is_exact: whether
    its outcomes are the effects themselves.
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
    "gc-cbo, levels known": LINEAR._replace(intercepts=False),
    "gc-cbo, exact outcomes": LINEAR._replace(is_exact=True),
    "gc-cbo, nonlinear": Learning("gp", "conjugate", COUPLED),
    "cbo": LINEAR._replace(surrogate=IndependentMaker()),
    "cbo-noprior": LINEAR._replace(surrogate=IndependentMaker(causal_prior=False)),
}
METHODS = {
    "linear": ("gc-cbo", "gc-cbo, levels known", "gc-cbo, exact outcomes", "cbo", "cbo-noprior"),
    "nonlinear": ("gc-cbo, nonlinear", "gc-cbo, linear", "cbo", "cbo-noprior"),
}


@dataclass(frozen=True, eq=False)
class Transfer(Unit):
    """Errors on sets that were never tried, by the number of outcomes of others."""

    rows: int
    budgets: tuple[int, ...] = ALL_BUDGETS

    def describe(self) -> dict[str, object]:
        """Return everything that the numbers depend on."""
        own = {"rows": self.rows, "budgets": list(self.budgets), "fit": self.method}
        return super().describe() | own

    def measure(self) -> xr.Dataset:
        """Learn from rows and outcomes, and compare predictions with exact responses."""
        from causal_bo_ppl.models import funnel

        system = self.system.load()
        problem = system.problem
        for_rows, for_values, for_noise = jax.random.split(as_key(self.seed), 3)
        data = system.observe(self.rows, for_rows)
        queries = draw_training(problem, funnel.TRAINING, max(self.budgets), for_values)
        learning = FITS[self.method]
        outcomes, noise = system.experiment(queries, for_noise).outcomes, None
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
            key=for_rows,
        )
        before: Any = learning.surrogate.begin(post)
        errors, inside = [], []
        for budget in self.budgets:
            told = before
            if budget:
                told = before.tell(queries[:budget], outcomes[:budget], noise)
                relinearize = offered(told, "relinearize")
                told = told if relinearize is None else relinearize()
            mean, sd = told.predict(held)
            parts = np.split((mean - truth) ** 2, ends)
            errors.append(float(np.mean([np.sqrt(part.mean()) for part in parts])))
            width = student.ppf(0.95, getattr(told, "degrees", np.inf)) * sd
            inside.append(float((np.abs(mean - truth) <= width).mean()))
        return xr.Dataset(
            {"error": ("budget", errors), "covered": ("budget", inside)},
            coords={"budget": list(self.budgets)},
        )


def draw_training(
    problem: Problem, sets: Sequence[tuple[str, ...]], count: int, key: jax.Array
) -> Queries:
    """Draw interventions on some sets in turn, uniform over their domains."""
    shares = np.asarray(jax.random.uniform(key, (count, max(map(len, sets)))))
    tried = []
    for at in range(count):
        names = sets[at % len(sets)]
        ends = [problem.domains[name] for name in names]
        tried.append(
            {
                name: float(low + share * (high - low))
                for name, (low, high), share in zip(names, ends, shares[at], strict=False)
            }
        )
    return problem.queries(tried)


def held_out(problem: Problem, sets: Sequence[tuple[str, ...]]) -> tuple[Queries, list[int]]:
    """Return a grid of every set, and where those of the next set begin."""
    held, ends = [], []
    for names in sets:
        axes = np.meshgrid(*[np.linspace(*problem.domains[name], TICKS) for name in names])
        points = np.stack([axis.ravel() for axis in axes], axis=1)
        held += [dict(zip(names, map(float, point), strict=True)) for point in points]
        ends.append(len(held))
    return problem.queries(held), ends[:-1]


def run_transfer(variants: Sequence[str], seeds: Sequence[int], where: Where) -> Computed:
    """Run the transfer tests, a unit for every variant, number of rows, method and seed."""
    units = [
        Transfer(
            f"funnel, {variant}, {rows} rows",
            method,
            seed,
            Loaded("funnel", {"variant": variant, "seed": seed}),
            rows,
        )
        for variant in variants
        for rows in ROWS
        for method in METHODS[variant]
        for seed in seeds
    ]
    return compute(units, where)


def tabulate(results: Sequence[xr.Dataset]) -> pd.DataFrame:
    """Return median and quartiles over seeds of the error, by system, rows, method and budget.

    ratio: the median over that of `cbo-noprior` at the same budget. own: over the method's own
    median at budget 0. Both are also computed from means over seeds.
    """
    groups: dict[tuple[str, str], list[xr.Dataset]] = {}
    for result in results:
        groups.setdefault((result.attrs["case"], result.attrs["method"]), []).append(result)
    rows = []
    for (case, method), own in groups.items():
        errors = np.array([each["error"].to_numpy() for each in own])
        covered = np.mean([each["covered"].to_numpy() for each in own], axis=0)
        lower, median, upper = np.quantile(errors, (0.25, 0.5, 0.75), axis=0)
        _, variant, rows_said = case.split(", ")
        published = TRANSFER.get((variant, "cbo" if method == "cbo-noprior" else method))
        for at, budget in enumerate(own[0]["budget"].to_numpy().tolist()):
            figure = np.nan
            if published is not None and budget in BUDGETS and method != "cbo":
                figure = published[BUDGETS.index(budget)]
            rows.append(
                {
                    "system": f"funnel, {variant}",
                    "rows": int(rows_said.split()[0]),
                    "method": method,
                    "budget": int(budget),
                    "seeds": len(own),
                    "lower": lower[at],
                    "median": median[at],
                    "upper": upper[at],
                    "mean": errors[:, at].mean(),
                    "covered": covered[at],
                    "own": median[at] / median[0],
                    "own_of_means": errors[:, at].mean() / errors[:, 0].mean(),
                    "published": figure,
                }
            )
    table = pd.DataFrame(rows)
    plain = table[table["method"] == "cbo-noprior"].set_index(["system", "rows", "budget"])
    keys = list(zip(table["system"], table["rows"], table["budget"], strict=True))
    ratios = {
        name: table[column] / np.array([plain[column].get(key, np.nan) for key in keys])
        for name, column in (("ratio", "median"), ("ratio_of_means", "mean"))
    }
    figures = table["published"] / np.array([plain["published"].get(key, np.nan) for key in keys])
    table = table.assign(**ratios, published_ratio=figures)
    table.attrs = {"seeds": int(table["seeds"].max())}
    return table
