"""Effects whose factors are regressions on direct causes: their formula, checked for all sets.

Where no latent cause lies upstream, every district is one variable, Q[{v}] = P(v | parents of v),
and the effect is the truncated factorization

    P(Y | do(s)) = sum over D minus Y of the product over v in D of P(v | parents of v).

Every factor is verified once, whatever the number of sets that use it: without rounding, and as a
regression N(v; a + w'parents, s2) in random linear-Gaussian models. The whole of every set is then
integrated in these models variable by variable, latest first: a variable that enters the mean of Y
with the load l leaves l w for its parents, l a for the intercept and l^2 s2 for the variance. One
pass over the variables does that for all sets, in a time that grows with edges times sets; a Schur
complement for every set takes the third power of the variables times sets.

Can these effects be learned at all, and through which formulas?

An estimand is the sum, over all free variables but the target, of the product of its c-factors. The
factors are verified one by one, then the whole is compared with the truth of random models: set by
set by dense algebra, or for all sets at once where all factors are regressions on direct causes.

The formula of a c-factor is y0's answer if that is right, else it is derived here; else there is a
hedge. Each must equal Q[C] exactly, in random models over a finite field. The derivation is Tian
and Pearl's recursion. Q[C] follows from Q[T], C inside T, both districts: with A = An(C) in G[T],
A = C gives the sum over T minus C of Q[T]; A = T is a hedge; else Q[A] is the sum over T minus A of
Q[T], and the district of C in G[A] takes the place of T. Conditionals are those of Q[A], as ratios
of its sums; conditionals of P instead would make the recursion wrong.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
from tqdm import tqdm
from y0.dsl import Expression, One, Probability, Product, Sum

from causal_bo_ppl.errors import (
    DomainError,
    ExplorationError,
    GraphError,
    UnverifiedEstimand,
    listed,
)
from causal_bo_ppl.graph import CausalGraph, Edge, Names
from causal_bo_ppl.identification.evaluation import Potential, evaluate
from causal_bo_ppl.identification.finite_field import is_exact_factor
from causal_bo_ppl.identification.parameters import (
    Reduction,
    closure,
    district_within,
    reduce_effects,
    surroundings,
)
from causal_bo_ppl.identification.results import Answer, Identification, Identifications
from causal_bo_ppl.identification.verification import (
    TOLERANCE,
    TRIALS,
    Effects,
    Trials,
    discrepancy,
    draw_trials,
    mark,
    true_effects,
)
from causal_bo_ppl.identification.y0_adapter import (
    arranged,
    ask,
    conditional,
    factors_of,
    free_names,
    joint,
    product,
    ratio,
    to_text,
    total,
    variable,
)
from causal_bo_ppl.inputs import PROGRESS_DELAY
from causal_bo_ppl.problem import Problem, validation

NUMBERS = 2**24  # loads that are held at once


class Regression(NamedTuple):
    """P(v | parents of v) in t trials: coefficients (t, k), intercept (t,) and variance (t,).

    `error` is the largest relative difference between the factor and the density that these give.
    """

    expression: Expression
    at: int
    parents: tuple[int, ...]
    coefficients: np.ndarray
    intercept: np.ndarray
    variance: np.ndarray
    error: float


def read_regression(
    graph: CausalGraph, name: str, expression: Expression, potential: Potential
) -> Regression | None:
    """Return a factor as the regression of a variable on its parents, or None if it is another.

    The potential is the value of the expression in every trial.
    """
    parents = graph.parents(name)
    if not (
        isinstance(expression, Probability)
        and tuple(one.name for one in expression.children) == (name,)
        and tuple(one.name for one in expression.parents) == parents
    ):
        return None
    at, positions = graph.index(name), potential.positions
    here = positions.index(at)
    own = potential.precision[:, here, here]
    row = -potential.precision[:, here] / own[:, None]
    intercept, variance = potential.information[:, here] / own, 1 / own
    density = Effects(row[:, None], intercept[:, None], variance[:, None])
    rebuilt = density.potential(0, range(len(positions)), here)._replace(positions=positions)
    return Regression(
        expression,
        at,
        positions[:here],
        row[:, :here],
        intercept,
        variance,
        discrepancy(potential, rebuilt),
    )


def write_all(
    target: str, opened: Iterable[Names], regressions: Mapping[str, Regression]
) -> Iterator[Expression]:
    """Yield the truncated factorization of every effect, its factors from the last one back."""
    variables = {name: variable(name) for name in regressions}
    for names in opened:
        parts = tuple(regressions[name].expression for name in reversed(names))
        bound = frozenset(variables[name] for name in names if name != target)
        whole = parts[0] if len(parts) == 1 else Product(parts)
        yield Sum(whole, bound) if bound else whole


def truncated_errors(
    graph: CausalGraph,
    target: str,
    members: Sequence[Names],
    estimands: Sequence[Expression],
    regressions: Mapping[str, Regression],
    trials: Trials,
) -> Iterator[float]:
    """Yield, for every set, the largest relative error of its estimand over all trials.

    What is integrated is read from the estimand itself. The error is infinite where a factor is not
    one of `regressions`, or where the sum does not run over all variables of the factors but the
    target.
    """
    at = graph.index(target)
    own = np.zeros(len(graph.nodes))
    for part in regressions.values():
        own[part.at] = part.error
    block = max(1, NUMBERS // trials.intercepts.size)
    for start in range(0, len(estimands), block):
        masks = mark(graph, members[start : start + block])
        integrated = [
            _read_variables(estimand, target, regressions)
            for estimand in estimands[start : start + block]
        ]
        present = mark(graph, [names or () for names in integrated])
        found = _integrate(regressions, present.T, at)
        whole = _differences(found, true_effects(trials, at, masks))
        whole = np.maximum(whole, np.where(present, own, 0.0).max(axis=1))
        is_read = np.array([names is not None for names in integrated])
        yield from np.where(is_read & np.isfinite(whole), whole, np.inf).tolist()


def _differences(found: Effects, truth: Effects) -> np.ndarray:
    """Return the largest relative difference of every one of M effects over all trials, (M,).

    Slopes are compared for every variable, and so for those on which an effect must not depend.
    """
    slopes = np.abs(found.slopes - truth.slopes).max(axis=2)
    sizes = np.maximum(np.abs(truth.slopes).max(axis=2), 1.0)
    shift = np.abs(found.intercepts - truth.intercepts)
    spread = np.abs(found.variances - truth.variances)
    parts = (
        slopes / sizes,
        shift / np.maximum(np.abs(truth.intercepts), 1.0),
        spread / truth.variances,
    )
    return np.asarray(np.max([part.max(axis=0) for part in parts], axis=0))


def _read_variables(
    estimand: Expression, target: str, regressions: Mapping[str, Regression]
) -> list[str] | None:
    """Return the variables whose regressions are the factors of an estimand.

    None where a factor is no verified regression, stands twice, or where the sum does not run over
    all of these variables but the target.
    """
    inner = estimand.expression if isinstance(estimand, Sum) else estimand
    bound = {one.name for one in estimand.ranges} if isinstance(estimand, Sum) else set()
    names = []
    for part in factors_of(inner):
        name = part.children[0].name if isinstance(part, Probability) else ""
        if name not in regressions or regressions[name].expression is not part:
            return None
        names.append(name)
    is_whole = target in names and len(set(names)) == len(names) and bound == {*names} - {target}
    return names if is_whole else None


def _integrate(regressions: Mapping[str, Regression], present: np.ndarray, target: int) -> Effects:
    """Return the distributions of the target that M products of regressions give.

    `present` (p, M) says whose regressions stand in each product; all but the target's variable are
    integrated. Slopes are the loads of what is left, and 0 for the target itself.
    """
    parts = sorted(regressions.values(), key=lambda part: -part.at)
    trials = len(parts[0].intercept)
    loads = np.zeros((trials, *present.shape))
    intercepts, variances = np.zeros((2, trials, present.shape[1]))
    loads[:, target] = 1.0
    for part in parts:
        load = np.where(present[part.at], loads[:, part.at], 0.0)
        intercepts += load * part.intercept[:, None]
        variances += load**2 * part.variance[:, None]
        loads[:, list(part.parents)] += part.coefficients[:, :, None] * load[:, None]
        loads[:, part.at] -= load
    return Effects(loads.transpose(0, 2, 1), intercepts, variances)


class HedgeFound(Exception):
    """There is no formula: of the districts (T, C), C inside T, An(C) in G[T] is all of T."""

    def __init__(self, outer: Names, inner: Names) -> None:
        super().__init__(outer, inner)
        self.districts = outer, inner


class Factor(NamedTuple):
    """The c-factor Q[district]: its expression and route, or the two districts of its hedge.

    `potentials` has the value of every factor of the expression in every trial.
    """

    district: Names
    expression: Expression
    route: str
    hedge: tuple[Names, ...]
    potentials: dict[Expression, Potential]


def identify(
    problem: Problem | CausalGraph,
    target: str | None = None,
    sets: validation.Sets | None = None,
    *,
    identifiable_only: bool = False,
    linear: bool = False,
    progress: bool = True,
) -> Identifications:
    """Identify E[Y | do(s)] for every intervention set, and verify each formula.

    Parameters
    ----------
    problem:
        A Problem; or a CausalGraph, with `target` and `sets`.
    target, sets:
        With a graph: the target, and "mis", "pomis", a largest size, or the sets themselves, of
        which the empty one may be one.
    identifiable_only:
        With a graph: leave sets that cannot be learned out, instead of refusing to go on.
    linear:
        Count sets as usable that linear mechanisms identify though ID does not.
    progress:
        Whether a progress bar is shown when this takes more than a few seconds.

    Returns
    -------
    Identifications
        A mapping from sets to results, shown as a table; `to_frame()` is that table.

    Examples
    --------
    >>> ids = identify(CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", ["X"])
    >>> ids["X"].text
    'sum_{Z} [sum_{X} [P(Y | X, Z) P(X)] P(Z | X)]'
    """
    if isinstance(problem, Problem):
        if target is not None or sets is not None or identifiable_only:
            raise DomainError(
                "a problem has its own target, sets and identifiable_only; give the problem alone"
            )
        graph, target, chosen, known = problem.graph, problem.target, problem.sets, problem.known
        identifiable_only = problem.identifiable_only
    else:
        if not isinstance(problem, CausalGraph):
            raise GraphError(
                f"identify needs a Problem or a CausalGraph, got {problem!r}; "
                "a system has its .problem"
            )
        graph, known = problem, {}
        if target is None or sets is None:
            raise DomainError("identify needs a Problem, or a graph with its target and sets")
        target = validation.read_target(graph, target)
        chosen = validation.expand_sets(graph, target, sets)
        if not chosen:
            raise ExplorationError(
                "there is no intervention set to identify; the empty set is one: [()]"
            )
    linear, identifiable_only = (
        validation.read_flag(name, flag)
        for name, flag in (("linear", linear), ("identifiable_only", identifiable_only))
    )
    results = _identify_all(graph, target, chosen, known, progress)
    return Identifications(
        graph, target, results, identifiable_only=identifiable_only, linear=linear
    )


def _identify_all(
    graph: CausalGraph,
    target: str,
    sets: tuple[Names, ...],
    known: Mapping[Edge, float],
    progress: bool,
) -> list[Identification]:
    """Return the result of every set; equal effects and equal factors are identified once."""
    causes = graph.ancestral(target)
    trials = draw_trials(causes, TRIALS)
    reductions = dict(zip(sets, reduce_effects(causes, target, sets), strict=True))
    effects = list(dict.fromkeys(reductions.values()))
    districts = dict.fromkeys(
        district for reduction in effects if reduction.effective for district in reduction.districts
    )
    factors = {district: identify_factor(causes, district, trials) for district in districts}
    answers = _assemble_all(causes, target, effects, factors, trials, progress)
    return [
        Identification(graph, target, members, reduction, answers[reduction], known)
        for members, reduction in reductions.items()
    ]


def _assemble_all(
    graph: CausalGraph,
    target: str,
    effects: Sequence[Reduction],
    factors: Mapping[Names, Factor],
    trials: Trials,
    progress: bool,
) -> dict[Reduction, Answer]:
    """Return the verified estimand of every effect, or its hedge.

    Raise UnverifiedEstimand for one that misses the truth of a trial.
    """
    regressions = _regressions(graph, factors)
    simple: list[Reduction] = []
    others: list[Reduction] = []
    for reduction in effects:
        is_simple = len(reduction.districts) == len(reduction.open) and all(
            name in regressions for name in reduction.open
        )
        (simple if reduction.effective and is_simple else others).append(reduction)
    answered = chain(
        _of_regressions(graph, target, simple, regressions, factors, trials),
        _of_factors(graph, target, others, factors, trials),
    )
    ordered = zip([*simple, *others], answered, strict=True)
    bar = {"desc": "verifying", "unit": "effect", "delay": PROGRESS_DELAY, "leave": False}
    answers = {}
    for reduction, answer in tqdm(ordered, total=len(effects), disable=not progress, **bar):
        if answer.estimand is not None and not answer.error <= TOLERANCE:
            raise UnverifiedEstimand(
                f"the estimand of P({target} | do({listed(reduction.effective)})) misses the truth "
                f"of a random model by {answer.error:.1e}: {to_text(answer.estimand)}"
            )
        answers[reduction] = answer
    return answers


def _regressions(graph: CausalGraph, factors: Mapping[Names, Factor]) -> dict[str, Regression]:
    """Return the factors that are regressions of one variable on its direct causes, by variable."""
    found = {}
    for district, factor in factors.items():
        if len(district) == 1 and len(factor.potentials) == 1:
            [(expression, potential)] = factor.potentials.items()
            regression = read_regression(graph, district[0], expression, potential)
            if regression is not None:
                found[district[0]] = regression
    return found


def _of_regressions(
    graph: CausalGraph,
    target: str,
    effects: Sequence[Reduction],
    regressions: Mapping[str, Regression],
    factors: Mapping[Names, Factor],
    trials: Trials,
) -> Iterator[Answer]:
    """Yield the truncated factorization of every effect, with its error."""
    estimands = list(write_all(target, [reduction.open for reduction in effects], regressions))
    members = [reduction.effective for reduction in effects]
    errors = truncated_errors(graph, target, members, estimands, regressions, trials)
    for reduction, estimand, error in zip(effects, estimands, errors, strict=True):
        route = _route(factors[district] for district in reduction.districts)
        yield Answer(estimand, route, (), len(trials.weights), error, of_regressions=True)


def _of_factors(
    graph: CausalGraph,
    target: str,
    effects: Sequence[Reduction],
    factors: Mapping[Names, Factor],
    trials: Trials,
) -> Iterator[Answer]:
    """Yield the sum of the product of the factors of every effect with its error, or its hedge."""
    at = graph.index(target)
    truth = true_effects(trials, at, mark(graph, [reduction.effective for reduction in effects]))
    for position, reduction in enumerate(effects):
        needed = [factors[district] for district in reduction.districts if reduction.effective]
        hedge = next((factor.hedge for factor in needed if factor.hedge), ())
        if hedge:
            yield Answer(None, "none", hedge, 0, np.nan)
            continue
        positions = [graph.index(name) for name in graph.require([target, *reduction.effective])]
        estimand = _assemble(graph, target, reduction, needed)
        error = _error(graph, estimand, needed, trials, truth.potential(position, positions, at))
        yield Answer(estimand, _route(needed), (), len(trials.weights), error)


def _route(factors: Iterable[Factor]) -> str:
    return "rederived" if any(factor.route == "rederived" for factor in factors) else "y0"


def _assemble(
    graph: CausalGraph, target: str, reduction: Reduction, factors: Sequence[Factor]
) -> Expression:
    """Return the product of the factors, summed over all free variables but the target.

    Where nothing that is set affects the target, that is P(target).
    """
    if not reduction.effective:
        return joint([target])
    whole = product(factor.expression for factor in factors)
    return arranged(total(whole, set(reduction.open) - {target}), graph)


def _error(
    graph: CausalGraph,
    estimand: Expression,
    factors: Sequence[Factor],
    trials: Trials,
    truth: Potential,
) -> float:
    """Return the largest relative error of the whole estimand over all trials."""
    memo = {part: potential for factor in factors for part, potential in factor.potentials.items()}
    positions = {name: position for position, name in enumerate(graph.nodes)}
    return discrepancy(evaluate(estimand, trials.moments, positions, memo), truth)


def derive(graph: CausalGraph, wanted: Names) -> Expression:
    """Return Q[wanted] as an expression in P; raise HedgeFound where there is none."""
    wanted = graph.require(wanted)  # in the order of the tuples that it is compared with
    inside = graph.district(wanted[0])
    factor = product(conditional(name, _blanket_before(graph, name)) for name in inside)
    while True:
        causes = ancestors_within(graph, wanted, inside)
        if causes == wanted:
            return total(factor, set(inside) - set(wanted))
        if causes == inside:
            raise HedgeFound(inside, wanted)
        marginal = total(factor, set(inside) - set(causes))
        inside = district_within(graph, wanted[0], causes)
        factor = _district_factor(marginal, causes, inside)


def ancestors_within(graph: CausalGraph, names: Names, inside: Names) -> Names:
    """Return An(names), themselves included, in the graph over `inside`."""
    allowed = set(inside)
    return graph.require(closure(names, lambda name: allowed.intersection(graph.parents(name))))


def _blanket_before(graph: CausalGraph, name: str) -> Names:
    """Return what screens a variable from earlier ones: its district among them, with parents."""
    earlier = graph.nodes[: graph.index(name) + 1]
    district = district_within(graph, name, earlier)
    return graph.require({*district, *graph.parents(district)} - {name})


def _district_factor(marginal: Expression, causes: Names, inside: Names) -> Expression:
    """Return Q[inside], given Q[causes] as `marginal`.

    It is the product of Q[first i] / Q[first i - 1] over its members, which telescopes over runs of
    neighbours in `causes`.
    """
    ratios, start = [], 0
    for is_member, run in groupby(causes, key=set(inside).__contains__):
        stop = start + len(list(run))
        if is_member:
            below = total(marginal, causes[start:]) if start else product(())
            ratios.append(ratio(total(marginal, causes[stop:]), below))
        start = stop
    return product(ratios)


def identify_factor(graph: CausalGraph, district: Names, trials: Trials) -> Factor:
    """Ask y0 about Q[district] in the part of the graph that matters, and check its answer."""
    relevant = surroundings(graph, district)
    answer = ask(relevant, district, graph.parents(district))
    if answer is not None:
        answer = _closed(answer, graph, district)
        if is_exact_factor(answer, relevant, district):
            return _verified(answer, "y0", graph, district, trials)
    try:
        derived = _closed(derive(relevant, district), graph, district)
    except HedgeFound as hedge:
        if answer is not None:
            raise UnverifiedEstimand(
                f"y0 and the hedge criterion contradict each other on {listed(district)}"
            ) from None
        return Factor(district, One(), "none", hedge.districts, {})
    if not is_exact_factor(derived, relevant, district):
        raise UnverifiedEstimand(
            f"no formula for the district {listed(district)} could be verified; the last one was "
            f"{to_text(derived)}"
        )
    return _verified(derived, "rederived", graph, district, trials)


def _closed(expression: Expression, graph: CausalGraph, district: Names) -> Expression:
    """Return the expression averaged over free variables on which the factor does not depend.

    The expression is constant in these if P is the true distribution, but not if P is estimated.
    """
    dangling = free_names(expression) - {*district, *graph.parents(district)}
    if dangling:
        expression = total(product([expression, joint(graph.require(dangling))]), dangling)
    return arranged(expression, graph)


def _verified(
    expression: Expression, route: str, graph: CausalGraph, district: Names, trials: Trials
) -> Factor:
    positions = {name: graph.index(name) for name in graph.nodes}
    potentials = {
        part: evaluate(part, trials.moments, positions) for part in factors_of(expression)
    }
    return Factor(district, expression, route, (), potentials)
