"""How is a problem written as a JSON text without code, and read back as an equal one?

The text holds every part of the problem, the problem's fingerprint, and a checksum of all the rest.
The fingerprint guards what changes an answer, and so a function that is given back; the
checksum guards what the fingerprint does not cover: units and the way in which the sets were given.
Both protect against accidents, not against forgery.
"""

import hashlib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import causal_bo_ppl
from causal_bo_ppl.errors import CausalBOError, DomainError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.graph.intervention_sets import FoundSets
from causal_bo_ppl.inputs import read_json
from causal_bo_ppl.problem.domains import Levels, LinearConstraint
from causal_bo_ppl.problem.interventions import ConstantCost, CostFunction, MagnitudeCost, Rule

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

PROBLEM_FORMAT = 1
EXPLICIT_SETS = "listed"  # in place of a rule, where the sets were named
REWRITE_ADVICE = "write the text again with problem.to_json()"


def write_problem(problem: "Problem") -> str:
    """Return the JSON text of a problem."""
    parts = {
        "format": PROBLEM_FORMAT,
        "version": causal_bo_ppl.__version__,
        "nodes": problem.graph.nodes,
        "directed": problem.graph.directed,
        "bidirected": problem.graph.bidirected,
        "target": problem.target,
        "objective": problem.objective,
        "domains": problem.domains,
        "sets_given_as": EXPLICIT_SETS if problem.sets_rule is None else problem.sets_rule,
        "sets": problem.sets,
        "costs": _write_costs(problem),
        "known": [[*edge, value] for edge, value in problem.known.items()],
        "identifiable_only": problem.identifiable_only,
        "units": problem.units,
        "fingerprint": problem.fingerprint,
    }
    if problem.known_effects:
        parts["known_effects"] = problem.known_effects
    if problem.levels:
        parts["levels"] = problem.levels
    if problem.constraints:
        parts["constraints"] = [asdict(constraint) for constraint in problem.constraints]
    if problem.feasible_rule is not None:
        parts["feasible"] = _function_name("feasible", problem.feasible_rule)
        if parts["costs"] == {"function": parts["feasible"]}:
            raise DomainError(
                f"the cost function and the function `feasible` are both called "
                f"{parts['feasible']!r}, and a text holds functions by their names only; give "
                "them different names"
            )
    return json.dumps(parts | {"checksum": _checksum(parts)}, allow_nan=False)


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
        raise DomainError(
            f"the function for {what!r} is a {type(function).__name__} without a name, and a text "
            "holds a function by its name only; wrap it in a plain function: def name(queries): ..."
        )
    return name


def read_problem(
    text: str, functions: Mapping[str, CostFunction | Rule] | None, kind: type["Problem"]
) -> "Problem":
    """Return the problem of this `kind` that a text describes; refuse a text that was changed."""
    parts = _read_parts(text)
    given = {} if functions is None else functions
    if not isinstance(given, Mapping) or not all(map(callable, given.values())):
        raise DomainError(f"functions must be {{name: function}}, got {functions!r}")
    try:
        rule, sets = parts["sets_given_as"], parts["sets"]
        levels = {name: Levels(values) for name, values in parts.get("levels", {}).items()}
        problem = kind(
            CausalGraph(parts["nodes"], parts["directed"], parts["bidirected"]),
            parts["target"],
            parts["objective"],
            domains=parts["domains"] | levels,
            sets=sets if rule == EXPLICIT_SETS else FoundSets(rule, sets),
            costs=_read_costs(parts["costs"], given),
            known={(cause, effect): value for cause, effect, value in parts["known"]}
            | parts.get("known_effects", {}),
            identifiable_only=parts["identifiable_only"],
            units=parts["units"],
            constraints=[LinearConstraint(**terms) for terms in parts.get("constraints", ())],
            feasible=_find_function(parts.get("feasible"), given),
        )
    except (CausalBOError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DomainError(f"the text describes a problem that cannot be posed: {error}") from error
    if problem.fingerprint != parts["fingerprint"]:
        name = (parts["costs"] or {}).get("function", parts.get("feasible"))
        advice = (
            f"it was changed, or written by another version ({parts['version']}) or on a "
            f"processor that rounds differently: {REWRITE_ADVICE}"
            if name is None
            else f"give as functions[{name!r}] the function that returns the same as before"
        )
        raise DomainError(
            f"the text has the fingerprint {parts['fingerprint']!r}, but the problem read from it "
            f"has {problem.fingerprint!r}; {advice}"
        )
    return problem


def _read_costs(costs: dict[str, Any] | None, functions: Mapping[str, Any]) -> Any:
    """Return what `Problem` takes as costs; a function is looked up by its name."""
    if costs is None:
        return None
    [(what, value)] = costs.items()
    if what == "magnitude":
        return MagnitudeCost(value)
    return value if what == "constants" else _find_function(value, functions)


def _find_function(name: str | None, functions: Mapping[str, Any]) -> Any:
    """Return the function of this name, None for no name."""
    if name is None:
        return None
    if name in functions:
        return functions[name]
    raise DomainError(
        f"the problem has the function {name!r}, which a text cannot hold; give it as "
        f"from_json(text, functions={{{name!r}: function}}) (given: {listed(functions)})"
    )


def _read_parts(text: str) -> dict[str, Any]:
    """Return the parts of a text whose checksum is that of its parts."""
    if not isinstance(text, str):
        raise DomainError(
            f"a problem is read from a JSON text, got {type(text).__name__}; {REWRITE_ADVICE}"
        )
    try:
        parts = read_json(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise DomainError(
            f"the text is not JSON, or not all of it: {error}; {REWRITE_ADVICE}"
        ) from None
    if not isinstance(parts, dict) or "checksum" not in parts:
        raise DomainError(
            f"the text is not that of a problem: {reprlib.repr(parts)}; {REWRITE_ADVICE}"
        )
    if parts.get("format") != PROBLEM_FORMAT:
        raise DomainError(
            f"the text has the format {reprlib.repr(parts.get('format'))}, this version of the "
            f"package ({causal_bo_ppl.__version__}) reads the format {PROBLEM_FORMAT}; read it "
            f"with the version that wrote it ({reprlib.repr(parts.get('version'))})"
        )
    checksum = parts.pop("checksum")
    if checksum != _checksum(parts):
        raise DomainError(
            f"the text was changed after it was written: its checksum is {checksum!r}, that of its "
            f"parts is {_checksum(parts)!r}; make the change in a new Problem and {REWRITE_ADVICE}"
        )
    return parts


def _checksum(parts: Mapping[str, object]) -> str:
    """Return a hash of all parts, whatever their order and the spaces between them."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
