"""Entries of recorded results: how each kind is written, and when two of them agree.

There are three kinds. A *closed* entry holds deterministic numbers, which agree up to a relative
tolerance. A *choice* holds labels, counts and interventions: labels and intervention sets are
equal, intervention values differ by at most a share of their domain's width, since processors round
differently. *Draws* hold Monte Carlo estimates with their standard errors, and agree within 4.5
combined standard errors. The same key gives the same draws, so that nothing is left to chance; but
where new code draws differently, each number has a false alarm with probability 7e-6, and the 860
of all cases together have one with probability 0.006.
"""

import math
from collections.abc import Mapping
from os.path import commonprefix
from typing import Any

import numpy as np

Entry = dict[str, Any]
CLOSED_TOLERANCE = 1e-9
FLOOR_SHARE = 1e-3  # of an array's largest entry: smaller ones are compared on this scale
CHOICE_TOLERANCE = 1e-6  # of a domain's width
STANDARD_ERRORS = 4.5


def closed(value: Any, relative: float = CLOSED_TOLERANCE, why: str = "") -> Entry:
    """Return an entry of deterministic numbers.

    Parameters
    ----------
    value:
        A number or an array.
    relative, why:
        The tolerance, and the reason for one that differs from the usual one.
    """
    if relative != CLOSED_TOLERANCE and not why:
        raise ValueError("a tolerance other than the usual one needs a reason")
    entry = {"kind": "closed", "value": _listed(value), "relative": relative}
    return entry | ({"why": why} if why else {})


def choice(value: Any) -> Entry:
    """Return an entry of labels, counts or flags, which must be equal."""
    return {"kind": "choice", "value": value}


def interventions(
    chosen: list[dict[str, float]],
    widths: Mapping[str, float],
    tolerance: float = CHOICE_TOLERANCE,
    why: str = "",
) -> Entry:
    """Return an entry of chosen interventions.

    Parameters
    ----------
    chosen:
        {variable: value} of every choice.
    widths:
        The width of each variable's domain.
    tolerance, why:
        The tolerance as a share of the width, and the reason for one that differs from the usual
        one.
    """
    if tolerance != CHOICE_TOLERANCE and not why:
        raise ValueError("a tolerance other than the usual one needs a reason")
    entry = {
        "kind": "interventions", "value": chosen, "widths": dict(widths), "tolerance": tolerance
    }  # fmt: skip
    return entry | ({"why": why} if why else {})


def draws(value: Any, standard_error: Any) -> Entry:
    """Return an entry of Monte Carlo estimates with their standard errors."""
    return {
        "kind": "draws", "value": _listed(value), "standard_error": _listed(standard_error)
    }  # fmt: skip


def find_differences(recorded: Mapping[str, Entry], found: Mapping[str, Entry]) -> list[str]:
    """Return a sentence for every entry of a case in which two results disagree."""
    lacking = [f"{name}: it was recorded, and is missing now" for name in recorded.keys() - found]
    new = [f"{name}: it is new, record it" for name in found.keys() - recorded.keys()]
    both = [name for name in recorded if name in found]
    differing = [
        f"{name}: {said}" for name in both if (said := _differ(recorded[name], found[name]))
    ]
    return sorted(lacking) + sorted(new) + differing


def _differ(old: Entry, new: Entry) -> str:
    if old["kind"] != new["kind"]:
        return f"it was recorded as {old['kind']}, and is {new['kind']} now"
    compare = {
        "closed": _differ_closed,
        "choice": _differ_choice,
        "interventions": _differ_interventions,
        "draws": _differ_draws,
    }
    return compare[old["kind"]](old, new)


def _differ_closed(old: Entry, new: Entry) -> str:
    one, other = (np.asarray(entry["value"], float) for entry in (old, new))
    if one.shape != other.shape:
        return f"its shape was {one.shape}, and is {other.shape} now"
    finite = np.abs(one[np.isfinite(one)])
    scale = np.maximum(np.abs(one), FLOOR_SHARE * finite.max(initial=0.0))
    return _describe(one, other, new["relative"] * scale, f"{new['relative']:g} relative")


def _differ_draws(old: Entry, new: Entry) -> str:
    one, other = (np.asarray(entry["value"], float) for entry in (old, new))
    if one.shape != other.shape:
        return f"its shape was {one.shape}, and is {other.shape} now"
    errors = np.hypot(*(np.asarray(entry["standard_error"], float) for entry in (old, new)))
    words = f"{STANDARD_ERRORS} combined standard errors"
    return _describe(one, other, STANDARD_ERRORS * errors + 1e-12 * np.abs(one), words)


def _describe(one: np.ndarray, other: np.ndarray, allowed: np.ndarray, words: str) -> str:
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(one - other))
        wrong = ~same & ~(gaps <= allowed)
    if not wrong.any():
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(wrong, np.nan_to_num(gaps / allowed, nan=np.inf, posinf=np.inf), -1.0)
    index = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return (
        f"{int(wrong.sum())} of {wrong.size} numbers differ by more than {words}; at "
        f"{list(map(int, index))} {float(one[index])!r} was recorded, now {float(other[index])!r} "
        f"(difference {float(gaps[index]):.3g}, allowed {float(allowed[index]):.3g})"
    )


def _differ_choice(old: Entry, new: Entry) -> str:
    if old["value"] == new["value"]:
        return ""
    one, other = (repr(entry["value"]) for entry in (old, new))
    start = max(0, len(commonprefix([one, other])) - 60)  # some of what is the same, for reading
    return f"{_shortened(one, start)} was recorded, now {_shortened(other, start)}"


def _differ_interventions(old: Entry, new: Entry) -> str:
    one, other = old["value"], new["value"]
    if len(one) != len(other):
        return f"{len(one)} interventions were recorded, now there are {len(other)}"
    for position, (was, now) in enumerate(zip(one, other, strict=True)):
        is_same_set = was.keys() == now.keys()
        if not is_same_set or any(
            not math.isclose(
                was[name], now[name], rel_tol=0.0, abs_tol=new["tolerance"] * new["widths"][name]
            )
            for name in was
        ):
            return (
                f"at {position} do({_words(was)}) was recorded, now do({_words(now)}); values may "
                f"differ by {new['tolerance']:g} of their domain's width"
            )
    return ""


def _words(intervention: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in intervention.items())


def _shortened(text: str, start: int, most: int = 200) -> str:
    before, after = "..." * (start > 0), "..." * (len(text) > start + most)
    return f"{before}{text[start : start + most]}{after}"


def _listed(value: Any) -> Any:
    return np.asarray(value, float).tolist()
