"""Studies that begin with a posterior: of `fit`, of draws of one's own sampler, of theta alone."""

import jax
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def data(chain):
    return chain.observe(60, 0)


@pytest.fixture(scope="module")
def sampled(chain, data):
    """Draws of NumPyro's own sampler."""
    kernel = NUTS(cb.numpyro_model(chain.problem, data))
    options = {"num_warmup": 300, "num_samples": 500, "num_chains": 2}
    mcmc = MCMC(kernel, **options, chain_method="sequential", progress_bar=False)
    mcmc.run(jax.random.key(0))
    return cb.Posterior.from_numpyro(chain.problem, data, mcmc)


def test_a_study_of_a_fit_is_the_one_that_begins_with_its_data(chain, data):
    post = cb.fit(chain.problem, data)
    given, usual = cb.Study.from_posterior(post, key=3), cb.Study(chain.problem, data, key=3)
    assert given.fingerprint != usual.fingerprint
    whole = {"X": 0.2, "Z": -3.0, "Y": -6.5}
    for _ in range(2):
        one, other = given.ask(), usual.ask()
        assert one.intervention == other.intervention and one.mean == other.mean
        row = {name: value for name, value in whole.items() if name not in one.intervention}
        given, usual = given.tell(one, row, again=True), usual.tell(other, row, again=True)
    assert given.posterior.n_observations == 62  # rows update it


def test_draws_of_an_own_sampler_go_on_to_suggestions(chain, data, sampled):
    study = cb.Study.from_posterior(sampled, key=0)
    suggestion = study.ask()
    assert suggestion.intervention == cb.Study(chain.problem, data, key=0).ask().intervention
    row = {"X": 0.2, "Z": -3.0, "Y": -5.5}
    row = {name: value for name, value in row.items() if name not in suggestion.intervention}
    after = study.tell(suggestion, row).tell({"X": 5.0}, -5.0)
    assert after.posterior.n_observations == 60  # the outcomes update the surrogate alone
    sds = [float(each.effects({"X": 5.0})["sd"][0]) for each in (study, after)]
    assert sds[1] < sds[0]
    again = cb.Study.from_json(after.to_json(), sampled)
    assert again.ask().intervention == after.ask().intervention
    assert again.fingerprint == after.fingerprint
    with pytest.raises(cb.errors.DataError, match="began with a posterior"):
        cb.Study.from_json(after.to_json(), data)
    with pytest.raises(cb.errors.DataError, match="began with a posterior.*another"):
        cb.Study.from_json(after.to_json(), cb.fit(chain.problem, data))
    with pytest.raises(cb.errors.DataError, match="began with data"):
        cb.Study.from_json(cb.Study(chain.problem, data, key=0).to_json(), sampled)


def test_draws_of_theta_alone_need_the_noise_of_outcomes(chain, data):
    post = cb.fit(chain.problem, data)
    draws = {name: column.reshape(4, -1) for name, column in zip(
        post.names, post.draws(4_000, 0).T, strict=True)}  # fmt: skip
    given = cb.Posterior.from_draws(chain.problem, draws)
    study = cb.Study.from_posterior(given, cb.Settings(noise=1.0), key=0)
    suggestion = study.ask()
    assert suggestion.intervention == cb.Study(chain.problem, data, key=0).ask().intervention
    assert study.tell(suggestion, -6.0).best.outcomes == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mechanisms": "gp"}, "has its mechanisms already; omit mechanisms='gp'"),
        ({"inference": "laplace"}, "has its inference already"),
        ({"prior": cb.priors.ScaledPrior(2.0)}, "has its prior already"),
        ({"learn_from": "rows"}, "by numpyro cannot be updated by whole rows"),
    ],
)
def test_settings_that_a_posterior_cannot_follow_are_refused(sampled, settings, message):
    with pytest.raises(cb.errors.SettingsError, match=message):
        cb.Study.from_posterior(sampled, cb.Settings(**settings), key=0)


def test_a_failed_posterior_and_other_things_are_refused(chain, sampled):
    shifted = np.array([[[0.0] * 4] * 500, [[9.0] * 4] * 500]) + 0.1 * np.random.default_rng(
        0
    ).normal(size=(2, 500, 4))
    draws = dict(zip(sampled.names, np.moveaxis(shifted, 2, 0), strict=True))
    failed = cb.Posterior.from_draws(chain.problem, draws)
    with pytest.raises(cb.errors.PosteriorError, match="verdict is 'failed'"):
        cb.Study.from_posterior(failed, key=0)
    with pytest.raises(cb.errors.ArgumentError, match="a Posterior is needed here, got Problem"):
        cb.Study.from_posterior(chain.problem, key=0)
