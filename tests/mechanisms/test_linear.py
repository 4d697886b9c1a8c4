"""Linear structural equation models: moments and means under interventions.

Internals: moments of a linear SEM are compared with formulas below the systems.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import oracles

import causal_bo_ppl as cb
from causal_bo_ppl.mechanisms.linear_equations import (
    LinearSEM,
    implied_covariance,
    implied_mean,
    mutilated_means,
)
from causal_bo_ppl.models.quadrature import normal_mean


def random_sem(seed, size=6):
    draws = np.random.default_rng(seed)
    root = draws.normal(size=(size, size))
    weights = np.triu(draws.normal(size=(size, size)), 1)
    return LinearSEM(
        jnp.array(weights), jnp.array(draws.normal(size=size)), jnp.array(root @ root.T)
    )


@pytest.mark.parametrize("seed", range(5))
def test_mean_and_covariance_agree_with_dense_algebra(seed):
    sem = random_sem(seed)
    inverse = np.linalg.inv(np.eye(6) - np.array(sem.weights).T)
    np.testing.assert_allclose(implied_mean(sem), inverse @ sem.intercepts, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        implied_covariance(sem), inverse @ sem.noise @ inverse.T, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("seed", range(5))
def test_means_after_surgery_agree_with_the_solved_mutilated_system(seed):
    sem, draws = random_sem(seed), np.random.default_rng(seed)
    mask = draws.uniform(size=(40, 6)) < 0.4
    value = np.where(mask, draws.normal(size=(40, 6)), 0.0)
    found = mutilated_means(sem, cb.problem.Queries(mask, value))
    for row in range(40):
        columns = np.flatnonzero(mask[row])
        expected = [
            oracles.dense_effect(sem.weights, sem.intercepts, t, columns, value[row, columns])
            for t in range(6)
        ]
        np.testing.assert_allclose(found[row], expected, rtol=1e-10, atol=1e-10)


def test_gaussian_means_agree_with_closed_forms():
    mean, sd = jnp.array([0.3, -2.0, 5.0]), jnp.array([1.0, 0.5, 3.0])
    np.testing.assert_allclose(
        normal_mean(jnp.cos, mean, sd), jnp.exp(-(sd**2) / 2) * jnp.cos(mean), atol=1e-14
    )
    np.testing.assert_allclose(normal_mean(jnp.exp, mean, sd), jnp.exp(mean + sd**2 / 2), rtol=1e-8)
    np.testing.assert_allclose(normal_mean(jnp.square, mean, sd), mean**2 + sd**2, rtol=1e-13)
    np.testing.assert_allclose(normal_mean(jnp.cos, 0.7, 0.0), jnp.cos(0.7), rtol=1e-13)
