"""Does `cb.validate` notice a broken assumption, is it silent without one, and is it quick?"""

import time

import numpy as np
import pandas as pd
import pytest
from helpers.broken_assumptions import CASES

import causal_bo_ppl as cb

pytestmark = pytest.mark.slow
SEEDS = range(70_000, 70_020)
# Four chains all found the same mode in 4 of 20 measured data sets, so that nothing was to be seen:
# this one does not reach the 18 of the others.
LEAST_NOTICED = {"a multimodal posterior": 12}


@pytest.mark.parametrize("name", CASES)
def test_a_broken_assumption_is_noticed_in_most_data_sets(name):
    case, noticed = CASES[name], 0
    for seed in SEEDS:
        given, options = case.make(seed, True)
        cards = case.card.split(", ")
        found = cb.validate(*given, **options, only=cards, key=seed, progress=False)
        noticed += any(not found[card].passed for card in cards)
    assert noticed >= LEAST_NOTICED.get(name, 18)


@pytest.mark.parametrize("name", CASES)
def test_the_same_system_unbroken_is_refused_in_at_most_1_of_20(name):
    case, refused = CASES[name], []
    for seed in SEEDS:
        given, options = case.make(seed, False)
        found = cb.validate(*given, **options, key=seed, progress=False)
        assert not found.of("could not be computed")
        refused += [found.text] if not found.passed else []
    assert len(refused) <= 1, refused


def test_quick_takes_at_most_20_seconds():
    """11 variables, 1,000 observations, 25 sets; of one processor, compilation included."""
    draws, edges, values = np.random.default_rng(0), [], {}
    names = [f"V{number:02d}" for number in range(11)]
    for place, name in enumerate(names):
        values[name] = 0.7 * draws.normal(size=1000)
        causes = {place - 1, *draws.choice(place, min(place, 3), replace=False)} if place else ()
        for cause in sorted(causes):
            values[name] += draws.choice([-0.6, 0.5, 0.8]) * values[names[cause]]
            edges.append((names[cause], name))
    domains = dict.fromkeys(names[:7], (-2, 2))
    whole = cb.Problem(cb.CausalGraph.from_edges(edges), "V10", domains=domains, sets=2)
    problem = whole.explore(whole.sets[:25])
    start = time.process_time()
    found = cb.validate(problem, pd.DataFrame(values), key=0, progress=False)
    assert time.process_time() - start < 20
    assert found.passed and not found.of("could not be computed")
