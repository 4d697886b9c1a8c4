"""The synthetic system with two latent confounders.

    F -> A -> E -> Y,  B -> C -> D -> Y,  C -> E,  A <-> Y,  B <-> Y

    U1, U2, F = e;  A = F^2 + U1 + e;  B = U2 + e;  C = exp(-B) + e;  D = exp(-C)/10 + e
    E = cos A + C/10 + e;  Y = cos D - D/5 + sin E - E/4 + U1 + exp(-U2) + e,  all noise N(0, 1)

Source: the released code of Aglietti et al. 2020. Variants: `daggp` has the domains of the DAG-GP
paper (Aglietti et al. 2020b); `paper` is ours, with Y = cos D + sin E + U1 + U2 + e, whose optimum
is the published -2 at {D, E}. Optimum by quadrature: -3.483055 at B = -5, D = 3.34295.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from scipy.special import jv

from causal_bo_ppl.errors import ArgumentError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.models.quadrature import lognormal_wave, normal_mean
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

GRAPH = CausalGraph.parse("F -> A -> E -> Y; B -> C -> D -> Y; C -> E; A <-> Y; B <-> Y")
DOMAINS = {"B": (-5.0, 4.0), "D": (-5.0, 5.0), "E": (-6.0, 3.0)}
DAGGP_DOMAINS = {"B": (-3.0, 4.0), "D": (-3.0, 3.0), "E": (-3.0, 3.0)}
HALF_VARIANCE = 0.505  # of e_E + e_C / 10, which damps the waves through E


class TargetEquation(NamedTuple):
    """The target's equation: Y = cos D - d D + sin E - e E + U1 + (exp(-U2) or U2) + noise."""

    d: float = 0.2
    e: float = 0.25
    has_exp: bool = True


MECHANISMS = "gp"  # with which an analyst would begin: smooth functions of unknown form
VARIANTS = {
    None: (DOMAINS, TargetEquation()),
    "daggp": (DAGGP_DOMAINS, TargetEquation()),
    "paper": (DOMAINS, TargetEquation(0, 0, False)),
}
NOTES = {
    None: "",
    "daggp": "; domains of the DAG-GP paper",
    "paper": "; the target's equation is ours",
}


def model(outcome: TargetEquation) -> None:
    """Draw one observation of the true system, a site for each variable."""
    u1 = numpyro.sample("U1", dist.Normal(0, 1))
    u2 = numpyro.sample("U2", dist.Normal(0, 1))
    f = numpyro.sample("F", dist.Normal(0, 1))
    a = numpyro.sample("A", dist.Normal(f**2 + u1, 1))
    b = numpyro.sample("B", dist.Normal(u2, 1))
    c = numpyro.sample("C", dist.Normal(jnp.exp(-b), 1))
    d = numpyro.sample("D", dist.Normal(jnp.exp(-c) / 10, 1))
    e = numpyro.sample("E", dist.Normal(jnp.cos(a) + c / 10, 1))
    latent = u1 + (jnp.exp(-u2) if outcome.has_exp else u2)
    numpyro.sample("Y", dist.Normal(through_d(d, outcome) + through_e(e, outcome) + latent, 1))


def through_d(d: jax.Array, outcome: TargetEquation) -> jax.Array:
    """Return what D adds to Y."""
    return jnp.cos(d) - outcome.d * d


def through_e(e: jax.Array, outcome: TargetEquation) -> jax.Array:
    """Return what E adds to Y."""
    return jnp.sin(e) - outcome.e * e


def moments_of_cos_a() -> tuple[complex, float]:
    """Return E exp(i cos A) and E cos A, with A = F^2 + N(0, 2), in closed form.

    Jacobi-Anger: exp(i cos A) = sum_n i^n J_n(1) exp(i n A), and
    E exp(i n A) = (1 - 2 i n)^(-1/2) exp(-n^2).
    """
    orders = range(1, 8)  # exp(-49) is below the last bit
    waves = {n: ((1 - 2j * n) ** -0.5).real * math.exp(-n * n) for n in orders}
    return complex(jv(0, 1) + 2 * sum(1j**n * jv(n, 1) * waves[n] for n in orders)), waves[1]


def mean_through_d(mean_c: jax.Array, outcome: TargetEquation) -> jax.Array:
    """Return the mean of what D adds to Y while D is free, given the mean of C."""
    cosine = normal_mean(lambda c: jnp.cos(jnp.exp(-c) / 10), mean_c)
    return jnp.exp(-0.5) * cosine - outcome.d * jnp.exp(-mean_c + 0.5) / 10


def mean_through_e(mean_c: jax.Array, outcome: TargetEquation) -> jax.Array:
    """Return the mean of what E adds to Y while E is free, given the mean of C."""
    wave, cosine = moments_of_cos_a()
    sine = jnp.imag(wave * jnp.exp(1j * mean_c / 10 - HALF_VARIANCE))
    return sine - outcome.e * (cosine + mean_c / 10)


def natural_means(outcome: TargetEquation) -> tuple[jax.Array, jax.Array]:
    """Return the means of what D and E add to Y while B is free too.

    C then has the mean exp(-B) with B ~ N(0, 2).
    """
    wave, cosine = moments_of_cos_a()
    sd = math.sqrt(2)
    by_d = normal_mean(lambda b: mean_through_d(jnp.exp(-b), outcome), sd=sd)
    sine = jnp.imag(wave * lognormal_wave(0.1, sd) * math.exp(-HALF_VARIANCE))
    return by_d, sine - outcome.e * (cosine + math.e / 10)


def response(queries: Queries, outcome: TargetEquation) -> jax.Array:
    """Return E Y: the terms of D and E, each set, or following a set B, or natural, and the rest.

    The rest is the mean of the terms of the latent causes.
    """
    means: jax.Array = _response(queries, outcome)  # a compiled function cannot be pickled
    return means


@partial(jax.jit, static_argnames="outcome")
def _response(queries: Queries, outcome: TargetEquation) -> jax.Array:
    columns = [GRAPH.index(name) for name in "BDE"]
    natural = natural_means(outcome)

    def one(query: tuple[jax.Array, jax.Array]) -> jax.Array:
        (has_b, has_d, has_e), (b, d, e) = query
        free_d = jnp.where(has_b, mean_through_d(jnp.exp(-b), outcome), natural[0])
        free_e = jnp.where(has_b, mean_through_e(jnp.exp(-b), outcome), natural[1])
        by_d = jnp.where(has_d, through_d(d, outcome), free_d)
        return by_d + jnp.where(has_e, through_e(e, outcome), free_e)

    masks, values = jnp.asarray(queries.mask)[:, columns], jnp.asarray(queries.value)[:, columns]
    means: jax.Array = jax.lax.map(one, (masks, values), batch_size=4096)
    return means + (jnp.exp(0.5) if outcome.has_exp else 0.0)


def synthetic(variant: str | None = None, max_size: int | None = None) -> CausalSystem:
    """Build the synthetic system; the variant names its domains or its target's equation."""
    if variant not in VARIANTS:
        raise ArgumentError(
            f"synthetic has no variant {variant!r}; omit it or use one of "
            f"{listed(filter(None, VARIANTS))}"
        )
    domains, outcome = VARIANTS[variant]
    problem = Problem(GRAPH, "Y", domains=domains, sets="mis" if max_size is None else max_size)
    name = "synthetic" if variant is None else f"synthetic-{variant}"
    source = "Aglietti et al. 2020, released code" + NOTES[variant]
    return CausalSystem(
        name,
        problem,
        partial(model, outcome),
        partial(response, outcome=outcome),
        False,
        source,
        MECHANISMS,
    )
