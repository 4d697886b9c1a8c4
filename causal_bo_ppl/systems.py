"""What is a causal system whose truth is known, and which of its interventions is best?

A system has a problem, a simulator of observations and exact effects. Over the region of a set an
affine response is best at a vertex. For others a grid (or Sobol points, for many variables) finds
the basins, and a pattern search descends from the best few of every set, all sets of one size as
one batch. A basin narrower than a cell of the grid can be missed.

Sets whose values are restricted, by levels, constraints or a function, are searched one by one.
Vertices, a grid and Sobol points are the starts, the best few of every slice of levels. The steps
of the search go along the edges of all planes that bound the region, so that it can slide along any
face, and to the next levels. A region of levels alone is searched completely.

The simulator is a NumPyro program with a site for every variable. `numpyro.handlers.do` ignores a
name that is not a site, sets one set for a whole batch, and leaves the natural value in the trace.
Here surgery is one handler that sets, row by row, what the queries say; the trace holds the values
set, and a program whose sites do not cover the graph is refused.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby, product
from math import comb, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.primitives import Messenger
from scipy.ndimage import minimum_filter

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, DomainError, ModelError, listed
from causal_bo_ppl.inputs import as_key, read_count, require_float64
from causal_bo_ppl.linalg import (
    between,
    first_smallest,
    tie_width,
)
from causal_bo_ppl.mechanisms.custom_sites import HANDLER_LOCK
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import (
    fill_set,
    lattice,
    sobol,
    vertices,
)
from causal_bo_ppl.problem.interventions import (
    MOST_QUERIES,
    Interventions,
    place_points,
    spread,
    stack,
    to_mappings,
)
from causal_bo_ppl.problem.regions import Region, Set

Loss = Callable[[np.ndarray], np.ndarray]  # of points (k, d): (k,), infinite where not legal
Effect = Callable[[Queries], jax.Array | np.ndarray]
DESIGN_POINTS = 4_096  # points of the first design, and as many vertices
SOBOL_STARTS = 256  # Sobol points of the first design of a restricted set
MOST_STARTS, MOST_SLICES = 6, 24  # local minima, and slices of levels, from which to descend
BASINS_PER_SET = 5  # from which to descend in a set that is not restricted
SHORTEST_STEP = 1e-9  # of a domain's width: the last step
ROWS = "/rows"  # the plate's name; no variable may hold a slash, so it collides with none
MOST_EDGES = 600  # directions of edges


class Surgery(Messenger):  # type: ignore[misc]
    """Give a site its intervened value in the rows that set it.

    What is downstream of the site sees that value.
    """

    def __init__(self, nodes: Sequence[str], queries: Queries) -> None:
        super().__init__()
        self.columns = {name: column for column, name in enumerate(nodes)}
        self.mask, self.value = np.asarray(queries.mask), np.asarray(queries.value)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Replace the value after it was drawn, before anything reads it."""
        column = self.columns.get(msg["name"])
        if (
            column is None
            or msg["type"] not in ("sample", "deterministic")
            or not self.mask[:, column].any()
        ):
            return
        natural, value = jnp.asarray(msg["value"]), self.value[:, column]
        if jnp.issubdtype(natural.dtype, jnp.integer) and (value == np.round(value)).all():
            value = value.astype(natural.dtype)  # a category may index a table
        msg["value"] = jnp.where(self.mask[:, column], value, natural)


def simulate(
    model: Callable[[], object], nodes: Sequence[str], queries: Queries, key: jax.Array
) -> jax.Array:
    """Run a NumPyro program once and return a row for each intervention, of shape (M, p).

    Rows that set nothing are observations. The same key gives the same disturbances whatever is
    set.
    """
    require_float64()
    sites = _run(model, nodes, queries, key)
    missing = [name for name in nodes if name not in sites]
    if missing:
        raise ModelError(
            f"the model has no site for {listed(missing)}; name one sample or deterministic site "
            "after every variable "
            f"(sites: {listed(sorted(name for name in sites if name != ROWS))})"
        )
    for name in nodes:
        if jnp.shape(sites[name]["value"]) not in ((), (len(queries),)):
            raise ModelError(
                f"the site {name!r} has shape {jnp.shape(sites[name]['value'])} for "
                f"{len(queries)} rows; the program runs once for a whole batch, so a variable is "
                "one number per row"
            )
    return jnp.stack(
        [
            jnp.broadcast_to(jnp.asarray(sites[name]["value"], float), (len(queries),))
            for name in nodes
        ],
        axis=1,
    )


