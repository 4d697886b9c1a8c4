"""How is a problem written as a TOML file that people edit?

    target = "crop"
    objective = "max"
    data = "greenhouse.csv"
    graph = "feed -> nitrogen -> crop; water -> crop"

    [variables.feed]
    domain = [0, 40]
    unit = "mL per day"

Everything that `Problem` takes can be written there, but for functions. Besides, the file may name
the data, the columns that hold the variables, the settings of a study and its key, which the
command line uses. Errors name the key, and the line where it stands.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from causal_bo_ppl.errors import CausalBOError, DomainError, GraphError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.graph.admg import build_graph, is_writable, read_graph_text, read_target
from causal_bo_ppl.graph.formats import read_text_file
from causal_bo_ppl.inputs import read_count, read_number
from causal_bo_ppl.problem.domains import (
    Domain,
    Levels,
    LinearConstraint,
    read_constraints,
    read_domains,
)
from causal_bo_ppl.problem.interventions import ConstantCost, MagnitudeCost, read_costs

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

VARIABLE_KEYS = ("domain", "levels", "unit", "cost", "column")
KEYS = (
    "target", "objective", "graph", "graph_file", "latent", "sets", "identifiable_only", "costs",
    "variables", "constraints", "known", "data", "settings", "key",
)  # fmt: skip
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
TABLE_LINE = re.compile(r"\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
KEY_LINE = re.compile(r"""\s*((?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+|\s*\.\s*)+?)\s*=""")
Place = tuple[str | int, ...]


class DataFile(NamedTuple):
    """The table of a problem: its path, and how it is written.

    missing: "refuse" or "drop" for observations without all values. columns: {variable: column}
    where a column has another name than its variable.
    """

    path: Path
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8-sig"
    missing: str = "refuse"
    columns: Mapping[str, str] = {}


class ProblemFile(NamedTuple):
    """What a problem file holds; `settings` and `key` as they are written there."""

    path: Path
    problem: "Problem"
    data: DataFile | None
    settings: dict[str, Any]
    key: int | None


class Located:
    """The parts of a TOML text, and where they stand."""

    def __init__(self, path: Path, text: str) -> None:
        self.name, self.text = path.name, text
        try:
            self.parts: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DomainError(f"{path} is not a TOML file: {error}") from None
        except RecursionError:
            raise DomainError(f"{path} is nested too deeply") from None

    def line(self, place: Place) -> int | None:
        """Return the line of the nearest key or table that leads to a place."""
        table: Place = ()
        counts: dict[Place, int] = {}
        best, depth = None, 0
        for number, line in enumerate(self.text.split("\n"), 1):
            if header := TABLE_LINE.match(line):
                table = _path(f"{header[2]} = 0")
                if header[1] == "[[":
                    counts[table] = counts.get(table, -1) + 1
                    table = (*table, counts[table])
                found = table
            elif key := KEY_LINE.match(line):
                found = (*table, *_path(f"{key[1]} = 0"))
            else:
                continue
            if found == place[: len(found)] and len(found) > depth:
                best, depth = number, len(found)
        return best

    def fault(self, what: str, *place: str | int, kind: type[CausalBOError] = DomainError) -> Any:
        """Return an error that names a place of the file."""
        line = self.line(place)
        where = "" if line is None else f", line {line}"
        named = ".".join(
            str(part) if isinstance(part, str) and BARE_KEY.fullmatch(part) else _quoted(str(part))
            for part in place
            if not isinstance(part, int)
        )
        return kind(f"{self.name}{where}{f', {named}' if named else ''}: {what}")

    @contextmanager
    def at(self, *place: str | int) -> Iterator[None]:
        """Name a place of the file in the errors that are raised inside."""
        try:
            yield
        except CausalBOError as error:
            kind = GraphError if isinstance(error, GraphError) else DomainError
            raise self.fault(str(error), *place, kind=kind) from None

    def take(self, given: Mapping[str, Any], kind: Any, what: str, *place: str | int) -> Any:
        """Return the value of the last key of a place, None where it is missing."""
        value = given.get(str(place[-1]))
        is_truth = isinstance(value, bool) and kind is not bool
        if value is not None and (is_truth or not isinstance(value, kind)):
            raise self.fault(f"it must be {what}, got {value!r}", *place)
        return value

    def require_keys(self, given: Mapping[str, Any], known: tuple[str, ...], *place: Any) -> None:
        """Refuse a key that has no meaning."""
        for key in given:
            if key not in known:
                raise self.fault(unknown("key", key, known), *place, key)


def _path(line: str) -> Place:
    """Return the keys of a line of TOML."""
    try:
        parts, path = tomllib.loads(line), list[str]()
    except tomllib.TOMLDecodeError:
        return ("",)
    while isinstance(parts, dict) and parts:
        [(key, parts)] = parts.items()
        path.append(key)
    return tuple(path)


def read_problem_file(path: str | Path, kind: type["Problem"]) -> ProblemFile:
    """Read a problem file; `kind` is the class of the problem."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DomainError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except ValueError as error:
        raise DomainError(f"{path} is not a text in UTF-8: {error}") from None
    file = Located(path, text)
    parts = file.parts
    file.require_keys(parts, KEYS)
    graph = _read_graph(file, path.parent)
    target = file.take(parts, str, "the name of a variable", "target")
    if not target:
        raise file.fault(f"name the variable to improve, one of {listed(graph.nodes)}", "target")
    with file.at("target"):
        read_target(graph, target)
    variables = _read_variables(file, graph)
    domains = _read_domains(file, graph, target, variables)
    limits = read_domains(graph, target, domains)
    known = _read_known(file)
    objective = file.take(parts, str, '"min" or "max"', "objective")
    if objective not in (None, "min", "max"):
        raise file.fault(f'it must be "min" or "max", got {objective!r}', "objective")
    given = {
        "objective": objective,
        "sets": _read_sets(file),
        "identifiable_only": file.take(parts, bool, "true or false", "identifiable_only"),
    }
    constraints = []
    tables = file.take(parts, list, "written as [[constraints]]", "constraints") or []
    for position, table in enumerate(tables):
        place = ("constraints", position)
        if not isinstance(table, dict):
            raise file.fault(f"it must be a table, got {table!r}", *place)
        file.require_keys(table, ("coefficients", "lower", "upper", "when"), *place)
        with file.at(*place):
            options = {key: table[key] for key in table if key != "coefficients"}
            constraints.append(LinearConstraint(table.get("coefficients", {}), **options))
            read_constraints(limits, constraints[-1:])
    with file.at():
        problem = kind(
            graph,
            target,
            domains=domains,
            costs=_read_costs(file, graph, domains, variables),
            known=known,
            units={name: each["unit"] for name, each in variables.items() if "unit" in each},
            constraints=constraints,
            **{name: value for name, value in given.items() if value is not None},
        )
    settings = file.take(parts, dict, "a table, [settings]", "settings") or {}
    with file.at("key"):
        key = None if parts.get("key") is None else read_count("key", parts["key"], 0)
    return ProblemFile(path, problem, _read_data(file, path.parent, variables), settings, key)


