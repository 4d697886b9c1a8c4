"""Structural systems that the package's mechanisms do not describe, with their truth by simulation.

A system draws one variable after another from its causes and its noise. Effects are averages over
common draws of the noise, so that they share no code with what is tested.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import causal_bo_ppl as cb

TRUTH_DRAWS = 4_000
Values = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class SimulatedSystem:
    """A problem and its truth.

    equations: a function of the values of all variables before it and of its noise, by variable, in
    causal order. noises: a function of a generator and a number of draws, by variable.
    """

    problem: cb.Problem
    equations: dict[str, Callable[[Values, np.ndarray], np.ndarray]]
    noises: dict[str, Callable[[np.random.Generator, int], np.ndarray]]

    def draw(self, setting, count, rng):
        """Return values (count, p) of all variables, some of them set."""
        values = {}
        for name, equation in self.equations.items():
            noise = self.noises[name](rng, count)  # drawn also where it is not used: common numbers
            values[name] = (
                np.full(count, setting[name]) if name in setting else equation(values, noise)
            )
        return np.column_stack([values[name] for name in self.problem.graph.nodes])

    def observe(self, count, seed):
        """Return observations in which nothing was set."""
        values = self.draw({}, count, np.random.default_rng([seed, 0]))
        nodes, target = self.problem.graph.nodes, self.problem.target
        return cb.Data(nodes, target, values, np.zeros(values.shape, bool))

    def experiment(self, seed, whole=True):
        """Return an experiment that gives whole rows, or outcomes alone."""
        rng, target = np.random.default_rng([seed, 1]), self.problem.target
        nodes = self.problem.graph.nodes

        def run(queries):
            settings = self.problem.interventions(queries)
            rows = np.concatenate([self.draw(each, 1, rng) for each in settings])
            if not whole:
                return rows[:, nodes.index(target)]
            return cb.Data(nodes, target, rows, np.array(queries.mask))

        return run

    def outcomes(self, setting):
        """Return many outcomes of an intervention, with common noise."""
        values = self.draw(setting, TRUTH_DRAWS, np.random.default_rng(12345))
        return values[:, self.problem.graph.nodes.index(self.problem.target)]

    def effect(self, setting):
        """Return the mean outcome of an intervention."""
        return float(self.outcomes(setting).mean())

    @cached_property
    def extremes(self):
        """The best and the worst effect of all interventions, by a search over many points."""
        problem = self.problem
        queries = [
            *problem.interventions(problem.sobol(64)),
            *problem.interventions(problem.vertices()),
        ]
        effects = np.array([self.effect(each) for each in [{}, *queries]])
        ends = effects.min(), effects.max()
        return ends if problem.objective == "min" else ends[::-1]

    def gap(self, setting):
        """Return how much worse than the best an intervention is, as a share of the range."""
        best, worst = self.extremes
        return max((self.effect(setting) - best) / (worst - best), 0.0)


def describe(system, run):
    """Return the gap of a run's recommendation, and how its interval agrees with outcomes."""
    best, truth = run.best, system.effect(run.best.intervention)
    low, high = best.interval(0.9)
    tried = [tuple(sorted(each.items())) for each in system.problem.interventions(run.queries)]
    own = [
        y
        for each, y in zip(tried, run.experiments.outcome, strict=True)
        if each == tuple(sorted(best.intervention.items()))
    ]
    found = {
        "by": best.by,
        "gap": system.gap(best.intervention),
        "mean": best.mean,
        "lower": low,
        "upper": high,
    }
    beyond = np.nan
    if own:
        error = float(system.outcomes(best.intervention).std() / np.sqrt(len(own)))
        beyond = max(low - np.mean(own), np.mean(own) - high, 0.0) / error
    found |= {"truth": truth, "holds": low <= truth <= high, "outcomes": len(own), "beyond": beyond}
    found["stubborn"] = count_stubborn(system, run, tried)
    found["most repeats"] = max(Counter(tried).values())
    found["discrepancy"] = bool(run.study.state.discrepancy)
    found["says so"] = "model discrepancy" in " ".join(run.study.warnings)
    return found


