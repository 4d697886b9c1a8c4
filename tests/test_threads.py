"""Calls from several threads give what the same calls give one after the other.

Internals: calls are held inside samplers and programs, so that threads meet.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, get_ident

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.inference import nuts
from causal_bo_ppl.mechanisms.linear import draw_models

pytestmark = pytest.mark.heavy
THREADS, CALLS = 8, 40
SHORT = cb.NUTS(chains=2, draws=50, progress=False)


def at_once(*works):
    """Results of all works, begun at the same moment in threads of their own."""
    start = Barrier(len(works))

    def begin(work):
        start.wait(timeout=60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result(timeout=300) for each in [pool.submit(begin, work) for work in works]]


@pytest.mark.slow
def test_observations_simulated_in_threads_are_those_simulated_one_after_the_other():
    system, other = cb.models.load("chain"), cb.models.load("toy", variant="confounded")
    queries = system.problem.queries([{"X": 1.0}, {"Z": 2.0}, {"X": -1.0, "Z": 3.0}])

    def simulate(thread):
        found = []
        for call in range(CALLS):
            key = CALLS * thread + call
            data = [system.observe(5, key), other.observe(4, key), system.experiment(queries, key)][
                call % 3
            ]
            found.append(data.values)
        return found

    expected = [simulate(thread) for thread in range(THREADS)]
    found = at_once(*[lambda thread=thread: simulate(thread) for thread in range(THREADS)])
    assert len(found) == THREADS and len(found[0]) == CALLS
    for one, same in zip(found, expected, strict=True):
        for values, known in zip(one, same, strict=True):
            assert np.array_equal(values, known)


def test_program_may_itself_simulate_and_neither_changes_the_other():
    system, inner = cb.models.load("chain"), cb.models.load("toy")
    expected, seen = inner.observe(5, 3).values, []

    def program():
        x = numpyro.sample("X", dist.Normal(0, 1))
        seen.append(inner.observe(5, 3).values)
        z = numpyro.sample("Z", dist.Normal(0.8 * x, 1))
        numpyro.sample("Y", dist.Normal(-1.3 * z, 1))

    nested = replace(system, model=program)
    queries = system.problem.queries([{"X": 1.0}, {"Z": 2.0}])
    assert np.array_equal(nested.observe(7, 1).values, system.observe(7, 1).values)
    assert np.array_equal(
        nested.experiment(queries, 1).values, system.experiment(queries, 1).values
    )
    assert len(seen) == 2 and all(np.array_equal(values, expected) for values in seen)


def test_handlers_are_used_by_one_thread_at_a_time_while_programs_run_and_are_traced():
    inside, together = [], []

    def watched(work):
        def run(*arguments):
            inside.append(get_ident())
            found = work(*arguments)
            together.append(len(set(inside)))
            inside.remove(get_ident())
            return found

        return run

    system = cb.models.load("chain")
    data = system.observe(30, 0)
    nuts.program.cache_clear()
    watched_system = replace(system, model=watched(system.model))

    def simulate():
        return [watched_system.observe(5, key).values for key in range(CALLS)]

    def custom(width):
        def mechanism(X):  # new to the package: it is traced here
            return watched(lambda: X * numpyro.sample("b", dist.Normal(0.0, width)))()

        chosen = {"mechanisms": {"Z": mechanism}, "method": "laplace"}
        return lambda: cb.fit(system.problem, data, **chosen).mean

    def fit():
        return cb.fit(system.problem, data, method=SHORT, key=0).mean

    works = fit, custom(1.25), custom(1.26), simulate, simulate
    *first, rows, again = at_once(*works)
    assert len(together) > 2 * CALLS + 2 and set(together) == {1}
    assert np.array_equal(rows, again)
    assert all(np.array_equal(one, work()) for one, work in zip(first, works, strict=False))


def test_prior_draws_and_simulations_do_not_disturb_each_other():
    system, prior = (
        cb.models.load("chain"),
        cb.priors.FixedPrior(slope_sd=1.5, noise_observations=np.inf),
    )
    graph, key = cb.CausalGraph.parse("X -> Y"), jax.random.key(4)

    def draw():
        return [draw_models(graph, prior, {}, True, count, key).matrices for count in (8, 40)]

    def simulate():
        return [system.observe(5, key).values for key in range(CALLS)]

    rows, matrices, more = at_once(simulate, draw, simulate)
    assert np.array_equal(rows, more) and np.array_equal(rows, simulate())
    assert all(np.array_equal(one, same) for one, same in zip(matrices, draw(), strict=True))
