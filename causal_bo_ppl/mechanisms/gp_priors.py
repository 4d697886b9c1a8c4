"""Which priors do nonlinear mechanisms have, and which regressions are learned in their place?

Priors are without units; scales with units are estimated from the data, or given.

Where latent causes join causes of the target, every variable has the regression that
`identification.sampling_plans` names. Its distribution is invariant under some experiments only,
and samples under do() are drawn along the plan of the intervention set.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.errors import ExplorationError, MechanismError, listed
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.inputs import read_count, read_number
from causal_bo_ppl.mechanisms.gp_basis import SMOOTHNESS
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, set_label

MOST_CAUSES_IN_A_GROUP = 3
MOST_FUNCTIONS_OF_A_CAUSE = 256
MOST_FUNCTIONS_OF_A_GROUP = 1_000
MOST_SLOPE_BINS = 6  # of equally many observations, between whose means slopes are computed
RANGE_IN_SDS = 3.0  # from the mean, beyond which observations do not widen the range of a basis
SPARE_OBSERVATIONS = 3  # needed beyond the number of regressors
MOST_INTERACTIONS = 15  # of one linear mechanism: all pairs of six causes
CONSTANT_NOISE = "constant"
ALL_PAIRS = "all"
NOISES = (CONSTANT_NOISE, "varying", "student")  # see `GP`

Draw = Callable[[str, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class GP:
    """Nonlinear mechanism of one variable: a linear trend plus Gaussian processes of its causes.

    A process has one lengthscale and one amplitude for all values of a cause. Where the curvature
    differs much between parts of the data, as that of C = exp(-B) does, credible intervals are too
    narrow where observations are sparse, inside the data too; "uneven curvature" in
    `cb.diagnostics.check_predictive` tests for that.

    Parameters
    ----------
    groups : sequence of sequences of str
        Causes whose influence is not additive, such as `[("D", "E")]`: each group of two or three
        has one joint process. Every other cause has a separate process.
    kernel : str
        "squared_exponential", "matern52" or "matern32".
    functions : int, optional
        The number of basis functions of each cause, at most 256; by default 48, fewer (at least
        16) where a variable has more than four causes, and 12 or 6 for each cause in a group of two
        or three. A group has at most 1,000 products. `cb.diagnostics.check_basis` checks whether
        they are enough.
    noise : str
        "constant": Gaussian noise with one sd. "varying": Gaussian noise whose log sd is a smooth
        function of the causes. "student": Student's t noise, whose degrees of freedom are learned.
        All but the first need method="laplace" or "nuts"; see `mechanisms.noise_models`.

    Raises
    ------
    MechanismError
        If the groups overlap or have wrong sizes, the kernel or the noise is unknown, or there are
        too many basis functions.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.GP(groups=[("D", "E")], kernel="matern52")
    GP(groups=(('D', 'E'),), kernel='matern52', functions=None, noise='constant')
    """

    groups: Sequence[Sequence[str]] = ()
    kernel: str = "squared_exponential"
    functions: int | None = None
    noise: str = CONSTANT_NOISE

    def __post_init__(self) -> None:
        _require_noise(self.noise)
        is_list = isinstance(self.groups, (list, tuple))
        if not is_list or not all(isinstance(group, (list, tuple)) for group in self.groups):
            raise MechanismError(
                f"groups are lists of names, such as [('D', 'E')]; got {self.groups!r}"
            )
        groups = tuple(tuple(map(str, group)) for group in self.groups)
        members = [name for group in groups for name in group]
        for group in groups:
            if not 2 <= len(set(group)) == len(group) <= MOST_CAUSES_IN_A_GROUP:
                raise MechanismError(
                    f"a group holds two or three different causes, got {group!r}; more would need "
                    "more basis functions than observations can determine"
                )
        if len(set(members)) != len(members):
            raise MechanismError(f"a cause belongs to one group only, got {groups!r}")
        object.__setattr__(self, "groups", groups)
        if not isinstance(self.kernel, str) or self.kernel not in SMOOTHNESS:
            raise MechanismError(f"kernel must be one of {listed(SMOOTHNESS)}, got {self.kernel!r}")
        if self.functions is not None:
            functions = read_count("functions", self.functions, 2)
            largest = max(map(len, groups), default=1)
            most = MOST_FUNCTIONS_OF_A_GROUP if largest > 1 else MOST_FUNCTIONS_OF_A_CAUSE
            if functions > MOST_FUNCTIONS_OF_A_CAUSE or functions**largest > most:
                raise MechanismError(
                    f"functions={functions} gives {functions**largest:,} basis functions for one "
                    f"process; at most {MOST_FUNCTIONS_OF_A_CAUSE} for one cause and "
                    f"{MOST_FUNCTIONS_OF_A_GROUP:,} for a group are possible"
                )
            object.__setattr__(self, "functions", functions)


@dataclass(frozen=True)
class Linear:
    """Linear mechanism of one variable, with products of its causes and other noise.

    V = a + sum_i b_i V_i + sum_ij b_ij (V_i - mean_i)(V_j - mean_j) + e. Without options it is the
    same as "linear".

    Parameters
    ----------
    interactions : sequence of pairs of str, or "all"
        The causes that are multiplied, such as `[("A", "B")]`; "all": all pairs. At most 15.
    noise : str
        "constant", "varying" or "student", as in `cb.GP`.

    Raises
    ------
    MechanismError
        If an interaction is no pair of different causes, or the noise is unknown.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> import numpy as np, pandas as pd
    >>> graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    >>> problem = cb.Problem(graph, target="Y", domains={"A": (-2, 2), "B": (-2, 2)})
    >>> a, b, e = np.random.default_rng(0).normal(size=(3, 200))
    >>> table = pd.DataFrame({"A": a, "B": b, "Y": a * b + 0.5 * a + 0.1 * e})
    >>> post = cb.fit(problem, table, mechanisms={"Y": cb.Linear(interactions=[("A", "B")])})
    >>> cb.effects(post, [{"A": 2.0, "B": -2.0}], key=0)["mean"].round(1).tolist()
    [-3.0]
    """

    interactions: Sequence[Sequence[str]] | str = ()
    noise: str = CONSTANT_NOISE

    def __post_init__(self) -> None:
        _require_noise(self.noise)
        if self.interactions == ALL_PAIRS:
            return
        is_list = isinstance(self.interactions, (list, tuple))
        if not is_list or not all(isinstance(pair, (list, tuple)) for pair in self.interactions):
            raise MechanismError(
                "interactions are pairs of names, such as [('A', 'B')], or \"all\"; got "
                f"{self.interactions!r}"
            )
        pairs = tuple(tuple(map(str, pair)) for pair in self.interactions)
        for pair in pairs:
            if len(pair) != 2 or len(set(pair)) != 2:
                raise MechanismError(f"an interaction is of two different causes, got {pair!r}")
        if len({frozenset(pair) for pair in pairs}) != len(pairs):
            raise MechanismError(f"an interaction is given once only, got {pairs!r}")
        object.__setattr__(self, "interactions", pairs)

    def products(self, name: str, causes: Sequence[str]) -> tuple[tuple[int, int], ...]:
        """Return the pairs of positions among the causes of a variable that are multiplied."""
        is_all = isinstance(self.interactions, str)
        pairs = list(combinations(causes, 2)) if is_all else list(self.interactions)
        for cause in (cause for pair in pairs for cause in pair if cause not in causes):
            raise MechanismError(
                f"{cause!r} is in an interaction of {name!r} but is none of its causes "
                f"({listed(causes)}) whose influence is learned; give interactions by variable, "
                f"such as mechanisms={{{name!r}: cb.Linear(interactions=[...])}}"
            )
        if len(pairs) > MOST_INTERACTIONS:
            raise MechanismError(
                f"{name!r} would have {len(pairs)} interactions; at most {MOST_INTERACTIONS} are "
                "possible: name those that matter, as cb.diagnostics.check_interactions does"
            )
        return tuple(
            sorted(
                (min(each), max(each))
                for each in (tuple(map(causes.index, pair)) for pair in pairs)
            )
        )


MechanismChoice = GP | Linear | None  # of one variable; None for a linear mechanism


def _require_noise(noise: object) -> None:
    if not isinstance(noise, str) or noise not in NOISES:
        raise MechanismError(f"noise must be one of {listed(NOISES)}, got {noise!r}")


@dataclass(frozen=True)
class GPPrior:
    """Prior of nonlinear mechanisms, and of linear ones beside them.

    A hyperparameter is log-normal: given are its median, in the units named below, and the sd of
    its logarithm, its `spread`. Given the hyperparameters, coefficients are Gaussian.

    Parameters
    ----------
    lengthscale, target_lengthscale, lengthscale_spread : float
        Of the Gaussian processes, in sds of the cause; the second is for the target's mechanism.
    amplitude, amplitude_spread : float
        The sd of a process, in sds of the variable.
    trend, trend_spread : float
        The sd of a slope, in sds of the variable for one sd of the cause.
    hinge : float
        The sd by which a slope may change beyond the range of the data, relative to the steepest
        slope in the data.
    noise, noise_spread : float
        The sd of the noise, in sds of the variable.
    level : float
        The sd of the mean at the causes' means, in sds of the variable.
    scales, centres, ranges : mapping
        {variable: sd}, {variable: mean} and {variable: (low, high)} in place of those of the data.
        Where all are given the prior does not depend on the data.

    Raises
    ------
    MechanismError
        If a number is not positive, or a scale, centre or range cannot be used.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> prior = cb.priors.GPPrior(noise=0.2, ranges={"X": (-1, 1)})
    >>> cb.priors.GPPrior.from_json(prior.to_json()) == prior
    True
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
                raise MechanismError(f"{each.name} must be positive, 1e-6 to 1e6, got {value!r}")
            object.__setattr__(self, each.name, value)
        readers = {"scales": _read_scale, "centres": read_number, "ranges": _read_range}
        for name, read in readers.items():
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise MechanismError(f"{name} is {{variable: value}}, got {given!r}")
            object.__setattr__(
                self, name, {str(each): read(str(each), value) for each, value in given.items()}
            )

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""
        return f"GPPrior {json.dumps(asdict(self), sort_keys=True)}"

    def __hash__(self) -> int:
        return hash(self.canonical())

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "GPPrior":
        """Return the prior of a JSON text that `to_json` wrote."""
        try:
            values = json.loads(text)
        except (TypeError, ValueError) as error:
            raise MechanismError(f"a prior is read from a JSON text: {error}") from None
        names = {each.name for each in fields(GPPrior)}
        if not isinstance(values, dict) or set(values) != names:
            raise MechanismError(f"a GPPrior has exactly the fields {listed(sorted(names))}")
        return GPPrior(**values)


