"""Effects under latent causes: averages over draws of regressions, some of them copies.

`identification.sampling_plans` says for every set which variables are drawn, and from which earlier
draws or set values. The plans of all sets are laid over each other: a *slot* is one draw of one
regression, and each of its regressors has a few candidates, among which the set decides. So one
program serves all sets, and draws that no set moves are made once for all queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import CausalBOError
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.mechanisms.gp.propagation import (
    NEAR,
    AveragingProgram,
    Equation,
    Setting,
    natural,
    one_by_one,
    split,
)
from causal_bo_ppl.problem import Problem, Queries


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
    places = {graph.nodes[each.place]: at for at, each in enumerate(equations)}
    tables = {}
    for members in (*plans.sets, (), tuple(problem.domains)):
        upstream = graph.require([name for name in members if name in graph.nodes])
        try:
            plan = plans.plan(upstream)
        except CausalBOError:
            continue  # its effect is a ratio, or cannot be learned
        if upstream not in tables and all(draw.variable in places for draw in plan.draws):
            tables[upstream] = plan
    counts = [
        max(sum(draw.variable == name for draw in plan.draws) for plan in tables.values())
        for name in places
    ]
    starts = dict(zip(places, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    regressors = {
        name: [graph.nodes[place] for place in (*equations[at].causes, *equations[at].known)]
        for name, at in places.items()
    }
    chosen: list[list[dict[int, int]]] = [
        [{} for _ in regressors[name]]
        for name, count in zip(places, counts, strict=True)
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
            for place, candidates in zip(
                (*equation.causes, *equation.known), slot.sources, strict=True
            ):
                options = [drawn[c] if c >= 0 else blank + value[~c] for c in candidates]
                several = len(options) > 1
                columns[place] = _choose(codes[used], options) if several else options[0]
                used += 1
            found.append([columns[place] for place in (*equation.causes, *equation.known)])
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
                for place, candidates in enumerate(slot.sources):
                    is_set = jnp.array([c < 0 for c in candidates])[self.codes[which, at]]
                    at += 1
                    if place >= len(self.equations[slot.equation].causes):
                        continue
                    own = columns[number][place]
                    far = jnp.maximum(low[place] - own, own - high[place])
                    far = far / (high[place] - low[place])
                    out = self.used[which, number] & (far > jnp.where(is_set, 0.0, NEAR))
                    gone, key = jnp.where(out, far, 0.0), (slot.equation, place)
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
