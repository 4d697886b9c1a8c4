"""Is a causal system consistent with itself?

The checks compare a system's graph, data, effects and optimum with each other. They run on the
shipped systems and on user-defined ones.
"""

import warnings
from functools import partial

import jax
import numpy as np
from scipy.stats import rankdata

from causal_bo_ppl.checks import Check, run_lines
from causal_bo_ppl.errors import ArgumentError, CausalBOWarning, ModelError, listed
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.linalg import between
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import vertices_and_points
from causal_bo_ppl.problem.interventions import distinct_rows, stack
from causal_bo_ppl.systems import CausalSystem, simulate

TESTED_POINTS = (
    40  # at which a direct effect is tested: half of the population, half of the domains
)
TESTED_DRAWS = 4_000  # in which a latent common cause is tested: correlations above 0.09 are found
MOST_ERRORS = 4.5  # standard errors: a right effect fails one comparison in 150,000
MOST_CORRELATION = 5.5  # standard errors: one in 26 million, for there are many pairs


def check_system(
    system: CausalSystem, *, draws: int = 100_000, per_set: int = 2, key: jax.Array | int = 0
) -> Check:
    """Check whether a system is consistent with itself.

    Checked are: the graph against the model's real dependences, observations and experiments
    (shape, reproducibility, values set), the exact effect against `draws` simulated outcomes of
    doing nothing and of `per_set` queries of every set (one of them a vertex), and the optimum
    against the effect. Warns of a declared cause that has no effect at any of the tested points.

    Parameters
    ----------
    system:
        The system to check.
    draws:
        How many outcomes of each query are simulated.
    per_set:
        How many queries of every intervention set are checked.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for each promise; `check.require()` raises CheckFailed where one is broken.

    Raises
    ------
    ArgumentError
        If it is no causal system, or a number is too small.
    SeedError
        If `key` is neither a JAX key nor a seed.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> check = cb.testing.check_system(cb.models.load("chain"), draws=1_000)
    >>> check.passed
    True
    >>> print(check.text)
    All 5 promises are kept.
    """
    if not isinstance(system, CausalSystem):
        raise ArgumentError(f"check_system checks a CausalSystem, got {type(system).__name__}")
    draws, per_set = read_count("draws", draws, 2), read_count("per_set", per_set, 1)
    keys = jax.random.split(as_key(key), 5)
    queries = random_queries(system, per_set, keys[0])
    lines = {
        "mechanisms react to their parents alone": partial(_check_dependences, system, keys[1]),
        "noise is dependent where arcs are": partial(_check_confounding, system, keys[2]),
        "data are reproducible and keep what is set": partial(
            _check_data, system, queries, keys[3]
        ),
        "effects are means of outcomes": partial(_check_effects, system, queries, draws, keys[4]),
        "the optimum is the best": partial(_check_optimum, system),
    }
    return run_lines(
        f"system {system.name}", lines, "Correct the model, the graph or the response."
    )


def random_queries(system: CausalSystem, per_set: int, key: jax.Array) -> Queries:
    """Draw the queries that a system is checked on: doing nothing, then `per_set` of every set.

    The first query of a set is a random vertex of its domain, the others are uniform. Where any
    manipulable variables may be set, the set of all of them comes last.
    """
    problem = system.problem
    if not problem.is_box:
        return _random_legal(problem, per_set, key)
    sets = problem.sets if problem.sets_are_explicit else (*problem.sets, problem.manipulable)
    low, high = (
        problem.queries(
            [{name: problem.domains[name][end] for name in members} for members in sets]
        ).repeat(per_set)
        for end in (0, 1)
    )
    share = np.array(jax.random.uniform(key, low.value.shape))
    share[::per_set] = share[::per_set].round()
    value = between(np.asarray(low.value), np.asarray(high.value), share)
    nothing = problem.baseline()
    return Queries(np.concatenate([nothing.mask, low.mask]), np.concatenate([nothing.value, value]))


def _random_legal(problem: Problem, per_set: int, key: jax.Array) -> Queries:
    """Draw doing nothing, then `per_set` legal points of a design of every set."""
    points = vertices_and_points(problem, problem.sets, 4 * per_set)
    order = np.asarray(jax.random.permutation(key, len(points)))
    _, which = distinct_rows(np.asarray(points.mask))
    chosen = [order[which[order] == position][:per_set] for position in range(which.max() + 1)]
    return stack([problem.baseline(), *(points[positions] for positions in chosen)])


