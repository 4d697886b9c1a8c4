"""What does the prior say before any row? Draws of the program on paper, or of the moments' own prior."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import jax
import numpy as np
import numpyro

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inference.draws import CHAINS, Drawn, Models, even
from causal_bo_ppl.inference.wishart import Estimands
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior
from causal_bo_ppl.mechanisms.linear.program import NodePrior, linear_program
from causal_bo_ppl.mechanisms.linear.readout import Readout
from causal_bo_ppl.mechanisms.linear.sem import LinearSEM
from causal_bo_ppl.mechanisms.simulation import HANDLER_LOCK

if TYPE_CHECKING:
    from causal_bo_ppl.inference.posterior import Posterior


def draw_prior(post: "Posterior", n: int, key: jax.Array) -> Drawn | None:
    """About n draws before any row; None under a prior that is scaled to the rows: it cannot be drawn from."""
    prior, count = post.prior, even(n)
    if isinstance(prior, MomentPrior) and isinstance(post.belief, Estimands):
        return post.belief.without_rows().drawn(count, key)
    if not isinstance(prior, FixedPrior):
        return None
    graph = post.problem.graph.ancestral(post.problem.target)
    models = draw_models(
        graph, prior, post.parameters.explored.known, post.parameters.intercepts, count, key
    )
    return Drawn(
        CHAINS, Readout(post.parameters, graph).read(models.matrices), models, np.zeros(count), {}
    )


def draw_models(
    graph: CausalGraph,
    prior: FixedPrior,
    known: Mapping[Edge, float],
    intercepts: bool,
    n: int,
    key: jax.Array,
) -> Models:
    """Models (n) from a fixed prior, by running the NumPyro program n times at once."""
    program = _many(
        graph,
        tuple(node_prior(graph, prior, node, known, intercepts) for node in graph.nodes),
        prior.latent_sd,
    )
    seed = int(host_generator(key).integers(2**62))  # whatever kind of key was given
    keys = np.asarray(
        jax.random.key_data(jax.random.split(jax.random.key(seed, impl="threefry2x32"), n))
    )
    with HANDLER_LOCK:  # taken before JAX's own locks, never while it holds them
        weights, levels, noises = map(np.asarray, in_pieces(program, keys, n))
    return Models(np.concatenate([weights, levels[:, None, :]], axis=1), noises)


@lru_cache(maxsize=16)
def _many(
    graph: CausalGraph, priors: tuple[NodePrior, ...], latent_sd: float
) -> Callable[[jax.Array], LinearSEM]:
    program = linear_program(graph, priors, latent_sd)

    def one(words: jax.Array) -> LinearSEM:
        with numpyro.handlers.seed(rng_seed=jax.random.wrap_key_data(words, impl="threefry2x32")):
            return program()

    return jax.jit(jax.vmap(one))


def node_prior(
    graph: CausalGraph, prior: FixedPrior, node: str, known: Mapping[Edge, float], intercepts: bool
) -> NodePrior:
    """What a fixed prior says about one equation."""
    guess = prior.noise_guess(node)

    def slope(cause: str) -> tuple[str, float, float]:
        if (cause, node) in known:
            return cause, known[cause, node], 0.0
        mean, sd = prior.slopes.get((cause, node), (0.0, None))
        return (
            cause,
            mean,
            prior.slope_sd / prior.scales.get(cause, 1.0) if sd is None else sd / guess**0.5,
        )

    centre = prior.centres.get(node, 0.0)
    return NodePrior(
        centre,
        tuple(map(slope, graph.parents(node))),
        (centre, prior.intercept_sd) if intercepts else None,
        (prior.noise_rows / 2, prior.noise_rows * guess / 2),
        guess,
    )
