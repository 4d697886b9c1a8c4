"""How large are the theory's quantities for one posterior, and how do they grow with outcomes?

`gain_curves` has the information after 1 to T outcomes, with and without coupling, and its bounds;
`theory_table` has everything in one table.
"""

import numpy as np
import pandas as pd

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_count, read_size
from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import fill_points
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.constants import (
    causal_rank,
    design,
    information_gain_bound,
    kappa2,
    lipschitz,
)
from causal_bo_ppl.theory.drift import largest_gap
from causal_bo_ppl.theory.information_gains import (
    BlockFeatures,
    greedy_gain,
    independent_gain,
    rbf_features,
    require_queries,
    set_labels,
)

NARROW_STEP = 1e-5  # of a coordinate's size
STEP_TOLERANCE = 1e-6  # of a derivative: the difference of two steps that agree
POINTS_PER_SET = 64  # Sobol points, for kernels that are not affine in the values
COUPLED_GAIN, BY_RANK, BY_DIMENSION = "coupled", "bound by rank", "bound by dimension"
CONTROL, RBF = "independent, causal", "independent, RBF"


def gain_curves(
    post: Posterior,
    queries: Queries | None = None,
    *,
    noise: float,
    rounds: int = 320,
    lengthscale: float = 0.2,
) -> pd.DataFrame:
    """Tabulate the information after 1 to `rounds` outcomes, and its bounds.

    Each query is chosen greedily.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        The candidates; by default all vertices, or points that fill the domains where effects are
        not affine in the values.
    noise:
        The variance of one outcome.
    rounds:
        The number of outcomes.
    lengthscale:
        Of the RBF kernels, in widths of the domains.

    Returns
    -------
    pd.DataFrame
        A row for each number of outcomes. coupled: with the causal kernel. independent, causal: the
        control, the same kernel without covariances between sets. independent, RBF: an RBF kernel
        for every set, with that set's largest causal variance; greedy among Sobol points that fill
        the domains. `attrs` holds rank, dimension and kappa^2 among others.

    Raises
    ------
    ArgumentError
        If there is no query, or a number cannot be used.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(100, 0))
    >>> curves = cb.theory.gain_curves(post, noise=0.5, rounds=10)
    >>> bool((curves["coupled"] <= curves["bound by rank"]).all())
    True
    """
    rounds, variance = read_count("rounds", rounds, 1), read_size("noise", noise)
    queries = design(post).queries if queries is None else require_queries(post.problem, queries)
    features = jacobian_features(post, queries)
    rank, dimension = causal_rank(post, queries), len(post.names)
    largest, blocks = kappa2(post).value, set_labels(post.problem, queries)
    rbf = _rbf(post, lengthscale)
    counts = np.arange(1, rounds + 1)
    bounds = {
        name: [information_gain_bound(size, int(count), largest, variance) for count in counts]
        for name, size in ((BY_RANK, rank), (BY_DIMENSION, dimension))
    }
    curves = {
        COUPLED_GAIN: greedy_gain(features, variance, rounds).gains,
        **bounds,
        CONTROL: independent_gain(features, blocks, variance, rounds).gains,
        RBF: independent_gain(*rbf, variance, rounds).gains,
    }
    table = pd.DataFrame(curves, index=pd.Index(counts, name="outcomes"))
    table.attrs = {
        "noise": variance,
        "lengthscale": lengthscale,
        "queries": len(queries),
        "sets": len(np.unique(blocks)),
        "rank": rank,
        "dimension": dimension,
        "kappa2": largest,
        "observations": post.n_observations,
    }
    return table


def _rbf(post: Posterior, lengthscale: float) -> BlockFeatures:
    """Return the features of an RBF kernel for every set that was learned.

    They are those of points that fill the set's box. The variance of a set's kernel is its largest
    causal variance.
    """
    queries, sets = design(post).queries, post.sets
    variances = (jacobian_features(post, queries) ** 2).sum(axis=1)
    labels = set_labels(post.problem, queries)
    own = {name: float(variances[labels == name].max()) for name in np.unique(labels).tolist()}
    points = fill_points(post.problem, sets, POINTS_PER_SET)
    return rbf_features(post.problem, points, lengthscale=lengthscale, variances=own)


Quantity = tuple[str, float, str]  # its name, its value, and how it was computed


