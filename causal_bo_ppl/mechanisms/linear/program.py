"""The linear-Gaussian SEM as a NumPyro program: parameters, disturbances, then all variables.

    V_j = level_j + sum_i b_ij (V_i - c_i) + e_j,  e ~ N(0, S R S).

It is there to be read, simulated and checked against. What is fitted is `density.LinearDensity`,
which has the same density and is faster.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.linear.density import correlation_factor
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior
from causal_bo_ppl.mechanisms.linear.sem import LinearSEM, Models
from causal_bo_ppl.mechanisms.simulation import HANDLER_LOCK


class NodePrior(NamedTuple):
    """The prior of one equation.

    Given s2, a slope is N(mean, s2 width^2) and the level is N(centre, s2 width^2).

    centre: the c of this variable. slopes: (parent, mean, width) of every parent; the width is 0
    where the slope is known. level: (centre, width), or None for an equation without intercept.
    noise: shape and rate of s2 ~ IG. guess: the prior guess of s2, which is its value where the
    shape is infinite.
    """

    centre: float
    slopes: tuple[tuple[str, float, float], ...]
    level: tuple[float, float] | None
    noise: tuple[float, float]
    guess: float


def linear_program(
    graph: CausalGraph, priors: tuple[NodePrior, ...], latent_sd: float = 1.0
) -> Callable[[], LinearSEM]:
    """Return the program of the parameters, which returns the model that it drew.

    Its sites are s2[X], b[X->Z], level[X] and t[X<->Y].
    """

    def variance(node: str, prior: NodePrior) -> Any:
        shape, rate = prior.noise
        return (
            prior.guess
            if math.isinf(shape)
            else numpyro.sample(f"s2[{node}]", dist.InverseGamma(shape, rate))
        )

    def slope(cause: str, effect: str, mean: float, width: Any) -> Any:
        return numpyro.sample(f"b[{cause}->{effect}]", dist.Normal(mean, width))

    def parameters() -> LinearSEM:
        size = len(graph.nodes)
        weights, intercepts, sds = jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(size)
        for place, (node, prior) in enumerate(zip(graph.nodes, priors, strict=True)):
            sd = jnp.sqrt(variance(node, prior))
            sds = sds.at[place].set(sd)
            at_centres = 0.0
            for cause, mean, width in prior.slopes:
                b = slope(cause, node, mean, sd * width) if width else mean
                weights = weights.at[graph.index(cause), place].set(b)
                at_centres += b * priors[graph.index(cause)].centre
            if prior.level is not None:
                level = numpyro.sample(
                    f"level[{node}]", dist.Normal(prior.level[0], sd * prior.level[1])
                )
                intercepts = intercepts.at[place].set(level - at_centres)
        arcs = [(graph.index(one), graph.index(other)) for one, other in graph.bidirected]
        drawn = [
            numpyro.sample(f"t[{one}<->{other}]", dist.Normal(0.0, latent_sd))
            for one, other in graph.bidirected
        ]
        root = sds[:, None] * correlation_factor(size, arcs, jnp.array(drawn))
        return LinearSEM(weights, intercepts, root @ root.T)

    return parameters


def draw_models(
    graph: CausalGraph,
    prior: FixedPrior,
    known: Mapping[Edge, float],
    intercepts: bool,
    n: int,
    key: jax.Array,
) -> Models:
    """Draw n models from a fixed prior, by running the NumPyro program n times at once."""
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
    """Return what a fixed prior says about one equation."""
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
