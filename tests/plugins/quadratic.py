"""User-defined mechanisms: V = a + b x + c x^2 + e along a chain X -> Z -> Y."""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm, qmc

import causal_bo_ppl as cb

NORMALS = norm.ppf(qmc.Sobol(1, rng=7).random(128))[:, 0]


def step(theta, x):
    """Mean and sd of a variable whose cause is x; theta: a, b, c, log sd."""
    return theta[0] + theta[1] * x + theta[2] * x**2, jnp.exp(theta[3])


def log_rows(psi, values, free):
    """(n, 3) log densities of Z given X and of Y given Z."""
    z = jax.scipy.stats.norm.logpdf(values[:, 1], *step(psi[:4], values[:, 0]))
    y = jax.scipy.stats.norm.logpdf(values[:, 2], *step(psi[4:], values[:, 1]))
    return jnp.where(free, jnp.stack([jnp.zeros(len(values)), z, y], axis=1), 0.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuadraticProgram:
    """Effects average Y over the noise of Z, so that they depend on its sd."""

    def effects(self, theta, batch):
        mean, sd = step(theta[:4], jnp.asarray(batch.value)[:, :1])
        z = jnp.where(batch.mask[:, 1:2], batch.value[:, 1:2], mean + sd * NORMALS[None])
        return step(theta[4:], z)[0].mean(axis=1)

    def linearize(self, theta, batch):
        return self.effects(theta, batch), jax.jacrev(self.effects)(theta, batch)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuadraticDensity:
    """The coordinates psi are theta itself, N(0, 3^2) a priori."""

    values: jax.Array
    free: jax.Array

    def log_prior(self, psi):
        return -0.5 * ((psi / 3) ** 2).sum()

    def log_likelihood(self, psi):
        return log_rows(psi, self.values, self.free).sum()

    def theta(self, psi):
        return psi


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """The model of one problem, which is its own response map and its own prior."""

    data: cb.Data
    nodes, sets = ("X", "Z", "Y"), (("X",), ("Z",), ("X", "Z"))
    learned = np.array([False, True, True])
    is_affine, is_linear, program = False, False, QuadraticProgram()
    names = coordinates = tuple(f"{part}[{v}]" for v in "ZY" for part in ("a", "b", "c", "log sd"))
    prior = response = property(lambda self: self)

    @cached_property
    def density(self):
        return QuadraticDensity(self.data.values, ~self.data.intervened)

    def canonical(self):
        return "quadratic"

    def batch(self, queries):
        return queries

    def draws(self, psi):
        return np.asarray(psi)

    theta = draws

    def log_densities(self, draws, values, free):
        return np.asarray(jax.vmap(log_rows, (0, None, None))(draws, values, free))

    def replicate(self, draws, queries, key):
        rows = np.array(jax.random.normal(key, (len(draws), *queries.mask.shape)))
        for at, start in ((0, None), (1, 0), (2, 4)):
            if start is not None:
                mean, sd = step(draws[:, start : start + 4].T[:, :, None], rows[:, :, at - 1])
                rows[:, :, at] = mean + sd * rows[:, :, at]
            rows[:, :, at] = np.where(queries.mask[:, at], queries.value[:, at], rows[:, :, at])
        return rows

    def outcome_variances(self, draws, queries):
        same = np.repeat(draws.mean(axis=0)[None], 4_000, axis=0)
        return self.replicate(same, queries, jax.random.key(0))[:, :, 2].var(axis=0)

    def with_observations(self, rows):
        return replace(self, data=self.data.join(rows))


class Quadratic:
    name = "quadratic"

    def bind(self, task):
        if len(task.outcomes.values) or task.parameters or task.prior or not task.intercepts:
            raise cb.errors.ModelError("quadratic mechanisms take observations and their own prior")
        return QuadraticModel(task.data)