class Conditionals(NamedTuple):
    """Means and sds (n, p) of every variable given its causes, which are Gaussian."""

    mean: np.ndarray
    sd: np.ndarray


def conditionals(
    model: Callable[[], object], nodes: Sequence[str], values: np.ndarray
) -> Conditionals:
    """Return what a NumPyro program says about every variable given the others' values (n, p).

    Raises ModelError where a variable is not drawn from a Normal.
    """
    require_float64()
    rows = np.asarray(values, float)
    everything = Queries(np.ones(rows.shape, bool), rows)
    sites, columns = _run(model, nodes, everything, jax.random.key(0)), []
    for name in nodes:
        drawn = sites.get(name, {}).get("fn")
        drawn = getattr(drawn, "base_dist", drawn)
        if not isinstance(drawn, numpyro.distributions.Normal):
            raise ModelError(
                f"the mechanism of {name!r} is not known: the program does not draw it from a "
                f"Normal but {'not at all' if drawn is None else type(drawn).__name__}"
            )
        columns.append([np.broadcast_to(part, len(rows)) for part in (drawn.loc, drawn.scale)])
    means, sds = zip(*columns, strict=True)
    return Conditionals(np.stack(means, axis=1), np.stack(sds, axis=1))


def _run(
    model: Callable[[], object], nodes: Sequence[str], queries: Queries, key: jax.Array
) -> dict[str, Any]:
    """Return the sites of one run of the program, which no outer handler sees or changes."""
    inside = numpyro.handlers.seed(rng_seed=key), Surgery(nodes, queries), numpyro.handlers.trace()
    with HANDLER_LOCK, numpyro.handlers.block(), inside[0], inside[1], inside[2] as sites:
        with numpyro.plate(ROWS, len(queries)):
            model()
    return dict(sites)


def best_of_restricted_set(
    problem: Problem, loss: Callable[[Queries], np.ndarray], members: Set
) -> Queries:
    """Return the query on this set with the smallest loss that was found.

    loss: a function of legal queries that returns (M,) numbers. Of equally good queries the one
    with the lowest values is taken. A set of which no legal point is found is refused.
    """

    def lose(points: np.ndarray) -> np.ndarray:
        queries = place_points(problem.graph.nodes, [(members, points)])
        legal = problem.feasible(queries)
        if not legal.any():
            return np.full(len(points), np.inf)
        # Legal ones stand for the others: a batch keeps its size, so that nothing is compiled anew.
        asked = np.where(legal, np.arange(len(points)), int(np.argmax(legal)))
        return np.where(legal, loss(queries[asked]), np.inf)

    region = problem.region
    smooth = [position for position, name in enumerate(members) if name not in region.levels]
    combinations_of_levels = prod(len(region.levels.get(name, (0,))) for name in members)
    if not smooth and combinations_of_levels <= MOST_QUERIES:
        points = region.grid(members, combinations_of_levels)
        losses = lose(points)
    else:
        points, losses = _descend_in_region(
            region, members, lose, *_find_starts(problem, members, lose)
        )
    if not np.isfinite(losses).any():
        raise DomainError(
            f"no legal intervention on {{{listed(members)}}} was found; remove the set"
        )
    return place_points(problem.graph.nodes, [(members, points[[_best(points, losses)]])])


