"""Problems with levels and constraints, and what tests ask of them."""

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
