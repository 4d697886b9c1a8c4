"""What is a run's regret made of, and how large is each term of the paper's bound along it?

With r_t = f*_all - f(z_t) (mirrored for "min") the cumulative regret R_T = sum r_t is bounded by

    R_T <= 2 sum sqrt(beta_t) sigma_t(z_t) + 2 sum eps_t + 2 sum rho_t + T eps_E,

wherever |f - mu_t| <= sqrt(beta_t) sigma_t + eps_t + rho_t holds at every query and z_t has the
best bound. The first term is at most 2 sqrt(T beta_T C gamma_T), with gamma_T the information gain.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl.errors import ArgumentError, DataError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import offered, read_share, read_size
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.systems import CausalSystem
from causal_bo_ppl.theory.constants import (
    adjustment_error,
    exploration_error,
    parameter_error,
)
from causal_bo_ppl.theory.drift import DRIFT_COLUMNS, Linearized, drift_step, variance_sum_ceiling
from causal_bo_ppl.theory.information_gains import greedy_gain

MOST_AVERAGED_QUERIES = 128  # over which the largest error of an average is taken
NOT_COUPLED = "only the coupled surrogate has a kernel that is made of theta"


class RegretRound(NamedTuple):
    """What was known before the experiments of one round.

    number: of the round. surrogate: the model of effects; where it is linearized in theta it has
    `centre`, `theta` and `response`. noises: returns the variances of outcomes of M queries, (M,).
    beta: returns that of the confidence bound by the number of an experiment, from 1; NaN where the
    acquisition is no such bound.
    """

    number: int
    posterior: Posterior
    surrogate: Any
    noises: Callable[[Queries], np.ndarray]
    beta: Callable[[int], float]


@dataclass(frozen=True, eq=False)
class RegretPath:
    """An optimization as the theory reads it: T experiments, and what was known before each.

    Attributes
    ----------
    problem, system:
        What was optimized, and the truth, None where it is not known.
    base:
        The posterior before the first experiment.
    candidates:
        The interventions over which suprema are taken.
    rounds:
        The rounds in order, those with an experiment and possibly others; they are read once.
    queries:
        The interventions that were tried.
    trace:
        Over `experiment`: `round`, the predicted `sd` of the effect, the variance `noise` of the
        outcome's noise, `cost`, the amplitude `discrepancy` of the model discrepancy after the
        round, and, where the truth is known, `effect` and `best_effect`, the true effects of what
        was tried and of what was recommended then. Its attribute `name` is that of the settings.
    rule:
        The acquisition: its `name`, and `eta`, where it has one.
    """

    problem: Problem
    system: CausalSystem | None
    base: Posterior
    candidates: Queries
    rounds: Iterable[RegretRound]
    queries: Queries
    trace: xr.Dataset
    rule: Any

    @property
    def sign(self) -> float:
        """The sign by which effects are the larger the better: 1 for "max" and -1 for "min"."""
        return 1.0 if self.problem.objective == "max" else -1.0

    @property
    def compared(self) -> Queries:
        """All candidates, and the optimum where it is known."""
        if self.system is None:
            return self.candidates
        optimum = self.problem.queries([self.system.optimum.intervention])
        return stack([self.candidates, optimum])


class HasRegretPath(Protocol):
    """A run."""

    def regret_path(self) -> RegretPath:
        """Return its experiments, and what was known before each."""


@dataclass(frozen=True, eq=False)
class RegretDecomposition:
    """The regret of a run and the terms of its bound; made by `decompose_regret`.

    path: a Dataset with a value of everything for every experiment. terms: a table of the totals,
    with the columns quantity, value and how.
    """

    path: xr.Dataset
    terms: pd.DataFrame

    def __getitem__(self, quantity: str) -> float:
        """Return one total by its name in the table."""
        totals = self.terms.set_index("quantity")["value"]
        if quantity not in totals:
            raise ArgumentError(f"there is no {quantity!r}; take one of {', '.join(totals.index)}")
        return float(totals[quantity])

    def to_frame(self) -> pd.DataFrame:
        """Return the path as a table with a row for every experiment."""
        return self.path.to_dataframe()

    def __repr__(self) -> str:
        return self.terms.to_string(index=False, float_format="{:.4g}".format)

    def _repr_html_(self) -> str:
        return self.terms.to_html(index=False, float_format="{:.4g}".format, na_rep="")


def decompose_regret(
    run: HasRegretPath, *, delta: float = 0.05, eta: float | None = None
) -> RegretDecomposition:
    """Compute the regret of a run, and every term of the paper's bound of it.

    The state before each round is found again from the run's steps. Regrets need the truth; without
    it they are omitted, and the rest is computed.

    Parameters
    ----------
    run:
        A run with at least one experiment.
    delta:
        The probability at which theta may lie outside the ball of eps_t.
    eta:
        What one unit of cost outweighs, in units of the target, for the cost-adjusted regret: that
        of f - eta c; by default the acquisition's own, 0 where it has none.

    Returns
    -------
    RegretDecomposition
        Its `path` has for every experiment, among others: `regret`, `cumulative`, `average` (R_t /
        t) and `simple` (of the best tried); `exploration`, the term 2 sqrt(beta_t) sigma_t(z_t);
        `parameter`, eps_t = L times the radius of theta, and `pointwise`, the largest when every
        effect is compared with its own sd; `adjustment`, eps_adj, the numerical error of effects
        that are averages; `needed`, the least eps_t + rho_t with which the confidence bounds hold
        at all candidates, and `rho`, what of it eps_t does not cover; the kernel's drift since the
        round before, as in `cb.theory.kernel_drift`; `gain`, the greedy gamma_T(k_t);
        `information`, that of the path so far. k_t is the causal kernel, linearized where the
        surrogate was in that round; a model discrepancy is no part of it.

    Raises
    ------
    DataError
        If it is not a run, or one without experiments.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=5, observations=50, key=0)
    >>> found = cb.theory.decompose_regret(run)
    >>> found["simple regret"] <= found["R_T / T"] <= found["R_T"]
    True
    """
    offer = offered(run, "regret_path")
    if offer is None:
        raise DataError(f"decompose_regret needs a Run, got {type(run).__name__}")
    found: RegretPath = offer()
    if not len(found.queries):
        raise DataError("this run has no experiment, so that there is no regret to decompose")
    share = read_share("delta", delta)
    own = getattr(found.rule, "eta", 0.0)
    price = read_size("eta", own if eta is None else eta, positive=False)
    columns = _measure(found, price) | _along(found, share)
    path = xr.Dataset(
        {name: ("experiment", column) for name, column in columns.items()},
        coords={"experiment": np.arange(1, len(found.queries) + 1)},
        attrs={"delta": share, "eta": price, "method": found.trace.attrs["name"]},
    )
    return RegretDecomposition(path, _terms(found, path))


def _measure(run: RegretPath, eta: float) -> dict[str, np.ndarray]:
    """Return the regrets of the experiments; none where the truth is not known."""
    columns = {name: run.trace[name].to_numpy() for name in ("round", "cost", "sd", "noise")}
    if run.system is None:
        return columns
    effects = run.sign * run.trace["effect"].to_numpy()
    unexplored = exploration_error(run.system)
    within = run.sign * unexplored.explored.value - effects
    regret = within + unexplored.value
    queries = stack([run.compared, run.queries])
    net = run.sign * run.system.effect(queries) - eta * run.problem.cost(queries)
    return columns | {
        "regret": regret,
        "within": within,
        "cumulative": regret.cumsum(),
        "average": regret.cumsum() / np.arange(1, len(regret) + 1),
        "simple": np.minimum.accumulate(regret),
        "cost_adjusted": float(net.max()) - (effects - eta * columns["cost"]),
    }


def _along(run: RegretPath, delta: float) -> dict[str, np.ndarray]:
    """Return what the theory computes from what was known before each experiment."""
    queries, lines = run.compared, list[dict[str, float]]()
    evenly = np.linspace(0, len(queries) - 1, MOST_AVERAGED_QUERIES).round().astype(int)
    some = queries[np.unique(evenly)]
    sd, noise = (run.trace[name].to_numpy() for name in ("sd", "noise"))
    before: Linearized | None = None
    for known in run.rounds:
        count = int((run.trace["round"] == known.number).sum())
        if not count:
            continue
        now = _kernel(known.surrogate, queries)
        error = parameter_error(known.posterior, delta=delta)
        line = {
            "observations": float(known.posterior.n_observations),
            "parameter": error.value,
            "pointwise": error.pointwise,
            "adjustment": adjustment_error(known.posterior, some).value,
            "largest": float(known.surrogate.predict(queries).sd.max()),
            **_drift(before, now),
            "gain": np.nan,
        }
        if now is not None:
            line["gain"] = _gain(now.features, known.noises(queries), len(run.queries))
        for position in range(count):
            beta = known.beta(len(lines) + 1)
            drift = _drift(now, now) if position else {}
            needed = _needed(run.system, known.surrogate, queries, beta, line["parameter"])
            lines.append(line | {"beta": beta} | drift | needed)
        before = now
    columns = {name: np.array([line[name] for line in lines]) for name in lines[0]}
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = np.where(sd > 0, 0.5 * np.log1p(sd**2 / noise), 0.0)
    widths = 2 * np.sqrt(columns["beta"]) * sd
    return {"exploration": widths, "information": gains.cumsum()} | columns


def _drift(before: Linearized | None, now: Linearized | None) -> dict[str, float]:
    """Return how far the kernel moved; 0 at the first round, NaN where there is none."""
    if now is None or before is None or before is now:
        moved = (np.nan if now is None else 0.0,) * len(DRIFT_COLUMNS)
    else:
        moved = drift_step(before, now)
    return dict(zip((f"{name}_drift" for name in DRIFT_COLUMNS), moved, strict=True))


def _needed(
    system: CausalSystem | None, surrogate: Any, queries: Queries, beta: float, error: float
) -> dict[str, float]:
    """Return the least eps_t + rho_t with which the bounds hold at all queries, and rho_t."""
    if system is None:
        return {}
    mean, sd = surrogate.predict(queries)
    gaps = np.abs(mean - system.effect(queries)) - np.sqrt(beta) * sd
    needed = float(np.maximum(gaps, 0.0).max())
    return {"needed": needed, "rho": float(np.maximum(needed - error, 0.0))}


def _kernel(surrogate: Any, queries: Queries) -> Linearized | None:
    """Return the causal kernel in use, linearized where the surrogate is; None if it has none."""
    centre = getattr(surrogate, "centre", None)
    if centre is None:
        return None
    theta = surrogate.theta(centre)
    jacobian = surrogate.response.linearize(theta, queries)[1]
    return Linearized(theta, surrogate.post.factor, np.asarray(jacobian))


def _gain(features: np.ndarray, noises: np.ndarray, rounds: int) -> float:
    """Return the greedy gamma_T of a kernel; infinite where outcomes are exact."""
    if not (noises > 0).all():
        return np.inf if (features**2).sum() > 0 else 0.0
    return float(greedy_gain(features, noises, rounds).gains[-1])


def _terms(run: RegretPath, path: xr.Dataset) -> pd.DataFrame:
    """Return the totals of a path, with how each was computed."""
    count, last = len(run.queries), {name: float(path[name][-1]) for name in path}
    total = {name: float(path[name].to_numpy().sum()) for name in path}
    supremum, squares = float(path["gain"].to_numpy().max()), float((path["sd"] ** 2).sum())
    noise = float(path["noise"].max())  # C is of the largest variance of an effect and noise
    largest = float(path["largest"].max()) ** 2
    ceiling = variance_sum_ceiling(largest, noise) if noise > 0 else 0.0
    widest = 2 * np.sqrt(count * last["beta"] * ceiling * supremum)
    rule = "" if np.isfinite(last["beta"]) else f"; {run.rule.name} is no such bound"
    is_closed = run.base.distribution.response.is_affine
    how = "2 sum of the largest standard error of an average; see cb.theory.adjustment_error"
    how = "effects are in closed form" if is_closed else how
    lines: list[tuple[str, float, str]] = [
        ("exploration", total["exploration"], f"2 sum sqrt(beta_t) sigma_t(z_t){rule}"),
        ("information term", widest, "2 sqrt(T beta_T C sup gamma_T), for slow drift of k"),
        ("parameter error", 2 * total["parameter"], "2 sum eps_t, eps_t = L radius of theta"),
        ("parameter error, pointwise", 2 * total["pointwise"], "each effect by its own sd"),
        ("adjustment error", 2 * total["adjustment"], how),
    ]
    if run.system is not None:
        beyond = float(path["regret"][0] - path["within"][0])
        sharp = total["exploration"] + 2 * total["needed"] + count * beyond
        bound = sharp + 2 * (total["parameter"] + total["rho"] - total["needed"])
        adjusted = f"of f - eta c in the explored sets, eta = {path.attrs['eta']:g}"
        reached = run.sign * float(run.trace["best_effect"][-1])
        recommended = max(run.sign * run.system.optimum.value - reached, 0.0) + beyond
        lines = [
            ("R_T", last["cumulative"], f"sum of f*_all - f(z_t) over {count} experiments"),
            ("R_T / T", last["average"], "the simple regret is at most this"),
            ("simple regret", last["simple"], "of the best that was tried"),
            ("recommended", recommended, "regret of what is recommended"),
            ("cost-adjusted regret", total["cost_adjusted"], adjusted),
            *lines,
            ("drift", 2 * total["rho"], "2 sum rho_t: what the bounds lack beyond eps_t"),
            ("exploration error", count * beyond, "T eps_E: sets that were not explored"),
            ("bound", bound, "exploration + parameter error + drift + exploration error"),
            ("sharp bound", sharp, "with the least eps_t + rho_t that makes the bounds hold"),
        ]
    ratio, drift = squares / supremum if supremum > 0 else 0.0, path["kernel_drift"].to_numpy()
    note = f"; {NOT_COUPLED}" if np.isnan(drift).all() else ""
    note += "; without the model discrepancy" if run.trace["discrepancy"].any() else ""
    lines += [
        ("information", last["information"], "of the path, sum of 1/2 log(1 + sigma^2 / s2)"),
        ("sup gamma_T", supremum, f"over the kernels in use, greedy{note}"),
        ("C", ceiling, "2 kappa^2 / log(1 + kappa^2 / s2), for one kernel"),
        ("variance-sum ratio", ratio, "sum of sigma_t^2 / sup gamma_T; at most C for one kernel"),
        ("largest drift", float(drift.max()), f"of k in a round{note}"),
    ]
    return pd.DataFrame(lines, columns=["quantity", "value", "how"])
