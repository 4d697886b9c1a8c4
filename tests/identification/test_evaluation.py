"""What a verified estimand comes to at given moments.

Internals: the free names of an estimand are read from its expression.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers.identified_cases import NAPKIN, identify, random_moments

import causal_bo_ppl as cb


def test_members_that_others_cut_off_have_slope_zero_and_share_the_estimand():
    ids = cb.identify(cb.CausalGraph.parse("X -> Z -> Y"), "Y", ["Z", ("X", "Z")])
    assert ids["X", "Z"].effective == ("Z",) and ids["Z", "X"].estimand == ids["Z"].estimand
    covariance = np.array([[1.0, 0.8, 0.4], [0.8, 2.0, 1.0], [0.4, 1.0, 1.5]])
    assert ids["X", "Z"].evaluate(covariance) == {"X": 0.0, "Z": pytest.approx(0.5)}
    assert ids["Z"].text == "P(Y | Z)"  # nothing dangles: X has no effect once Z is set


def test_dangling_variables_are_averaged_out_before_evaluation():
    """Under an estimated covariance the napkin's ratio depends on Z; what is returned does not."""
    found = identify(NAPKIN)
    from causal_bo_ppl.identification.y0_adapter import free_names

    assert free_names(found.estimand) == {"X", "Y"}
    draws = np.random.default_rng(7)
    sample = draws.normal(size=(50, 4)) @ draws.normal(size=(4, 4))
    assert np.isfinite(found.evaluate(np.cov(sample.T))["X"])


def test_napkin_slope_is_the_conditional_instruments_ratio():
    graph, found = cb.CausalGraph.parse(NAPKIN), identify(NAPKIN)
    _, covariance, slopes, _, _ = random_moments(np.random.default_rng(8), graph, ("X",), "Y")
    w, z, x, y = (graph.index(name) for name in "WZXY")
    given = covariance - np.outer(covariance[:, w], covariance[w]) / covariance[w, w]
    assert found.evaluate(covariance)["X"] == pytest.approx(given[y, z] / given[x, z], rel=1e-9)
    assert found.evaluate(covariance) == pytest.approx(slopes, rel=1e-9)


def test_back_door_slope_is_least_squares_on_any_covariance():
    draws = np.random.default_rng(9)
    rows = draws.normal(size=(40, 3)) @ draws.normal(size=(3, 3)) + 2.0
    found = identify("Z -> X; Z -> Y; X -> Y")
    z, x, y = rows.T
    coefficients, *_ = np.linalg.lstsq(np.column_stack([x, z, np.ones(40)]), y, rcond=None)
    covariance, mean = np.cov(rows.T), rows.mean(axis=0)
    assert found.evaluate(covariance)["X"] == pytest.approx(coefficients[0], rel=1e-10)
    by_hand = coefficients @ [0.7, z.mean(), 1.0]
    assert found.evaluate(covariance, mean, {"X": 0.7}) == pytest.approx(by_hand, rel=1e-10)


def test_empty_set_is_the_observational_mean():
    found = cb.identify(cb.CausalGraph.parse("X -> Y; X <-> Y"), "Y", [()])[()]
    assert found.identifiable and found.text == "P(Y)" and found.query == "P(Y)"
    assert found.evaluate(np.eye(2)) == {}
    assert found.evaluate(np.eye(2), np.array([1.0, 2.5]), {}) == 2.5


@pytest.mark.heavy
def test_evaluation_is_traced_once_and_differentiated_exactly():
    found = identify(NAPKIN)
    _, covariance, _, _, _ = random_moments(np.random.default_rng(10), found.graph, ("X",), "Y")
    traced = []

    @jax.jit
    def slope(matrix):
        traced.append(matrix.shape)
        return found.evaluate(matrix)["X"]

    assert slope(jnp.asarray(covariance)) == pytest.approx(
        found.evaluate(covariance)["X"], rel=1e-10
    )
    gradient = np.asarray(jax.grad(slope)(jnp.asarray(covariance)))
    draws = np.random.default_rng(11)
    for _ in range(3):
        step = draws.normal(size=(4, 4))
        step = 1e-6 * (step + step.T)
        up, down = (found.evaluate(covariance + sign * step)["X"] for sign in (1, -1))
        assert np.sum(gradient * step) == pytest.approx((up - down) / 2, rel=1e-5, abs=1e-12)
        slope(jnp.asarray(covariance + step))
    assert len(traced) == 1  # new numbers compile nothing


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_leading_axes_of_the_covariance_are_a_batch(asarray):
    found, draws = identify("X -> Z -> Y; X <-> Y"), np.random.default_rng(12)
    moments = [random_moments(draws, found.graph, ("X",), "Y")[:2] for _ in range(6)]
    mean, covariance = (
        np.stack(part).reshape(2, 3, *part[0].shape) for part in zip(*moments, strict=True)
    )
    slopes = found.evaluate(asarray(covariance))["X"]
    responses = found.evaluate(asarray(covariance), asarray(mean), {"X": 2.0})
    assert slopes.shape == responses.shape == (2, 3)
    assert slopes[1, 2] == pytest.approx(found.evaluate(covariance[1, 2])["X"], rel=1e-12)
    assert responses[1, 2] == pytest.approx(
        found.evaluate(covariance[1, 2], mean[1, 2], {"X": 2.0}), rel=1e-12
    )


