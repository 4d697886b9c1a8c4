"""How is a lack of overlap told, so that an analyst can act on it?"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics.checks import FAILED, PASSED, UNKNOWN
from causal_bo_ppl.errors import listed
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.ties import first_largest

SHOWN = 3  # variables named in the text; the table has all sets
HIGH_CORRELATION = 0.9  # of two members, worth a word


class View(NamedTuple):
    """What the rows say about one set.

    acting: members that still affect the target when all are set. corner: the corner of their box farthest from the
    rows. explained: for each of them R^2 on `by`; NaN where rows are too few or it is constant. reason: why nothing
    could be assessed.
    """

    acting: tuple[str, ...]
    reach: float = np.nan
    covered: float = np.nan
    corner: tuple[float, ...] = ()
    explained: tuple[float, ...] = ()
    by: tuple[tuple[str, ...], ...] = ()
    reason: str = ""

    @property
    def worst(self) -> int:
        """The member most explained by others."""
        return first_largest(np.nan_to_num(self.explained, nan=-1.0))

    def verdict(self, reach: float, most_explained: float) -> str:
        """Failed if one of the two is too large, passed if both are known and neither is."""
        if self.reach > reach or any(share > most_explained for share in self.explained):
            return FAILED
        return UNKNOWN if self.reason else PASSED


class Faults(NamedTuple):
    """What the failed sets have in common.

    entangled: {variable: (R^2, by what)} of those nearly explained. outside: variables whose own domain is too wide.
    far: the set with the farthest corner, or None where none lies too far.
    """

    entangled: dict[str, tuple[float, tuple[str, ...]]]
    outside: list[str]
    far: View | None


def describe(problem: Problem, data: Data, table: pd.DataFrame, faults: Faults) -> str:
    """What was found, with names and numbers."""
    counts = table["verdict"].value_counts().reindex([PASSED, FAILED, UNKNOWN], fill_value=0)
    parts = [
        f"Intervention sets looked at, with {len(data)} rows: {len(table)}",
        f"without overlap: {counts[FAILED]}",
        *([f"not assessed: {counts[UNKNOWN]} (such as: {table['reason'].iloc[-1]})"] if counts[UNKNOWN] else []),
    ]
    found = [*_tell_entangled(data, faults), *_tell_outside(problem, data, faults)]
    if counts[PASSED] and not counts[FAILED]:
        known = table[table["verdict"] == PASSED]
        found = [
            f"The farthest corner of a box lies {known['reach'].max():.1f} times as far out as 99 % of the rows; "
            f"at most {known['explained'].max():.0%} of a variable's variance is explained by what would confound it."
        ]
    return " ".join(["; ".join(parts) + ".", *found])


def _tell_entangled(data: Data, faults: Faults) -> list[str]:
    """Which variables are nearly functions of others, so that their effects are hardly seen."""
    if not faults.entangled:
        return []
    parts = [
        f"{name} is nearly a function of {listed(by, most=6)} (R^2 {share:.3f}: its own variation is worth "
        f"{len(data) * (1 - share):.2g} of {len(data)} rows)"
        for name, (share, by) in faults.entangled.items()
    ]
    names = listed(faults.entangled, most=6)
    return [
        f"{_first(parts)}.",
        *_tell_correlation(data, list(faults.entangled)),
        f"The data say little about setting {names} apart from these; estimates there rest on the model's form.",
    ]


def _tell_correlation(data: Data, names: Sequence[str]) -> list[str]:
    """The two that go together most closely, if they do."""
    if len(names) < 2:
        return []
    together = np.corrcoef([data.column(name) / np.abs(data.column(name)).max() for name in names])
    pairs = list(combinations(range(len(names)), 2))
    one, other = pairs[first_largest(np.array([abs(together[pair]) for pair in pairs]))]
    if not abs(together[one, other]) > HIGH_CORRELATION:
        return []
    return [f"The correlation of {names[one]} and {names[other]} is {together[one, other]:.3f}."]


def _tell_outside(problem: Problem, data: Data, faults: Faults) -> list[str]:
    """Which domains reach beyond the rows, and the intervention least like any of them."""
    if faults.far is None:
        return []
    parts = [
        f"{name} may be set in [{low:.4g}, {high:.4g}], but was seen in [{column.min():.4g}, {column.max():.4g}] only"
        for name in faults.outside
        for (low, high), column in [(problem.domains[name], data.column(name))]
    ]
    corner = ", ".join(
        f"{name} = {value:.4g}" for name, value in zip(faults.far.acting, faults.far.corner, strict=True)
    )
    far = f"{faults.far.reach:.2g} times as far out as 99 % of the rows"
    far = far if np.isfinite(faults.far.reach) else "where these rows cannot reach: they vary in fewer directions"
    return [*([f"{_first(parts)}."] if parts else []), f"do({corner}) lies {far}; its effect is extrapolated."]


def _first(parts: Sequence[str]) -> str:
    more = [f"{len(parts) - SHOWN} more variables likewise"] if len(parts) > SHOWN else []
    return "; ".join([*parts[:SHOWN], *more])


def advise(faults: Faults) -> str:
    """What to do about it."""
    names = dict.fromkeys([*faults.entangled, *faults.outside]) or (faults.far.acting if faults.far else ())
    if not names:
        return ""
    return (
        f"Run experiments that set {listed(names, most=6)} to values of their own, narrow the domains to what was "
        "seen, or widen the priors until the uncertainty there is honest."
    )