def _read_graph(file: Located, folder: Path) -> CausalGraph:
    parts = file.parts
    inline = file.take(parts, str, "a text such as 'X -> Y'", "graph")
    path = file.take(parts, str, "the path of a file", "graph_file")
    if (inline is None) == (path is None):
        raise file.fault("give either graph, a text such as 'X -> Y', or graph_file, a path")
    place = "graph" if path is None else "graph_file"
    latent = file.take(parts, list, "a list of names", "latent") or []
    with file.at(place):
        given = read_graph_text(read_text_file(folder / path) if inline is None else inline)
        whole = build_graph(given._replace(latent=()))
    with file.at("latent"):
        if not all(isinstance(name, str) for name in latent):
            raise DomainError(f"it must be a list of names, got {latent!r}")
        whole.require(latent)
    with file.at(place):
        return build_graph(given, latent)


def _read_variables(file: Located, graph: CausalGraph) -> dict[str, dict[str, Any]]:
    tables = file.take(file.parts, dict, "tables such as [variables.X]", "variables") or {}
    for name, table in tables.items():
        place = ("variables", name)
        with file.at(*place):
            graph.require([name])
        if not isinstance(table, dict):
            raise file.fault(f"it must be a table with a domain, got {table!r}", *place)
        file.require_keys(table, VARIABLE_KEYS, *place)
        for key in ("unit", "column"):
            file.take(table, str, "a text", *place, key)
    return tables


