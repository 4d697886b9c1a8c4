"""Twelve causal systems that break one assumption each, and the same systems unbroken.

Each is a function of a seed that returns what `cb.validate` takes: a posterior, or a problem with
its data and options. CASES names the card that stands for the assumption, and the size of the data.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import causal_bo_ppl as cb

parse = cb.CausalGraph.parse
CHAIN = cb.Problem(parse("X -> Z -> Y"), "Y", domains={"X": (-2, 2), "Z": (-2, 2)})
SEVERAL = cb.Problem(
    parse("A -> B; A -> C; B -> D; C -> D; B -> Y; C -> Y; D -> Y"),
    "Y",
    domains={"A": (-2, 2), "B": (-2, 2), "D": (-2, 2)},
)
ENTANGLED = cb.Problem(parse("A -> X -> Y; A -> Y"), "Y", domains={"X": (-1, 1)})
INSTRUMENT = cb.Problem(
    parse("I -> X -> Y; X <-> Y"), "Y", domains={"X": (-1, 1)}, identifiable_only=True
)
WAVE = cb.Problem(parse("X -> Y"), "Y", domains={"X": (-2, 2)})


def data_of(problem, intervened=(), **columns):
    values = np.column_stack([columns[name] for name in problem.graph.nodes])
    marks = np.zeros(values.shape, bool)
    for name, rows in intervened:
        marks[rows, problem.graph.index(name)] = True
    return cb.Data(problem.graph.nodes, problem.target, values, marks)


def chain_data(seed, n, broken=False, *, shape=None, noise=None, direct=0.0, latent=0.0):
    """X -> Z -> Y, with an arrow X -> Y, a latent cause, another shape or other noise if broken."""
    draws = np.random.default_rng(seed)
    x, z, y, u = draws.normal(size=(4, n))
    if broken and noise is not None:
        z, y = noise(draws, n)
    strength = latent if broken else 0.0
    x = x + strength * u
    mean = shape(x) if broken and shape is not None else 0.8 * x
    scale = 0.3 + 0.6 * np.abs(x) if broken and noise is VARYING else 0.6
    z = mean + scale * z
    y = -1.2 * z + (direct if broken else 0.0) * x + strength * u + 0.6 * y
    return data_of(CHAIN, X=x, Z=z, Y=y)


def VARYING(draws, n):  # noqa: N802
    return draws.normal(size=(2, n))


def missing_edge(seed, broken):
    return (CHAIN, chain_data(seed, 200, broken, direct=0.5)), {}


def hidden_cause(seed, broken):
    return (CHAIN, chain_data(seed, 400, broken, latent=0.8)), {}


def nonlinear(seed, broken):
    return (CHAIN, chain_data(seed, 200, broken, shape=lambda x: 0.8 * x + 0.4 * x**2)), {}


def heavy_tails(seed, broken):
    noise = lambda draws, n: draws.standard_t(3, (2, n))  # noqa: E731
    return (CHAIN, chain_data(seed, 300, broken, noise=noise)), {}


def no_overlap(seed, broken):
    a, e, f = np.random.default_rng(seed).normal(size=(3, 200))
    x = a + (0.05 if broken else 0.7) * e
    return (ENTANGLED, data_of(ENTANGLED, A=a, X=x, Y=x - a + 0.5 * f)), {}


def weak_instrument(seed, broken):
    i, u, e, f = np.random.default_rng(seed).normal(size=(4, 200))
    x = (0.05 if broken else 1.0) * i + u + 0.5 * e
    data = data_of(INSTRUMENT, I=i, X=x, Y=0.7 * x + u + 0.5 * f)
    prior = cb.priors.FixedPrior()
    return (cb.fit(INSTRUMENT, data, method="laplace", linear=True, prior=prior, key=seed),), {}


def several_data(seed, n):
    a, b, c, d, y = np.random.default_rng(seed).normal(size=(5, n))
    b, c = a + 0.7 * b, -0.5 * a + 0.7 * c
    d = 0.6 * b + 0.5 * c + 0.7 * d
    return data_of(SEVERAL, A=a, B=b, C=c, D=d, Y=d + 0.5 * c - 0.3 * b + y)


def too_few(seed, broken):
    return (SEVERAL, several_data(seed, 12 if broken else 200)), {}


def drifted(seed, broken):
    """Twenty experiments on X, in which the mechanism of Z is another one if broken."""
    plain = chain_data(seed, 200)
    draws = np.random.default_rng(10_000 + seed)
    x = np.linspace(-2, 2, 20)
    z = (0.0 if broken else 0.8) * x + (0.8 if broken else 0.0) + 0.6 * draws.normal(size=20)
    y = -1.2 * z + 0.6 * draws.normal(size=20)
    more = data_of(CHAIN, [("X", np.arange(20))], X=x, Z=z, Y=y)
    return (CHAIN, plain.join(more)), {}


def varying_noise(seed, broken):
    return (CHAIN, chain_data(seed, 200, broken, noise=VARYING)), {}


def wave(X):  # noqa: N803
    frequency = numpyro.sample("frequency", dist.Uniform(0.0, 12.0))
    return jnp.sin(frequency * X)


def slow_wave(X):  # noqa: N803
    frequency = numpyro.sample("frequency", dist.LogNormal(0.0, 0.2))
    return jnp.sin(frequency * X)


def multimodal(seed, broken):
    """Y = sin(w X) + e, of which six observations allow several frequencies w if broken."""
    draws = np.random.default_rng(seed)
    x = np.linspace(-2, 2, 6) if broken else draws.uniform(-2, 2, 60)
    y = np.sin(x) + 0.6 * draws.normal(size=len(x))
    mechanisms = {"Y": wave if broken else slow_wave}
    method = cb.NUTS(warmup=1000, draws=1000, progress=False)
    data = data_of(WAVE, X=x, Y=y)
    return (cb.fit(WAVE, data, mechanisms=mechanisms, method=method, key=seed),), {}


def wrong_prior(seed, broken):
    prior = cb.priors.FixedPrior(slopes={("Z", "Y"): (1.2 if broken else -1.2, 0.1)})
    return (CHAIN, chain_data(seed, 200)), {"prior": prior}


def two_groups(seed, broken):
    data = chain_data(seed, 300)
    if not broken:
        return (CHAIN, data), {}
    draws = np.random.default_rng(20_000 + seed)
    x, z = data.column("X"), data.column("Z")
    slope = np.where(draws.uniform(size=300) < 0.4, 0.6, -1.2)
    y = slope * z + 0.4 * draws.normal(size=300)
    return (CHAIN, data_of(CHAIN, X=x, Z=z, Y=y)), {}


class BrokenCase(NamedTuple):
    """A system, the cards of which one does not pass where it is broken, and how many data."""

    make: object
    card: str
    observations: str


CASES = {
    "a missing edge": BrokenCase(missing_edge, "causal graph", "200"),
    "a hidden common cause": BrokenCase(hidden_cause, "causal graph", "400"),
    "a nonlinear mechanism": BrokenCase(nonlinear, "posterior predictive", "200"),
    "heavy tails": BrokenCase(heavy_tails, "posterior predictive", "300"),
    "no overlap": BrokenCase(no_overlap, "overlap", "200"),
    "a weak instrument": BrokenCase(weak_instrument, "instruments", "200"),
    "too few observations": BrokenCase(too_few, "sample size", "12, unbroken 200"),
    "a drifted mechanism": BrokenCase(drifted, "invariance", "200 and 20 experiments"),
    "varying noise": BrokenCase(varying_noise, "noise", "200"),
    "a multimodal posterior": BrokenCase(multimodal, "posterior, Gaussian error", "6, unbroken 60"),
    "a wrong prior": BrokenCase(wrong_prior, "prior sensitivity", "200"),
    "two groups": BrokenCase(two_groups, "two groups", "300"),
}
