"""May what a file records about mechanisms that bend be believed for this problem?

`GPResponse.attributes` writes it: the forms of all equations and the numbers in them that are not
learned. Rows are not in a file, so that ranges of the data can be checked for sense only.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.sampling_plans import plan_sampling
from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, Group
from causal_bo_ppl.mechanisms.gp.propagation import Equation, Setting
from causal_bo_ppl.mechanisms.gp.response_map import coordinate_names
from causal_bo_ppl.problem import Problem

ROUNDING = 1e-9  # of a box, in its half-width


def recorded_names(
    problem: Problem, attributes: Mapping[str, object]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of theta and the equations learned, as a file's attributes say."""
    graph = problem.graph.ancestral(problem.target)
    try:
        equations = [
            Equation(position, tuple(causes), tuple(known), _form(form))
            for position, causes, known, form in json.loads(str(attributes.get("forms")))
        ]
        names = [each[0] for one in equations for each in coordinate_names(graph, one)]
    except (ValueError, TypeError, IndexError):
        raise ModelError("has no readable forms of its mechanisms") from None
    settings = _read_settings(equations, attributes.get("settings"))
    given = {name: graph.parents(name) for name in graph.nodes}
    if graph.bidirected:
        given |= plan_sampling(problem).given
    for equation, setting in zip(equations, settings, strict=True):
        _require_equation(problem, graph, given, equation, setting)
    learned = np.zeros(len(graph.nodes), bool)
    learned[[each.position for each in equations]] = True
    return tuple(names), learned


def _form(record: Any) -> Form:
    causes, groups, hinged = record
    made = tuple(Group(tuple(one), tuple(many), kernel) for one, many, kernel in groups)
    return Form(causes, made, tuple(hinged))


def _read_settings(equations: Sequence[Equation], text: object) -> list[Setting]:
    """Return the numbers of all equations; refuse those that are not finite or do not fit."""
    try:
        arrays = [np.array(each, float) for each in json.loads(str(text))]
    except (ValueError, TypeError):
        raise ModelError("has no readable settings of its mechanisms") from None
    sizes = [(len(each.causes),) * len(Frame._fields) + (len(each.known),) for each in equations]
    if [each.shape for each in arrays] != [(size,) for own in sizes for size in own]:
        raise ModelError("has settings of its mechanisms that do not fit their forms")
    if not all(np.isfinite(each).all() for each in arrays):
        raise ModelError("has settings of its mechanisms that are not finite")
    count = len(Frame._fields) + 1
    return [
        Setting(Frame(*arrays[start : start + count - 1]), arrays[start + count - 1])
        for start in range(0, len(arrays), count)
    ]


def _require_equation(
    problem: Problem,
    graph: CausalGraph,
    given: Mapping[str, Sequence[str]],
    equation: Equation,
    setting: Setting,
) -> None:
    """Refuse an equation whose causes, known coefficients or boxes are not the problem's."""
    name, frame = graph.nodes[equation.position], setting.frame
    positions = (*equation.causes, *equation.known)
    if sorted(positions) != sorted(map(graph.index, given[name])):
        raise ModelError(f"has other causes of {name!r} than the graph")
    causes, known = ([graph.nodes[position] for position in each] for each in equation[1:3])
    slopes = [problem.known.get((cause, name)) for cause in known]
    if slopes != setting.slopes.tolist() or any((each, name) in problem.known for each in causes):
        raise ModelError(f"has other known coefficients of {name!r} than the problem")
    if not ((frame.half > 0).all() and (frame.low < frame.high).all()):
        raise ModelError(f"has settings of {name!r} in which a range is empty")
    ends = [problem.domains.get(cause, (np.inf, -np.inf)) for cause in causes]
    low, high = np.array(ends).reshape(-1, 2).T
    low, high = np.minimum(low, frame.low), np.maximum(high, frame.high)
    gaps = np.abs(np.array([frame.middle - frame.half - low, frame.middle + frame.half - high]))
    if wrong := np.flatnonzero(~(gaps <= ROUNDING * frame.half).all(axis=0)).tolist():
        raise ModelError(
            f"has boxes of {listed([causes[at] for at in wrong])} in the mechanism of {name!r} "
            "that are not those of their data and domains"
        )
