"""What did a check find, did it pass, and what is to be done about it?

Where one check has many p-values, they are corrected by the method of Holm.
"""

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import CheckFailed

PASSED, FAILED, UNKNOWN = "passed", "failed", "not assessed"


@dataclass(frozen=True, eq=False)
class Check:
    """The result of one check.

    Attributes
    ----------
    name:
        What was checked.
    table:
        A line for each thing checked; its column `verdict` holds "passed", "failed" or "not
        assessed".
    text:
        The finding as a sentence.
    advice:
        What to do about it; empty where nothing is to be done.
    details:
        More numbers, where there are any.
    whole:
        The verdict, where it does not follow from the lines alone.
    """

    name: str
    table: pd.DataFrame
    text: str
    advice: str = ""
    details: pd.DataFrame | None = None
    whole: str | None = None

    @cached_property
    def verdict(self) -> str:
        """Verdict: "failed" if a line failed, "not assessed" if none could be, else "passed"."""
        if self.whole is not None:
            return self.whole
        lines = set(self.table["verdict"])
        if FAILED in lines:
            return FAILED
        return PASSED if PASSED in lines else UNKNOWN

    @property
    def passed(self) -> bool:
        """Whether there are lines that could be assessed, and all of these passed."""
        return self.verdict == PASSED

    @property
    def failures(self) -> pd.DataFrame:
        """Lines of the table that failed."""
        return self.table[self.table["verdict"] == FAILED]

    def require(self) -> "Check":
        """Return this check if no line failed; raise CheckFailed with its text otherwise."""
        if self.verdict == FAILED:
            raise CheckFailed(f"{self.name}: {self.text}")
        return self

    def __repr__(self) -> str:
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.name}: {self.verdict}. {self.text}{advice}"

    def _repr_html_(self) -> str:
        what_to_do = f"<p><em>{html.escape(self.advice)}</em></p>" if self.advice else ""
        title = f"<strong>{html.escape(self.name)}: {self.verdict}.</strong>"
        finding = f"<p>{title} {html.escape(self.text)}</p>"
        return finding + what_to_do + self.table.to_html(max_rows=60, float_format="{:.4g}".format)


def sentence(parts: list[str]) -> str:
    """Return several remarks as one sentence; an empty text for none."""
    joined = "; ".join(parts)
    return f"{joined[0].upper()}{joined[1:]}." if joined else ""


def judge(passed: bool) -> str:
    """Return the verdict of one line, "passed" or "failed"."""
    return PASSED if passed else FAILED


def holm(p_values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the p-values by Holm's step-down correction; NaN stays NaN and is not counted.

    The correction is valid however the tests depend on each other. weights: positive, how the error
    rate is shared between the tests; by default equally.
    """
    corrected = np.full(len(p_values), np.nan)
    shares = np.ones(len(p_values)) if weights is None else weights
    order = np.argsort(p_values / shares, kind="stable")[: np.isfinite(p_values).sum()]
    left = np.cumsum(shares[order][::-1])[::-1]
    steps = p_values[order] / shares[order] * left
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def run_lines(name: str, lines: Mapping[str, Callable[[], object]], advice: str) -> Check:
    """Run every promise of a contract and return a check with a line for each.

    lines: {promise: function}, which returns "" or None, returns the fault, or raises.
    """
    rows = []
    for promise, work in lines.items():
        try:
            fault = work() or ""
        except Exception as error:  # the code under test is somebody else's
            fault = str(error) or type(error).__name__
        rows.append((promise, FAILED if fault else PASSED, str(fault)))
    table = pd.DataFrame(rows, columns=["promise", "verdict", "fault"]).set_index("promise")
    broken = table[table["verdict"] == FAILED]
    if broken.empty:
        return Check(name, table, f"All {len(table)} promises are kept.")
    first = f"{broken.index[0]}: {broken['fault'].iloc[0]}"
    text = f"{len(broken)} of {len(table)} promises are broken; the first: {first}."
    return Check(name, table, text, advice)
