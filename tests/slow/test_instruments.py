"""An instrument: is the verdict of nuts right?

Z -> X -> Y with a latent cause of X and Y. The reduced form, X on Z and Y on X and Z, has a
posterior in closed form; with weights for the structural prior it is an independent oracle.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy
PROBLEM = cb.Problem(
    cb.CausalGraph.parse("Z -> X -> Y; X <-> Y"), "Y", domains={"X": (-2, 2)}, sets=[("X",)]
)
METHOD = cb.NUTS(progress=False)
ENDS = (0.05, 0.95)
SMALLEST_LOG_SLOPE, LARGEST_LOG_SLOPE = (
    np.log(1e-5),
    np.log(5.0),
)  # of the slope of X in Z, where it is small


def table(seed, strength, n=40, shared=0.6):
    """Observations whose effect is 0.8; strength: the slope of X in Z."""
    draws = np.random.default_rng(seed)
    u, z = draws.normal(size=n), draws.normal(size=n)
    rest = np.sqrt(1 - shared**2)
    x = strength * z + shared * u + rest * draws.normal(size=n)
    return pd.DataFrame({"Z": z, "X": x, "Y": 0.8 * x + shared * u + rest * draws.normal(size=n)})


def exact_slopes(frame, count=200_000, weight=0.01):
    """Return slopes of Y in X (count,) and their weights under the default prior.

    X = p Z + e, sd s; Y = c X + k Z + f, sd w. Then the slope is b = c + k / p, the latent strength
    t = -k s / (p w) and the sd of the noise of Y w sqrt(1 + t^2); the volume of (b, t, sd^2) in
    (c, k, w^2) is s (1 + t^2) / (|p| w).
    """
    draws, n = np.random.default_rng(0), len(frame)
    z, x, y = (frame[name].to_numpy() - frame[name].mean() for name in "ZXY")
    centre, rest = z @ x / (z @ z), x @ x - (z @ x) ** 2 / (z @ z)
    s2 = rest / 2 / draws.gamma((n - 2) / 2, size=count)
    both = np.column_stack([x, z])
    gram = both.T @ both
    fitted = np.linalg.solve(gram, both.T @ y)
    left = y @ y - fitted @ gram @ fitted
    w2 = left / 2 / draws.gamma((n - 3) / 2, size=count)
    moved = draws.normal(size=(count, 2)) @ np.linalg.inv(np.linalg.cholesky(gram))
    c, k = (fitted + np.sqrt(w2)[:, None] * moved).T
    sd, sign = np.sqrt(s2 / (z @ z)), draws.choice([-1, 1], count)
    small = np.exp(draws.uniform(SMALLEST_LOG_SLOPE, LARGEST_LOG_SLOPE, count)) * sign
    p = np.where(draws.random(count) < 0.5, small, centre + sd * draws.normal(size=count))
    inside = (np.abs(p) > np.exp(SMALLEST_LOG_SLOPE)) & (np.abs(p) < np.exp(LARGEST_LOG_SLOPE))
    near = np.where(inside, 0.5 / (np.abs(p) * (LARGEST_LOG_SLOPE - SMALLEST_LOG_SLOPE)), 0.0)
    proposed = np.log(0.5 * stats.norm.pdf(p, centre, sd) + 0.5 * near)
    proposed += -(n / 2) * np.log(s2) - rest / 2 / s2
    proposed += -((n - 1) / 2) * np.log(w2) - left / 2 / w2
    gaps = np.column_stack([c, k]) - fitted
    proposed += -0.5 * np.einsum("ni,ij,nj->n", gaps, gram, gaps) / w2 - np.log(w2)

    b, t = c + k / p, -k / p * np.sqrt(s2 / w2)
    y2 = w2 * (1 + t**2)
    squares = (x @ x) - 2 * p * (x @ z) + p**2 * (z @ z)
    misfit = y @ y - 2 * (c * (x @ y) + k * (z @ y))
    misfit += c**2 * (x @ x) + 2 * c * k * (x @ z) + k**2 * (z @ z)
    target = -n / 2 * np.log(s2) - squares / 2 / s2 - n / 2 * np.log(w2) - misfit / 2 / w2
    free = 1 / (1 + t**2)  # 1 - correlation^2; the means are integrated out
    target += -0.5 * np.log((n / free + weight) ** 2 - n**2 * (1 - free) / free**2)
    target += -0.5 * np.log(s2) - p**2 * (z @ z) * weight / (2 * n * s2)
    target += -0.5 * np.log(y2) - b**2 * (x @ x) * weight / (2 * n * y2)
    for column, variance in ((x, s2), (y, y2)):
        target += -(weight / 2) * np.log(variance) - weight / 2 * (column @ column / n) / variance
    target += -0.5 * weight * t**2
    volume = 0.5 * np.log(s2 / w2) + np.log1p(t**2) - np.log(np.abs(p))
    logs = target + volume - proposed
    weights = np.exp(logs - logs.max())
    return b, weights / weights.sum()


def exact_interval(frame):
    slopes, weights = exact_slopes(frame)
    assert 1 / (weights**2).sum() > 20_000
    order = np.argsort(slopes)
    return np.interp(ENDS, np.cumsum(weights[order]), slopes[order])


def sampled(frame, key, prior=None):
    data = cb.Data.from_frame(PROBLEM, frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CausalBOWarning)
        post = cb.fit(PROBLEM, data, method=METHOD, linear=True, prior=prior, key=key)
    return post, np.quantile(post.distribution.chains[..., 0], ENDS)


def test_a_strong_instrument_passes_with_the_exact_interval():
    frame = table(0, 1.0)
    post, found = sampled(frame, 0)
    exact = exact_interval(frame)
    assert post.verdict == "passed"
    np.testing.assert_allclose(found, exact, atol=0.12 * np.ptp(exact))


def test_a_weak_instrument_passes_with_a_proper_prior():
    """By coordinates that the data determine well; with others most fits had divergences."""
    post, found = sampled(table(3, 0.5), 3, cb.priors.FixedPrior())
    assert post.verdict == "passed" and found[0] < 0.8 < found[1]


@pytest.mark.slow
def test_the_verdict_is_right_under_the_default_prior():
    """Where it passed the interval is right; where it failed tails were missed in most.

    Under a prior that is nearly flat the posterior of a weak instrument has tails like 1 / b, and
    no sampler of these coordinates goes there.
    """
    ratios = {"passed": [], "failed": []}
    for strength, seeds in ((1.0, 3), (0.5, 6), (0.25, 3)):
        for seed in range(seeds):
            frame = table(seed, strength)
            post, found = sampled(frame, seed)
            ratios[post.verdict].append(np.ptp(found) / np.ptp(exact_interval(frame)))
    passed, failed = map(np.array, (ratios["passed"], ratios["failed"]))
    assert len(passed) >= 3 and (np.abs(passed - 1) < 0.15).all(), ratios
    assert len(failed) >= 5 and (np.abs(failed - 1) > 0.1).mean() >= 0.5, ratios


@pytest.mark.slow
def test_weak_instruments_pass_with_a_proper_prior_in_a_dozen_data_sets():
    cases = [(strength, seed) for strength in (0.5, 0.25) for seed in range(6)]
    verdicts = [
        sampled(table(seed, strength), seed, cb.priors.FixedPrior())[0].verdict
        for strength, seed in cases
    ]
    assert verdicts.count("passed") >= 11, verdicts