def count_stubborn(system, run, tried):
    """Return how often an intervention was tried again that had been far worse than predicted.

    That is where the mean of its outcomes before was 3 true standard errors worse than its
    prediction when it was chosen.
    """
    sign, outcomes = 1 if system.problem.objective == "min" else -1, run.experiments.outcome
    count = 0
    for now, predicted in enumerate(run.trace["mean"].to_numpy()):
        own = [outcomes[row] for row in range(now) if tried[row] == tried[now]]
        if own:
            error = system.outcomes(dict(tried[now])).std() / np.sqrt(len(own))
            count += bool(sign * (np.mean(own) - predicted) > 3 * error)
    return count


def gaussian(rng, count):
    return rng.normal(size=count)


def skewed(rng, count):
    return rng.exponential(size=count) - 1


def bimodal(rng, count):
    return (rng.integers(0, 2, size=count) * 2 - 1) * 0.95 + 0.3 * rng.normal(size=count)


NOISES = {"gaussian": gaussian, "varying": gaussian, "skewed": skewed, "bimodal": bimodal}
SHAPES = {
    "linear": lambda x: x,
    "saturation": lambda x: 1.3 * np.tanh(1.5 * x),
    "quadratic": lambda x: 0.7 * (x**2 - 1),
    "exp": lambda x: np.exp(0.7 * np.clip(x, -6, 6)) - 1.2,
}


def random_system(seed):
    """Return a random system of 3 to 6 variables, its shapes and noises drawn anew by each seed.

    Every variable is scaled to an sd near 1 where nothing is set; domains reach from -2 to 2.
    """
    rng = np.random.default_rng([seed, 2])
    count = int(rng.integers(3, 7))
    names = [f"V{index}" for index in range(count - 1)] + ["Y"]
    parents = {names[0]: []}
    for index in range(1, count):
        most = min(index, 3)
        chosen = rng.choice(index, size=int(rng.integers(1, most + 1)), replace=False)
        parents[names[index]] = [names[each] for each in sorted(chosen)]
    edges = [(cause, name) for name, causes in parents.items() for cause in causes]
    graph = cb.CausalGraph.from_edges(edges)
    settable = sorted(graph.ancestors("Y"))[:4]
    domains = {name: (-2.0, 2.0) for name in settable}
    problem = cb.Problem(graph, "Y", domains=domains, sets=2 if len(settable) > 1 else 1)
    equations, noises, values = {}, {}, {}
    for name, causes in parents.items():
        kind = str(rng.choice(list(NOISES)))
        shapes = [SHAPES[str(rng.choice(list(SHAPES)))] for _ in causes]
        weights = rng.uniform(0.5, 1.5, size=len(causes)) * rng.choice([-1, 1], size=len(causes))
        product = float(rng.choice([0.0, 1.0])) if len(causes) > 1 else 0.0
        size = rng.uniform(0.3, 0.8)
        base = _equation(causes, shapes, weights, product, size, kind == "varying")
        noises[name] = NOISES[kind]
        drawn = base(values, noises[name](rng, 2_000))
        values[name] = (drawn - drawn.mean()) / drawn.std()
        equations[name] = _scaled(base, drawn.mean(), drawn.std())
    return SimulatedSystem(problem, equations, noises)


def _equation(causes, shapes, weights, product, size, varies):
    def equation(values, noise):
        total = np.zeros(len(noise))
        for cause, shape, weight in zip(causes, shapes, weights, strict=True):
            total = total + weight * shape(values[cause])
        if product:
            total = total + product * values[causes[0]] * values[causes[1]]
        factor = 0.3 + 0.7 * np.abs(values[causes[0]]) if varies and causes else 1.0
        return total + (size if causes else 1.0) * factor * noise

    return equation


def _scaled(equation, mean, sd):
    return lambda values, noise: (equation(values, noise) - mean) / sd


