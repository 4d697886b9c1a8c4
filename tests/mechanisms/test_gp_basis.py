"""Nonlinear mechanisms: their basis, and the density of their parameters.

Internals: basis, evidence and density are compared with dense formulas below `cb.fit`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.contrib.hsgp.laplacian import eigenfunctions
from numpyro.contrib.hsgp.spectral_densities import (
    diag_spectral_density_matern,
    diag_spectral_density_squared_exponential,
)

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import no_outcomes
from causal_bo_ppl.mechanisms import gp_basis as basis
from causal_bo_ppl.mechanisms import gp_regressions as evidence
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task

KERNELS = tuple(basis.SMOOTHNESS)
FEW = cb.GP(functions=8)
pytestmark = pytest.mark.heavy


def bind(problem, data, mechanisms):
    none = no_outcomes(len(problem.graph.nodes))
    return read_mechanisms(mechanisms).bind(Task(problem, data, none))


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="module")
def data(toy):
    return toy.observe(100, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("columns, functions", [((0,), (6,)), ((0, 1), (3, 4))])
def test_basis_and_spectrum_are_those_of_numpyro(kernel, columns, functions):
    middle, half = np.array([0.5, 0.0]), np.array([2.0, 3.0])
    frame = basis.Frame(np.zeros(2), middle, half, np.zeros(2), np.zeros(2))
    group, chosen = basis.Group(columns, functions, kernel), list(columns)
    x = np.random.default_rng(0).uniform(-1, 1, size=(5, 2))
    ends = (basis.BOUNDARY_FACTOR * half[chosen]).tolist()
    theirs = jax.jit(lambda x: eigenfunctions(x, ends, list(functions)))((x - middle)[:, chosen])
    ours = jax.jit(lambda *x: basis.sines(group, frame, list(x)))(*x.T)
    np.testing.assert_allclose(ours, theirs, atol=1e-13)
    scales = np.log([1.3, 0.7, 0.9][: 1 + len(chosen)])

    def spectrum(lengths):
        options = (1.3**2, lengths, ends, list(functions), len(chosen))  # their alpha is a variance
        if kernel == "squared_exponential":
            return diag_spectral_density_squared_exponential(*options)
        return diag_spectral_density_matern(basis.SMOOTHNESS[kernel], *options)

    ours = jax.jit(lambda scales: jnp.exp(basis.log_spectrum(group, frame, scales)))(scales)
    np.testing.assert_allclose(ours, jax.jit(spectrum)(np.exp(scales[1:])), rtol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_basis_has_the_covariance_of_the_exact_process_where_it_resolves_the_lengthscale(kernel):
    half, length, count = 3.0, 1.0, 40
    frame = basis.Frame(np.zeros(1), np.zeros(1), np.array([half]), np.zeros(1), np.zeros(1))
    group = basis.Group((0,), (count,), kernel)
    x = np.linspace(-half, half, 31)
    waves = np.asarray(jax.jit(lambda x: basis.sines(group, frame, [x]))(x))
    variances = np.exp(jax.jit(partial(basis.log_spectrum, group, frame))(np.zeros(2)))
    exact = basis.covariance(kernel, np.abs(x[:, None] - x) / length)
    limit = {"squared_exponential": 1e-3, "matern52": 1e-2, "matern32": 4e-2}[kernel]
    assert np.abs((waves * variances) @ waves.T - exact).max() < limit


@pytest.fixture(scope="module")
def joined_model(joined):
    choices = {"C": cb.GP(kernel="matern52", functions=6), "A": "linear", "B": "linear"}
    choices["Y"] = cb.GP(groups=[("A", "B")], functions=4)
    return bind(*joined, choices)


def test_fast_mean_is_features_times_coefficients(joined, joined_model):
    values = 1.5 * joined[1].values  # some beyond the data and beyond the box
    rng = np.random.default_rng(1)
    for equation, setting, _ in joined_model.bound:
        if equation.causes:
            inputs = [values[:, cause] for cause in equation.causes]
            coefficients = rng.normal(size=equation.form.size)
            features, mean = (
                jax.jit(partial(function, equation.form, setting.frame))
                for function in (basis.features, basis.mean)
            )
            slow, fast = features(inputs) @ coefficients, mean(coefficients, inputs)
            np.testing.assert_allclose(fast, slow, atol=1e-11)


def test_derivatives_of_the_evidence_are_those_of_its_values(toy, data):
    equation, _, known = bind(toy.problem, data, FEW).bound[0]
    eta, step = np.asarray(known.prior.centre) + 0.3, 1e-5
    known = jax.tree.map(jnp.asarray, known)
    slope = jax.jit(jax.value_and_grad(partial(evidence.loss, equation.form, known)))
    ends, others = ([slope(eta + sign * way) for way in step * np.eye(4)] for sign in (1, -1))
    rises = [one - other for (one, _), (other, _) in zip(ends, others, strict=True)]
    np.testing.assert_allclose(slope(eta)[1], np.array(rises) / (2 * step), rtol=1e-5)
    hessian = np.asarray(jax.jit(jax.jacfwd(lambda eta: slope(eta)[1]))(eta))
    differences = [
        (one - other) / (2 * step) for (_, one), (_, other) in zip(ends, others, strict=True)
    ]
    np.testing.assert_allclose(hessian, differences, rtol=1e-4, atol=1e-4)
