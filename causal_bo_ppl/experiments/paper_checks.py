"""What are the published figures, and do the checks hold that are no optimizations?

Figures: those of the paper's tables, for the comparison with ours. The optima of ecoli70 belong to
domains from an unpublished sample, and the values of healthcare are noisy samples that lie below
the true optimum. So gaps are compared, not values.

Theory: the published table has one data set of the linear chain with unpublished noise and scale of
the kernel. Here the noise is chosen such that kappa^2 over it is that of the published bound, and
every quantity is computed over many data sets. The control has the causal kernel within every set
and no covariance between sets: it separates the effect of coupling on the information gain from
that of an RBF kernel.

Transfer: how much outcomes of some sets inform predictions of others, on the linear and the
nonlinear funnel. Outcomes come from four sets in turn, at random values; the error is that of the
predicted responses of sets that were never tried: the root mean square over a grid of each,
averaged over the sets. Gaussian processes are fitted in closed form given the most probable
hyperparameters ("conjugate"). Training points, observations and noise of a seed are shared by all
methods. Budget 0 is the error with the observations alone, so that the value of outcomes is
separated from that of observations. Two further methods on the linear funnel show what limits
transfer. "gc-cbo, means known" knows that every variable has mean 0, as in the model of the paper,
so that slopes alone are learned. "gc-cbo, exact outcomes" learns from the effects themselves,
without noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import t as student

from causal_bo_ppl.experiments.execution import Computed, UnitRunner
from causal_bo_ppl.experiments.units import Loaded, Unit
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inputs import as_key, offered
from causal_bo_ppl.kernels import jacobian_gram
from causal_bo_ppl.models import funnel
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.surrogates import CoupledMaker, IndependentMaker, SurrogateMaker
from causal_bo_ppl.theory import gain_curves, theory_table
from causal_bo_ppl.theory.constants import design, kappa2
from causal_bo_ppl.theory.information_gains import central_differences

THEORY_OBSERVATIONS = 100
CONCENTRATION_SIZES = (25, 50, 100, 200, 400, 800, 1600, 3200)
THEORY_ROUNDS = 320
COVARIANCE_TOLERANCE = 1e-9  # error of a covariance, over the largest one
GRID_POINTS = 5  # of every variable in the grid of a response
BUDGETS = (3, 6, 12, 24, 48)
ALL_BUDGETS = (0, *BUDGETS)
TRANSFER_OBSERVATIONS = (30, 100)


class Published(NamedTuple):
    """Terminal values of a method over seeds, its cost, and the optimum they are compared with.

    cost: of all interventions; within: the first cost at which the median is near the optimum.
    """

    mean: float
    sd: float
    median: float
    cost: float
    optimum: float
    within: float = float("nan")

    @property
    def gap(self) -> float:
        """The mean less the published optimum; negative where it lies below it."""
        return self.mean - self.optimum


NAN = float("nan")
BENCHMARKS = {
    ("toy", "bo"): Published(-1.8224, 0.2357, -1.8495, 86.0, -2.17),
    ("toy", "cbo"): Published(-2.1687, 0.0009, -2.1685, 46.0, -2.17),
    ("toy", "gc-cbo"): Published(-2.1693, 0.0005, -2.1692, 46.0, -2.17),
    ("synthetic", "bo"): Published(-1.9216, 0.0139, -1.9177, 198.0, -2.0),
    ("synthetic", "cbo"): Published(-1.9019, 0.0219, -1.8971, 155.6, -2.0),
    ("synthetic", "gc-cbo"): Published(-1.9105, 0.0152, -1.9072, 158.4, -2.0),
    ("healthcare", "bo"): Published(5.1461, 0.0045, 5.1459, 66.0, 5.155),
    ("healthcare", "cbo"): Published(5.1560, 0.0089, 5.1568, 65.6, 5.155),
    ("healthcare", "gc-cbo"): Published(5.1488, 0.0053, 5.1488, 66.9, 5.155),
    ("yaeM", "bo"): Published(-1.9102, 1.8054, -1.3749, 33.0, -4.6304),
    ("yaeM", "cbo"): Published(-4.6304, 0.0, -4.6304, 38.6, -4.6304),
    ("yaeM", "gc-cbo"): Published(-4.6304, 0.0, -4.6304, 39.4, -4.6304),
    ("b1583", "cbo"): Published(0.6680, 0.1550, 0.6500, 39.8, 0.3183),
    ("b1583", "gc-cbo"): Published(0.3500, 0.0630, 0.3183, 63.4, 0.3183),
}
SIZES = {
    (2, "cbo"): Published(0.8930, 0.0872, 0.8427, NAN, 0.8427),
    (2, "gc-cbo"): Published(0.8930, 0.0872, 0.8427, NAN, 0.8427),
    (3, "cbo"): Published(0.7315, 0.1377, 0.6571, NAN, 0.6422),
    (3, "gc-cbo"): Published(0.7154, 0.1097, 0.6571, NAN, 0.6422),
    (5, "cbo"): Published(0.7688, 0.1723, 0.6927, NAN, 0.3183),
    (5, "gc-cbo"): Published(0.3183, 0.0, 0.3183, NAN, 0.3183),
}
ABLATION = {
    "cbo": Published(0.7775, 0.1363, 0.7495, NAN, 0.3183),
    "cbo-noprior": Published(1.2752, 0.1542, 1.3074, NAN, 0.3183),
    "gc-cbo-nocoupling": Published(0.4315, 0.1961, 0.3183, NAN, 0.3183, 28.3),
    "gc-cbo-ei": Published(0.7934, 0.1227, 0.7734, NAN, 0.3183),
    "gc-cbo": Published(0.3183, 0.0, 0.3183, NAN, 0.3183, 33.3),
    "gc-cbo-fixed": Published(0.3183, 0.0, 0.3183, NAN, 0.3183, 33.3),
}
TRANSFER = {
    ("linear", "cbo"): (1.5801, 1.5136, 1.4865, 1.5627, 1.6320),
    ("linear", "gc-cbo"): (0.7707, 0.5312, 0.2697, 0.2445, 0.1726),
    ("nonlinear", "cbo"): (3.9687, 3.9317, 3.7933, 4.2117, 3.6944),
    ("nonlinear", "gc-cbo, linear"): (0.5139, 0.4875, 0.5179, 0.3909, 0.3787),
    ("nonlinear", "gc-cbo, nonlinear"): (0.4212, 0.4724, 0.4396, 0.3147, 0.3017),
}
THEORY = {
    "rank": 2.0,
    "dimension": 2.0,
    "covariance error": 0.0,
    "information gain": 5.416,
    "bound by rank": 7.068,
    "independent gain, RBF": 32.152,
    "trace at 25 observations": 0.1784,
    "trace at 3200 observations": 0.00123,
}
RATIO = 7.33  # kappa^2 over the variance of the noise, of the published bound


def beside(figures: Sequence[Published | None]) -> pd.DataFrame:
    """Return published figures as columns to stand beside a table; NaN where there are none."""
    names = ("mean", "sd", "median", "cost", "optimum", "gap", "within")
    return pd.DataFrame(
        {
            f"published_{name}": [NAN if each is None else getattr(each, name) for each in figures]
            for name in names
        }
    )


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


COUPLED_SURROGATE = CoupledMaker(False, True)
LINEAR_LEARNING = Learning("linear", "wishart", COUPLED_SURROGATE)
LEARNING_BY_METHOD = {
    "gc-cbo": LINEAR_LEARNING,
    "gc-cbo, linear": LINEAR_LEARNING,
    "gc-cbo, means known": LINEAR_LEARNING._replace(intercepts=False),
    "gc-cbo, exact outcomes": LINEAR_LEARNING._replace(is_exact=True),
    "gc-cbo, nonlinear": Learning("gp", "conjugate", COUPLED_SURROGATE),
    "cbo": LINEAR_LEARNING._replace(surrogate=IndependentMaker()),
    "cbo-noprior": LINEAR_LEARNING._replace(surrogate=IndependentMaker(causal_prior=False)),
}
TRANSFER_METHODS = {
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
        return super().describe() | {"fit": self.method}

    def measure(self) -> xr.Dataset:
        """Learn from observations and outcomes, and compare predictions with exact responses."""
        system = self.system.load()
        problem = system.problem
        data_key, value_key, noise_key = jax.random.split(as_key(self.seed), 3)
        data = system.observe(self.observations, data_key)
        queries = draw_training(problem, funnel.TRAINING, max(self.budgets), value_key)
        learning = LEARNING_BY_METHOD[self.method]
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
                surrogate = prior.condition(queries[:budget], outcomes[:budget], noise)
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
        for size in TRANSFER_OBSERVATIONS
        for method in TRANSFER_METHODS[variant]
        for seed in seeds
    ]
    return runner.compute(units)


def tabulate_errors(results: Sequence[xr.Dataset]) -> pd.DataFrame:
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
            "observations": int(size.split()[0]),
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
    plain = table[table["method"] == "cbo-noprior"].set_index(["system", "observations", "budget"])
    keys = list(zip(table["system"], table["observations"], table["budget"], strict=True))
    ratios = {"ratio": "median", "ratio_of_means": "mean", "published_ratio": "published"}
    for name, column in ratios.items():
        table[name] = table[column] / np.array([plain[column].get(key, np.nan) for key in keys])
    table.attrs = {"seeds": int(table["seeds"].max())}
    return table


@dataclass(frozen=True, eq=False)
class TheoryCheck(Unit):
    """The theory's quantities for one data set of the chain."""

    observations: int = THEORY_OBSERVATIONS
    rounds: int = THEORY_ROUNDS

    def measure(self) -> xr.Dataset:
        """Fit the chain, and compute every quantity."""
        post = self.fitted(self.observations)
        noise = kappa2(post).value / RATIO
        table = theory_table(post, noise=noise, rounds=self.rounds)
        values = dict(zip(table["quantity"], table["value"].astype(float), strict=True))
        values |= {_trace_at(count): _trace(self.fitted(count)) for count in CONCENTRATION_SIZES}
        return xr.Dataset(
            {"value": ("quantity", list(values.values()))}, coords={"quantity": list(values)}
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


def tabulate_theory(results: Sequence[xr.Dataset]) -> pd.DataFrame:
    """Return a row for every quantity: median, smallest, largest, what must hold, how often."""
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
    for fewer, more in pairwise(CONCENTRATION_SIZES):
        if name == _trace_at(more):
            return f"below that at {fewer} observations", column < values[_trace_at(fewer)]
    return "", None


def diagnose(seed: int = 0) -> dict[str, Any]:
    """Return what the paper's four figures show, for one data set."""
    unit = TheoryCheck("chain", "theory", seed, Loaded("chain"))
    post = unit.fitted(THEORY_OBSERVATIONS)
    queries, noise = design(post).queries, kappa2(post).value / RATIO
    analytic = np.asarray(jacobian_gram(post, queries).gram)
    traces = [_trace(unit.fitted(count)) for count in CONCENTRATION_SIZES]
    return {
        "eigenvalues": np.sort(np.linalg.eigvalsh(analytic))[::-1],
        "dimension": len(post.names),
        "covariances": np.stack([analytic.ravel(), _numerical(post).ravel()], axis=1),
        "gains": gain_curves(post, queries, noise=noise, rounds=THEORY_ROUNDS),
        "concentration": pd.DataFrame({"observations": CONCENTRATION_SIZES, "trace": traces}),
    }


def _numerical(post: Posterior) -> np.ndarray:
    """Return covariances of the effects (M, M) from differences of the effects at theta."""
    jacobian = central_differences(post, design(post).queries)
    return np.asarray(jacobian @ post.covariance @ jacobian.T)
