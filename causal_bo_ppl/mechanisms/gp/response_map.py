"""Effects under latent causes: averages over draws of regressions, some of them copies.

`identification.sampling_plans` says for every set which variables are drawn, and from which earlier
draws or set values. The plans of all sets are laid over each other: a *slot* is one draw of one
regression, and each of its regressors has a few candidates, among which the set decides. So one
program serves all sets, and draws that no set moves are made once for all queries.

The map from theta to effects of mechanisms that bend: names, coverage and points.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import CausalBOError, ExplorationError, ModelError, listed, unknown
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.mechanisms.base import Extrapolation
from causal_bo_ppl.mechanisms.gp.basis import features, steepest
from causal_bo_ppl.mechanisms.gp.priors import needed_variables
from causal_bo_ppl.mechanisms.gp.propagation import (
    FEW_POINTS,
    NEAR,
    POINTS,
    AveragingProgram,
    Equation,
    MomentProgram,
    PointProgram,
    Setting,
    natural,
    normal_points,
    one_by_one,
    other_points,
    sigma_points,
    split,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, set_label


class Slot(NamedTuple):
    """One draw by a regression; hashable.

    equation: place of the regression among the equations. sources: for every regressor, first those
    that are learned, then those with known slopes, its candidates: the number of an earlier slot,
    or ~place of a variable whose set value is taken.
    """

    equation: int
    sources: tuple[tuple[int, ...], ...]


class Layout(NamedTuple):
    """The plans of n sets over k slots with i regressors in all.

    masks: (n, p) what is set. codes: (n, i) which candidate each regressor takes. used: (n, k)
    whether the set needs the slot.
    """

    slots: tuple[Slot, ...]
    masks: np.ndarray
    codes: np.ndarray
    used: np.ndarray


def lay_out(problem: Problem, plans: SamplingPlans, equations: Sequence[Equation]) -> Layout:
    """Return the plans of all sets in common slots.

    Besides the problem's sets, doing nothing and setting all that may be set have a plan, where
    they need no other regressions.
    """
    graph = plans.graph
    positions = {graph.nodes[each.position]: at for at, each in enumerate(equations)}
    tables = {}
    for members in (*plans.sets, (), tuple(problem.domains)):
        upstream = graph.require([name for name in members if name in graph.nodes])
        try:
            plan = plans.plan(upstream)
        except CausalBOError:
            continue  # its effect is a ratio, or cannot be learned
        if upstream not in tables and all(draw.variable in positions for draw in plan.draws):
            tables[upstream] = plan
    counts = [
        max(sum(draw.variable == name for draw in plan.draws) for plan in tables.values())
        for name in positions
    ]
    starts = dict(zip(positions, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    regressors = {
        name: [graph.nodes[position] for position in (*equations[at].causes, *equations[at].known)]
        for name, at in positions.items()
    }
    chosen: list[list[dict[int, int]]] = [
        [{} for _ in regressors[name]]
        for name, count in zip(positions, counts, strict=True)
        for _ in range(count)
    ]
    taken = []
    for plan in tables.values():
        slots: list[int] = []
        rows: dict[int, list[int]] = {}
        for draw in plan.draws:
            slot = starts[draw.variable] + sum(
                other.variable == draw.variable for other in plan.draws[: len(slots)]
            )
            by_name = dict(zip(plans.given[draw.variable], draw.sources, strict=True))
            rows[slot] = []
            for options, name in zip(chosen[slot], regressors[draw.variable], strict=True):
                source = by_name[name]
                one = ~graph.index(source) if isinstance(source, str) else slots[source]
                rows[slot].append(options.setdefault(one, len(options)))
            slots.append(slot)
        taken.append(rows)
    sources = [tuple(tuple(options) or (~0,) for options in each) for each in chosen]
    codes = [
        [code for at, each in enumerate(sources) for code in rows.get(at, [0] * len(each))]
        for rows in taken
    ]
    owners = [at for at, count in enumerate(counts) for _ in range(count)]
    return Layout(
        tuple(Slot(owner, each) for owner, each in zip(owners, sources, strict=True)),
        np.array([[name in members for name in graph.nodes] for members in tables]),
        np.array(codes, dtype=np.int32).reshape(len(taken), -1),
        np.array([[at in rows for at in range(len(sources))] for rows in taken]),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CopyProgram(AveragingProgram):
    """Effects as averages over draws of regressions; see `interfaces.ResponseProgram`.

    settings: one for each equation. points: (S, k - 1) standardized disturbances of all slots but
    the last, the target's. masks, codes, used: see `Layout`. size: the number of variables.
    """

    settings: tuple[Setting, ...]
    points: jax.Array
    masks: jax.Array
    codes: jax.Array
    used: jax.Array
    equations: tuple[Equation, ...] = field(metadata={"static": True})
    slots: tuple[Slot, ...] = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    def _set(self, mask: Any) -> jax.Array:
        """Return the place of the set among the plans."""
        return jnp.argmax((self.masks == mask[None]).all(axis=1))

    def paths(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> list[list[Any]]:
        """Return the regressors (S,) of every slot, and last the mean of the target at each point.

        The lists have a column for each regressor, in the order of `Slot.sources`.
        """
        codes, used = self.codes[self._set(mask)], 0
        blank, parts = jnp.zeros(len(self.points)), split(self.equations, theta)
        drawn: list[Any] = []
        found: list[list[Any]] = []
        for number, slot in enumerate(self.slots):
            equation, setting = self.equations[slot.equation], self.settings[slot.equation]
            coefficients, log_sd = parts[slot.equation]
            columns: list[Any] = [None] * self.size
            for position, candidates in zip(
                (*equation.causes, *equation.known), slot.sources, strict=True
            ):
                options = [drawn[c] if c >= 0 else blank + value[~c] for c in candidates]
                several = len(options) > 1
                columns[position] = _choose(codes[used], options) if several else options[0]
                used += 1
            found.append([columns[position] for position in (*equation.causes, *equation.known)])
            own = natural(equation, setting, coefficients, columns, fast) + blank
            if number == len(self.slots) - 1:
                return [*found, [own]]
            drawn.append(own + jnp.exp(log_sd) * self.points[:, number])
        raise AssertionError("the target's slot is the last one")

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given its regressors there."""
        found: jax.Array = self.paths(theta, mask, value, fast)[-1][0]
        return found

    def beyond(self, theta: jax.Array, batch: Queries) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return how many paths leave the data: (M,) at all, (M, k) by input, and by how much.

        Inputs are the learned regressors of all equations, one after the other; of several draws by
        one regression the one counts that goes farthest. See `PointProgram.beyond`.
        """

        def one(query: Queries) -> tuple[jax.Array, jax.Array, jax.Array]:
            which = self._set(query.mask)
            columns, at = self.paths(theta, query.mask, query.value, True), 0
            excess: dict[tuple[int, int], jax.Array] = {}
            for number, slot in enumerate(self.slots):
                frame = self.settings[slot.equation].frame
                low, high = jnp.asarray(frame.low), jnp.asarray(frame.high)
                for position, candidates in enumerate(slot.sources):
                    is_set = jnp.array([c < 0 for c in candidates])[self.codes[which, at]]
                    at += 1
                    if position >= len(self.equations[slot.equation].causes):
                        continue
                    own = columns[number][position]
                    far = jnp.maximum(low[position] - own, own - high[position])
                    far = far / (high[position] - low[position])
                    out = self.used[which, number] & (far > jnp.where(is_set, 0.0, NEAR))
                    gone, key = jnp.where(out, far, 0.0), (slot.equation, position)
                    excess[key] = jnp.maximum(excess[key], gone) if key in excess else gone
            gone = jnp.stack([excess[key] for key in sorted(excess)])
            outside = gone > 0
            share = outside.mean(axis=1, dtype=float)
            distance = gone.mean(axis=1) / jnp.where(share > 0, share, 1.0)
            return outside.any(axis=0).mean(dtype=float), share, distance

        return one_by_one(one, batch)


def _choose(code: jax.Array, options: list[Any]) -> jax.Array:
    """Return one of several arrays (S,)."""
    found: jax.Array = options[0]
    for number, other in enumerate(options[1:], 1):
        found = jnp.where(code == number, other, found)
    return found


PROPAGATIONS = ("qmc", "sigma", "moments")
OTHERS, MORE = 8, 1_024  # sets of points by which the error of an average is judged, their size
FAR, SMALL = 5.0, 1e-9  # sds from the mean of theta; of a process's largest coefficient: negligible


def is_mechanism(graph: CausalGraph, equation: Equation) -> bool:
    """Return whether the regressors of an equation are the causes of its variable.

    Otherwise latent causes join it to others, and the equation says what these tell about it.
    """
    regressors = {graph.nodes[position] for position in (*equation.causes, *equation.known)}
    return regressors == set(graph.parents(graph.nodes[equation.position]))


def coordinate_names(graph: CausalGraph, equation: Equation) -> list[tuple[str, str, str]]:
    """Return (name, variable, part) of every coordinate of theta that belongs to an equation.

    A regression on others than the causes says on which, as in level[Y|X,Z].
    """
    variable, form = graph.nodes[equation.position], equation.form
    causes = [graph.nodes[position] for position in equation.causes]
    node = variable if is_mechanism(graph, equation) else f"{variable}|{','.join(causes)}"
    names = [(f"level[{node}]", "level")]
    names += [(f"b[{cause}->{node}]", f"slope of {cause}") for cause in causes]
    for group in form.groups:
        members = "*".join(causes[column] for column in group.columns)
        names += [
            (f"f[{members}->{node},{number}]", f"process of {members}")
            for number in range(1, group.size + 1)
        ]
    for at in form.hinged:
        names += [(f"low[{causes[at]}->{node}]", f"slope of {causes[at]} below the data")]
        names += [(f"high[{causes[at]}->{node}]", f"slope of {causes[at]} above the data")]
    names += [(f"log_sd[{node}]", "log sd of the disturbance")]
    return [(name, variable, part) for name, part in names]


@dataclass(frozen=True, eq=False)
class GPResponse:
    """Effects as averages over disturbances; see `interfaces.ResponseMap`.

    equations: of all variables that effects depend on, in causal order, the target last. settings:
    what is fixed in each. propagation: how disturbances are averaged. plans: which draws an effect
    is averaged over where latent causes join causes of the target, the equations being regressions;
    None where there are no such causes.
    """

    problem: Problem
    equations: tuple[Equation, ...]
    settings: tuple[Setting, ...]
    propagation: str = "qmc"
    points: int = POINTS
    plans: SamplingPlans | None = None

    @property
    def propagations(self) -> tuple[str, ...]:
        """The ways in which disturbances can be averaged."""
        return PROPAGATIONS if self.plans is None else PROPAGATIONS[:2]

    @cached_property
    def graph(self) -> CausalGraph:
        """The target and its causes."""
        return self.problem.graph.ancestral(self.problem.target)

    @cached_property
    def _coordinates(self) -> list[tuple[str, str, str]]:
        found = [coordinate_names(self.graph, equation) for equation in self.equations]
        return [each for names in found for each in names]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients and log sds."""
        return tuple(name for name, _, _ in self._coordinates)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The intervention sets of the problem whose effects can be learned."""
        return self.problem.sets if self.plans is None else self.plans.sets

    @property
    def is_affine(self) -> bool:
        """Whether no mechanism bends, so that effects are affine in the values."""
        return not any(equation.form.is_nonlinear for equation in self.equations)

    @property
    def is_linear(self) -> bool:
        """Whether only the target's mechanism matters, so that effects are linear in theta."""
        return len(self.equations) == 1

    @cached_property
    def _layout(self) -> Layout | None:
        if self.plans is None:
            return None
        return lay_out(self.problem, self.plans, self.equations)

    @property
    def _free(self) -> int:
        """How many disturbances are averaged over: all but that of the target."""
        return len(self.equations if self._layout is None else self._layout.slots) - 1

    @cached_property
    def program(self) -> Any:
        """The effects as a JAX pytree."""
        size = len(self.graph.nodes)
        with jax.ensure_compile_time_eval():  # kept: within a trace they would be its tracers
            settings = tuple(
                jax.tree.map(jnp.asarray, setting._replace(terms=self._terms(at)))
                for at, setting in enumerate(self.settings)
            )
            if self.propagation == "moments":
                return MomentProgram(settings, self.equations, size)
            chosen = sigma_points(self._free)
            if self.propagation == "qmc":
                chosen = normal_points(self.points, self._free)
            if self._layout is not None:
                slots, *tables = self._layout
                masks, codes, used = map(jnp.asarray, tables)
                arrays = (settings, jnp.asarray(chosen), masks, codes, used)
                return CopyProgram(*arrays, self.equations, slots, size)
            return PointProgram(settings, jnp.asarray(chosen), self.equations, size)

    def propagate(self, propagation: str) -> "GPResponse":
        """Return the same map with disturbances averaged in another way."""
        if propagation not in self.propagations:
            raise ModelError(
                f"propagation must be one of {listed(self.propagations)}, got {propagation!r}"
            )
        return replace(self, propagation=propagation)

    def roughly(self) -> "GPResponse":
        """Return the same map with averages over fewer points."""
        return replace(self, points=min(self.points, FEW_POINTS))

    def without_small(self, mean: np.ndarray, sd: np.ndarray) -> "GPResponse":
        """Return the same map without coefficients that are negligible where theta may lie.

        Those of the shortest waves of a process are, unless its lengthscale is short. mean, sd: of
        theta (d,).
        """
        settings, sizes = [], np.abs(mean) + FAR * sd
        for at, (own, _) in enumerate(split(self.equations, sizes)):
            form, terms = self.equations[at].form, []
            used = 1 + form.causes
            for group in form.groups:
                size, used = own[used : used + group.size], used + group.size
                counts = np.flatnonzero(size > SMALL * size.max(initial=0.0))
                is_cut = len(group.columns) == 1 and len(counts) > 0
                terms.append(int(counts[-1]) + 1 if is_cut else group.size)
            settings.append(self.settings[at]._replace(terms=np.array(terms, int)))
        return replace(self, settings=tuple(settings))

    @property
    def acting(self) -> np.ndarray:
        """Which coordinates of theta (d,) have an influence; see `without_small`."""
        found = []
        for at, equation in enumerate(self.equations):
            form = equation.form
            counts = zip(form.groups, self._terms(at), strict=True)
            found.append(np.ones(1 + form.causes, bool))
            found += [np.arange(group.size) < count for group, count in counts]
            found.append(np.ones(2 * len(form.hinged) + 1, bool))
        return np.concatenate(found)

    def _terms(self, at: int) -> np.ndarray:
        """Return how many functions of each process of an equation count, (G,)."""
        given = self.settings[at].terms
        if given is not None:
            return np.asarray(given)
        return np.array([group.size for group in self.equations[at].form.groups], int)

    def batch(self, queries: Queries) -> Queries:
        """Return the queries over the target and its causes."""
        columns = [self.problem.graph.index(name) for name in self.graph.nodes]
        mask = np.asarray(queries.mask)[:, columns]
        value = np.asarray(queries.value)[:, columns]
        if self._layout is not None:
            self.require_planned(mask)
            return Queries(mask, value)
        learned = {self.graph.nodes[equation.position] for equation in self.equations}
        for row in distinct_rows(mask)[0]:
            members = tuple(
                name for name, is_set in zip(self.graph.nodes, mask[row], strict=True) if is_set
            )
            lacking = [
                name
                for name in needed_variables(self.graph, self.problem.target, [members])
                if name not in learned
            ]
            if lacking and not members:
                raise ExplorationError(
                    f"the mean of {self.problem.target!r} without any intervention depends on the "
                    f"mechanisms of {listed(lacking)}, which no set of the problem needs, so that "
                    "they were not learned; take the mean of observed rows for it, or compare "
                    "interventions with each other"
                )
            if lacking:
                raise ExplorationError(
                    f"the effect of {set_label(members)} depends on the mechanisms of "
                    f"{listed(lacking)}, which no set of the problem needs; add it to the sets"
                )
        return Queries(mask, value)

    def require_planned(self, mask: np.ndarray) -> None:
        """Refuse sets, rows (M, p) of the target and its causes, that have no plan."""
        if self._layout is None:
            return
        planned = {each.tobytes() for each in self._layout.masks}
        for row in distinct_rows(mask)[0]:
            if np.asarray(mask[row], bool).tobytes() in planned:
                continue
            pairs = zip(self.graph.nodes, mask[row], strict=True)
            members = [name for name, is_set in pairs if is_set]
            raise ExplorationError(
                f"the effect of {set_label(tuple(members))} is averaged over regressions that no "
                "set of the problem needs, because latent causes join causes of the target; add "
                "it to the sets"
            )

    def standard_errors(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the error (M,) of the averages at theta (d,), judged by many other points."""
        batch, free = self.batch(queries), self._free
        if not free:
            return np.zeros(len(batch.mask))

        def average(points: np.ndarray) -> np.ndarray:
            other = replace(self.propagate("qmc").program, points=jnp.asarray(points))
            work = partial(_effects, other, jnp.asarray(theta))
            return np.asarray(in_pieces(work, batch, len(batch.mask)))

        work = partial(_effects, self.program, jnp.asarray(theta))
        own = np.asarray(in_pieces(work, batch, len(batch.mask)))
        others = [average(other_points(MORE, free, seed)) for seed in range(OTHERS)]
        noise = np.std(others, axis=0, ddof=1) / np.sqrt(OTHERS)
        return np.asarray(np.hypot(own - np.mean(others, axis=0), noise))

    def extrapolation(self, theta: np.ndarray, queries: Queries) -> Extrapolation:
        """Return where paths at theta (d,) leave the data; hinges act there only.

        An input that is set counts as outside as soon as it leaves the range of the data, others
        beyond a tenth of that range: of new rows from the distribution of 30 old ones about 1 % lie
        there, of that of 100 far fewer.
        """
        batch, nodes = self.batch(queries), self.graph.nodes
        work = partial(_beyond, self.propagate("qmc").program, jnp.asarray(theta))
        outside, shares, far = map(np.asarray, in_pieces(work, batch, len(batch.mask)))
        inputs = tuple(
            (nodes[equation.position], nodes[cause])
            for equation in self.equations
            for cause in equation.causes
        )
        hinges = [
            np.arange(equation.size) >= equation.form.size - 2 * len(equation.form.hinged)
            for equation in self.equations
        ]
        for each in hinges:
            each[-1] = False  # the log sd
        return Extrapolation(inputs, outside, shares, far, np.concatenate(hinges))

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """
        learned = [self.graph.nodes[equation.position] for equation in self.equations]
        if variable not in learned:
            raise ModelError(unknown("variable with a learned mechanism", variable, learned))
        at = learned.index(variable)
        self._require_mechanisms([self.equations[at]])
        columns = [self.problem.graph.index(name) for name in self.graph.nodes]
        coefficients = split(self.equations, np.asarray(theta))[at][0]
        rows = jnp.asarray(np.asarray(values)[:, columns])
        work = partial(means_of_many, self.equations[at], self.settings[at], rows=rows)
        return np.asarray(in_pieces(work, coefficients, len(coefficients)))

    def _require_mechanisms(self, equations: Sequence[Equation]) -> None:
        """Refuse regressions that are no mechanisms."""
        for equation in equations:
            if not is_mechanism(self.graph, equation):
                name = self.graph.nodes[equation.position]
                regressors = [self.graph.nodes[position] for position in equation.causes]
                raise ModelError(
                    f"latent causes join {name!r} to other variables, so that only its regression "
                    f"on {listed(regressors)} was learned, not its mechanism"
                )

    def slopes(self, theta: np.ndarray) -> dict[Edge, float]:
        """Return the largest slope of every mechanism in each cause, over all values."""
        self._require_mechanisms(self.equations)
        found, nodes = {}, self.graph.nodes
        parts = zip(self.equations, self.settings, split(self.equations, theta), strict=True)
        for equation, setting, (coefficients, _) in parts:
            effect = nodes[equation.position]
            for cause, slope in zip(equation.known, np.abs(setting.slopes), strict=True):
                found[nodes[cause], effect] = float(slope)
            sizes = steepest(equation.form, setting.frame, np.asarray(coefficients))
            for cause, slope in zip(equation.causes, sizes, strict=True):
                found[nodes[cause], effect] = float(slope)
        return found

    def scales(self, theta: np.ndarray) -> dict[str, float]:
        """Return the sds of the disturbances."""
        sds = [float(np.exp(log_sd)) for _, log_sd in split(self.equations, np.asarray(theta))]
        names = [self.graph.nodes[equation.position] for equation in self.equations]
        return dict(zip(names, sds, strict=True))

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every coordinate: the variable, and which part of its mechanism."""
        columns = ["coordinate", "variable", "part"]
        return pd.DataFrame(self._coordinates, columns=columns).set_index("coordinate")

    def canonical(self) -> str:
        """Return a text that tells this parameterization from others of the same problem."""
        arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
        return f"gp|{self.forms}|{self.propagation} {self.points}|{arrays}"

    @property
    def forms(self) -> str:
        """The forms of all equations as a JSON text."""
        return json.dumps(
            [[each.position, each.causes, each.known, each.form] for each in self.equations]
        )

    def attributes(self) -> dict[str, str]:
        """Return what a file must record for the coordinates to be known again."""
        arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
        return {"parameters": "gp", "forms": self.forms, "settings": json.dumps(arrays)}


@jax.jit
def _beyond(
    program: Any, theta: jax.Array, batch: Queries
) -> tuple[jax.Array, jax.Array, jax.Array]:
    found: tuple[jax.Array, jax.Array, jax.Array] = program.beyond(theta, batch)
    return found


@jax.jit
def _effects(program: Any, theta: jax.Array, batch: Queries) -> jax.Array:
    found: jax.Array = program.effects(theta, batch)
    return found


@partial(jax.jit, static_argnums=0)
def means_of_many(
    equation: Equation, setting: Setting, coefficients: jax.Array, rows: jax.Array
) -> jax.Array:
    """Return means (n, rows) for coefficients (n, K) and the same rows (rows, p)."""
    inputs = [rows[:, cause] for cause in equation.causes]
    total = features(equation.form, setting.frame, inputs) @ coefficients.T
    shared = rows[:, jnp.array(equation.known, int)] @ jnp.asarray(setting.slopes, float)
    whole = total.T if equation.causes else total[:, None] * jnp.ones((1, len(rows)))
    found: jax.Array = whole + shared[None]
    return found
