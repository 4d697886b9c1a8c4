"""Which systems are measured? Five linear ones, whose rows are made here by NumPy alone.

A row is made from `default_rng(seed)` by sums and products of columns, in the order of the
equations, so that it has the same bits on every machine.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

import causal_bo_ppl as cb

ECOLI = Path(__file__).resolve().parents[2] / "models" / "ecoli70.json"


class Equations(NamedTuple):
    """Linear equations V = a + sum b cause + sd e, with one latent cause for each arc.

    slopes: {(cause, effect): b}. intercepts, sds: {variable: number}, in causal order.
    arcs: {(one, other): (weight in one, weight in other)}.
    """

    slopes: dict
    intercepts: dict
    sds: dict
    arcs: dict


class Rows(NamedTuple):
    """Columns of values by name, and for each variable in which rows it was set."""

    values: dict
    is_set: dict


class Case(NamedTuple):
    """A problem with its equations, observational rows and rows of experiments."""

    name: str
    problem: cb.Problem
    equations: Equations
    observed: Rows
    tried: Rows


def simulate(equations, count, seed, is_set=None, value=None):
    """Rows of the equations; `is_set` and `value` are {name: (count,)} of what is set."""
    generator = np.random.default_rng(seed)
    latent = {arc: generator.standard_normal(count) for arc in equations.arcs}
    values, masks = {}, {}
    for name, sd in equations.sds.items():
        total = equations.intercepts[name] + sd * generator.standard_normal(count)
        for (one, other), (left, right) in equations.arcs.items():
            if name in (one, other):
                total = total + (left if name == one else right) * latent[one, other]
        for (cause, effect), slope in equations.slopes.items():
            if effect == name:
                total = total + slope * values[cause]
        masks[name] = np.zeros(count, bool) if is_set is None else np.asarray(is_set[name])
        values[name] = total if is_set is None else np.where(masks[name], value[name], total)
    return Rows(values, masks)


def draw_settings(problem, count, seed):
    """What is set in each row: the problem's sets in turn, at uniform values."""
    generator = np.random.default_rng(seed)
    names = problem.graph.nodes
    is_set = {name: np.zeros(count, bool) for name in names}
    value = {name: np.zeros(count) for name in names}
    for row in range(count):
        for name in problem.sets[row % len(problem.sets)]:
            is_set[name][row], value[name][row] = True, generator.uniform(*problem.domains[name])
    return is_set, value


def draw_interventions(problem, count, seed, sets=None):
    """`count` interventions as {name: value}, spread over the problem's sets."""
    sets = problem.sets if sets is None else sets
    generator = np.random.default_rng(seed)
    chosen = [sets[int(place)] for place in np.linspace(0, len(sets) - 1, count).round()]
    return [
        {name: float(generator.uniform(*problem.domains[name])) for name in each} for each in chosen
    ]


def join(one, other):
    """The rows of both."""
    return Rows(
        *(
            {name: np.concatenate([left[name], right[name]]) for name in left}
            for left, right in zip(one, other, strict=True)
        )
    )


def take(rows, chosen):
    """Some of the rows."""
    return Rows(*({name: column[chosen] for name, column in part.items()} for part in rows))


def implied_covariance(case):
    """(p, p) covariance of the observed variables in the order of the graph, by dense algebra."""
    names = case.problem.graph.nodes
    at = {name: place for place, name in enumerate(names)}
    weights = np.zeros((len(names), len(names)))
    noise = np.diag([case.equations.sds[name] ** 2 for name in names])
    for (cause, effect), slope in case.equations.slopes.items():
        weights[at[cause], at[effect]] = slope
    for (one, other), pair in case.equations.arcs.items():
        load = np.zeros(len(names))
        load[[at[one], at[other]]] = pair
        noise = noise + np.outer(load, load)
    inverse = np.linalg.inv(np.eye(len(names)) - weights.T)
    return inverse @ noise @ inverse.T


def typical_values(case):
    """{name of a coordinate: value near the truth}: b[X->Z], a[Z], log sd[Z] and t[X<->Y]."""
    equations, found = case.equations, {}
    for (cause, effect), slope in equations.slopes.items():
        found[f"b[{cause}->{effect}]"] = slope
    for name, sd in equations.sds.items():
        loads = [pair[arc.index(name)] for arc, pair in equations.arcs.items() if name in arc]
        found[f"a[{name}]"] = equations.intercepts[name]
        found[f"log sd[{name}]"] = 0.5 * float(np.log(sd**2 + sum(load**2 for load in loads)))
    for place, (one, other) in enumerate(equations.arcs):
        found[f"t[{one}<->{other}]"] = 0.3 * (-1) ** place
    return found


