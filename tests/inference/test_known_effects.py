"""Known total effects: they leave theta, and what is left is conditioned on them."""

import numpy as np
import pytest

import causal_bo_ppl as cb

GRAPH = cb.CausalGraph.parse("X -> Z -> Y; X -> Y; W -> Z")
DOMAINS = {"X": (-2, 2), "Z": (-2, 2), "W": (-1, 1)}
KNOWN = {"tau[X]": 1.5}


def problem(known=None, sets=2):
    return cb.Problem(GRAPH, "Y", domains=DOMAINS, sets=sets, known=known)


@pytest.fixture(scope="module")
def data():
    draws = np.random.default_rng(0)
    x, w, *noise = draws.normal(size=(4, 400))
    x = x + 5
    z = 1 + 0.7 * x - w + noise[0]
    y = 2 - 0.5 * x + 2 * z + noise[1]  # tau[X] = 0.9
    table = {"X": x, "Z": z, "W": w, "Y": y}
    values = np.column_stack([table[name] for name in GRAPH.nodes])
    return cb.Data(GRAPH.nodes, "Y", values, np.zeros(values.shape, bool))


def joint(post, names, value):
    """Mean and covariance of `names` given that tau[X|X] has a value, by dense algebra."""
    order = [post.names.index(name) for name in (*names, "tau[X|X]")]
    mean, covariance = post.mean[order], post.covariance[np.ix_(order, order)]
    cross, spread = covariance[:-1, -1], covariance[-1, -1]
    return (
        mean[:-1] + cross * (value - mean[-1]) / spread,
        covariance[:-1, :-1] - np.outer(cross, cross) / spread,
    )


def test_what_is_left_is_conditioned_on_the_known_total_effect(data):
    free = cb.fit(problem(), data, parameters="total_effect")
    post = cb.fit(problem(KNOWN), data)  # total effects, since one is known
    assert post.kind == "total_effect" and set(free.names) - set(post.names) == {"tau[X|X]"}
    assert post.parameters.rank == free.parameters.rank - 1
    mean, covariance = joint(free, post.names, 1.5)
    np.testing.assert_allclose(post.mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(post.covariance, covariance, rtol=1e-7, atol=1e-11)


def test_the_slope_of_its_effect_is_the_known_one(data):
    post = cb.fit(problem(KNOWN), data)
    queries = post.problem.queries([{"X": 0.5}, {"X": 1.5}, {"X": 0.5, "W": 1}, {"X": 1.5, "W": 1}])
    values = np.asarray(cb.response(post)(post.mean, queries))
    np.testing.assert_allclose([values[1] - values[0], values[3] - values[2]], 1.5, rtol=1e-12)
    gram = np.asarray(cb.jacobian_gram(post, queries).gram)
    jacobian = np.asarray(cb.response(post).jacobian(post.mean, queries))
    np.testing.assert_allclose(gram, jacobian @ post.covariance @ jacobian.T, rtol=1e-9)
    assert abs(gram[0, 0] + gram[1, 1] - 2 * gram[0, 1]) < 1e-12 * gram[0, 0]  # a known contrast
    table = cb.effects(post, [{"X": 1.5}], against={"X": 0.5})
    assert table["mean"].iloc[-1] == pytest.approx(1.5) and table["sd"].iloc[-1] < 1e-6
    drawn = np.asarray(cb.response(post)(post.draws(50, 0), queries))
    np.testing.assert_allclose(drawn[:, 1] - drawn[:, 0], 1.5, rtol=1e-9)


def test_conditioning_agrees_with_draws_near_the_known_value(data):
    """Of a million draws those with tau[X] near its value; the posterior is nearly Gaussian."""
    value = 1.0
    post = cb.fit(problem({"tau[X]": value}), data)
    free = cb.fit(problem(), data, parameters="total_effect")
    theta = free.draws(400_000, 1)
    near = np.abs(theta[:, free.names.index("tau[X|X]")] - value) < 0.01 * free.sd.min()
    chosen = theta[near][:, [free.names.index(name) for name in post.names]]
    assert len(chosen) > 300
    error = np.abs(chosen.mean(axis=0) - post.mean) / post.sd
    assert error.max() < 5 / np.sqrt(len(chosen)) + 0.1, error
    np.testing.assert_allclose(chosen.std(axis=0), post.sd, rtol=0.25)
    kept = post.draws(4_000, 2)
    assert (np.abs(kept.mean(axis=0) - post.mean) < 0.15 * post.sd).all()


def test_minimal_parameters_hold_it_where_it_is_a_coordinate(data):
    sets = ["X", "Z", "W"]
    free = cb.fit(problem(sets=sets), data, parameters="minimal")
    estimate = {"tau[X]": float(free.mean[free.names.index("tau[X|X]")])}  # nothing moves
    post, total = (
        cb.fit(problem(estimate, sets), data, parameters=kind)
        for kind in ("minimal", "total_effect")
    )
    assert set(free.names) - set(post.names) == {"tau[X|X]"}
    queries = post.problem.sobol(4)
    values = [np.asarray(cb.response(each)(each.mean, queries)) for each in (free, post, total)]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-9)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-9)
    grams = [np.asarray(cb.jacobian_gram(each, queries).gram) for each in (post, total)]
    np.testing.assert_allclose(*grams, rtol=1e-7, atol=1e-10)
    before = np.asarray(cb.jacobian_gram(free, queries).gram)
    assert np.trace(grams[0]) < 0.9 * np.trace(before)
    with pytest.raises(cb.errors.MechanismError, match=r"known tau\[X\] is no coordinate of 'min"):
        cb.fit(problem(KNOWN), data, parameters="minimal")  # products of coefficients


