"""Simulation-based calibration over effects.

Right posteriors pass, an over-confident one does not.

Internals: the verdict is computed for ranks that no calibration gives.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.diagnostics.calibration import _judge

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def problem():
    return cb.models.load("chain").problem


@pytest.fixture(scope="module")
def front_door():
    return cb.Problem(
        cb.CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", domains={"X": (-2, 2), "Z": (-2, 2)}
    )


@dataclass(frozen=True)
class Narrow:
    """A distribution whose draws are too close to their mean."""

    inner: object
    share: float

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def draw(self, n, key):
        found = self.inner.draw(n, key)
        return found.mean(axis=0) + self.share * (found - found.mean(axis=0))


def overconfident(problem, share):
    def learn(data, key):
        post = cb.fit(problem, data, prior=cb.priors.FixedPrior())
        return replace(post, distribution=Narrow(post.distribution, share))

    return learn


def test_conjugate_posteriors_are_calibrated_and_over_confident_ones_are_not(problem):
    right = cb.diagnostics.calibrate(problem, observations=25, simulations=120, key=0)
    assert (
        right.passed
        and right.details.shape == (120, 4)
        and 0 < right.details.to_numpy().min() < 0.05
    )
    wrong = cb.diagnostics.calibrate(
        problem, observations=25, simulations=120, fitting=overconfident(problem, 0.5), key=0
    )
    assert (
        not wrong.passed
        and "over-confident" in wrong.advice
        and wrong.table["coverage"].max() < 0.8
    )


@pytest.mark.slow
def test_ranks_are_those_of_the_true_effects(problem):
    """The ranks under the prior alone are uniform too."""

    def prior_only(data, key):
        return cb.fit(problem, data.select(slice(0, 0)), prior=cb.priors.FixedPrior())

    check = cb.diagnostics.calibrate(
        problem, observations=20, simulations=100, fitting=prior_only, key=1
    )
    assert check.passed
    shifted = cb.priors.FixedPrior(slopes={("Z", "Y"): (1.5, 1.0)})

    def wrong_prior(data, key):
        return cb.fit(problem, data.select(slice(0, 0)), prior=shifted)

    check = cb.diagnostics.calibrate(
        problem, observations=20, simulations=100, fitting=wrong_prior, key=1
    )
    assert check.table.loc["do(Z = 5)", "verdict"] == "failed"
    assert check.details["do(Z = 5)"].mean() < 0.4 and check.details["do(Z = -5)"].mean() > 0.6


@pytest.mark.slow
def test_wishart_is_calibrated_under_its_own_prior(front_door):
    assert cb.diagnostics.calibrate(
        front_door, method="wishart", observations=30, simulations=100, key=0
    ).passed


@pytest.mark.slow
def test_laplace_is_judged_by_a_tolerance_of_its_coverage(front_door):
    assert cb.diagnostics.calibrate(
        front_door, method="laplace", observations=200, simulations=20, key=0
    ).passed
    with_none = cb.diagnostics.calibrate(
        front_door,
        method="laplace",
        observations=200,
        simulations=20,
        coverage_tolerance=-1.0,
        key=0,
    )
    assert not with_none.passed


@pytest.mark.slow
def test_nuts_is_calibrated_under_latent_confounding(front_door):
    method = cb.NUTS(warmup=300, draws=250, progress=False)
    check = cb.diagnostics.calibrate(
        front_door, method=method, observations=40, simulations=40, posterior_draws=100, key=0
    )
    assert check.passed


def test_data_sets_that_a_method_refuses_are_counted(problem):
    fitted = []

    def fussy(data, key):
        fitted.append(data)
        if len(fitted) in refused:
            raise cb.errors.NumericalError("no mode")
        return cb.fit(problem, data, prior=cb.priors.FixedPrior())

    refused = {3}
    check = cb.diagnostics.calibrate(
        problem, observations=20, simulations=20, fitting=fussy, prior=cb.priors.FixedPrior(), key=1
    )
    assert len(check.details) == 19
    assert check.text.endswith("The method refused 1 more of 20 data sets.")
    refused |= {21, 22}
    with pytest.raises(cb.errors.NumericalError, match="no mode"):
        cb.diagnostics.calibrate(problem, observations=20, simulations=20, fitting=fussy, key=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["conjugate", "nuts", "wishart", "laplace"])
def test_every_method_is_calibrated_in_full(method, problem, front_door):
    where = problem if method == "conjugate" else front_door
    rows = 200 if method == "laplace" else 50
    check = cb.diagnostics.calibrate(
        where, method=method, observations=rows, simulations=500, key=7
    )
    assert check.passed and np.abs(check.table["coverage"] - 0.9).max() < 0.06, check.table


@pytest.mark.slow
def test_an_over_confident_posterior_fails_in_full(problem):
    assert not cb.diagnostics.calibrate(
        problem, observations=50, simulations=500, fitting=overconfident(problem, 0.75), key=7
    ).passed


def correlated_ranks(draws, count, effects=8, correlation=0.7, sd=1.0):
    """Ranks of truths in exact posteriors of correlated effects; sd: of posteriors."""
    shared, own = draws.normal(size=(count, 1)), draws.normal(size=(count, effects))
    truth = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    return stats.norm.cdf(truth / sd)


def is_failed(ranks, tolerance=None):
    names = [str(k) for k in range(ranks.shape[1])]
    return "failed" in set(_judge(ranks, names, tolerance, 0.01)["verdict"])


def test_spread_and_coverage_have_exact_p_values():
    ranks = correlated_ranks(np.random.default_rng(0), 50, effects=2)
    line = _judge(ranks, ["a", "b"], None, 0.01).iloc[0]
    squares = (stats.norm.ppf(ranks[:, 0]) ** 2).sum()
    tail = min(stats.chi2(50).sf(squares), stats.chi2(50).cdf(squares))
    assert line["p_spread"] == pytest.approx(2 * tail)
    assert line["p_ranks"] == pytest.approx(stats.kstest(ranks[:, 0], "uniform").pvalue)
    inside = int(((ranks[:, 0] >= 0.05) & (ranks[:, 0] <= 0.95)).sum())
    low, high = (
        stats.binomtest(inside, 50, 0.9, alternative=side).pvalue for side in ("less", "greater")
    )
    assert line["p_coverage"] == pytest.approx(min(2 * min(low, high), 1.0))
    assert line["p_value"] == pytest.approx(
        min(3 * line[["p_ranks", "p_spread", "p_coverage"]].min(), 1.0)
    )


def test_narrow_posteriors_are_found_by_their_spread_at_200_simulations():
    """Sds of 0.71 times the right ones: in each of 20 sets of simulations."""
    draws = np.random.default_rng(1)
    assert all(is_failed(correlated_ranks(draws, 200, sd=0.71)) for _ in range(20))
    assert sum(is_failed(correlated_ranks(draws, 200)) for _ in range(20)) <= 2


@pytest.mark.slow
def test_right_posteriors_fail_in_at_most_one_of_a_hundred_calibrations():
    """Of 3,000; more than 47 have a probability of 0.1 %."""
    draws = np.random.default_rng(2)
    assert sum(is_failed(correlated_ranks(draws, 200)) for _ in range(3_000)) <= 47
    at_the_limit = stats.norm.ppf(0.925) / stats.norm.ppf(0.95)  # 90 % intervals hold 85 %
    tolerated = (correlated_ranks(draws, 200, sd=at_the_limit) for _ in range(1_000))
    assert sum(is_failed(each, tolerance=0.05) for each in tolerated) <= 20


@pytest.mark.slow
def test_narrow_posteriors_fail_in_ten_of_ten_calibrations(problem):
    """Sds of 0.71 times the right ones, in whole calibrations of 200 simulations."""
    for key in range(10):
        check = cb.diagnostics.calibrate(
            problem, observations=25, simulations=200, fitting=overconfident(problem, 0.71), key=key
        )
        assert not check.passed and "over-confident" in check.advice, key


def test_what_cannot_be_calibrated_is_refused(problem):
    with pytest.raises(cb.errors.ArgumentError, match="which must be proper; got ScaledPrior"):
        cb.diagnostics.calibrate(problem, prior=cb.priors.ScaledPrior(), key=0)
    with pytest.raises(cb.errors.ArgumentError, match="wishart always learns means"):
        cb.diagnostics.calibrate(problem, method="wishart", intercepts=False, key=0)
    with pytest.raises(cb.errors.ArgumentError, match="calibrate needs a Posterior, got str"):
        cb.diagnostics.calibrate(problem, fitting=lambda data, key: "none", simulations=20, key=0)
    with pytest.raises(
        cb.errors.ArgumentError, match="simulations must be a whole number, at least 20; got 3"
    ):
        cb.diagnostics.calibrate(problem, simulations=3, key=0)
