"""Do the data contradict the graph?

Two variables without an edge are independent given a separator, if the graph has one. In n
observations without interventions, the partial correlation r of the two given k others then follows
Student's t:

    r sqrt(df / (1 - r^2)) ~ t(df) with df = n - 2 - k.

Nonlinear mechanisms make variables dependent given a separator that enters linearly. The noise of a
fitted mechanism is independent of all that is no descendant of its variable, however nonlinear the
mechanism is, so it is tested in place of the variable.
"""

from collections.abc import Hashable
from functools import lru_cache
from itertools import combinations
from typing import Any

import jax
import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from scipy.special import betainc

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import Rows, regress, scale_values
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_inputs
from causal_bo_ppl.inputs import as_key, read_share
from causal_bo_ppl.mechanisms.base import NoiseModel
from causal_bo_ppl.problem import Problem

GRAPH_COLUMNS = (
    "left right given correlation low high p_value p_corrected explained observations verdict "
    "reason"
).split()
NORMAL_95 = 1.959963984540054  # 97.5 % quantile of the standard normal
NOISE_DRAWS = 200  # of models, over which the noise is averaged
MOST_VIOLATIONS_NAMED = 3  # in the text; the table has all
# Share of a variance beyond which residuals may be no more than the misfit of a linear mechanism.
NEARLY_EXPLAINED = 0.95
ORDER_OF_VERDICTS = {FAILED: 0, PASSED: 1, UNKNOWN: 2}
UNTESTED = "Only linear dependence is tested; nonlinear dependence and Verma constraints are not."


def check_graph(
    problem: Problem | Posterior,
    data: Data | None = None,
    *,
    alpha: float = 0.01,
    least_correlation: float = 0.1,
    key: jax.Array | int = 0,
) -> Check:
    """Test every independence that the graph implies, on observations without interventions.

    Parameters
    ----------
    problem, data:
        The graph, and observations of its variables, or a posterior, which has both;
        interventional observations are not used. Of a posterior of nonlinear mechanisms, the mean
        noise of the later of two variables is tested given its causes, where no latent cause joins
        it to others.
    alpha:
        How often a true graph may fail at all: p-values are corrected for their number (Holm).
    least_correlation:
        A partial correlation up to this size is harmless, however many observations show that it
        is not zero.
    key:
        For draws of the noise: a JAX key or an int seed.

    Returns
    -------
    Check
        A row for every pair that the graph separates, the worst first: the separator `given`, the
        partial `correlation` with its 95 % interval (Fisher's z), its p-value, raw and corrected,
        and how much of the two is `explained` by the separator at most. What is constant or a
        combination of its separator, or has too few observations, is not assessed, for the
        `reason` given.

    Raises
    ------
    DataError
        If there are no observations without interventions.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> check = cb.diagnostics.check_graph(system.problem, system.observe(100, 0))
    >>> check.passed, check.table[["left", "right", "given"]].values.tolist()
    (True, [['X', 'Y', 'Z']])
    """
    errors = _mean_noise(problem, key) if data is None else {}
    problem, data = require_inputs("check_graph", problem, data)
    alpha = read_share("alpha", alpha)
    least_correlation = read_share("least_correlation", least_correlation)
    observed = data.values[data.is_observational]
    if not len(observed):
        raise DataError(
            f"none of the {len(data)} observations is without interventions; the graph is checked "
            "on such observations only"
        )
    graph, rows = problem.graph, scale_values(observed)
    changed = {name: _replaced(graph, observed, name, error) for name, error in errors.items()}
    pairs = separated_pairs(graph)
    tested = [
        _test(graph, changed[right], left, right, graph.parents(right))
        if right in changed
        else _test(graph, rows, left, right, given)
        for left, right, given in pairs
    ]
    table = _judge_all(pd.DataFrame(tested, columns=GRAPH_COLUMNS), alpha, least_correlation)
    text = _describe(table, len(observed))
    if used := [name for name in changed if any(right == name for _, right, _ in pairs)]:
        text += f" The noise was tested in place of {listed(used, most=6)}."
    return Check("causal graph", table, text, _advise(table))


