"""Expected gain, runner-up and uncertainties of a suggestion against independent sums.

Internals: gains and reasons are compared with independent sums one by one.
"""

from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.acquisition import Context
from causal_bo_ppl.optimization.choosing import (
    Reasons,
    RegretReduction,
    choose,
    expected_row_gain,
    find_runner_up,
)
from causal_bo_ppl.surrogates.coupled import uncertainty_shares


@pytest.fixture(scope="module", params=["min", "max"])
def study(request):
    """A study of two causes that compete, so that an outcome may change the recommendation."""
    graph = cb.CausalGraph.parse("A -> Y; B -> Y; A -> B")
    domains = {"A": (-1.0, 1.0), "B": (-1.0, 1.0)}
    problem = cb.Problem(graph, "Y", request.param, domains=domains, sets=[["A"], ["B"]])
    rng = np.random.default_rng(0)
    a = rng.normal(size=15)
    b = 0.3 * a + rng.normal(size=15)
    y = 0.9 * a + b + rng.normal(size=15)
    order = {"A": a, "B": b, "Y": y}
    rows = np.column_stack([order[name] for name in graph.nodes])
    data = cb.Data(graph.nodes, "Y", rows, np.zeros_like(rows, bool))
    return cb.Study(problem, data, cb.Settings(report="model", learn_from="target"), key=0)


@pytest.mark.parametrize("reports", [(), (({"A": 1.0}, 0.7), ({"B": -1.0}, -1.5))])
def test_gain_of_an_outcome_is_the_mean_over_outcomes_that_are_drawn(study, reports):
    for each in reports:
        study = study.tell(*each)
    suggestion, sign = study.ask(), 1.0 if study.problem.objective == "max" else -1.0
    mean, covariance = study.surrogate.joint(study.problem.vertices())
    values = study.problem.interventions(study.problem.vertices())
    chosen, mean = values.index(suggestion.intervention), sign * mean
    variance = covariance[chosen, chosen] + study.state.noises(suggestion.query)[0]
    z = np.random.default_rng(0).normal(size=(200_000, 1))
    moved = mean + z * sign * covariance[chosen] / np.sqrt(variance)
    gains = moved.max(axis=1) - mean.max()
    error, gain = gains.std() / np.sqrt(len(gains)), suggestion.why.gain
    assert abs(gain.value - gains.mean()) < 4.5 * error + 1e-6 * suggestion.sd
    assert not gain.by_row and gain.standard_error == 0.0
    assert study.problem.objective == "min" or gain.value > 10 * error


@pytest.fixture(scope="module")
def close():
    """Two interventions are about equally good, and whole observations are used."""
    graph = cb.CausalGraph.parse("A -> Y; B -> Y; A -> B")
    domains = {"A": (-1.0, 1.0), "B": (-1.0, 1.0)}
    problem = cb.Problem(graph, "Y", "max", domains=domains, sets=[["A"], ["B"]])
    rng = np.random.default_rng(0)
    a, b, y = rng.normal(size=(3, 40))
    b = b + 0.3 * a
    frame = pd.DataFrame({"A": a, "B": b, "Y": 0.3 * a + b + y})
    return cb.Study(problem, cb.Data.from_frame(problem, frame), cb.Settings(report="model"), key=0)


def test_gain_of_a_whole_observation_is_the_closed_form_where_two_compete(close):
    vertices = close.problem.vertices()
    surrogate, query, other = close.surrogate, vertices[1], vertices[3]
    context = Context(surrogate, "max", vertices, other, informs_mechanisms=True)
    gain = expected_row_gain(context, query, jax.random.key(0))
    spread = np.sqrt(surrogate.mean_change_variances(query, query, other)[0, 0])
    ahead = float((surrogate.predict(query).mean - surrogate.predict(other).mean)[0])
    exact = spread * norm.pdf(ahead / spread) + ahead * norm.cdf(ahead / spread)
    assert abs(gain.value - exact) < 4.5 * gain.standard_error and gain.by_row
    assert 0 < gain.standard_error < 0.1 * exact
    assert (
        expected_row_gain(replace(context, informs_mechanisms=False), query, jax.random.key(0))
        is None
    )


@pytest.mark.slow
def test_gain_of_a_whole_observation_is_that_of_new_observations(close):
    post, problem, vertices = close.posterior, close.problem, close.problem.vertices()
    context = Context(close.surrogate, "max", vertices, vertices, informs_mechanisms=True)
    best = int(close.surrogate.predict(vertices).mean.argmax())
    models, _ = post.distribution.equations.draw(1_000, jax.random.key(1))
    for query in vertices[[1, 3]]:
        rows = post.distribution.model.replicate(models, post.upstream(query), jax.random.key(2))[
            :, 0
        ]
        columns, found = [problem.graph.index(name) for name in post.distribution.model.nodes], []
        for row in rows:
            whole = np.zeros((1, 3))
            whole[0, columns] = row
            data = cb.Data(problem.graph.nodes, "Y", whole, np.asarray(query.mask))
            after = cb.surrogates.couple(post.update(data)).predict(vertices).mean
            found.append(after.max() - after[best])
        error = np.std(found) / np.sqrt(len(found))
        gain = expected_row_gain(context, query, jax.random.key(0))
        assert abs(np.mean(found) - gain.value) < 0.25 * gain.value + 4.5 * error


