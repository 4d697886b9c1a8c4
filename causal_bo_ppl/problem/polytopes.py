"""Where are the vertices of a box that half-spaces cut?

A vertex of {u: 0 <= u <= 1, A u <= b} in c dimensions has c active constraints: k rows of A and
c - k coordinates at one of their ends, for some k. All such choices are tried; the k free
coordinates solve a k x k system. What lies outside is dropped, up to a tolerance, and points that
several choices give are one vertex. That is exact for as many dimensions as a lab sets at once.
"""

from collections.abc import Sequence
from itertools import combinations, product
from math import comb, prod

import numpy as np

SAME = 1e-9  # of a side of the unit cube: coordinates nearer than this are equal
FAR_ENOUGH = 0.3  # of the farthest point's distance
WORST_CONDITION = 1e8  # of rows of unit length: planes that are more parallel have no vertex


def count_choices(ticks: Sequence[np.ndarray], rows: int) -> int:
    """Return how many systems are solved for coordinates with these ticks and so many rows."""
    sizes = [len(each) for each in ticks]
    return sum(
        comb(rows, active) * prod(sizes[place] for place in range(len(sizes)) if place not in free)
        for active in range(min(rows, len(sizes)) + 1)
        for free in combinations(range(len(sizes)), active)
    )


def cut_vertices(
    ticks: Sequence[np.ndarray], rows: np.ndarray, offsets: np.ndarray, slack: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of each slice in which c of the planes meet, if they are not cut off.

    Parameters
    ----------
    ticks: for each of the c coordinates the places in [0, 1] at which a plane stands across it, its
        ends 0 and 1 among them. Further places split the region into several.
    rows, offsets: A, of shape (h, c), and b for each of S slices, of shape (S, h). The slices are
        parallel cuts through a region of more dimensions.
    slack: by how much A u may exceed b, of shape (h,).

    Returns
    -------
    which: the slice of each of the V points, an array of shape (V,).
    points: their coordinates (V, c), ordered by the number of active rows; a point in which more
        than c planes meet comes more than once.
    """
    size, slices = rows.shape[1], len(offsets)
    which, points = [np.zeros(0, int)], [np.zeros((0, size))]
    for active in range(min(len(rows), size) + 1):
        for free in combinations(range(size), active):
            fixed = [place for place in range(size) if place not in free]
            corners = np.array(list(product(*(ticks[place] for place in fixed))))
            for chosen in combinations(range(len(rows)), active):
                matrix = rows[np.ix_(chosen, free)]
                if not _is_regular(matrix):
                    continue
                given = corners @ rows[np.ix_(chosen, fixed)].T
                count = slices * len(corners)
                right = (offsets[:, None, list(chosen)] - given).reshape(count, active)
                found = np.empty((count, size))
                found[:, fixed] = np.tile(corners, (slices, 1))
                found[:, list(free)] = np.linalg.solve(matrix, right.T).T if active else right
                own = np.repeat(np.arange(slices), len(corners))
                found = _snap(found, ticks)
                inside = ((found >= 0) & (found <= 1)).all(axis=1)
                inside &= (found @ rows.T <= offsets[own] + slack).all(axis=1)
                which.append(own[inside])
                points.append(found[inside])
    return np.concatenate(which), np.concatenate(points)


def _is_regular(matrix: np.ndarray) -> bool:
    """Return whether planes with these normals (k, k) meet in one point."""
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not (length > 0).all():
        return False
    return not len(matrix) or bool(np.linalg.cond(matrix / length) < WORST_CONDITION)


def _snap(points: np.ndarray, ticks: Sequence[np.ndarray]) -> np.ndarray:
    """Move coordinates that are rounded ticks to these ticks."""
    moved = points.copy()
    for place, own in enumerate(ticks):
        for tick in own.tolist():
            moved[np.abs(points[:, place] - tick) <= SAME, place] = tick
    return moved


def first_of_each(points: np.ndarray) -> np.ndarray:
    """Return the indices of the different points of (V, c), in lexicographic order.

    Coordinates that differ by rounding are equal, so that neither the order nor the number of
    points hangs on last digits. Of equal points the first is taken.
    """
    ranks = np.zeros(points.shape, int)
    for place in range(points.shape[1]):
        order = np.argsort(points[:, place], kind="stable")
        steps = np.diff(points[order, place], prepend=points[order[:1], place]) > SAME
        ranks[order, place] = np.cumsum(steps)
    return np.asarray(np.unique(ranks, axis=0, return_index=True)[1])


def independent_points(points: np.ndarray) -> np.ndarray:
    """Return the indices of points of (V, d), the first among them, that span all affinely.

    They are at most d + 1: an affine function is determined on all of the points by its values at
    these.
    """
    width = np.ptp(points, axis=0)
    scaled = (points - points[0]) / np.where(width > 0, width, 1.0)
    chosen, left = [0], scaled
    for _ in range(points.shape[1]):
        lengths = np.linalg.norm(left, axis=1)
        if not lengths.max() > np.sqrt(SAME):
            break
        # The first that is far enough out: no choice hangs on rounding.
        best = int(np.flatnonzero(lengths >= FAR_ENOUGH * lengths.max())[0])
        direction = left[best] / lengths[best]
        left = left - (left @ direction)[:, None] * direction
        chosen.append(best)
    return np.array(sorted(chosen))
