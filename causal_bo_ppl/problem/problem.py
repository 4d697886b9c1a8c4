"""What may we change, within which limits and at what cost, to improve what?"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import DomainError, ExplorationError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.graph.layout import draw_svg
from causal_bo_ppl.inputs import read_list, read_number
from causal_bo_ppl.problem import costs as costing
from causal_bo_ppl.problem import default_queries, designs, validation
from causal_bo_ppl.problem.queries import Queries, distinct_rows
from causal_bo_ppl.problem.validation import Bounds, Edge, Set, Sets

PROBES = np.array(
    [[0.0], [1.0], [2.0], [3.0], [4.0]]
)  # times irrational numbers: points of no symmetry
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
        "mis" (default), "pomis", an int (all sets up to that size), or the sets themselves. With the
        first three an intervention may set any manipulable variables; with explicit sets only those.
    costs:
        None (one unit per variable), {variable: cost}, or a function of `Queries` that returns (M,).
    known:
        {(cause, effect): coefficient} known in advance.
    identifiable_only:
        What identification does with a set whose effect the data cannot teach: leave it out and list it
        (True), or refuse the problem (False).
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
        sets: Sets = "mis",
        costs: Mapping[str, float] | costing.CostFunction | None = None,
        known: Mapping[Edge, float] | None = None,
        identifiable_only: bool = False,
        units: Mapping[str, str] | None = None,
    ) -> None:
        self.graph, self.target = (
            validation.read_graph(graph),
            validation.read_target(graph, target),
        )
        self.objective = validation.read_objective(objective)
        self.identifiable_only = validation.read_flag("identifiable_only", identifiable_only)
        self._domains = validation.read_domains(graph, target, domains)
        self._known = validation.read_known(graph, known or {})
        self._units = validation.read_units(graph, units or {})
        self.sets_are_explicit = not isinstance(sets, str | Integral)
        self.sets: tuple[Set, ...] = validation.read_sets(
            graph, target, self._domains, sets, self._known
        )
        self._positions = {members: position for position, members in enumerate(self.sets)}
        self.costs = costing.read_costs(costs, graph.nodes, self.manipulable)
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
        """{variable: (low, high)} of the manipulable variables, in graph order (a copy)."""
        return dict(self._domains)

    @property
    def known(self) -> dict[Edge, float]:
        """{(cause, effect): coefficient} known in advance (a copy)."""
        return dict(self._known)

    @property
    def units(self) -> dict[str, str]:
        """{variable: unit} where given (a copy)."""
        return dict(self._units)

    @property
    def manipulable(self) -> tuple[str, ...]:
        """The variables one may set, in graph order."""
        return tuple(self._domains)

    def label(self, name: str) -> str:
        """A variable's name with its unit, for tables and axes."""
        return f"{name} [{self._units[name]}]" if name in self._units else name

    def position(self, names: str | Iterable[str]) -> int:
        """Index in `sets` of a set, its names in any order."""
        wanted = self.graph.require(names)
        if wanted not in self._positions:
            raise ExplorationError(
                f"{{{listed(wanted)}}} is not among the {len(self.sets)} sets of this problem"
            )
        return self._positions[wanted]

    def queries(
        self, interventions: Mapping[str, float] | Iterable[Mapping[str, float]]
    ) -> Queries:
        """A batch from {variable: value} mappings, in their order; every value must lie in its domain."""
        rows = _read_rows(interventions)
        shape = (len(rows), len(self.graph.nodes))
        mask, value = np.zeros(shape, bool), np.zeros(shape)
        for row, intervention in enumerate(rows):
            if not intervention:
                raise DomainError(
                    f"intervention {row} is missing its variables; doing nothing is observing: use problem.baseline()"
                )
            for name, number in intervention.items():
                column = self._column(name)
                mask[row, column], value[row, column] = True, read_number(name, number)
        return self.require(Queries(mask, value))

    def baseline(self) -> Queries:
        """The one query that sets nothing: its effect is the observational mean of the target."""
        shape = (1, len(self.graph.nodes))
        return Queries(np.zeros(shape, bool), np.zeros(shape))

    def require(self, queries: Queries) -> Queries:
        """Return the batch if it is legal here; raise DomainError for the first row that is not."""
        if not isinstance(queries, Queries):
            raise DomainError(
                f"expected Queries, got {type(queries).__name__}; build them with problem.queries([...])"
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
                f"queries need a boolean and a float64 array of shape (M, {shape[1]}), got {mask.dtype} "
                f"{mask.shape} and {value.dtype} {value.shape}; build them with problem.queries"
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
        bad = mask[:, columns] & ~(
            (chosen >= low) & (chosen <= high)
        )  # NaN fails; so does what is not manipulable
        if bad.any():
            row, place = np.argwhere(bad)[0]
            self._column(names[place])
            raise DomainError(
                f"do({names[place]} = {chosen[row, place]:.15g}) lies outside [{low[place]:.15g}, {high[place]:.15g}]; "
                "widen the domain in the problem, or clip the value"
            )

    def _require_explored(self, mask: np.ndarray) -> None:
        for row in mask[distinct_rows(mask)[0]]:
            found = tuple(
                name for name, is_set in zip(self.graph.nodes, row, strict=True) if is_set
            )
            if found and found not in self._positions:
                near = min(self.sets, key=lambda members: len(set(members) ^ set(found)))
                missing, extra = (
                    [n for n in near if n not in found],
                    [n for n in found if n not in near],
                )
                raise DomainError(
                    f"{{{listed(found)}}} is not a set of this problem; compared with {{{listed(near)}}}, "
                    f"missing: {listed(missing)}; extra: {listed(extra)}"
                )

    def _column(self, name: str) -> int:
        if name not in self._domains:
            raise DomainError(unknown("manipulable variable", name, self._domains))
        return self.graph.index(name)

    def interventions(self, queries: Queries) -> list[dict[str, float]]:
        """The batch as {variable: value} mappings: the inverse of `queries`."""
        columns = [(name, self.graph.index(name)) for name in self.manipulable]
        queries = self.require(queries)
        rows = zip(np.asarray(queries.mask), np.asarray(queries.value), strict=True)
        return [
            {name: float(value[at]) for name, at in columns if mask[at]} for mask, value in rows
        ]

    def to_frame(self, queries: Queries) -> pd.DataFrame:
        """The batch as a table: a column per manipulable variable, empty where it is not set."""
        columns = [self.graph.index(name) for name in self.manipulable]
        queries = self.require(queries)
        values = np.where(np.asarray(queries.mask), np.asarray(queries.value), np.nan)[:, columns]
        return pd.DataFrame(values, columns=[self.label(name) for name in self.manipulable])

    def cost(self, queries: Queries) -> np.ndarray:
        """(M,) cost of each intervention."""
        return costing.evaluate(self.costs, self.require(queries))

    def grid(self, n: int) -> Queries:
        """Take n points per variable for every set, in the order of `sets`; refused above a million rows."""
        n = designs.read_count(n, least=2)
        return self._spread(designs.lattice(n), [n ** len(members) for members in self.sets])

    def sobol(self, n: int) -> Queries:
        """Take n Sobol points for every set, in the order of `sets`; nothing random."""
        n = designs.read_count(n, least=1)
        return self._spread(designs.sobol(n), [n] * len(self.sets))

    def vertices(self) -> Queries:
        """Every corner of every set's box: where a response linear in the values has its optimum."""
        return default_queries.vertices(self, self.sets)

    def _spread(self, unit: designs.Unit, rows: Sequence[int]) -> Queries:
        return designs.spread(self.graph.nodes, self.sets, self._domains, unit, sum(rows))

    def _fingerprint(self) -> str:
        """Hash of all that changes an answer; a cost function enters by its values at some points of every set."""
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
            "costs": costing.evaluate(self.costs, probe).tolist(),
        }
        return hashlib.sha256(json.dumps(record, allow_nan=False).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        sets = f"{len(self.sets)} sets of {listed(self.manipulable, most=8)}"
        return f"Problem({self.objective} {self.target} over {sets}; {len(self.graph.nodes)} variables)"

    def variables(self) -> pd.DataFrame:
        """The manipulable variables as a table: unit, low, high."""
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
