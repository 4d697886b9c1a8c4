"""How does an intervention become an outcome? By simulation, or by one's own experiment.

What would more rows, or the best experiment, be expected to improve?

Both are the expected improvement of the mean of what is recommended, in units of the target.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import norm, qmc

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import require_data_of
from causal_bo_ppl.errors import DataError
from causal_bo_ppl.optimization.acquisition import PerCost
from causal_bo_ppl.optimization.analytic import Context, prepare, sign_of
from causal_bo_ppl.optimization.lookahead import LookAhead, promising
from causal_bo_ppl.optimization.maximize import find_best
from causal_bo_ppl.optimization.settings import Stop
from causal_bo_ppl.optimization.state import State
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

READ_BACK = 1e-9  # of a domain's width: a value read back from a file
OTHERS_SET = (
    "other variables are marked as set than those asked for; record what was really set with Data, "
    "and fit it"
)
Experiment = Callable[[Queries], "Data | np.ndarray | float"]


class Measured(NamedTuple):
    """What a batch of M experiments gave.

    outcomes: (M,). rows: the whole rows, where they were measured. faults: for each outcome why it
    cannot be used, "" where it can.
    """

    outcomes: np.ndarray
    rows: Data | None
    faults: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ExperimentRunner:
    """Runs experiments, and reads what they return.

    experiment: from Queries to Data (whole rows) or to one outcome for each; otherwise the system
    is simulated: rows with its own noise, its exact effects (`noise` is 0), or these with Gaussian
    noise of a given variance.
    """

    problem: Problem
    system: CausalSystem | None
    experiment: Experiment | None
    noise: float | None

    def __post_init__(self) -> None:
        if self.experiment is not None and not callable(self.experiment):
            raise DataError(
                f"experiment must be a function from Queries to outcomes, got {self.experiment!r}"
            )
        if self.experiment is None and self.system is None:
            raise DataError(
                "a problem cannot be simulated: give `experiment`, a function from Queries to "
                "outcomes"
            )

    def run(self, queries: Queries, key: jax.Array) -> object:
        """Run one experiment for each intervention; return whatever it gives."""
        copy = Queries(np.array(queries.mask), np.array(queries.value))  # ours stays as it is
        return self._perform(copy, key)

    def observe(self, rows: int, key: jax.Array) -> Data:
        """Observe some rows in which nothing is set."""
        if self.experiment is None and self.system is not None:
            return self.system.observe(rows, key)
        nothing = self.problem.baseline()
        asked = Queries(np.repeat(nothing.mask, rows, 0), np.repeat(nothing.value, rows, 0))
        found = self._perform(asked, key)
        if not isinstance(found, Data):
            raise DataError(
                "to observe, the experiment is asked to set nothing and must return Data, whole "
                f"rows; it returned {type(found).__name__}"
            )
        require_data_of(self.problem, found)
        return found

    def read(self, found: object, queries: Queries) -> Measured:
        """Read what `run` returned for these interventions.

        Raises DataError if that is impossible.
        """
        if isinstance(found, Data):
            require_data_of(self.problem, found)
            return read_rows(found, queries, self.problem)
        outcomes = _as_array(found)
        if outcomes.shape != (len(queries),) or outcomes.dtype.kind not in "iuf":
            raise DataError(
                f"the experiment returned {outcomes.dtype} of shape {outcomes.shape} for "
                f"{len(queries)} interventions; return one number for each, or Data"
            )
        faults = [
            ""
            if np.isfinite(outcome)
            else f"the outcome of {intervention} is not finite; run it again"
            for intervention, outcome in zip(
                self.problem.interventions(queries), outcomes, strict=True
            )
        ]
        return Measured(outcomes.astype(float), None, tuple(faults))

    def _perform(self, queries: Queries, key: jax.Array) -> "Data | np.ndarray | float":
        if self.experiment is not None:
            return self.experiment(queries)
        assert self.system is not None  # noqa: S101  (checked above; for the type checker)
        if self.noise is None:
            return self.system.experiment(queries, key)
        draws = np.asarray(jax.random.normal(key, (len(queries),)))
        return np.asarray(self.system.effect(queries) + np.sqrt(self.noise) * draws)


def read_rows(rows: Data, queries: Queries, problem: Problem) -> Measured:
    """Take the values asked for as those set; a row in which others were set cannot be used."""
    mask, asked = np.asarray(queries.mask), np.asarray(queries.value)
    if len(rows) != len(mask):
        raise DataError(
            f"the experiment returned {len(rows)} rows for {len(mask)} interventions; return one "
            "for each"
        )
    width = np.array([np.ptp(problem.domains.get(name, (0.0, 0.0))) for name in rows.nodes])
    differs = mask & ~(np.abs(rows.values - asked) <= READ_BACK * width)
    faults = tuple(
        _fault(rows, row, asked[row], differs[row]) if same else OTHERS_SET
        for row, same in enumerate((rows.intervened == mask).all(axis=1))
    )
    values = np.where(mask & ~differs, asked, rows.values)
    return Measured(
        rows.outcomes, Data(rows.nodes, rows.target, values, rows.intervened, rows.unused), faults
    )


def _fault(rows: Data, row: int, asked: np.ndarray, differs: np.ndarray) -> str:
    if not differs.any():
        return ""
    column = int(np.flatnonzero(differs)[0])
    return (
        f"row {row} of the experiment has {rows.nodes[column]} = {rows.values[row, column]:.9g}, "
        f"asked for was {asked[column]:.9g}; record what was really set with Data, and fit it"
    )


def _as_array(found: object) -> np.ndarray:
    if np.ma.isMaskedArray(found):
        raise DataError("the experiment returned a masked array; return plain numbers")
    try:
        return np.atleast_1d(np.asarray(found))
    except ValueError:
        raise DataError(
            "the experiment returned something ragged; return one number for each intervention"
        ) from None


POINTS = 256  # at which an expectation over what rows teach is averaged
MOST = 128  # interventions among which the recommendation may lie


def best_gain(state: State, *, by_model: bool = False) -> float:
    """Return what the best experiment is expected to improve, per unit of cost.

    by_model: whether any intervention may be recommended, or as `report` says those tried.
    """
    tried = state.tried.queries
    of_all = by_model or state.settings.report == "model" or not len(tried)
    context = Context(
        state.surrogate,
        state.problem.objective,
        state.candidates.queries,
        state.candidates.queries if of_all else tried,
        round=len(tried) + 1,
        noise=state.noises,
    )
    rule = prepare(PerCost(LookAhead()), context)
    return find_best(state.candidates.space, state.surrogate, rule, tried=tried).value


def explain_stop(stop: Stop, gain: float, idle: int) -> str:
    """Return why it is enough, in words; empty where it is not.

    gain: what the best experiment is expected to improve, per unit of cost. idle: in how many
    rounds, one after another, that was less than the rule asks for.
    """
    if idle < stop.patience:
        return ""
    return (
        f"no experiment was worth its cost in {idle} rounds: one more outcome would improve the "
        f"recommendation by {gain:.3g} per unit of cost, less than {stop.gain:g}"
    )


def observes(state: State, key: jax.Array) -> bool:
    """Return whether a round observes rows instead of running an experiment, as settings say.

    key: that of the round, for a policy that leaves it to chance.
    """
    policy = state.settings.observe
    if policy is None or sum(each.is_passive for each in state.ledger) >= policy.most:
        return False
    budget, price = state.settings.budget, policy.batch * policy.cost
    if budget is not None and state.spent + price > budget * (1 + 1e-12):
        return False
    if policy.probability is not None:
        return bool(jax.random.uniform(jax.random.fold_in(key, 1)) < policy.probability)
    return gain_of_rows(state, policy.batch) / price > best_gain(state, by_model=True)


def gain_of_rows(state: State, rows: int) -> float:
    """Return what some more observed rows are expected to improve.

    N rows leave a covariance Sigma of theta; n more leave about N / (N + n) of it, so that means of
    effects will move by a Gaussian with the covariance n / (N + n) of theirs. Any intervention may
    be recommended: of one that was tried alone, rows could not change what is recommended.
    """
    objective = state.problem.objective
    points = promising(state.surrogate, state.candidates.queries, objective, MOST)
    mean = sign_of(objective) * state.surrogate.predict(points).mean
    sizes, directions = np.linalg.eigh(state.surrogate.covariance(points))
    share = rows / (state.posterior.n_observations + rows)
    kept = sizes > 1e-12 * max(sizes.max(initial=0.0), np.finfo(float).tiny)
    root = directions[:, kept] * np.sqrt(share * sizes[kept])
    if not root.shape[1]:
        return 0.0
    unit = qmc.Sobol(min(root.shape[1], qmc.Sobol.MAXDIM), rng=0).random(POINTS)
    draws = norm.ppf(np.clip(unit, 1e-9, 1 - 1e-9))
    both = np.concatenate([draws, -draws]) @ root.T[: draws.shape[1]]
    return float(max((mean + both).max(axis=1).mean() - mean.max(), 0.0))
