"""Does a causal system keep its promises?

The checks here compare a system's graph, data, effects and optimum with each other. They run on the
shipped systems and on a user's own.
"""

import warnings
from functools import partial

import jax
import numpy as np
from scipy.stats import rankdata

from causal_bo_ppl.checks import Check, run_lines
from causal_bo_ppl.errors import CausalBOWarning, ModelError, listed
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.mechanisms.simulation import simulate
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import between, distinct_rows, stack, vertices_and_points
from causal_bo_ppl.systems import CausalSystem

POSITIONS = 40  # where a direct effect is looked for: half in the population, half in the domains
ROWS = 4_000  # in which a latent common cause is looked for: correlations above 0.09 are seen
MOST_ERRORS = 4.5  # standard errors: a right effect fails one comparison in 150,000
MOST_CORRELATION = 5.5  # standard errors: one in 26 million, for there are many pairs


def check_system(
    system: CausalSystem, *, draws: int = 100_000, per_set: int = 2, key: jax.Array | int = 0
) -> Check:
    """Check whether a system is consistent with itself.

    Checked are: the graph against the model's real dependences, observations and experiments
    (shape, reproducibility, values set), the exact effect against `draws` simulated outcomes of
    doing nothing and of `per_set` queries of every set (one of them a vertex), and the optimum
    against the effect. Warns of a declared cause that shows no effect anywhere it was looked for.

    Parameters
    ----------
    system:
        The system to check.
    draws:
        How many outcomes of each query are simulated.
    per_set:
        How many queries of every intervention set are looked at.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for each promise; `check.require()` raises CheckFailed where one is broken.
    """
    if not isinstance(system, CausalSystem):
        raise ModelError(f"check_system checks a CausalSystem, got {type(system).__name__}")
    draws, per_set = read_count("draws", draws, 2), read_count("per_set", per_set, 1)
    keys = jax.random.split(as_key(key), 5)
    queries = random_queries(system, per_set, keys[0])
    lines = {
        "mechanisms react to their parents alone": partial(_check_dependences, system, keys[1]),
        "disturbances depend where arcs are": partial(_check_confounding, system, keys[2]),
        "rows are reproducible and keep what is set": partial(
            _check_rows, system, queries, keys[3]
        ),
        "effects are means of outcomes": partial(_check_effects, system, queries, draws, keys[4]),
        "the optimum is the best": partial(_check_optimum, system),
    }
    return run_lines(f"system {system.name}", lines, "Mend the model, the graph or the response.")


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
    return stack([problem.baseline(), *(points[rows] for rows in chosen)])


def _check_dependences(system: CausalSystem, key: jax.Array) -> None:
    """Require that each variable reacts to its parents and to nothing else, all others being set.

    Row (j, i) of a batch sets every variable but j; a second batch with the same disturbances also
    moves i. A difference in j is a direct effect of i on j, and i must then be a parent of j.
    """
    graph = system.problem.graph
    size = len(graph.nodes)
    here, there, noise = jax.random.split(key, 3)
    start, end = (_positions(system, subkey)[:, None, None] for subkey in (here, there))
    free, moves = np.eye(size, dtype=bool)[None, :, None], np.eye(size, dtype=bool)[None, None]
    # The axes are places, the free variable j, the moved variable i, and all variables.
    rows = (POSITIONS, size, size, size)
    mask = np.broadcast_to(~free, rows).reshape(-1, size)
    values = (
        np.broadcast_to(value, rows).reshape(-1, size)
        for value in (start, np.where(moves, end, start))
    )
    batches = (Queries(mask, np.where(mask, value, 0.0)) for value in values)
    still, moved = (
        np.asarray(simulate(system.model, graph.nodes, batch, noise)) for batch in batches
    )
    reacts = ((still != moved) & ~mask).any(axis=1).reshape(POSITIONS, size, size).any(axis=0)
    for node, row in zip(graph.nodes, reacts, strict=True):
        _compare_causes(
            system, node, [name for name, hit in zip(graph.nodes, row, strict=True) if hit]
        )


def _positions(system: CausalSystem, key: jax.Array) -> np.ndarray:
    """Draw values of all variables, an array of shape (PLACES, p).

    They are drawn from the population; in every second row, those that may be set are drawn from
    their domains instead.
    """
    problem, (draw, spread) = system.problem, jax.random.split(key)
    positions = np.array(
        simulate(system.model, problem.graph.nodes, problem.baseline().repeat(POSITIONS), draw)
    )
    share = np.asarray(jax.random.uniform(spread, positions.shape, minval=-0.1, maxval=1.1))
    share = share.clip(0, 1)  # so that the ends are drawn too
    for name, (low, high) in problem.domains.items():
        column = problem.graph.index(name)
        positions[::2, column] = between(np.array(low), np.array(high), share[::2, column])
    return positions


