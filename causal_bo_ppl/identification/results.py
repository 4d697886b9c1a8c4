"""What is known about the effect of one intervention set?

What is known about the effects of all intervention sets?
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from tqdm import tqdm
from y0.dsl import Expression

from causal_bo_ppl.errors import DomainError, ExplorationError, NotIdentifiable, listed
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification import evaluation
from causal_bo_ppl.identification.linearity import LinearVerdict, judge
from causal_bo_ppl.identification.parameters import Explored, Parameters, collect, require_kind
from causal_bo_ppl.identification.reduction import Names, Reduction
from causal_bo_ppl.identification.verification import TOLERANCE
from causal_bo_ppl.identification.y0_adapter import latex_name, to_latex, to_text
from causal_bo_ppl.inputs import PATIENCE
from causal_bo_ppl.problem.queries import set_label

DROP = (
    "drop this set (identifiable_only=True does), measure what confounds them, or ask what linear mechanisms identify "
    "(linear=True)"
)


class Answer(NamedTuple):
    """An estimand with its route and its largest relative error over the trials; or the hedge that forbids one."""

    estimand: Expression | None
    route: str
    hedge: tuple[Names, ...]
    trials: int
    error: float


@dataclass(frozen=True, eq=False)
class Identification:
    """The effect of one intervention set on the target: can it be learned, and through which formula?

    intervened: the set. reduction: what is left of the graph under do(set). known: coefficients known in advance.
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
        """Largest relative error of the estimand in the models it was checked in; NaN where there is none."""
        return self.answer.error

    @property
    def identifiable(self) -> bool:
        """Does ID give a formula, whatever the mechanisms?"""
        return self.estimand is not None

    @property
    def verified(self) -> bool:
        """Was the estimand checked and found right? Always, where there is one."""
        return self.answer.trials > 0 and self.error <= TOLERANCE

    @property
    def verification(self) -> str:
        """How the estimand was checked."""
        if not self.identifiable:
            return ""
        return (
            "every factor without rounding, in random models over a finite field; the whole in "
            f"{self.answer.trials} random linear-Gaussian models: slopes, intercept, variance, normalization and no "
            f"other variable; largest relative error {self.error:.0e}"
        )

    @property
    def effective(self) -> Names:
        """Members that affect the target; paths from the others to it are cut by these."""
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
        """What linear mechanisms identify, whether or not ID does; computed when first asked for."""
        if self.identifiable:
            return LinearVerdict(True, "identified", "ID identifies it, whatever the mechanisms")
        return judge(self.graph, self.target, self.reduction, self.known)

    def parameters(self, kind: str = "structural", *, intercepts: bool = True) -> Names:
        """Names of the coordinates of theta_Y that this effect uses."""
        if kind == "estimand":
            self._formula()
        explored = Explored(
            self.graph, self.target, (self.intervened,), (self.reduction,), dict(self.known)
        )
        return collect(explored, kind, intercepts=intercepts).names

    def evaluate(
        self, covariance: Any, mean: Any = None, query: Mapping[str, float] | None = None
    ) -> Any:
        """The estimand in a Gaussian model, exactly.

        Parameters
        ----------
        covariance:
            (..., p, p) in the order of the graph's nodes; leading axes are a batch.
        mean, query:
            (..., p) and {variable: value}: with both, the result is E[Y | do(query)]. A value may be an array,
            for a curve: it is broadcast against the batch.

        Returns {variable: slope} without them. NumPy in, NumPy out, without compiling; JAX arrays are
        computed by JAX: traceable, differentiable.
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
        """The error that says why there is no estimand."""
        return NotIdentifiable(self.target, self.intervened, self.hedge, advice)

    def _formula(self) -> Expression:
        if self.estimand is None:
            raise self.not_identifiable()
        return self.estimand

    def __repr__(self) -> str:
        if self.identifiable:
            return f"{self.query} = {self.text}  [{self.route}, verified]"
        return f"{self.query} is not identifiable: hedge {' in '.join(map(braces, reversed(self.hedge)))}"

    def _repr_latex_(self) -> str:
        members = ", ".join(map(latex_name, self.intervened))
        given = rf" \mid \mathrm{{do}}({members})" if members else ""
        right = f"= {self.latex}" if self.identifiable else r"\quad \text{is not identifiable}"
        return rf"$\displaystyle P({latex_name(self.target)}{given}) {right}$"


def braces(names: Iterable[str]) -> str:
    """A set of names for a message."""
    return f"{{{', '.join(names)}}}"


class Identifications(Mapping[Any, Identification]):
    """One result for every intervention set; `ids["X", "Z"]` and any other order of names finds it.

    Iterates over the sets, smallest first. `unidentified` lists what cannot be learned, `usable` the rest.
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
        wanted = self.graph.require(names)
        if wanted not in self._found:
            raise ExplorationError(
                f"{braces(wanted)} is not among the {len(self)} sets that were identified"
            )
        return self._found[wanted]

    def __contains__(self, names: object) -> bool:
        given = (
            [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
        )
        members = [name for name in given if isinstance(name, str) and name in self.graph.nodes]
        return len(members) == len(given) and self.graph.require(members) in self._found

    def get(self, names: Any, default: Any = None) -> Any:
        """The result of a set, or the default where it was not identified."""
        return self[names] if names in self else default

    def __iter__(self) -> Iterator[Names]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @cached_property
    def usable(self) -> tuple[Names, ...]:
        """Sets whose effects can be learned; with `linear=True` also those that linearity identifies."""
        shown = tqdm(
            self._found.items(), desc="judging linearity", unit="set", delay=PATIENCE, leave=False
        )
        return tuple(
            members
            for members, found in shown
            if found.identifiable or (self.linear and found.linearity.identified)
        )

    @cached_property
    def unidentified(self) -> tuple[Names, ...]:
        """Sets whose effects cannot be learned."""
        usable = set(self.usable)
        return tuple(members for members in self._found if members not in usable)

    @property
    def dropped(self) -> tuple[Names, ...]:
        """Sets that are left out of all that follows: the unidentified ones, where `identifiable_only` says so."""
        return self.unidentified if self.identifiable_only else ()

    def require_usable(self) -> tuple[Names, ...]:
        """The usable sets; raises NotIdentifiable for the first that is not, unless `identifiable_only`."""
        if self.unidentified and not (self.identifiable_only and self.usable):
            rest = f" ({len(self.unidentified)} of {len(self)} sets are like that)"
            advice = DROP if self.usable else "no other set of this problem can be learned either"
            raise self._found[self.unidentified[0]].not_identifiable(advice + rest)
        return self.usable

    def parameters(self, kind: str = "structural", *, intercepts: bool = True) -> Parameters:
        """theta_Y: the coordinates that the usable sets share; kinds: structural, total_effect, estimand."""
        require_kind(kind)
        sets = self.require_usable()
        if kind == "estimand" and (
            bare := [members for members in sets if not self._found[members].identifiable]
        ):
            raise self._found[bare[0]].not_identifiable(
                "linearity identifies it, but there is no estimand for it: take structural parameters"
            )
        found = [self._found[members] for members in sets]
        reductions = tuple(identification.reduction for identification in found)
        explored = Explored(self.graph, self.target, sets, reductions, dict(found[0].known))
        return collect(explored, kind, intercepts=intercepts)

    def to_frame(self) -> pd.DataFrame:
        """A row for every set."""
        index = pd.Index(map(set_label, self._found), name="set")
        return pd.DataFrame(
            [_row(found, self.linear) for found in self._found.values()], index=index
        )

    def __repr__(self) -> str:
        learned = sum(found.identifiable for found in self._found.values())
        again = sum(found.route == "rederived" for found in self._found.values())
        rest = (f", {again} rederived" if again else "") + (
            f"; {'dropped' if self.dropped else 'not'}: {listed(map(braces, self.unidentified), 5)}"
            if self.unidentified
            else ""
        )
        return f"Identifications({self.target}: {learned} of {len(self)} sets identifiable and verified{rest})"

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(max_rows=60)


def _row(found: Identification, linear: bool) -> dict[str, object]:
    row = {
        "identifiable": found.identifiable,
        "estimand": found.text if found.identifiable else "",
        "route": found.route,
        "verified": found.verified,
        "error": found.error,
        "effective": ", ".join(found.effective),
        "parameters": ", ".join(found.parameters(intercepts=False)),
        "hedge": " in ".join(map(braces, reversed(found.hedge))),
    }
    return row | (
        {"linearity": f"{found.linearity.verdict} ({found.linearity.evidence})"} if linear else {}
    )