def test_it_survives_texts_files_and_updates(data, tmp_path):
    known = KNOWN | {("W", "Z"): -1.0}
    one = problem(known)
    again = cb.Problem.from_json(one.to_json())
    assert again.fingerprint == one.fingerprint != problem({("W", "Z"): -1.0}).fingerprint
    assert again.known_effects == KNOWN and again.known == {("W", "Z"): -1.0}
    assert one.explore(1).known_effects == KNOWN
    post = cb.fit(one, data)
    read = cb.Posterior.load(post.save(tmp_path / "post.nc", draws=100), again)
    assert np.array_equal(read.mean, post.mean) and read.names == post.names
    halves = data.select(slice(0, 200)), data.select(slice(200, None))
    grown = cb.fit(one, halves[0], prior=cb.priors.FixedPrior()).update(halves[1])
    whole = cb.fit(one, data, prior=cb.priors.FixedPrior())
    np.testing.assert_allclose(grown.mean, whole.mean, rtol=1e-8)
    np.testing.assert_allclose(grown.covariance, whole.covariance, rtol=1e-6, atol=1e-12)


def test_a_study_uses_it(data):
    study = cb.Study(problem(KNOWN), data, cb.Settings(learn_from="target"), key=0)
    suggestion = study.ask()
    study = study.tell(suggestion, suggestion.mean)
    table = study.effects([{"X": 1.5}, {"X": 0.5}])
    assert table["mean"].iloc[0] - table["mean"].iloc[1] == pytest.approx(1.5)


def test_what_cannot_hold_it_is_refused_by_name(data):
    one = problem(KNOWN)
    for kind in ("structural", "estimand"):
        with pytest.raises(
            cb.errors.MechanismError, match=rf"tau\[X\] is no coordinate of '{kind}"
        ):
            cb.fit(one, data, parameters=kind)
    with pytest.raises(cb.errors.MechanismError, match="in closed form only"):
        cb.fit(one, data, method="laplace")
    with pytest.raises(cb.errors.MechanismError, match="no coordinate of 'estimand'"):
        cb.fit(one, data, method="wishart")
    with pytest.raises(cb.errors.ArgumentError, match=r"known tau\[X\] is for linear mechanisms"):
        cb.fit(one, data, mechanisms="gp")
    with pytest.raises(cb.errors.PosteriorError, match="exact kernel needs independent equations"):
        post = cb.fit(one, data)
        cb.exact_gram(post, one.sobol(1))
    with pytest.raises(cb.errors.GraphError, match=r"known total effect 'tau\[Q\]'"):
        problem({"tau[Q]": 1.0})
    with pytest.raises(cb.errors.DomainError, match=r"tau\[X\]"):
        problem({"tau[X]": float("inf")})
    everything = KNOWN | {("X", "Z"): 1.0, ("Z", "Y"): 1.0, ("X", "Y"): 1.0}
    with pytest.raises(cb.errors.MechanismError, match="follows from known coefficients"):
        cb.fit(problem(everything), data)