def _read_scale(name: str, value: object) -> float:
    scale = read_number(f"the scale of {name!r}", value)
    if not scale > 0:
        raise MechanismError(f"the scale of {name!r} must be positive, got {scale!r}")
    return scale


def _read_range(name: str, value: Any) -> tuple[float, float]:
    ends = tuple(value) if isinstance(value, Sequence) else ()
    numbers = [read_number(f"the range of {name!r}", end) for end in ends]
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise MechanismError(f"the range of {name!r} must be (low, high), got {value!r}")
    return numbers[0], numbers[1]


class Spread(NamedTuple):
    """Location of the values of one variable: their mean, sd, and range."""

    centre: float
    scale: float
    low: float
    high: float


def read_spread(prior: GPPrior, name: str, values: np.ndarray) -> Spread:
    """Return mean, sd and range of a variable from the prior or, where it has none, from values.

    Values more than three sds away do not widen the range: a basis for all of it would be coarse.
    """
    named = (name in prior.centres, name in prior.scales, name in prior.ranges)
    if not all(named) and not len(values):
        raise MechanismError(
            f"{name!r} was set in every observation, so that its mechanism cannot be learned; add "
            f"observations in which it was not set, or give `centres`, `scales` and `ranges` of "
            f"{name!r} in cb.priors.GPPrior to use the prior alone"
        )
    if not all(named) and (len(values) < 2 or not np.ptp(values) > 0):
        raise MechanismError(
            f"the values of {name!r} do not vary, so that its scale is not known; give `centres`, "
            f"`scales` and `ranges` of {name!r} in cb.priors.GPPrior"
        )
    centre = prior.centres[name] if named[0] else float(values.mean())
    scale = prior.scales[name] if named[1] else float(values.std())
    if named[2]:
        return Spread(centre, scale, *prior.ranges[name])
    reach = max(RANGE_IN_SDS * scale, abs(float(values.mean()) - centre))
    low, high = max(float(values.min()), centre - reach), min(float(values.max()), centre + reach)
    return Spread(centre, scale, low, high)