def _check_dependences(system: CausalSystem, key: jax.Array) -> None:
    """Require that each variable reacts to its parents and to nothing else, all others being set.

    Query (j, i) of a batch sets every variable but j; a second batch with the same noise also
    moves i. A difference in j is a direct effect of i on j, and i must then be a parent of j.
    """
    graph = system.problem.graph
    size = len(graph.nodes)
    here, there, noise = jax.random.split(key, 3)
    start, end = (_draw_points(system, subkey)[:, None, None] for subkey in (here, there))
    free, moves = np.eye(size, dtype=bool)[None, :, None], np.eye(size, dtype=bool)[None, None]
    # The axes are points, the free variable j, the moved variable i, and all variables.
    shape = (TESTED_POINTS, size, size, size)
    mask = np.broadcast_to(~free, shape).reshape(-1, size)
    values = (
        np.broadcast_to(value, shape).reshape(-1, size)
        for value in (start, np.where(moves, end, start))
    )
    batches = (Queries(mask, np.where(mask, value, 0.0)) for value in values)
    still, moved = (
        np.asarray(simulate(system.model, graph.nodes, batch, noise)) for batch in batches
    )
    reacts = ((still != moved) & ~mask).any(axis=1).reshape(TESTED_POINTS, size, size).any(axis=0)
    for node, hits in zip(graph.nodes, reacts, strict=True):
        _compare_causes(system, node, [graph.nodes[index] for index in np.flatnonzero(hits)])


def _draw_points(system: CausalSystem, key: jax.Array) -> np.ndarray:
    """Draw values of all variables, an array of shape (TESTED_POINTS, p).

    They are drawn from the population; in every second point, those that may be set are drawn from
    their domains instead.
    """
    problem, (draw, spread) = system.problem, jax.random.split(key)
    baseline = problem.baseline().repeat(TESTED_POINTS)
    points = np.array(simulate(system.model, problem.graph.nodes, baseline, draw))
    share = np.asarray(jax.random.uniform(spread, points.shape, minval=-0.1, maxval=1.1))
    share = share.clip(0, 1)  # so that the ends are drawn too
    for name, (low, high) in problem.domains.items():
        column = problem.graph.index(name)
        points[::2, column] = between(np.array(low), np.array(high), share[::2, column])
    return points


def _compare_causes(system: CausalSystem, node: str, causes: list[str]) -> None:
    parents = system.problem.graph.parents(node)
    extra = [name for name in causes if name not in parents]
    silent = [name for name in parents if name not in causes]
    _require(
        not extra,
        f"{system.name}: {node!r} reacts to {listed(extra)} in the model, "
        f"but its parents in the graph are {listed(parents)}",
    )
    if silent:
        message = (
            f"{system.name}: {node!r} did not react to its parents {listed(silent)} "
            f"at any of {TESTED_POINTS} points"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=4)


def _check_confounding(system: CausalSystem, key: jax.Array) -> None:
    """Require a bidirected edge between variables whose noise is dependent.

    Each variable is drawn with all others set, always with the same noise; variables that then move
    together have a latent cause in common. Ranks show a monotone dependence, their distances from
    the middle one in spread.
    """
    graph = system.problem.graph
    position, noise = jax.random.split(key)
    start = np.asarray(simulate(system.model, graph.nodes, system.problem.baseline(), position))
    columns = []
    for column in range(len(graph.nodes)):
        mask = np.ones((TESTED_DRAWS, len(graph.nodes)), bool)
        mask[:, column] = False
        others = Queries(mask, np.where(mask, start, 0.0))
        columns.append(np.asarray(simulate(system.model, graph.nodes, others, noise))[:, column])
    ranks = rankdata(columns, axis=1) - (TESTED_DRAWS + 1) / 2
    vary = [column for column, values in enumerate(columns) if np.ptp(values) > 0]
    for kind in (ranks, np.abs(ranks)):
        strength = np.abs(np.atleast_2d(np.corrcoef(kind[vary]))) * np.sqrt(TESTED_DRAWS)
        for one, other in np.argwhere(np.triu(strength, 1) > MOST_CORRELATION).tolist():
            pair = graph.nodes[vary[one]], graph.nodes[vary[other]]
            _require(
                pair[1] in graph.spouses(pair[0]),
                f"{system.name}: the noise of {pair[0]!r} and {pair[1]!r} is dependent in the "
                f"model ({strength[one, other]:.0f} standard errors), but the graph has no arc "
                f"{pair[0]} <-> {pair[1]}",
            )


