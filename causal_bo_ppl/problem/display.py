"""How is a problem shown to its analyst: in a line, as a table, as a page?"""

from typing import TYPE_CHECKING

import pandas as pd

from causal_bo_ppl.errors import listed
from causal_bo_ppl.graph.layout import draw_svg
from causal_bo_ppl.problem.feasibility import rule_name
from causal_bo_ppl.problem.levels import show_levels

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

COLOURS = {"target": "#fecaca", "manipulable": "#bfdbfe"}


def describe(problem: "Problem") -> str:
    """Return a problem in one line: goal, sets, size, and what restricts the values."""
    sets = f"{len(problem.sets)} sets of {listed(problem.manipulable, most=8)}"
    size = f"{len(problem.graph.nodes)} variables"
    levels = [f"{name} in {{{show_levels(each, 8)}}}" for name, each in problem.levels.items()]
    limits = "".join(f"; {each}" for each in [*levels, *map(str, problem.constraints)])
    if problem.feasible_rule is not None:
        limits += f"; where {rule_name(problem.feasible_rule)}"
    return f"Problem({problem.objective} {problem.target} over {sets}; {size}{limits})"


def tabulate_variables(problem: "Problem") -> pd.DataFrame:
    """Return the manipulable variables as a table: unit, low, high, and levels if there are."""
    rows = [
        (name, problem.units.get(name, ""), *bounds) for name, bounds in problem.domains.items()
    ]
    table = pd.DataFrame(rows, columns=["variable", "unit", "low", "high"])
    if problem.levels:
        table["levels"] = [
            show_levels(problem.levels[name]) if name in problem.levels else ""
            for name in problem.manipulable
        ]
    return table.set_index("variable")


def write_html(problem: "Problem") -> str:
    """Return a picture of the graph and tables of goal, variables and constraints."""
    fills = dict.fromkeys(problem.manipulable, COLOURS["manipulable"]) | {
        problem.target: COLOURS["target"]
    }
    goal = pd.DataFrame(
        {
            "goal": [f"{problem.objective} {problem.label(problem.target)}"],
            "sets": [len(problem.sets)],
        }
    )
    causes = problem.graph.ancestral(problem.target)
    picture = draw_svg(causes.nodes, causes.directed, causes.bidirected, fills)
    words = [*map(str, problem.constraints)]
    if problem.feasible_rule is not None:
        words.append(f"{rule_name(problem.feasible_rule)}(queries)")
    limits = pd.DataFrame({"where": words}).to_html(index=False) if words else ""
    return picture + goal.to_html(index=False) + problem.variables().to_html() + limits
