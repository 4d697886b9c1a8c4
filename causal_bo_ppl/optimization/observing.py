"""What would more rows, or the best experiment, be expected to improve?

Both are the expected improvement of the mean of what is recommended, in units of the target.
"""

import jax
import numpy as np
from scipy.stats import norm, qmc

from causal_bo_ppl.optimization.acquisition import PerCost
from causal_bo_ppl.optimization.interface import Context, prepare, sign_of
from causal_bo_ppl.optimization.lookahead import LookAhead, promising
from causal_bo_ppl.optimization.search import find_best
from causal_bo_ppl.optimization.settings import Stop
from causal_bo_ppl.optimization.state import State

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
    return find_best(state.candidates.space, state.surrogate, rule, tried=tried).worth


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
    budget, price = state.settings.budget, policy.rows * policy.cost
    if budget is not None and state.spent + price > budget * (1 + 1e-12):
        return False
    if policy.probability is not None:
        return bool(jax.random.uniform(jax.random.fold_in(key, 1)) < policy.probability)
    return gain_of_rows(state, policy.rows) / price > best_gain(state, by_model=True)


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
    share = rows / (state.posterior.rows + rows)
    kept = sizes > 1e-12 * max(sizes.max(initial=0.0), np.finfo(float).tiny)
    root = directions[:, kept] * np.sqrt(share * sizes[kept])
    if not root.shape[1]:
        return 0.0
    unit = qmc.Sobol(min(root.shape[1], qmc.Sobol.MAXDIM), rng=0).random(POINTS)
    draws = norm.ppf(np.clip(unit, 1e-9, 1 - 1e-9))
    both = np.concatenate([draws, -draws]) @ root.T[: draws.shape[1]]
    return float(max((mean + both).max(axis=1).mean() - mean.max(), 0.0))
