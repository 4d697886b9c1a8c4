"""The baselines: independent and plain Gaussian processes, and the surrogate without coupling.

Posteriors and marginal likelihoods are compared with scikit-learn's.

Internals: hyperparameters and moments are compared with dense algebra below the surrogate.
"""

import numpy as np
import pytest
from helpers import fitted_cases as cases
from helpers.joined_queries import joined
from helpers.runs import optimize
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern

import causal_bo_ppl as cb
from causal_bo_ppl.effect_estimates.moments import effect_moments, target_moments
from causal_bo_ppl.responses import remainders
from causal_bo_ppl.surrogates.independent_gp import (
    GPInputs,
    Hyperprior,
    SetOutcomes,
    factorise,
    most_probable,
    negative_log_posterior,
    read_logs,
)

CBO, NOPRIOR, BO = (
    cb.surrogates.IndependentMaker(),
    cb.surrogates.IndependentMaker(causal_prior=False),
    cb.surrogates.IndependentMaker(kernel="matern52", is_plain=True),
)
GRAPH = cb.CausalGraph.parse("X -> Z -> Y")
SETS = [("X",), ("Z",), ("X", "Z")]
BOTH = ("X", "Z")


@pytest.fixture(scope="module")
def post():
    problem = cb.Problem(GRAPH, "Y", domains={"X": (-2, 2), "Z": (-3, 5)}, sets=SETS)
    return cb.fit(problem, cb.models.load("chain").observe(60, 0))


class RankOne(Kernel):
    """The covariance s(x) s(x') of the last column s."""

    def __init__(self):
        """scikit-learn reads the signature."""

    def __call__(self, X, Y=None, eval_gradient=False):  # noqa: N803
        return np.outer(X[:, -1], (X if Y is None else Y)[:, -1])

    def diag(self, X):  # noqa: N803
        return X[:, -1] ** 2

    def is_stationary(self):
        return False


