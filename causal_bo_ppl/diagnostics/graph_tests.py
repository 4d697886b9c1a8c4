"""Do the data contradict the graph?

Two variables without an edge are independent given a separator, if the graph has one. In n rows
that set nothing, the partial correlation r of the two given k others then follows Student's t:

    r sqrt(df / (1 - r^2)) ~ t(df) with df = n - 2 - k.

Mechanisms that bend make variables dependent given a separator that enters linearly. The
disturbance of a fitted mechanism is independent of all that is no descendant of its variable,
however the mechanism bends, so it is tested in place of the variable.
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

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import Rows, regress, scale_rows
from causal_bo_ppl.diagnostics.convergence import require_inputs
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_share
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Problem

COLUMNS = (
    "left right given correlation low high p_value p_corrected explained rows verdict reason"
).split()
NORMAL_95 = 1.959963984540054  # 97.5 % quantile of the standard normal
DRAWS = 200  # of models, over which disturbances are averaged
SHOWN = 3  # violated implications named in the text; the table has all
# Share of a variance beyond which residuals may be no more than the misfit of a line.
NEARLY_EXPLAINED = 0.95
UNTESTED = "Only linear dependence is tested; nonlinear dependence and Verma constraints are not."


def check_graph(
    problem: Problem | Posterior,
    data: Data | None = None,
    *,
    alpha: float = 0.01,
    least_correlation: float = 0.1,
    key: jax.Array | int = 0,
) -> Check:
    """Test every independence that the graph implies, on the rows in which nothing was set.

    Parameters
    ----------
    problem, data:
        The graph, and rows of its variables, or a posterior, which has both; interventional rows
        are not used. Of a posterior of mechanisms that bend, the mean disturbances of the later of
        two variables are tested given its causes, where no latent cause joins it to others.
    alpha:
        How often a true graph may fail at all: p-values are corrected for their number (Holm).
    least_correlation:
        A partial correlation up to this size is harmless, however many rows show that it is not
        zero.
    key:
        For draws of disturbances: a JAX key or an int seed.

    Returns
    -------
    Check
        A line for every pair that the graph separates, the worst first: the separator `given`, the
        partial `correlation` with its 95 % interval (Fisher's z), its p-value, raw and corrected,
        and how much of the two is `explained` by the separator at most. What is constant or a
        combination of its separator, or has too few rows, is not assessed; `reason` says why.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> check = cb.diagnostics.check_graph(system.problem, system.observe(100, 0))
    >>> check.passed, check.table[["left", "right", "given"]].values.tolist()
    (True, [['X', 'Y', 'Z']])
    """
    errors = _disturbances(problem, key) if data is None else {}
    problem, data = require_inputs("check_graph", problem, data)
    alpha = read_share("alpha", alpha)
    least_correlation = read_share("least_correlation", least_correlation)
    observed = data.values[data.is_observational]
    if not len(observed):
        raise DataError(
            f"none of the {len(data)} rows is observational; the graph is checked on rows that set "
            "nothing"
        )
    graph, rows = problem.graph, scale_rows(observed)
    changed = {name: _replaced(graph, observed, name, error) for name, error in errors.items()}
    pairs = separated_pairs(graph)
    tested = [
        _test(graph, changed[right], left, right, graph.parents(right))
        if right in changed
        else _test(graph, rows, left, right, given)
        for left, right, given in pairs
    ]
    table = _judge_all(pd.DataFrame(tested, columns=COLUMNS), alpha, least_correlation)
    text = _describe(table, len(observed))
    if used := [name for name in changed if any(right == name for _, right, _ in pairs)]:
        text += f" Disturbances were tested in place of {listed(used, most=6)}."
    return Check("causal graph", table, text, _advise(table))


def _disturbances(post: object, key: jax.Array | int) -> dict[str, np.ndarray]:
    """Return the mean disturbances, in rows that set nothing, of mechanisms that may bend.

    They are those of variables with causes and without latent ones; none for a problem, and none
    where mechanisms do not bend or do not know their disturbances.
    """
    if not isinstance(post, Posterior) or post.distribution.response.is_affine:
        return {}
    errors = offered(post.distribution.model, "disturbances")
    upstream = post.problem.graph.ancestral(post.problem.target)
    joined = {name for arc in post.problem.graph.bidirected for name in arc}
    chosen = post.data.is_observational
    if errors is None or not chosen.any():
        return {}
    models = post.distribution.drawn(DRAWS, as_key(key)).thinned(DRAWS).models
    values, free = (part[chosen] for part in post.learned_observations)
    return {
        name: errors(models, values[None], at).mean(axis=0)
        for at, name in enumerate(upstream.nodes)
        if free[:, at].all() and upstream.parents(name) and name not in joined
    }


def _replaced(graph: CausalGraph, observed: np.ndarray, name: str, column: np.ndarray) -> Rows:
    """Return rows with the disturbance of a variable in its place."""
    values = observed.copy()
    values[:, graph.index(name)] = column
    return scale_rows(values)


@lru_cache(maxsize=16)  # runs with other rows on the same graph ask again
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
        around = [upstream.index(name) for name in (*district, *upstream.parents(district))]
        joined[np.ix_(around, around)] = True
    np.fill_diagonal(joined, False)
    start, end = upstream.index(right), upstream.index(left)
    return (
        None
        if joined[start, end]
        else tuple(upstream.nodes[at] for at in _smallest_cut(joined, start, end))
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
    return [int(at) for at in np.flatnonzero(reached[:size] & ~reached[size:])]


def _test(
    graph: CausalGraph, rows: Rows, left: str, right: str, given: tuple[str, ...]
) -> dict[str, object]:
    """Return one line of the table, without the columns that need the other lines."""
    line = {"left": left, "right": right, "given": ", ".join(given), "rows": len(rows.scaled)}
    columns = [graph.index(name) for name in given]
    fits = {name: regress(rows, graph.index(name), columns) for name in (left, right)}
    degrees = len(rows.scaled) - 2 - fits[left].rank
    if degrees < 1:
        return line | {
            "reason": f"{len(rows.scaled)} rows are too few; at least {len(given) + 3} are needed"
        }
    for name, fit in fits.items():
        if fit.is_exact:
            fault = (
                "is constant"
                if rows.is_constant[graph.index(name)]
                else f"is a combination of {listed(given)}"
            )
            return line | {"reason": f"{name} {fault} in these rows"}
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
    return {
        "correlation": correlation,
        "low": float(low),
        "high": float(high),
        "p_value": float(p_value),
    }


def _judge_all(table: pd.DataFrame, alpha: float, least_correlation: float) -> pd.DataFrame:
    """Correct the p-values for their number, judge every line, and put the worst first."""
    table = table.astype(
        dict.fromkeys(["correlation", "low", "high", "p_value", "explained"], float)
    )
    table["p_corrected"] = holm(table["p_value"].to_numpy())
    strength = table["correlation"].abs()
    holds = (table["p_corrected"] >= alpha) | (strength <= least_correlation)
    assessed = table["reason"] == ""
    verdicts = [
        judge(ok) if is_known else UNKNOWN for ok, is_known in zip(holds, assessed, strict=True)
    ]
    table["verdict"] = pd.Series(verdicts, table.index, dtype=object)
    rank = table["verdict"].map({FAILED: 0, PASSED: 1, UNKNOWN: 2})
    order = (
        pd.DataFrame({"rank": rank, "strength": -strength})
        .sort_values(["rank", "strength"], kind="stable")
        .index
    )
    return table.loc[order].reset_index(drop=True)


def _describe(table: pd.DataFrame, rows: int) -> str:
    if table.empty:
        return (
            "The graph separates no two variables: no observational data can contradict it by an "
            "independence."
        )
    counts = table["verdict"].value_counts().reindex([PASSED, FAILED, UNKNOWN], fill_value=0)
    parts = [
        f"Independences that the graph implies, tested on {rows} observational rows: "
        f"{counts[PASSED] + counts[FAILED]}",
        f"contradicted: {counts[FAILED]}",
        *(
            [f"not assessed: {counts[UNKNOWN]} (such as: {table['reason'].iloc[-1]})"]
            if counts[UNKNOWN]
            else []
        ),
    ]
    broken = [
        _violation(line) for line in table.head(min(SHOWN, counts[FAILED])).to_dict("records")
    ]
    return " ".join(["; ".join(parts) + ".", *broken, UNTESTED])


def _violation(line: dict[Hashable, Any]) -> str:
    given = f" given {line['given']}" if line["given"] else ""
    partial = "partial correlation" if given else "correlation"
    interval = f"{line['correlation']:.2f} [{line['low']:.2f}, {line['high']:.2f}]"
    text = (
        f"{line['left']} and {line['right']} should be independent{given}, but their {partial} is "
        f"{interval}"
    )
    if line["explained"] > NEARLY_EXPLAINED:
        text += (
            f", of what little is left ({1 - line['explained']:.1%}): a slightly nonlinear "
            "mechanism can cause this"
        )
    return f"{text}."


def _advise(table: pd.DataFrame) -> str:
    if table.empty:
        return (
            "Only experiments can: set a variable and see whether those, and only those, that it "
            "causes move."
        )
    if FAILED not in set(table["verdict"]):
        return ""
    return (
        "Look for a missing edge or a latent common cause between the two, or for a mechanism that "
        "is not linear in what is given; add the edge (-> or <->) to the graph and check it again."
    )
