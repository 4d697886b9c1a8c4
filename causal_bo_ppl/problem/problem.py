"""What may we change, within which limits and at what cost, to improve what?"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import DomainError, ExplorationError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.graph.layout import draw_svg
from causal_bo_ppl.inputs import read_count, read_list, read_number
from causal_bo_ppl.problem import serialization, validation
from causal_bo_ppl.problem.queries import (
    CostFunction,
    Interventions,
    Queries,
    Unit,
    distinct_rows,
    evaluate_costs,
    lattice,
    read_costs,
    sobol,
    spread,
    vertices,
)
from causal_bo_ppl.problem.validation import Bounds, Edge, FoundSets, Set, Sets

PROBES = np.arange(5.0)[:, None]  # times irrational numbers: points of no symmetry
COLOURS = {"target": "#fecaca", "manipulable": "#bfdbfe"}


class Problem:
    """A target to improve by interventions; checked once, never changed.

    Parameters
    ----------
    graph, target, objective:
        What causes what, the variable to improve, and "min" or "max".
    domains:
        {variable: (low, high)} for every variable that may be set.
    sets:
        "mis" (default), "pomis", an int (all sets up to that size), or the sets themselves. With
        the first three an intervention may set any manipulable variables; with explicit sets only
        those. `sets_rule` keeps which of them it was: the word, the size, or None.
    costs:
        None (one unit per variable), {variable: cost}, or a function of `Queries` that returns an
        array of shape (M,).
    known:
        {(cause, effect): coefficient} known in advance.
    identifiable_only:
        What identification does with a set whose effect the data cannot teach: leave it out and
        list it (True), or refuse the problem (False).
    units:
        {variable: unit}, shown in tables and pictures.
    """

    def __init__(
        self,
        graph: CausalGraph,
        target: str,
        objective: str = "min",
        *,
        domains: Mapping[str, Bounds],
        sets: Sets | FoundSets = "mis",
        costs: Mapping[str, float] | CostFunction | None = None,
        known: Mapping[Edge, float] | None = None,
        identifiable_only: bool = False,
        units: Mapping[str, str] | None = None,
    ) -> None:
        self.graph = validation.read_graph(graph)
        self.target = validation.read_target(graph, target)
        self.objective = validation.read_objective(objective)
        self.identifiable_only = validation.read_flag("identifiable_only", identifiable_only)
        self._domains = validation.read_domains(graph, target, domains)
        self._known = validation.read_known(graph, known or {})
        self._units = validation.read_units(graph, units or {})
        self.sets_rule = validation.read_rule(sets)
        self.sets_are_explicit = self.sets_rule is None
        listed_sets = sets.sets if isinstance(sets, FoundSets) else sets
        self.sets: tuple[Set, ...] = validation.read_sets(
            graph, target, self._domains, listed_sets, self._known
        )
        self._positions = {members: position for position, members in enumerate(self.sets)}
        self.costs = read_costs(costs, graph.nodes, self.manipulable)
        self.fingerprint: str = self._fingerprint()
        self._sealed = True

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Problem never changes; {name!r} stays")

    def __setattr__(self, name: str, value: object) -> None:
        if "_sealed" in self.__dict__:
            raise AttributeError(f"a Problem never changes; make a new one with another {name!r}")
        object.__setattr__(self, name, value)

    @property
    def domains(self) -> dict[str, Bounds]:
        """Domains {variable: (low, high)} of the manipulable variables, in graph order (a copy)."""
        return dict(self._domains)

    @property
    def known(self) -> dict[Edge, float]:
        """Coefficients {(cause, effect): coefficient} known in advance (a copy)."""
        return dict(self._known)

    @property
    def units(self) -> dict[str, str]:
        """Units {variable: unit} of the variables for which one was given (a copy)."""
        return dict(self._units)

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
        """Build a batch from {variable: value} mappings, in their order.

        Every value must lie in its domain.
        """
        rows = _read_rows(interventions)
        shape = (len(rows), len(self.graph.nodes))
        mask, value = np.zeros(shape, bool), np.zeros(shape)
        for row, intervention in enumerate(rows):
            if not intervention:
                raise DomainError(
                    f"intervention {row} is missing its variables; doing nothing is observing: "
                    "use problem.baseline()"
                )
            for name, number in intervention.items():
                column = self._column(name)
                mask[row, column], value[row, column] = True, read_number(name, number)
        return self.require(Queries(mask, value))

    def baseline(self) -> Queries:
        """Return the one query that sets nothing.

        Its effect is the observational mean of the target.
        """
        shape = (1, len(self.graph.nodes))
        return Queries(np.zeros(shape, bool), np.zeros(shape))

    def require(self, queries: Queries | Interventions) -> Queries:
        """Return the batch if it is legal here; raise DomainError for the first row that is not.

        A mapping {variable: value} or a list of such mappings is first read by `queries`.
        """
        if isinstance(queries, Mapping) or (
            isinstance(queries, list | tuple) and all(isinstance(row, Mapping) for row in queries)
        ):
            return self.queries(queries)
        if not isinstance(queries, Queries):
            raise DomainError(
                f"expected Queries, got {type(queries).__name__}; "
                "build them with problem.queries([...])"
            )
        if np.asarray(queries.value).dtype.kind in "iu":  # whole numbers are exact in float64
            queries = Queries(queries.mask, np.asarray(queries.value, float))
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        shape = (len(queries), len(self.graph.nodes))
        if (
            mask.shape != shape
            or value.shape != shape
            or mask.dtype != bool
            or value.dtype != np.float64
        ):
            raise DomainError(
                f"queries need a boolean and a float64 array of shape (M, {shape[1]}), got "
                f"{mask.dtype} {mask.shape} and {value.dtype} {value.shape}; "
                "build them with problem.queries"
            )
        self._require_bounds(mask, value)
        if self.sets_are_explicit:
            self._require_explored(mask)
        return queries

    def _require_bounds(self, mask: np.ndarray, value: np.ndarray) -> None:
        columns = np.flatnonzero(mask.any(axis=0))
        names = [self.graph.nodes[column] for column in columns]
        low, high = np.reshape(
            [self._domains.get(name, (np.nan, np.nan)) for name in names], (-1, 2)
        ).T
        chosen = value[:, columns]
        is_inside = (chosen >= low) & (chosen <= high)  # not NaN, nor what is not manipulable
        bad = mask[:, columns] & ~is_inside
        if bad.any():
            row, place = np.argwhere(bad)[0]
            self._column(names[place])
            raise DomainError(
                f"do({names[place]} = {chosen[row, place]:.15g}) lies outside "
                f"[{low[place]:.15g}, {high[place]:.15g}]; "
                "widen the domain in the problem, or clip the value"
            )

    def _require_explored(self, mask: np.ndarray) -> None:
        for row in mask[distinct_rows(mask)[0]]:
            asked = tuple(
                name for name, is_set in zip(self.graph.nodes, row, strict=True) if is_set
            )
            if asked and asked not in self._positions:
                near = min(self.sets, key=lambda members: len(set(members) ^ set(asked)))
                missing = [name for name in near if name not in asked]
                extra = [name for name in asked if name not in near]
                raise DomainError(
                    f"{{{listed(asked)}}} is not a set of this problem; compared with "
                    f"{{{listed(near)}}}, missing: {listed(missing)}; extra: {listed(extra)}"
                )

    def _column(self, name: str) -> int:
        if name not in self._domains:
            raise DomainError(unknown("manipulable variable", name, self._domains))
        return self.graph.index(name)

    def interventions(self, queries: Queries | Interventions) -> list[dict[str, float]]:
        """Return the batch as {variable: value} mappings: the inverse of `queries`."""
        columns = [(name, self.graph.index(name)) for name in self.manipulable]
        queries = self.require(queries)
        rows = zip(np.asarray(queries.mask), np.asarray(queries.value), strict=True)
        return [
            {name: float(value[at]) for name, at in columns if mask[at]} for mask, value in rows
        ]

    def to_frame(self, queries: Queries | Interventions) -> pd.DataFrame:
        """Return the batch as a table with a column per manipulable variable, NaN where not set."""
        columns = [self.graph.index(name) for name in self.manipulable]
        queries = self.require(queries)
        values = np.where(np.asarray(queries.mask), np.asarray(queries.value), np.nan)[:, columns]
        return pd.DataFrame(values, columns=[self.label(name) for name in self.manipulable])

    def cost(self, queries: Queries | Interventions) -> np.ndarray:
        """Return the cost of each intervention, an array of shape (M,)."""
        return evaluate_costs(self.costs, self.require(queries))

    def grid(self, n: int) -> Queries:
        """Take n points per variable for every set, in the order of `sets`.

        More than a million rows are refused.
        """
        n = read_count("the number of points", n, 2, ExplorationError)
        return self._spread(lattice(n), [n ** len(members) for members in self.sets])

    def sobol(self, n: int) -> Queries:
        """Take n Sobol points for every set, in the order of `sets`; nothing random."""
        n = read_count("the number of points", n, 1, ExplorationError)
        return self._spread(sobol(n), [n] * len(self.sets))

    def vertices(self) -> Queries:
        """Return every corner of every set's box.

        A response that is linear in the values has its optimum there.
        """
        return vertices(self, self.sets)

    def _spread(self, unit: Unit, rows: Sequence[int]) -> Queries:
        return spread(self.graph.nodes, self.sets, self._domains, unit, sum(rows))

    def _fingerprint(self) -> str:
        """Return a hash of all that changes an answer.

        A cost function enters by its values at some points of every set.
        """
        probe = self._spread(
            lambda size: PROBES @ np.sqrt(np.arange(2, 2 + size))[None] % 1.0,
            [len(PROBES)] * len(self.sets),
        )
        record = {
            "edges": [self.graph.nodes, self.graph.directed, self.graph.bidirected],
            "goal": [self.target, self.objective, self.identifiable_only],
            "domains": [[name, *bounds] for name, bounds in self._domains.items()],
            "sets": [self.sets_are_explicit, self.sets],
            "known": [[*edge, value] for edge, value in self._known.items()],
            "costs": evaluate_costs(self.costs, probe).tolist(),
        }
        return hashlib.sha256(json.dumps(record, allow_nan=False).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the problem as a JSON text without code, which `from_json` reads back.

        The text holds all parts of the problem, numbers with all their digits, the fingerprint, and
        a checksum of everything including the units, so that no change of it goes unnoticed. A
        cost function is held by its `__name__` only.

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
    def from_json(cls, text: str, functions: Mapping[str, CostFunction] | None = None) -> "Problem":
        """Read a problem from the text that `to_json` wrote; raise DomainError for any other text.

        The sets are taken from the text, without a search. A text that was cut off or edited, also
        in its units only, is refused: its checksum tells.

        Parameters
        ----------
        text: what `to_json` returned; spaces between its parts do not matter.
        functions: {name: function}, where the costs of the problem are a function. One whose costs
            differ from those of the problem that was written is refused: the fingerprint tells.

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
        size = f"{len(self.graph.nodes)} variables"
        return f"Problem({self.objective} {self.target} over {sets}; {size})"

    def variables(self) -> pd.DataFrame:
        """Return the manipulable variables as a table: unit, low, high."""
        rows = [
            (name, self._units.get(name, ""), *bounds) for name, bounds in self._domains.items()
        ]
        return pd.DataFrame(rows, columns=["variable", "unit", "low", "high"]).set_index("variable")

    def _repr_html_(self) -> str:
        fills = dict.fromkeys(self.manipulable, COLOURS["manipulable"]) | {
            self.target: COLOURS["target"]
        }
        goal = pd.DataFrame(
            {"goal": [f"{self.objective} {self.label(self.target)}"], "sets": [len(self.sets)]}
        )
        causes = self.graph.ancestral(self.target)
        picture = draw_svg(causes.nodes, causes.directed, causes.bidirected, fills)
        return picture + goal.to_html(index=False) + self.variables().to_html()


def _read_rows(
    interventions: Mapping[str, float] | Iterable[Mapping[str, float]],
) -> list[Mapping[str, float]]:
    if isinstance(interventions, Mapping):
        return [interventions]
    rows = read_list(interventions)
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        got = repr(interventions) if rows is None else listed(rows, most=3)
        raise DomainError(
            f"interventions are mappings such as [{{'X': 1.0}}, {{'Z': 2.0}}]; got {got}"
        )
    return rows
