"""Does the kernel of the linear chain have the structure that the theory predicts?

The published table has one data set with unpublished noise and scale of the kernel. Here the noise
is chosen such that kappa^2 over it is that of the published bound, and every quantity is computed
over many data sets. The control has the causal kernel within every set and no covariance between
sets: it separates the effect of coupling on the information gain from that of an RBF kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl.experiments.execution import Computed, UnitRunner
from causal_bo_ppl.experiments.published import RATIO, THEORY
from causal_bo_ppl.experiments.units import Loaded, Unit
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.kernels import jacobian_gram
from causal_bo_ppl.theory import gain_curves, theory_table
from causal_bo_ppl.theory.constants import design, kappa2

OBSERVATIONS = 100
DATA_SIZES = (25, 50, 100, 200, 400, 800, 1600, 3200)
THEORY_ROUNDS = 320
COVARIANCE_TOLERANCE = 1e-9  # error of a covariance, over the largest one


@dataclass(frozen=True, eq=False)
class TheoryCheck(Unit):
    """The theory's quantities for one data set of the chain."""

    observations: int = OBSERVATIONS
    rounds: int = THEORY_ROUNDS

    def describe(self) -> dict[str, object]:
        """Return everything that the numbers depend on."""
        return super().describe() | {"observations": self.observations, "rounds": self.rounds}

    def measure(self) -> xr.Dataset:
        """Fit the chain, and compute every quantity."""
        post = self.fitted(self.observations)
        noise = kappa2(post).value / RATIO
        table = theory_table(post, noise=noise, rounds=self.rounds)
        values = dict(zip(table["quantity"], table["value"].astype(float), strict=True))
        values |= {_trace_at(count): _trace(self.fitted(count)) for count in DATA_SIZES}
        names = list(values)
        return xr.Dataset(
            {"value": ("quantity", [values[name] for name in names])}, coords={"quantity": names}
        )

    def fitted(self, count: int) -> Posterior:
        """Return the posterior of so many observations, without intercepts."""
        system = self.system.load()
        return fit(system.problem, system.observe(count, self.seed), intercepts=False)


def _trace_at(count: int) -> str:
    return f"trace at {count} observations"


def _trace(post: Posterior) -> float:
    return float(np.trace(post.covariance))


def run_theory(seeds: Sequence[int], runner: UnitRunner) -> Computed:
    """Check the theory on the chain, a unit for every data set."""
    units = [TheoryCheck("chain", "theory", seed, Loaded("chain")) for seed in seeds]
    return runner.compute(units)


def tabulate(results: Sequence[xr.Dataset]) -> pd.DataFrame:
    """Return a row for every quantity: median, smallest, largest, what must hold, in how many."""
    values = pd.DataFrame([result["value"].to_series() for result in results])
    rows = []
    for name in values.columns:
        rule, holds = _expected(name, values)
        rows.append(
            {
                "quantity": name,
                "seeds": len(values),
                "median": values[name].median(),
                "least": values[name].min(),
                "most": values[name].max(),
                "published": THEORY.get(str(name), np.nan),
                "must hold": rule,
                "holds in": "" if holds is None else f"{int(holds.sum())} of {len(values)}",
            }
        )
    return pd.DataFrame(rows)


def _expected(name: Any, values: pd.DataFrame) -> tuple[str, pd.Series | None]:
    """Return what the theory requires of a quantity, as a text and for every data set."""
    column, gain = values[name], values["information gain"]
    if name == "rank":
        return "equals the dimension of theta", column == values["dimension"]
    if name == "covariance error":
        below = column <= COVARIANCE_TOLERANCE * values["kappa^2"]
        return f"below {COVARIANCE_TOLERANCE:g} of kappa^2", below
    if name == "information gain":
        return "below the bound by rank", column <= values["bound by rank"]
    if name == "independent gain, RBF":
        return "above the coupled gain", column > gain
    if name == "independent gain, causal":
        return "above the coupled gain, below that of RBF kernels", (column > gain) & (
            column < values["independent gain, RBF"]
        )
    for fewer, more in pairwise(DATA_SIZES):
        if name == _trace_at(more):
            return f"below that at {fewer} observations", column < values[_trace_at(fewer)]
    return "", None


def diagnose(seed: int = 0) -> dict[str, Any]:
    """Return what the paper's four figures show, for one data set."""
    unit = TheoryCheck("chain", "theory", seed, Loaded("chain"))
    post = unit.fitted(OBSERVATIONS)
    queries, noise = design(post).queries, kappa2(post).value / RATIO
    analytic = np.asarray(jacobian_gram(post, queries).gram)
    traces = [_trace(unit.fitted(count)) for count in DATA_SIZES]
    return {
        "eigenvalues": np.sort(np.linalg.eigvalsh(analytic))[::-1],
        "dimension": len(post.names),
        "covariances": np.stack([analytic.ravel(), _numerical(post).ravel()], axis=1),
        "gains": gain_curves(post, queries, noise=noise, rounds=THEORY_ROUNDS),
        "concentration": pd.DataFrame({"rows": DATA_SIZES, "trace": traces}),
    }


def _numerical(post: Posterior) -> np.ndarray:
    """Return covariances of the effects (M, M) from differences of the effects at theta."""
    from causal_bo_ppl.theory.table import central_differences

    jacobian = central_differences(post, design(post).queries)
    return np.asarray(jacobian @ post.covariance @ jacobian.T)
