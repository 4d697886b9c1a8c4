"""How fast is a suggestion, beside Gaussian processes set by set, and as outcomes accumulate?

Both are timed by turns, in one run.

Internals: one round is timed, without the checks of a study.
"""

from time import perf_counter

import jax
import numpy as np
import pytest
from helpers.logs import recorded
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.choosing import choose
from causal_bo_ppl.optimization.state import begin, infer_state

OUTCOMES = 5  # of every set, for both


@pytest.fixture(scope="module")
def system():
    return cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)


def started(system, **options):
    """Return what an optimization knows before its first outcome."""
    settings = cb.Settings(rounds=1, learn_from="target", noise=1.0, **options)
    return begin(cb.fit(system.problem, system.observe(100, 0)), settings)


def round_of(start, log):
    """Learn from all outcomes and choose the next experiment: what a round does."""
    return choose(infer_state(start, log), spent=float(log.cost.sum()))[0].query


def botorch_suggestion(problem, members, queries, outcomes):
    """Fit a GP to the outcomes of one set and optimize its confidence bound over the set's box."""
    import torch
    from botorch.acquisition import UpperConfidenceBound
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Normalize, Standardize
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    columns = [problem.graph.index(name) for name in members]
    bounds = torch.tensor([problem.domains[name] for name in members], dtype=torch.double).T
    x = torch.tensor(np.asarray(queries.value)[:, columns])
    y = torch.tensor(outcomes)[:, None]
    scaled = Normalize(len(columns), bounds=bounds)
    model = SingleTaskGP(x, y, input_transform=scaled, outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    bound = UpperConfidenceBound(model, beta=2.0, maximize=False)
    return optimize_acqf(bound, bounds, q=1, num_restarts=2, raw_samples=16)


@pytest.mark.filterwarnings("ignore")
def test_a_suggestion_is_much_faster_than_gaussian_processes_set_by_set(system, say):
    pytest.importorskip("botorch", reason="BoTorch is not installed: `make bench` installs it")
    problem = system.problem
    queries = problem.sobol(OUTCOMES)
    outcomes = np.asarray(system.experiment(queries, 0).outcomes)
    begun, log = started(system, discrepancy=False), recorded(problem, queries, outcomes)
    round_of(begun, log)  # compiled
    ours, theirs = [], 0.0
    for position, members in enumerate(problem.sets):
        rows = slice(position * OUTCOMES, (position + 1) * OUTCOMES)
        start = perf_counter()
        botorch_suggestion(problem, members, queries[rows], outcomes[rows])
        theirs += perf_counter() - start
        if position % 20 == 0:
            start = perf_counter()
            round_of(begun, log)
            ours.append(perf_counter() - start)
    ratio = theirs / np.median(ours)
    say(
        f"one suggestion over {len(problem.sets)} sets after {len(queries)} outcomes: BoTorch GPs "
        f"{theirs:.1f} s, "
    )
    say(
        f"  ours {1e3 * np.median(ours):.1f} ms ({min(ours) * 1e3:.1f} to {max(ours) * 1e3:.1f}): "
        f"ratio {ratio:.0f}"
    )
    assert ratio >= 500


def test_rounds_cost_the_same_after_2000_outcomes_and_compile_nothing(system, say):
    stamps, compiled, draws = [], [], np.random.default_rng(0)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(len(stamps)) if "backend_compile" in event else None
    )

    def experiment(queries):
        stamps.append(perf_counter())
        return np.asarray(system.effect(queries)) + draws.normal(size=len(queries))

    optimize(
        system.problem,
        data=system.observe(100, 0),
        experiment=experiment,
        noise=1.0,
        discrepancy=False,
        rounds=2010,
        progress=False,
        key=0,
    )
    rounds = np.diff(stamps)
    early, late = np.median(rounds[10:40]), np.median(rounds[-30:])
    say(
        f"a round at t = 20: {1e3 * early:.1f} ms, at t = 2,000: {1e3 * late:.1f} ms, ratio "
        f"{late / early:.2f}"
    )
    say(f"  compiled last in round {max(compiled, default=0) + 1}")
    assert late <= 1.5 * early and max(compiled, default=0) <= 2


def test_the_cost_law_of_rounds_with_a_discrepancy_is_shown(system, say):
    """Outcomes of 60 vertices, with replicates; and of as many interventions as outcomes."""
    draws, counts = np.random.default_rng(0), (20, 200, 2_000)
    corners = system.problem.vertices()
    some = corners[draws.permutation(len(corners))[:60]][draws.integers(0, 60, counts[-1])]
    spread = system.problem.sobol(16)
    spread = spread[draws.permutation(len(spread))[: counts[-1]]]
    for name, queries in (("60 interventions", some), ("distinct interventions", spread)):
        outcomes = np.asarray(system.experiment(queries, 0).outcomes)
        log = recorded(system.problem, queries, outcomes)
        for residual in (False, True):
            taken = []
            for count in counts:
                begun, times = started(system, discrepancy=residual), []
                for _ in range(3):
                    start = perf_counter()
                    round_of(begun, log.select(slice(0, count)))
                    times.append(perf_counter() - start)
                taken.append(f"t = {count:,}: {1e3 * np.median(times):.0f} ms")
            words = "with" if residual else "without"
            say(f"a round {words} a residual, {name}: {', '.join(taken)}")
