"""How does information grow with the number of outcomes: with coupling, without, and at most?"""

import numpy as np
import pandas as pd

from causal_bo_ppl.designs import sobol, spread
from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.theory.bounds import information_gain_bound
from causal_bo_ppl.theory.constants import corners, kappa2
from causal_bo_ppl.theory.gains import greedy_gain
from causal_bo_ppl.theory.independent import BlockFeatures, independent_gain, rbf_features, set_labels
from causal_bo_ppl.theory.inputs import read_count, read_size, require_queries
from causal_bo_ppl.theory.ranks import causal_rank

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
    accept_unconverged: bool = False,
) -> pd.DataFrame:
    """Information after 1 to `rounds` outcomes, greedy among these queries, and its bounds.

    coupled: of the causal kernel. independent, causal: the same kernel without covariances between sets, the control.
    independent, RBF: an RBF kernel for every set, with that set's largest causal variance and a lengthscale in widths
    of the domains; greedy among Sobol points that fill them. queries: by default all vertices. noise: the variance of
    one outcome. `attrs` hold rank, dimension and kappa^2.
    """
    rounds, variance = read_count("rounds", rounds, 1), read_size("noise", noise)
    queries = corners(post) if queries is None else require_queries(queries)
    features = np.asarray(jacobian_features(post, queries, accept_unconverged=accept_unconverged))
    rank, dimension = causal_rank(post, queries, accept_unconverged=True), len(post.names)
    largest, blocks = kappa2(post, accept_unconverged=True).value, set_labels(post.problem, queries)
    rbf = _rbf(post, lengthscale)
    counts = np.arange(1, rounds + 1)
    curves = {
        COUPLED: greedy_gain(features, variance, rounds).gains,
        BY_RANK: [information_gain_bound(rank, int(count), largest, variance) for count in counts],
        BY_DIMENSION: [information_gain_bound(dimension, int(count), largest, variance) for count in counts],
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
    table.attrs |= {"rank": rank, "dimension": dimension, "kappa2": largest, "rows": post.rows}
    return table


def _rbf(post: Posterior, lengthscale: float) -> BlockFeatures:
    """An RBF kernel for every set that was learned, with its largest causal variance, at points that fill its box."""
    vertices, sets = corners(post), post.parameters.explored.sets
    variances = (np.asarray(jacobian_features(post, vertices, accept_unconverged=True)) ** 2).sum(axis=1)
    labels = set_labels(post.problem, vertices)
    own = {name: float(variances[labels == name].max()) for name in np.unique(labels).tolist()}
    points = spread(post.problem.graph.nodes, sets, post.problem.domains, sobol(FILL), FILL * len(sets))
    return rbf_features(post.problem, points, lengthscale=lengthscale, variances=own)
