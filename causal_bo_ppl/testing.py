"""Does a causal system keep its promises? Contract checks, for the shipped systems and a user's own."""

import jax
import numpy as np

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.keys import as_key
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.sem.simulation import simulate
from causal_bo_ppl.system import CausalSystem

STARTS = 20  # places in the population where a direct effect is looked for
MOST_ERRORS = 4.5  # standard errors: a right system fails one comparison in 150,000


def check_system(system: CausalSystem, *, draws: int = 100_000, per_set: int = 2, key: jax.Array | int = 0) -> None:
    """Raise ModelError, saying what is wrong, unless the system is consistent with itself.

    Checked are: the graph against the model's real dependences, observations and experiments
    (shape, reproducibility, values set), the exact effect against `draws` simulated outcomes of
    `per_set` random queries of every set, and the optimum against the effect.
    """
    keys = jax.random.split(as_key(key), 5)
    queries = random_queries(system, per_set, keys[0])
    check_mechanisms(system, keys[1])
    check_rows(system, queries, keys[2])
    check_effects(system, queries, draws, keys[3])
    check_optimum(system)


def random_queries(system: CausalSystem, per_set: int, key: jax.Array) -> Queries:
    """`per_set` uniform random queries of every set, in the order of the sets."""
    problem = system.problem
    low, high = (
        problem.queries([{n: problem.domains[n][end] for n in members} for members in problem.sets]) for end in (0, 1)
    )
    share = jax.random.uniform(key, (per_set * len(problem.sets), len(problem.graph.nodes)))
    ends = low.repeat(per_set), high.repeat(per_set)
    value = ends[0].value + np.asarray(share) * (ends[1].value - ends[0].value)
    return Queries(ends[0].mask, np.clip(value, ends[0].value, ends[1].value))  # rounding may not leave the domain


def check_mechanisms(system: CausalSystem, key: jax.Array) -> None:
    """Each variable must react to its parents and to nothing else, all others being set.

    Row (j, i) of a batch sets every variable but j; a second batch with the same disturbances also
    moves i. A difference in j is a direct effect of i on j, and i must then be a parent of j.
    """
    graph = system.problem.graph
    size = len(graph.nodes)
    here, there, noise = jax.random.split(key, 3)
    nothing = system.problem.baseline().repeat(STARTS)
    start, end = (np.asarray(simulate(system.model, graph.nodes, nothing, k))[:, None, None] for k in (here, there))
    free, moves = np.eye(size, dtype=bool)[None, :, None], np.eye(size, dtype=bool)[None, None]
    rows = (STARTS, size, size, size)  # starts, the free variable j, the moved variable i, all variables
    mask = np.broadcast_to(~free, rows).reshape(-1, size)
    values = (np.broadcast_to(value, rows).reshape(-1, size) for value in (start, np.where(moves, end, start)))
    batches = (Queries(mask, np.where(mask, value, 0.0)) for value in values)
    still, moved = (np.asarray(simulate(system.model, graph.nodes, batch, noise)) for batch in batches)
    reacts = ((still != moved) & ~mask).any(axis=1).reshape(STARTS, size, size).any(axis=0)
    for node, row in zip(graph.nodes, reacts, strict=True):
        found, parents = [n for n, hit in zip(graph.nodes, row, strict=True) if hit], graph.parents(node)
        _require(
            set(found) == set(parents),
            f"{system.name}: {node!r} reacts to {listed(found)} in the model, "
            f"but its parents in the graph are {listed(parents)}",
        )


def check_rows(system: CausalSystem, queries: Queries, key: jax.Array) -> None:
    """Observations and experiments: shape, target, reproducibility, and the values that were set."""
    one, other = jax.random.split(key)
    data, again, fresh = system.observe(7, one), system.observe(7, one), system.observe(7, other)
    _require(
        data.nodes == system.problem.graph.nodes,
        f"{system.name}: columns {data.nodes} are not in graph order",
    )
    _require(data.values.shape == (7, len(data.nodes)), f"{system.name}: 7 rows came out as {data.values.shape}")
    _require(bool(data.is_observational.all()), f"{system.name}: observations are marked as interventions")
    _require(np.array_equal(data.values, again.values), f"{system.name}: the same key gave other observations")
    _require(
        not np.array_equal(data.outcomes, fresh.outcomes),
        f"{system.name}: another key gave the same outcomes",
    )
    trial = system.experiment(queries, one)
    mask = np.asarray(queries.mask)
    _require(np.array_equal(trial.intervened, mask), f"{system.name}: an experiment forgot what was set")
    kept = np.array_equal(trial.values[mask], np.asarray(queries.value)[mask])
    _require(kept, f"{system.name}: an experiment did not keep the values that were set")


def check_effects(system: CausalSystem, queries: Queries, draws: int, key: jax.Array) -> None:
    """The exact effect lies within 4.5 standard errors of the mean of simulated outcomes, query by query."""
    effects = np.asarray(system.effect(queries))
    _require(bool(np.isfinite(effects).all()), f"{system.name}: some effects are not finite")
    alone = np.concatenate([np.asarray(system.effect(queries[row])) for row in range(min(len(queries), 5))])
    same = np.allclose(alone, effects[: len(alone)], rtol=1e-12, atol=1e-12)
    _require(same, f"{system.name}: an effect depends on its neighbours in the batch")
    for row, subkey in enumerate(jax.random.split(key, len(queries))):
        outcomes = system.experiment(queries[row].repeat(draws), subkey).outcomes
        error = outcomes.std(ddof=1) / np.sqrt(draws)
        z = (outcomes.mean() - effects[row]) / error
        intervention = system.problem.interventions(queries[row])[0]
        _require(
            bool(abs(z) <= MOST_ERRORS),
            f"{system.name}: the effect of {intervention} is said to be {effects[row]:.6g}, but {draws:,} simulated "
            f"outcomes have the mean {outcomes.mean():.6g} +- {error:.2g} ({z:+.1f} standard errors)",
        )


def check_optimum(system: CausalSystem) -> None:
    """The optimum is a legal query with the effect it claims, and no grid or Sobol query beats it."""
    problem, optimum = system.problem, system.optimum
    claimed = float(system.effect(problem.queries([optimum.intervention]))[0])
    _require(
        bool(np.isclose(claimed, optimum.value, rtol=1e-10)),
        f"{system.name}: the optimum's effect is {claimed}",
    )
    sign = 1.0 if problem.objective == "min" else -1.0
    for rivals in (problem.sobol(64), problem.vertices()):
        best = (sign * np.asarray(system.effect(rivals))).min()
        beaten = best < sign * optimum.value - 1e-9 * (1 + abs(best))
        _require(
            not beaten,
            f"{system.name}: a query reaches {sign * best:.6g}, the optimum only {optimum.value:.6g}",
        )


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise ModelError(fault)