def _check_data(system: CausalSystem, queries: Queries, key: jax.Array) -> None:
    """Require observations of the right shape that a key reproduces, and experiments as set."""
    one, other = jax.random.split(key)
    data, again, fresh = (system.observe(1001, subkey) for subkey in (one, one, other))
    conditions = {
        f"columns {data.nodes} are not in graph order": data.nodes == system.problem.graph.nodes,
        f"1001 observations have the shape {data.values.shape}": (
            data.values.shape == (1001, len(data.nodes))
        ),
        "observations are marked as interventions": bool(data.is_observational.all()),
        "the same key gave other observations": np.array_equal(data.values, again.values),
        "another key gave the same observations": not np.array_equal(data.values, fresh.values),
    }
    for fault, holds in conditions.items():
        _require(holds, f"{system.name}: {fault}")
    experiment, mask = system.experiment(queries, one), np.asarray(queries.mask)
    same = np.array_equal(experiment.intervened, mask)
    _require(same, f"{system.name}: an experiment does not mark what was set")
    same = np.array_equal(experiment.values[mask], np.asarray(queries.value)[mask])
    _require(same, f"{system.name}: an experiment did not keep the values that were set")


def _check_effects(system: CausalSystem, queries: Queries, draws: int, key: jax.Array) -> None:
    """Require exact effects within 4.5 standard errors of the means of simulated outcomes."""
    effects = np.asarray(system.effect(queries))
    _check_batch(system, queries, effects)
    for index, subkey in enumerate(jax.random.split(key, len(queries))):
        outcomes = system.experiment(queries[index].repeat(draws), subkey).outcomes
        error = outcomes.std(ddof=1) / np.sqrt(draws)
        gap = outcomes.mean() - effects[index]
        rounding = 1e-9 * (1 + abs(effects[index]))  # where nothing varies the error is 0
        [intervention] = system.problem.interventions(queries[index])
        _require(
            bool(abs(gap) <= MOST_ERRORS * error + rounding),
            f"{system.name}: the effect of {intervention} is stated as {effects[index]:.6g}, but "
            f"{draws:,} simulated outcomes have the mean {outcomes.mean():.6g} +- {error:.2g}",
        )


def _check_batch(system: CausalSystem, queries: Queries, effects: np.ndarray) -> None:
    """Require that effects depend neither on their batch nor on values that are not set."""
    times = -(-1000 // len(queries))
    backwards = queries.repeat(times)[::-1]
    same = np.allclose(
        system.effect(backwards), np.repeat(effects, times)[::-1], rtol=1e-12, atol=1e-12
    )
    _require(same, f"{system.name}: an effect depends on its neighbours in the batch")
    junk = Queries(queries.mask, np.where(queries.mask, queries.value, 123.456))
    same = np.allclose(system.effect(junk), effects, rtol=1e-12, atol=1e-12)
    _require(same, f"{system.name}: an effect depends on the values of variables that are not set")


def _check_optimum(system: CausalSystem) -> None:
    """Require that the optimum is a query with the stated effect, which no other query beats.

    The others are a Sobol design and vertices of the domains.
    """
    problem, optimum = system.problem, system.optimum
    claimed = float(system.effect(problem.queries([optimum.intervention]))[0])
    _require(
        bool(np.isclose(claimed, optimum.value, rtol=1e-10)),
        f"{system.name}: the optimum's effect is {claimed}",
    )
    sign = 1.0 if problem.objective == "min" else -1.0
    if problem.is_box:
        corners = Queries(np.asarray(problem.sobol(64).mask), _corners(problem, problem.sobol(64)))
    else:
        corners = vertices_and_points(problem, problem.sets, 1)
    for rivals in (problem.sobol(64), corners):
        best = (sign * np.asarray(system.effect(rivals))).min()
        beaten = best < sign * optimum.value - 1e-9 * (1 + abs(best))
        _require(
            not beaten,
            f"{system.name}: a query reaches {sign * best:.6g}, the optimum only "
            f"{optimum.value:.6g}",
        )


def _corners(problem: Problem, queries: Queries) -> np.ndarray:
    """Move each value to the nearer end of its domain, which gives many vertices of every set."""
    low, high = np.array([problem.domains.get(name, (0.0, 0.0)) for name in problem.graph.nodes]).T
    value = np.asarray(queries.value)
    return np.where(queries.mask, np.where(value - low < high - value, low, high), 0.0)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise ModelError(fault)