def _make(name, problem, equations, observed, tried, seed):
    is_set, value = draw_settings(problem, tried, seed + 1)
    rows = simulate(equations, observed, seed)
    return Case(name, problem, equations, rows, simulate(equations, tried, seed + 2, is_set, value))


def _chain():
    """A chain whose two best interventions are about equally good, so that runs alternate."""
    problem = cb.Problem(
        cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-5, 5), "Z": (-4, 4)}
    )
    slopes = {("X", "Z"): 0.8, ("Z", "Y"): -1.3}
    intercepts, sds = {"X": 0.3, "Z": -0.5, "Y": 1.0}, {"X": 1.0, "Z": 0.7, "Y": 1.2}
    return _make("chain", problem, Equations(slopes, intercepts, sds, {}), 60, 20, 100)


def _ecoli():
    """The gene network, b1583 without its parents: 11 causes, sets of up to two."""
    problem = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2).problem
    cpds = json.loads(ECOLI.read_text())["cpds"]
    slopes, intercepts, sds = {}, {}, {}
    for name in problem.graph.nodes:
        [intercept] = cpds[name]["coefficients"]["(Intercept)"]
        intercepts[name], sds[name] = intercept, float(np.sqrt(cpds[name]["variance"][0]))
        for cause in cpds[name]["parents"]:
            slopes[cause, name] = cpds[name]["coefficients"][cause][0]
    return _make("ecoli", problem, Equations(slopes, intercepts, sds, {}), 120, 36, 200)


def _front_door():
    """The front door: a latent cause joins X and Y, and Z carries the effect of X."""
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-5, 5), "Z": (-3.8, 3.8)})
    slopes = {("X", "Z"): 0.8, ("Z", "Y"): -1.3}
    intercepts, sds = {"X": 0.3, "Z": -0.5, "Y": 1.0}, {"X": 0.8, "Z": 0.7, "Y": 0.9}
    arcs = {("X", "Y"): (0.7, 0.9)}
    return _make("front_door", problem, Equations(slopes, intercepts, sds, arcs), 150, 20, 300)


def _random():
    """A dense DAG without intercepts, of which two coefficients are known."""
    slopes = {
        ("A", "B"): 0.7, ("A", "C"): -0.5, ("B", "C"): 0.9, ("B", "D"): 1.1, ("C", "D"): -0.8,
        ("C", "Y"): 0.6, ("D", "Y"): -1.2, ("A", "Y"): 0.4,
    }  # fmt: skip
    domains = {"A": (-1, 2), "B": (-2, 2), "C": (-3, 2), "D": (-4, 2)}
    known = {("A", "B"): 0.7, ("C", "Y"): 0.6}
    problem = cb.Problem(
        cb.CausalGraph.from_edges(slopes, []), "Y", domains=domains, sets=3, known=known
    )
    intercepts = dict.fromkeys("ABCDY", 0.0)
    sds = {"A": 1.0, "B": 1.3, "C": 0.6, "D": 0.9, "Y": 1.1}
    return _make("random", problem, Equations(slopes, intercepts, sds, {}), 50, 28, 400)


def _napkin():
    """A napkin, whose estimand is a ratio, in a district of four; V has a hedge."""
    graph = cb.CausalGraph.parse("W -> Z -> X -> Y; W <-> X; W <-> Y; V -> Y; V <-> W")
    domains = {"V": (-2, 2), "W": (-2, 2.8), "Z": (-3, 2.9), "X": (-3, 2.2)}
    sets = [("X",), ("Z",), ("W",), ("V",), ("V", "X")]
    problem = cb.Problem(graph, "Y", domains=domains, sets=sets, identifiable_only=True)
    slopes = {("W", "Z"): 0.9, ("Z", "X"): 1.2, ("X", "Y"): -1.1, ("V", "Y"): 0.6}
    intercepts = {"V": 0.2, "W": -0.4, "Z": 0.5, "X": 0.1, "Y": 0.7}
    sds = {"V": 0.8, "W": 0.7, "Z": 0.9, "X": 0.6, "Y": 0.8}
    arcs = {("V", "W"): (0.6, 0.5), ("W", "X"): (0.5, 0.6), ("W", "Y"): (0.4, 0.7)}
    return _make("napkin", problem, Equations(slopes, intercepts, sds, arcs), 250, 30, 500)


_MAKERS = {
    "chain": _chain,
    "ecoli": _ecoli,
    "front_door": _front_door,
    "random": _random,
    "napkin": _napkin,
}
NAMES = tuple(_MAKERS)


@lru_cache
def load(name):
    """The case of this name, made once."""
    return _MAKERS[name]()
