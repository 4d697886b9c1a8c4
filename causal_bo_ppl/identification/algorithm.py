"""Can these effects be learned at all, and through which formulas?

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
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import pandas as pd
from tqdm import tqdm
from y0.dsl import Expression, One

from causal_bo_ppl.errors import (
    DomainError,
    ExplorationError,
    GraphError,
    NotIdentifiable,
    UnverifiedEstimand,
    listed,
)
from causal_bo_ppl.graph.admg import CausalGraph, Edge, Names, read_target, set_label
from causal_bo_ppl.graph.intervention_sets import Sets, expand_sets
from causal_bo_ppl.identification import evaluation
from causal_bo_ppl.identification.evaluation import Potential, evaluate
from causal_bo_ppl.identification.finite_field import is_exact_factor
from causal_bo_ppl.identification.linear_identification import LinearVerdict, judge
from causal_bo_ppl.identification.parameters import (
    Explored,
    HedgeFound,
    Parameters,
    Reduction,
    ancestors_within,
    collect,
    district_within,
    reduce_effects,
    require_kind,
    surroundings,
)
from causal_bo_ppl.identification.verification import (
    TOLERANCE,
    TRIALS,
    FactorRegression,
    Trials,
    discrepancy,
    draw_trials,
    read_regression,
    true_effects,
    truncated_errors,
    write_all,
)
from causal_bo_ppl.identification.y0_adapter import (
    arranged,
    ask,
    conditional,
    factors_of,
    free_names,
    joint,
    latex_name,
    product,
    ratio,
    to_latex,
    to_text,
    total,
)
from causal_bo_ppl.inputs import PROGRESS_DELAY
from causal_bo_ppl.problem.problem import read_flag

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem

DROP = (
    "drop this set (identifiable_only=True does), measure what confounds them, or ask what linear "
    "mechanisms identify (linear=True)"
)


class Answer(NamedTuple):
    """An estimand with its route and its largest relative error over the trials, or a hedge.

    `hedge` has the two districts that forbid an estimand; `trials` is the number of models in which
    the estimand was compared with the truth. `of_regressions` is True where every factor is the
    regression of a variable on its direct causes, so that the estimand was integrated variable by
    variable; others are integrated by one Schur complement.
    """

    estimand: Expression | None
    route: str
    hedge: tuple[Names, ...]
    trials: int
    error: float
    of_regressions: bool = False


@dataclass(frozen=True, eq=False)
class Identification:
    """What is known about the effect of one intervention set on the target.

    Attributes
    ----------
    graph, target, intervened:
        The question: the effect of the set `intervened`.
    reduction:
        The part of the graph that matters under do(intervened).
    known, known_effects:
        Coefficients known in advance, {(cause, effect): value}, and total effects on the target,
        {"tau[X]": value}.
    estimand:
        The formula as a y0 expression in the graph's names; None where there is none.
    route:
        Where the formula came from: "y0", "rederived" (y0's was wrong), or "none".
    hedge:
        The two districts that forbid a formula, the larger first; empty where there is one.
    trials, error:
        The number of random models in which the estimand was verified, and its largest relative
        error in these; 0 and NaN where there is none.
    of_regressions:
        Whether every factor is the regression of a variable on its direct causes.
    """

    graph: CausalGraph
    target: str
    intervened: Names
    reduction: Reduction
    known: Mapping[Edge, float]
    estimand: Expression | None
    route: str
    hedge: tuple[Names, ...]
    trials: int
    error: float
    of_regressions: bool
    known_effects: Mapping[str, float] = field(default_factory=dict)

    @property
    def identifiable(self) -> bool:
        """Whether ID gives a formula, whatever the mechanisms."""
        return self.estimand is not None

    @property
    def verified(self) -> bool:
        """Whether the estimand was checked and found right; always so where there is one."""
        return self.trials > 0 and self.error <= TOLERANCE

    @property
    def verification(self) -> str:
        """How the estimand was checked."""
        if not self.identifiable:
            return ""
        factor, whole = "factor", "the whole"
        if self.of_regressions:
            factor = "factor, which is the regression of a variable on its direct causes,"
            whole = "the whole, integrated variable by variable,"
        return (
            f"every {factor} without rounding, in random models over a finite field; {whole} in "
            f"{self.trials} random linear-Gaussian models: slopes, intercept, variance, "
            f"normalization and no other variable; largest relative error {self.error:.0e}"
        )

    @property
    def effective(self) -> Names:
        """Members that affect the target; these cut the paths from the others to it."""
        return self.reduction.effective

    @property
    def query(self) -> str:
        """The interventional distribution asked for."""
        given = f" | do({', '.join(self.intervened)})" if self.intervened else ""
        return f"P({self.target}{given})"

    @property
    def text(self) -> str:
        """The estimand as plain text."""
        return to_text(self._formula())

    @property
    def latex(self) -> str:
        """The estimand as LaTeX."""
        return to_latex(self._formula())

    @cached_property
    def linearity(self) -> LinearVerdict:
        """What linear mechanisms identify, whether or not ID does."""
        if self.identifiable:
            return LinearVerdict(True, "identified", "ID identifies it, whatever the mechanisms")
        return judge(self.graph, self.target, self.reduction, tuple(self.known.items()))

    def parameters(self, kind: str = "structural", *, intercepts: bool = True) -> Names:
        """Return the names of the coordinates of theta_Y that this effect uses."""
        if kind == "estimand":
            self._formula()
        explored = Explored(
            self.graph,
            self.target,
            (self.intervened,),
            (self.reduction,),
            dict(self.known),
            dict(self.known_effects),
        )
        return collect(explored, kind, intercepts=intercepts).names

    def evaluate(
        self, covariance: Any, mean: Any = None, query: Mapping[str, float] | None = None
    ) -> Any:
        """Return the exact value of the estimand in a Gaussian model.

        Parameters
        ----------
        covariance:
            An array of shape (..., p, p) in the order of the graph's nodes; leading axes are a
            batch.
        mean, query:
            An array of shape (..., p), and {variable: value}. A value may be an array, for a curve:
            it is broadcast against the batch.

        Returns
        -------
        {variable: slope}, or E[Y | do(query)] where mean and query are given. NumPy arrays give
        NumPy arrays, without compiling; JAX arrays are computed by JAX, traceable and
        differentiable.
        """
        if (mean is None) != (query is None):
            raise DomainError(
                "a response needs both a mean and a query; give both, or neither for the slopes"
            )
        values = {} if query is None else evaluation.read_query(query, self.intervened)
        slopes = evaluation.slopes_of(
            self._formula(), self.graph, self.target, self.effective, covariance
        )
        if query is None:
            return evaluation.as_dict(slopes, self.effective, self.intervened)
        centre = evaluation.read_mean(mean, self.graph, slopes.shape[:-1])
        return evaluation.response(slopes, centre, self.graph, self.target, self.effective, values)

    def not_identifiable(self, advice: str = DROP) -> NotIdentifiable:
        """Return the error that explains why there is no estimand."""
        return NotIdentifiable(self.target, self.intervened, self.hedge, advice)

    def _formula(self) -> Expression:
        if self.estimand is None:
            raise self.not_identifiable()
        return self.estimand

    def __repr__(self) -> str:
        if self.identifiable:
            return f"{self.query} = {self.text}  [{self.route}, verified]"
        hedge = " in ".join(map(braces, reversed(self.hedge)))
        return f"{self.query} is not identifiable: hedge {hedge}"

    def _repr_latex_(self) -> str:
        members = ", ".join(map(latex_name, self.intervened))
        given = rf" \mid \mathrm{{do}}({members})" if members else ""
        right = f"= {self.latex}" if self.identifiable else r"\quad \text{is not identifiable}"
        return rf"$\displaystyle P({latex_name(self.target)}{given}) {right}$"


def braces(names: Iterable[str]) -> str:
    """Return a set of names as text for a message."""
    return f"{{{', '.join(names)}}}"


class Identifications(Mapping[Any, Identification]):
    """The results of all intervention sets, a mapping whose keys are the sets, smallest first.

    `ids["X", "Z"]` finds a set by its names in any order, and so does `ids["X, Z"]`, the label that
    the table shows. `unidentified` lists the sets whose effects cannot be learned, `usable` the
    others.
    """

    def __init__(
        self,
        graph: CausalGraph,
        target: str,
        found: Iterable[Identification],
        *,
        identifiable_only: bool,
        linear: bool,
    ) -> None:
        self.graph, self.target = graph, target
        self.identifiable_only, self.linear = identifiable_only, linear
        self._found = {identification.intervened: identification for identification in found}

    def __getitem__(self, names: str | Iterable[str]) -> Identification:
        wanted = self.graph.require(self._split(names))
        if wanted not in self._found:
            raise ExplorationError(
                f"{braces(wanted)} is not among the {len(self)} sets that were identified"
            )
        return self._found[wanted]

    def with_linearity(self) -> "Identifications":
        """Return the same results, where sets that only linear mechanisms identify are usable."""
        found, is_only = self._found.values(), self.identifiable_only
        return Identifications(
            self.graph, self.target, found, identifiable_only=is_only, linear=True
        )

    @cached_property
    def _labels(self) -> dict[str, Names]:
        return {set_label(members): members for members in self._found}

    def _split(self, names: Any) -> Any:
        """Return the names of a label such as "X, Z"; what is no label as it is.

        A variable whose own name has a comma is found by that name.
        """
        if not isinstance(names, str) or names in self.graph.nodes:
            return names
        parts = [part.strip() for part in names.split(",")] if "," in names else names
        return self._labels.get(names, parts)

    def __contains__(self, names: object) -> bool:
        try:
            return self.graph.require(self._split(names)) in self._found
        except GraphError:
            return False

    def get(self, names: Any, default: Any = None) -> Any:
        """Return the result of a set, or the default where the set was not asked about."""
        return self[names] if names in self else default

    def __iter__(self) -> Iterator[Names]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @cached_property
    def usable(self) -> tuple[Names, ...]:
        """Sets whose effects can be learned; with `linear`, also by linearity alone."""
        bar = {"desc": "judging linearity", "unit": "set", "delay": PROGRESS_DELAY, "leave": False}
        shown = tqdm(self._found.items(), **bar)
        return tuple(
            members
            for members, result in shown
            if result.identifiable or (self.linear and result.linearity.identified)
        )

    @cached_property
    def unidentified(self) -> tuple[Names, ...]:
        """Sets whose effects cannot be learned."""
        usable = set(self.usable)
        return tuple(members for members in self._found if members not in usable)

    @property
    def dropped(self) -> tuple[Names, ...]:
        """Sets that are not used any further: with `identifiable_only`, the unidentified ones."""
        return self.unidentified if self.identifiable_only else ()

    def require_usable(self) -> tuple[Names, ...]:
        """Return the usable sets.

        Raise NotIdentifiable for the first set that is not usable, unless `identifiable_only`
        drops such sets and some others are left.
        """
        if self.unidentified and not (self.identifiable_only and self.usable):
            rest = f" ({len(self.unidentified)} of {len(self)} sets are like that)"
            advice = DROP if self.usable else "no other set of this problem can be learned either"
            raise self._found[self.unidentified[0]].not_identifiable(advice + rest)
        return self.usable

    def parameters(self, kind: str = "structural", *, intercepts: bool = True) -> Parameters:
        """Return theta_Y, the coordinates that the usable sets share.

        The kinds of parameters are "structural": coefficients b[X->Z] and intercepts a[Z];
        "total_effect": tau[X|X,Z], of which effects are linear; "estimand": est[X|X,Z], the same by
        the verified estimands; and "minimal": the fewest coefficients, sums over paths b[X->..->Z]
        and total effects of which all effects are polynomials. A known total effect leaves theta
        where it is one of its coordinates.

        Examples
        --------
        >>> graph = CausalGraph.parse("X -> M -> Z -> Y; W -> Z")
        >>> ids = identify(graph, "Y", ["X", "W", "Z", ("X", "Z"), ("W", "X")])
        >>> ids.parameters("structural", intercepts=False).names
        ('b[W->Z]', 'b[X->M]', 'b[M->Z]', 'b[Z->Y]')
        >>> ids.parameters("minimal", intercepts=False).names
        ('b[W->Z]', 'b[Z->Y]', 'tau[X|X]')
        """
        require_kind(kind)
        sets = self.require_usable()
        if kind == "estimand" and (
            bare := [members for members in sets if not self._found[members].identifiable]
        ):
            raise self._found[bare[0]].not_identifiable(
                "linearity identifies it, but there is no estimand for it: "
                "take structural parameters"
            )
        results = [self._found[members] for members in sets]
        reductions = tuple(result.reduction for result in results)
        known = dict(results[0].known), dict(results[0].known_effects)
        explored = Explored(self.graph, self.target, sets, reductions, *known)
        return collect(explored, kind, intercepts=intercepts)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for every set."""
        index = pd.Index(map(set_label, self._found), name="set")
        return pd.DataFrame(
            [_row(result, self.linear) for result in self._found.values()], index=index
        )

    def __repr__(self) -> str:
        learned = sum(result.identifiable for result in self._found.values())
        again = sum(result.route == "rederived" for result in self._found.values())
        text = f"{self.target}: {learned} of {len(self)} sets identifiable and verified"
        text += f", {again} rederived" if again else ""
        if self.unidentified:
            fate = "dropped" if self.dropped else "not"
            text += f"; {fate}: {listed(map(braces, self.unidentified), 5)}"
        return f"Identifications({text})"

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(max_rows=60)


def _row(result: Identification, linear: bool) -> dict[str, object]:
    row = {
        "identifiable": result.identifiable,
        "estimand": result.text if result.identifiable else "",
        "route": result.route,
        "verified": result.verified,
        "error": result.error,
        "effective": ", ".join(result.effective),
        "parameters": ", ".join(result.parameters(intercepts=False)),
        "hedge": " in ".join(map(braces, reversed(result.hedge))),
    }
    if linear:
        row["linearity"] = f"{result.linearity.verdict} ({result.linearity.evidence})"
    return row


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
    problem: Union["Problem", CausalGraph],
    target: str | None = None,
    sets: Sets | None = None,
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
        With a graph: drop sets whose effects are not identifiable, instead of refusing to go on.
    linear:
        Count sets as usable that linear mechanisms identify though ID does not.
    progress:
        Whether a progress bar is shown when this takes more than a few seconds.

    Returns
    -------
    Identifications
        A mapping from sets to results, shown as a table; `to_frame()` is that table.

    Raises
    ------
    DomainError
        If a graph is given without its target or its sets, or a problem with one of them.
    ExplorationError
        If there is no intervention set, or there are too many.
    GraphError
        If it is neither a problem nor a graph.
    UnverifiedEstimand
        If a formula cannot be verified.

    Examples
    --------
    >>> ids = identify(CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", ["X"])
    >>> ids["X"].text
    'sum_{Z} [sum_{X} [P(Y | X, Z) P(X)] P(Z | X)]'
    """
    if isinstance(problem, CausalGraph):
        graph = problem
        if target is None or sets is None:
            raise DomainError("identify needs a Problem, or a graph with its target and sets")
        target = read_target(graph, target)
        chosen = expand_sets(graph, target, sets)
        if not chosen:
            raise ExplorationError(
                "there is no intervention set to identify; the empty set is one: [()]"
            )
    elif not hasattr(problem, "sets_rule"):
        raise GraphError(
            f"identify needs a Problem or a CausalGraph, got {problem!r}; a system has its .problem"
        )
    else:
        if target is not None or sets is not None or identifiable_only:
            raise DomainError(
                "a problem has its own target, sets and identifiable_only; give the problem alone"
            )
        graph, target, identifiable_only = problem.graph, problem.target, problem.identifiable_only
    options = {
        "identifiable_only": read_flag("identifiable_only", identifiable_only),
        "linear": read_flag("linear", linear),
    }
    if isinstance(problem, CausalGraph):
        results = _identify_all(graph, target, chosen, {}, {}, progress)
    else:
        results = _identify_problem(problem, progress)
    return Identifications(graph, target, results, **options)


@lru_cache(maxsize=16)
def _identify_problem(problem: "Problem", progress: bool) -> list[Identification]:
    """Identify all sets of a problem; once, however often equal problems are fitted or read."""
    known = problem.known, problem.known_effects
    return _identify_all(problem.graph, problem.target, problem.sets, *known, progress)


def _identify_all(
    graph: CausalGraph,
    target: str,
    sets: tuple[Names, ...],
    known: Mapping[Edge, float],
    known_effects: Mapping[str, float],
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
        Identification(
            graph,
            target,
            members,
            reduction,
            known,
            *answers[reduction],
            known_effects=known_effects,
        )
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

    def is_simple(reduction: Reduction) -> bool:
        is_split = len(reduction.districts) == len(reduction.open)
        return bool(reduction.effective) and is_split and regressions.keys() >= {*reduction.open}

    simple = [reduction for reduction in effects if is_simple(reduction)]
    others = [reduction for reduction in effects if not is_simple(reduction)]
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


def _regressions(
    graph: CausalGraph, factors: Mapping[Names, Factor]
) -> dict[str, FactorRegression]:
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
    regressions: Mapping[str, FactorRegression],
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
    position = graph.index(target)
    truth = true_effects(
        trials, position, graph.masks([reduction.effective for reduction in effects])
    )
    for index, reduction in enumerate(effects):
        needed = [factors[district] for district in reduction.districts if reduction.effective]
        hedge = next((factor.hedge for factor in needed if factor.hedge), ())
        if hedge:
            yield Answer(None, "none", hedge, 0, np.nan)
            continue
        positions = [graph.index(name) for name in graph.ordered([target, *reduction.effective])]
        estimand = _assemble(graph, target, reduction, needed)
        error = _error(graph, estimand, needed, trials, truth.potential(index, positions, position))
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
    return discrepancy(evaluate(estimand, trials.moments, graph.positions, memo), truth)


def derive(graph: CausalGraph, wanted: Names) -> Expression:
    """Return Q[wanted] as an expression in P; raise HedgeFound where there is none."""
    wanted = graph.ordered(wanted)  # in the order of the tuples that it is compared with
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


def _blanket_before(graph: CausalGraph, name: str) -> Names:
    """Return what screens a variable from earlier ones: its district among them, with parents."""
    earlier = graph.nodes[: graph.index(name) + 1]
    district = district_within(graph, name, earlier)
    return graph.ordered(set(graph.with_parents(district)) - {name})


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
    causes = tuple(name for name in graph.with_parents(district) if name not in district)
    answer = ask(relevant, district, causes)
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
    dangling = free_names(expression) - set(graph.with_parents(district))
    if dangling:
        expression = total(product([expression, joint(graph.ordered(dangling))]), dangling)
    return arranged(expression, graph)


def _verified(
    expression: Expression, route: str, graph: CausalGraph, district: Names, trials: Trials
) -> Factor:
    potentials = {
        part: evaluate(part, trials.moments, graph.positions) for part in factors_of(expression)
    }
    return Factor(district, expression, route, (), potentials)
