"""Would a line predict as well as a mechanism that may bend? Rows that are left out decide.

Both see the same rows, so that the standard error of the difference of their log densities is that
of n paired differences:

    difference = sum_i d_i,    standard error = sqrt(n) sd(d_i).

Rows are left out one by one by Pareto-smoothed importance sampling (PSIS-LOO).
"""

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import PASSED, UNKNOWN
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference.posterior import Posterior
from causal_bo_ppl.problem import Problem

WORST_K = 0.7  # beyond it the estimate for that row is not to be trusted
MARGIN, LEAST = 4.0, 1.0  # see `compare_with_lines`
DRAWS = 2_000
STRAIGHT, BENT, UNCLEAR = "linear is enough", "bends", "cannot tell"
ENOUGH = 0.9  # of the rows must be judged where a mechanism is said to bend
COLUMNS = "mechanism rows difference se largest_k linear_k finding verdict".split()


class LeftOut(NamedTuple):
    """What a mechanism says about each of n rows when it has not learned from that row.

    rows: (n,) places among the posterior's rows. elpd: (n,) log densities. pareto_k: (n,) tails of
    the importance weights. standard_error: of the sum of `elpd`. size: how many parameters the
    mechanism seems to have. A single row cannot be left out; then nothing else is known.
    """

    rows: np.ndarray
    elpd: np.ndarray
    pareto_k: np.ndarray
    standard_error: float
    size: float


def leave_rows_out(post: Posterior, draws: int, key: jax.Array | int) -> dict[str, LeftOut]:
    """Leave every row out of every mechanism, with the variables' names as keys."""
    from arviz_stats import loo

    wanted = ("log_likelihood", "observed_data")
    tree, found = post.to_datatree(draws=draws, key=key, rows=wanted), {}
    for name in map(str, tree["observed_data"].data_vars):
        rows = np.asarray(tree["log_likelihood"][name].coords[f"row[{name}]"])
        if len(rows) < 2:
            unknown = np.full(len(rows), np.nan)
            found[name] = LeftOut(rows, unknown, unknown, np.nan, np.nan)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of large k: tables report them
            each = loo(tree, var_name=name, pointwise=True)
        parts = (np.asarray(each.elpd_i), np.asarray(each.pareto_k))
        found[name] = LeftOut(rows, *parts, float(each.se), float(each.p))
    return found


def compare_with_lines(
    problem: Problem,
    ours: Mapping[str, LeftOut],
    lines: Mapping[str, LeftOut],
    *,
    margin: float = MARGIN,
    least: float = LEAST,
) -> pd.DataFrame:
    """Return a line for every mechanism with causes; see `cb.check_linearity` for its columns.

    Parameters
    ----------
    ours, lines:
        What mechanisms that may bend, and linear ones, say about rows that were left out.
    margin, least:
        By how much, in log density summed over the rows, a bent one may at most be better where a
        linear one is enough, and must at least be better where it bends.
    """
    names = [name for name in ours if name in lines and problem.graph.parents(name)]
    if not names:
        raise ModelError("no mechanism with causes was learned; there is nothing to compare")
    found = [(name, *_compare(ours[name], lines[name], margin, least)) for name in names]
    return pd.DataFrame(found, columns=COLUMNS).set_index("mechanism")


def _compare(ours: LeftOut, theirs: LeftOut, margin: float, least: float) -> tuple[object, ...]:
    """Return what a line says about one mechanism."""
    gaps, rows = ours.elpd - theirs.elpd, len(ours.rows)
    if rows < 2:
        return rows, *[np.nan] * 4, UNCLEAR, UNKNOWN
    difference, error = _sum(gaps)
    sure = ours.pareto_k <= WORST_K
    gain, doubt = _sum(gaps[sure])
    if sure.mean() >= ENOUGH and gain > max(least, 2 * doubt):
        finding = BENT
    elif difference + 2 * error < margin and bool((theirs.pareto_k <= WORST_K).all()):
        finding = STRAIGHT
    else:
        finding = UNCLEAR
    shapes = float(ours.pareto_k.max()), float(theirs.pareto_k.max())
    return rows, difference, error, *shapes, finding, UNKNOWN if finding == UNCLEAR else PASSED


def _sum(gaps: np.ndarray) -> tuple[float, float]:
    """Return the sum of differences (n,) and its standard error, infinite for less than two."""
    error = np.sqrt(len(gaps)) * gaps.std(ddof=1) if len(gaps) > 1 else np.inf
    return float(gaps.sum()), float(error)


def tell(table: pd.DataFrame) -> str:
    """Say in words what a comparison found."""
    parts = []
    for finding, words in (
        (BENT, "These mechanisms bend"),
        (STRAIGHT, "A line predicts as well for"),
        (UNCLEAR, "The rows cannot tell for"),
    ):
        found = table[table["finding"] == finding]
        if len(found):
            numbers = [
                f"{name} ({line['difference']:+.1f} +- {line['se']:.1f})"
                for name, line in found.iterrows()
            ]
            parts.append(f"{words}: {listed(numbers, most=6)}.")
    parts.append("In brackets: log density of new rows, compared with a linear mechanism.")
    return " ".join(parts)


def advise(table: pd.DataFrame) -> str:
    """Say what to do about what a comparison found."""
    straight = [str(name) for name in table.index[table["finding"] == STRAIGHT]]
    if len(straight) == len(table):
        return 'Linear mechanisms predict as well: mechanisms="linear" is simpler and exact.'
    if straight:
        bent = [str(name) for name in table.index if name not in straight]
        chosen = ", ".join(f'"{name}": "gp"' for name in bent[:6])
        more = ", ..." if len(bent) > 6 else ""
        return f"Some may as well be linear: mechanisms={{{chosen}{more}}} keeps the others linear."
    if (table["finding"] == UNCLEAR).any():
        return "Keep mechanisms that may bend where the rows cannot tell, or add rows."
    return ""
