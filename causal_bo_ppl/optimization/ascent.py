"""How are many starting points improved at once, inside their boxes? Batched gradients.

Coordinates are shares u of each domain's width. Gradients are differences of the worth itself, so
that any surrogate and any acquisition can be followed; those of all starts and all coordinates are
one batch. The whole quasi-Newton step (BFGS) is tried first, together with the gradient at its end.
It is taken where it gains a fair part of what the slope promises; for all other starts, shorter
ones and steps along the gradient with lengths over six decades are tried in one more batch, and the
best is taken where it is better. A start whose slope promises next to nothing stays. Batches have
the same two shapes in every step, so nothing is compiled twice.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import between

STEPS = 60  # quasi-Newton steps at most
CLOSE = 1e-6  # of a domain's width: a smaller step ends the search
NOTHING = 1e-10  # of the worth: a step that promises less is not tried
SHIFT = 2.0**-14  # of a domain's width: the step of a difference, whose error is its square
GRID = 2.0**20  # results are rounded to this share of the width: the same on every processor
NEWTON = (1.0, 0.5, 0.2, 0.05)  # trial lengths, in quasi-Newton steps
STEEPEST = (0.5, 0.2, 0.05, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # trial lengths, in widths
TRIALS = len(NEWTON) + len(STEEPEST)
FAIR = 0.25  # of what the slope promises for a whole step; half of it where the worth is a parabola
Worth = Callable[[Queries], np.ndarray]
Allowed = Callable[[Queries], np.ndarray]


class Coordinates(NamedTuple):
    """The coordinates of K starts that may move, each as a share of its domain's width.

    starts: the K queries. columns: (K, D) column of each coordinate; those of sets with fewer than
    D variables are filled up and not free. free: (K, D). low, high: (K, D) ends of the domains.
    """

    starts: Queries
    columns: np.ndarray
    free: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def shares(self) -> np.ndarray:
        """Return the shares (K, D) of the starts."""
        value = np.take_along_axis(np.asarray(self.starts.value), self.columns, axis=1)
        width = np.where(self.high > self.low, self.high - self.low, 1.0)
        return np.where(self.free, np.clip((value - self.low) / width, 0.0, 1.0), 0.0)

    def queries(self, shares: np.ndarray) -> Queries:
        """Return the queries at shares (K, n, D), in K n rows."""
        many = shares.shape[1]
        mask = np.repeat(np.asarray(self.starts.mask), many, axis=0)
        value = np.repeat(np.asarray(self.starts.value), many, axis=0)
        points = between(self.low[:, None], self.high[:, None], shares)
        rows = np.arange(len(value)).reshape(len(shares), many)
        for place in range(shares.shape[2]):  # columns that fill up do not overwrite others
            moved = np.broadcast_to(self.free[:, None, place], rows.shape)
            column = np.broadcast_to(self.columns[:, None, place], rows.shape)
            value[rows[moved], column[moved]] = points[..., place][moved]
        return Queries(mask, value)


def coordinates(starts: Queries, low: np.ndarray, high: np.ndarray, size: int) -> Coordinates:
    """Return the coordinates of starts that may move; low, high: (p,), equal where one may not.

    size: the number of coordinates D, at least that of any start.
    """
    is_free = np.asarray(starts.mask) & (high > low)
    columns = np.argsort(~is_free, axis=1, kind="stable")[:, :size]
    free = np.take_along_axis(is_free, columns, axis=1)
    return Coordinates(starts, columns, free, low[columns], high[columns])


def ascend(
    worth: Worth,
    allowed: Allowed,
    starts: Queries,
    low: np.ndarray,
    high: np.ndarray,
    size: int,
) -> Queries:
    """Return K queries that are worth no less than the starts, to about 1e-6 of the widths.

    Parameters
    ----------
    worth:
        Function of queries that returns the worth of each, (M,).
    allowed:
        Function of queries that returns which may be proposed, (M,); others are never entered.
    starts:
        K queries that are allowed.
    low, high:
        Ends of all variables' domains, (p,); equal where a variable keeps its value.
    size:
        The largest number of variables that may move at once.
    """
    at = coordinates(starts, low, high, size)
    shares, rows = at.shares(), np.arange(len(starts))
    here, slopes = _look_around(worth, allowed, at, shares)
    curvature = np.broadcast_to(np.eye(shares.shape[1]), (*shares.shape, shares.shape[1])).copy()
    for _ in range(STEPS):
        trials = np.clip(shares[:, None] + _directions(at, shares, slopes, curvature), 0.0, 1.0)
        promised = ((trials[:, 0] - shares) * slopes).sum(axis=1)
        values, after = _look_around(worth, allowed, at, trials[:, 0])
        moved, is_little = trials[:, 0], ~(promised > NOTHING * np.abs(here))
        stays = is_little & ((promised > 0) | (trials == shares[:, None]).all(axis=(1, 2)))
        is_fair = ~stays & (values - here >= FAIR * promised)
        if not (is_fair | stays).all():
            others = np.where(is_fair[:, None, None], trials[:, :1], trials)
            found = _look(worth, allowed, at, np.where(stays[:, None, None], trials[:, :1], others))
            best = found.argmax(axis=1)
            values, moved = found[rows, best], trials[rows, best]
        is_better = ~stays & (values > here)
        moved = np.where(is_better[:, None], moved, shares)
        step, here = moved - shares, np.where(is_better, values, here)
        if not np.abs(step).max(initial=0.0) > CLOSE:
            shares = moved
            break
        if not (is_fair | stays).all():
            after = _look_around(worth, allowed, at, moved)[1]
        after = np.where(is_better[:, None], after, slopes)
        curvature = _update(curvature, step, slopes - after)
        shares, slopes = moved, after
    return _settle(allowed, at, shares)


def _look(worth: Worth, allowed: Allowed, at: Coordinates, points: np.ndarray) -> np.ndarray:
    """Return the worths (K, n) of points (K, n, D), -inf where they may not be proposed."""
    queries = at.queries(points)
    values = np.where(allowed(queries), worth(queries), -np.inf)
    return np.asarray(values.reshape(points.shape[:2]))


def _look_around(
    worth: Worth, allowed: Allowed, at: Coordinates, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the worths (K,) of points (K, D), -inf where not allowed, and their slopes (K, D).

    Slopes are central differences; at the ends of a domain one-sided ones of second order.
    """
    starts, size = shares.shape
    near, far = np.full(shares.shape, SHIFT), np.full(shares.shape, -SHIFT)
    near = np.where(shares > 1 - SHIFT, -SHIFT, near)
    far = np.where(shares < SHIFT, 2 * SHIFT, np.where(shares > 1 - SHIFT, -2 * SHIFT, far))
    moves = np.zeros((starts, 1 + 2 * size, size))
    place = np.arange(size)
    moves[:, 1 + place, place], moves[:, 1 + size + place, place] = near, far
    points = np.clip(shares[:, None] + moves, 0.0, 1.0)
    values = np.asarray(worth(at.queries(points)), float).reshape(points.shape[:2])
    here, around = values[:, 0], values[:, 1:].reshape(starts, 2, size)
    with np.errstate(invalid="ignore"):
        one, two = around[:, 0] - here[:, None], around[:, 1] - here[:, None]
        slopes = (one * far**2 - two * near**2) / (near * far * (far - near))
    slopes = np.where(at.free & np.isfinite(slopes), slopes, 0.0)
    return np.where(allowed(at.queries(shares[:, None])), here, -np.inf), slopes


