"""Problems with levels and constraints, and what tests ask of them."""

import json
import math

import numpy as np

import causal_bo_ppl as cb

NAMES = ("A", "B", "C", "D", "E", "F")


def posed(domains, constraints=(), **options):
    """A problem in which every variable with a domain is a cause of Y."""
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in domains])
    options = {"sets": [tuple(domains)]} | options
    return cb.Problem(graph, "Y", domains=domains, constraints=constraints, **options)


def random_constraints(rng, names, domains, count):
    """Constraints through points near the middle of the box, so that the region is not empty."""
    middle = {name: np.mean(list(domains[name])) for name in names}
    found = []
    for _ in range(count):
        chosen = rng.choice(list(names), rng.integers(1, len(names) + 1), replace=False)
        terms = {str(name): float(rng.normal() + 0.1) for name in chosen}
        centre = sum(terms[name] * middle[name] for name in terms)
        reach = sum(abs(terms[name]) * np.ptp(list(domains[name])) for name in terms)
        upper = centre + rng.uniform(0.02, 0.4) * reach
        lower = centre - rng.uniform(0.02, 0.4) * reach if rng.random() < 0.5 else None
        found.append(cb.LinearConstraint(terms, lower=lower, upper=upper))
    return found


def half_spaces(problem):
    names = problem.manipulable
    rows, bounds = [], []
    for each in problem.constraints:
        row = np.array([each.coefficients.get(name, 0.0) for name in names])
        for sign, bound in ((1, each.upper), (-1, each.lower)):
            if bound is not None:
                rows.append(sign * row)
                bounds.append(sign * bound)
    return np.array(rows), np.array(bounds)


def values_of(problem, queries):
    return np.asarray(queries.value)[:, [problem.graph.index(n) for n in problem.manipulable]]


def random_domains(rng, names):
    """Boxes of different scales, some far from 0; some variables have levels."""
    domains = {}
    for name in names:
        scale = 10.0 ** rng.integers(-6, 7)
        low = float(rng.choice([0.0, -1.0, rng.normal(), 100 * rng.normal()]) * scale)
        high = low + float(rng.choice([1.0, rng.uniform(0.1, 3)]) * scale)
        domains[name] = (low, high)
        if rng.random() < 0.25:
            shares = np.linspace(0, 1, int(rng.integers(2, 5)))
            domains[name] = cb.Levels((low + shares * (high - low)).tolist())
    return domains


def random_polytope(seed):
    """A problem of two to four variables with constraints; thin and degenerate ones among them.

    All constraints hold at one point, which may be a corner of the box and may be all that is left.
    """
    rng = np.random.default_rng(seed)
    names = NAMES[: int(rng.integers(2, 5))]
    domains = random_domains(rng, names)
    inner = {}
    for name, domain in domains.items():
        low, high = domain if isinstance(domain, tuple) else domain.bounds
        inner[name] = float(rng.choice([low, high, rng.uniform(low, high)]))
        if not isinstance(domain, tuple):
            inner[name] = float(rng.choice(list(domain)))
    constraints = []
    for _ in range(int(rng.integers(1, 5))):
        chosen = rng.choice(names, int(rng.integers(1, len(names) + 1)), replace=False)
        width = {name: np.ptp(list(domains[name])) for name in names}
        terms = {
            str(name): float(rng.choice([1.0, -1.0, rng.normal(), 3 * rng.normal()]) / width[name])
            for name in chosen
        }
        centre = math.fsum(slope * inner[name] for name, slope in terms.items())
        reach = sum(abs(slope) * width[name] for name, slope in terms.items())
        slack = float(rng.choice([0.0, 1e-12, 1e-7, rng.uniform(0.01, 0.5)]) * reach)
        below = float(rng.choice([1e-6, rng.uniform(0.01, 0.5)]) * reach)
        lower = centre - below if rng.random() < 0.3 else None
        constraints.append(cb.LinearConstraint(terms, lower=lower, upper=centre + slack))
    return posed(domains, constraints)


def breaches(problem, queries):
    """How often values leave bounds, levels or sums without tolerance; numbers through JSON."""
    count = 0
    for mask, value in zip(np.asarray(queries.mask), np.asarray(queries.value), strict=True):
        setting = dict(zip(problem.graph.nodes, value.tolist(), strict=True))
        setting = {name: x for name, x in setting.items() if mask[problem.graph.index(name)]}
        setting = json.loads(json.dumps(setting))
        for name, x in setting.items():
            low, high = problem.domains[name]
            count += not low <= x <= high
            count += name in problem.levels and x not in problem.levels[name]
        for each in problem.constraints:
            used = {name: slope for name, slope in each.coefficients.items() if name in setting}
            if not each.applies(tuple(setting)):
                continue
            slopes = np.array(list(used.values()))
            numbers = np.array([setting[name] for name in used])
            sums = (
                float(np.dot(slopes, numbers)),
                float((slopes * numbers).sum()),
                sum(slope * setting[name] for name, slope in used.items()),
                math.fsum(slope * setting[name] for name, slope in used.items()),
            )
            upper = math.inf if each.upper is None else each.upper
            lower = -math.inf if each.lower is None else each.lower
            count += not (lower <= min(sums) and max(sums) <= upper)
    return count