def _compare_causes(system: CausalSystem, node: str, found: list[str]) -> None:
    parents = system.problem.graph.parents(node)
    extra, silent = (
        [name for name in found if name not in parents],
        [name for name in parents if name not in found],
    )
    _require(
        not extra,
        f"{system.name}: {node!r} reacts to {listed(extra)} in the model, "
        f"but its parents in the graph are {listed(parents)}",
    )
    if silent:
        message = (
            f"{system.name}: {node!r} did not react to its parents {listed(silent)} "
            f"at any of {POSITIONS} places"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=4)


def _check_confounding(system: CausalSystem, key: jax.Array) -> None:
    """Require a bidirected edge between variables whose disturbances depend on each other.

    Each variable is drawn with all others set, always with the same disturbances; what then moves
    together has a latent cause in common. Ranks show a monotone dependence, their distances from
    the middle one in spread.
    """
    graph = system.problem.graph
    position, noise = jax.random.split(key)
    start = np.asarray(simulate(system.model, graph.nodes, system.problem.baseline(), position))
    columns = []
    for column in range(len(graph.nodes)):
        mask = np.ones((ROWS, len(graph.nodes)), bool)
        mask[:, column] = False
        rows = Queries(mask, np.where(mask, start, 0.0))
        columns.append(np.asarray(simulate(system.model, graph.nodes, rows, noise))[:, column])
    ranks = rankdata(columns, axis=1) - (ROWS + 1) / 2
    vary = [column for column, values in enumerate(columns) if np.ptp(values) > 0]
    for kind in (ranks, np.abs(ranks)):
        strength = np.abs(np.atleast_2d(np.corrcoef(kind[vary]))) * np.sqrt(ROWS)
        for one, other in np.argwhere(np.triu(strength, 1) > MOST_CORRELATION).tolist():
            pair = graph.nodes[vary[one]], graph.nodes[vary[other]]
            _require(
                pair[1] in graph.spouses(pair[0]),
                f"{system.name}: the disturbances of {pair[0]!r} and {pair[1]!r} depend on each "
                f"other in the model ({strength[one, other]:.0f} standard errors), but the graph "
                f"has no arc {pair[0]} <-> {pair[1]}",
            )


def _check_rows(system: CausalSystem, queries: Queries, key: jax.Array) -> None:
    """Require observations of the right shape that a key reproduces, and experiments as set."""
    one, other = jax.random.split(key)
    data, again, fresh = (system.observe(1001, subkey) for subkey in (one, one, other))
    _require(
        data.nodes == system.problem.graph.nodes,
        f"{system.name}: columns {data.nodes} are not in graph order",
    )
    _require(
        data.values.shape == (1001, len(data.nodes)),
        f"{system.name}: 1001 rows came out as {data.values.shape}",
    )
    _require(
        bool(data.is_observational.all()),
        f"{system.name}: observations are marked as interventions",
    )
    _require(
        np.array_equal(data.values, again.values),
        f"{system.name}: the same key gave other observations",
    )
    _require(
        not np.array_equal(data.values, fresh.values),
        f"{system.name}: another key gave the same observations",
    )
    trial = system.experiment(queries, one)
    mask = np.asarray(queries.mask)
    _require(
        np.array_equal(trial.intervened, mask), f"{system.name}: an experiment forgot what was set"
    )
    kept = np.array_equal(trial.values[mask], np.asarray(queries.value)[mask])
    _require(kept, f"{system.name}: an experiment did not keep the values that were set")


def _check_effects(system: CausalSystem, queries: Queries, draws: int, key: jax.Array) -> None:
    """Require exact effects within 4.5 standard errors of the means of simulated outcomes."""
    effects = np.asarray(system.effect(queries))
    _check_batch(system, queries, effects)
    for row, subkey in enumerate(jax.random.split(key, len(queries))):
        outcomes = system.experiment(queries[row].repeat(draws), subkey).outcomes
        error = outcomes.std(ddof=1) / np.sqrt(draws)
        gap = outcomes.mean() - effects[row]
        rounding = 1e-9 * (1 + abs(effects[row]))  # where nothing varies the error is 0
        [intervention] = system.problem.interventions(queries[row])
        _require(
            bool(abs(gap) <= MOST_ERRORS * error + rounding),
            f"{system.name}: the effect of {intervention} is said to be {effects[row]:.6g}, but "
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
    """Require that the optimum is a query with the effect it claims, which no other query beats.

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