def _read_domains(
    file: Located, graph: CausalGraph, target: str, variables: Mapping[str, dict[str, Any]]
) -> dict[str, Domain]:
    domains: dict[str, Domain] = {}
    for name, table in variables.items():
        place = ("variables", name)
        if "domain" in table and "levels" in table:
            raise file.fault("give either a domain or levels", *place, "levels")
        for key in ("domain", "levels"):
            values = file.take(table, list, "a list of numbers", *place, key)
            if values is not None:
                with file.at(*place, key):
                    domains[name] = tuple(values) if key == "domain" else Levels(values)
                    read_domains(graph, target, {name: domains[name]})
        if "cost" in table and name not in domains:
            raise file.fault("a variable that cannot be set has no cost", *place, "cost")
    if not domains:
        raise file.fault(
            "no variable may be set; give at least one a domain, for example [variables.X] with "
            "domain = [0, 1]",
            "variables",
        )
    return domains


def _read_sets(file: Located) -> Any:
    sets = file.parts.get("sets")
    if sets is None or (isinstance(sets, str | int) and not isinstance(sets, bool)):
        return sets
    is_listed = isinstance(sets, list) and all(
        isinstance(members, list) and all(isinstance(name, str) for name in members)
        for members in sets
    )
    if not is_listed:
        raise file.fault(
            f'it must be "mis", "pomis", a size, or lists of names; got {sets!r}', "sets"
        )
    return [tuple(members) for members in sets]


def _read_costs(
    file: Located,
    graph: CausalGraph,
    domains: Mapping[str, Domain],
    variables: Mapping[str, dict[str, Any]],
) -> Any:
    given = {name: variables[name]["cost"] for name in domains if "cost" in variables[name]}
    rule = file.parts.get("costs")
    if rule is not None:
        magnitude = rule.get("magnitude") if isinstance(rule, dict) and len(rule) == 1 else None
        if (rule != "magnitude" and magnitude is None) or given:
            raise file.fault(
                'it must be "magnitude" or { magnitude = 1.0 }, without a cost of variables',
                "costs",
            )
        with file.at("costs"):
            return (
                MagnitudeCost()
                if magnitude is None
                else MagnitudeCost(read_number("costs", magnitude))
            )
    for name, cost in given.items():
        with file.at("variables", name, "cost"):
            read_costs({name: cost}, graph.nodes, (name,))
    return {name: given.get(name, 1.0) for name in domains} if given else None


def _read_known(file: Located) -> dict[Any, float]:
    found: dict[Any, float] = {}
    for position, table in enumerate(
        file.take(file.parts, list, "written as [[known]]", "known") or []
    ):
        place = ("known", position)
        keys = set(table) if isinstance(table, dict) else set()
        if keys == {"cause", "effect", "coefficient"}:
            found[str(table["cause"]), str(table["effect"])] = table["coefficient"]
        elif keys == {"cause", "total_effect"}:
            found[f"tau[{table['cause']}]"] = table["total_effect"]
        else:
            raise file.fault(
                "it must have cause, effect and coefficient, or cause and total_effect", *place
            )
    return found


