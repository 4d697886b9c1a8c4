"""Graphs that tests of identification share, and what must be true of every result."""

import numpy as np
import pytest
from helpers.oracles import (
    BinarySCM,
    ancestors,
    bidirected_connected,
    cut,
    dense_effect,
    enumerate_expression,
    has_hedge,
    random_admg,
)

import causal_bo_ppl as cb

TIAN = (
    "W1 -> W2 -> X -> Y; W3 -> W4 -> X; W1 <-> X; W1 <-> Y; W1 <-> W3; W3 <-> W2; W5; W3 <-> W5; "
    "W5 <-> W4"
)
NAPKIN = "W -> Z -> X -> Y; W <-> X; W <-> Y"
TWO_COVARIATES = "Z1 -> Z2; Z1 -> X; Z2 -> X; Z1 -> Y; Z2 -> Y; X -> Y"


def identify(text, intervened="X", target="Y"):
    return cb.identify(cb.CausalGraph.parse(text), target, [intervened])[intervened]


def random_query(draws, most_nodes=7):
    """An ADMG of 3 to 7 nodes, a target with ancestors, and a random set of these."""
    while True:
        nodes, directed, bidirected = random_admg(draws, most_nodes)
        target = nodes[int(draws.integers(len(nodes)))]
        causes = sorted(ancestors(directed, {target}) - {target})
        if len(nodes) >= 3 and causes:
            break
    several = tuple(v for v in causes if draws.uniform() < 0.4)
    chosen = (
        several
        if several and draws.uniform() < 0.5
        else (causes[int(draws.integers(len(causes)))],)
    )
    return nodes, directed, bidirected, chosen, target


def random_moments(draws, graph, chosen, target):
    """Mean, covariance and the true slopes of a random linear SEM, all by dense algebra."""
    size = len(graph.nodes)
    weights, noise = np.zeros((size, size)), np.eye(size)
    for cause, effect in graph.directed:
        weights[graph.index(cause), graph.index(effect)] = draws.normal()
    for one, other in graph.bidirected:
        shared = np.zeros(size)
        shared[[graph.index(one), graph.index(other)]] = draws.normal(size=2)
        noise += np.outer(shared, shared)
    intercepts = draws.normal(size=size)
    solve = np.linalg.inv(np.eye(size) - weights.T)
    columns, values = [graph.index(name) for name in chosen], draws.normal(size=len(chosen))

    def effect(at):
        return dense_effect(weights, intercepts, graph.index(target), columns, at)

    unit = np.eye(len(chosen))
    slopes = {name: effect(unit[k]) - effect(0 * unit[k]) for k, name in enumerate(chosen)}
    query = dict(zip(chosen, values.tolist(), strict=True))
    return solve @ intercepts, solve @ noise @ solve.T, slopes, query, effect(values)


def require_hedge(directed, bidirected, chosen, target, outer, inner):
    """Two C-forests with the same roots (all of the inner one): the outer one meets the set."""
    assert outer & set(chosen) and inner < outer and not inner & set(chosen)
    assert inner <= ancestors(cut(directed, bidirected, chosen)[0], {target})
    assert ancestors([e for e in directed if set(e) <= outer], inner) == outer
    assert bidirected_connected(bidirected, outer) and bidirected_connected(bidirected, inner)


def require_right(draws, nodes, directed, bidirected, chosen, target):
    """The verdict is the hedge criterion's; the estimand is right in a binary and a linear SCM."""
    graph = cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes)
    found = cb.identify(graph, target, [chosen])[chosen]
    assert found.identifiable is not has_hedge(nodes, directed, bidirected, chosen, target), (
        graph,
        chosen,
        target,
    )
    if not found.identifiable:
        require_hedge(directed, bidirected, chosen, target, *map(set, found.hedge))
        return "hedge"
    assert found.verified and found.error < 1e-9
    scm = BinarySCM(draws, graph.nodes, directed, bidirected)
    others = tuple(
        position for position, name in enumerate(graph.nodes) if name not in {*chosen, target}
    )
    truth = scm.joint(chosen).sum(axis=others, keepdims=True)
    value = enumerate_expression(found.estimand, scm.joint(), graph.nodes)
    np.testing.assert_allclose(value + 0 * truth, truth, atol=1e-10, err_msg=str((graph, found)))
    mean, covariance, slopes, query, effect = random_moments(draws, graph, chosen, target)
    assert found.evaluate(covariance) == pytest.approx(slopes, abs=1e-6)
    assert found.evaluate(covariance, mean, query) == pytest.approx(effect, abs=1e-6)
    return found.route