def _mean_noise(post: object, key: jax.Array | int) -> dict[str, np.ndarray]:
    """Return the mean noise of nonlinear mechanisms, in observations without interventions.

    It is that of variables with causes and without latent ones; none for a problem, and none where
    mechanisms are linear or do not know their noise.
    """
    if not isinstance(post, Posterior) or post.distribution.response.is_affine:
        return {}
    model = post.distribution.model
    upstream = post.problem.graph.ancestral(post.problem.target)
    joined = {name for arc in post.problem.graph.bidirected for name in arc}
    chosen = post.data.is_observational
    if not isinstance(model, NoiseModel) or not chosen.any():
        return {}
    models = post.distribution.drawn(NOISE_DRAWS, as_key(key)).thinned(NOISE_DRAWS).models
    values, free = (part[chosen] for part in post.learned_observations)
    return {
        name: model.disturbances(models, values[None], position).mean(axis=0)
        for position, name in enumerate(upstream.nodes)
        if free[:, position].all() and upstream.parents(name) and name not in joined
    }


def _replaced(graph: CausalGraph, observed: np.ndarray, name: str, column: np.ndarray) -> Rows:
    """Return observations with the noise of a variable in place of it."""
    values = observed.copy()
    values[:, graph.index(name)] = column
    return scale_values(values)


