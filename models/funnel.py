"""Six sources, three mediators, one hub: many sets that share the last mechanisms.

    X1, X2 -> M1;  X3, X4 -> M2;  X5, X6 -> M3;  M1, M2, M3 -> H -> Y;  X_i <-> Y for every source

    X_i = U_i + e,  M_k = c X + c' X' + e,  all noise and latent causes N(0, 1)
    linear:     H = sum_k c_k M_k + e,                    Y = c H + sum_i U_i + e
    nonlinear:  H = tanh(M1) + 0.5 M2 + sin(M3) + e,      Y = 2 sin(H) + 0.3 H^2 + sum_i U_i + e

Coefficients c are uniform in +-[0.5, 1.5], drawn by `seed`. Source: ours; the paper shows transfer
across sets on a funnel but does not define it. Domains: population mean +- 2 standard deviations.
Transfer is measured from outcomes on TRAINING to responses on HELD_OUT.
"""

from collections.abc import Mapping
from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import jv

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inputs import read_count
from causal_bo_ppl.mechanisms.linear_equations import LinearSEM
from causal_bo_ppl.models.networks import (
    ancestral_part,
    network_response,
    population_domains,
)
from causal_bo_ppl.models.quadrature import normal_mean
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

SOURCES = tuple(f"X{i}" for i in range(1, 7))
FEEDS = {"M1": ("X1", "X2"), "M2": ("X3", "X4"), "M3": ("X5", "X6")}
GRAPH = CausalGraph.from_edges(
    [(x, m) for m, pair in FEEDS.items() for x in pair] + [(m, "H") for m in FEEDS] + [("H", "Y")],
    [(x, "Y") for x in SOURCES],
)
TRAINING = (("X1",), ("X3",), ("M1",), ("M2",))
HELD_OUT = (("X2",), ("X5",), ("M3",), ("H",), *combinations(SOURCES, 2))
SETS = (*((name,) for name in (*SOURCES, *FEEDS, "H")), *combinations(SOURCES, 2))
# Step of the rule for tanh: its poles are 0.49 sd or more away, so the error is exp(-2 pi 4.9).
TANH_STEP = 0.1
Coefficients = Mapping[tuple[str, str], float]


def draw_coefficients(seed: int) -> dict[tuple[str, str], float]:
    """Draw one coefficient for each directed edge, uniform in +-[0.5, 1.5]."""
    draws = np.random.default_rng(read_count("the seed of the funnel", seed, 0))
    sizes = draws.uniform(0.5, 1.5, len(GRAPH.directed))
    signs = draws.choice([-1.0, 1.0], len(GRAPH.directed))
    return dict(zip(GRAPH.directed, (signs * sizes).tolist(), strict=True))


def linear_sem(coefficients: Coefficients) -> LinearSEM:
    """Return the linear funnel, its latent causes in the covariance of the noise."""
    size = len(GRAPH.nodes)
    weights, noise = np.zeros((size, size)), np.eye(size)
    for (cause, effect), weight in coefficients.items():
        weights[GRAPH.index(cause), GRAPH.index(effect)] = weight
    y = GRAPH.index("Y")
    for x in map(GRAPH.index, SOURCES):
        noise[x, x] += 1
        noise[y, y] += 1
        noise[x, y] = noise[y, x] = 1
    return LinearSEM(jnp.array(weights), jnp.zeros(size), jnp.array(noise))


def _hub_mean(m: Mapping[str, jax.Array], coefficients: Coefficients, is_linear: bool) -> jax.Array:
    if is_linear:
        return sum((coefficients[name, "H"] * m[name] for name in FEEDS), jnp.zeros(()))
    return jnp.tanh(m["M1"]) + 0.5 * m["M2"] + jnp.sin(m["M3"])


def _target_mean(h: jax.Array, coefficients: Coefficients, is_linear: bool) -> jax.Array:
    return coefficients["H", "Y"] * h if is_linear else 2 * jnp.sin(h) + 0.3 * h**2


def model(coefficients: Coefficients, is_linear: bool) -> None:
    """Draw one observation of the true system, a site for each variable."""
    u = {name: numpyro.sample(f"U{name[1:]}", dist.Normal(0, 1)) for name in SOURCES}
    x = {name: numpyro.sample(name, dist.Normal(u[name], 1)) for name in SOURCES}
    m = {}
    for name, (one, other) in FEEDS.items():
        m[name] = numpyro.sample(
            name,
            dist.Normal(coefficients[one, name] * x[one] + coefficients[other, name] * x[other], 1),
        )
    h = numpyro.sample("H", dist.Normal(_hub_mean(m, coefficients, is_linear), 1))
    numpyro.sample("Y", dist.Normal(_target_mean(h, coefficients, is_linear) + sum(u.values()), 1))


