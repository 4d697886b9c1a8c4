"""Nonlinear regressions in place of mechanisms, where latent causes join causes of the target.

Internals: bound mechanisms are inspected without a posterior.
"""

import numpy as np
import pandas as pd
import pytest
from helpers.runs import optimize
from numpy.polynomial.hermite_e import hermegauss

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import no_outcomes
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task

FEW = cb.GP(functions=16)
GRAPH = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
FRONT_DOOR = cb.Problem(
    GRAPH, "Y", domains={"X": (-2.0, 2.0), "Z": (-3.0, 3.0)}, sets=[("X",), ("Z",)]
)
GRID = np.array([-1.8, -1.2, -0.6, 0.6, 1.2, 1.8])
AT_X = FRONT_DOOR.queries([{"X": x} for x in GRID])
AT_Z = FRONT_DOOR.queries([{"Z": z} for z in GRID])
pytestmark = pytest.mark.heavy


def front_door(seed, count=500, x=None, z=None):
    """Return observations of a nonlinear front door; X or Z may be set."""
    u, a, b, c = np.random.default_rng(seed).normal(size=(4, count))
    x = u + 0.7 * a if x is None else np.full(count, x)
    z = 2 * np.tanh(x) + 0.6 * b if z is None else np.full(count, z)
    return pd.DataFrame({"X": x, "Z": z, "Y": effect_of_z(z) + 1.5 * u + 0.5 * c})


def effect_of_z(z):
    return 1.5 * np.sin(1.2 * z)


def effect_of_x(x):
    nodes, weights = hermegauss(60)
    return effect_of_z(2 * np.tanh(x)[:, None] + 0.6 * nodes) @ weights / weights.sum()


def bands(post, queries, draws=400):
    effects = cb.response(post)(post.draws(draws, 0), queries)
    return effects.mean(axis=0), effects.std(axis=0), np.quantile(effects, (0.05, 0.95), axis=0)


@pytest.fixture(scope="module")
def data():
    return cb.Data.from_frame(FRONT_DOOR, front_door(0))


@pytest.fixture(scope="module")
def post(data):
    return cb.fit(FRONT_DOOR, data, mechanisms=FEW)


def test_front_door_gives_the_effects_that_regression_misses(post, data):
    for queries, truth in ((AT_X, effect_of_x(GRID)), (AT_Z, effect_of_z(GRID))):
        mean, sd, _ = bands(post, queries)
        assert (np.abs(mean - truth) < 4.5 * sd).all() and (sd < 0.3).all()
    plain = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (-2.0, 2.0)})
    table = pd.DataFrame({name: data.column(name) for name in ("X", "Y")})
    biased = cb.fit(plain, cb.Data.from_frame(plain, table), mechanisms=FEW)
    mean, sd, _ = bands(biased, plain.queries([{"X": x} for x in GRID]))
    assert (np.abs(mean - effect_of_x(GRID)) > 4.5 * sd).sum() >= 4


def test_names_of_coordinates_contain_the_regressors(post):
    assert {"b[X->Z]", "log_sd[Z]", "level[X]", "b[X->Y|X,Z]", "log_sd[Y|X,Z]"} <= set(post.names)
    assert post.verdict == "passed" and post.distribution.response.sets == (("X",), ("Z",))
    assert post.distribution.response.to_frame().loc["b[X->Y|X,Z]", "variable"] == "Y"


@pytest.mark.slow
def test_effects_are_those_of_samples_drawn_along_the_plan(data):
    """The contract compares effects and variances with samples drawn variable by variable."""
    check = cb.testing.check_mechanisms(cb.GP(functions=4), FRONT_DOOR, data.select(slice(0, 100)))
    assert check.passed, check.table


@pytest.mark.slow
def test_sets_are_coupled_through_the_regressions_that_they_share(post):
    gram = cb.jacobian_gram(post, FRONT_DOOR.queries([{"X": 1.0}, {"Z": 2 * np.tanh(1.0)}])).gram
    assert gram[0, 1] > 0.5 * np.sqrt(gram[0, 0] * gram[1, 1])
    draws = cb.response(post)(post.draws(2_000, 1), AT_X)
    exact = cb.jacobian_gram(post, AT_X).gram
    np.testing.assert_allclose(draws.std(axis=0), np.sqrt(np.diag(exact)), rtol=0.3)


