"""How fast is a suggestion, beside Gaussian processes set by set, and as outcomes accumulate?

Both are timed by turns, in one run.
"""

from time import perf_counter

import jax
import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.acquisition import confidence_bound, first_best

OUTCOMES = 5  # of every set, for both


@pytest.fixture(scope="module")
def system():
    return cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)


def suggest(surrogate, candidates):
    """Predict all vertices of all sets anew and choose: what a round does."""
    predicted = surrogate.recentre().predict(candidates)
    return candidates[first_best(confidence_bound(predicted, 2.0, "min"), "min")]


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
    pytest.importorskip("botorch")
    problem = system.problem
    queries = problem.sobol(OUTCOMES)
    outcomes = np.asarray(system.experiment(queries, 0).outcomes)
    surrogate = cb.couple(cb.fit(problem, system.observe(100, 0)))
    for query, outcome in zip(queries, outcomes.tolist(), strict=True):
        surrogate = surrogate.tell(query, outcome, 1.0)
    candidates = problem.vertices()
    suggest(surrogate, candidates)  # compiled
    ours, theirs = [], 0.0
    for place, members in enumerate(problem.sets):
        rows = slice(place * OUTCOMES, (place + 1) * OUTCOMES)
        start = perf_counter()
        botorch_suggestion(problem, members, queries[rows], outcomes[rows])
        theirs += perf_counter() - start
        if place % 20 == 0:
            start = perf_counter()
            suggest(surrogate, candidates)
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
    assert ratio >= 100


def test_rounds_cost_the_same_after_2000_outcomes_and_compile_nothing(system, say):
    stamps, compiled, draws = [], [], np.random.default_rng(0)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(len(stamps)) if "backend_compile" in event else None
    )

    def experiment(queries):
        stamps.append(perf_counter())
        return np.asarray(system.effect(queries)) + draws.normal(size=len(queries))

    cb.optimize(
        system.problem,
        data=system.observe(100, 0),
        experiment=experiment,
        noise=1.0,
        rounds=2010,
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
