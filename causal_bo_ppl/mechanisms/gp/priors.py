"""What is believed about mechanisms that bend, before any row, and what the analyst may choose.

Priors are without units; what has units is read off the rows, or given.

Regressions in place of mechanisms: which are needed, what teaches them, and rows drawn by them.

Where latent causes join causes of the target, every variable has the regression that
`identification.sampling_plans` names. Its law stays as it is under some experiments only, and rows
under do() are drawn along the plan of what is set.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.inputs import read_count, read_number
from causal_bo_ppl.mechanisms.gp.basis import SMOOTHNESS
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, set_label

MOST_TOGETHER = 3  # causes of one group
MOST_PRODUCTS = 1_000  # basis functions of one group
BINS = 6  # of equally many rows, between whose means the steepest slope is looked for
WITHIN = 3.0  # sds from the mean, beyond which rows do not widen the range of a basis


@dataclass(frozen=True)
class GP:
    """How one variable depends on its causes: a linear trend plus Gaussian processes.

    A process has one lengthscale and one amplitude for all values of a cause. Where a mechanism
    bends much more in one part of the data than in another, as C = exp(-B) does, its bands are too
    narrow where rows are sparse, inside the data too; "uneven curvature" in `cb.diagnostics.check_predictive`
    looks for that.

    Parameters
    ----------
    groups:
        Causes whose influence is not additive, such as `[("D", "E")]`: each group of two or three
        has one process of all of them. Causes that are in no group have a process of their own.
    kernel:
        "squared_exponential", "matern52" or "matern32".
    functions:
        How many basis functions each cause has, at most 256; by default 48, fewer (at least 16)
        where a variable has more than four causes, and 12 or 6 for each cause in a group of two or
        three. `cb.diagnostics.check_basis` says whether they are enough. A group has at most 1,000 products.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.GP(groups=[("D", "E")], kernel="matern52")
    GP(groups=(('D', 'E'),), kernel='matern52', functions=None)
    """

    groups: Sequence[Sequence[str]] = ()
    kernel: str = "squared_exponential"
    functions: int | None = None

    def __post_init__(self) -> None:
        given = self.groups
        nested = isinstance(given, (list, tuple)) and all(
            isinstance(each, (list, tuple)) for each in given
        )
        if not nested:
            raise ModelError(
                f"groups are lists of names, such as [('D', 'E')]; got {self.groups!r}"
            )
        groups = tuple(tuple(map(str, each)) for each in self.groups)
        members = [name for each in groups for name in each]
        for each in groups:
            if not 2 <= len(set(each)) <= MOST_TOGETHER or len(set(each)) != len(each):
                raise ModelError(
                    f"a group holds two or three different causes, got {each!r}; more would need "
                    "more basis functions than rows can tell apart"
                )
        if len(set(members)) != len(members):
            raise ModelError(f"a cause belongs to one group only, got {groups!r}")
        object.__setattr__(self, "groups", groups)
        if not isinstance(self.kernel, str) or self.kernel not in SMOOTHNESS:
            raise ModelError(f"kernel must be one of {listed(SMOOTHNESS)}, got {self.kernel!r}")
        if self.functions is not None:
            functions = read_count("functions", self.functions, 2)
            largest = max((len(each) for each in groups), default=1)
            if functions > 256 or functions**largest > MOST_PRODUCTS and largest > 1:
                raise ModelError(
                    f"functions={functions} gives {functions**largest:,} basis functions for one "
                    f"process; at most 256 for one cause and {MOST_PRODUCTS:,} for a group are "
                    "possible"
                )
            object.__setattr__(self, "functions", functions)


@dataclass(frozen=True, eq=False)
class GPPrior:
    """The prior of mechanisms that bend.

    A hyperparameter is log-normal: given are its median, in the units of the rows named below, and
    the sd of its logarithm, its `spread`. Given the hyperparameters, coefficients are Gaussian.

    Parameters
    ----------
    lengthscale, target_lengthscale, lengthscale_spread:
        Of the Gaussian processes, in sds of the cause; the second is for the target's mechanism.
    amplitude, amplitude_spread:
        The sd of a process, in sds of the variable.
    trend, trend_spread:
        The sd of a slope, in sds of the variable for one sd of the cause.
    hinge:
        The sd by which a slope may change beyond the range of the data, in the steepest slopes that
        the rows show.
    noise, noise_spread:
        The sd of the disturbance, in sds of the variable.
    level:
        The sd of the mean at the causes' means, in sds of the variable.
    scales, centres, ranges:
        {variable: sd}, {variable: mean} and {variable: (low, high)} in place of those of the rows.
        Where all are given the prior does not depend on the rows.
    """

    lengthscale: float = 1.0
    target_lengthscale: float = 1.5
    lengthscale_spread: float = 1.0
    amplitude: float = 1.0
    amplitude_spread: float = 1.0
    trend: float = 1.0
    trend_spread: float = 0.5
    hinge: float = 1.0
    noise: float = 0.5
    noise_spread: float = 1.5
    level: float = 10.0
    scales: Mapping[str, float] = field(default_factory=dict)
    centres: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self)[:11]:
            value = read_number(each.name, getattr(self, each.name))
            if not 1e-6 <= value <= 1e6:
                raise ModelError(f"{each.name} must be positive, 1e-6 to 1e6, got {value!r}")
            object.__setattr__(self, each.name, value)
        readers = {"scales": _read_scale, "centres": _read_centre, "ranges": _read_range}
        for name, read in readers.items():
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise ModelError(f"{name} is {{variable: value}}, got {given!r}")
            object.__setattr__(
                self, name, {str(each): read(str(each), value) for each, value in given.items()}
            )

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""
        record = json.loads(self.to_json())
        return f"GPPrior {json.dumps(record, sort_keys=True)}"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

    @staticmethod
    def from_json(text: str) -> "GPPrior":
        """Return the prior of a JSON text that `to_json` wrote."""
        try:
            record = json.loads(text)
        except (TypeError, ValueError) as error:
            raise ModelError(f"a prior is read from a JSON text: {error}") from None
        known = {each.name for each in fields(GPPrior)}
        if not isinstance(record, dict) or set(record) != known:
            raise ModelError(f"a GPPrior has exactly the fields {listed(sorted(known))}")
        return GPPrior(**record)


def _read_scale(name: str, value: object) -> float:
    scale = read_number(f"the scale of {name!r}", value)
    if not scale > 0:
        raise ModelError(f"the scale of {name!r} must be positive, got {scale!r}")
    return scale


def _read_centre(name: str, value: object) -> float:
    return read_number(f"the centre of {name!r}", value)


def _read_range(name: str, value: Any) -> tuple[float, float]:
    ends = tuple(value) if isinstance(value, Sequence) else ()
    if len(ends) != 2:
        raise ModelError(f"the range of {name!r} is (low, high), got {value!r}")
    low, high = (read_number(f"the range of {name!r}", end) for end in ends)
    if not low < high:
        raise ModelError(f"the range of {name!r} must be (low, high), got {value!r}")
    return low, high


class Spread(NamedTuple):
    """Where the values of one variable lie: their mean, sd, and range."""

    centre: float
    scale: float
    low: float
    high: float

    def draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Draw values of this mean and sd from a Gaussian."""
        return self.centre + self.scale * generator.standard_normal(shape)