class First(Kernel):
    """A kernel of scikit-learn on all columns but the last."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, X, Y=None, eval_gradient=False):  # noqa: N803
        return self.inner(X[:, :-1], None if Y is None else Y[:, :-1])

    def diag(self, X):  # noqa: N803
        return self.inner.diag(X[:, :-1])

    def is_stationary(self):
        return False


def scikit_learn(kernel, hyper, seen, noise):
    """Return a fitted regressor with these hyperparameters; inputs carry s(x) as last column."""
    inner = RBF(hyper.lengthscales) if kernel == "rbf" else Matern(hyper.lengthscales, nu=2.5)
    whole = ConstantKernel(hyper.amplitude**2) * First(inner) + RankOne()
    columns = np.column_stack([seen.x, seen.basis])
    jitter = 1e-10 * whole.diag(columns)
    model = GaussianProcessRegressor(whole, alpha=noise + jitter, optimizer=None)
    return columns, model


def inputs_of(surrogate, queries, members):
    """Return inputs in widths of the domains, prior means and sds, computed independently."""
    problem = surrogate.post.problem
    ends = np.array([problem.domains[name] for name in members])
    columns = [problem.graph.index(name) for name in members]
    x = np.asarray(queries.value)[:, columns] / np.ptp(ends, axis=1)
    if surrogate.prior.constant is None:
        mean, sd = effect_moments(surrogate.post, queries)
    else:
        mean, sd = (np.full(len(x), part) for part in surrogate.prior.constant)
    return GPInputs(x, mean, sd[:, None])


def some_outcomes(post, members, count, seed=0):
    draws = np.random.default_rng(seed)
    ends = np.array([post.problem.domains[name] for name in members])
    values = draws.uniform(*ends.T, (count, len(members)))
    queries = post.problem.queries([dict(zip(members, row, strict=True)) for row in values])
    return queries, np.cos(values).sum(axis=1), draws.uniform(0.05, 0.4, count)


@pytest.mark.parametrize("members", [("Z",), BOTH], ids=str)
@pytest.mark.parametrize(
    "maker",
    [CBO, NOPRIOR, BO, cb.surrogates.IndependentMaker(kernel="matern52")],
    ids=lambda maker: maker.name,
)
def test_posteriors_equal_those_of_scikit_learn(post, maker, members):
    if maker is BO and members != BOTH:
        pytest.skip("bo sets every variable")
    queries, outcomes, noise = some_outcomes(post, members, 7)
    positions, _, _ = some_outcomes(post, members, 9, seed=1)
    updated = maker.begin(post).condition(queries, outcomes, noise)
    hyper = updated.hyperparameters()[members]
    seen, at = inputs_of(updated, queries, members), inputs_of(updated, positions, members)
    columns, model = scikit_learn(maker.kernel, hyper, seen, noise)
    model.fit(columns, outcomes - seen.mean)
    mean, joint = model.predict(np.column_stack([at.x, at.basis]), return_cov=True)
    found = updated.predict(positions)
    np.testing.assert_allclose(found.mean, at.mean + mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.sd, np.sqrt(np.diagonal(joint)), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(updated.joint(positions).covariance, joint, atol=1e-8)
    density = updated.log_density(positions[2], 0.7, 0.3)
    expected = norm.logpdf(0.7, found.mean[2], np.sqrt(found.sd[2] ** 2 + 0.3))
    assert density == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_the_objective_is_the_marginal_likelihood_with_the_priors(post, kernel):
    queries, outcomes, noise = some_outcomes(post, BOTH, 6)
    surrogate = cb.surrogates.IndependentMaker(kernel=kernel).begin(post)
    inputs, prior = inputs_of(surrogate, queries, BOTH), surrogate.prior.hyperprior
    seen = SetOutcomes(outcomes, noise, np.zeros(6))
    logs = np.array([0.3, -1.2, -0.4])
    columns, model = scikit_learn(kernel, read_logs(logs, 2), inputs, noise)
    likelihood = model.fit(columns, outcomes - inputs.mean).log_marginal_likelihood_value_
    sd = target_moments(post).sd
    assert prior.amplitude == pytest.approx(np.std(post.data.outcomes, ddof=1)) == sd
    priors = norm.logpdf(logs[0], np.log(sd), 1.0)
    priors += norm.logpdf(logs[1:], np.log(0.15 * np.sqrt(2)), 0.5).sum()
    found = negative_log_posterior(logs, kernel, inputs, seen, prior)[0]
    assert found == pytest.approx(-likelihood - priors, rel=1e-10)


def replicated(seed=0):
    """Return outcomes with implied and given noise, replicates merged, and as they came."""
    draws = np.random.default_rng(seed)
    x, basis = draws.uniform(size=(5, 2)), draws.uniform(0.2, 0.6, (5, 1))
    counts = np.array([3, 1, 2, 1, 1])
    where = np.repeat(np.arange(5), counts)
    raw, variances = draws.normal(size=8), draws.uniform(0.1, 0.4, 8)
    implied = where < 3
    weights = np.where(implied, 1 / variances, 0)[:, None] * (where[:, None] == np.arange(5))
    means = np.array([weights[:, k] @ raw / max(weights[:, k].sum(), 1e-300) for k in range(5)])
    means[3:] = raw[-2:]
    squares = ((raw - means[where]) ** 2 / variances)[implied].sum()
    share = np.array([1 / weights[:, k].sum() if k < 3 else 0.0 for k in range(5)])
    given = np.where(np.arange(5) < 3, 0.0, np.append(np.zeros(3), variances[-2:]))
    data = GPInputs(x, np.zeros(5), basis), SetOutcomes(means, given, share, 3, squares)
    return data, where, raw, variances, implied


def test_merged_replicates_have_the_likelihood_of_all_outcomes():
    """It differs from the dense density of every outcome by a constant of the hyperparameters."""
    data, where, raw, variances, implied = replicated()
    inputs = data[0]
    prior, gaps = Hyperprior(1.0), []
    for logs in ([0.2, -1.0, -0.5, 0.0], [-0.4, -0.7, 0.1, 0.8], [0.1, -1.5, -2.0, -0.9]):
        hyper = read_logs(np.array(logs), 2)
        u = (inputs.x[:, None] - inputs.x) / hyper.lengthscales
        gram = hyper.amplitude**2 * np.exp(-(u**2).sum(axis=2) / 2)
        gram += inputs.basis @ inputs.basis.T
        gram += 1e-10 * np.diag(np.diagonal(gram))
        noise = np.where(implied, hyper.noise_scale, 1.0) * variances
        dense = multivariate_normal.logpdf(raw, None, gram[np.ix_(where, where)] + np.diag(noise))
        priors = norm.logpdf(logs, *prior.logs(2, has_noise=True)).sum()
        loss = negative_log_posterior(np.array(logs), "rbf", *data, prior)[0]
        gaps.append(loss + dense + priors)
    np.testing.assert_allclose(gaps, gaps[0], rtol=1e-7)


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_gradients_are_those_of_differences_and_the_mode_is_one(kernel):
    data, prior = replicated()[0], Hyperprior(1.0)
    point = np.array([0.2, -1.1, -0.6, 0.3])
    step = 1e-6
    moves = step * np.eye(4)
    ends = [negative_log_posterior(point + s * move, kernel, *data, prior)[0] for move in moves
            for s in (1, -1)]  # fmt: skip
    slopes = (np.array(ends[::2]) - ends[1::2]) / (2 * step)
    np.testing.assert_allclose(
        negative_log_posterior(point, kernel, *data, prior)[1], slopes, rtol=1e-6, atol=1e-7
    )
    hyper = most_probable(kernel, *data, prior)
    best = np.log([hyper.amplitude, *hyper.lengthscales, hyper.noise_scale])
    loss, gradient = negative_log_posterior(best, kernel, *data, prior)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-5)
    medians, spreads = prior.logs(2, has_noise=True)
    others = medians + 2 * spreads * np.random.default_rng(0).normal(size=(300, 4))
    assert loss < min(negative_log_posterior(other, kernel, *data, prior)[0] for other in others)


def test_the_causal_prior_is_the_mean_and_sd_of_effects():
    problem, truth = cases.random_problem(1)
    post = cb.fit(problem, cases.simulate(problem, truth, 25, 0))
    queries = problem.sobol(2)
    found = effect_moments(post, queries)
    variances = np.diagonal(cb.exact_gram(post, queries).gram)
    np.testing.assert_allclose(found.sd, np.sqrt(variances), rtol=1e-9)
    drawn = cb.response(post)(post.draws(20_000, 0), queries)
    z = (drawn.mean(axis=0) - found.mean) / (drawn.std(axis=0) / np.sqrt(20_000))
    assert np.abs(z).max() < 4.5
    before = CBO.begin(post)
    amplitude = target_moments(post).sd
    prior = before.predict(queries)
    np.testing.assert_allclose(prior.mean, found.mean, rtol=1e-12)
    np.testing.assert_allclose(prior.sd**2, variances + amplitude**2, rtol=1e-9)


def test_the_causal_prior_of_draws_is_their_average(post):
    draws = post.draws(400, 1)
    given = cb.Posterior.from_draws(post.problem, draws).accept("draws from elsewhere")
    queries = post.problem.queries([{"X": 1.5}, {"Z": -2.0}])
    found, exact = effect_moments(given, queries), effect_moments(post, queries)
    assert (np.abs(found.mean - exact.mean) < 0.5 * exact.sd).all()
    np.testing.assert_allclose(found.sd, exact.sd, rtol=0.3)
    assert target_moments(given).sd > 0  # without data: of effects
    assert effect_moments(given, queries) is found  # cached


@pytest.mark.parametrize("maker", [CBO, NOPRIOR], ids=lambda maker: maker.name)
def test_an_outcome_informs_its_set_only_and_other_sets_stay_fitted(post, maker):
    queries, outcomes, noise = some_outcomes(post, ("Z",), 4)
    others, more, _ = some_outcomes(post, ("X",), 3)
    before = maker.begin(post)
    first = before.condition(queries, outcomes, noise)
    both = first.condition(others, more, 0.1)
    at, beside = some_outcomes(post, ("X",), 5, seed=2)[0], some_outcomes(post, ("Z",), 5)[0]
    for left, right in zip(first.predict(at), before.predict(at), strict=True):
        np.testing.assert_array_equal(left, right)
    for left, right in zip(both.predict(beside), first.predict(beside), strict=True):
        np.testing.assert_array_equal(left, right)
    [key] = first.sets
    assert both.sets[key] is first.sets[key] and "7 outcomes of 2 sets" in repr(both)
    again = maker.begin(post).condition(queries, outcomes, noise)
    assert again.sets[key] is first.sets[key]  # a new round begins anew and fits nothing again
    joint = both.joint(joined([at, beside])).covariance
    assert not joint[:5, 5:].any() and joint[:5, :5].all() and not both.is_affine


@pytest.mark.parametrize("maker", [CBO, NOPRIOR, BO], ids=lambda maker: maker.name)
def test_replicates_are_their_mean_and_exact_outcomes_must_repeat(post, maker):
    query = post.problem.queries([{"X": 1.0, "Z": 2.0}])
    at = some_outcomes(post, BOTH, 4)[0]
    three = maker.begin(post).condition(query.repeat(3), [1.0, 2.0, 6.0], 0.9)
    one = maker.begin(post).condition(query, 3.0, 0.3)
    for left, right in zip(three.predict(at), one.predict(at), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-8)
    exact = maker.begin(post).condition(query, 1.5, 0.0)
    assert exact.predict(query).mean[0] == pytest.approx(1.5, abs=1e-6)
    assert exact.predict(query).sd[0] < 1e-4
    same = exact.condition(query, 1.5, 0.0).fantasize(query, 0.0).predict(query)
    assert same.mean[0] == pytest.approx(1.5, abs=1e-6)
    with pytest.raises(cb.errors.DataError, match="gave 1.5 and 2.5, though outcomes have"):
        exact.condition(query, 2.5, 0.0)


def test_near_outcomes_without_noise_need_little_jitter(post):
    z = np.concatenate([np.linspace(-3, 5, 30), 1 + 1e-7 * np.arange(8)])
    queries = post.problem.queries([{"Z": float(each)} for each in z])
    for maker in (CBO, NOPRIOR):
        updated = maker.begin(post).condition(queries, np.cos(z), 0.0)
        found = updated.predict(queries)
        np.testing.assert_allclose(found.mean, np.cos(z), atol=1e-4)
        [process] = updated.sets.values()
        assert 1e-10 <= process.jitter <= 1e-6 and (found.sd < 1e-3).all()


def test_matrices_beyond_repair_are_refused():
    with pytest.raises(
        cb.errors.NumericalError, match="not positive definite, even with a jitter of 1e-06"
    ):
        factorise(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(2))
    with pytest.raises(cb.errors.NumericalError, match="4 covariances of outcomes are not finite"):
        factorise(np.full((2, 2), np.nan), np.ones(2))


def test_the_scale_of_noise_that_was_not_given_is_learned(post):
    query = post.problem.queries([{"Z": 1.0}])
    variance = float(post.outcome_variances(query)[0])
    wide = 4 * np.sqrt(variance) * np.array([-1, 1, -1, 1, -1, 1.0, -1, 1])
    updated = CBO.begin(post).condition(query.repeat(8), wide)
    scale = updated.hyperparameters()[("Z",)].noise_scale
    assert 3 < scale < 16.0 * 8 / 7
    given = CBO.begin(post).condition(query.repeat(8), wide, variance)
    assert given.hyperparameters()[("Z",)].noise_scale == 1.0
    assert updated.predict(query).sd > given.predict(query).sd


def test_plain_optimization_sets_all_variables_at_once(post):
    assert BO.sets(post.problem) == (BOTH,) and BO.name == "bo"
    surrogate = BO.begin(post)
    with pytest.raises(cb.errors.ExplorationError, match=r"models do\(X, Z\) alone.*got do\(Z\)"):
        surrogate.predict(post.problem.queries([{"Z": 1.0}]))
    problem = cb.Problem(GRAPH, "Y", domains=post.problem.domains, sets=[("X",), ("Z",)])
    single = cb.fit(problem, post.data)
    with pytest.raises(cb.errors.ExplorationError, match="add that set, or take"):
        BO.begin(single)
    posed = problem.explore([problem.manipulable])
    assert posed.sets == (BOTH,) and posed.domains == problem.domains
    assert BO.begin(cb.fit(posed, post.data)).predict(posed.vertices()).sd.shape == (4,)
    found = cb.Problem(GRAPH, "Y", domains=problem.domains)  # {X, Z} is no minimal set
    asked = found.queries([{"X": 1.0, "Z": 1.0}])
    updated = BO.begin(cb.fit(found, post.data)).condition(asked, 0.5)
    assert BOTH not in found.sets and updated.predict(asked).sd < surrogate.predict(asked).sd


@pytest.mark.parametrize(
    "maker", [CBO, NOPRIOR, BO, cb.surrogates.UncoupledMaker()], ids=lambda m: m.name
)
def test_invalid_outcomes_and_options_are_refused(post, maker):
    query, surrogate = post.problem.queries([{"X": 1.0, "Z": 1.0}]), maker.begin(post)
    for outcome, noise, match in (
        (np.nan, 1.0, "the outcome is nan"),
        (1.0, -1.0, "noise is -1"),
        ([1.0, 2.0], 1.0, "give one outcome for each intervention"),
        (1.0, [1.0, 2.0], "give one outcome for each intervention"),
    ):
        with pytest.raises(cb.errors.DataError, match=match):
            surrogate.condition(query, outcome, noise)
    with pytest.raises(cb.errors.DataError, match="noise is -1"):
        surrogate.fantasize(query.repeat(2), -1.0)
    with pytest.raises(cb.errors.ArgumentError, match="this is about one intervention"):
        surrogate.log_density(query.repeat(2), 1.0, 1.0)
    assert surrogate.predict(query[:0]).mean.shape == (0,)
    assert surrogate.joint(query[:0]).covariance.shape == (0, 0)
    assert surrogate.sample(0, query[:0], 2).shape == (2, 0)
    with pytest.raises(cb.errors.ArgumentError, match="kernel must be one of rbf, matern52"):
        cb.surrogates.IndependentMaker(kernel="cubic")
    with pytest.raises(cb.errors.ArgumentError, match="amplitude must be finite and positive"):
        cb.surrogates.IndependentMaker(amplitude=0.0)


@pytest.mark.parametrize("relinearized", [False, True])
def test_without_coupling_a_set_learns_as_the_coupled_surrogate_does_from_its_own(relinearized):
    problem, truth = cases.random_problem(1)
    post = cb.fit(problem, cases.simulate(problem, truth, 25, 0))
    queries = problem.sobol(3)
    outcomes = np.random.default_rng(0).normal(size=len(queries))
    noise = np.random.default_rng(1).uniform(0.3, 1.0, len(queries))
    alone = cb.surrogates.UncoupledMaker().begin(post).condition(queries, outcomes, noise)
    alone = alone.relinearize() if relinearized else alone
    masks = [row.tobytes() for row in np.asarray(queries.mask)]
    joint, predicted = alone.joint(queries).covariance, alone.predict(queries)
    assert alone.is_affine and len(alone.sets) == len(set(masks)) == len(problem.sets)
    for mask in set(masks):
        rows = np.array([row for row, each in enumerate(masks) if each == mask])
        own = (
            cb.surrogates.CoupledMaker()
            .begin(post)
            .condition(queries[rows], outcomes[rows], noise[rows])
        )
        own = own.relinearize() if relinearized else own
        for left, right in zip(predicted, own.predict(queries[rows]), strict=True):
            np.testing.assert_allclose(left[rows], right, rtol=1e-10, atol=1e-12)
        block = own.joint(queries[rows]).covariance
        np.testing.assert_allclose(joint[np.ix_(rows, rows)], block, rtol=1e-9, atol=1e-12)
        joint[np.ix_(rows, rows)] = 0.0
    assert not joint.any()


def test_without_coupling_the_process_is_the_dense_one_with_blocks(post):
    queries, at = post.problem.sobol(2), post.problem.sobol(5)
    outcomes, noise = np.arange(6.0), np.full(6, 0.4)
    r = cb.response(post)
    same = (np.asarray(at.mask)[:, None] == np.asarray(queries.mask)).all(axis=2)
    own = (np.asarray(queries.mask)[:, None] == np.asarray(queries.mask)).all(axis=2)
    gram = np.where(own, cb.jacobian_gram(post, queries).gram, 0.0)
    cross = np.where(same, cb.jacobian_gram(post, at, queries).gram, 0.0)
    inverse = np.linalg.inv(gram + np.diag(noise + remainders(post, queries)))
    mean = r(post.mean, at) + cross @ inverse @ (outcomes - r(post.mean, queries))
    shrunk = np.diagonal(cb.jacobian_gram(post, at).gram - cross @ inverse @ cross.T)
    found = (
        cb.surrogates.UncoupledMaker().begin(post).condition(queries, outcomes, noise).predict(at)
    )
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.sd, np.sqrt(shrunk), rtol=1e-8, atol=1e-8)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "maker", [CBO, NOPRIOR, BO, cb.surrogates.UncoupledMaker()], ids=lambda m: m.name
)
@pytest.mark.parametrize("method", ["conjugate", "laplace"])
def test_every_baseline_keeps_the_contract_of_surrogates(post, maker, method):
    problem = post.problem.explore([BOTH]) if maker is BO else post.problem
    fitted = cb.fit(problem, post.data, method=method, key=0)
    assert cb.testing.check_surrogate(maker, fitted).require().passed


@pytest.mark.heavy
def test_an_optimization_runs_with_every_baseline():
    system = cb.models.load("chain")
    options = {"rounds": 4, "key": 0, "progress": False}
    for maker in (CBO, NOPRIOR, cb.surrogates.UncoupledMaker()):
        run = optimize(system, surrogate=maker, **options)
        assert len(run) == 4 and np.isfinite(run.best.mean)


def expected_improvement(mean, sd, best):
    sd = np.maximum(sd, 1e-12)
    z = (best - mean) / sd
    return sd * (z * norm.cdf(z) + norm.pdf(z))


def gap_of(system, maker, queries, budget, seed):
    """Return how far the best exact outcome is from the optimum, by improvement per cost."""
    post = cb.fit(system.problem, system.observe(100, seed))
    surrogate, costs, spent, best = maker.begin(post), system.problem.cost(queries), 0.0, np.inf
    effects = np.asarray(system.effect(queries))
    while (affordable := spent + costs <= budget).any():
        mean, sd = surrogate.predict(queries)
        values = expected_improvement(mean, sd, min(best, mean.min() if best == np.inf else best))
        at = int(np.argmax(np.where(affordable, values / costs, -1.0)))
        surrogate = surrogate.condition(queries[at], float(effects[at]), 0.0)
        spent, best = spent + costs[at], min(best, effects[at])
    return best - system.optimum.value


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "budget"), [(CBO, 46), (NOPRIOR, 46), (BO, 86)], ids=str)
def test_baselines_find_the_optimum_of_toy_from_exact_outcomes(maker, budget):
    system = cb.models.load("toy")
    problem = system.problem.explore([BOTH]) if maker is BO else system.problem
    queries = problem.sobol(2048) if maker is BO else problem.grid(257)
    gaps = [gap_of(system, maker, queries, budget, seed) for seed in range(20)]
    assert np.sum(np.array(gaps) <= 0.01) >= 19


def test_toy_is_solved_on_one_seed():
    system = cb.models.load("toy")
    assert gap_of(system, CBO, system.problem.grid(257), 30, 0) <= 0.01