def system_of(text, domains, equations, noise=gaussian, objective="min", **options):
    """Return a system of a graph's text; each variable that has no equation is its noise."""
    graph = cb.CausalGraph.parse(text)
    problem = cb.Problem(graph, "Y", objective=objective, domains=domains, **options)
    order = graph.nodes
    every = {name: equations.get(name, lambda values, e: e) for name in order}
    return SimulatedSystem(problem, every, dict.fromkeys(order, noise))


def _simulator():
    """Nine variables of a made-up plant: what drives the yield grows, and the yield falls again.

    Rows of experiments raise what is expected of G, and the outcomes of Y do not follow.
    """
    text = (
        """A -> C; B -> D; C -> E; D -> E; D -> F; E -> G; F -> G; C -> H; F -> H; G -> Y; H -> Y"""
    )
    equations = {
        "C": lambda v, e: 0.7 * v["A"] + 0.1 * v["A"] ** 2 + 0.3 * e,
        "D": lambda v, e: 0.7 * v["B"] + 0.3 * e,
        "E": lambda v, e: 0.6 * v["C"] + 0.15 * v["C"] * v["D"] + 0.3 * e,
        "F": lambda v, e: 0.3 * v["D"] + 0.3 * e,
        "G": lambda v, e: 1.5 + v["E"] + 0.15 * v["E"] ** 2 + 0.3 * v["F"] + 0.3 * e,
        "H": lambda v, e: 0.3 * v["C"] - 0.5 * v["F"] + 0.3 * e,
        "Y": lambda v, e: 3 * v["G"] - 0.6 * v["G"] ** 2 - 0.2 * v["H"] + e,
    }
    domains = dict.fromkeys("ABCD", (-2.5, 2.5))
    return system_of(text, domains, equations, objective="max", sets=2)


SYSTEMS = {  # with the number of observations to begin with
    "product": (
        system_of(
            "A -> Y; B -> Y", dict.fromkeys("AB", (-2.0, 2.0)),
            {"Y": lambda v, e: v["A"] * v["B"] - 0.2 * v["A"] ** 2 + 0.4 * v["B"] + e},
        ), 60,
    ),
    "dose": (
        system_of(
            "D -> R; D -> S; R -> Y; S -> Y", {"D": (0.0, 4.0)},
            {
                "D": lambda v, e: np.clip(1.5 + 0.7 * e, 0, None),
                "R": lambda v, e: 4 * v["D"] / (1 + v["D"]) + 0.3 * e,
                "S": lambda v, e: 0.25 * v["D"] ** 2 + 0.3 * e,
                "Y": lambda v, e: v["R"] - v["S"] + 0.5 * e,
            },
            objective="max",
        ), 60,
    ),
    "gate": (
        system_of(
            "A -> Y; B -> Y", dict.fromkeys("AB", (-2.0, 2.0)),
            {"Y": lambda v, e: 1.5 * v["A"] * (v["B"] > 0) + 0.5 * e},
        ), 60,
    ),
    "chain of a square": (
        system_of(
            "X -> Z -> Y", dict.fromkeys("XZ", (-2.0, 2.0)),
            {
                "Z": lambda v, e: v["X"] + (0.2 + 0.6 * np.abs(v["X"])) * e,
                "Y": lambda v, e: 0.5 * (v["Z"] - 0.7) ** 2 + 0.3 * e,
            },
        ), 60,
    ),
    "skewed exp": (
        system_of(
            "X -> Z -> Y; W -> Y", dict.fromkeys("XZW", (-2.0, 2.0)),
            {
                "Z": lambda v, e: 0.8 * v["X"] + 0.5 * e,
                "Y": lambda v, e: np.exp(v["Z"] / 2) - v["Z"] + 0.8 * v["W"] * v["Z"] + 0.5 * e,
            },
            noise=skewed,
        ), 60,
    ),
    "plant": (_simulator(), 200),
}  # fmt: skip
