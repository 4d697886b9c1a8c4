"""How is a problem written as a JSON text without code, and read back as an equal one?

The text holds every part of the problem, the problem's fingerprint, and a checksum of all the rest.
The fingerprint guards what changes an answer, and so a function that is given back; the
checksum guards what the fingerprint leaves out: units and the way in which the sets were given.
Both protect against accidents, not against forgery.
"""

import hashlib
import json
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import causal_bo_ppl
from causal_bo_ppl.errors import CausalBOError, DomainError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.problem.constraints import LinearConstraint
from causal_bo_ppl.problem.costs import ConstantCost, CostFunction, MagnitudeCost
from causal_bo_ppl.problem.domains import Levels
from causal_bo_ppl.problem.feasibility import Rule
from causal_bo_ppl.problem.validation import FoundSets

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

FORMAT = 1
LISTED = "listed"  # the analyst named the sets
AGAIN = "write the text again with problem.to_json()"


def write_problem(problem: "Problem") -> str:
    """Return the JSON text of a problem."""
    record = {
        "format": FORMAT,
        "version": causal_bo_ppl.__version__,
        "nodes": problem.graph.nodes,
        "directed": problem.graph.directed,
        "bidirected": problem.graph.bidirected,
        "target": problem.target,
        "objective": problem.objective,
        "domains": problem.domains,
        "sets_given_as": LISTED if problem.sets_rule is None else problem.sets_rule,
        "sets": problem.sets,
        "costs": _write_costs(problem),
        "known": [[*edge, value] for edge, value in problem.known.items()],
        "identifiable_only": problem.identifiable_only,
        "units": problem.units,
        "fingerprint": problem.fingerprint,
    }
    if problem.levels:
        record["levels"] = problem.levels
    if problem.constraints:
        record["constraints"] = [asdict(each) for each in problem.constraints]
    if problem.feasible_rule is not None:
        record["feasible"] = _function_name("feasible", problem.feasible_rule)
        if record["costs"] == {"function": record["feasible"]}:
            raise DomainError(
                f"the cost function and the function `feasible` are both called "
                f"{record['feasible']!r}, and a text holds functions by their names only; give "
                "them different names"
            )
    return json.dumps(record | {"checksum": _checksum(record)}, allow_nan=False)


def _write_costs(problem: "Problem") -> dict[str, object] | None:
    costs = problem.costs
    if type(costs) is ConstantCost:
        constants = dict(zip(problem.graph.nodes, costs.constants, strict=True))
        given = {name: constants[name] for name in problem.manipulable}
        return None if set(given.values()) == {1.0} else {"constants": given}
    if type(costs) is MagnitudeCost:
        return {"magnitude": float(costs.constant)}
    return {"function": _function_name("costs", costs)}


def _function_name(what: str, function: object) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        is_are = "are" if what == "costs" else "is"
        raise DomainError(
            f"the {what} {is_are} a {type(function).__name__} without a name, and a text holds a "
            "function by its name only; wrap it in a plain function: def name(queries): ..."
        )
    return name


def read_problem(
    text: str, functions: Mapping[str, CostFunction | Rule] | None, kind: type["Problem"]
) -> "Problem":
    """Return the problem of this `kind` that a text describes; refuse a text that is not whole."""
    record = _read_record(text)
    given = _read_functions(functions)
    costs = _read_costs(record["costs"], given)
    feasible = _find_function("`feasible` is", record["feasible"], given)
    rule, sets = record["sets_given_as"], record["sets"]
    try:
        levels = {name: Levels(values) for name, values in record["levels"].items()}
        problem = kind(
            CausalGraph(record["nodes"], record["directed"], record["bidirected"]),
            record["target"],
            record["objective"],
            domains=record["domains"] | levels,
            sets=sets if rule == LISTED else FoundSets(rule, sets),
            costs=costs,
            known={(cause, effect): value for cause, effect, value in record["known"]},
            identifiable_only=record["identifiable_only"],
            units=record["units"],
            constraints=[LinearConstraint(**each) for each in record["constraints"]],
            feasible=feasible,
        )
    except CausalBOError as error:
        raise DomainError(f"the text describes a problem that cannot be posed: {error}") from error
    if problem.fingerprint != record["fingerprint"]:
        raise DomainError(_describe_other_problem(problem, record))
    return problem