def _read_data(
    file: Located, folder: Path, variables: Mapping[str, dict[str, Any]]
) -> DataFile | None:
    given = file.take(file.parts, str | dict, 'a path, or a table with "file"', "data")
    if given is None:
        return None
    table = {"file": given} if isinstance(given, str) else given
    file.require_keys(table, ("file", "separator", "decimal", "encoding", "missing"), "data")
    for key in table:
        file.take(table, str, "a text", "data", key)
    if not table.get("file"):
        raise file.fault("name the file with the observations", "data")
    missing = table.get("missing", "refuse")
    if missing not in ("refuse", "drop"):
        raise file.fault(f'it must be "refuse" or "drop", got {missing!r}', "data", "missing")
    marks = {"separator": table.get("separator", ","), "decimal": table.get("decimal", ".")}
    for key, mark in marks.items():
        if len(mark) != 1 or (mark == marks["separator"] and key == "decimal"):
            raise file.fault(f"it must be one character of its own, got {mark!r}", "data", key)
    columns = {name: each["column"] for name, each in variables.items() if "column" in each}
    encoding = table.get("encoding", "utf-8-sig")
    path = folder / table["file"]
    return DataFile(path, marks["separator"], marks["decimal"], encoding, missing, columns)


def write_toml(problem: "Problem") -> str:
    """Return the TOML text of a problem; functions cannot be written."""
    costs = problem.costs
    if problem.feasible_rule is not None or type(costs) not in (ConstantCost, MagnitudeCost):
        raise DomainError(
            "a problem file cannot hold a cost function or a function `feasible`; use "
            "problem.to_json(), which holds them by name"
        )
    lines = [f"target = {_quoted(problem.target)}", f'objective = "{problem.objective}"']
    lines += [f"graph = {write_graph(problem.graph)}"]
    rule = problem.sets_rule
    lines += [f"sets = {toml_value([list(s) for s in problem.sets] if rule is None else rule)}"]
    if problem.identifiable_only:
        lines.append("identifiable_only = true")
    if isinstance(costs, MagnitudeCost):
        lines.append(f"costs = {{ magnitude = {toml_value(float(costs.constant))} }}")
    prices: dict[str, float] = {}
    if isinstance(costs, ConstantCost):
        prices = dict(zip(problem.graph.nodes, costs.constants, strict=True))
    has_prices = any(prices.get(name, 1.0) != 1.0 for name in problem.manipulable)
    for name in problem.graph.nodes:
        entries = dict[str, object]()
        if name in problem.levels:
            entries["levels"] = list(problem.levels[name])
        elif name in problem.manipulable:
            entries["domain"] = list(problem.domains[name])
        if name in problem.units:
            entries["unit"] = problem.units[name]
        if has_prices and name in problem.manipulable:
            entries["cost"] = prices[name]
        if entries:
            lines += ["", f"[variables.{write_key(name)}]"]
            lines += [f"{key} = {toml_value(value)}" for key, value in entries.items()]
    for constraint in problem.constraints:
        terms = ", ".join(
            f"{write_key(n)} = {toml_value(c)}" for n, c in constraint.coefficients.items()
        )
        lines += ["", "[[constraints]]", f"coefficients = {{ {terms} }}"]
        bounds = {"lower": constraint.lower, "upper": constraint.upper}
        lines += [f"{key} = {toml_value(each)}" for key, each in bounds.items() if each is not None]
        lines += [f'when = "{constraint.when}"'] if constraint.when != "any" else []
    for (cause, effect), value in problem.known.items():
        lines += ["", "[[known]]", f"cause = {_quoted(cause)}", f"effect = {_quoted(effect)}"]
        lines += [f"coefficient = {toml_value(value)}"]
    for label, value in problem.known_effects.items():
        lines += [
            "",
            "[[known]]",
            f"cause = {_quoted(label[4:-1])}",
            f"total_effect = {toml_value(value)}",
        ]
    return "\n".join(lines) + "\n"


def write_graph(graph: CausalGraph) -> str:
    """Return a TOML value that holds the text of a graph: our own notation, or JSON."""
    if all(is_writable(name) and "\\" not in name for name in graph.nodes):
        return '"""\n' + "\n".join(str(graph).split("; ")) + '\n"""'
    return _quoted(graph.to_json())


def write_key(name: str) -> str:
    """Return a name as a key of TOML."""
    return name if BARE_KEY.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DomainError(f"{text!r} holds half of a character, which no file can hold; rename it")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: Any) -> str:
    """Return a text, a number or a list of them as TOML."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, int):
        return str(value)
    text = repr(float(value))
    return text if text == "-0.0" else text.removesuffix(".0")
