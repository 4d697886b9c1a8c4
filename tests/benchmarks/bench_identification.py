"""How fast is identification, beside y0 and as graphs and sets grow?

Ratios are measured by turns in one run.

Internals: the answers of y0 are timed without what the package adds to them.
"""

import json
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from y0.algorithm.identify import identify_outcomes
from y0.dsl import Variable
from y0.graph import NxMixedGraph

import causal_bo_ppl as cb
from causal_bo_ppl.identification import y0_adapter as answers


def seconds(work):
    """Wall time of one call that finds no answer of y0 kept."""
    answers._ask.cache_clear()
    start = perf_counter()
    work()
    return perf_counter() - start


def write_network(path, size, degree):
    """A random network in the layout of ecoli70.json; on average `degree` edges touch a node."""
    draws = np.random.default_rng(0)
    names, parents = [f"G{position:03}" for position in range(size)], {}
    for position, name in enumerate(names):
        parents[name] = [
            other for other in names[:position] if draws.uniform() < degree / (size - 1)
        ]
    coefficients = {
        name: {"(Intercept)": [float(draws.normal())]}
        | {other: [float(draws.normal())] for other in found}
        for name, found in parents.items()
    }
    cpds = {
        name: {"coefficients": coefficients[name], "variance": [1.0], "parents": found}
        for name, found in parents.items()
    }
    arcs = [[other, name] for name, found in parents.items() for other in found]
    path.write_text(json.dumps({"nodes": names, "arcs": arcs, "cpds": cpds}))
    causes = {}
    for name, found in parents.items():
        causes[name] = set(found).union(*(causes[other] for other in found))
    return max(names, key=lambda name: len(causes[name]))


def question(folder, size, count, degree=3):
    """The graph of such a network, its variable with most causes, and random sets of these.

    A set has up to five members.
    """
    target = write_network(folder / "network.json", size, degree)
    problem = cb.models.gaussian_network(folder / "network.json", target=target, max_size=1).problem
    draws, sets = np.random.default_rng(1), set()
    while len(sets) < count:
        sets.add(
            problem.graph.require(
                draws.choice(problem.manipulable, draws.integers(1, 6), replace=False).tolist()
            )
        )
    return problem.graph, target, sorted(sets)


def test_ecoli70_is_identified_and_verified_faster_than_by_y0_set_by_set(say):
    problem = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5).problem
    graph = NxMixedGraph.from_str_edges(
        nodes=list(problem.graph.nodes), directed=list(problem.graph.directed)
    )

    def one_by_one():
        for members in problem.sets:
            identify_outcomes(
                graph, {Variable(name) for name in members}, {Variable(problem.target)}
            )

    turns = [(seconds(one_by_one), seconds(lambda: cb.identify(problem))) for _ in range(5)]
    theirs, ours = (min(times) for times in zip(*turns, strict=True))
    ratios = sorted(slow / fast for slow, fast in turns)
    say(
        f"ecoli70 b1583, {len(problem.sets)} sets: y0 once per set {theirs:.2f} s, ours with "
        f"verification {ours:.2f} s"
    )
    say(f"  ratio by turns: {ratios[0]:.1f} to {ratios[-1]:.1f}")
    assert ratios[2] >= 3


@pytest.mark.parametrize("degree", [3, 6])
def test_500_sets_on_100_nodes_take_under_two_minutes(degree, tmp_path, say):
    graph, target, sets = question(tmp_path, 100, 500, degree)
    found = []
    took = seconds(lambda: found.append(cb.identify(graph, target, sets)))
    worst = max(one.error for one in found[0].values())
    say(
        f"500 sets, 100 nodes, {len(graph.directed)} edges, {len(graph.ancestors(target))} causes "
        "of the target:"
    )
    say(f"  {took:.1f} s, largest relative error {worst:.0e}")
    assert took < 120 and all(one.verified for one in found[0].values())


def growth(label, sizes, questions, say):
    times = [min(seconds(lambda q=q: cb.identify(*q)) for _ in range(2)) for q in questions]
    steps = pairwise(zip(sizes, times, strict=True))
    exponents = [
        np.log(late / early) / np.log(large / small) for (small, early), (large, late) in steps
    ]
    taken = [f"{size}: {took:.2f} s" for size, took in zip(sizes, times, strict=True)]
    say(f"{label}: {', '.join(taken)}")
    say(f"  exponents {', '.join(f'{exponent:.1f}' for exponent in exponents)}")
    return exponents


def test_growth_of_all_single_sets_with_nodes(tmp_path, say):
    sizes, questions = (125, 250, 500, 1000), []
    for size in sizes:
        target = write_network(tmp_path / "network.json", size, 8)
        system = cb.models.gaussian_network(tmp_path / "network.json", target=target, max_size=1)
        questions.append((system.problem.graph, target, list(system.problem.sets)))
    counts = ", ".join(str(len(sets)) for _, _, sets in questions)
    exponents = growth(f"all single sets ({counts}), by nodes", sizes, questions, say)
    assert np.mean(exponents) < 2.7


def test_growth_with_nodes_and_sets(tmp_path, say):
    nodes, counts = (25, 50, 100, 200), (50, 200, 800)
    by_nodes = growth(
        "200 sets, by nodes", nodes, [question(tmp_path, size, 200) for size in nodes], say
    )
    by_sets = growth(
        "100 nodes, by sets", counts, [question(tmp_path, 100, count) for count in counts], say
    )
    assert max(by_sets) < 1.3 and np.mean(by_nodes) < 2.5