def read_spread(prior: GPPrior, name: str, values: np.ndarray) -> Spread:
    """Return where a variable lies, as the prior says or, where it does not, as the rows do.

    Rows more than three sds away do not widen the range: a basis for all of it would be coarse.
    """
    named = (name in prior.centres, name in prior.scales, name in prior.ranges)
    if not all(named) and not len(values):
        raise ModelError(
            f"{name!r} was set in every row, so that its mechanism cannot be learned; add rows in "
            f"which it was not set, or give `centres`, `scales` and `ranges` of {name!r} in "
            "cb.priors.GPPrior to rest on the prior"
        )
    if not all(named) and (len(values) < 2 or not np.ptp(values) > 0):
        raise ModelError(
            f"the rows of {name!r} do not vary, so that its scale is not known; give `centres`, "
            f"`scales` and `ranges` of {name!r} in cb.priors.GPPrior"
        )
    centre = prior.centres[name] if named[0] else float(values.mean())
    scale = prior.scales[name] if named[1] else float(values.std())
    if named[2]:
        return Spread(centre, scale, *prior.ranges[name])
    reach = max(WITHIN * scale, abs(float(values.mean()) - centre))
    low, high = max(float(values.min()), centre - reach), min(float(values.max()), centre + reach)
    return Spread(centre, scale, low, high)