@pytest.mark.parametrize(
    ("covariance", "fault"),
    [
        (np.eye(2), r"shape \(\.\.\., 3, 3\) in the order X, Z, Y"),
        (np.full((3, 3), np.nan), "finite and symmetric"),
        (np.triu(np.ones((3, 3))), "finite and symmetric"),
        (np.ones((3, 3)), "positive definite"),
        ([[1.0, 2.0], [3.0]], "ragged rows"),
        ("abc", "must hold real numbers, got <U3"),
        (1j * np.eye(3), "must hold real numbers, got complex128"),
        (
            pd.DataFrame(np.eye(3), index=list("XZY"), columns=list("XZW")),
            "its labels must be X, Z, Y",
        ),
    ],
)
def test_unusable_covariance_is_refused(covariance, fault):
    with pytest.raises(cb.errors.DataError, match=fault):
        identify("X -> Z -> Y").evaluate(covariance)


def test_units_do_not_matter():
    found, draws = identify(NAPKIN), np.random.default_rng(16)
    _, covariance, _, _, _ = random_moments(draws, found.graph, ("X",), "Y")
    scale = np.array([1.0, 1e6, 1e-6, 1e6])  # W, Z, X, Y
    slopes = found.evaluate(covariance * np.outer(scale, scale))
    assert slopes["X"] == pytest.approx(found.evaluate(covariance)["X"] * 1e12, rel=1e-9)


def test_response_curve_is_one_call_and_can_be_traced():
    found, draws = identify("X -> Z -> Y; X <-> Y"), np.random.default_rng(17)
    mean, covariance, slopes, _, _ = random_moments(draws, found.graph, ("X",), "Y")
    curve = found.evaluate(covariance, mean, {"X": np.linspace(-1, 1, 5)})
    assert curve == pytest.approx(
        [found.evaluate(covariance, mean, {"X": x}) for x in np.linspace(-1, 1, 5)]
    )
    slope = jax.grad(
        lambda x: found.evaluate(jnp.asarray(covariance), jnp.asarray(mean), {"X": x})
    )(0.3)
    assert slope == pytest.approx(slopes["X"], rel=1e-9)
    with pytest.raises(cb.errors.DomainError, match="is no intervention"):
        found.evaluate(covariance, mean, {"X": np.array([0.0, np.nan])})
    with pytest.raises(cb.errors.DomainError, match="must be real numbers, got <U1"):
        found.evaluate(covariance, mean, {"X": np.array(["a"])})


def test_tables_are_read_by_their_labels_and_rounding_is_no_asymmetry():
    draws, found = np.random.default_rng(14), identify("Z -> X; Z -> Y; X -> Y")
    rows = pd.DataFrame(
        draws.normal(size=(30, 3)) @ draws.normal(size=(3, 3)) + 1.0, columns=list("ZXY")
    )
    other = rows[["Y", "X", "Z"]]
    assert found.evaluate(other.cov()) == pytest.approx(
        found.evaluate(rows.cov().to_numpy()), rel=1e-12
    )
    by_label = found.evaluate(other.cov(), other.mean(), {"X": 0.3})
    assert by_label == pytest.approx(
        found.evaluate(rows.cov().to_numpy(), rows.mean().to_numpy(), {"X": 0.3})
    )
    rounded = np.eye(3)
    rounded[0, 1] = -2.8e-17
    assert found.evaluate(rounded) == {"X": pytest.approx(0.0, abs=1e-15)}
    assert found.evaluate(jnp.eye(3, dtype=jnp.float32))["X"].dtype == jnp.float64


@pytest.mark.parametrize(
    ("options", "error", "fault"),
    [
        ({"mean": np.zeros(3)}, cb.errors.DomainError, "both a mean and a query"),
        (
            {"mean": np.zeros(2), "query": {"X": 1.0}},
            cb.errors.DataError,
            r"mean needs the shape \(3\)",
        ),
        (
            {"mean": np.zeros(3), "query": {"x": 1.0}},
            cb.errors.DomainError,
            "unknown intervened variable 'x'",
        ),
        ({"mean": np.zeros(3), "query": {}}, cb.errors.DomainError, "lacks a value for X"),
        ({"mean": np.zeros(3), "query": 1.0}, cb.errors.DomainError, "a query is a mapping"),
        (
            {"mean": np.zeros(3), "query": {"X": np.nan}},
            cb.errors.DomainError,
            r"do\(X = nan\) is no intervention",
        ),
        (
            {"mean": np.full(3, np.inf), "query": {"X": 1.0}},
            cb.errors.DataError,
            "the mean must be finite",
        ),
        (
            {"mean": np.zeros((2, 3)), "query": {"X": 1.0}},
            cb.errors.DataError,
            r"mean needs the shape \(3\)",
        ),
    ],
)
def test_unusable_query_is_refused(options, error, fault):
    with pytest.raises(error, match=fault):
        identify("X -> Z -> Y").evaluate(np.eye(3), **options)
