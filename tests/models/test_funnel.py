"""The funnel: exact responses against brute force, and its population.

Internals: coefficients, training sets and held-out sets are those of its module.
"""

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.models import funnel

load = cb.models.load


def effect(system, *interventions):
    return np.asarray(system.effect(system.problem.queries(list(interventions))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_nonlinear_funnel_agrees_with_brute_force_over_its_noise(seed):
    system, coefficients = (
        load("funnel", variant="nonlinear", seed=seed),
        funnel.draw_coefficients(seed),
    )
    interventions = [{"X1": 1.0}, {"X3": -2.0, "X6": 0.5}, {"M1": 0.7}, {"M3": -1.0}, {"H": 0.5}]
    for intervention, found in zip(interventions, effect(system, *interventions), strict=True):
        assert found == pytest.approx(funnel_by_grid(coefficients, intervention), abs=1e-6)
    expected = funnel_by_grid(coefficients, {})
    assert float(system.effect(system.problem.baseline())[0]) == pytest.approx(expected, abs=1e-6)


def funnel_by_grid(coefficients, intervention):
    """Integrate Y's mean over M1, M2, M3 on a three-dimensional Gauss-Legendre grid.

    H's noise damps its waves.
    """
    nodes, weights = np.polynomial.legendre.leggauss(160)
    nodes, weights = 8.5 * nodes, weights * np.exp(-((8.5 * nodes) ** 2) / 2)
    weights = weights / weights.sum()
    if "H" in intervention:
        return 2 * np.sin(intervention["H"]) + 0.3 * intervention["H"] ** 2
    values = []
    for name, pair in funnel.FEEDS.items():
        mean = sum(coefficients[x, name] * intervention.get(x, 0.0) for x in pair)
        variance = 1 + sum(2 * coefficients[x, name] ** 2 for x in pair if x not in intervention)
        values.append(
            np.full(160, intervention[name])
            if name in intervention
            else mean + np.sqrt(variance) * nodes
        )
    m1, m2, m3 = np.meshgrid(*values, indexing="ij")
    weight = np.einsum("i,j,k->ijk", weights, weights, weights)
    hub = np.tanh(m1) + 0.5 * m2 + np.sin(m3)
    return (weight * (2 * np.exp(-0.5) * np.sin(hub) + 0.3 * (hub**2 + 1))).sum()


def test_funnels_differ_by_seed_and_keep_their_coefficients_in_range():
    for seed in range(20):
        sizes = np.abs(list(funnel.draw_coefficients(seed).values()))
        assert sizes.min() >= 0.5 and sizes.max() <= 1.5
    assert load("funnel", seed=1).optimum.value != load("funnel", seed=2).optimum.value
    problem = load("funnel").problem
    assert (
        set(funnel.TRAINING) | set(funnel.HELD_OUT) <= set(problem.sets) and len(problem.sets) == 25
    )
    assert len(problem.graph.bidirected) == 6 and len(funnel.HELD_OUT) == 19


@pytest.mark.parametrize("variant", ["linear", "nonlinear"])
@pytest.mark.heavy
def test_funnel_domains_are_two_standard_deviations_of_the_population(variant):
    system = load("funnel", variant=variant, seed=3)
    rows = system.observe(200_000, 1)
    for name, (low, high) in system.problem.domains.items():
        column = rows.column(name)
        error = column.std() / np.sqrt(len(rows))
        assert abs((low + high) / 2 - column.mean()) < 4.5 * error
        assert (high - low) / 4 == pytest.approx(column.std(), rel=0.01)


def test_latent_causes_of_the_funnel_show_in_the_covariance_of_its_observations():
    system, sem = load("funnel", seed=3), funnel.linear_sem(funnel.draw_coefficients(3))
    inverse = np.linalg.inv(np.eye(len(sem.intercepts)) - np.array(sem.weights).T)
    expected = inverse @ np.array(sem.noise) @ inverse.T
    values = system.observe(200_000, 1).values
    centred = values - values.mean(axis=0)
    errors = np.sqrt((centred**2).T @ centred**2 - len(values) * np.cov(values.T) ** 2) / len(
        values
    )
    assert (np.abs(np.cov(values.T) - expected) / errors).max() < 4.5