def _find_starts(problem: Problem, members: Set, lose: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return points to start from and their losses, of shapes (k, d) and (k,)."""
    region, points = problem.region, [fill_set(problem, members, SOBOL_STARTS)]
    if region.count_vertices(members) <= DESIGN_POINTS:
        points.append(region.vertices(members))
    others = np.concatenate(points)
    positions, losses = _local_minima(region, members, lose)
    positions = np.concatenate([positions, others])
    losses = np.concatenate([losses, lose(others)])
    steps = [position for position, name in enumerate(members) if name in region.levels]
    order = np.argsort(losses, kind="stable")
    order = order[np.isfinite(losses[order])]
    _, first = np.unique(positions[order][:, steps], axis=0, return_index=True)
    chosen = np.union1d(np.sort(first)[:MOST_SLICES], np.arange(min(MOST_STARTS, len(order))))
    return positions[order[chosen]], losses[order[chosen]]


def _local_minima(region: Region, members: Set, lose: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a grid that no neighbour within their slice of levels beats."""
    slices = prod(len(region.levels.get(name, (0,))) for name in members)
    free = sum(name not in region.levels for name in members)
    n = round(max(DESIGN_POINTS / slices, 1.0) ** (1 / max(free, 1)))
    if n < 3:
        return np.zeros((0, len(members))), np.zeros(0)
    ticks = [region.ticks(name, len(region.levels.get(name, range(n)))) for name in members]
    points = np.array(list(product(*ticks)))
    losses = lose(points)
    table = losses.reshape([len(each) for each in ticks])
    around = [1 if name in region.levels else 3 for name in members]
    is_lowest = table <= minimum_filter(table, size=around, mode="nearest")
    kept = np.flatnonzero(is_lowest.ravel() & np.isfinite(losses))
    return points[kept], losses[kept]


def _descend_in_region(
    region: Region, members: Set, lose: Loss, points: np.ndarray, losses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Descend from some points of the region of a set; return the last points and their losses."""
    if not len(points):
        return points, losses
    low, high = region.bounds(members)
    smooth = np.array([name not in region.levels for name in members])
    edges = _edges(region, members, smooth) * (high - low)

    def neighbours(points: np.ndarray, length: np.ndarray) -> np.ndarray:
        along = points[:, None] + length[:, None, None] * edges
        along[:, :, smooth] = np.clip(along[:, :, smooth], low[smooth], high[smooth])
        return np.concatenate([along, _next_levels(region, members, points)], axis=1)

    def lose_all(points: np.ndarray) -> np.ndarray:
        return lose(points.reshape(-1, len(members))).reshape(points.shape[:-1])

    return _descend(points, losses, _first_step(int(smooth.sum())), neighbours, lose_all)


def _first_step(size: int) -> float:
    """Return half of a cell of the first grid over so many variables, as a share of a domain."""
    per_variable: int = round(DESIGN_POINTS ** (1 / max(size, 1)))
    return 0.5 / max(per_variable - 1, 4)


def _descend(
    points: np.ndarray,
    losses: np.ndarray,
    step: float,
    neighbours: Callable[[np.ndarray, np.ndarray], np.ndarray],
    lose: Loss,
) -> tuple[np.ndarray, np.ndarray]:
    """Search downhill by patterns from points (..., d) with losses (...); return the last ones.

    neighbours: from points and lengths of steps (...) to points (..., n, d). A step that finds
    nothing better is cut to a quarter.
    """
    length = np.full(losses.shape, step)
    while (length > SHORTEST_STEP).any():
        around = neighbours(points, length)
        found = lose(around)
        best, better = found.argmin(axis=-1), found.min(axis=-1) < losses
        moved = np.take_along_axis(around, best[..., None, None], axis=-2)[..., 0, :]
        points = np.where(better[..., None], moved, points)
        losses = np.where(better, found.min(axis=-1), losses)
        length = np.where(better, length, length / 4)
    return points, losses


def _next_levels(region: Region, members: Set, points: np.ndarray) -> np.ndarray:
    """Return the points (k, n, d) with one variable moved to its next lower or higher level."""
    around = []
    for position, name in enumerate(members):
        levels = np.asarray(region.levels.get(name, ()))
        for step in (-1, 1) if len(levels) else ():
            moved = points.copy()
            rank = np.searchsorted(levels, points[:, position]) + step
            moved[:, position] = levels[np.clip(rank, 0, len(levels) - 1)]
            around.append(moved)
    return np.stack(around, axis=1) if around else np.zeros((len(points), 0, points.shape[1]))


def _edges(region: Region, members: Set, smooth: np.ndarray) -> np.ndarray:
    """Return the directions (n, d) of all edges in which the bounding planes may meet, both ways.

    They are vectors in the unit cube with a largest component of 1. Where the planes are too many,
    the directions are those that exchange two values at a constant sum. Steps to all neighbours in
    a grid, for up to 3 variables, are among them.
    """
    size = int(smooth.sum())
    low, high = region.bounds(members)
    slopes = [
        np.array([each.coefficients.get(name, 0.0) for name in members]) * (high - low)
        for each in region.applying(members)
    ]
    rows = [slope[smooth] / np.abs(slope).max() for slope in slopes if slope[smooth].any()]
    planes = np.array([*np.eye(size), *rows])
    found = [*np.eye(size)]
    if size <= 3:
        found += [np.array(step, float) for step in product((-1, 0, 1), repeat=size) if any(step)]
    if size > 1 and comb(len(planes), size - 1) <= MOST_EDGES:
        for chosen in combinations(range(len(planes)), size - 1):
            _, sizes, directions = np.linalg.svd(planes[list(chosen)])
            if sizes[-1] > 1e-8 * sizes[0]:
                found.append(directions[-1])
    else:
        for row in rows:
            for one, other in combinations(np.flatnonzero(row).tolist(), 2):
                exchange = np.zeros(size)
                exchange[one], exchange[other] = row[other], -row[one]
                found.append(exchange)
    unit = np.array([each / np.abs(each).max() for each in found])
    whole = np.zeros((2 * len(unit), len(members)))
    whole[:, smooth] = np.concatenate([unit, -unit])
    return whole


class Optimum(NamedTuple):
    """The best intervention of a problem, its exact effect, and how it was found."""

    value: float
    intervention: dict[str, float]
    how: str


@dataclass(frozen=True, eq=False)
class CausalSystem:
    """A causal system with known truth.

    model: NumPyro program of the truth; every variable of the graph is a site of its name. It runs
        once for a whole batch, inside a plate: each site holds one number per query, shape (M,).
        Several threads may simulate; their programs run one after the other.
    response: returns the exact E[Y | do(...)] of a batch of legal queries, an array of shape (M,);
        `effect` calls it and checks what goes in and comes out.
    is_affine: whether the response is affine in the values of each set, so that its optimum is at
        a vertex.
    source: where the numbers come from.
    assumed_mechanisms: the Bayesian model with which an analyst who does not know the truth would
        begin, as `cb.fit(..., mechanisms=)` and `cb.numpyro_model` take it.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> data = system.observe(50, key=0)
    >>> model = cb.numpyro_model(system.problem, data, mechanisms=system.assumed_mechanisms)
    >>> "amplitude[X->Z]" in model.parameters
    True
    """

    name: str
    problem: Problem
    model: Callable[[], object]
    response: Callable[[Queries], jax.Array]
    is_affine: bool
    source: str
    assumed_mechanisms: Any = "linear"

    def observe(self, n: int, key: jax.Array | int) -> Data:
        """Draw n observations of all variables with nothing set.

        Parameters
        ----------
        n, key:
            The number of observations, and a JAX key or an int seed.

        Returns
        -------
        Data

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> cb.models.load("chain").observe(3, key=0)
        Data(3 observations of X, Z, Y; 0 interventional)
        """
        count = read_count("the number of observations", n, 0, DataError)
        return self.simulate(self.problem.baseline().repeat(count), key)

    def experiment(self, queries: Queries | Interventions, key: jax.Array | int) -> Data:
        """Draw one observation of all variables under each intervention.

        Parameters
        ----------
        queries, key:
            The interventions, and a JAX key or an int seed.

        Returns
        -------
        Data
            One observation for each intervention, in their order.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> cb.models.load("chain").experiment([{"X": 1.0}, {"Z": 2.0}], key=0)
        Data(2 observations of X, Z, Y; 2 interventional)
        """
        return self.simulate(self.problem.require(queries), key)

    def simulate(self, queries: Queries, key: jax.Array | int) -> Data:
        """Draw one observation under each of some legal interventions, which are not checked."""
        nodes = self.problem.graph.nodes
        key = as_key(key)
        values = simulate(self.model, nodes, queries, key) if len(queries) else queries.value
        return Data(nodes, self.problem.target, np.asarray(values), np.asarray(queries.mask))

    def effect(self, queries: Queries | Interventions) -> np.ndarray:
        """Return the exact effects E[Y | do(...)], an array of shape (M,).

        The effect of a query that sets nothing is the observational mean.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> cb.models.load("chain").effect([{"Z": 2.0}])
        array([-2.6])
        """
        return self._respond(self.problem.require(queries))

    def _respond(self, queries: Queries) -> np.ndarray:
        """Return the exact effects (M,) of legal interventions; what comes out is checked."""
        require_float64()
        raw = np.asarray(self.response(queries))
        if raw.shape != (len(queries),) or raw.dtype.kind not in "iuf":
            raise ModelError(
                f"the response of {self.name!r} has shape {raw.shape} and dtype {raw.dtype} for "
                f"{len(queries)} queries; it must return one real number for each"
            )
        effects = raw.astype(float)
        bad = np.flatnonzero(~np.isfinite(effects))
        if len(bad):
            [intervention] = to_mappings(queries[bad[0]], self.problem.graph.nodes)
            raise ModelError(
                f"the response of {self.name!r} to {intervention} is {effects[bad[0]]}; "
                "it must be finite"
            )
        return effects

    def mechanisms(self, values: np.ndarray) -> Conditionals:
        """Return the true means and sds (n, p) of every variable given its causes.

        values: (n, p), in the order of the graph's nodes. Every variable must have a normal
        distribution; where latent causes join two, their means hold the latent causes of one draw.
        """
        return conditionals(self.model, self.problem.graph.nodes, values)

    @cached_property
    def optimum(self) -> Optimum:
        """Best intervention over all sets; of equally good ones the first in order of `sets`."""
        if self.is_affine and self.problem.feasible_rule is None:
            queries = best_vertices(self.problem, self._respond)
            region = self.problem.region
            count = sum(region.count_vertices(members) for members in self.problem.sets)
            how = f"exact, over the {count:,} vertices of {len(self.problem.sets)} sets"
        else:
            queries = best_of_each_set(self.problem, self._respond)
            how = (
                f"grid and pattern search of the exact response over {len(self.problem.sets)} sets"
            )
        effects = self._respond(queries)
        best = first_smallest(effects if self.problem.objective == "min" else -effects)
        [intervention] = to_mappings(queries[best], self.problem.graph.nodes)
        return Optimum(float(effects[best]), intervention, how)

    def __repr__(self) -> str:
        return f"CausalSystem({self.name!r}, {self.problem!r})"

    def _repr_html_(self) -> str:
        title = f"<h4>{html.escape(self.name)}</h4><p>{html.escape(self.source)}</p>"
        return title + self.problem._repr_html_()


def best_vertices(problem: Problem, effect: Effect) -> Queries:
    """Return one query for each set: its best vertex under a response affine in the values.

    The signs of the slopes choose the vertex of a box: d + 1 queries for each set, not 2^d. Of a
    set that a constraint applies to, all vertices are tried.
    """
    sign = 1.0 if problem.objective == "min" else -1.0
    parts, cut = [], {members for members in problem.sets if problem.region.applying(members)}
    for (size, is_cut), group in groupby(problem.sets, key=lambda each: (len(each), each in cut)):
        sets = list(group)
        if is_cut:
            for members in sets:
                corners = vertices(problem, (members,))
                parts.append(corners[first_smallest(sign * np.asarray(effect(corners)))])
            continue
        anchors = np.tile(np.eye(size + 1, size, -1), (len(sets), 1, 1))
        effects = np.asarray(effect(_position(problem, sets, anchors)))
        losses = sign * effects.reshape(len(sets), size + 1)
        # A value that does not matter stays low.
        near = np.array([[tie_width(row)] for row in losses])
        parts.append(_position(problem, sets, (losses[:, 1:] < losses[:, :1] - near).astype(float)))
    return stack(parts)


def best_of_each_set(problem: Problem, effect: Effect) -> Queries:
    """Return one query for each set, in the order of the sets: the best that was found."""
    sign = 1.0 if problem.objective == "min" else -1.0

    def loss(queries: Queries) -> np.ndarray:
        return sign * np.asarray(effect(queries))

    def kind(members: tuple[str, ...]) -> tuple[int, bool]:
        is_free = problem.feasible_rule is None and problem.region.is_plain(members)
        return len(members), is_free

    parts = []
    for (_, is_free), group in groupby(problem.sets, key=kind):  # sets come smallest first
        sets = list(group)
        if not is_free:
            parts += [best_of_restricted_set(problem, loss, members) for members in sets]
            continue
        starts = np.stack([_basins(problem, loss, members) for members in sets])
        points, losses = _descend_in_box(problem, loss, sets, starts)
        best = [cube[_best(cube, each)] for cube, each in zip(points, losses, strict=True)]
        parts.append(_position(problem, sets, np.array(best)))
    return stack(parts)


def _best(points: np.ndarray, losses: np.ndarray) -> int:
    """Return the index of the best of n points (n, d) with losses (n,).

    Of points whose losses are equal up to rounding it is the one with the lowest values, whatever
    their order.
    """
    equal = np.flatnonzero(losses <= losses.min() + tie_width(losses))
    return int(equal[np.lexsort(points[equal].T[::-1])[0]])


def _basins(
    problem: Problem, loss: Callable[[Queries], np.ndarray], members: tuple[str, ...]
) -> np.ndarray:
    """Return the best local minima of the first design, an array of shape (BASINS_PER_SET, d).

    They are points of the unit cube; where there are fewer minima, the best is repeated.
    """
    size = len(members)
    ticks = round(DESIGN_POINTS ** (1 / size))
    unit = lattice(ticks) if ticks >= 5 else sobol(DESIGN_POINTS)
    cube = unit(size)
    losses = loss(spread(problem.graph.nodes, [members], problem.domains, unit, len(cube)))
    if ticks >= 5:
        table = losses.reshape([ticks] * size)
        losses = np.where(
            table <= minimum_filter(table, size=3, mode="nearest"), table, np.inf
        ).ravel()
    order = np.argsort(losses, kind="stable")[:BASINS_PER_SET]
    return cube[np.where(np.isfinite(losses[order]), order, order[0])]


def _descend_in_box(
    problem: Problem,
    loss: Callable[[Queries], np.ndarray],
    sets: Sequence[tuple[str, ...]],
    points: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Descend from points (sets, BASINS_PER_SET, d) of the unit cube.

    Return the last points and their losses, arrays of the shapes (sets, BASINS_PER_SET, d) and
    (sets, BASINS_PER_SET).
    """
    steps = np.array(_steps(points.shape[-1]))

    def lose(points: np.ndarray) -> np.ndarray:
        return loss(_position(problem, sets, points)).reshape(points.shape[:-1])

    def neighbours(points: np.ndarray, length: np.ndarray) -> np.ndarray:
        moved = points[:, :, None] + length[:, :, None, None] * steps
        return np.asarray(np.clip(moved, 0.0, 1.0))

    return _descend(points, lose(points), _first_step(points.shape[-1]), neighbours, lose)


def _steps(size: int) -> list[tuple[float, ...]]:
    """Return the steps to all neighbours in a grid, or along the axes for more than 3 variables."""
    if size <= 3:
        return [step for step in product((-1.0, 0.0, 1.0), repeat=size) if any(step)]
    return [tuple(row) for row in np.concatenate([np.eye(size), -np.eye(size)]).tolist()]


def _position(problem: Problem, sets: Sequence[tuple[str, ...]], cube: np.ndarray) -> Queries:
    """Return points of the unit cube, of shape (sets, ..., d), as queries, set after set."""
    parts = []
    for members, points in zip(sets, cube.reshape(len(sets), -1, cube.shape[-1]), strict=True):
        parts.append((members, between(*problem.region.bounds(members), points)))
    return place_points(problem.graph.nodes, parts)
