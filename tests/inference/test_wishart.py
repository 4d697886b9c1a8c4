"""Effects by Wishart moments pushed through verified estimands.

Exact draws, coverage under confounding, and limits.

Internals: moments are compared with closed forms before estimands use them.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats
from y0.dsl import P, Sum, Variable

import causal_bo_ppl as cb
from causal_bo_ppl.inference import wishart as moments
from causal_bo_ppl.inference.wishart import NormalInverseWishart

FRONT_DOOR = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")


@pytest.fixture(scope="module")
def front_door():
    return cb.Problem(FRONT_DOOR, "Y", domains={"X": (-3, 3), "Z": (-3, 3)})


def confounded_data(n, seed, strength=2.0):
    """X and Y share a latent cause; the effect of X on Y is 0.8 times -1.3."""
    draws = np.random.default_rng(seed)
    u, x, z, y = draws.normal(size=(4, n))
    x = 1.0 + strength * u + x
    z = 0.5 + 0.8 * x + z
    y = -1.3 * z + strength * u + y
    return cb.Data(FRONT_DOOR.nodes, "Y", np.column_stack([x, z, y]), np.zeros((n, 3), bool))


def test_posterior_of_moments_equals_the_textbook():
    values = np.random.default_rng(0).normal(size=(9, 3)) * [1.0, 2.0, 3.0] + [1.0, 0.0, -2.0]
    prior = cb.priors.MomentPrior(np.array([0.5, 0.0, 1.0]), 2.0, np.diag([1.0, 2.0, 3.0]), 7.0)
    found = moments.solve_moments(moments.summarise_moments(values), prior)
    mean, n = values.mean(axis=0), 9
    assert (found.kappa, found.nu) == (11.0, 16.0)
    np.testing.assert_allclose(found.centre, (2.0 * prior.centre + n * mean) / 11.0, rtol=1e-12)
    gap = mean - prior.centre
    scale = prior.scale + np.cov(values.T, ddof=0) * n + 2.0 * n / 11.0 * np.outer(gap, gap)
    np.testing.assert_allclose(found.scale, scale, rtol=1e-12)
    parts = moments.merge_statistics(
        moments.summarise_moments(values[:4]), moments.summarise_moments(values[4:])
    )
    for one, other in zip(parts, moments.summarise_moments(values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    nothing = moments.summarise_moments(values[:0])
    np.testing.assert_allclose(moments.merge_statistics(nothing, parts).scatter, parts.scatter)
    assert moments.merge_statistics(nothing, nothing).n == 0


def even(posterior):
    pairs = [moments.spread_moments(posterior, seed) for seed in range(8)]
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


@pytest.mark.parametrize("way", ["draws", "even spreads"])
def test_draws_of_moments_agree_with_scipy(way):
    scale = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 3.0]])
    posterior = NormalInverseWishart(np.array([1.0, -1.0, 0.0]), 5.0, scale, 12.0)
    means, covariances = (
        moments.draw_moments(posterior, 20_000, jax.random.key(0))
        if way == "draws"
        else even(posterior)
    )
    n = len(means)
    theirs = stats.invwishart(12, scale)
    error = np.sqrt(theirs.var() / n)
    assert (np.abs(covariances.mean(axis=0) - theirs.mean()) < 4.5 * error).all()
    np.testing.assert_allclose(posterior.mean_covariance, theirs.mean(), rtol=1e-12)
    determinants = np.log(np.linalg.det(covariances))
    reference = np.log(np.linalg.det(theirs.rvs(20_000, random_state=1)))
    assert stats.ks_2samp(determinants, reference).pvalue > 1e-4
    whitened = np.linalg.solve(
        np.linalg.cholesky(covariances / 5.0), (means - posterior.centre)[..., None]
    )[..., 0]
    assert stats.kstest(whitened.ravel(), "norm").pvalue > 1e-4


def test_theta_is_the_estimand_of_every_draw(front_door):
    data = confounded_data(60, 0)
    post = cb.fit(front_door, data, method="wishart")
    assert (post.distribution.posterior.nu, post.distribution.posterior.kappa) == pytest.approx(
        (59.01, 60.01)
    )
    assert (
        post.names == ("est[X|X]", "est[Y|X]", "est[Z|Z]", "est[Y|Z]") and post.verdict == "exact"
    )
    means, covariances = moments.draw_moments(post.distribution.posterior, 5, jax.random.key(1))
    ids, draws = cb.identify(front_door), post.draws(5, 1)
    for mean, covariance, theta in zip(means, covariances, draws, strict=True):
        for column, name in ((0, "X"), (2, "Z")):
            slope = ids[name].evaluate(covariance)[name]
            np.testing.assert_allclose(theta[column], slope, rtol=1e-9)
            at_zero = ids[name].evaluate(covariance, mean, {name: 0.0})
            np.testing.assert_allclose(theta[column + 1], at_zero, rtol=1e-9)


def test_moments_of_theta_agree_with_draws_and_between_spreads(front_door):
    post = cb.fit(front_door, confounded_data(40, 1), method="wishart")
    draws = post.draws(20_000, 0)
    spreads = post.distribution.spreads
    error, error_of_sd = (
        part.std(axis=0, ddof=1) / np.sqrt(len(spreads))
        for part in (spreads.mean(axis=1), spreads.std(axis=1, ddof=1))
    )
    assert (
        np.abs(draws.mean(axis=0) - post.mean) < 4.5 * (post.sd / np.sqrt(20_000) + error)
    ).all()
    assert np.allclose(draws.std(axis=0), post.sd, rtol=0.03)
    assert (error < 0.01 * post.sd).all() and (error_of_sd < 0.02 * post.sd).all()
    again = cb.fit(front_door, confounded_data(40, 1), method="wishart")
    assert np.array_equal(post.covariance, again.covariance)  # no key: nothing random


def test_updates_equal_a_refit(front_door):
    data = confounded_data(300, 2)
    post = cb.fit(front_door, data.select(slice(0, 50)), method="wishart")
    for row in range(50, 300):
        post = post.update(data.select(slice(row, row + 1)))
    whole = cb.fit(front_door, data, method="wishart")
    np.testing.assert_allclose(
        post.distribution.posterior.scale, whole.distribution.posterior.scale, rtol=1e-9
    )
    np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-9)
    assert post.fingerprint == whole.fingerprint


def coverage(problem, datasets=200, n=500):
    """How often 90 % intervals of f_X(1) - f_X(0) cover the truth.

    By wishart, and by plain regression.
    """
    ours = theirs = 0
    for seed in range(datasets):
        data = confounded_data(n, 1000 + seed)
        draws = cb.fit(problem, data, method="wishart").draws(1000, seed)[:, 0]
        low, high = np.quantile(draws, [0.05, 0.95])
        ours += low <= 0.8 * -1.3 <= high
        fitted = stats.linregress(data.column("X"), data.column("Y"))
        half = stats.t.ppf(0.95, n - 2) * fitted.stderr
        theirs += abs(fitted.slope + 0.8 * 1.3) <= half
    return ours / datasets, theirs / datasets


@pytest.mark.slow
def test_intervals_cover_under_strong_confounding_where_regression_almost_never_does(front_door):
    ours, theirs = coverage(front_door)
    assert 0.83 <= ours <= 0.97 and theirs <= 0.02, (ours, theirs)


def test_variance_of_an_outcome_is_that_under_do(front_door):
    post = cb.fit(front_door, confounded_data(200_000, 3), method="wishart")
    found = post.outcome_variances(
        front_door.queries([{"X": 1.0}, {"Z": 1.0}, {"X": 1.0, "Z": 0.0}])
    )
    np.testing.assert_allclose(found, [1.3**2 + 2.0**2 + 1, 5.0, 5.0], rtol=0.03)
    natural = post.outcome_variances(front_door.baseline())
    assert natural[0] == pytest.approx(confounded_data(200_000, 3).column("Y").var(), rel=1e-3)
    narrow = cb.Problem(FRONT_DOOR, "Y", domains={"X": (-3, 3), "Z": (-3, 3)}, sets="pomis")
    only = cb.fit(narrow, confounded_data(50, 3), method="wishart")
    with pytest.raises(
        cb.errors.DomainError, match=r"the effect of do\(X\) was not fitted: no usable set"
    ):
        only.outcome_variances(front_door.queries([{"X": 1.0}]))


def test_invalid_quantiles_and_draws_are_refused(front_door):
    post = cb.fit(front_door, confounded_data(30, 0), method="wishart")
    assert post.quantiles(0.5, key=0).shape == (4, 1)
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1"):
        post.quantiles([0.5, 1.5], key=0)
    with pytest.raises(cb.errors.DomainError, match="'level' must be a real number"):
        post.quantiles(["a"], key=0)
    with pytest.raises(
        cb.errors.ArgumentError, match="n must be a whole number, at least 1; got 0"
    ):
        post.draws(0, 0)


@pytest.mark.heavy
def test_without_confounding_wishart_and_conjugate_agree():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=1)
    data = system.observe(3_000, 0)
    one = cb.fit(system.problem, data, parameters="estimand")
    other = cb.fit(system.problem, data, method="wishart")
    assert one.names == other.names
    assert (np.abs(one.mean - other.mean) < 3 * other.sd).all()
    assert (other.sd > 0.9 * one.sd).all()  # it does not use the graph's constraints


def test_too_small_a_denominator_refuses_a_covariance_and_gives_quantiles():
    """sum_Z P(Y|X) P(Z|W) / P(Z|X) is defined only where W explains more of Z than X does."""
    graph = cb.CausalGraph.parse("W -> Z; X -> Z; Z -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-1, 1)})
    draws = np.random.default_rng(0)
    w, x, z, y = draws.normal(size=(4, 40))
    z += w + x
    data = cb.Data(graph.nodes, "Y", np.column_stack([w, x, z, y + z]), np.zeros((40, 4), bool))
    names = {name: Variable(name) for name in "WXYZ"}
    ratio = P(names["Y"] | names["X"]) * P(names["Z"] | names["W"]) / P(names["Z"] | names["X"])
    post = cb.fit(problem, data, method="wishart")
    assert np.isfinite(post.covariance).all()
    distribution = replace(
        post.distribution, effects={("X",): Sum.safe(expression=ratio, ranges=[names["Z"]])}
    )
    odd = replace(post, distribution=distribution)
    undefined = np.isnan(odd.draws(2000, 0)[:, 0]).mean()
    assert 0.1 < undefined < 0.9
    with pytest.raises(
        cb.errors.NumericalError,
        match=r"est\[X\|X\] has no covariance: its estimand is not defined at \d",
    ):
        odd.covariance  # noqa: B018
    table = odd.quantiles([0.05, 0.95], key=0)
    assert table.loc["est[X|X]"].tolist() == [-np.inf, np.inf]
    np.testing.assert_allclose(
        post.quantiles([0.05, 0.5, 0.95], key=0).loc["est[X|X]"],
        post.mean[0] + post.sd[0] * np.array([-1.645, 0.0, 1.645]),
        atol=0.25 * post.sd[0],
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n": 5}, "wishart needs more than 5 observations for 3 variables, got 5"),
        ({"set": True}, "wishart learns from observational data only; in 1 of 30 observations"),
        ({"constant": True}, "'Z' is constant in these data"),
        ({"rounded": True}, "'Z' is constant in these data"),
        ({"collinear": True}, "X, Z are exactly collinear in these data"),
    ],
)
def test_data_that_determine_no_covariance_are_refused(front_door, change, match):
    data = confounded_data(change.get("n", 30), 0)
    values, mask = data.values.copy(), data.intervened.copy()
    if "set" in change:
        mask[0, 0] = True
    if "constant" in change or "rounded" in change:
        values[:, 1] = 0.1
    if "rounded" in change:
        values[3, 1] = np.nextafter(0.1, 1)
    if "collinear" in change:
        values[:, 1] = 2 * values[:, 0]
    with pytest.raises(cb.errors.DataError, match=match):
        cb.fit(front_door, cb.Data(data.nodes, "Y", values, mask), method="wishart")


def test_few_observations_of_many_variables_are_warned_of(front_door):
    with pytest.warns(
        cb.CausalBOWarning,
        match="14 observations are few for the moments of 3 variables.*below about 15",
    ):
        cb.fit(front_door, confounded_data(14, 0), method="wishart")


def test_what_wishart_cannot_do_is_refused(front_door):
    data = confounded_data(30, 0)
    with pytest.raises(cb.errors.ArgumentError, match="learns effects, not mechanisms"):
        cb.fit(front_door, data, method="wishart", parameters="structural")
    with pytest.raises(cb.errors.MechanismError, match="cannot use known coefficients"):
        known = cb.Problem(FRONT_DOOR, "Y", domains={"X": (-3, 3)}, known={("X", "Z"): 0.8})
        cb.fit(known, data, method="wishart")
    with pytest.raises(
        cb.errors.MechanismError, match="prior must be a ScaledPrior or a MomentPrior"
    ):
        cb.fit(front_door, data, method="wishart", prior=cb.priors.FixedPrior())
    with pytest.raises(cb.errors.MechanismError, match="has 2 variables; it needs X, Z, Y"):
        cb.fit(
            front_door,
            data,
            method="wishart",
            prior=cb.priors.MomentPrior(np.zeros(2), 1.0, np.eye(2), 6.0),
        )
    with pytest.raises(cb.errors.MechanismError, match="a latent cause joins 'X' and 'Y'"):
        cb.fit(front_door, data)
    for changes, match in (
        ({"kappa": 0.0}, "kappa must be a positive number"),
        ({"nu": 3.0}, "nu must be finite and more than"),
        ({"scale": -np.eye(2)}, "positive definite"),
        ({"scale": np.eye(3)}, "centre"),
        ({"scale": np.array([[1e-9, 9e-10], [0.0, 1e-9]])}, "scale must be symmetric"),
        ({"nu": None}, "nu must be a number, got None"),
        ({"centre": "low"}, "centre and scale must be arrays of numbers"),
    ):
        with pytest.raises(cb.errors.MechanismError, match=match):
            cb.priors.MomentPrior(
                **({"centre": np.zeros(2), "kappa": 1.0, "scale": np.eye(2), "nu": 6.0} | changes)
            )
    post = cb.fit(
        front_door,
        data,
        method="wishart",
        prior=cb.priors.MomentPrior(np.zeros(3), 1.0, np.eye(3), 6.0),
    )
    assert post.distribution.posterior.nu == 36.0