def test_why_counts_whole_observations_where_their_gain_is_known(close):
    why = close.ask().why
    assert why.gain.by_row and why.learns_from_rows
    assert (
        "Its whole row is expected to reduce the regret of what is recommended by abo" in why.text
    )
    alone = cb.Study(
        close.problem, close.data, cb.Settings(report="model", learn_from="target"), key=0
    )
    assert not alone.ask().why.gain.by_row and "Its outcome is expected" in alone.ask().why.text
    numbers = close.tell({"A": -1.0}, -0.4)  # no whole observations are expected any more
    assert not numbers.ask().why.gain.by_row and not numbers.ask().why.learns_from_rows
    unknown = Reasons("", "", RegretReduction(0.5, 0.01), None, 1.0, learns_from_rows=True)
    assert (
        "Its outcome alone is expected" in unknown.text
        and "row is more informative." in unknown.text
    )


def test_why_holds_the_gain_of_the_suggestion(study):
    suggestion = study.ask()
    assert suggestion.why is suggestion.why
    again = study.ask().why
    assert again.gain == suggestion.why.gain
    is_sure = again.gain.value > 2 * again.gain.standard_error
    words = "expected to reduce the regret of what is" if is_sure else "hardly expected to change"
    assert words in suggestion.why.text
    low, high = suggestion.interval(0.9)
    assert f"90 % in [{low:.4g}, {high:.4g}]" in suggestion.why.text
    assert suggestion.why.cost == suggestion.cost == 1.0 and "It costs 1." in suggestion.why.text


def test_runner_up_is_the_second_best_of_all_vertices(study):
    [choice] = choose(study.state, 1)
    vertices = study.problem.vertices()
    mean, sd = study.surrogate.predict(vertices)
    sign = 1.0 if study.problem.objective == "max" else -1.0
    bounds = sign * mean + np.sqrt(2.0) * sd
    second = np.argsort(bounds)[-2]
    found = find_runner_up(choice)
    assert found.intervention == study.problem.interventions(vertices)[second]
    assert found.gap == pytest.approx(np.sort(bounds)[-1] - bounds[second])
    first = int(bounds.argmax())
    drawn = study.surrogate.sample(1, vertices, 20_000)
    share = (sign * drawn[:, second] > sign * drawn[:, first]).mean()
    assert abs(found.chance - share) < 4.5 * np.sqrt(0.25 / 20_000)


def test_gap_of_logarithms_is_a_share(close):
    settings = cb.Settings(acquisition="log-ei", report="model")
    study = cb.Study(close.problem, close.data, settings, key=0)
    [choice], runner_up = choose(study.state, 1), study.ask().why.runner_up
    both = study.problem.queries([study.ask().intervention, runner_up.intervention])
    first, second = np.exp(choice.search.rule.value(study.surrogate, both, choice.search.context))
    assert runner_up.is_log and f"value is {1 - second / first:.0%} lower" in study.ask().why.text
    assert not close.ask().why.runner_up.is_log


def test_there_is_no_runner_up_where_nothing_else_can_be_paid_for():
    graph = cb.CausalGraph.parse("A -> Y")
    problem = cb.Problem(graph, "Y", domains={"A": (0.0, 1.0)}, costs="magnitude")
    rng = np.random.default_rng(0)
    a = rng.normal(size=30)
    rows = np.column_stack([a, a + rng.normal(size=30)])
    data = cb.Data(graph.nodes, "Y", rows, np.zeros_like(rows, bool))
    suggestion = cb.Study(problem, data, cb.Settings(budget=1.0), key=0).ask()
    assert suggestion.why.runner_up is None and "Next came" not in suggestion.why.text


def test_uncertainties_are_the_squared_correlations_of_the_dense_gaussian(study):
    post, queries = study.posterior, study.problem.vertices()
    surrogate = cb.surrogates.couple(post)
    r = cb.response(post)
    jacobian = r.jacobian(post.mean, queries)
    covariance = post.covariance
    tried = study.problem.queries([{"A": 1.0}])
    row = r.jacobian(post.mean, tried)
    noise = 0.4 + float(surrogate.condition(tried, 0.5, 0.4).remainders[0])
    gain = covariance @ row.T / (row @ covariance @ row.T + noise)
    for given, now in ((surrogate, covariance), (None, covariance - gain @ row @ covariance)):
        expected = (jacobian @ now) ** 2 / np.outer(
            ((jacobian @ now) * jacobian).sum(axis=1), np.diag(now)
        )
        expected = np.where(jacobian == 0, 0.0, expected)  # what the effect does not depend on
        assert (expected == 0).any()
        found = uncertainty_shares(given or surrogate.condition(tried, 0.5, 0.4), queries)
        assert np.allclose(found, expected, atol=1e-6)


def test_uncertainties_are_named_largest_first_and_a_baseline_has_none(study):
    shares = study.ask().why.uncertainties
    assert (np.diff(shares.to_numpy()) <= 0).all() and set(shares.index) == set(
        study.posterior.names
    )
    assert f"rests on {shares.index[0]} (" in study.ask().why.text
    plain = cb.Study(study.problem.explore(2), study.data, cb.Settings.preset("bo"), key=0)
    assert not len(plain.ask().why.uncertainties) and "rests on" not in plain.ask().why.text


def test_suggestion_and_batch_have_tables(study):
    batch = study.ask(2)
    table = batch.to_frame()
    assert table.index.tolist() == [1, 2] and {"mean", "lower", "upper", "cost"} <= set(table)
    assert "<table" in batch._repr_html_() and "Chosen by" in batch[0]._repr_html_()
    assert repr(batch[0]).startswith("Suggestion(1: do(")
    assert isinstance(batch, tuple) and len(batch[:1]) == 1
