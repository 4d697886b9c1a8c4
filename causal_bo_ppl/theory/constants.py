"""How large are kappa^2 and L, and how far may effects be off?

Effects are off because theta is not known (eps_param), and the best effect is missed where a set
was not explored (eps_E). Within the sqrt(beta_t) sds of a schedule they lie in all rounds together.

For linear mechanisms an effect is affine in the values of its set, and so is J(z): k(z, z) and
|J(z)| are convex in the values, hence largest at a vertex of the set's box. For others the largest
of points that fill the box is taken, which may be less than the supremum; results report it.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from causal_bo_ppl.errors import ArgumentError, NumericalError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import fill_boxes, vertices
from causal_bo_ppl.responses import response
from causal_bo_ppl.systems import CausalSystem, Optimum

MOST_VERTICES_AT_ONCE = 16_384  # whose Jacobian is held in memory
SEARCH_TOLERANCE = 1e-6  # relative error of an optimum that was found by search


class Supremum(NamedTuple):
    """The largest value over the domains, and the intervention where it is attained.

    how: among which interventions it was found. Over all vertices it is exact, since effects are
    affine in the values; among points that fill the domains it is a lower bound of the supremum.
    """

    value: float
    intervention: dict[str, float]
    how: str = "over all vertices"


class ParameterError(NamedTuple):
    """How far effects may be off because theta is not known, at a level.

    value: L times radius, the same for every query. radius: the radius of the ball that holds
    theta. pointwise: the largest error over the queries when each is judged by its own standard
    deviation; never above `value`.
    """

    value: float
    radius: float
    pointwise: float


class Unexplored(NamedTuple):
    """How much is lost by not exploring every intervention set.

    value: eps_E, by how much the best of all sets is better; never below 0. best: the optimum over
    all sets. explored: the optimum over the problem's sets.
    """

    value: float
    best: Optimum
    explored: Optimum


class SearchedInterventions(NamedTuple):
    """Interventions over which suprema are taken, and a text of what they are."""

    queries: Queries
    how: str


def design(post: Posterior) -> SearchedInterventions:
    """Return interventions of every set whose effect was learned; refuse more than a million.

    They are all vertices where effects are affine in the values, so that nothing is larger
    elsewhere; otherwise, and where the problem has a function `feasible`, points that fill the
    region of every set.
    """
    if post.distribution.response.is_affine and post.problem.feasible_rule is None:
        return SearchedInterventions(vertices(post.problem, post.sets), "over all vertices")
    queries = fill_boxes(post.problem, post.sets)
    return SearchedInterventions(queries, f"among {len(queries):,} points that fill the domains")


def kappa2(post: Posterior) -> Supremum:
    """Compute kappa^2 = sup_z k(z, z) = sup_z J(z) Sigma J(z)'.

    It is the largest variance of the Jacobian kernel. The supremum is over the domains of all sets
    that were learned; `how` reports whether it is exact.

    Parameters
    ----------
    post:
        A posterior by any method.

    Returns
    -------
    Supremum
        The value, the intervention that attains it, and how it was found.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> largest = kappa2(cb.fit(system.problem, system.observe(200, 0), intercepts=False))
    >>> round(largest.value, 3), sorted(largest.intervention)
    (0.277, ['X'])
    """
    longest = _longest(require_trusted(post), post.factor)
    return longest._replace(value=longest.value**2)


def lipschitz(post: Posterior) -> Supremum:
    """Compute L = sup_z |J(z)| over the domains, at the posterior mean.

    L is the largest change of an effect per unit of theta. It is local: where effects are nonlinear
    in theta, the Jacobian at another theta may be longer.

    Parameters
    ----------
    post:
        A posterior by any method.

    Returns
    -------
    Supremum
        The value, the intervention that attains it, and how it was found.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> list(cb.theory.lipschitz(post).intervention)
    ['X']
    """
    return _longest(require_trusted(post), np.eye(len(post.names)))


def parameter_error(post: Posterior, *, delta: float = 0.05) -> ParameterError:
    """Compute eps_param = L sqrt(q l_max(Sigma)).

    q is the 1 - delta quantile of chi^2 with dim theta_Y degrees of freedom. Where the posterior is
    normal, theta lies within sqrt(q l_max(Sigma)) of its mean with probability at least 1 - delta;
    to first order no effect is then off by more than eps_param. L and kappa are those of
    `lipschitz` and `kappa2`.

    Parameters
    ----------
    post:
        A posterior by any method.
    delta:
        The probability that the bound does not hold.

    Returns
    -------
    ParameterError
        The field `pointwise` is the sharper bound sup_z sqrt(q J Sigma J') = sqrt(q) kappa.

    Raises
    ------
    ArgumentError
        If `post` is no posterior, or delta does not lie between 0 and 1.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> found = cb.theory.parameter_error(cb.fit(system.problem, system.observe(200, 0)))
    >>> found.pointwise <= found.value
    True
    """
    post = require_trusted(post)
    quantile = float(chi2.ppf(1 - read_share("delta", delta), len(post.names)))
    spread = float(np.linalg.norm(post.factor, 2)) if post.factor.size else 0.0
    radius = float(np.sqrt(quantile) * spread)
    pointwise = float(np.sqrt(quantile * kappa2(post).value))
    return ParameterError(lipschitz(post).value * radius, radius, pointwise)


class AdjustmentError(NamedTuple):
    """eps_adj, the numerical error of effects that are averages: the largest of M queries.

    value: in units of the target. relative: in posterior sds of the effect, at most. intervention:
    where `value` is attained.
    """

    value: float
    relative: float
    intervention: dict[str, float]


def adjustment_error(post: Posterior, queries: Queries) -> AdjustmentError:
    """Return the largest standard error of the averages that these effects are.

    It is 0 for closed forms, as of linear mechanisms; otherwise it is estimated from other points
    than those of the average.
    """
    effect = response(post)
    errors = effect.standard_errors(post.mean, queries)
    sd = np.linalg.norm(np.asarray(effect.jacobian(post.mean, queries)) @ post.factor, axis=1)
    worst = first_largest(errors)
    relative = np.where(sd > 0, errors / np.where(sd > 0, sd, 1.0), 0.0)
    [where] = post.problem.interventions(queries[worst])
    return AdjustmentError(float(errors[worst]), float(relative.max()), where)


def _longest(post: Posterior, root: np.ndarray) -> Supremum:
    """Return the largest |J(z) root| over the domains, and the intervention that has it."""
    effect, (queries, how), pieces = response(post), design(post), []
    for start in range(0, len(queries), MOST_VERTICES_AT_ONCE):
        jacobian = effect.jacobian(post.mean, queries[start : start + MOST_VERTICES_AT_ONCE])
        pieces.append(np.linalg.norm(jacobian @ root, axis=1))
    lengths = np.concatenate(pieces)
    best = first_largest(lengths)
    return Supremum(float(lengths[best]), post.problem.interventions(queries[best])[0], how)


def exploration_error(system: CausalSystem) -> Unexplored:
    """Compute eps_E, by how much the best of all sets beats the best of the problem's sets.

    eps_E = f*_all - f*_E for max and f*_E - f*_all for min. Only the minimal sets are searched,
    since every other set has the effect of one of them; doing nothing is no intervention. The
    effects are exact, at vertices where the response is affine and otherwise by search.

    Parameters
    ----------
    system:
        A causal system, whose true effects are known.

    Returns
    -------
    Unexplored
        eps_E and both optima.

    Raises
    ------
    ArgumentError
        If this is no causal system.
    NumericalError
        If the search over all sets ended at a worse effect.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> exploration_error(cb.models.load("chain")).value
    0.0
    """
    if not isinstance(system, CausalSystem):
        raise ArgumentError(
            f"eps_E needs a CausalSystem, whose truth is known; got {type(system).__name__}"
        )
    problem, explored = system.problem, system.optimum
    best = replace(system, problem=problem.explore("mis")).optimum
    sign = 1.0 if problem.objective == "max" else -1.0
    gained = sign * (best.value - explored.value)
    if gained < -SEARCH_TOLERANCE * max(abs(best.value), 1.0):
        raise NumericalError(
            f"the search over all sets ended at {best.value:g}, worse than {explored.value:g} over "
            "the problem's sets; it missed a basin, so eps_E is not known"
        )
    return Unexplored(max(0.0, gained), best, explored)


@dataclass(frozen=True)
class BetaSchedule:
    """The schedule beta_t = 2 log(|Z| t^2 pi^2 / (6 delta)) of a finite domain of |Z| queries.

    With it all bounds of all rounds hold together with probability 1 - delta at least.

    Examples
    --------
    >>> round(BetaSchedule(0.1).at(1, 100), 2), round(BetaSchedule(0.1).at(20, 100), 2)
    (14.81, 26.79)
    """

    delta: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", read_share("delta", self.delta))

    def at(self, number: int, size: int) -> float:
        """Return beta in round `number`, counted from 1, among `size` queries."""
        return float(2 * (np.log(size) + 2 * np.log(number) + np.log(np.pi**2 / (6 * self.delta))))


Beta = float | str | BetaSchedule | None
