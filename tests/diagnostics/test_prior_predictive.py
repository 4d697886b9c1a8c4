"""What priors predict, against numbers computed by NumPy from a prior that is known.

Internals: the limit of what is predicted at once is lowered.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.diagnostics import prior_predictive

pytestmark = pytest.mark.heavy
check = cb.diagnostics.check_prior_predictive
KNOWN = {"noise_observations": np.inf, "slope_sd": 0.5, "intercept_sd": 1.0, "noise_sd": 2.0}


@pytest.fixture(scope="module")
def data(chain):
    return chain.observe(40, 0)


def simulate(data, centre, draws=200_000):
    """Return predictions (draws, n) of Z by a `FixedPrior` with the numbers in KNOWN."""
    random = np.random.default_rng(9)
    level, slope = random.normal(size=(2, draws, 1)) * [[[2.0]], [[1.0]]]
    return centre + level + slope * data.column("X") + 2 * random.normal(size=(draws, len(data)))


@pytest.mark.parametrize("centre", [0.0, 6.0])
def test_table_agrees_with_a_simulation_of_the_prior(chain, data, centre):
    prior = cb.priors.FixedPrior(**KNOWN, centres={"Z": centre})
    row = check(chain.problem, data, prior=prior, draws=4_000, key=1).table.loc["Z"]
    z, sets = data.column("Z"), simulate(data, centre, 20_000)
    low, high, size = z.min(), z.max(), np.ptp(z)
    assert (row["mean"], row["sd"]) == (pytest.approx(z.mean()), pytest.approx(z.std()))
    expected = {
        "mean_rank": (sets.mean(axis=1) < z.mean()).mean(),
        "sd_rank": (sets.std(axis=1) < z.std()).mean(),
        "beyond_10": ((sets < low - 10 * size) | (sets > high + 10 * size)).mean(),
    }
    for name, share in expected.items():
        error = np.sqrt(share * (1 - share) * (1 / 4_000 + 1 / 20_000))
        assert abs(row[name] - share) <= 4.5 * error + 1e-4
    assert row["width"] == pytest.approx(np.ptp(np.quantile(sets, (0.05, 0.95))) / size, rel=0.05)
    assert row["observations"] == 40 and row["verdict"] == "passed"


def test_a_prior_that_disagrees_with_the_data_fails_and_says_where(chain, data):
    above = check(chain.problem, data, prior=cb.priors.FixedPrior(centres={"Y": -50.0}))
    assert above.failures["finding"].to_dict() == {
        "Y": "the observed mean is above the predicted ones"
    }
    assert "for Y the observed mean is above the predicted ones" in above.text
    assert "disagrees with the data: look at the units" in above.advice
    narrow = cb.priors.FixedPrior(scales={"Y": 1e-3, "Z": 1.0}, slope_sd=1e-3)
    found = check(chain.problem, data, prior=narrow).table.loc["Y"]
    assert found["finding"] == "the observed sd is above the predicted ones"
    assert found["sd_rank"] == 1.0 and found["verdict"] == "failed"


def test_absurd_predictions_fail_and_the_default_prior_says_that_it_is_vague(chain, data):
    """The default multiplies the spread by about 10 at every step: Y is two steps away."""
    vague = check(chain.problem, data)
    assert vague.failures["finding"].to_dict() == {"Y": "too wide"}
    y, z = vague.table.loc["Y"], vague.table.loc["Z"]
    assert y["beyond_10"] > 0.3 > 0.1 > z["beyond_10"] and y["width"] > 5 * z["width"]
    assert "vague on purpose, with the weight of 0.01 of 40 observations" in vague.advice
    assert "drawn as if guessed from the data" in vague.text
    assert check(chain.problem, data, most_beyond=0.9).passed
    assert check(chain.problem, data, prior=cb.priors.ScaledPrior(5)).passed
    wide = check(chain.problem, data, prior=cb.priors.FixedPrior(slope_sd=1e4))
    assert set(wide.failures["finding"]) == {"too wide"}
    assert "values that are far from any that occur" in wide.advice
    shifted = cb.Data(data.nodes, "Y", data.values * [1, 1e3, 1e-3] + [0, 9e4, 7], data.intervened)
    moved = check(chain.problem, shifted).table[["width", "beyond_10", "mean_rank"]]
    np.testing.assert_allclose(moved, vague.table[moved.columns], atol=0.02, rtol=0.02)


def test_a_posterior_and_its_problem_give_the_same_check(chain, data):
    for options in ({}, {"prior": cb.priors.FixedPrior()}, {"mechanisms": cb.GP(functions=8)}):
        whole = check(cb.fit(chain.problem, data, **options), key=4)
        before = check(chain.problem, data, **options, key=4)
        columns = ["mean_rank", "sd_rank", "width", "beyond_10"]
        np.testing.assert_allclose(whole.table[columns], before.table[columns], rtol=1e-6)


def test_moments_and_functions_are_checked_too(chain, data):
    def grow(X):
        return jnp.exp(numpyro.sample("rate", dist.Normal(0.0, 300.0)) * X)

    moments = check(cb.fit(chain.problem, data, method="wishart"))
    assert moments.passed and moments.table.index.tolist() == ["X", "Z", "Y"]
    found = check(chain.problem, data, mechanisms={"Z": grow}).table
    assert found.loc["Z", "beyond_100"] > 0.2 and found.loc["Z", "width"] > 1e9  # some overflow
    assert found.loc["Z", "verdict"] == "failed"


def test_what_was_set_is_not_predicted_and_constants_are_not_assessed(chain, data):
    tried = chain.experiment(chain.problem.queries([{"Z": 1.0}] * 5), 1)
    found = check(chain.problem, data.join(tried), prior=cb.priors.FixedPrior()).table
    assert found["observations"].to_dict() == {"Z": 40, "Y": 45}
    one = data.select(slice(0, 1))
    single = check(chain.problem, one, prior=cb.priors.FixedPrior())
    assert single.verdict == "not assessed" and "observed once): Z, Y" in single.text


def test_some_of_many_observations_are_predicted(chain, monkeypatch):
    data = chain.observe(400, 0)
    monkeypatch.setattr(prior_predictive, "MOST_NUMBERS", 2_000 * 3 * 100)
    found = check(chain.problem, data, prior=cb.priors.FixedPrior()).table
    assert found["observations"].tolist() == [100, 100]
    assert found.loc["Z", "mean"] == pytest.approx(data.column("Z")[::4].mean())


def test_invalid_requests_are_refused(chain, data):
    post = cb.fit(chain.problem, data)
    for options in ({"data": data}, {"prior": cb.priors.FixedPrior()}, {"mechanisms": "gp"}):
        with pytest.raises(cb.errors.ArgumentError, match="takes data, mechanisms and prior of"):
            check(post, **options)
    with pytest.raises(cb.errors.DataError, match="check_prior_predictive needs Data, got NoneTyp"):
        check(chain.problem)
    with pytest.raises(cb.errors.ArgumentError, match="draws must be a whole number, at least 100"):
        check(post, draws=50)
    with pytest.raises(cb.errors.ArgumentError, match="most_beyond must lie between 0 and 1"):
        check(post, most_beyond=2)
    given = cb.Posterior.from_draws(chain.problem, post.draws(400, 0))
    with pytest.raises(cb.errors.PosteriorError, match="needs whole models"):
        check(given)
    none = cb.fit(chain.problem, data.select(slice(0, 0)), prior=cb.priors.FixedPrior())
    with pytest.raises(cb.errors.DataError, match="compares predictions with observations"):
        check(none)
