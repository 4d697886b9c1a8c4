"""How large do the theory's constants come out? kappa, L and the error that doubt about theta leaves.

For effects affine in the values of a set, so linear mechanisms, J(z) is affine in them too: k(z, z) and |J(z)| are
convex, and largest at a vertex of the set's box.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.numerics import first_largest
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.default_queries import choose
from causal_bo_ppl.problem.designs import MOST_ROWS
from causal_bo_ppl.responses import response

PIECE = 16_384  # vertices at once


class Supremum(NamedTuple):
    """The largest value over the domains, and where it is attained."""

    value: float
    intervention: dict[str, float]


class ParameterError(NamedTuple):
    """How far effects may be off because theta is not known, at a level.

    value: L times radius, the same for every query. radius: of the ball that holds theta. pointwise: the largest
    error over the queries when each is judged by its own standard deviation; never above `value`.
    """

    value: float
    radius: float
    pointwise: float


def corners(post: Posterior) -> Queries:
    """The vertices of every set whose effect was learned; refused above a million."""
    return choose(post.problem, post.parameters.explored.sets, None, MOST_ROWS)


def kappa2(post: Posterior) -> Supremum:
    """kappa^2 = sup_z k(z, z) = sup_z J(z) Sigma J(z)' over the domains, the Jacobian kernel's largest variance.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> found = kappa2(cb.fit(system.problem, system.observe(200, 0), intercepts=False))
    >>> round(found.value, 3), sorted(found.intervention)
    (0.277, ['X'])
    """
    length, where = _longest(require_trusted(post), post.factor)
    return Supremum(length**2, where)


def lipschitz(post: Posterior) -> Supremum:
    """L = sup_z |J(z)| over the domains, at the posterior mean: how fast effects change with theta, in its units.

    Local: where effects are not linear in theta, J at another theta may be longer.
    """
    return Supremum(*_longest(require_trusted(post), np.eye(len(post.names))))


def parameter_error(post: Posterior, *, delta: float = 0.05) -> ParameterError:
    """eps_param = L sqrt(q l_max(Sigma)), q the 1 - delta quantile of chi^2 with dim theta_Y degrees of freedom.

    Theta lies within sqrt(q l_max(Sigma)) of its mean with probability 1 - delta at least, where the posterior is
    normal; to first order no effect is then off by more. Sharper: sup_z sqrt(q J Sigma J') = sqrt(q) kappa.
    """
    post = require_trusted(post)
    quantile = float(chi2.ppf(1 - read_share("delta", delta), len(post.names)))
    spread = float(np.linalg.norm(post.factor, 2)) if post.factor.size else 0.0
    radius = np.sqrt(quantile) * spread
    largest = kappa2(post).value
    slope = lipschitz(post).value
    return ParameterError(float(slope * radius), float(radius), float(np.sqrt(quantile * largest)))


def _longest(post: Posterior, root: np.ndarray) -> tuple[float, dict[str, float]]:
    """The largest |J(z) root| over the vertices, and the intervention that has it."""
    effect, queries, lengths = response(post.problem, post), corners(post), []
    for start in range(0, len(queries), PIECE):
        jacobian = np.asarray(effect.jacobian(post.mean, queries[start : start + PIECE]))
        lengths.append(np.linalg.norm(jacobian @ root, axis=1))
    found = np.concatenate(lengths)
    best = first_largest(found)
    return float(found[best]), post.problem.interventions(queries[best])[0]
