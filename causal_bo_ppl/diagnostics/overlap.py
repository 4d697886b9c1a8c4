"""Does the intervention domain lie where data are, and did the variables vary on their own there?

Two numbers for every set: how far the corners of its box lie from the rows (Mahalanobis distance, in units of the
rows' own 99 % quantile), and how much of a member is explained by what would confound its effect (adjusted R^2).
"""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pandas as pd

from causal_bo_ppl import designs
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics.checks import FAILED, PASSED, UNKNOWN, Check
from causal_bo_ppl.diagnostics.inputs import require_between, require_inputs
from causal_bo_ppl.diagnostics.overlap_words import Faults, View, advise, describe
from causal_bo_ppl.diagnostics.partial_fits import Rows, regress, scale_rows
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.ties import first_largest

INNER = 0.99  # of the rows lie inside the ellipsoid that counts as seen
POINTS = 512  # of the Sobol sequence; a share of them is known to about 0.02
MOST_CORNERS = 12  # members whose 2^12 corners are all tried; beyond, two corners for every principal direction


def check_overlap(
    problem: Problem | Posterior, data: Data | None = None, *, reach: float = 4.0, most_explained: float = 0.99
) -> Check:
    """Look for intervention sets whose effects rest on the model's form more than on the rows.

    Members that do nothing once the others are set are left out. All rows count: one that sets a variable shows it at
    that value, and lets it vary on its own.

    Parameters
    ----------
    problem, data:
        Sets and domains, and rows of its variables, observational or not; or a posterior, which has both.
    reach:
        How far a corner of a set's box may lie from the mean, in units of the distance that 99 % of the rows keep;
        beyond, an effect is extrapolation. 4 is about ten standard deviations of a normal variable that is set alone.
    most_explained:
        How much of a member's variance may be explained by the other members and by those of their parents that tell
        about the target by another route. At 0.99 the standard error of its slope is ten times what it could be.

    Returns
    -------
    Check
        A line for every set, failed ones first: `reach`; `covered`, the share of the box that 99 % of the rows
        surround; `explained`, the largest share, of which `member`, `by` what; `own_rows`, how many rows of
        unconfounded variation that leaves.
    """
    problem, data = require_inputs("check_overlap", problem, data)
    limits = require_between("reach", reach, 0, np.inf), require_between("most_explained", most_explained, 0, 1)
    if not len(data):
        raise DataError("there are no rows; observe some, then check where they lie")
    rows = scale_rows(data.values)
    look = cache(partial(_look, problem, rows))
    upstream = problem.graph.ancestral(problem.target)
    views = [look(_acting(upstream, problem.target, members)) for members in problem.sets]
    table = _tabulate(problem, views, limits, len(data))
    faults = _find_faults(problem, rows, views, limits)
    return Check("overlap", table, describe(problem, data, table, faults), advise(faults))


def _acting(graph: CausalGraph, target: str, members: tuple[str, ...]) -> tuple[str, ...]:
    """Members that still affect the target when all of them are set."""
    causes = graph.do(members).ancestors(target)
    return tuple(name for name in members if name in causes)


def _look(problem: Problem, rows: Rows, acting: tuple[str, ...]) -> View:
    """Both numbers of one set."""
    if len(rows.scaled) < len(acting) + 2:
        return View(acting, reason=f"{len(rows.scaled)} rows are too few; at least {len(acting) + 2} are needed")
    beside = {*acting, *_confounders(problem, acting)}
    by = tuple(problem.graph.require(beside - {name}) for name in acting)
    shares = tuple(_explained(problem.graph, rows, name, others) for name, others in zip(acting, by, strict=True))
    unclear = listed(name for name, share in zip(acting, shares, strict=True) if np.isnan(share))
    few = f"{len(rows.scaled)} rows are too few to tell {unclear} from {listed(problem.graph.require(beside))}"
    reason = few if np.isnan(shares).any() else ""
    return View(acting, *_distance(problem, rows, acting), shares, by, reason)


def _confounders(problem: Problem, acting: tuple[str, ...]) -> list[str]:
    """Parents of the set that tell about the target by another route; the others need not be held fixed."""
    upstream = problem.graph.ancestral(problem.target)
    after, parents = upstream.do(acting), upstream.parents(acting)
    return [
        name
        for name in parents
        if not after.m_separated(name, problem.target, [*acting, *(other for other in parents if other != name)])
    ]


