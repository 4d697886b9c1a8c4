"""Wherever the interval of a chosen intervention is shown, it says that it ignores the choice.

Internals: the warning is compared with its text, and the command line is called in this process.
"""

import numpy as np
import pytest
from typer.testing import CliRunner

import causal_bo_ppl as cb
from causal_bo_ppl.cli import app
from causal_bo_ppl.optimization.state import CHOICE_NOTE, CHOICE_WARNING


@pytest.fixture(scope="module")
def run(chain):
    return cb.optimize(chain, rounds=1, observations=30, key=0)


@pytest.fixture(scope="module")
def study(chain):
    return cb.Study(chain.problem, chain.observe(50, 0), key=0)


def ends(shown):
    low, high = shown.interval()
    return f"90 % in [{low:.4g}, {high:.4g}], {CHOICE_NOTE}"


def test_the_warning_names_the_problem_and_the_remedy():
    for words in ("does not account for the choice", "less often than it says", "after the choice"):
        assert words in CHOICE_WARNING
    assert CHOICE_NOTE == "not adjusted for being chosen"


def test_a_run_and_its_recommendation_show_the_warning(run):
    for shown in (run, run.best):
        assert ends(run.best) in repr(shown)
        assert CHOICE_WARNING in shown._repr_html_() and CHOICE_NOTE in shown._repr_html_()


def test_a_study_shows_the_warning_before_and_after_an_outcome(study):
    for each in (study, study.tell({"Z": 5.0}, -6.0)):
        assert ends(each.best) in repr(each) and ends(each.best) in repr(each.best)
        assert CHOICE_WARNING in each._repr_html_()


def test_suggestions_and_their_reasons_show_the_warning(study):
    batch = study.ask(2)
    assert all(ends(each) in repr(each) and ends(each) in each.why.text for each in batch)
    assert CHOICE_WARNING in batch._repr_html_() and CHOICE_WARNING in batch[0]._repr_html_()


def test_observing_was_not_chosen_for_its_effect(chain):
    always = cb.Settings(observe=cb.optimization.Observe(batch=5, probability=1 - 1e-9))
    suggestion = cb.Study(chain.problem, chain.observe(50, 0), always, key=0).ask()
    assert suggestion.intervention == {} and CHOICE_NOTE not in repr(suggestion)


@pytest.mark.heavy
def test_the_command_line_shows_the_warning():
    shown = CliRunner().invoke(app, ["demo", "chain", "--rounds", "1", "--observations", "30"])
    assert CHOICE_WARNING in shown.stdout and f"({CHOICE_NOTE}), at do(" in shown.stdout


@pytest.mark.slow
def test_intervals_of_what_looks_best_among_many_weak_effects_hold_it_too_seldom():
    """Thirty equally good causes: of a fixed one 90 % intervals cover 90 %, of the best fewer."""
    nodes = [f"x{index}" for index in range(30)]
    graph = cb.CausalGraph.from_edges([(name, "y") for name in nodes])
    domains = dict.fromkeys(nodes, (-1.0, 1.0))
    problem = cb.Problem(graph, "y", domains=domains, sets=[(name,) for name in nodes])
    generator, hits = np.random.default_rng(0), {"chosen": [], "fixed": []}
    positions = [graph.index(name) for name in nodes]
    for _ in range(150):
        values = np.empty((60, 31))
        values[:, positions] = generator.normal(size=(60, 30))
        values[:, graph.index("y")] = generator.normal(size=60)  # no cause has any effect
        data = cb.Data(graph.nodes, "y", values, np.zeros(values.shape, bool))
        table = cb.effects(cb.fit(problem, data), problem.vertices())
        for name, row in (("chosen", table["mean"].argmin()), ("fixed", 0)):
            hits[name].append(table["lower"][row] <= 0 <= table["upper"][row])
    assert np.mean(hits["fixed"]) > 0.82  # 3.3 standard errors below 0.9
    assert np.mean(hits["chosen"]) < 0.82  # 0.655 in 200 data sets
