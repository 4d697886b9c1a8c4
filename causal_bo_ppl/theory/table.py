"""How large are the theory's quantities for one posterior, and how do they grow with outcomes?

`gain_curves` has the information after 1 to T outcomes, with and without coupling, and its bounds;
`theory_table` has everything in one table.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_count, read_size
from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import fill_points
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

NARROW, AGREE = 1e-5, 1e-6  # of a coordinate's size: a narrow step, and what two steps may differ
FILL = 64  # Sobol points of every set, for kernels that are not affine in the values
COUPLED, BY_RANK, BY_DIMENSION = "coupled", "bound by rank", "bound by dimension"
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

    Each query is chosen greedily. coupled: with the causal kernel, among these queries.
    independent, causal: the control, the same kernel without covariances between sets. independent,
    RBF: an RBF kernel for every set, with that set's largest causal variance and a lengthscale in
    widths of the domains; greedy among Sobol points that fill them. queries: by default all
    vertices, or points that fill the domains where effects are not affine in the values. noise: the
    variance of one outcome. The table's `attrs` hold rank, dimension and kappa^2 among others.
    """
    rounds, variance = read_count("rounds", rounds, 1), read_size("noise", noise)
    queries = design(post).queries if queries is None else require_queries(post.problem, queries)
    features = jacobian_features(post, queries)
    rank, dimension = causal_rank(post, queries), len(post.names)
    largest, blocks = kappa2(post).value, set_labels(post.problem, queries)
    rbf = _rbf(post, lengthscale)
    counts = np.arange(1, rounds + 1)
    curves = {
        COUPLED: greedy_gain(features, variance, rounds).gains,
        BY_RANK: [information_gain_bound(rank, int(count), largest, variance) for count in counts],
        BY_DIMENSION: [
            information_gain_bound(dimension, int(count), largest, variance) for count in counts
        ],
        CONTROL: independent_gain(features, blocks, variance, rounds).gains,
        RBF: independent_gain(*rbf, variance, rounds).gains,
    }
    table = pd.DataFrame(curves, index=pd.Index(counts, name="outcomes"))
    table.attrs = {
        "noise": variance,
        "lengthscale": lengthscale,
        "queries": len(queries),
        "sets": len(np.unique(blocks)),
    }
    table.attrs |= {
        "rank": rank,
        "dimension": dimension,
        "kappa2": largest,
        "rows": post.n_observations,
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
    points = fill_points(post.problem, sets, FILL)
    return rbf_features(post.problem, points, lengthscale=lengthscale, variances=own)


class Line(NamedTuple):
    """One quantity of the theory, its value, and how it was computed."""

    quantity: str
    value: float
    how: str


def theory_table(
    post: Posterior,
    queries: Queries | None = None,
    *,
    noise: float,
    rounds: int = 320,
    lengthscale: float = 0.2,
) -> pd.DataFrame:
    """Return a table of the theory's quantities over these queries, by default all vertices.

    Where effects are not affine in the values, they are points that fill the domains. The columns
    are quantity, value and how. The table holds rank(K) and dim theta_Y; the largest error of a
    covariance; the greedy information gain of `rounds` outcomes with noise of this variance, and
    its bounds; the same for independent sets, with RBF kernels and, as control, with the causal
    kernel itself, which tells coupling from the choice of a kernel; kappa^2, L and tr Sigma.
    """
    queries = design(post).queries if queries is None else queries
    curves = gain_curves(
        post,
        queries,
        noise=noise,
        rounds=rounds,
        lengthscale=lengthscale,
    )
    lines = [*_ranks(post, queries, curves), *_gains(curves), *_constants(post)]
    table = pd.DataFrame(lines)
    table.attrs = curves.attrs | {"rounds": len(curves)}
    return table


def _ranks(post: Posterior, queries: Queries, curves: pd.DataFrame) -> list[Line]:
    """Return the rows for the rank, the dimension and the error of the covariances."""
    features = jacobian_features(post, queries)
    numerical = central_differences(post, queries)
    error = largest_gap((features, features), (numerical @ post.covariance, numerical))
    how = "largest |k - J Sigma J'| of two queries, J by differences of effects at theta"
    return [
        Line("rank", curves.attrs["rank"], f"of K over {len(queries)} queries"),
        Line("dimension", len(post.names), f"of theta_Y, {post.kind}"),
        Line(
            "covariance error",
            error,
            f"{how}; the largest k is {(features**2).sum(axis=1).max():.4g}",
        ),
    ]


def central_differences(post: Posterior, queries: Queries) -> np.ndarray:
    """Return the derivatives of the effects by central differences, an array of shape (M, d).

    Wide steps are exact up to rounding where effects are affine in every single coordinate, as for
    linear mechanisms; where narrow ones disagree with them, the narrow ones are taken.
    """
    steps = np.maximum(np.abs(post.mean), post.sd)
    steps = np.where(steps > 0, steps, 1.0)
    wide, narrow = (_central(post, queries, size * steps) for size in (1.0, NARROW))
    same = np.abs(wide - narrow) <= AGREE * np.abs(wide).max(axis=0, initial=0.0)
    return np.where(same.all(axis=0), wide, narrow)


def _central(post: Posterior, queries: Queries, steps: np.ndarray) -> np.ndarray:
    """Return central differences of the effects (M, d) with a step for every coordinate."""
    effect, columns = response(post), [np.zeros((len(queries), 0))]
    for position, step in enumerate(steps.tolist()):
        move = step * (np.arange(len(post.mean)) == position)
        ends = [effect(post.mean + sign * move, queries) for sign in (1.0, -1.0)]
        columns.append((ends[0] - ends[1])[:, None] / (2 * step))
    return np.concatenate(columns, axis=1)


def _gains(curves: pd.DataFrame) -> list[Line]:
    """Return the rows for the information gains and their bounds."""
    last, rounds, noise, length = (
        curves.iloc[-1],
        len(curves),
        curves.attrs["noise"],
        curves.attrs["lengthscale"],
    )
    bound = f"r/2 log(1 + {rounds} kappa^2 / (s2 r)), kappa^2 = {curves.attrs['kappa2']:.4g}, r = "
    rbf = (
        f"RBF kernel, lengthscale {length:g} domain widths, variance the set's largest causal one; "
        "greedy over "
    )
    return [
        Line(
            "information gain",
            last[COUPLED],
            f"greedy over the queries, {rounds} outcomes, noise variance {noise:g}",
        ),
        Line(BY_RANK, last[BY_RANK], f"{bound}rank"),
        Line(BY_DIMENSION, last[BY_DIMENSION], f"{bound}dimension"),
        Line("independent gain, RBF", last[RBF], f"{rbf}{FILL} Sobol points of every set"),
        Line(
            "independent gain, causal",
            last[CONTROL],
            "the causal kernel within each set, 0 between sets",
        ),
    ]


def _constants(post: Posterior) -> list[Line]:
    """Return the rows for kappa^2, L and the trace of Sigma."""
    largest, slope = (find(post) for find in (kappa2, lipschitz))
    return [
        Line(
            "kappa^2",
            largest.value,
            f"largest k(z, z) {largest.how}, at {largest.intervention}",
        ),
        Line("L", slope.value, f"largest |J(z)| {slope.how}, at {slope.intervention}"),
        Line(
            "trace",
            float(np.trace(post.covariance)),
            f"of Sigma from {post.n_observations} rows, by {post.moments_by}",
        ),
    ]