def test_jacobian_is_the_derivative_of_effects(post):
    response, theta = cb.response(post), np.array(post.mean)
    queries = FRONT_DOOR.queries([{"X": 0.7}, {"Z": -1.1}])
    jacobian, direction = (
        response.jacobian(theta, queries),
        np.random.default_rng(0).normal(size=len(theta)),
    )
    ends = [response(theta + step * direction, queries) for step in (1e-6, -1e-6)]
    slopes = (ends[0] - ends[1]) / 2e-6
    np.testing.assert_allclose(slopes, jacobian @ direction, rtol=1e-5, atol=1e-6)


def test_experiments_inform_only_invariant_regressions(data):
    """do(X) cuts X from U, which changes Y given X and Z, but not Z given X."""
    set_x = cb.Data.from_frame(FRONT_DOOR, front_door(1, 40, x=1.5), intervened=["X"])
    set_z = cb.Data.from_frame(FRONT_DOOR, front_door(2, 40, z=2.5), intervened=["Z"])
    around = {
        "centres": dict.fromkeys("XZY", 0.0),
        "scales": {"X": 1.2, "Z": 1.5, "Y": 2.0},
        "ranges": {"X": (-3.5, 3.5), "Z": (-4.0, 4.0), "Y": (-6.0, 6.0)},
    }
    prior = cb.priors.GPPrior(**around)  # the coordinates do not depend on the data
    post = cb.fit(FRONT_DOOR, data, mechanisms=FEW, prior=prior)
    model = post.distribution.model
    assert model.usable(set_x)[0].tolist() == [False, True, False]
    assert model.usable(set_z)[0].tolist() == [True, False, True]
    of_y = np.array(["Y|X,Z" in name for name in post.names])
    of_z = np.array([name.endswith("Z]") or "->Z" in name for name in post.names]) & ~of_y
    for extra, moved, kept in ((set_x, of_z, of_y), (set_z, of_y, of_z)):
        after = post.update(extra)
        np.testing.assert_allclose(after.mean[kept], post.mean[kept], atol=1e-6)
        assert np.abs(after.mean[moved] - post.mean[moved]).max() > 1e-3
        whole = cb.fit(FRONT_DOOR, data.join(extra), mechanisms=FEW, prior=prior)
        np.testing.assert_allclose(after.mean, whole.mean, atol=1e-8)
        free = after.learned_observations[1][len(data) :]
        assert (free == model.usable(extra)).all()


def test_linear_data_give_the_effects_of_the_linear_route():
    system = cb.models.load("chain")
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2.0, 2.0), "Z": (-2.0, 2.0)})
    u, a, b, c = np.random.default_rng(3).normal(size=(4, 500))
    x = u + a
    z = 0.8 * x + b
    data = cb.Data.from_frame(problem, pd.DataFrame({"X": x, "Z": z, "Y": -1.3 * z + u + c}))
    queries = problem.queries([{"X": -1.5}, {"X": 1.5}, {"Z": -1.5}, {"Z": 1.5}])
    linear = bands(cb.fit(problem, data, method="wishart"), queries)
    for mechanisms, wider in (({"X": "linear"}, 1.15), (FEW, 1.6)):
        mean, sd, _ = bands(cb.fit(problem, data, mechanisms=mechanisms), queries)
        assert (np.abs(mean - linear[0]) < 2 * linear[1]).all()
        assert (sd < wider * linear[1]).all() and (sd > 0.8 * linear[1]).all()
    truth = np.array([-1.3 * 0.8 * -1.5, -1.3 * 0.8 * 1.5, 1.95, -1.95])
    assert (np.abs(linear[0] - truth) < 4.5 * linear[1]).all() and system.problem.target == "Y"


@pytest.mark.slow
def test_back_door_with_a_latent_cause_elsewhere():
    """W -> X, W -> Y, and a latent cause of W and V, which also causes Y."""
    graph = cb.CausalGraph.parse("W -> X -> Y; W -> Y; V -> Y; V <-> W")
    problem = cb.Problem(graph, "Y", domains={"X": (-2.0, 2.0)})
    u, a, b, c, d = np.random.default_rng(4).normal(size=(5, 500))
    w, v = u + a, u + b
    x = np.sin(w) + 0.7 * c
    y = np.cos(1.5 * x) + w**2 / 2 - v + 0.5 * d
    data = cb.Data.from_frame(problem, pd.DataFrame({"W": w, "V": v, "X": x, "Y": y}))
    grid = np.array([-1.2, -0.5, 0.5, 1.2])
    post = cb.fit(problem, data, mechanisms=FEW)
    mean, sd, _ = bands(post, problem.queries([{"X": x} for x in grid]))
    assert (np.abs(mean - (np.cos(1.5 * grid) + 1.0)) < 4.5 * sd).all() and (sd < 0.35).all()


