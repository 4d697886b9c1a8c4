"""Tables of effects: moments, draws, observed means, contrasts, and dicts."""

import numpy as np
import pytest
from scipy.stats import t as student

import causal_bo_ppl as cb


@pytest.fixture(scope="module")
def post(chain):
    return cb.fit(chain.problem, chain.observe(40, 0))


ASKED = [{"X": 1.0}, {"Z": 2.0}, {"X": -3.0}]


def test_moments_are_those_of_the_exact_kernel_and_of_draws(chain, post):
    table = cb.effects(post, ASKED)
    assert table["by"].tolist() == ["moments"] * 3
    assert np.allclose(table["sd"] ** 2, np.diag(cb.exact_gram(post, ASKED).gram), rtol=1e-9)
    drawn = cb.effects(post, ASKED, key=1)
    assert drawn["by"].tolist() == ["draws"] * 3
    error = table["sd"] / np.sqrt(4_000)
    assert (np.abs(drawn["mean"] - table["mean"]) < 4.5 * error).all()
    assert np.allclose(drawn["sd"], table["sd"], rtol=0.1)
    assert np.allclose(drawn["upper"] - drawn["lower"], table["upper"] - table["lower"], rtol=0.1)


def test_interval_of_an_effect_by_one_equation_is_students_t_of_least_squares():
    rng = np.random.default_rng(0)
    x = rng.normal(size=12)
    values = np.column_stack([x, 2 * x + rng.normal(size=12)])
    graph = cb.CausalGraph.parse("X -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-5.0, 5.0)})
    flat = cb.priors.FixedPrior(slope_sd=1e4, intercept_sd=1e4, noise_sd=1.0, noise_observations=3)
    post = cb.fit(
        problem, cb.Data(graph.nodes, "Y", values, np.zeros_like(values, bool)), prior=flat
    )
    design = np.column_stack([x, np.ones(12)])
    coefficients, [rss], *_ = np.linalg.lstsq(design, values[:, 1], rcond=None)
    at = np.array([2.0, 1.0])
    scale = np.sqrt((3 + rss) / 15 * at @ np.linalg.solve(design.T @ design, at))
    table = cb.effects(post, {"X": 2.0}, level=0.8)
    assert table["mean"][0] == pytest.approx(at @ coefficients, rel=1e-4)
    width = student.ppf(0.9, 15) * scale
    assert table["upper"][0] - table["mean"][0] == pytest.approx(width, rel=1e-4)


def test_contrast_has_the_joint_uncertainty_of_both_effects(chain, post):
    table = cb.effects(post, ASKED, against={"X": 0.0})
    gram = cb.exact_gram(post, [*ASKED, {"X": 0.0}]).gram
    expected = [gram[at, at] + gram[3, 3] - 2 * gram[at, 3] for at in range(3)]
    assert np.allclose(table["sd"] ** 2, expected, rtol=1e-8)
    assert table["against"].tolist() == ["do(X = 0)"] * 3
    each = cb.effects(post, ASKED)["mean"] - cb.effects(post, {"X": 0.0})["mean"][0]
    assert np.allclose(table["mean"], each)
    drawn = cb.effects(post, ASKED, against={"X": 0.0}, key=2)
    assert np.allclose(drawn["sd"], table["sd"], rtol=0.1)
    itself = cb.effects(post, ASKED, against=ASKED)
    assert np.allclose(itself[["mean", "sd"]], 0.0, atol=1e-7)


def test_contrast_of_a_run_and_of_a_study_is_that_of_the_surrogate(chain):
    run = cb.optimize(chain, rounds=3, observations=40, key=0, progress=False)
    study = cb.Study(chain.problem, chain.observe(40, 0), key=0).tell({"X": 5.0}, -5.0)
    for of in (run, study):
        table = cb.effects(of, ASKED, against=ASKED[::-1], level=0.5)
        queries = chain.problem.queries([*ASKED, *ASKED[::-1]])
        joint = of.surrogate.joint(queries).covariance
        contrast = np.hstack([np.eye(3), -np.eye(3)])
        expected = np.diag(contrast @ joint @ contrast.T)
        assert np.allclose(table["sd"] ** 2, expected, atol=1e-10)
        half = student.ppf(0.75, of.surrogate.degrees) * table["sd"]
        assert np.allclose(table["upper"] - table["mean"], half)
    best = study.best
    [line] = study.effects(best.intervention).to_dict("records")
    assert (line["mean"], line["sd"]) == (best.mean, best.sd)
    assert (line["lower"], line["upper"]) == best.interval(0.9)


def test_posterior_with_draws_uses_these_draws(chain, post):
    draws = np.asarray(post.draws(2_000, 0)).reshape(2, 1_000, -1)
    given = cb.Posterior.from_draws(chain.problem, draws)
    table = cb.effects(given, ASKED, level=0.8)
    effects = cb.response(given)(draws.reshape(2_000, -1), ASKED)
    assert table["by"].tolist() == ["draws"] * 3
    assert np.allclose(table["mean"], effects.mean(axis=0))
    assert np.allclose(table["lower"], np.quantile(effects, 0.1, axis=0))


def test_posterior_without_moments_and_draws_needs_a_key(chain):
    laplace = cb.fit(chain.problem, chain.observe(60, 0), method="laplace")
    if laplace.verdict not in ("exact", "passed"):
        laplace = laplace.accept("a test")
    with pytest.raises(
        cb.errors.PosteriorError, match="no closed form here, so they are drawn: give key="
    ):
        cb.effects(laplace, ASKED)
    assert cb.effects(laplace, ASKED, key=0)["by"].tolist() == ["draws"] * 3


def test_the_baseline_is_the_observed_mean_where_the_model_does_not_imply_it(chain, post):
    table = cb.effects(post, [{"X": 1.0}, {}])
    assert table["by"].tolist() == ["moments", "observations"]
    assert table["intervention"].tolist() == ["do(X = 1)", "nothing set"]
    outcomes = post.data.outcomes
    assert table["mean"][1] == pytest.approx(outcomes.mean())
    assert table["sd"][1] == pytest.approx(outcomes.std(ddof=1) / np.sqrt(40))
    none = cb.effects(post, {}, against={})
    assert none["mean"][0] == 0.0 and none["sd"][0] == 0.0


def test_contrast_with_the_observed_mean_is_as_wide_as_any_joint_distribution_allows(chain, post):
    both = cb.effects(post, [{"Z": 2.0}, {}])
    for asked, against, sign in (({"Z": 2.0}, {}, 1.0), ({}, {"Z": 2.0}, -1.0)):
        line = cb.effects(post, [asked, {}], against=[against, {}])
        assert line["by"].tolist() == ["observations"] * 2 and line["sd"][1] == line["mean"][1] == 0
        assert line["mean"][0] == pytest.approx(sign * (both["mean"][0] - both["mean"][1]))
        assert line["sd"][0] == pytest.approx(both["sd"].sum())
        low, high = both["lower"][0] - both["upper"][1], both["upper"][0] - both["lower"][1]
        ends = sorted([sign * low, sign * high])
        assert ends == pytest.approx([line["lower"][0], line["upper"][0]])
    # The contrast of repeated samples from the truth varies less.
    gaps, query = [], chain.problem.queries({"Z": 2.0})
    for seed in range(60):
        data = chain.observe(40, 100 + seed)
        slope, level = np.polyfit(data.values[:, 1], data.outcomes, 1)
        gaps.append(level + 2.0 * slope - data.outcomes.mean())
    assert np.std(gaps) < line["sd"][0] < 4 * np.std(gaps)
    truth = float(chain.effect(query)[0] - chain.observe(100_000, 1).outcomes.mean())
    assert line["lower"][0] < -truth < line["upper"][0]


def test_study_is_compared_with_the_baseline(chain_study):
    updated = chain_study.tell({"Z": 2.0}, -2.4)
    line = updated.effects({"Z": 2.0}, against={})
    assert line["by"].tolist() == ["observations"] and line["upper"][0] < 0
    flat = cb.Study(updated.problem, updated.data, cb.Settings.preset("cbo-noprior"), key=0)
    observed = updated.data.outcomes
    line = flat.effects([{}])
    assert line["by"].tolist() == ["observations"] and line["mean"][0] == pytest.approx(
        observed.mean()
    )
    assert line["sd"][0] == pytest.approx(observed.std(ddof=1) / np.sqrt(40))


def test_the_baseline_is_what_the_model_implies_where_it_was_learned():
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    problem = cb.Problem(graph, "Y", domains={"A": (-2.0, 2.0), "B": (-2.0, 2.0)}, sets=1)
    rng = np.random.default_rng(1)
    a, b = rng.normal(1.0, 1.0, 50), rng.normal(2.0, 1.0, 50)
    order = {"A": a, "B": b, "Y": a + b + rng.normal(size=50)}
    values = np.column_stack([order[name] for name in graph.nodes])
    data = cb.Data(graph.nodes, "Y", values, np.zeros_like(values, bool))
    post = cb.fit(problem, data)
    table = cb.effects(post, [{}, {"A": 1.0}])
    assert table["by"].tolist() == ["moments", "moments"]
    named = dict(zip(post.names, post.mean, strict=True))
    implied = named["a[Y]"] + named["b[A->Y]"] * named["a[A]"] + named["b[B->Y]"] * named["a[B]"]
    assert table["mean"][0] == pytest.approx(implied)
    assert cb.effects(post, {"A": 1.0}, against={})["sd"][0] > 0
    study = cb.Study(problem, data, key=0)
    assert study.effects({})["by"].tolist() == ["moments"]


def test_effects_refuse_other_objects(chain, post):
    with pytest.raises(
        cb.errors.ArgumentError, match="of a posterior, a study or a run; got CausalSystem"
    ):
        cb.effects(chain, ASKED)
    with pytest.raises(cb.errors.DomainError, match="lies outside"):
        cb.effects(post, {"X": 99.0})
    with pytest.raises(cb.errors.DomainError, match="interventions are Queries, or mappings"):
        cb.effects(post, 3.0)
    with pytest.raises(cb.errors.DomainError, match="holds 2 interventions for 3"):
        cb.effects(post, ASKED, against=ASKED[:2])
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1"):
        cb.effects(post, ASKED, level=90)
    assert not len(cb.effects(post, []))


def test_dicts_are_taken_wherever_queries_are(chain, post):
    q, p = chain.problem.queries(ASKED), chain.problem
    surrogate = cb.surrogates.couple(post).condition([{"X": 1.0}], -1.0)
    for function in (
        chain.effect,
        lambda given: chain.experiment(given, 0).values,
        lambda given: cb.response(post)(post.mean, given),
        lambda given: cb.response(post).jacobian(post.mean, given),
        lambda given: cb.jacobian_gram(post, given).gram,
        lambda given: cb.exact_gram(post, given).gram,
        lambda given: cb.monte_carlo_gram(post, given, draws=50, key=0).gram,
        lambda given: cb.theory.causal_rank(post, given),
        lambda given: cb.kernels.variance_reduction(post, given)["reduction"].to_numpy(),
        lambda given: cb.compare_kernels(post, given, key=0)["size"].to_numpy(),
        lambda given: surrogate.predict(given).mean,
        lambda given: surrogate.joint(given).covariance,
        lambda given: surrogate.sample(0, given, 3),
        lambda given: post.outcome_variances(given),
        lambda given: cb.effects(post, given)["mean"].to_numpy(),
        p.cost,
        p.feasible,
    ):
        assert np.array_equal(np.asarray(function(ASKED)), np.asarray(function(q)))


def test_queries_are_shown_as_a_table(chain):
    shown = chain.problem.queries(ASKED)._repr_html_()
    assert "do(X)" in shown and "do(Z)" in shown and "do(Y)" not in shown and "<td>-3" in shown
    for made in (chain.problem.grid(3)[::2], chain.problem.vertices().repeat(2)):
        assert "do(X)" in made._repr_html_()
    bare = cb.problem.Queries(np.ones((1, 2), bool), np.zeros((1, 2)))
    assert "do(variable 2)" in bare._repr_html_()
    assert "0 interventions" in chain.problem.queries([])._repr_html_()
