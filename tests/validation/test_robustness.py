"""Other models: against closed forms, refits and a search over strengths with other code.

Internals: the equations under a latent cause are compared with the truth they came from.
"""

import numpy as np
import pandas as pd
import pytest
from validation.test_validation import CHAIN, chain_frame

import causal_bo_ppl as cb
from causal_bo_ppl.validation.robustness import latent_cause, regress_all

FOUR = cb.Problem(
    cb.CausalGraph.parse("A -> B; A -> C; B -> Y; C -> Y"),
    "Y",
    objective="max",
    domains={"A": (-1, 1), "B": (-1, 2), "C": (-2, 1)},
    sets=[("A",), ("B",), ("C",)],
)


def exact_columns(count, n=400):
    """Columns of mean 0 and variance 1 that are exactly uncorrelated."""
    raw = np.random.default_rng(3).normal(size=(n, count))
    return (np.linalg.qr(raw - raw.mean(axis=0))[0] * np.sqrt(n)).T


@pytest.fixture(scope="module")
def four():
    """B and Y have a latent cause of strength c = 0.5 that the graph lacks."""
    a, b, c, e = exact_columns(4)
    values = {"A": a, "B": 0.7 * a + b, "C": 0.9 * a + 0.5 * c}
    values["Y"] = 0.6 * values["B"] - 0.5 * values["C"] + 0.5 * b + 0.8 * e
    found = cb.validate(FOUR, pd.DataFrame(values), only=["robustness"], key=0)
    return found


def test_a_latent_cause_of_the_true_strength_gives_the_true_mechanism(four):
    equations = regress_all(four.subject)
    assert equations["Y"].coefficients[0] > 1.0  # confounded
    cause = latent_cause(equations, "B", "Y")
    true = cause.at(0.5)
    assert dict(zip(true.names, true.coefficients, strict=True)) == pytest.approx(
        {"b[B->Y]": 0.6, "b[C->Y]": -0.5, "a[Y]": 0.0}, abs=1e-9
    )
    assert cause.correlation(0.5) == pytest.approx(0.5 / np.hypot(0.5, 0.8))
    assert true.residual.std() == pytest.approx(np.hypot(0.5, 0.8))
    assert cause.estimate == pytest.approx(0.5)  # A is an instrument, so that the data know c
    assert cause.p_value(0.5) == pytest.approx(1.0) and cause.p_value(0.0) < 1e-3


def effects_by_hand(b_ab, b_ac, b_by, b_cy):
    """Effects of all vertices of FOUR, by hand, without intercepts."""
    both = {"A": (-1, 1), "B": (-1, 2), "C": (-2, 1)}
    slopes = {"A": b_ab * b_by + b_ac * b_cy, "B": b_by, "C": b_cy}
    return {(name, end): slopes[name] * end for name, ends in both.items() for end in ends}


def test_strength_is_that_of_a_search_with_other_code(four):
    table = four.robustness
    a, b, c, e = exact_columns(4)
    data = np.array([a, 0.7 * a + b, 0.9 * a + 0.5 * c])
    y = 0.6 * data[1] - 0.5 * data[2] + 0.5 * b + 0.8 * e

    def best_at(c):
        fitted = np.linalg.lstsq(data[1:].T, y - c * b, rcond=None)[0]
        by_hand = effects_by_hand(0.7, 0.9, *fitted)
        rest = y - data[1:].T @ fitted
        return max(by_hand, key=by_hand.get), c * b.std() / rest.std()

    ours, found = best_at(0.0)[0], []
    assert four.recommendation == {ours[0]: ours[1]}
    for direction in (1, -1):
        for size in np.linspace(0, 6, 6001):
            best, correlation = best_at(direction * size)
            if best != ours:
                found.append((abs(correlation), best))
                break
    strength, instead = min(found)
    row = table.loc["a latent cause of B and Y"]
    assert row["strength"] == pytest.approx(strength, abs=2e-3)
    assert row["recommended"] == f"do({instead[0]} = {instead[1]})"


def test_strength_of_a_bow_is_the_correlation_of_cause_and_effect():
    """The slope b - c vanishes at c = b, where the disturbance of Y is Y itself."""
    problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (-1, 1)})
    x, y = np.random.default_rng(0).normal(size=(2, 150))
    frame = pd.DataFrame({"X": x, "Y": 0.4 * x + y})
    table = cb.validate(problem, frame, only=["robustness"], key=0).robustness
    strength = table.loc["a latent cause of X and Y", "strength"]
    assert strength == pytest.approx(frame.corr().loc["X", "Y"])


def test_an_arrow_removed_is_a_fit_of_the_graph_without_it(four):
    row = four.robustness.loc["without B -> Y"]
    graph = cb.CausalGraph.parse("A -> B; A -> C; C -> Y")
    problem = cb.Problem(graph, "Y", objective="max", domains={"A": (-1, 1), "C": (-2, 1)})
    post = cb.fit(problem, four.subject.data.to_frame()[["A", "B", "C", "Y"]])
    best = cb.effects(post, problem.vertices())["mean"].max()
    assert row["best"] == pytest.approx(best, rel=1e-3)
    assert row["regret"] == pytest.approx(best - row["effect"], rel=1e-3)
    assert row["p_value"] < 1e-3 and row["verdict"] == "passed"  # the data exclude it


def test_a_weak_latent_cause_that_suffices_is_a_warning():
    """Z and W have nearly the same effect: the least confounding changes the choice."""
    graph = cb.CausalGraph.parse("Z -> Y; W -> Y")
    problem = cb.Problem(graph, "Y", domains={"Z": (-1, 1), "W": (-1, 1)}, sets=[("Z",), ("W",)])
    z, w, e = exact_columns(3)
    frame = pd.DataFrame({"Z": z, "W": w, "Y": -1.02 * z - w + 0.5 * e})
    found = cb.validate(problem, frame, only=["robustness"], key=0)
    assert found.robustness.loc["a latent cause of Z and Y", "strength"] < 0.1
    assert found["robustness"].verdict == "warning"
    assert "latent cause of Z and Y" in found["robustness"].text
    ax = cb.plots.draw_robustness(found.robustness)
    assert any("correlation" in text.get_text() for text in ax.texts)


def test_placebo_and_subsets_of_a_sound_model_recommend_the_same():
    table = cb.validate(CHAIN, chain_frame(), only=["robustness"], key=0).robustness
    same = table[table["kind"].isin(["placebo", "subset"])]
    assert len(same) == 11 and (same["regret"] == 0).all()
    effect = table.attrs["effect"]
    placebo = same.loc["a random variable as a cause of all", "effect"]
    assert placebo != effect and placebo == pytest.approx(effect, rel=0.05)