def _directions(
    at: Coordinates, shares: np.ndarray, slopes: np.ndarray, curvature: np.ndarray
) -> np.ndarray:
    """Return trial steps (K, n, D): quasi-Newton ones, and ones along the gradient.

    Coordinates at an end of their domain that would leave it stay.
    """
    stays = ~at.free | ((shares <= 0) & (slopes < 0)) | ((shares >= 1) & (slopes > 0))
    uphill = np.where(stays, 0.0, slopes)
    newton = np.where(stays, 0.0, (curvature * uphill[:, None, :]).sum(axis=2))
    largest = np.abs(uphill).max(axis=1, keepdims=True, initial=0.0)
    steepest = uphill / np.where(largest > 0, largest, 1.0)
    steps = [length * newton for length in NEWTON] + [length * steepest for length in STEEPEST]
    return np.stack(steps, axis=1)


def _update(curvature: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return the inverse curvatures (K, D, D) of -worth after steps and changes of its slopes.

    They are kept where the worth does not bend downwards along the step.
    """
    product = (step * change).sum(axis=1)
    sizes = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    bends = product > 1e-10 * sizes
    weight = np.where(bends, 1 / np.where(bends, product, 1.0), 0.0)[:, None, None]
    # The first curvature that is seen sets the scale.
    fresh = (curvature == np.eye(step.shape[1])).all(axis=(1, 2)) & bends
    squares = (change**2).sum(axis=1)
    scale = np.where(fresh, product / np.where(squares > 0, squares, 1.0), 1.0)
    scaled = curvature * scale[:, None, None]
    left = np.eye(step.shape[1]) - weight * step[:, :, None] * change[:, None, :]
    updated = left @ scaled @ left.transpose(0, 2, 1) + weight * step[:, :, None] * step[:, None, :]
    return np.where(bends[:, None, None], updated, curvature)


def _settle(allowed: Allowed, at: Coordinates, shares: np.ndarray) -> Queries:
    """Return the queries with rounded shares, where these may be proposed, else as they are."""
    rounded = at.queries((np.round(shares * GRID) / GRID)[:, None])
    plain = at.queries(shares[:, None])
    may = np.asarray(allowed(rounded))[:, None]
    return Queries(plain.mask, np.where(may, np.asarray(rounded.value), np.asarray(plain.value)))
