"""How does an intervention become an outcome? By simulation, or by a user-defined experiment.

`best_gain` and `gain_of_observations` are the expected improvement of the mean effect of the
recommendation by the best experiment and by more observations, in units of the target.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import norm, qmc

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import require_data_of
from causal_bo_ppl.errors import ArgumentError, ObservationError
from causal_bo_ppl.optimization.acquisition import PerCost
from causal_bo_ppl.optimization.analytic import prepare, sign_of
from causal_bo_ppl.optimization.lookahead import LookAhead, promising
from causal_bo_ppl.optimization.maximize import find_best
from causal_bo_ppl.optimization.settings import Stop
from causal_bo_ppl.optimization.state import MOST_RECOMMENDABLE, State
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

READ_BACK_TOLERANCE = 1e-9  # of a domain's width: a value that was written to a file and read
GAIN_QMC_POINTS = 256  # at which an expectation over further observations is averaged
OTHERS_SET = (
    "other variables are marked as intervened than the suggested ones; report what was really set "
    "with Data, and fit it"
)
Experiment = Callable[[Queries], "Data | np.ndarray | float"]


class ExperimentResults(NamedTuple):
    """The results of a batch of M experiments.

    outcomes: (M,). rows: the values of all variables, where they were measured. faults: for each
    outcome why it cannot be used, "" where it can.
    """

    outcomes: np.ndarray
    rows: Data | None
    faults: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ExperimentRunner:
    """Run experiments, and read what they return.

    experiment: from Queries to Data (all variables) or to one outcome for each; without it the
    system is simulated: samples with its noise, its exact effects (`noise` is 0), or these with
    Gaussian noise of a given variance.
    """

    problem: Problem
    system: CausalSystem | None
    experiment: Experiment | None
    noise: float | None

    def __post_init__(self) -> None:
        is_simulated = self.experiment is None and self.system is not None
        if not is_simulated and not callable(self.experiment):
            raise ArgumentError(
                "give `experiment`: a problem cannot be simulated, and its experiment must be a "
                f"function from Queries to outcomes, got {self.experiment!r}"
            )

    def run(self, queries: Queries, key: jax.Array) -> object:
        """Run one experiment for each intervention, on a copy; return whatever it gives."""
        return self._perform(Queries(np.array(queries.mask), np.array(queries.value)), key)

    def observe(self, count: int, key: jax.Array) -> Data:
        """Return a number of observations in which nothing is set."""
        if self.experiment is None and self.system is not None:
            return self.system.observe(count, key)
        returned = self._perform(self.problem.baseline().repeat(count), key)
        if not isinstance(returned, Data):
            raise ObservationError(
                "to observe, the experiment is asked to set nothing and must return Data, the "
                f"values of all variables; it returned {type(returned).__name__}"
            )
        require_data_of(self.problem, returned)
        return returned

    def read(self, returned: object, queries: Queries) -> ExperimentResults:
        """Read what `run` returned for these interventions.

        Raises ObservationError or DataError if that is impossible.
        """
        if isinstance(returned, Data):
            require_data_of(self.problem, returned)
            return read_rows(returned, queries, self.problem)
        outcomes = _as_array(returned)
        if outcomes.shape != (len(queries),) or outcomes.dtype.kind not in "iuf":
            raise ObservationError(
                f"the experiment returned {outcomes.dtype} of shape {outcomes.shape} for "
                f"{len(queries)} interventions; return one number for each, or Data"
            )
        pairs = zip(self.problem.interventions(queries), np.isfinite(outcomes), strict=True)
        faults = [
            "" if is_finite else f"the outcome of {intervention} is not finite; run it again"
            for intervention, is_finite in pairs
        ]
        return ExperimentResults(outcomes.astype(float), None, tuple(faults))

    def _perform(self, queries: Queries, key: jax.Array) -> "Data | np.ndarray | float":
        if self.experiment is not None:
            return self.experiment(queries)
        assert self.system is not None  # noqa: S101  (checked above; for the type checker)
        if self.noise is None:
            return self.system.experiment(queries, key)
        draws = np.asarray(jax.random.normal(key, (len(queries),)))
        return np.asarray(self.system.effect(queries) + np.sqrt(self.noise) * draws)


def read_rows(rows: Data, queries: Queries, problem: Problem) -> ExperimentResults:
    """Return the results in whole rows, one for each intervention.

    The suggested values count as those that were set, up to rounding; a row in which something else
    was set cannot be used.
    """
    mask, suggested = np.asarray(queries.mask), np.asarray(queries.value)
    if len(rows) != len(mask):
        raise ObservationError(
            f"the experiment returned {len(rows)} rows for {len(mask)} interventions; return one "
            "for each"
        )
    width = np.array([np.ptp(problem.domains.get(name, (0.0, 0.0))) for name in rows.nodes])
    differs = mask & ~(np.abs(rows.values - suggested) <= READ_BACK_TOLERANCE * width)
    faults = tuple(
        _fault(rows, row, suggested[row], differs[row]) if same else OTHERS_SET
        for row, same in enumerate((rows.intervened == mask).all(axis=1))
    )
    values = np.where(mask & ~differs, suggested, rows.values)
    used = Data(rows.nodes, rows.target, values, rows.intervened, rows.unused)
    return ExperimentResults(rows.outcomes, used, faults)


def _fault(rows: Data, row: int, suggested: np.ndarray, differs: np.ndarray) -> str:
    if not differs.any():
        return ""
    column = int(np.flatnonzero(differs)[0])
    return (
        f"row {row} of the experiment has {rows.nodes[column]} = {rows.values[row, column]:.9g}, "
        f"suggested was {suggested[column]:.9g}; report what was really set with Data, and fit it"
    )


def _as_array(returned: object) -> np.ndarray:
    if np.ma.isMaskedArray(returned):
        raise ObservationError("the experiment returned a masked array; return plain numbers")
    try:
        return np.atleast_1d(np.asarray(returned))
    except ValueError:
        raise ObservationError(
            "the experiment returned something ragged; return one number for each intervention"
        ) from None


def best_gain(state: State, *, by_model: bool = False) -> float:
    """Return what the best experiment is expected to improve, per unit of cost.

    by_model: whether any intervention may be recommended, or by `report` those tried.
    """
    rule = prepare(PerCost(LookAhead()), state.context(by_model=by_model))
    tried = state.tried.queries
    return find_best(state.candidates.space, state.surrogate, rule, tried=tried).value


def explain_stop(stop: Stop, gain: float, idle: int) -> str:
    """Return why to stop, as a text; empty where the rule does not ask for it.

    gain: what the best experiment is expected to improve, per unit of cost. idle: in how many
    successive rounds that was less than the gain of the rule.
    """
    if idle < stop.patience:
        return ""
    return (
        f"no experiment paid for its cost in {idle} rounds: one more outcome would improve the "
        f"recommendation by {gain:.3g} per unit of cost, less than {stop.gain:g}"
    )


def observes(state: State, key: jax.Array) -> bool:
    """Return whether a round observes instead of running an experiment, by `Settings.observe`.

    key: that of the round, for a policy that observes at random.
    """
    policy = state.settings.observe
    if policy is None or sum(each.is_passive for each in state.ledger) >= policy.most:
        return False
    budget, price = state.settings.budget, policy.batch * policy.cost
    if budget is not None and state.spent + price > budget * (1 + 1e-12):
        return False
    if policy.probability is not None:
        return bool(jax.random.uniform(jax.random.fold_in(key, 1)) < policy.probability)
    return gain_of_observations(state, policy.batch) / price > best_gain(state, by_model=True)


def gain_of_observations(state: State, count: int) -> float:
    """Return what a number of further observations is expected to improve.

    N observations leave a covariance Sigma of theta; n more leave about N / (N + n) of it, so that
    means of effects will move by a Gaussian with the covariance n / (N + n) of theirs. Any
    intervention may be recommended: among one that was tried, observations change nothing.
    """
    objective = state.problem.objective
    points = promising(state.surrogate, state.candidates.queries, objective, MOST_RECOMMENDABLE)
    mean = sign_of(objective) * state.surrogate.predict(points).mean
    sizes, directions = np.linalg.eigh(state.surrogate.covariance(points))
    share = count / (state.posterior.n_observations + count)
    is_positive = sizes > 1e-12 * max(sizes.max(initial=0.0), np.finfo(float).tiny)
    root = directions[:, is_positive] * np.sqrt(share * sizes[is_positive])
    if not root.shape[1]:
        return 0.0
    unit = qmc.Sobol(min(root.shape[1], qmc.Sobol.MAXDIM), rng=0).random(GAIN_QMC_POINTS)
    draws = norm.ppf(np.clip(unit, 1e-9, 1 - 1e-9))
    both = np.concatenate([draws, -draws]) @ root.T[: draws.shape[1]]
    return float(max((mean + both).max(axis=1).mean() - mean.max(), 0.0))