def steepest_slope(cause: np.ndarray, effect: np.ndarray) -> float:
    """Return the steepest slope between the means of neighbouring bins of the cause.

    Four squared standard errors are subtracted from each squared slope, so that few observations
    with much noise do not suggest steep slopes. The noise is the residual of a line in each bin.
    """
    order = np.argsort(cause, kind="stable")
    count = min(MOST_SLOPE_BINS, len(cause) // 5)
    if count < 2:
        return 0.0
    bins = np.array_split(order, count)
    x, y = (np.array([values[each].mean() for each in bins]) for values in (cause, effect))
    residual = sum(_residual_of_line(cause[each], effect[each]) for each in bins)
    noise = residual / (len(cause) - 2 * count)
    sizes = np.array([len(each) for each in bins])
    differ = np.diff(x) > 1e-3 * math.fabs(float(np.ptp(cause)))
    slopes = np.diff(y)[differ] / np.diff(x)[differ]
    errors = noise * (1 / sizes[1:] + 1 / sizes[:-1])[differ] / np.diff(x)[differ] ** 2
    return float(np.sqrt(np.maximum(slopes**2 - 4 * errors, 0.0)).max(initial=0.0))


def _residual_of_line(cause: np.ndarray, effect: np.ndarray) -> float:
    """Return the residual sum of squares of a linear regression of the effect on the cause."""
    x, y = cause - cause.mean(), effect - effect.mean()
    size = float(x @ x)
    explained = float(x @ y) ** 2 / size if size > 0 else 0.0
    return max(float(y @ y) - explained, 0.0)


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
    """Return the regressors of every variable that effects depend on, in causal order.

    These are its causes, unless there are plans.
    """
    graph = problem.graph.ancestral(problem.target)
    if plans is not None:
        return {name: plans.given[name] for name in plans.variables}
    needed = needed_variables(graph, problem.target, problem.sets)
    return {name: graph.parents(name) for name in needed}


def usable_entries(plans: SamplingPlans | None, nodes: Sequence[str], data: Data) -> np.ndarray:
    """Return which observations inform the equation of each variable in `nodes`, (n, p).

    None does in which the variable was set. Under plans, no observation of an experiment does that
    changes the distribution of the variable given its regressors.
    """
    free = ~data.intervened[:, [data.nodes.index(name) for name in nodes]]
    if plans is None:
        return free
    firsts, groups = distinct_rows(~free)
    for number, first in enumerate(firsts):
        members = [name for name, is_free in zip(nodes, free[first], strict=True) if not is_free]
        if members:
            free[groups == number] &= [plans.is_invariant(name, members) for name in nodes]
    return free


def observations_of_target(
    problem: Problem, data: Data, queries: Queries, outcomes: np.ndarray
) -> tuple[np.ndarray, Data]:
    """Return which outcomes of the target alone inform its mechanism as whole observations.

    Where all causes of the target are set, and no latent cause joins it to them, its mechanism
    alone determines the outcome. In such an observation every other variable counts as set, at its
    mean in `data`, so that other mechanisms are not informed.

    Parameters
    ----------
    data:
        Observations whose means stand for the other variables.
    queries, outcomes:
        M interventions on the problem's variables, and the outcomes (M,).

    Returns
    -------
    tuple
        Which outcomes these are, (M,), and the observations.
    """
    graph, target = problem.graph, problem.target
    mask, position = np.asarray(queries.mask), graph.index(target)
    causes = [graph.index(name) for name in graph.parents(target)]
    which = np.asarray(mask[:, causes].all(axis=1) if causes else np.zeros(len(mask), bool))
    observed = data.values[data.is_observational]
    middle = observed.mean(axis=0) if len(observed) else np.zeros(mask.shape[1])
    values = np.where(mask, np.asarray(queries.value), middle)
    values[:, position] = outcomes
    is_set = np.ones(mask.shape, bool)
    is_set[:, position] = False
    return which, Data(data.nodes, target, values[which], is_set[which])


def require_observations(
    problem: Problem, plans: SamplingPlans | None, data: Data, prior: GPPrior
) -> None:
    """Refuse observations that are too few, or vary too little, for an equation that is needed.

    Under a prior with the scales and ranges of all variables no observations are needed.
    """
    graph, given = problem.graph.ancestral(problem.target), regressors(problem, plans)
    if plans is not None:
        for cause, effect in problem.known:
            if effect in given and set(given[effect]) != set(graph.parents(effect)):
                raise MechanismError(
                    f"the coefficient of {cause} -> {effect} is known, but latent causes join "
                    f"{effect!r} to others, and in its regression on {listed(given[effect])} the "
                    "coefficient is another one; remove it from `known`"
                )
    if set(graph.nodes) <= set(prior.scales) & set(prior.ranges):
        return
    usable = dict(zip(graph.nodes, usable_entries(plans, graph.nodes, data).T, strict=True))
    require_learnable(
        data,
        problem.graph,
        problem.known,
        nodes=given,
        spare=SPARE_OBSERVATIONS,
        given=None if plans is None else given,
        usable=None if plans is None else usable,
    )


def draw_under_plans(
    plans: SamplingPlans,
    learned: Sequence[str],
    nodes: Sequence[str],
    samples: np.ndarray,
    mask: np.ndarray,
    draw: Draw,
) -> np.ndarray:
    """Draw the learned variables of samples (n, r, p) that hold set values and other variables.

    Where the regressions of all drawn variables are invariant under the experiment, each variable
    is drawn by its regression. Otherwise the ancestors of the target are drawn jointly by the plan
    of the intervention set, and only the rest by regressions.

    Parameters
    ----------
    learned, nodes:
        The variables that are drawn, in the order of their regressions; all variables.
    mask:
        The variables that are set, (r, p).
    draw:
        A function of a variable and samples (n, r', p) that draws it (n, r') by its regression.
    """
    firsts, groups = distinct_rows(mask)
    for number, first in enumerate(firsts):
        chosen = np.flatnonzero(groups == number)
        members = [name for name, is_set in zip(nodes, mask[first], strict=True) if is_set]
        part, done = samples[:, chosen], set(members)
        changed = [
            name for name in learned if name not in done and not plans.is_invariant(name, members)
        ]
        if changed and plans.target not in done:
            plan = plans.plan(members)
            drawn: list[np.ndarray] = []
            if lacking := {each.variable for each in plan.draws} - set(learned):
                raise ExplorationError(
                    f"samples of {set_label(tuple(members))} depend on the regressions of "
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
                    done.add(each.variable)
        for name in learned:
            if name not in done:
                part[:, :, nodes.index(name)] = draw(name, part)
        samples[:, chosen] = part
    return samples