@lru_cache(maxsize=16)  # runs with other data on the same graph ask again
def separated_pairs(graph: CausalGraph) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return every pair without an edge that some set m-separates, and the smallest such set."""
    joined = {frozenset(edge) for edge in (*graph.directed, *graph.bidirected)}
    free = [pair for pair in combinations(graph.nodes, 2) if frozenset(pair) not in joined]
    separators = [(left, right, separator(graph, left, right)) for left, right in free]
    return tuple((left, right, given) for left, right, given in separators if given is not None)


def separator(graph: CausalGraph, left: str, right: str) -> tuple[str, ...] | None:
    """Return the fewest variables that m-separate two others, in graph order.

    None where no set does. Among the two and their ancestors, join all that lie in one district or
    are parents of it. A set of ancestors m-separates if and only if it cuts every path of joins
    (Richardson 2003), and no other set is smaller than all of these.
    """
    upstream = graph.ancestral([left, right])
    joined = np.zeros((len(upstream.nodes),) * 2, bool)
    for district in upstream.districts():
        around = [upstream.index(name) for name in upstream.with_parents(district)]
        joined[np.ix_(around, around)] = True
    np.fill_diagonal(joined, False)
    start, end = upstream.index(right), upstream.index(left)
    return (
        None
        if joined[start, end]
        else tuple(upstream.nodes[index] for index in _smallest_cut(joined, start, end))
    )


def _smallest_cut(joined: np.ndarray, start: int, end: int) -> list[int]:
    """Return the fewest nodes whose removal parts two others, near the first.

    It is a minimum cut of the graph in which every node is split into an entry and an exit.
    """
    size = len(joined)
    capacity = np.zeros((2 * size, 2 * size), np.int32)
    capacity[size:, :size] = size * joined  # from exits to entries; no cut is as large as this
    capacity[np.arange(size), size + np.arange(size)] = 1
    flow = maximum_flow(csr_array(capacity), size + start, end).flow.toarray()
    reached = np.zeros(2 * size, bool)
    reached[
        breadth_first_order(csr_array(capacity - flow), size + start, return_predecessors=False)
    ] = True
    return np.flatnonzero(reached[:size] & ~reached[size:]).tolist()


def _test(
    graph: CausalGraph, rows: Rows, left: str, right: str, given: tuple[str, ...]
) -> dict[str, object]:
    """Return one row of the table, without the columns that need the other rows."""
    line = {
        "left": left,
        "right": right,
        "given": ", ".join(given),
        "observations": len(rows.scaled),
    }
    columns = [graph.index(name) for name in given]
    fits = {name: regress(rows, graph.index(name), columns) for name in (left, right)}
    degrees = len(rows.scaled) - 2 - fits[left].rank
    if degrees < 1:
        few = f"{len(rows.scaled)} observations are too few; at least {len(given) + 3} are needed"
        return line | {"reason": few}
    for name, fit in fits.items():
        if fit.is_exact:
            is_constant = rows.is_constant[graph.index(name)]
            fault = "constant" if is_constant else f"a combination of {listed(given)}"
            return line | {"reason": f"{name} is {fault} in these observations"}
    sizes = [float(np.linalg.norm(fit.residual)) for fit in fits.values()]
    correlation = float(
        np.clip(fits[left].residual @ fits[right].residual / sizes[0] / sizes[1], -1, 1)
    )
    explained = 1 - min(sizes) ** 2 / len(rows.scaled)
    return line | {"reason": "", "explained": explained} | _infer(correlation, degrees)


def _infer(correlation: float, degrees: int) -> dict[str, float]:
    """Return the correlation with Fisher's interval and the two-sided p-value of Student's t.

    The p-value is written without a division by 1 - r^2.
    """
    p_value = betainc(degrees / 2, 0.5, (1 - correlation) * (1 + correlation))
    low, high = -1.0, 1.0
    if degrees > 1:
        half = NORMAL_95 / np.sqrt(degrees - 1)
        with np.errstate(divide="ignore"):  # a correlation of 1
            low, high = np.tanh(np.arctanh(correlation) + np.array([-half, half]))
    ends = {"low": float(low), "high": float(high)}
    return {"correlation": correlation, **ends, "p_value": float(p_value)}


def _judge_all(table: pd.DataFrame, alpha: float, least_correlation: float) -> pd.DataFrame:
    """Correct the p-values for their number, judge every row, and put the worst first."""
    numbers = ["correlation", "low", "high", "p_value", "explained"]
    table = table.astype(dict.fromkeys(numbers, float))
    table["p_corrected"] = holm(table["p_value"].to_numpy())
    strength = table["correlation"].abs()
    holds = (table["p_corrected"] >= alpha) | (strength <= least_correlation)
    assessed = table["reason"] == ""
    verdicts = np.where(assessed, np.where(holds, PASSED, FAILED), UNKNOWN)
    table["verdict"] = pd.Series(verdicts, table.index, dtype=object)
    order = np.lexsort((-strength, table["verdict"].map(ORDER_OF_VERDICTS)))
    return table.iloc[order].reset_index(drop=True)


def _describe(table: pd.DataFrame, count: int) -> str:
    if table.empty:
        return (
            "The graph separates no two variables: no observational data can contradict it by an "
            "independence."
        )
    counts = table["verdict"].value_counts().reindex([PASSED, FAILED, UNKNOWN], fill_value=0)
    parts = [
        f"Independences that the graph implies, tested on {count} observations: "
        f"{counts[PASSED] + counts[FAILED]}",
        f"contradicted: {counts[FAILED]}",
    ]
    if counts[UNKNOWN]:
        parts.append(f"not assessed: {counts[UNKNOWN]} (such as: {table['reason'].iloc[-1]})")
    worst = table.head(min(MOST_VIOLATIONS_NAMED, counts[FAILED]))
    broken = [_violation(row) for row in worst.to_dict("records")]
    return " ".join(["; ".join(parts) + ".", *broken, UNTESTED])


def _violation(row: dict[Hashable, Any]) -> str:
    given = f" given {row['given']}" if row["given"] else ""
    partial = "partial correlation" if given else "correlation"
    interval = f"{row['correlation']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
    text = (
        f"{row['left']} and {row['right']} should be independent{given}, but their {partial} is "
        f"{interval}"
    )
    if row["explained"] > NEARLY_EXPLAINED:
        text += (
            f", of the {1 - row['explained']:.1%} of a variance that are unexplained: a slightly "
            "nonlinear mechanism can cause this"
        )
    return f"{text}."


def _advise(table: pd.DataFrame) -> str:
    if table.empty:
        return (
            "Only experiments can: set a variable and see whether its effects, and nothing else, "
            "change."
        )
    if FAILED not in set(table["verdict"]):
        return ""
    return (
        "Look for a missing edge or a latent common cause between the two, or for a mechanism that "
        "is not linear in what is given; add the edge (-> or <->) to the graph and check it again."
    )
