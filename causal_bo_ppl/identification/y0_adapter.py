"""What does y0's ID algorithm answer, and how is an estimand written?

Estimands are y0's expressions in one order, so that the same graph gives the same text in every
process; y0's own order follows the iteration of sets. y0 is asked about the aliases v0, v1, ..., so
that variables may have any name.
"""

from collections import Counter
from collections.abc import Iterable
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING

from y0.algorithm.identify import identify_outcomes
from y0.dsl import (
    Distribution,
    Expression,
    Fraction,
    One,
    Probability,
    Product,
    Sum,
    Variable,
    Zero,
)
from y0.graph import NxMixedGraph

if TYPE_CHECKING:
    from causal_bo_ppl.graph import CausalGraph


def variable(name: str) -> Variable:
    """Return a y0 variable of any name.

    The constructor of y0 refuses P, Q and PP, which its parser cannot read; nothing else does.
    """
    if name not in ("P", "Q", "PP"):
        return Variable(name)
    other = copy(Variable("v"))
    object.__setattr__(other, "name", name)
    return other


def conditional(child: str, given: Iterable[str]) -> Expression:
    """Return P(child | given), or P(child) where nothing is given."""
    return Probability(Distribution((variable(child),), tuple(map(variable, given))))


def joint(names: Iterable[str]) -> Expression:
    """Return the joint distribution P(names)."""
    return Probability(Distribution(tuple(map(variable, names))))


def product(factors: Iterable[Expression]) -> Expression:
    """Return the product, with nested products opened; One where there are no factors."""
    flat = [part for factor in factors for part in factors_of(factor) if not isinstance(part, One)]
    if not flat:
        return One()
    return flat[0] if len(flat) == 1 else Product(tuple(flat))


def factors_of(expression: Expression) -> tuple[Expression, ...]:
    """Return the factors of a product; anything else is its own only factor."""
    return tuple(expression.expressions) if isinstance(expression, Product) else (expression,)


def total(expression: Expression, names: Iterable[str]) -> Expression:
    """Return the sum over names, without what sums to 1.

    That is v in P(v, ... | ...), where v is summed and stands nowhere else.
    """
    names = set(names)
    if isinstance(expression, Sum):
        bound = {one.name for one in expression.ranges}
        if not names & bound:
            return total(expression.expression, names | bound)
    factors = list(factors_of(expression))
    while spent := _spent(factors, names):
        position, name = spent
        children = [child for child in factors[position].children if child.name != name]
        rest = (
            Probability(Distribution(tuple(children), factors[position].parents))
            if children
            else One()
        )
        factors[position] = rest
        names.discard(name)
    inner = product(factors)
    return Sum(inner, frozenset(map(variable, names))) if names else inner


def _spent(factors: list[Expression], names: set[str]) -> tuple[int, str] | None:
    """Return the index of the first factor with a child that is summed and stands nowhere else.

    The name of that child comes second; None where there is no such factor.
    """
    count = Counter(name for factor in factors for name in free_names(factor))
    return next(
        (
            (position, child.name)
            for position, factor in enumerate(factors)
            if isinstance(factor, Probability)
            for child in factor.children
            if child.name in names and count[child.name] == 1
        ),
        None,
    )


def ratio(numerator: Expression, denominator: Expression) -> Expression:
    """Return the quotient; the numerator alone where the denominator is 1."""
    return numerator if isinstance(denominator, One) else Fraction(numerator, denominator)


def free_names(expression: Expression) -> frozenset[str]:
    """Return the names of the variables that no sum binds."""
    if isinstance(expression, Sum):
        return free_names(expression.expression) - {bound.name for bound in expression.ranges}
    if isinstance(expression, Probability):
        return frozenset(one.name for one in (*expression.children, *expression.parents))
    return frozenset().union(*map(free_names, _parts(expression)))


def all_names(expression: Expression) -> frozenset[str]:
    """Return the name of every variable that stands in the expression, free or bound."""
    return frozenset(one.name for one in expression.get_variables())


def _parts(expression: Expression) -> tuple[Expression, ...]:
    if isinstance(expression, Product):
        return tuple(expression.expressions)
    return (
        (expression.numerator, expression.denominator) if isinstance(expression, Fraction) else ()
    )


def arranged(expression: Expression, graph: "CausalGraph") -> Expression:
    """Return the same expression, variables in graph order, factors from the last one back."""

    def ordered(variables: Iterable[Variable]) -> tuple[Variable, ...]:
        return tuple(map(variable, graph.ordered(one.name for one in variables)))

    def against_order(part: Expression) -> tuple[int, str]:
        return -max((graph.index(name) for name in free_names(part)), default=0), to_text(part)

    def rebuild(part: Expression) -> Expression:
        if isinstance(part, Probability):
            return Probability(Distribution(ordered(part.children), ordered(part.parents)))
        if isinstance(part, Sum):
            return total(rebuild(part.expression), [one.name for one in part.ranges])
        if isinstance(part, Fraction):
            return Fraction(rebuild(part.numerator), rebuild(part.denominator))
        if isinstance(part, Product):
            return product(sorted(map(rebuild, factors_of(part)), key=against_order))
        return part

    return rebuild(expression)


