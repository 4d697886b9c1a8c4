"""Long proofs of optimizing with mechanisms that bend: gaps over seeds, transfer, and time.

Gaps are of the true effect at what was recommended and at the best tried. Costs are those of the
published runs.
"""

import time
from functools import lru_cache

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.models import funnel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::causal_bo_ppl.errors.CausalBOWarning"),
]
SEEDS = range(20)


@lru_cache(maxsize=8)
def gaps(name, outcomes, budget, seeds=SEEDS, variant=None, **options):
    """The gaps (2, seeds) of what was recommended and of the best tried."""
    system = cb.models.load(name, variant=variant)
    found = []
    for seed in seeds:
        run = cb.optimize(
            system, outcomes=outcomes, budget=budget, key=seed, progress=False, **options
        )
        found.append((run.regret()[-1], run.regret("tried")[-1]))
    return np.array(found).T


def test_exact_outcomes_of_toy_lead_to_its_optimum():
    """In at least 19 of 20 seeds within 0.005, at cost 46 (published mean gap 0.0025)."""
    recommended, tried = gaps("toy", "exact", 46.0, mechanisms="gp")
    assert (recommended < 0.005).sum() >= 19 and (tried < 0.005).sum() >= 19


def test_noisy_outcomes_of_toy_lead_near_its_optimum():
    """With the default settings the best tried is within 0.06 on average."""
    assert gaps("toy", "noisy", 46.0, mechanisms="gp")[1].mean() <= 0.06


@pytest.mark.parametrize("variant", ["paper", None])
def test_exact_outcomes_of_synthetic_lead_to_its_optimum_under_latent_causes(variant):
    """At cost 60, on average within 0.01 (published 0.09 at cost 158)."""
    found = gaps("synthetic", "exact", 60.0, range(10), variant, mechanisms="gp")
    assert (found.mean(axis=1) <= 0.01).all()


def test_exact_outcomes_of_healthcare_lead_to_its_optimum_and_missing_overlap_is_said():
    """Within 0.002 at cost 66, with Gaussian processes; own formulas: `test_custom_healthcare`."""
    system = cb.models.load("healthcare")
    for seed in range(3):
        with pytest.warns(cb.CausalBOWarning, match="before the first experiment"):
            run = cb.optimize(
                system, mechanisms="gp", outcomes="exact", budget=66.0, key=seed, progress=False
            )
        assert run.regret()[-1] <= 0.002 and run.regret("tried")[-1] <= 0.002


def transfer(seed, rows, mechanisms, method, budgets):
    """Held-out errors of the nonlinear funnel by budget, and coverage before any outcome."""
    system = cb.models.load("funnel", variant="nonlinear", seed=seed)
    problem, rng = system.problem, np.random.default_rng(seed)
    data = system.observe(rows, 1_000 + seed)
    tried = [
        {name: float(rng.uniform(*problem.domains[name])) for name in funnel.TRAINING[at % 4]}
        for at in range(max(budgets))
    ]
    queries = problem.queries(tried)
    outcomes = system.experiment(queries, 2_000 + seed).outcomes
    ticks = {name: np.linspace(*problem.domains[name], 5) for name in problem.domains}
    held, ends = [], []
    for members in funnel.HELD_OUT:
        axes = np.meshgrid(*[ticks[name] for name in members])
        points = np.stack([axis.ravel() for axis in axes], axis=1)
        held += [dict(zip(members, map(float, point), strict=True)) for point in points]
        ends.append(len(held))
    at = problem.queries(held)
    truth = np.asarray(system.effect(at))
    post = cb.fit(problem, data, mechanisms=mechanisms, method=method)
    before, errors = cb.couple(post, learns_noise=True), []
    for budget in budgets:
        told = before
        if budget:
            told = before.tell(queries[:budget], outcomes[:budget]).recentre()
        mean, sd = told.predict(at)
        parts = np.split(mean - truth, ends[:-1])
        errors.append(np.mean([np.sqrt((part**2).mean()) for part in parts]))
        if not budget:
            covered = float((np.abs(mean - truth) <= 1.645 * sd).mean())
    return errors, covered


@pytest.mark.parametrize(("rows", "most"), [(30, 0.9), (100, 0.75)])
def test_bent_mechanisms_transfer_better_than_lines_in_the_nonlinear_funnel(rows, most):
    """Median held-out error over 60 seeds, at every budget, and falling with budget."""
    budgets = (0, 12, 48)
    both = [
        [
            transfer(seed, rows, "gp", "conjugate", budgets),
            transfer(seed, rows, "linear", "wishart", budgets),
        ]
        for seed in range(60)
    ]
    bent, lines = (np.median([each[at][0] for each in both], axis=0) for at in (0, 1))
    assert (bent <= most * lines).all()
    assert bent[-1] < bent[0] or rows > 30
    assert np.mean([each[0][1] for each in both]) >= 0.85


@pytest.mark.parametrize(
    ("name", "variant", "most"), [("toy", None, 0.3), ("synthetic", "paper", 1)]
)
def test_a_round_is_fast_and_does_not_grow_with_outcomes(name, variant, most):
    """Median of the last rounds, in seconds on an idle machine, twice as much is allowed here."""
    stamps = []
    cb.optimize(
        cb.models.load(name, variant=variant), mechanisms="gp", outcomes="exact", rounds=20,
        key=0, progress=False, callback=lambda _: stamps.append(time.perf_counter()),
    )  # fmt: skip
    lengths = np.diff(stamps)
    assert np.median(lengths[10:]) < 2 * most
