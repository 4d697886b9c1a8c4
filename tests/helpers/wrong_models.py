"""Data of causal systems that are additive with constant Gaussian noise, and of some that are not.

Each is a function of a seed and the number of observations that returns a problem and its data.
"""

import numpy as np

import causal_bo_ppl as cb

PAIR = cb.Problem(cb.CausalGraph.parse("A -> Y; B -> Y"), "Y", domains={"A": (-2, 2), "B": (-2, 2)})
CHAIN = cb.Problem(cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-2, 2), "Z": (-2, 2)})
FRONT = cb.Problem(
    cb.CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", domains={"X": (-2, 2)}, sets=[("X",)]
)
FIVE = cb.Problem(
    cb.CausalGraph.parse("A -> B; A -> C; A -> D; B -> D; C -> D; B -> Y; C -> Y; D -> Y"),
    "Y",
    domains={"A": (-2, 2), "B": (-2, 2), "D": (-2, 2)},
)


def data_of(problem, **columns):
    values = np.column_stack([columns[name] for name in problem.graph.nodes])
    return cb.Data(problem.graph.nodes, problem.target, values, np.zeros(values.shape, bool))


def pair(mean, sd=1.0, correlation=0.0):
    """Y = mean(A, B) + e."""

    def make(seed, n=100):
        a, other, e = np.random.default_rng(seed).normal(size=(3, n))
        b = correlation * a + np.sqrt(1 - correlation**2) * other
        return PAIR, data_of(PAIR, A=a, B=b, Y=mean(a, b) + sd * e)

    return make


def chain(first, second, sd, is_exponential=False):
    """Z = first(X) + sd(X) e, Y = second(Z) + 0.3 e'."""

    def make(seed, n=100):
        draws = np.random.default_rng(seed)
        x = draws.normal(size=n)
        e = draws.exponential(size=n) - 1 if is_exponential else draws.normal(size=n)
        z = first(x) + sd(x) * e
        return CHAIN, data_of(CHAIN, X=x, Z=z, Y=second(z) + 0.3 * draws.normal(size=n))

    return make


def front(interaction):
    """X and Y have the latent cause U, and Z U is added to Y."""

    def make(seed, n=100):
        u, d, e, f = np.random.default_rng(seed).normal(size=(4, n))
        x = u + 0.3 * d
        z = 0.6 * x + 0.8 * e
        return FRONT, data_of(FRONT, X=x, Z=z, Y=z + u + interaction * z * u + 0.3 * f)

    return make


def five(shape, tails=None):
    """Five variables, additive; tails: degrees of freedom of the noise, 0 for an exponential."""

    def make(seed, n=100):
        draws = np.random.default_rng(seed)
        if tails == 0:
            noise = draws.exponential(size=(5, n)) - 1
        else:
            noise = draws.normal(size=(5, n)) if tails is None else draws.standard_t(tails, (5, n))
        a, b, c, d, y = noise
        b = shape(a) + 0.7 * b
        c = -0.5 * shape(a) + 0.7 * c
        d = 0.6 * shape(b) + 0.5 * c - 0.4 * a + 0.7 * d
        return FIVE, data_of(FIVE, A=a, B=b, C=c, D=d, Y=shape(d) + 0.5 * shape(c) - 0.3 * b + y)

    return make


def same(x):
    return x


def wave(x):
    return np.sin(1.3 * x) + 0.3 * x


SOUND_LINEAR = {
    "pair": pair(lambda a, b: a - b),
    "correlated pair": pair(lambda a, b: a - b, correlation=0.9),
    "chain": chain(same, same, np.ones_like),
    "five": five(same),
}
SOUND_NONLINEAR = {
    "pair": pair(lambda a, b: np.sin(2 * a) + np.abs(b), sd=0.5),
    "correlated pair": pair(lambda a, b: np.sin(2 * a) + np.exp(0.7 * b), sd=0.5, correlation=0.8),
    "chain": chain(np.sin, lambda z: 0.5 * z**2, lambda x: 0.5 + 0 * x),
    "front door": front(0.0),
}
INTERACTIONS = {
    "product": pair(lambda a, b: a * b + 0.5 * a),
    "front door": front(1.0),
    "gate": pair(lambda a, b: 1.5 * a * (b > 0), sd=0.5),
    "saturation": pair(lambda a, b: a * np.tanh(2 * b) + np.sin(a), sd=0.5),
    "square": pair(lambda a, b: 0.7 * a * b**2, sd=0.5),
}
VARYING_NOISE = {
    "before a square": chain(same, lambda z: 0.5 * z**2, lambda x: 0.2 + 0.6 * np.abs(x)),
    "before a line": chain(same, same, lambda x: 0.1 + 0.5 * np.abs(x)),
    "growing": chain(np.sin, same, lambda x: 0.5 * np.exp(0.6 * x)),
}
EXPONENTIAL_NOISE = chain(same, lambda z: np.exp(z / 2), np.ones_like, is_exponential=True)
