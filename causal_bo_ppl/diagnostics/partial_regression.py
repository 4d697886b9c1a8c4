"""What is left of a variable after others, whatever the units, means and collinearities?"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.data.learnability import ROUNDING


class Rows(NamedTuple):
    """Rows in units of standard deviations, a constant column as zeros.

    scaled: the rows, (n, p). root: a factor (r, p) with root' root = scaled' scaled, in which
    regressions are cheap. rounding: by how much rounding, of values and sums, may change a scaled
    value, (p,). is_constant: (p,). centre, unit, size: (p,) each, with
    values = size * (centre + unit * scaled); size keeps this from overflowing.
    """

    scaled: np.ndarray
    root: np.ndarray
    rounding: np.ndarray
    is_constant: np.ndarray
    centre: np.ndarray
    unit: np.ndarray
    size: np.ndarray


def scale_rows(values: np.ndarray) -> Rows:
    """Centre and scale the columns of values (n, p).

    Neither their units nor their means matter afterwards.
    """
    largest = np.abs(values).max(axis=0)
    size = np.where(largest > 0, largest, 1.0)
    shares = values / size
    centre = shares.mean(axis=0)
    is_constant = np.ptp(shares, axis=0) <= ROUNDING
    unit = np.where(is_constant, 1.0, shares.std(axis=0))
    scaled = np.where(is_constant, 0.0, (shares - centre) / unit)
    scaled -= scaled.mean(axis=0)  # what the rounding of the first mean left
    summing = len(values) * np.finfo(float).eps  # over the rows, in the root
    rounding = np.where(is_constant, 0.0, ROUNDING / unit + summing)
    return Rows(
        scaled,
        np.asarray(np.linalg.qr(scaled, mode="r")),
        rounding,
        is_constant,
        centre,
        unit,
        size,
    )


class Fit(NamedTuple):
    """A column regressed on others.

    residual: what is left of it, in the space of `root`. rank: how many directions of the others
    count. is_exact: whether what is left is no more than the rounding of the values.
    """

    residual: np.ndarray
    rank: int
    is_exact: bool


def regress(rows: Rows, response: int, given: list[int]) -> Fit:
    """Regress a column on others, by singular values.

    Directions of `given` that rounding alone can make are left out.
    """
    left, sizes, right = np.linalg.svd(rows.root[:, given], full_matrices=False)
    kept = sizes > np.sqrt(len(rows.scaled)) * np.linalg.norm(rows.rounding[given])
    weights = (right[kept].T / sizes[kept]) @ (left[:, kept].T @ rows.root[:, response])
    residual = rows.root[:, response] - rows.root[:, given] @ weights
    noise = rows.rounding[response] + np.abs(weights) @ rows.rounding[given]
    is_exact = bool(np.linalg.norm(residual) <= np.sqrt(len(rows.scaled)) * noise)
    return Fit(residual, int(kept.sum()), is_exact)