def test_mechanisms_without_latent_causes_have_no_plans():
    system = cb.models.load("toy")
    model = read_mechanisms("gp").bind(Task(system.problem, system.observe(50, 0), no_outcomes(3)))
    assert model.plans is None and model.response.names[-1] == "log_sd[Y]"
    assert model.response.propagations == ("qmc", "sigma")


@pytest.mark.slow
def test_files_keep_regressions(post, tmp_path):
    small = cb.fit(FRONT_DOOR, post.data.select(slice(0, 60)), mechanisms=FEW)
    path = small.save(tmp_path / "post.nc", draws=40)
    again = cb.Posterior.load(path, FRONT_DOOR)
    assert "log_sd[Y|X,Z]" in again.names and np.array_equal(again.mean, small.mean)
    other = cb.Problem(cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains=FRONT_DOOR.domains)
    with pytest.raises(cb.errors.StoreError, match="is of another problem"):
        cb.Posterior.load(path, other)


@pytest.mark.slow
def test_outcomes_of_the_target_alone_move_all_sets(post, data):
    outcomes = FRONT_DOOR.queries([{"Z": 2.9}] * 4), [3.0, 3.1, 2.9, 3.0]
    few, options = data.select(slice(0, 80)), {"mechanisms": FEW, "method": "laplace"}
    after = cb.fit(FRONT_DOOR, few, outcomes=outcomes, **options)
    before = cb.fit(FRONT_DOOR, few, **options)
    ask = FRONT_DOOR.queries([{"Z": 2.9}, {"X": 2.0}])
    moved = bands(after, ask)[0] - bands(before, ask)[0]
    assert (moved > 0.05).all()


@pytest.mark.slow
def test_optimization_runs_on_regressions(post, data):
    """The prior mean of `cbo` is the average over regressions."""

    def experiment(queries):
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        return np.where(mask[:, 1], effect_of_z(value[:, 1]), effect_of_x(value[:, 0]))

    prior = cb.surrogates.IndependentMaker().begin(post).predict(AT_X)
    mean = bands(post, AT_X, 2_000)[0]
    np.testing.assert_allclose(prior.mean, mean, atol=0.1)
    for method in ("gc-cbo", "cbo"):
        options = {"mechanisms": FEW, "noise": 0.0, "rounds": 2, "key": 0}
        run = optimize(FRONT_DOOR, preset=method, data=data, experiment=experiment, **options)
        assert run.best.mean < 0


def test_what_regressions_cannot_do_is_refused_by_name(post, data):
    with pytest.raises(
        cb.errors.DataError, match=r"regression of 'Y' on X, Z: 2 regressors, but only 4"
    ):
        cb.fit(FRONT_DOOR, data.select(slice(0, 4)), mechanisms=FEW)
    known = cb.Problem(GRAPH, "Y", domains=FRONT_DOOR.domains, known={("Z", "Y"): 1.0})
    with pytest.raises(
        cb.errors.MechanismError, match="coefficient of Z -> Y is known, but latent causes"
    ):
        cb.fit(known, data, mechanisms=FEW)
    napkin = cb.CausalGraph.parse("W -> Z -> X -> Y; W <-> X; W <-> Y")
    problem = cb.Problem(napkin, "Y", domains={"X": (-1.0, 1.0)}, sets=[("X",)])
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)), columns=list("WZXY"))
    with pytest.raises(cb.errors.MechanismError, match="needs a ratio"):
        cb.fit(problem, cb.Data.from_frame(problem, table), mechanisms=FEW)
    bow = cb.Problem(cb.CausalGraph.parse("X -> Y; X <-> Y"), "Y", domains={"X": (-1.0, 1.0)})
    with pytest.raises(cb.errors.NotIdentifiable, match="cannot be learned"):
        cb.fit(bow, cb.Data.from_frame(bow, table[["X", "Y"]]), mechanisms=FEW)
    response = post.distribution.response
    with pytest.raises(cb.errors.MechanismError, match="only its regression on X, Z was learned"):
        response.mechanism(post.mean[None], "Y", data.values[:2])
    assert response.mechanism(post.mean[None], "Z", data.values[:2]).shape == (1, 2)
    with pytest.raises(cb.errors.MechanismError, match="not its mechanism"):
        response.slopes(post.mean)
    with pytest.raises(cb.errors.ArgumentError, match="propagation must be one of qmc, sigma"):
        response.propagate("moments")
    with pytest.raises(cb.errors.MechanismError, match="none of its causes"):
        cb.fit(FRONT_DOOR, data, mechanisms={"Z": cb.GP(groups=[("X", "Y")])})
    with pytest.raises(cb.errors.SettingsError, match="latent causes join 'Y' to"):
        optimize(
            FRONT_DOOR,
            data=data,
            mechanisms=FEW,
            experiment=lambda queries: np.zeros(len(queries)),
            learn_from="rows",
            rounds=1,
            key=0,
        )