def _describe_other_problem(problem: "Problem", record: Mapping[str, Any]) -> str:
    differs = (
        f"the text has the fingerprint {record['fingerprint']!r}, but the problem read from it has "
        f"{problem.fingerprint!r}"
    )
    if "function" in (record["costs"] or {}):
        name = record["costs"]["function"]
        return f"{differs}; give as functions[{name!r}] the function of the same costs as before"
    if record["feasible"] is not None:
        name = record["feasible"]
        return f"{differs}; give as functions[{name!r}] the function that accepts the same"
    return (
        f"{differs}; it was changed, or written by another version ({record['version']}) or on a "
        f"processor that rounds differently: {AGAIN}"
    )


def _read_functions(functions: Mapping[str, Any] | None) -> Mapping[str, Any]:
    given = {} if functions is None else functions
    if not isinstance(given, Mapping) or not all(callable(each) for each in given.values()):
        raise DomainError(f"functions must be {{name: cost function}}, got {functions!r}")
    return given


def _read_costs(
    costs: dict[str, Any] | None, functions: Mapping[str, Any]
) -> dict[str, float] | CostFunction | None:
    """Return what `Problem` takes as costs; a function is looked up by its name."""
    if costs is None:
        return None
    [(what, value)] = costs.items()
    if what == "constants":
        return dict(value)
    if what == "magnitude":
        return MagnitudeCost(value)
    found: CostFunction = _find_function("costs are", value, functions)
    return found


def _find_function(what: str, name: str | None, functions: Mapping[str, Any]) -> Any:
    """Return the function of this name, None for no name."""
    if name is None:
        return None
    if name not in functions:
        raise DomainError(
            f"the problem's {what} the function {name!r}, which a text cannot hold; give it as "
            f"from_json(text, functions={{{name!r}: function}}) (given: {listed(functions)})"
        )
    return functions[name]


def _read_record(text: str) -> dict[str, Any]:
    """Return the parts of a text, each of the right type, as they were written."""
    if not isinstance(text, str):
        raise DomainError(f"a problem is read from a JSON text, got {type(text).__name__}; {AGAIN}")
    try:
        record = json.loads(
            text, object_pairs_hook=_refuse_repeats, parse_constant=_refuse_constant
        )
    except DomainError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise DomainError(f"the text is not JSON, or not all of it: {error}; {AGAIN}") from None
    if not isinstance(record, dict):
        raise DomainError(f"the text holds no JSON object but {reprlib.repr(record)}; {AGAIN}")
    if "format" in record and record["format"] != FORMAT:
        raise DomainError(
            f"the text has the format {reprlib.repr(record['format'])}, this version of the "
            f"package ({causal_bo_ppl.__version__}) reads the format {FORMAT}; read it with the "
            f"version that wrote it ({reprlib.repr(record.get('version'))})"
        )
    known = PARTS | {name: part[1:] for name, part in OPTIONAL.items()}
    missing, extra = PARTS.keys() - record.keys(), record.keys() - known.keys()
    if missing or extra:
        raise DomainError(
            f"the text is not that of a problem; missing: {listed(sorted(missing))}; "
            f"unknown: {listed(sorted(extra))}; {AGAIN}"
        )
    for name, (description, is_right) in known.items():
        if name in record and not is_right(record[name]):
            raise DomainError(
                f"{name!r} must be {description}, got {reprlib.repr(record[name])}; {AGAIN}"
            )
    checksum = record.pop("checksum")
    if checksum != _checksum(record):
        raise DomainError(
            f"the text was changed after it was written: its checksum is {checksum!r}, that of its "
            f"parts is {_checksum(record)!r}; make the change in a new Problem and {AGAIN}"
        )
    return {name: absent for name, (absent, _, _) in OPTIONAL.items()} | record