def steepest_slope(cause: np.ndarray, effect: np.ndarray) -> float:
    """Return the steepest slope between means of neighbouring parts of the rows, by the cause.

    Four squared standard errors are taken off each squared slope, so that few rows with much noise
    show no slopes of their own. The noise is what a line within each part leaves.
    """
    order = np.argsort(cause, kind="stable")
    bins = min(BINS, len(cause) // 5)
    if bins < 2:
        return 0.0
    parts = np.array_split(order, bins)
    x, y = (np.array([values[part].mean() for part in parts]) for values in (cause, effect))
    left = sum(_left_by_line(cause[part], effect[part]) for part in parts)
    noise = left / (len(cause) - 2 * bins)
    sizes = np.array([len(part) for part in parts])
    apart = np.diff(x) > 1e-3 * math.fabs(float(np.ptp(cause)))
    slopes = np.diff(y)[apart] / np.diff(x)[apart]
    errors = noise * (1 / sizes[1:] + 1 / sizes[:-1])[apart] / np.diff(x)[apart] ** 2
    return float(np.sqrt(np.maximum(slopes**2 - 4 * errors, 0.0)).max(initial=0.0))


def _left_by_line(cause: np.ndarray, effect: np.ndarray) -> float:
    """Return the sum of squares that a line of the cause leaves of the effect."""
    x, y = cause - cause.mean(), effect - effect.mean()
    size = float(x @ x)
    along = float(x @ y) ** 2 / size if size > 0 else 0.0
    return max(float(y @ y) - along, 0.0)


SPARE = 3  # rows needed beyond the number of regressors
Draw = Callable[[str, np.ndarray], np.ndarray]


def needed_variables(graph: CausalGraph, target: str, sets: Sequence[Sequence[str]]) -> Names:
    """Return the variables whose mechanisms some effect depends on, in the graph's order."""
    needed = {name for members in sets for name in _needed_by_set(graph, target, tuple(members))}
    return tuple(name for name in graph.nodes if name in needed)


@lru_cache(maxsize=4096)
def _needed_by_set(graph: CausalGraph, target: str, members: Names) -> frozenset[str]:
    """Return the variables whose mechanisms the effect of one set depends on."""
    after = graph.do([name for name in members if name in graph.nodes])
    return frozenset({*after.ancestors(target), target} - set(members))


def regressors(problem: Problem, plans: SamplingPlans | None) -> dict[str, Names]:
    """Return what every variable that effects depend on is regressed on, in causal order.

    These are its causes, unless there are plans.
    """
    graph = problem.graph.ancestral(problem.target)
    if plans is not None:
        return {name: plans.given[name] for name in plans.variables}
    needed = needed_variables(graph, problem.target, problem.sets)
    return {name: graph.parents(name) for name in needed}


def usable_entries(plans: SamplingPlans | None, nodes: Sequence[str], data: Data) -> np.ndarray:
    """Return which rows say something about the equation of each variable in `nodes`, (n, p).

    None in which the variable was set. A regression also says nothing about rows of an experiment
    that changes the distribution of its variable given its regressors.
    """
    free = ~data.intervened[:, [data.nodes.index(name) for name in nodes]]
    if plans is None:
        return free
    firsts, groups = distinct_rows(~free)
    for number, first in enumerate(firsts):
        members = [name for name, is_free in zip(nodes, free[first], strict=True) if not is_free]
        if members:
            same = [plans.is_invariant(name, members) for name in nodes]
            free[groups == number] &= np.array(same)
    return free


def rows_of_target(
    problem: Problem, data: Data, queries: Queries, outcomes: np.ndarray
) -> tuple[np.ndarray, Data]:
    """Return which outcomes of the target alone are rows of its mechanism, and these rows.

    Where all causes of the target are set, and no latent cause joins it to them, its mechanism
    alone decides the outcome. In such a row every other variable counts as set, at its mean, so
    that the row says nothing about other mechanisms.

    Parameters
    ----------
    data:
        Rows that say where other variables lie.
    queries, outcomes:
        M interventions on the problem's variables, and what came out, (M,).

    Returns
    -------
    tuple
        Which are rows, (M,), and the rows.
    """
    graph, target = problem.graph, problem.target
    mask, position = np.asarray(queries.mask), graph.index(target)
    causes = [graph.index(name) for name in graph.parents(target)]
    which = np.asarray(mask[:, causes].all(axis=1) if causes else np.zeros(len(mask), bool))
    usual = data.values[data.is_observational]
    middle = usual.mean(axis=0) if len(usual) else np.zeros(mask.shape[1])
    values = np.where(mask, np.asarray(queries.value), middle)
    values[:, position] = outcomes
    is_set = np.ones(mask.shape, bool)
    is_set[:, position] = False
    return which, Data(data.nodes, target, values[which], is_set[which])


def require_rows(problem: Problem, plans: SamplingPlans | None, data: Data, prior: GPPrior) -> None:
    """Refuse rows that are too few, or vary too little, for an equation that is needed.

    Under a prior that says where all variables lie no rows are needed.
    """
    graph, given = problem.graph.ancestral(problem.target), regressors(problem, plans)
    if plans is not None:
        for cause, effect in problem.known:
            if effect in given and set(given[effect]) != set(graph.parents(effect)):
                raise ModelError(
                    f"the coefficient of {cause} -> {effect} is known, but latent causes join "
                    f"{effect!r} to others, and in its regression on {listed(given[effect])} the "
                    "coefficient is another one; leave it out of `known`"
                )
    if set(graph.nodes) <= set(prior.scales) & set(prior.ranges):
        return
    if plans is None:
        require_learnable(data, problem.graph, problem.known, nodes=given, spare=SPARE)
        return
    usable = dict(zip(graph.nodes, usable_entries(plans, graph.nodes, data).T, strict=True))
    require_learnable(
        data, problem.graph, problem.known, nodes=given, spare=SPARE, given=given, usable=usable
    )


def draw_under_plans(
    plans: SamplingPlans,
    learned: Sequence[str],
    nodes: Sequence[str],
    rows: np.ndarray,
    mask: np.ndarray,
    draw: Draw,
) -> np.ndarray:
    """Fill rows (n, r, p), in which set values and variables that are not learned stand.

    Where the experiment leaves the regressions of all that is drawn as they are, each variable is
    drawn by its regression on the row. Otherwise what reaches the target is drawn as the plan of
    the set says, jointly as under do(), and only the rest by regressions on the row.

    Parameters
    ----------
    learned, nodes:
        The variables that are drawn, in the order of their regressions; all variables.
    mask:
        What is set, (r, p).
    draw:
        A function of a variable and of rows (n, r', p) that draws it (n, r') by its regression.
    """
    firsts, groups = distinct_rows(mask)
    for number, first in enumerate(firsts):
        chosen = np.flatnonzero(groups == number)
        members = [name for name, is_set in zip(nodes, mask[first], strict=True) if is_set]
        part, own = rows[:, chosen], set(members)
        changed = [
            name for name in learned if name not in own and not plans.is_invariant(name, members)
        ]
        if changed and plans.target not in own:
            plan = plans.plan(members)
            drawn: list[np.ndarray] = []
            if lacking := {each.variable for each in plan.draws} - set(learned):
                raise ModelError(
                    f"rows of {set_label(tuple(members))} depend on the regressions of "
                    f"{listed(sorted(lacking))}, which no set of the problem needs; add it to the "
                    "sets"
                )
            for each in plan.draws:
                inputs = part.copy()
                for name, source in zip(plans.given[each.variable], each.sources, strict=True):
                    if not isinstance(source, str):
                        inputs[:, :, nodes.index(name)] = drawn[source]
                drawn.append(draw(each.variable, inputs))
            for each, values in zip(plan.draws, drawn, strict=True):
                if each.is_own:
                    part[:, :, nodes.index(each.variable)] = values
                    own.add(each.variable)
        for name in learned:
            if name not in own:
                part[:, :, nodes.index(name)] = draw(name, part)
        rows[:, chosen] = part
    return rows