def to_text(expression: Expression) -> str:
    """Return an expression as plain text, for example `sum_{Z} [P(Y | X, Z) P(Z)]`."""
    return _write(expression, in_latex=False)


def to_latex(expression: Expression) -> str:
    """Return an expression as LaTeX, with every name escaped."""
    return _write(expression, in_latex=True)


TEXT = "sum_{{{names}}} [{inner}]", "({top}) / ({bottom})", " | "
LATEX = r"\sum_{{{names}}} {inner}", r"\frac{{{top}}}{{{bottom}}}", r" \mid "


def _write(expression: Expression, *, in_latex: bool) -> str:
    sum_form, ratio_form, bar = LATEX if in_latex else TEXT
    name = latex_name if in_latex else str

    def names(variables: Iterable[Variable]) -> str:
        return ", ".join(name(one.name) for one in variables)

    def write(part: Expression) -> str:
        if isinstance(part, Probability):
            given = f"{bar}{names(part.parents)}" if part.parents else ""
            return f"P({names(part.children)}{given})"
        if isinstance(part, Sum):
            bound = names(sorted(part.ranges, key=lambda one: one.name))
            return sum_form.format(names=bound, inner=write(part.expression))
        if isinstance(part, Fraction):
            return ratio_form.format(top=write(part.numerator), bottom=write(part.denominator))
        if isinstance(part, Product):
            return " ".join(guarded(inner) for inner in factors_of(part))
        return "0" if isinstance(part, Zero) else "1"

    def guarded(part: Expression) -> str:
        """Return a factor with brackets where a reader would not see the end of a sum or ratio."""
        if not in_latex:
            return f"[{write(part)}]" if isinstance(part, Fraction) else write(part)
        return rf"\Bigl( {write(part)} \Bigr)" if isinstance(part, Sum) else write(part)

    return write(expression)


def latex_name(name: str) -> str:
    """Return a variable's name in mathematics, with every special character escaped."""
    special = {"\\": r"\backslash{}", "{": r"\{", "}": r"\}", "^": r"\hat{}", "~": r"\sim{}"}
    escaped = "".join(special.get(c, rf"\{c}" if c in "#$%&_" else c) for c in name)
    if len(name) == 1 and name.isalpha():
        return name
    return rf"\mathit{{{escaped}}}".replace(" ", r"\ ")


Positions = tuple[int, ...]
Pairs = tuple[Positions, ...]


def ask(
    graph: "CausalGraph", outcomes: tuple[str, ...], intervened: tuple[str, ...]
) -> Expression | None:
    """Return y0's formula for P(outcomes | do(intervened)), or None where y0 finds a hedge.

    This is the question of a c-factor: the outcomes must be connected by bidirected edges among
    themselves, and the intervened variables must be their parents. The formula has the graph's own
    names and order, so its text is the same in every process.
    """

    def positions(names: tuple[str, ...]) -> Positions:
        return tuple(graph.index(name) for name in names)

    directed, bidirected = (
        tuple(positions(edge) for edge in edges) for edges in (graph.directed, graph.bidirected)
    )
    answer = _ask(
        len(graph.nodes), directed, bidirected, positions(outcomes), positions(intervened)
    )
    if answer is None:
        return None
    return arranged(_translated(answer, graph, outcomes), graph)


@lru_cache(maxsize=4096)
def _ask(
    size: int, directed: Pairs, bidirected: Pairs, outcomes: Positions, intervened: Positions
) -> Expression | None:
    """Ask the same question about v0, v1, ..., once for all graphs that differ in names alone."""

    def edges(pairs: Pairs) -> list[tuple[str, str]]:
        return [(f"v{one}", f"v{other}") for one, other in pairs]

    graph = NxMixedGraph.from_str_edges(
        nodes=[f"v{position}" for position in range(size)],
        directed=edges(directed),
        undirected=edges(bidirected),
    )
    treatments, targets = (
        {Variable(f"v{position}") for position in positions} for positions in (intervened, outcomes)
    )
    return identify_outcomes(graph, treatments=treatments, outcomes=targets)


def _translated(answer: Expression, graph: "CausalGraph", outcomes: tuple[str, ...]) -> Expression:
    """Return y0's answer in the graph's names, with its conditionals in the graph's order.

    y0 writes the factor of a district as the product of P(v | all before v) in a topological order
    of An(outcomes). Any such order gives the same factor; that of y0 follows the iteration of a set
    and so differs between processes. Here "before" means before in `graph.nodes`.
    """
    earlier = (cause for name in outcomes for cause in graph.ancestors(name))
    causes = graph.ordered({*outcomes, *earlier})

    def renamed(aliases: Iterable[Variable]) -> list[str]:
        return [graph.nodes[int(alias.name[1:])] for alias in aliases]

    def rebuild(part: Expression) -> Expression:
        if isinstance(part, Sum):
            return Sum(rebuild(part.expression), frozenset(map(variable, renamed(part.ranges))))
        if isinstance(part, Product):
            return Product(tuple(map(rebuild, part.expressions)))
        names = renamed(part.children)
        if len(names) > 1:  # the joint distribution that y0 starts from
            return joint(names)
        return conditional(names[0], causes[: causes.index(names[0])])

    return rebuild(answer)