@pytest.mark.slow
def test_intervals_of_the_front_door_cover_the_truth_and_those_of_a_regression_do_not():
    plain = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (-2.0, 2.0)})
    truth, held, biased = effect_of_x(GRID), [], []
    for seed in range(100):
        table = front_door(1_000 + seed)
        low, high = bands(
            cb.fit(FRONT_DOOR, cb.Data.from_frame(FRONT_DOOR, table), mechanisms=FEW), AT_X
        )[2]
        held.append((low <= truth) & (truth <= high))
        data = cb.Data.from_frame(plain, table[["X", "Y"]])
        queries = plain.queries([{"X": x} for x in GRID])
        low, high = bands(cb.fit(plain, data, mechanisms=FEW), queries)[2]
        biased.append((low <= truth) & (truth <= high))
    assert 0.80 <= np.mean(held) <= 0.97
    assert np.mean(biased) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", None])
def test_intervals_of_synthetic_cover_effects_within_the_data(variant):
    system, held, sizes = cb.models.load("synthetic", variant=variant), [], []
    inside = {"B": (-1.5, 1.5), "D": (-1.5, 2.0), "E": (-1.5, 2.0)}
    draws = np.random.default_rng(0)
    queries = system.problem.queries(
        [
            {name: draws.uniform(*inside[name]) for name in members}
            for members in system.problem.sets
            for _ in range(4)
        ]
    )
    truth = np.asarray(system.effect(queries))
    for seed in range(10):
        post = cb.fit(system.problem, system.observe(500, seed), mechanisms="gp")
        mean, _, (low, high) = bands(post, queries, 200)
        held.append((low <= truth) & (truth <= high))
        sizes.append(np.sqrt(((mean - truth) ** 2).mean()))
    assert np.mean(held) >= 0.75 and np.median(sizes) < 0.3, (np.mean(held), sizes)


@pytest.mark.slow
def test_posterior_sds_of_the_nonlinear_funnel_are_calibrated():
    """All effects of one data set share the error of Y's level, so data sets are averaged.

    Of the mean of 16 squared standard normals 99.8 % lies between 0.5^2 and 1.6^2; conjugate
    posteriors are a little narrow.
    """
    errors = []
    for seed in range(16):
        system = cb.models.load("funnel", variant="nonlinear", seed=seed)
        queries = system.problem.queries(
            [{name: 0.5 * end for name in each} for each in system.problem.sets for end in (-1, 1)]
        )
        truth = np.asarray(system.effect(queries))
        post = cb.fit(system.problem, system.observe(500, seed), mechanisms=FEW)
        mean, sd, _ = bands(post, queries, 200)
        errors.append((mean - truth) / sd)
    assert 0.5 < np.sqrt(np.mean(np.square(errors))) < 1.8


def test_a_set_without_an_effect_does_not_stop_the_others():
    """The set of all manipulable variables is not identifiable; it is not explored."""
    draws = np.random.default_rng(0)
    u, x, w, e = draws.normal(size=(4, 60))
    z = x + u + 0.3 * e
    graph = cb.CausalGraph.parse("X -> Z -> Y; W -> Y; Z <-> Y")
    domains = {"X": (-2, 2), "Z": (-2, 2), "W": (-2, 2)}
    problem = cb.Problem(graph, target="Y", domains=domains, sets=[("X",), ("W", "X")])
    data = pd.DataFrame({"X": x, "Z": z, "Y": z + u + w, "W": w})
    assert cb.fit(problem, data, mechanisms="gp").sets == (("X",), ("W", "X"))
