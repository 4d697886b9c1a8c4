"""Problems and rows for tests of posteriors and what follows, and dense formulas; no code of the package."""

from itertools import combinations, product

import numpy as np

import causal_bo_ppl as cb
from causal_bo_ppl.data import Data


def random_problem(seed, size=5, known=0, confounded=False, **options):
    """A DAG on which every node reaches the target (arcs too, if confounded), and the true coefficients by edge."""
    draws = np.random.default_rng(seed)
    names = [f"V{place}" for place in range(size)]
    directed = [pair for pair in combinations(names, 2) if draws.uniform() < 0.6]
    for place, name in enumerate(names[:-1]):
        if not any(cause == name for cause, _ in directed):
            directed.append((name, names[draws.integers(place + 1, size)]))
    arcs = [pair for pair in combinations(names, 2) if confounded and draws.uniform() < 0.3]
    graph = cb.CausalGraph.from_edges(directed, arcs)
    truth = {edge: float(value) for edge, value in zip(graph.directed, draws.normal(size=len(directed)), strict=True)}
    fixed = {edge: truth[edge] for edge in graph.directed[:known]}
    domains = {name: (-1.0 - place, 2.0) for place, name in enumerate(names[:-1])}
    options = {"sets": size - 1} | options
    return cb.Problem(graph, names[-1], domains=domains, known=fixed, **options), truth


def simulate(problem, truth, rows, seed, interventional=False, lift=0.5):
    """Rows by plain loops; in interventional ones each manipulable variable is set with probability 0.3."""
    draws = np.random.default_rng(seed)
    nodes = problem.graph.nodes
    values, mask = np.zeros((rows, len(nodes))), np.zeros((rows, len(nodes)), bool)
    for column, name in enumerate(nodes):
        natural = lift * column + draws.normal(size=rows) * (1 + 0.3 * column)
        for cause in problem.graph.parents(name):
            natural += truth[cause, name] * values[:, nodes.index(cause)]
        if interventional and name in problem.domains:
            mask[:, column] = draws.uniform(size=rows) < 0.3
        values[:, column] = np.where(mask[:, column], draws.uniform(*problem.domains.get(name, (0, 1)), rows), natural)
    return Data(nodes, problem.target, values, mask)


def design(problem, data, node, intercepts=True):
    """Regressors with unknown coefficients and the response of one equation, over the rows in which it was free."""
    known = problem.known
    parents = [cause for cause in problem.graph.parents(node) if (cause, node) not in known]
    free = ~data.intervened[:, data.nodes.index(node)]
    columns = [np.ones(free.sum())] * intercepts + [data.column(cause)[free] for cause in parents]
    response = data.column(node)[free].copy()
    for (cause, effect), value in known.items():
        if effect == node:
            response -= value * data.column(cause)[free]
    names = [f"a[{node}]"] * intercepts + [f"b[{cause}->{node}]" for cause in parents]
    return np.reshape(columns, (len(names), free.sum())).T, response, names


def dense_regression(regressors, response, precision, centre, shape, rate):
    """Normal-inverse-gamma posterior by the textbook formulas: mean, covariance, E s2."""
    after = precision + regressors.T @ regressors
    mean = np.linalg.solve(after, precision @ centre + regressors.T @ response)
    new_shape = shape + len(response) / 2
    new_rate = rate + (response @ response + centre @ precision @ centre - mean @ after @ mean) / 2
    variance = new_rate / (new_shape - 1)
    return mean, variance * np.linalg.inv(after), variance


def sigma_point_moments(means, covariances, function):
    """Mean and variance of a function of independent blocks in each of which it has degree 2 at most, exactly."""
    total, square, weight = 0.0, 0.0, 0.0
    clouds = []
    for mean, covariance in zip(means, covariances, strict=True):
        size = len(mean)
        if not size:
            clouds.append([(np.zeros(0), 1.0)])
            continue
        root = np.linalg.cholesky(covariance + 1e-300 * np.eye(size)) * np.sqrt(size)
        clouds.append([(mean + sign * root[:, k], 1 / (2 * size)) for k in range(size) for sign in (1, -1)])
    for points in product(*clouds):
        share = np.prod([w for _, w in points])
        value = function([point for point, _ in points])
        total, square, weight = total + share * value, square + share * value**2, weight + share
    return total, square - total**2