def theory_table(
    post: Posterior,
    queries: Queries | None = None,
    *,
    noise: float,
    rounds: int = 320,
    lengthscale: float = 0.2,
) -> pd.DataFrame:
    """Return a table of the theory's quantities over these queries, by default all vertices.

    Parameters
    ----------
    post, queries, noise, rounds, lengthscale:
        As in `gain_curves`.

    Returns
    -------
    pd.DataFrame
        Columns quantity, value and how. The table holds rank(K) and dim theta_Y; the largest error
        of a covariance; the greedy information gain of `rounds` outcomes, and its bounds; the same
        for independent sets, with RBF kernels and, as control, with the causal kernel itself, which
        separates coupling from the choice of a kernel; kappa^2, L and tr Sigma.

    Raises
    ------
    ArgumentError
        If there is no query, or a number cannot be used.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(100, 0), intercepts=False)
    >>> cb.theory.theory_table(post, noise=0.5, rounds=10)["value"][:2].tolist()
    [2.0, 2.0]
    """
    queries = design(post).queries if queries is None else queries
    curves = gain_curves(post, queries, noise=noise, rounds=rounds, lengthscale=lengthscale)
    lines = [*_ranks(post, queries, curves), *_gains(curves), *_constants(post)]
    table = pd.DataFrame(lines, columns=["quantity", "value", "how"])
    table.attrs = curves.attrs | {"rounds": len(curves)}
    return table


def _ranks(post: Posterior, queries: Queries, curves: pd.DataFrame) -> list[Quantity]:
    """Return the rows for the rank, the dimension and the error of the covariances."""
    features = jacobian_features(post, queries)
    numerical = central_differences(post, queries)
    error = largest_gap((features, features), (numerical @ post.covariance, numerical))
    how = (
        "largest |k - J Sigma J'| of two queries, J by differences of effects at theta; "
        f"the largest k is {(features**2).sum(axis=1).max():.4g}"
    )
    return [
        ("rank", curves.attrs["rank"], f"of K over {len(queries)} queries"),
        ("dimension", len(post.names), f"of theta_Y, {post.kind}"),
        ("covariance error", error, how),
    ]


def central_differences(post: Posterior, queries: Queries) -> np.ndarray:
    """Return the derivatives of the effects by central differences, an array of shape (M, d).

    Wide steps are exact up to rounding where effects are affine in every single coordinate, as for
    linear mechanisms; where narrow ones disagree with them, the narrow ones are taken.
    """
    steps = np.maximum(np.abs(post.mean), post.sd)
    steps = np.where(steps > 0, steps, 1.0)
    wide, narrow = (_central(post, queries, size * steps) for size in (1.0, NARROW_STEP))
    same = np.abs(wide - narrow) <= STEP_TOLERANCE * np.abs(wide).max(axis=0, initial=0.0)
    return np.where(same.all(axis=0), wide, narrow)


def _central(post: Posterior, queries: Queries, steps: np.ndarray) -> np.ndarray:
    """Return central differences of the effects (M, d) with a step for every coordinate."""
    effect, columns = response(post), [np.zeros((len(queries), 0))]
    for position, step in enumerate(steps.tolist()):
        move = step * (np.arange(len(post.mean)) == position)
        ends = [effect(post.mean + sign * move, queries) for sign in (1.0, -1.0)]
        columns.append((ends[0] - ends[1])[:, None] / (2 * step))
    return np.concatenate(columns, axis=1)


def _gains(curves: pd.DataFrame) -> list[Quantity]:
    """Return the rows for the information gains and their bounds."""
    last, rounds, attrs = curves.iloc[-1], len(curves), curves.attrs
    bound = f"r/2 log(1 + {rounds} kappa^2 / (s2 r)), kappa^2 = {attrs['kappa2']:.4g}, r = "
    greedy = f"greedy over the queries, {rounds} outcomes, noise variance {attrs['noise']:g}"
    rbf = (
        f"RBF kernel, lengthscale {attrs['lengthscale']:g} domain widths, variance the set's "
        f"largest causal one; greedy over {POINTS_PER_SET} Sobol points of every set"
    )
    control = "the causal kernel within each set, 0 between sets"
    return [
        ("information gain", last[COUPLED_GAIN], greedy),
        (BY_RANK, last[BY_RANK], f"{bound}rank"),
        (BY_DIMENSION, last[BY_DIMENSION], f"{bound}dimension"),
        ("independent gain, RBF", last[RBF], rbf),
        ("independent gain, causal", last[CONTROL], control),
    ]


def _constants(post: Posterior) -> list[Quantity]:
    """Return the rows for kappa^2, L and the trace of Sigma."""
    largest, slope = kappa2(post), lipschitz(post)
    trace = f"of Sigma from {post.n_observations} observations, by {post.moments_by}"
    return [
        ("kappa^2", largest.value, f"largest k(z, z) {largest.how}, at {largest.intervention}"),
        ("L", slope.value, f"largest |J(z)| {slope.how}, at {slope.intervention}"),
        ("trace", float(np.trace(post.covariance)), trace),
    ]