def _checksum(record: Mapping[str, object]) -> str:
    """Return a hash of all parts, whatever their order and the spaces between them."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    if len(counts) < len(pairs):
        repeated = [name for name, count in counts.items() if count > 1]
        raise DomainError(f"the text gives {listed(repeated)} more than once; {AGAIN}")
    return dict(pairs)


def _refuse_constant(number: str) -> NoReturn:
    raise DomainError(f"the text holds the number {number}; all numbers must be finite: {AGAIN}")


def _is_text(part: object) -> bool:
    return isinstance(part, str)


def _is_number(part: object) -> bool:
    """Return whether this is a number as `write_problem` writes it: with a point or an exponent."""
    return isinstance(part, float) and math.isfinite(part)


def _is_size(part: object) -> bool:
    return isinstance(part, int) and not isinstance(part, bool) and part >= 1


def _is_list(part: object, is_right: Callable[[Any], bool], size: int | None = None) -> bool:
    return (
        isinstance(part, list)
        and size in (None, len(part))
        and all(is_right(each) for each in part)
    )


def _is_mapping(part: object, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(part, dict) and all(is_right(each) for each in part.values())


def _is_coefficient(part: object) -> bool:
    return (
        isinstance(part, list)
        and len(part) == 3
        and _is_list(part[:2], _is_text)
        and _is_number(part[2])
    )


def _is_costs(part: object) -> bool:
    if part is None:
        return True
    if not isinstance(part, dict) or len(part) != 1:
        return False
    [(what, value)] = part.items()
    return (
        (what == "constants" and _is_mapping(value, _is_number))
        or (what == "magnitude" and _is_number(value))
        or (what == "function" and _is_text(value))
    )


def _is_constraint(part: object) -> bool:
    return (
        isinstance(part, dict)
        and part.keys() == {"coefficients", "lower", "upper", "when"}
        and _is_mapping(part["coefficients"], _is_number)
        and all(part[name] is None or _is_number(part[name]) for name in ("lower", "upper"))
        and _is_text(part["when"])
    )


def _are_pairs(part: object) -> bool:
    return _is_list(part, lambda pair: _is_list(pair, _is_text, 2))


PARTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "format": ("a whole number", _is_size),
    "version": ("a text", _is_text),
    "nodes": ("a list of names", lambda part: _is_list(part, _is_text)),
    "directed": ("a list of pairs of names", _are_pairs),
    "bidirected": ("a list of pairs of names", _are_pairs),
    "target": ("a name", _is_text),
    "objective": ('"min" or "max"', lambda part: part in ("min", "max")),
    "domains": (
        "an object of pairs of finite numbers such as [0.0, 1.0]",
        lambda part: _is_mapping(part, lambda pair: _is_list(pair, _is_number, 2)),
    ),
    "sets_given_as": (
        f'"mis", "pomis", "{LISTED}" or a largest size',
        lambda part: part in ("mis", "pomis", LISTED) or _is_size(part),
    ),
    "sets": (
        "a list of lists of names",
        lambda part: _is_list(part, lambda members: _is_list(members, _is_text)),
    ),
    "costs": (
        'null, or an object with "constants", "magnitude" or "function"',
        _is_costs,
    ),
    "known": (
        "a list of [cause, effect, coefficient]",
        lambda part: _is_list(part, _is_coefficient),
    ),
    "identifiable_only": ("true or false", lambda part: isinstance(part, bool)),
    "units": ("an object of texts", lambda part: _is_mapping(part, _is_text)),
    "fingerprint": ("a text", _is_text),
    "checksum": ("a text", _is_text),
}

# Parts that a text has only where the problem has them: what stands for them otherwise, and as in
# PARTS.
OPTIONAL: dict[str, tuple[Any, str, Callable[[Any], bool]]] = {
    "levels": (
        {},
        "an object of lists of finite numbers such as [0.0, 1.0]",
        lambda part: _is_mapping(part, lambda values: _is_list(values, _is_number)),
    ),
    "constraints": (
        [],
        "a list of objects with coefficients, lower, upper and when",
        lambda part: _is_list(part, _is_constraint),
    ),
    "feasible": (None, "the name of a function", _is_text),
}
