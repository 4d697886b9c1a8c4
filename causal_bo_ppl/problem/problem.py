"""What may we change, within which limits and at what cost, to improve what?

Two problems are equal if their fingerprints are: hashes of all that changes an answer. Functions
cannot be compared, and enter by their values at some points of every set. Parts that a problem does
not have, levels for example, do not enter, so that a new feature does not change the fingerprints
of problems without it.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import (
    CausalBOWarning,
    DomainError,
    ExplorationError,
    GraphError,
    listed,
    unknown,
)
from causal_bo_ppl.graph.admg import CausalGraph, Edge, read_graph, read_target
from causal_bo_ppl.graph.intervention_sets import FoundSets, Set, Sets, read_sets
from causal_bo_ppl.graph.layout import draw_svg
from causal_bo_ppl.inputs import LARGEST_SLOPE, read_count, read_number, size_fault
from causal_bo_ppl.problem import serialization
from causal_bo_ppl.problem.designs import fill_points, grid_points, vertices
from causal_bo_ppl.problem.domains import (
    Bounds,
    Domain,
    Levels,
    LinearConstraint,
    read_constraints,
    read_domains,
    read_levels,
    require_mapping,
    show_levels,
)
from causal_bo_ppl.problem.interventions import (
    ConstantCost,
    CostFunction,
    Costs,
    Interventions,
    MagnitudeCost,
    Queries,
    Rule,
    evaluate_costs,
    evaluate_rule,
    find_feasible,
    named,
    place_points,
    read_costs,
    read_mappings,
    require_legal,
    rule_name,
    spread,
    to_mappings,
)
from causal_bo_ppl.problem.regions import Region

if TYPE_CHECKING:
    from causal_bo_ppl.identification import Identifications

Function = TypeVar("Function", bound=Callable[..., object])
PROBE_FACTORS = np.arange(5.0)[:, None]  # times irrational numbers: points of no symmetry
PROBES_PER_SET = 16  # points at which functions are compared, where values are restricted


def find_fingerprint(problem: "Problem") -> str:
    """Return the hash of all that changes an answer."""
    graph, region = problem.graph, problem.region
    parts: dict[str, object] = {
        "edges": [graph.nodes, graph.directed, graph.bidirected],
        "goal": [problem.target, problem.objective, problem.identifiable_only],
        "domains": [[name, *bounds] for name, bounds in problem.domains.items()],
        "sets": [problem.sets_are_explicit, problem.sets],
        "known": [[*edge, value] for edge, value in problem.known.items()],
        "costs": _probe_costs(problem),
    }
    if problem.known_effects:
        parts["known_effects"] = sorted(problem.known_effects.items())
    if region.levels:
        parts["levels"] = [[name, *values] for name, values in region.levels.items()]
    if region.constraints:
        parts["constraints"] = sorted(
            json.dumps([terms.coefficients, terms.lower, terms.upper, terms.when])
            for terms in region.constraints
        )
    if problem.feasible_rule is not None:
        points = [(members, region.fill(members, PROBES_PER_SET)) for members in problem.sets]
        probe = place_points(graph.nodes, points)
        parts["feasible"] = evaluate_rule(problem.feasible_rule, probe).tolist()
    return hashlib.sha256(json.dumps(parts, allow_nan=False).encode()).hexdigest()


def _probe_costs(problem: "Problem") -> list[float] | list[str]:
    """Return the costs of some interventions on every set."""
    if not problem.is_box:  # costs need be defined for legal values only
        costs = evaluate_costs(problem.costs, fill_points(problem, problem.sets, PROBES_PER_SET))
        return [f"{cost:.9g}" for cost in costs.tolist()]  # mixtures of vertices are rounded
    probe = spread(
        problem.graph.nodes,
        problem.sets,
        problem.domains,
        lambda size: PROBE_FACTORS @ np.sqrt(np.arange(2, 2 + size))[None] % 1.0,
        len(PROBE_FACTORS) * len(problem.sets),
    )
    numbers: list[float] = evaluate_costs(problem.costs, probe).tolist()
    return numbers


def read_objective(objective: str) -> str:
    """Return the objective; refuse anything but "min" and "max"."""
    if not isinstance(objective, str) or objective not in ("min", "max"):
        raise DomainError(f'objective must be "min" or "max", got {objective!r}')
    return objective


def read_flag(name: str, flag: object) -> bool:
    """Return a switch; refuse anything but True and False."""
    if not isinstance(flag, bool):
        raise DomainError(f"{name} must be True or False, got {flag!r}")
    return flag


def read_units(graph: CausalGraph, units: Mapping[str, str]) -> dict[str, str]:
    """Return the units by variable, in graph order."""
    require_mapping("units", units, "{'X': 'mg'}")
    return {name: str(units[name]) for name in graph.require(units)}


def read_function(name: str, function: Function | None) -> Function | None:
    """Return a function of `Queries`, or None; refuse anything else."""
    if function is not None and not callable(function):
        raise DomainError(f"{name} must be a function of Queries, got {function!r}")
    return function


def warn_of_restricted_values() -> None:
    """Warn that POMIS assumes a free choice of values."""
    warnings.warn(
        "POMIS assumes that every value of a set's domains may be chosen; constraints and a "
        "function `feasible` may rule out the best of a set that it prefers: use sets='mis', or "
        "name the sets",
        CausalBOWarning,
        stacklevel=3,
    )


def read_known(
    graph: CausalGraph, target: str, known: Mapping[Edge | str, float]
) -> tuple[dict[Edge, float], dict[str, float]]:
    """Return the known coefficients of edges, and the known total effects, in graph order."""
    require_mapping("known", known, "{('X', 'Z'): 0.8} or {'tau[X]': 2.0}")
    edges = frozenset(graph.directed)
    labels = [f"tau[{name}]" for name in graph.ancestral(target).nodes if name != target]
    for edge, value in known.items():
        if isinstance(edge, str):
            if edge not in labels:
                raise GraphError(
                    f"{unknown('known total effect', edge, labels)}; a coefficient of an edge is "
                    "known as ('X', 'Z')"
                )
            number = read_number(edge, value)
            if fault := size_fault(abs(number), 0.0, LARGEST_SLOPE):
                raise DomainError(f"the known total effect {edge} has the size {fault}")
            continue
        if edge not in edges:
            raise GraphError(
                f"known holds a coefficient for {edge!r}, which is no edge; "
                f"edges: {listed(graph.directed)}; a total effect on the target is known as "
                f"'tau[X]'"
            )
        label = " -> ".join(edge)
        number = read_number(label, value)
        if not math.isfinite(number) or number == 0:
            raise DomainError(
                f"the known coefficient of {label} is {value}; give a finite number, or drop the "
                "edge where it is 0"
            )
        if fault := size_fault(abs(number), 0.0, LARGEST_SLOPE):
            raise DomainError(f"the known coefficient of {label} has the size {fault}")
    coefficients = {edge: float(known[edge]) for edge in graph.directed if edge in known}
    return coefficients, {label: float(known[label]) for label in labels if label in known}


def read_rule(sets: Sets | FoundSets) -> str | int | None:
    """Return the rule for the sets, "mis", "pomis" or a largest size; None for named sets."""
    if isinstance(sets, FoundSets):
        return sets.rule
    if isinstance(sets, Integral):
        return int(sets)
    return sets if isinstance(sets, str) else None


NODE_COLOURS = {"target": "#fecaca", "manipulable": "#bfdbfe"}


class Problem:
    """A target to improve by interventions; checked once, never changed.

    Parameters
    ----------
    graph, target, objective:
        What causes what, the variable to improve, and "min" or "max".
    domains:
        {variable: (low, high)} for every variable that may be set; `cb.Levels([0, 5, 10])` instead
        of a pair where only some values can be had.
    sets:
        "mis" (default), "pomis", an int (all sets up to that size), or the sets themselves. With
        the first three an intervention may set any manipulable variables; with explicit sets only
        those. `sets_rule` keeps which of them it was: the word, the size, or None.
    costs:
        None (one unit per variable), {variable: cost}, "magnitude" or
        `cb.problem.MagnitudeCost(constant)` (constant + |x| per variable), or a function of
        `Queries` that returns an array of shape (M,).
    known:
        {(cause, effect): coefficient} known in advance. {"tau[X]": effect}: the total effect of X
        on the target, the slope of E[target | do(X)], for posteriors by `"conjugate"` with
        `parameters="total_effect"` or `"minimal"`.
    identifiable_only:
        What identification does with a set whose effect is not identifiable: drop it and list it
        (True), or refuse the problem (False).
    units:
        {variable: unit}, shown in tables and pictures.
    constraints:
        `cb.LinearConstraint`s on values that are set together; see there what one means for an
        intervention that sets only some of its variables. A set of which no values keep them is
        refused.
    feasible:
        A function of `Queries` that returns a boolean array of shape (M,): which interventions are
        possible, for reasons that other arguments cannot express. It is called with interventions
        that keep domains, levels and constraints, and never with one that sets nothing. What it
        rejects is refused, and not part of designs. Where it is given, an affine response need not
        be best at a vertex.

    Raises
    ------
    GraphError, DomainError, ExplorationError
        If a name is not in the graph, a value cannot be used, or the sets are too many.

    Examples
    --------
    >>> graph = CausalGraph.parse("X -> Z -> Y; X -> Y")
    >>> budget = LinearConstraint({"X": 1.0, "Z": 2.0}, upper=10.0)
    >>> domains = {"X": Levels([0, 5, 10]), "Z": (0, 4)}
    >>> problem = Problem(graph, "Y", domains=domains, constraints=[budget], sets=[("X", "Z")])
    >>> problem.interventions(problem.vertices())  # doctest: +NORMALIZE_WHITESPACE
    [{'X': 0.0, 'Z': 0.0}, {'X': 0.0, 'Z': 4.0}, {'X': 5.0, 'Z': 2.5}, {'X': 10.0, 'Z': 0.0}]
    """

    def __init__(
        self,
        graph: CausalGraph,
        target: str,
        objective: str = "min",
        *,
        domains: Mapping[str, Domain],
        sets: Sets | FoundSets = "mis",
        costs: Costs = None,
        known: Mapping[Any, float] | None = None,
        identifiable_only: bool = False,
        units: Mapping[str, str] | None = None,
        constraints: Iterable[LinearConstraint] = (),
        feasible: Rule | None = None,
    ) -> None:
        self.graph = read_graph(graph)
        self.target = read_target(graph, target)
        self.objective = read_objective(objective)
        self.identifiable_only = read_flag("identifiable_only", identifiable_only)
        self._domains = read_domains(graph, target, domains)
        self.region = Region(
            self.graph.nodes,
            self._domains,
            read_levels(graph, domains),
            read_constraints(self._domains, constraints),
        )
        self.feasible_rule = read_function("feasible", feasible)
        self._known, self._known_effects = read_known(self.graph, self.target, known or {})
        self._units = read_units(graph, units or {})
        self.sets_rule = read_rule(sets)
        self.sets_are_explicit = self.sets_rule is None
        listed_sets = sets.sets if isinstance(sets, FoundSets) else sets
        self.sets: tuple[Set, ...] = read_sets(
            graph, target, self._domains, listed_sets, self._known
        )
        self._positions = {members: position for position, members in enumerate(self.sets)}
        for members in self.sets:
            self.region.require_feasible(members)
        if self.sets_rule == "pomis" and (self.region.constraints or self.feasible_rule):
            warn_of_restricted_values()
        self.costs = read_costs(costs, graph.nodes, self.manipulable)
        self.fingerprint: str = find_fingerprint(self)
        self.takes_measured = False
        self._sealed = True

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Problem never changes; {name!r} stays")

    def __getstate__(self) -> dict[str, object]:  # what can be found again is not written to files
        return {name: part for name, part in self.__dict__.items() if name != "identification"}

    def __setattr__(self, name: str, value: object) -> None:
        if "_sealed" in self.__dict__:
            raise AttributeError(f"a Problem never changes; make a new one with another {name!r}")
        object.__setattr__(self, name, value)

    @property
    def domains(self) -> dict[str, Bounds]:
        """Domains {variable: (low, high)} of the manipulable variables, in graph order (a copy)."""
        return dict(self._domains)

    @property
    def levels(self) -> dict[str, tuple[float, ...]]:
        """Levels {variable: values} of the variables that have some, in graph order (a copy)."""
        return dict(self.region.levels)

    @property
    def constraints(self) -> tuple[LinearConstraint, ...]:
        """The linear constraints, in the order in which they were given."""
        return self.region.constraints

    @property
    def is_box(self) -> bool:
        """Whether all values in the domains may be set, each with any others."""
        return self.region.is_box and self.feasible_rule is None

    @property
    def known(self) -> dict[Edge, float]:
        """Coefficients {(cause, effect): coefficient} known in advance (a copy)."""
        return dict(self._known)

    @property
    def known_effects(self) -> dict[str, float]:
        """Total effects {"tau[X]": effect} on the target known in advance (a copy)."""
        return dict(self._known_effects)

    @property
    def units(self) -> dict[str, str]:
        """Units {variable: unit} of the variables for which one was given (a copy)."""
        return dict(self._units)

    @cached_property
    def identification(self) -> "Identifications":
        """What identifies the effect of each set: `cb.identify(problem)`, found once."""
        from causal_bo_ppl import identify  # later in the pipeline, so through the public names

        return identify(self)

    @property
    def manipulable(self) -> tuple[str, ...]:
        """Names of the variables that may be set, in graph order."""
        return tuple(self._domains)

    def label(self, name: str) -> str:
        """Return a variable's name with its unit, for tables and axes."""
        return f"{name} [{self._units[name]}]" if name in self._units else name

    def position(self, names: str | Iterable[str]) -> int:
        """Return the index in `sets` of a set, whose names may come in any order."""
        wanted = self.graph.require(names)
        if wanted not in self._positions:
            raise ExplorationError(
                f"{{{listed(wanted)}}} is not among the {len(self.sets)} sets of this problem"
            )
        return self._positions[wanted]

    def queries(
        self, interventions: Mapping[str, float] | Iterable[Mapping[str, float]]
    ) -> Queries:
        """Build a batch of interventions.

        Parameters
        ----------
        interventions:
            One or several mappings {variable: value}; see `feasible` for what is legal.

        Returns
        -------
        Queries
            In the order of the mappings.

        Examples
        --------
        >>> problem = Problem(CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)})
        >>> len(problem.queries([{"X": 1.0}, {"X": -2.5}]))
        2
        """
        return self.require(self._read(interventions))

    def _read(self, interventions: Mapping[str, float] | Iterable[Mapping[str, float]]) -> Queries:
        return read_mappings(interventions, self.graph.nodes, self.manipulable)

    def baseline(self) -> Queries:
        """Return the one query that sets nothing; its effect is the target's observational mean."""
        shape = (1, len(self.graph.nodes))
        return named(Queries(np.zeros(shape, bool), np.zeros(shape)), self.graph.nodes)

    def require(self, queries: Queries | Interventions) -> Queries:
        """Return the batch if it is legal; raise DomainError for the first illegal intervention.

        A mapping {variable: value} or a list of such mappings is first read by `queries`.
        """
        if isinstance(queries, Mapping) or (
            isinstance(queries, list | tuple) and all(isinstance(one, Mapping) for one in queries)
        ):
            return self.queries(queries)
        return require_legal(self, queries)

    def feasible(self, queries: Queries | Interventions) -> np.ndarray:
        """Return which interventions `require` takes, a boolean array of shape (M,).

        Domains, levels, constraints, named sets and the function `feasible` all count; doing
        nothing is always legal.

        Examples
        --------
        >>> problem = Problem(CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)})
        >>> problem.feasible([{"X": 1.0}, {"X": 9.0}])
        array([ True, False])
        """
        batch = queries if isinstance(queries, Queries) else self._read(queries)
        return find_feasible(self, batch)

    def has_set(self, members: Set) -> bool:
        """Return whether these members, in graph order, are one of `sets`."""
        return members in self._positions

    def interventions(self, queries: Queries | Interventions) -> list[dict[str, float]]:
        """Return the batch as {variable: value} mappings: the inverse of `queries`.

        Examples
        --------
        >>> problem = Problem(CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)})
        >>> problem.interventions(problem.queries([{"X": 1.0}]))
        [{'X': 1.0}]
        """
        return to_mappings(self.require(queries), self.graph.nodes)

    def to_frame(self, queries: Queries | Interventions) -> pd.DataFrame:
        """Return the batch as a table with a column per manipulable variable, NaN where not set."""
        columns = [self.graph.index(name) for name in self.manipulable]
        queries = self.require(queries)
        values = np.where(np.asarray(queries.mask), np.asarray(queries.value), np.nan)[:, columns]
        return pd.DataFrame(values, columns=[self.label(name) for name in self.manipulable])

    def cost(self, queries: Queries | Interventions) -> np.ndarray:
        """Return the cost of each intervention, an array of shape (M,).

        Examples
        --------
        >>> problem = Problem(CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)})
        >>> problem.cost([{"X": 1.0}])
        array([1.])
        """
        return evaluate_costs(self.costs, self.require(queries))

    @property
    def cost_is_constant(self) -> bool:
        """Whether costs depend on the set alone; False for a user-defined function."""
        return type(self.costs) is ConstantCost

    @property
    def cost_is_magnitude(self) -> bool:
        """Whether the cost is a sum of constant + |x|, which has a kink at 0 and nowhere else."""
        return type(self.costs) is MagnitudeCost

    def grid(self, n: int) -> Queries:
        """Take n points per variable for every set.

        Of a variable with levels all are taken, or n that are evenly spaced in their order. Points
        that are not feasible are dropped; a set without any, and more than a million interventions,
        are refused.

        Parameters
        ----------
        n:
            How many points per variable, at least 2.

        Returns
        -------
        Queries
            In the order of `sets`.

        Examples
        --------
        >>> problem = Problem(CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)})
        >>> problem.interventions(problem.grid(3))
        [{'X': -5.0}, {'X': 0.0}, {'X': 5.0}]
        """
        n = read_count("the number of points", n, 2, ExplorationError)
        return grid_points(self, self.sets, n)

    def sobol(self, n: int) -> Queries:
        """Take n Sobol points for every set; nothing is random.

        For a variable with k levels the unit interval is cut into k equal parts, so that points
        repeat where a set has few combinations. Points that break a constraint are replaced by
        later ones of the sequence, and where these are too rare by mixtures of vertices.

        Parameters
        ----------
        n:
            How many points per set. There are fewer only where `feasible` rejects nearly all.

        Returns
        -------
        Queries
            In the order of `sets`.

        Examples
        --------
        >>> problem = Problem(CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)})
        >>> len(problem.sobol(8))
        8
        """
        n = read_count("the number of points", n, 1, ExplorationError)
        return fill_points(self, self.sets, n)

    def vertices(self, *, kinks: bool = False) -> Queries:
        """Return every vertex of every set's region, in the order of `sets`.

        A response that is linear in the values has its optimum there, unless the function
        `feasible` is given. The region is a box, cut by the constraints that apply to the set. Of a
        variable with levels the extreme ones are taken, unless it is constrained: then these are
        the feasible combinations of levels that do not lie between others.

        Parameters
        ----------
        kinks:
            Whether every region is also split where a value passes 0: then the best of the vertices
            maximizes any function that is convex where no sign changes, such as an upper bound
            minus a cost of constant + |x|.

        Returns
        -------
        Queries

        Examples
        --------
        >>> problem = Problem(CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)})
        >>> problem.interventions(problem.vertices())
        [{'X': -5.0}, {'X': 5.0}]
        """
        return vertices(self, self.sets, kinks)

    def explore(self, sets: Sets) -> "Problem":
        """Return the same problem with other sets.

        Parameters
        ----------
        sets:
            "mis", "pomis", a largest size, or the sets themselves.

        Returns
        -------
        Problem

        Examples
        --------
        >>> graph = CausalGraph.parse("X -> Z -> Y")
        >>> problem = Problem(graph, "Y", domains={"X": (-5, 5), "Z": (-5, 20)})
        >>> problem.explore(2).sets
        (('X',), ('Z',), ('X', 'Z'))
        """
        return type(self)(
            self.graph,
            self.target,
            self.objective,
            domains=self._domains
            | {name: Levels(values) for name, values in self.region.levels.items()},
            sets=sets,
            costs=self.costs,
            known=self._known | self._known_effects,
            identifiable_only=self.identifiable_only,
            units=self._units,
            constraints=self.constraints,
            feasible=self.feasible_rule,
        )

    def to_json(self) -> str:
        """Return the problem as a JSON text without code, which `from_json` reads back.

        It holds numbers with all their digits, and a checksum, so that no change goes unnoticed. A
        cost function, and the function `feasible`, are held by their `__name__` only.

        Examples
        --------
        >>> graph = CausalGraph.parse("X -> Z -> Y; X <-> Y")
        >>> problem = Problem(graph, "Y", domains={"X": (-5, 5), "Z": (-5, 20)}, units={"X": "mg"})
        >>> again = Problem.from_json(problem.to_json())
        >>> again == problem, again.units
        (True, {'X': 'mg'})
        """
        return serialization.write_problem(self)

    @classmethod
    def from_json(
        cls, text: str, functions: Mapping[str, CostFunction | Rule] | None = None
    ) -> "Problem":
        """Read a problem from the text that `to_json` wrote; raise DomainError for any other text.

        The sets are taken from the text, without a search. A text that was edited is refused.

        Parameters
        ----------
        text:
            What `to_json` returned; spaces between its parts do not matter.
        functions:
            {name: function} of the costs and of `feasible`, where these are functions. One that
            gives other costs or answers is refused: the fingerprint tells.

        Examples
        --------
        >>> def squares(queries):
        ...     return 1 + (queries.value**2).sum(axis=1)
        >>> graph = CausalGraph.parse("X -> Y")
        >>> problem = Problem(graph, "Y", domains={"X": (-5, 5)}, costs=squares)
        >>> Problem.from_json(problem.to_json(), functions={"squares": squares}) == problem
        True
        """
        return serialization.read_problem(text, functions, cls)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        sets = f"{len(self.sets)} sets of {listed(self.manipulable, most=8)}"
        limits = [f"{name} in {{{show_levels(each, 8)}}}" for name, each in self.levels.items()]
        limits += map(str, self.constraints)
        if self.feasible_rule is not None:
            limits.append(f"where {rule_name(self.feasible_rule)}")
        size = f"{len(self.graph.nodes)} variables"
        return (
            f"Problem({'; '.join([f'{self.objective} {self.target} over {sets}', size, *limits])})"
        )

    def variables(self) -> pd.DataFrame:
        """Return the manipulable variables as a table: unit, low, high, and levels if there are."""
        rows = [(name, self._units.get(name, ""), *ends) for name, ends in self._domains.items()]
        table = pd.DataFrame(rows, columns=["variable", "unit", "low", "high"])
        if self.levels:
            table["levels"] = [
                show_levels(self.levels[name]) if name in self.levels else ""
                for name in self.manipulable
            ]
        return table.set_index("variable")

    def _repr_html_(self) -> str:
        fills = dict.fromkeys(self.manipulable, NODE_COLOURS["manipulable"])
        causes = self.graph.ancestral(self.target)
        picture = draw_svg(
            causes.nodes,
            causes.directed,
            causes.bidirected,
            fills | {self.target: NODE_COLOURS["target"]},
        )
        goal = {"goal": [f"{self.objective} {self.label(self.target)}"], "sets": [len(self.sets)]}
        limits = [*map(str, self.constraints)]
        if self.feasible_rule is not None:
            limits.append(f"{rule_name(self.feasible_rule)}(queries)")
        tables = [pd.DataFrame(goal).to_html(index=False), self.variables().to_html()]
        if limits:
            tables.append(pd.DataFrame({"where": limits}).to_html(index=False))
        return picture + "".join(tables)
