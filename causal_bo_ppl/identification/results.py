"""What is known about the effect of one intervention set, and about those of all sets?"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from tqdm import tqdm
from y0.dsl import Expression

from causal_bo_ppl.errors import DomainError, ExplorationError, NotIdentifiable, listed
from causal_bo_ppl.graph import CausalGraph, Edge, Names
from causal_bo_ppl.identification import evaluation
from causal_bo_ppl.identification.linear_identification import LinearVerdict, judge
from causal_bo_ppl.identification.parameters import (
    Explored,
    Parameters,
    Reduction,
    collect,
    require_kind,
)
from causal_bo_ppl.identification.verification import TOLERANCE
from causal_bo_ppl.identification.y0_adapter import latex_name, to_latex, to_text
from causal_bo_ppl.inputs import PROGRESS_DELAY
from causal_bo_ppl.problem.interventions import set_label

DROP = (
    "drop this set (identifiable_only=True does), measure what confounds them, or ask what linear "
    "mechanisms identify (linear=True)"
)


class Answer(NamedTuple):
    """An estimand with its route and its largest relative error over the trials, or a hedge.

    `hedge` has the two districts that forbid an estimand; `trials` is the number of models in which
    the estimand was compared with the truth. `of_regressions` says that every factor is the
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
    answer:
        The estimand and its verification, or the hedge.
    known:
        Coefficients known in advance, {(cause, effect): value}.
    """

    graph: CausalGraph
    target: str
    intervened: Names
    reduction: Reduction
    answer: Answer
    known: Mapping[Edge, float]

    @property
    def estimand(self) -> Expression | None:
        """The formula as a y0 expression in the graph's names; None where there is none."""
        return self.answer.estimand

    @property
    def route(self) -> str:
        """Where the formula came from: "y0", "rederived" (y0's was wrong), or "none"."""
        return self.answer.route

    @property
    def hedge(self) -> tuple[Names, ...]:
        """The two districts that forbid a formula, the larger first; empty where there is one."""
        return self.answer.hedge

    @property
    def error(self) -> float:
        """Largest relative error of the estimand in random models; NaN where there is none."""
        return self.answer.error

    @property
    def identifiable(self) -> bool:
        """Whether ID gives a formula, whatever the mechanisms."""
        return self.estimand is not None

    @property
    def verified(self) -> bool:
        """Whether the estimand was checked and found right; always so where there is one."""
        return self.answer.trials > 0 and self.error <= TOLERANCE

    @property
    def verification(self) -> str:
        """How the estimand was checked."""
        if not self.identifiable:
            return ""
        factor, whole = (
            (
                "factor, which is the regression of a variable on its direct causes,",
                "the whole, integrated variable by variable,",
            )
            if self.answer.of_regressions
            else ("factor", "the whole")
        )
        return (
            f"every {factor} without rounding, in random models over a finite field; {whole} in "
            f"{self.answer.trials} random linear-Gaussian models: slopes, intercept, variance, "
            f"normalization and no other variable; largest relative error {self.error:.0e}"
        )

    @property
    def effective(self) -> Names:
        """Members that affect the target; these cut the paths from the others to it."""
        return self.reduction.effective

    @property
    def query(self) -> str:
        """The interventional distribution asked for."""
        return (
            f"P({self.target} | do({', '.join(self.intervened)}))"
            if self.intervened
            else f"P({self.target})"
        )

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
        return judge(self.graph, self.target, self.reduction, self.known)

    def parameters(self, kind: str = "structural", *, intercepts: bool = True) -> Names:
        """Return the names of the coordinates of theta_Y that this effect uses."""
        if kind == "estimand":
            self._formula()
        explored = Explored(
            self.graph, self.target, (self.intervened,), (self.reduction,), dict(self.known)
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
        """Return the error that says why there is no estimand."""
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
        names = self._split(names)
        given = (
            [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
        )
        members = [name for name in given if isinstance(name, str) and name in self.graph.nodes]
        return len(members) == len(given) and self.graph.require(members) in self._found

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
        shown = tqdm(
            self._found.items(),
            desc="judging linearity",
            unit="set",
            delay=PROGRESS_DELAY,
            leave=False,
        )
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
        """Sets left out of all that follows: with `identifiable_only`, the unidentified ones."""
        return self.unidentified if self.identifiable_only else ()

    def require_usable(self) -> tuple[Names, ...]:
        """Return the usable sets.

        Raise NotIdentifiable for the first set that is not usable, unless `identifiable_only` says
        that such sets are dropped and some are left.
        """
        if self.unidentified and not (self.identifiable_only and self.usable):
            rest = f" ({len(self.unidentified)} of {len(self)} sets are like that)"
            advice = DROP if self.usable else "no other set of this problem can be learned either"
            raise self._found[self.unidentified[0]].not_identifiable(advice + rest)
        return self.usable

    def parameters(self, kind: str = "structural", *, intercepts: bool = True) -> Parameters:
        """Return theta_Y, the coordinates that the usable sets share.

        The kinds of parameters are "structural", "total_effect" and "estimand".
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
        explored = Explored(self.graph, self.target, sets, reductions, dict(results[0].known))
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
        rest = (f", {again} rederived" if again else "") + (
            f"; {'dropped' if self.dropped else 'not'}: {listed(map(braces, self.unidentified), 5)}"
            if self.unidentified
            else ""
        )
        counts = f"{learned} of {len(self)} sets identifiable and verified"
        return f"Identifications({self.target}: {counts}{rest})"

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
    return row | (
        {"linearity": f"{result.linearity.verdict} ({result.linearity.evidence})"} if linear else {}
    )
