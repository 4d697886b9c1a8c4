"""How far do errors of mechanisms reach along directed paths? Bounds for mechanisms of any shape.

If |g_j(u) - g_j(u')| <= sum_i L_ij |u_i - u'_i| and no mechanism is off by more than eps_i where it is used, then
|f^_s(x) - f_s(x)| <= sum_i L_{i->y}^(s) eps_i.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import ModelError, listed, unknown
from causal_bo_ppl.graph import Edge
from causal_bo_ppl.inputs import read_size
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.queries import set_label


def path_sensitivities(problem: Problem, slopes: Mapping[Edge, float]) -> pd.DataFrame:
    """L_{i->y}^(s), sets by nodes: the sum over directed paths from i to the target, without arrows into s, of L_ab.

    1 for the target itself. 0 for members of s: their equations are replaced, so their errors are not there (a sum
    over them too would only loosen the bound). One sweep against the causal order for all sets; no path is listed.

    slopes: {(cause, effect): L_ab >= 0} for every edge between the target and its causes.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> problem = cb.models.load("chain").problem
    >>> path_sensitivities(problem, {("X", "Z"): 0.8, ("Z", "Y"): 1.3}).loc["X"].to_dict()
    {'X': 0.0, 'Z': 1.3, 'Y': 1.0}
    """
    graph, matrix = problem.graph, _matrix(problem, slopes)
    masks = np.array([np.isin(graph.nodes, members) for members in problem.sets])
    loads = np.zeros(masks.shape)
    loads[:, graph.index(problem.target)] = 1.0
    for node in range(graph.index(problem.target) - 1, -1, -1):
        loads[:, node] = np.where(masks[:, node], 0.0, loads @ matrix[node])
    return pd.DataFrame(loads, index=_index(problem), columns=list(graph.nodes))


def path_lipschitz_bound(
    problem: Problem, slopes: Mapping[Edge, float], errors: Mapping[str, float]
) -> pd.Series:
    """sum_i L_{i->y}^(s) eps_i for every set: no effect of it is off by more, at any values.

    errors: {variable: eps_i >= 0}, the largest error of each mechanism over all that its parents may be, for every
    variable that some set leaves free on its way to the target; of a root the error of its mean.
    """
    loads = path_sensitivities(problem, slopes)
    _require_no_other("variable", errors, problem.graph.nodes)
    needed = [name for name in loads.columns if loads[name].any()]
    if missing := [name for name in needed if name not in errors]:
        raise ModelError(
            f"errors lack the mechanisms of {listed(missing)}; give a bound for each, 0 where it is known"
        )
    sizes = [read_size(f"the error of {name!r}", errors[name], positive=False) for name in needed]
    return pd.Series(loads[needed].to_numpy() @ np.array(sizes), index=loads.index, name="bound")


def _matrix(problem: Problem, slopes: Mapping[Edge, float]) -> np.ndarray:
    """(p, p) slopes of the edges upstream of the target."""
    graph, upstream = problem.graph, problem.graph.ancestral(problem.target).directed
    _require_no_other("edge", slopes, graph.directed)
    if missing := [" -> ".join(edge) for edge in upstream if edge not in slopes]:
        raise ModelError(
            f"slopes lack {listed(missing)}; give one for every edge upstream of the target"
        )
    matrix = np.zeros((len(graph.nodes), len(graph.nodes)))
    for cause, effect in upstream:
        size = read_size(f"the slope of {cause} -> {effect}", slopes[cause, effect], positive=False)
        matrix[graph.index(cause), graph.index(effect)] = size
    return matrix


def _require_no_other(what: str, given: Iterable[object], known: Iterable[object]) -> None:
    names = list(map(str, known))
    for each in given:
        if str(each) not in names:
            raise ModelError(unknown(what, each, names))


def _index(problem: Problem) -> pd.Index:
    return pd.Index(map(set_label, problem.sets), name="set")
