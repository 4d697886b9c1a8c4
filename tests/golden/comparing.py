"""How far is what is measured now from what was recorded? Nothing is divided by near-zeros."""

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from golden import quantities

ARRAYS, TEXTS = (Path(__file__).with_name(name) for name in ("golden.npz", "golden.json"))
TOLERANCES = {
    # The same formulas in another order round differently; between BLAS kernels 3e-14 was measured.
    "closed form": 1e-9,
    # The mode is left up to 3e-7 posterior sds early, which moves covariances by 2e-8 at most.
    "laplace": 1e-7,
    # Standard errors of both measurements together; a normal number exceeds 4.5 once in 150,000.
    "drawn": 4.5,
    # Rounding, 7e-15 between BLAS kernels. Recentring stops within 1e-3 prior sds of where it would
    # end: another stopping rule moves means and sds by up to 1e-4, without changing any choice.
    "run": 1e-9,
    # Verdicts, names, ranks and choices are equal or not.
    "same": 0.0,
}


class Line(NamedTuple):
    """One quantity: its largest difference in units of its scale, and what is tolerated."""

    system: str
    kind: str
    name: str
    rule: str
    difference: float
    tolerance: float

    @property
    def passed(self):
        """Is the difference tolerated? NaN is not."""
        return self.difference <= self.tolerance

    def __str__(self):
        verdict = "same" if self.passed else "DIFFERS"
        what = f"{self.system:11s} {self.kind:15s} {self.name:62s} {self.rule:12s}"
        return f"{what} {self.difference:9.2e} <= {self.tolerance:7.1e} {verdict}"


def write(found):
    """Write arrays to a compressed file without pickles, and texts to JSON.

    The same numbers give the same bytes.
    """
    arrays, texts = {}, {}
    for (system, kind), table in found.items():
        for name, each in table.items():
            label = f"{system}/{kind}/{name}"
            if each.rule == "same":
                texts[label] = each.values
                continue
            arrays[label] = np.asarray(each.values, float)
            if each.rule == "drawn":
                arrays[f"{label}#error"] = np.asarray(each.scale, float)
    for label, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{label} is not finite, so nothing can be compared with it")
    np.savez_compressed(ARRAYS, **{_escape(label): arrays[label] for label in sorted(arrays)})
    TEXTS.write_text(json.dumps(texts, indent=1, sort_keys=True) + "\n")


def _escape(label):
    """A name that a zip file takes: its slashes would be folders."""
    return label.replace("/", "|")


@lru_cache
def recorded():
    """Arrays and texts by label."""
    with np.load(ARRAYS, allow_pickle=False) as held:
        arrays = {label.replace("|", "/"): held[label] for label in held.files}
    return arrays, json.loads(TEXTS.read_text())


def count():
    """How many numbers and texts are recorded, and in how many bytes."""
    recorded.cache_clear()
    arrays, texts = recorded()
    return (
        sum(each.size for each in arrays.values()),
        len(texts),
        ARRAYS.stat().st_size + TEXTS.stat().st_size,
    )


def labels(system, kind):
    """Names of what was recorded of one kind of one system."""
    arrays, texts = recorded()
    start = f"{system}/{kind}/"
    return {
        label.removeprefix(start)
        for label in (*arrays, *texts)
        if label.startswith(start) and "#" not in label
    }


def judge(system, kind):
    """A line for every quantity that is measured or recorded; one that is missing differs."""
    found = quantities.measure(system, kind)
    wanted = labels(system, kind)
    lines = [
        Line(system, kind, name, "missing", np.inf, 0.0)
        for name in sorted(wanted.symmetric_difference(found))
    ]
    for name in found:
        if name in wanted:
            each = found[name]
            difference = _difference(f"{system}/{kind}/{name}", each)
            lines.append(Line(system, kind, name, each.rule, difference, TOLERANCES[each.rule]))
    return lines


def _difference(label, each):
    """Largest difference in units of the scale: of the rule, or the largest recorded number."""
    arrays, texts = recorded()
    if each.rule == "same":
        return 0.0 if texts[label] == json.loads(json.dumps(each.values)) else np.inf
    old, new = arrays[label], np.asarray(each.values, float)
    if old.shape != new.shape:
        return np.inf
    if not old.size:
        return 0.0
    gap = np.abs(new - old)
    if each.rule == "drawn":
        error = arrays[f"{label}#error"]
        scale = np.hypot(
            error, np.minimum(each.scale, 2 * error)
        )  # no error hides behind a larger one
    elif each.scale is None:
        scale = np.abs(old).max()
    else:
        scale = np.asarray(each.scale, float)
    ratios = np.where(gap == 0, 0.0, gap / np.where(scale > 0, scale, np.finfo(float).tiny))
    return float(np.max(ratios)) if np.isfinite(new).all() and np.isfinite(scale).all() else np.nan
