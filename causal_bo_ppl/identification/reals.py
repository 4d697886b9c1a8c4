"""Gaussian potentials in floating point: by NumPy at once, or by JAX, compiled and differentiated.

Leading axes are a batch. Where an integral diverges the potential is NaN.
"""

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from causal_bo_ppl.identification.potentials import Places, split, spread, union
from causal_bo_ppl.linalg import invert_definite

LOG_TWO_PI = math.log(2 * math.pi)


class Potential(NamedTuple):
    """exp(constant + information'v - v' precision v / 2) over the variables v at `places`."""

    places: Places
    precision: Any
    information: Any
    constant: Any


class Reals(NamedTuple):
    """A Gaussian: mean (..., p) and covariance (..., p, p), both of NumPy or both of JAX."""

    mean: Any
    covariance: Any

    def marginal(self, places: Places) -> Potential:
        """Log N(v; mean, covariance) of some variables."""
        at = list(places)
        mean, block = self.mean[..., at], self.covariance[..., at, :][..., :, at]
        inverse, log_determinant = invert_definite(block)
        information = (inverse @ mean[..., None])[..., 0]
        constant = -(len(at) * LOG_TWO_PI + log_determinant + (mean * information).sum(-1)) / 2
        return Potential(places, inverse, information, constant)

    def combine(self, pieces: Iterable[Potential], signs: Iterable[int]) -> Potential:
        """Sums and differences of potentials."""
        pieces, signs = list(pieces), list(signs)
        places = union(piece.places for piece in pieces)
        wide = [on_places(piece, places) for piece in pieces]

        def add(values: Iterable[Any]) -> Any:
            return sum(sign * value for sign, value in zip(signs, values, strict=True))

        return Potential(places, *(add(parts) for parts in zip(*(piece[1:] for piece in wide), strict=True)))

    def integrate(self, piece: Potential, places: Collection[int]) -> Potential:
        """Schur complement; the mass goes into the constant."""
        kept, gone, stay = split(piece.places, places)
        precision, pull = piece.precision, piece.information[..., gone]
        inverse, log_determinant = invert_definite(precision[..., gone[:, None], gone])
        cross = precision[..., stay[:, None], gone]
        centre = (inverse @ pull[..., None])[..., 0]
        return Potential(
            kept,
            precision[..., stay[:, None], stay] - cross @ inverse @ cross.swapaxes(-1, -2),
            piece.information[..., stay] - (cross @ centre[..., None])[..., 0],
            piece.constant + (len(gone) * LOG_TWO_PI - log_determinant + (pull * centre).sum(-1)) / 2,
        )


def on_places(piece: Potential, places: Places) -> Potential:
    """The same potential over more variables, on which it does not depend."""
    if piece.places == places:
        return piece
    if isinstance(piece.precision, np.ndarray):
        at, batch = np.searchsorted(places, piece.places), piece.information.shape[:-1]
        precision, information = np.zeros((*batch, len(places), len(places))), np.zeros((*batch, len(places)))
        precision[..., at[:, None], at], information[..., at] = piece.precision, piece.information
        return Potential(places, precision, information, piece.constant)
    put = spread(piece.places, places).astype(float)
    return Potential(places, put.T @ piece.precision @ put, piece.information @ put, piece.constant)
