"""Long proofs of optimizing with nonlinear mechanisms: gaps over seeds, transfer, and time.

Gaps are of the true effect at what was recommended and at the best tried. Costs are those of the
published runs.

Internals: one unit of the reproduction is run, since the whole takes hours.
"""

import time
from functools import lru_cache

import numpy as np
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.experiments.paper_checks import Transfer
from causal_bo_ppl.experiments.units import Loaded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::causal_bo_ppl.errors.CausalBOWarning"),
]
SEEDS = range(20)


@lru_cache(maxsize=8)
def gaps(name, noise, budget, seeds=SEEDS, variant=None, **options):
    """The gaps (2, seeds) of what was recommended and of the best tried."""
    system = cb.models.load(name, variant=variant)
    found = []
    for seed in seeds:
        run = optimize(system, noise=noise, budget=budget, key=seed, progress=False, **options)
        found.append((run.regret()[-1], run.regret("tried")[-1]))
    return np.array(found).T


def test_exact_outcomes_of_toy_lead_to_its_optimum():
    """In at least 19 of 20 seeds within 0.005, at cost 46 (published mean gap 0.0025)."""
    recommended, tried = gaps("toy", 0.0, 46.0, mechanisms="gp")
    assert (recommended < 0.005).sum() >= 19 and (tried < 0.005).sum() >= 19


def test_noisy_outcomes_of_toy_lead_near_its_optimum():
    """With the default settings the best tried is within 0.06 on average."""
    assert gaps("toy", None, 46.0, mechanisms="gp")[1].mean() <= 0.06


@pytest.mark.parametrize("variant", ["paper", None])
def test_exact_outcomes_of_synthetic_lead_to_its_optimum_under_latent_causes(variant):
    """At cost 60, in at least 18 of 20 seeds within 0.01 (published mean 0.09 at cost 158).

    The median is the statement, not the mean: one seed stays at a second, local optimum with the
    rounding of some processors, and comes within 0.03 with that of others.
    """
    found = gaps("synthetic", 0.0, 60.0, SEEDS, variant, mechanisms="gp")
    assert ((found <= 0.01).sum(axis=1) >= 18).all() and (np.median(found, axis=1) <= 1e-4).all()


def test_exact_outcomes_of_healthcare_lead_to_its_optimum_and_missing_overlap_is_reported():
    """Within 0.002 at cost 66, with Gaussian processes; own formulas: `test_custom_healthcare`."""
    system = cb.models.load("healthcare")
    for seed in range(3):
        with pytest.warns(cb.CausalBOWarning, match="before the first experiment"):
            run = optimize(
                system, mechanisms="gp", noise=0.0, budget=66.0, key=seed, progress=False
            )
        assert run.regret()[-1] <= 0.002 and run.regret("tried")[-1] <= 0.002


@pytest.mark.parametrize(("rows", "most"), [(30, 1.0), (100, 0.75)])
def test_nonlinear_mechanisms_transfer_better_than_linear_ones_in_the_nonlinear_funnel(rows, most):
    """Median held-out error over 60 seeds, at every budget, and falling with budget.

    With 30 observations both are limited by the level of the target, which these determine to 0.6;
    see the page on claims.
    """

    def measure(method):
        found = []
        for seed in range(60):
            system = Loaded("funnel", {"variant": "nonlinear", "seed": seed})
            found.append(Transfer("funnel", method, seed, system, rows).measure())
        errors = np.median([each["error"] for each in found], axis=0)
        return errors, np.mean([each["covered"][0] for each in found])

    (nonlinear, covered), (linear, _) = measure("gc-cbo, nonlinear"), measure("gc-cbo, linear")
    assert (nonlinear <= most * linear).all()
    assert nonlinear[-1] < nonlinear[0] or rows > 30
    assert covered >= 0.85


@pytest.mark.parametrize(
    ("name", "variant", "most"), [("toy", None, 0.3), ("synthetic", "paper", 1)]
)
def test_a_round_is_fast_and_does_not_grow_with_outcomes(name, variant, most):
    """Median of the last rounds, in seconds on an idle machine, twice as much is allowed here.

    Late rounds search with a second, wider bound; they take no more than three times what the
    first ones take.
    """
    stamps = []
    optimize(
        cb.models.load(name, variant=variant), mechanisms="gp", noise=0.0, rounds=20,
        key=0, progress=False, callback=lambda _: stamps.append(time.perf_counter()),
    )  # fmt: skip
    lengths = np.diff(stamps)
    assert np.median(lengths[10:]) < 2 * most
    assert np.median(lengths[10:]) < 3 * np.median(lengths[:10])