def mediators(query: Queries, coefficients: Coefficients) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Return the mean and variance of each mediator under one intervention.

    The mediators are independent and Gaussian whatever is set.
    """
    moments = {}
    for name, pair in FEEDS.items():
        mean, variance = jnp.zeros(()), jnp.ones(())
        for source in pair:
            column, weight = GRAPH.index(source), coefficients[source, name]
            is_set = query.mask[column]
            mean += weight * jnp.where(is_set, query.value[column], 0.0)
            variance += weight**2 * jnp.where(is_set, 0.0, 2.0)
        column = GRAPH.index(name)
        is_set = query.mask[column]
        centre = jnp.where(is_set, query.value[column], mean)
        moments[name] = centre, jnp.where(is_set, 0.0, variance)
    return moments


def hub_moments(
    m: Mapping[str, tuple[jax.Array, jax.Array]],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return E H, Var H and E exp(iH) of the nonlinear hub, a sum of independent parts.

    exp(i sin M) = sum_n J_n(1) exp(i n M) (Jacobi-Anger); tanh needs one-dimensional quadrature.
    """
    (m1, v1), (m2, v2), (m3, v3) = (m[name] for name in FEEDS)
    tanh, tanh2, real, imaginary = (
        normal_mean(lambda x: part(jnp.tanh(x)), m1, jnp.sqrt(v1), TANH_STEP)  # noqa: B023 (used at once)
        for part in (jnp.array, jnp.square, jnp.cos, jnp.sin)
    )
    tanh_wave = real + 1j * imaginary
    sine, sine2 = jnp.exp(-v3 / 2) * jnp.sin(m3), (1 - jnp.exp(-2 * v3) * jnp.cos(2 * m3)) / 2
    orders = jnp.arange(-20, 21)  # J_20(1) is 4e-25
    waves = jnp.exp(1j * m3 * orders - v3 * orders**2 / 2)
    sine_wave = waves @ jnp.asarray(jv(np.arange(-20, 21), 1.0), complex)
    mean = tanh + 0.5 * m2 + sine
    variance = (tanh2 - tanh**2) + 0.25 * v2 + (sine2 - sine**2) + 1
    return mean, variance, tanh_wave * jnp.exp(0.5j * m2 - v2 / 8) * sine_wave * jnp.exp(-0.5)


def nonlinear_response(coefficients: Coefficients, queries: Queries) -> jax.Array:
    """Return the exact effects E[2 sin H + 0.3 H^2]: the latent causes have mean zero."""
    means: jax.Array = _nonlinear_response(coefficients, queries)  # it cannot be pickled itself
    return means


@jax.jit
def _nonlinear_response(coefficients: Coefficients, queries: Queries) -> jax.Array:
    def one(query: Queries) -> jax.Array:
        mean, variance, wave = hub_moments(mediators(query, coefficients))
        is_set, h = query.mask[GRAPH.index("H")], query.value[GRAPH.index("H")]
        free = 2 * jnp.imag(wave) + 0.3 * (variance + mean**2)
        return jnp.where(is_set, 2 * jnp.sin(h) + 0.3 * h**2, free)

    means: jax.Array = jax.lax.map(one, queries, batch_size=4096)
    return means


def nonlinear_domains(coefficients: Coefficients) -> dict[str, tuple[float, float]]:
    """Return the mean +- 2 standard deviations of each variable that may be set.

    Upstream of the hub the nonlinear funnel is the linear one.
    """
    domains = population_domains(GRAPH, linear_sem(coefficients), (*SOURCES, *FEEDS))
    nothing = Queries(np.zeros(len(GRAPH.nodes), bool), np.zeros(len(GRAPH.nodes)))
    mean, variance, _ = hub_moments(mediators(nothing, coefficients))
    centre, reach = float(mean), 2 * float(jnp.sqrt(variance))
    return domains | {"H": (centre - reach, centre + reach)}


def funnel(variant: str = "linear", max_size: int | None = None, seed: int = 0) -> CausalSystem:
    """Build the funnel, `linear` or `nonlinear`.

    All single variables and all pairs of sources are explored.
    """
    if variant not in ("linear", "nonlinear"):
        raise ArgumentError(f"funnel has no variant {variant!r}; use 'linear' or 'nonlinear'")
    is_linear, coefficients = variant == "linear", draw_coefficients(seed)
    if is_linear:
        sem = linear_sem(coefficients)
        domains = population_domains(GRAPH, sem, (*SOURCES, *FEEDS, "H"))
        exact = partial(network_response, *ancestral_part(GRAPH, sem, "Y"))
    else:
        domains, exact = nonlinear_domains(coefficients), partial(nonlinear_response, coefficients)
    problem = Problem(GRAPH, "Y", domains=domains, sets=SETS if max_size is None else max_size)
    truth = partial(model, coefficients, is_linear)
    name, source = f"funnel-{variant}-{seed}", "ours, after the paper's funnel"
    # An analyst would begin with processes where a plot of the data is curved: downstream of H.
    mechanisms = "linear" if is_linear else "gp"
    return CausalSystem(name, problem, truth, exact, is_linear, source, mechanisms)
