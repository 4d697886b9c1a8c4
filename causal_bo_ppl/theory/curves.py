"""How does information grow with the number of outcomes: with coupling, without, and at most?"""

import numpy as np
import pandas as pd

from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.theory.bounds import information_gain_bound
from causal_bo_ppl.theory.constants import kappa2
from causal_bo_ppl.theory.gains import greedy_gain
from causal_bo_ppl.theory.independent import independent_gain, rbf_features, set_labels
from causal_bo_ppl.theory.inputs import read_count, read_size, require_queries
from causal_bo_ppl.theory.ranks import causal_rank

COUPLED, BY_RANK, BY_DIMENSION = "coupled", "bound by rank", "bound by dimension"
CONTROL, RBF = "independent, causal", "independent, RBF"


def gain_curves(
    post: Posterior,
    queries: Queries,
    *,
    noise: float,
    rounds: int = 320,
    lengthscale: float = 0.2,
    accept_unconverged: bool = False,
) -> pd.DataFrame:
    """Information after 1 to `rounds` outcomes, greedy among these queries, and its bounds.

    coupled: of the causal kernel. independent, causal: the same kernel without covariances between sets, the control.
    independent, RBF: an RBF kernel for every set, with that set's largest causal variance and a lengthscale in widths
    of the domains. noise: the variance of one outcome. `attrs` hold rank, dimension and kappa^2.
    """
    rounds, variance = read_count("rounds", rounds, 1), read_size("noise", noise)
    queries = require_queries(queries)
    features = np.asarray(jacobian_features(post, queries, accept_unconverged=accept_unconverged))
    rank, dimension = causal_rank(post, queries, accept_unconverged=True), len(post.names)
    largest, blocks = kappa2(post, accept_unconverged=True).value, set_labels(post.problem, queries)
    own = {name: float((features[blocks == name] ** 2).sum(axis=1).max()) for name in np.unique(blocks).tolist()}
    rbf = rbf_features(post.problem, queries, lengthscale=lengthscale, variances=own)
    counts = np.arange(1, rounds + 1)
    curves = {
        COUPLED: greedy_gain(features, variance, rounds).gains,
        BY_RANK: [information_gain_bound(rank, int(count), largest, variance) for count in counts],
        BY_DIMENSION: [information_gain_bound(dimension, int(count), largest, variance) for count in counts],
        CONTROL: independent_gain(features, blocks, variance, rounds).gains,
        RBF: independent_gain(*rbf, variance, rounds).gains,
    }
    table = pd.DataFrame(curves, index=pd.Index(counts, name="outcomes"))
    table.attrs = {"noise": variance, "lengthscale": lengthscale, "queries": len(queries), "sets": len(own)}
    table.attrs |= {"rank": rank, "dimension": dimension, "kappa2": largest, "rows": post.rows}
    return table
