"""How long does a real data set take, and how does that grow with observations, causes and sets?

The data are made: a protein network with 11 variables, of which 8 mechanisms matter, in 25 sets.
Seconds are of the processor, warm; the first call includes tracing and compiling.
"""

from time import process_time

import numpy as np
import pytest
from helpers.protein_network import (
    MOST_OBSERVATIONS,
    OBSERVATIONS,
    SETTABLE,
    protein_data,
    protein_problem,
)

import causal_bo_ppl as cb

# Processor seconds that each may take on two cores, of which both may work.
LIMITS = {
    "fit": 5, "auto": 10, "100 effects": 4, "check_linearity": 10, "check_predictive": 10,
    "check_loo": 10, "check_extrapolation": 10, "check_basis": 10, "prior_sensitivity": 10,
    "gaussian_error": 20, "compare_kernels": 20, "suggestion": 10,
}  # fmt: skip
MOST_GROWTH = 2.0  # from 853 to 7,500 observations, beyond what a second takes


def some(problem, count):
    queries = problem.sobol(8)
    return queries[np.sort(np.random.default_rng(0).permutation(len(queries))[:count])]


def works(problem, data):
    """Return {name: work} of all that is timed; each does what a user would do."""
    post = cb.fit(problem, data, mechanisms="gp")
    queries = some(problem, 100)

    def check(name, **options):
        return lambda: getattr(cb.diagnostics, name)(post, **options)

    def suggest():
        return cb.Study(problem, data, cb.Settings(mechanisms="gp"), key=0).ask()

    checks = [name for name in LIMITS if name.startswith(("check_", "prior_"))]
    return {
        "fit": lambda: cb.fit(problem, data, mechanisms="gp"),
        "auto": lambda: cb.fit(problem, data, mechanisms="auto"),
        "100 effects": lambda: cb.effects(post, queries, key=0),
        **{name: check(name) for name in checks},
        "gaussian_error": check("gaussian_error", key=0),
        "compare_kernels": lambda: cb.compare_kernels(post, queries, key=0, progress=False),
        "suggestion": suggest,
    }


def seconds(work):
    start = process_time()
    work()
    return process_time() - start


@pytest.fixture(scope="module")
def small():
    data = protein_data()
    problem = protein_problem(data)
    assert len(problem.sets) == 25
    taken = {name: (seconds(work), seconds(work)) for name, work in works(problem, data).items()}
    return {name: first for name, (first, _) in taken.items()}, {
        name: again for name, (_, again) in taken.items()
    }


def test_a_protein_network_takes_seconds(small, say):
    first, again = small
    for name, limit in LIMITS.items():
        say(f"{name}: first {first[name]:.1f} s, then {again[name]:.1f} s of at most {limit} s")
    slow = [name for name, limit in LIMITS.items() if not again[name] <= limit]
    assert not slow, slow


def test_nine_times_as_many_observations_take_at_most_twice_as_long(small, say):
    data = protein_data(MOST_OBSERVATIONS)
    ratios = {}
    for name, work in works(protein_problem(data), data).items():
        work()
        more = seconds(work)
        ratios[name] = (more, more / max(small[1][name], 1.0))
        say(f"{name}: {more:.1f} s of {MOST_OBSERVATIONS:,}, {small[1][name]:.1f} s of "
            f"{OBSERVATIONS}")  # fmt: skip
    slow = [name for name, (_, ratio) in ratios.items() if not ratio <= MOST_GROWTH]
    assert not slow, slow


def test_effects_grow_with_what_a_set_leaves_free(say):
    """Causes: from one edge below what is set to all. Sets: one more costs its own paths only."""
    data, taken = protein_data(), {}
    for settable in (SETTABLE[-1:], SETTABLE[-3:], SETTABLE):
        problem = protein_problem(data, settable)
        post, queries = cb.fit(problem, data, mechanisms="gp"), problem.sobol(4)
        cb.effects(post, queries, key=0)
        start = process_time()
        cb.effects(post, queries, key=0)
        taken[len(problem.sets)] = process_time() - start
        say(f"{len(problem.sets)} sets, {len(queries)} effects: {taken[len(problem.sets)]:.1f} s")
    assert taken[25] <= 6 * max(taken[1], 1.0)