def _explained(graph: CausalGraph, rows: Rows, name: str, by: tuple[str, ...]) -> float:
    """Adjusted R^2 of one variable on others; NaN if it is constant or the rows are too few."""
    column, spare = graph.index(name), len(rows.scaled) - 1
    fit = regress(rows, column, [graph.index(other) for other in by])
    if rows.is_constant[column] or spare - fit.rank < 1:
        return np.nan
    left = 0.0 if fit.is_exact else float(fit.residual @ fit.residual) / len(rows.scaled)
    return max(0.0, 1 - left * spare / (spare - fit.rank)) if by else 0.0


def _distance(problem: Problem, rows: Rows, names: tuple[str, ...]) -> tuple[float, float, tuple[float, ...]]:
    """Reach, covered share and farthest corner of a box; infinite where the rows fill no volume."""
    columns = [problem.graph.index(name) for name in names]
    low, high = np.array([problem.domains[name] for name in names]).T
    _, sizes, directions = np.linalg.svd(rows.root[:, columns] / np.sqrt(len(rows.scaled)), full_matrices=False)
    least = np.linalg.norm(rows.rounding[columns]) + np.finfo(float).eps  # where all are constant
    whiten = directions.T / np.maximum(sizes, least)

    def lengths(values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # a domain of 1e200 is infinitely far
            scaled = (values / rows.size[columns] - rows.centre[columns]) / rows.unit[columns]
            return np.asarray(np.nan_to_num(np.linalg.norm(scaled @ whiten, axis=1), nan=np.inf, posinf=np.inf))

    inner = np.quantile(np.linalg.norm(rows.scaled[:, columns] @ whiten, axis=1), INNER)
    corners = designs.between(low, high, _corners(directions))
    far = lengths(corners)
    farthest = tuple(corners[first_largest(far)].tolist())
    if not (sizes > least).all():
        return np.inf, 0.0, farthest
    inside = lengths(designs.between(low, high, _sobol(len(names)))) <= inner
    return float(far.max() / inner), float(inside.mean()), farthest


def _corners(directions: np.ndarray) -> np.ndarray:
    """Corners of the unit cube: all, or the farthest either way along each of q directions.

    The best of these is at least 1 / sqrt(q) as far as the farthest of all.
    """
    few = directions.shape[1] <= MOST_CORNERS
    return _all_corners(len(directions)) if few else np.vstack([directions > 0, directions <= 0]).astype(float)


_all_corners, _sobol = cache(designs.lattice(2)), cache(lambda size: designs.sobol(POINTS)(size))  # by dimension


def _tabulate(problem: Problem, views: Sequence[View], limits: tuple[float, float], rows: int) -> pd.DataFrame:
    lines = [_line(members, view, limits, rows) for members, view in zip(problem.sets, views, strict=True)]
    table = pd.DataFrame(lines)
    order = table["verdict"].map({FAILED: 0, PASSED: 1, UNKNOWN: 2}).sort_values(kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _line(members: tuple[str, ...], view: View, limits: tuple[float, float], rows: int) -> dict[str, object]:
    share, member, by = np.nan, "", ""
    if view.explained:
        share, member, by = view.explained[view.worst], view.acting[view.worst], ", ".join(view.by[view.worst])
    verdict = view.verdict(*limits)
    return {
        "set": ", ".join(members),
        "reach": view.reach,
        "covered": view.covered,
        "explained": share,
        "member": member,
        "by": by,
        "own_rows": rows * (1 - share),
        "verdict": verdict,
        "reason": view.reason if verdict == UNKNOWN else "",
    }


def _find_faults(problem: Problem, rows: Rows, views: Sequence[View], limits: tuple[float, float]) -> Faults:
    """Name each variable once, by the smallest set in which it fails."""
    entangled: dict[str, tuple[float, tuple[str, ...]]] = {}
    for view in (view for view in views if view.explained):
        for name, share, by in zip(view.acting, view.explained, view.by, strict=True):
            if share > limits[1]:
                entangled.setdefault(name, (share, by))
    far = [view for view in views if view.reach > limits[0]]
    names = problem.graph.require(name for view in far for name in view.acting)
    outside = [name for name in names if _distance(problem, rows, (name,))[0] > limits[0]]
    farthest = far[first_largest(np.array([view.reach for view in far]))] if far else None
    return Faults(entangled, outside, farthest)
