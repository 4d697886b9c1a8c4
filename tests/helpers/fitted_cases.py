"""Problems and data for tests of posteriors and what follows, and dense formulas.

The formulas use no code of the package.

Internals: draws stand in for those of NUTS, with its verdict.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np

import causal_bo_ppl as cb
from causal_bo_ppl.inference.draws import GivenDraws


def random_problem(seed, size=5, known=0, confounded=False, **options):
    """A DAG on which every node reaches the target, and the true coefficients by edge.

    It has arcs too, if confounded.
    """
    draws = np.random.default_rng(seed)
    names = [f"V{position}" for position in range(size)]
    directed = [pair for pair in combinations(names, 2) if draws.uniform() < 0.6]
    for position, name in enumerate(names[:-1]):
        if not any(cause == name for cause, _ in directed):
            directed.append((name, names[draws.integers(position + 1, size)]))
    arcs = [pair for pair in combinations(names, 2) if confounded and draws.uniform() < 0.3]
    graph = cb.CausalGraph.from_edges(directed, arcs)
    truth = {
        edge: float(value)
        for edge, value in zip(graph.directed, draws.normal(size=len(directed)), strict=True)
    }
    fixed = {edge: truth[edge] for edge in graph.directed[:known]}
    domains = {name: (-1.0 - position, 2.0) for position, name in enumerate(names[:-1])}
    options = {"sets": size - 1} | options
    return cb.Problem(graph, names[-1], domains=domains, known=fixed, **options), truth


def simulate(problem, truth, rows, seed, interventional=False, lift=0.5):
    """Observations by plain loops.

    In interventional ones each manipulable variable is set with probability 0.3.
    """
    draws = np.random.default_rng(seed)
    nodes = problem.graph.nodes
    values, mask = np.zeros((rows, len(nodes))), np.zeros((rows, len(nodes)), bool)
    for column, name in enumerate(nodes):
        natural = lift * column + draws.normal(size=rows) * (1 + 0.3 * column)
        for cause in problem.graph.parents(name):
            natural += truth[cause, name] * values[:, nodes.index(cause)]
        if interventional and name in problem.domains:
            mask[:, column] = draws.uniform(size=rows) < 0.3
        values[:, column] = np.where(
            mask[:, column], draws.uniform(*problem.domains.get(name, (0, 1)), rows), natural
        )
    return cb.Data(nodes, problem.target, values, mask)


def design(problem, data, node, intercepts=True):
    """Regressors with unknown coefficients and the response of one equation.

    They are over the observations in which it was free.
    """
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


def sigma_point_effects(distribution, mask, value):
    """Effects (n, M) at a product of sigma points of the equations, and the points' weights (n,).

    Each equation enters with degree 2 at most into products of two effects, so their means are
    exact.
    """
    clouds = []
    for mean, block, causes in zip(
        distribution.posterior.mean,
        covariances(distribution.posterior),
        distribution.causes,
        strict=True,
    ):
        used = causes >= 0
        size = int(used.sum())
        root = (
            np.linalg.cholesky(block[np.ix_(used, used)]) * np.sqrt(size)
            if size
            else np.zeros((0, 0))
        )
        clouds.append(mean[used] + np.concatenate([root.T, -root.T]) if size else np.zeros((1, 0)))
    positions = np.indices([len(cloud) for cloud in clouds]).reshape(len(clouds), -1)
    matrices = np.repeat(distribution.fixed[None], positions.shape[1], axis=0)
    for node, (cloud, causes) in enumerate(zip(clouds, distribution.causes, strict=True)):
        matrices[:, causes[causes >= 0], node] = cloud[positions[node]]
    found = [batch_effect(matrices, row, to) for row, to in zip(mask, value, strict=True)]
    return np.stack(found, axis=1), np.full(positions.shape[1], 1 / positions.shape[1])


def covariances(posterior):
    """Covariance of each equation's coefficients, of shape (E, D, D).

    It is b / (a - 1) times the inverse precision.
    """
    squares = posterior.root @ np.swapaxes(posterior.root, 1, 2)
    return posterior.variance[:, None, None] * squares


def batch_effect(matrices, mask, value):
    """(n,) means of the last variable after surgery in models (n, p + 1, p), by dense solves."""
    weights, intercepts = matrices[:, :-1].copy(), matrices[:, -1].copy()
    weights[:, :, mask], intercepts[:, mask] = 0.0, value[mask]
    size = weights.shape[1]
    return np.linalg.solve(np.eye(size) - np.swapaxes(weights, 1, 2), intercepts[..., None])[
        :, -1, 0
    ]


def sigma_point_gram(distribution, queries):
    """Exact covariances of effects of independent equations."""
    effects, weights = sigma_point_effects(
        distribution, np.asarray(queries.mask), np.asarray(queries.value)
    )
    centred = effects - weights @ effects
    return centred.T @ (weights[:, None] * centred)


def sampled(post, theta, verdict="passed"):
    """A posterior that holds these draws (chains, n, d), as if NUTS had made them."""
    distribution = GivenDraws(post.distribution.response, theta, len(post.distribution.learned))
    distribution.__dict__.update(verdict=verdict)
    return replace(post, distribution=distribution, method="nuts")


def correlated(post, generator, chains=4, length=250, memory=0.9):
    """Chains of Gaussian draws, each depending on the one before."""
    normal = generator.standard_normal((chains, length, len(post.mean)))
    for step in range(1, length):
        normal[:, step] = memory * normal[:, step - 1] + np.sqrt(1 - memory**2) * normal[:, step]
    return post.mean + normal @ post.factor.T
