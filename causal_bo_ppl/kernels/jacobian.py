"""The kernel of the linearized response, and how by it effects of different sets are coupled.

k(z, z') = J(z) Sigma J(z')' is exact to first order in the posterior's spread. Its features J(z) F,
with F F' = Sigma, have at most dim theta_Y columns, and within one intervention set a rank of at
most its size + 1. Where Sigma is estimated from n draws, an entry's error is about
sqrt((k(z, z')^2 + k(z, z) k(z', z')) / n), as it is for Gaussian draws.

An outcome at z, with noise of variance s2, lowers the variance of the effect of z' by

    k(z, z')^2 / (k(z, z) + s2).
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_size
from causal_bo_ppl.kernels.exact import KernelEstimate
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import affine_anchors
from causal_bo_ppl.problem.interventions import Sets, labels, split_sets
from causal_bo_ppl.responses import remainders, response

if TYPE_CHECKING:
    import xarray as xr

JACOBIAN_ASSUMPTIONS = (
    "response linearized at the posterior mean; covariance of theta by {by}{size}; "
    "verdict {verdict}"
)
LEAST_EIGENVALUE = 1e-9  # of the largest eigenvalue of a set's covariances


def posterior_attributes(post: Posterior) -> dict[str, Any]:
    """Return the attributes by which a dataset names the posterior it was computed from."""
    return {
        "target": post.problem.target,
        "unit": post.problem.units.get(post.problem.target, ""),
        "method": post.method,
        "verdict": post.status,
    }


def jacobian_features(post: Posterior, queries: Queries) -> np.ndarray:
    """Return features of the effects whose products are the kernel, J(z) F at the posterior mean.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        M interventions.

    Returns
    -------
    np.ndarray
        Features of shape (M, r), with r the number of columns of `post.factor`.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DomainError
        If an intervention is not one of the problem's.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> features = cb.kernels.jacobian_features(post, [{"X": 1.0}, {"Z": 1.0}])
    >>> features.shape
    (2, 2)
    >>> print((features @ features.T).round(3))  # the gram of cb.jacobian_gram
    [[0.011 0.002]
     [0.002 0.002]]
    """
    post = require_trusted(post)
    with jax.ensure_compile_time_eval():  # nothing here is traced
        jacobian = np.asarray(response(post).jacobian(post.mean, queries))
    return np.asarray(jacobian @ post.factor)


def jacobian_gram(
    post: Posterior, queries: Queries, others: Queries | None = None
) -> KernelEstimate:
    """Return the covariances of all effects of a batch, or between two batches, to first order.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries, others:
        M and K interventions; without `others` the gram is of the first batch with itself.

    Returns
    -------
    KernelEstimate
        The gram is (M, M) or (M, K); its standard error is 0 unless the covariance of theta was
        estimated from draws.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DomainError
        If an intervention is not one of the problem's.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> q = system.problem.queries([{"X": 1.0}, {"Z": 1.0}])
    >>> print(cb.jacobian_gram(post, q).gram.round(3))  # an experiment on X informs Z
    [[0.011 0.002]
     [0.002 0.002]]
    """
    left = jacobian_features(post, queries)
    right = left if others is None else jacobian_features(post, others)
    gram = left @ np.array(right).T  # a copy: NumPy's product of one array with itself is slower
    size = post.distribution.effective_draws
    known = f", equivalent to {size:,.0f} independent ones" if np.isfinite(size) else ""
    assumed = JACOBIAN_ASSUMPTIONS.format(by=post.moments_by, size=known, verdict=post.status)
    return KernelEstimate(gram, _errors(left, right, gram, size), assumed)


def _errors(left: np.ndarray, right: np.ndarray, gram: np.ndarray, size: float) -> np.ndarray:
    """Return the errors (M, K) of a gram whose covariance of theta is from draws.

    size: how many independent draws these are equivalent to; infinite where there are none.
    """
    if not np.isfinite(size):
        return np.zeros(())
    errors = np.multiply(
        (left**2).sum(axis=1)[:, None], (right**2).sum(axis=1), out=np.empty(gram.shape)
    )
    errors += gram**2
    errors /= size
    return np.asarray(np.sqrt(errors, out=errors))


def coupling(post: Posterior, queries: Queries | None = None) -> "xr.Dataset":
    """Return the correlations between the effects of all sets under the Jacobian kernel.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        The effects to correlate. By default so many vertices of every set that its effects follow
        from them, which is its size + 1.

    Returns
    -------
    xr.Dataset
        For every `effect`: its `set`, its `sd`, and its `correlation` with every `other` effect,
        NaN where an effect is known. For every two sets `left` and `right`: `between`, the root
        mean square correlation of their effects, and `explained`, the share of the variance of the
        effects of `right` that would vanish if those of `left` were known,
        tr(K_rl K_ll^+ K_lr) / tr K_rr.

    Raises
    ------
    ArgumentError
        If there is no query.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0))
    >>> cb.kernels.coupling(post).between.round(2).values.tolist()
    [[0.95, 0.33], [0.33, 0.94]]
    """
    import xarray as xr

    post = require_trusted(post)
    asked = affine_anchors(post.problem, post.sets, queries)
    if not len(asked):
        raise ArgumentError("there are no effects to couple: give at least one query")
    kernel = jacobian_gram(post, asked)
    gram = np.asarray(kernel.gram)
    sets = split_sets(post.problem, asked)
    order, correlations = sets.order, _correlations(gram)
    variables = {
        "correlation": (("effect", "other"), correlations[np.ix_(order, order)]),
        "sd": (("effect",), np.sqrt(np.diagonal(gram))[order]),
        "between": (("left", "right"), _between(correlations, sets)),
        "explained": (("left", "right"), _explained(gram, sets)),
    }
    coordinates = _effect_coordinates(post, asked, sets)
    coordinates |= {"other": coordinates["effect"], "left": list(sets.labels)}
    coordinates["right"] = coordinates["left"]
    attributes = posterior_attributes(post) | {"observations": post.n_observations}
    return xr.Dataset(variables, coordinates, attributes | {"kernel": kernel.assumed})


def _effect_coordinates(post: Posterior, queries: Queries, sets: Sets) -> dict[str, Any]:
    """Return the effects by set in the order of the graph, and the set of each."""
    names = labels(post.problem, queries)
    which = [label for label, rows in zip(sets.labels, sets.indices, strict=True) for _ in rows]
    return {"effect": [names[index] for index in sets.order], "set": (("effect",), which)}


def _correlations(gram: np.ndarray) -> np.ndarray:
    sd = np.sqrt(np.diagonal(gram))
    scale = np.where(np.outer(sd, sd) > 0, np.outer(sd, sd), np.nan)
    return np.asarray(np.clip(gram / scale, -1.0, 1.0))


def _between(correlations: np.ndarray, sets: Sets) -> np.ndarray:
    """Return the root mean square correlations between S sets, of shape (S, S).

    They are NaN where a set's effects are all known.
    """
    squares, counted = np.nan_to_num(correlations) ** 2, np.isfinite(correlations)
    member = np.zeros((len(sets.indices), len(correlations)))
    for position, rows in enumerate(sets.indices):
        member[position, rows] = 1.0
    count = member @ counted @ member.T
    return np.asarray(np.sqrt(member @ squares @ member.T / np.where(count > 0, count, np.nan)))


def _explained(gram: np.ndarray, sets: Sets) -> np.ndarray:
    """Return the explained shares of variance between S sets, of shape (S, S).

    With U the whitened directions of the left set, a share is |U'K_lr|^2 / tr K_rr.
    """
    shares, variances = np.full((len(sets.indices),) * 2, np.nan), np.diagonal(gram)
    for position, rows in enumerate(sets.indices):
        sizes, directions = np.linalg.eigh(gram[np.ix_(rows, rows)])
        used = sizes > LEAST_EIGENVALUE * sizes.max()
        if not used.any() or sizes.max() <= 0:
            continue
        removed = (((directions[:, used] / np.sqrt(sizes[used])).T @ gram[rows]) ** 2).sum(axis=0)
        for other, columns in enumerate(sets.indices):
            total = variances[columns].sum()
            if total > 0:
                shares[position, other] = min(1.0, removed[columns].sum() / total)
    return shares


def variance_reduction(
    post: Posterior,
    experiments: Queries,
    queries: Queries | None = None,
    *,
    noise: float | None = None,
) -> "xr.Dataset":
    """Return how much one outcome of each experiment would reduce the variance of every effect.

    The linearization error of the experiment's effect counts as noise, as in the surrogate.

    Parameters
    ----------
    post:
        A posterior by any method.
    experiments:
        The interventions that might be tried.
    queries:
        The effects to learn about. By default so many vertices of every set that its effects follow
        from them, which is its size + 1.
    noise:
        The variance of one outcome, or of the mean of several; by default as the model implies it.

    Returns
    -------
    xr.Dataset
        Over `experiment` and `effect`, the effects by sets in the order of the graph: `reduction`,
        the share of the effect's variance that is removed, NaN where it is known already;
        `sd_after` and `sd`, after and before the experiment; and `noise`, the variance of the
        outcome, linearization error included.

    Raises
    ------
    ArgumentError
        If the noise is not a variance.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0))
    >>> found = cb.kernels.variance_reduction(post, [{"X": 2.0}], noise=0.5)
    >>> bool((found.sd_after <= found.sd).all())
    True
    """
    import xarray as xr

    post = require_trusted(post)
    tried = post.problem.require(experiments)
    asked = affine_anchors(post.problem, post.sets, queries)
    if noise is None:
        given = post.outcome_variances(tried)
    else:
        given = np.full(len(tried), read_size("noise", noise, positive=False))
    variances = given + remainders(post, tried)
    left, right = (jacobian_features(post, batch) for batch in (tried, asked))
    before, own = (right**2).sum(axis=1), (left**2).sum(axis=1) + variances
    removed = (left @ right.T) ** 2 / np.where(own > 0, own, np.inf)[:, None]
    share = np.clip(removed / np.where(before > 0, before, np.nan), 0.0, 1.0)
    sets = split_sets(post.problem, asked)
    order, both = sets.order, ("experiment", "effect")
    variables = {
        "reduction": (both, share[:, order]),
        "sd_after": (both, np.sqrt(before * (1 - np.nan_to_num(share)))[:, order]),
        "sd": (("effect",), np.sqrt(before)[order]),
        "noise": (("experiment",), variances),
    }
    coordinates = {"experiment": labels(post.problem, tried)}
    coordinates |= _effect_coordinates(post, asked, sets)
    attributes = posterior_attributes(post) | {"observations": post.n_observations}
    return xr.Dataset(variables, coordinates, attributes)
