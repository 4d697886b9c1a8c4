"""Is this matrix a covariance, and what are its eigenvalues?"""

from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError, NumericalError
from causal_bo_ppl.kernels import KernelEstimate
from causal_bo_ppl.theory.inputs import read_array, read_noise, require_finite

ROUNDING = 1e-10  # of the trace: sums of thousands of products, and differences of such, keep this many digits


def spectrum(gram: Any, noise: Any = 1.0) -> np.ndarray:
    """(T,) eigenvalues of D^-1/2 K D^-1/2, D the variances of the noise, largest first; a rounded zero is 0.

    gram: (T, T), or the record of a kernel.
    """
    matrix = _read_gram(gram)
    root = np.sqrt(read_noise(noise, len(matrix)))
    with np.errstate(over="ignore"):
        scaled = require_finite("the gram over the noise", matrix / root[:, None] / root[None, :])
    sizes = np.linalg.eigvalsh(scaled)[::-1]
    allowed = ROUNDING * float(np.abs(sizes).sum())
    if not (sizes >= -allowed).all():
        raise NumericalError(
            f"this gram is no covariance: it has the eigenvalue {sizes[-1]:.3g}, the largest is {sizes[0]:.3g}; "
            "compute it from features, whose products cannot be negative"
        )
    return np.asarray(np.maximum(sizes, 0.0))


def _read_gram(gram: Any) -> np.ndarray:
    found = read_array("a gram", gram.gram if isinstance(gram, KernelEstimate) else gram)
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        raise ModelError(f"a gram needs the shape (T, T), the same queries on both sides; got {found.shape}")
    require_finite("the gram", found)
    gap = np.abs(found - found.T)
    if not (gap <= ROUNDING * np.abs(found).max(initial=0.0)).all():
        row, column = np.unravel_index(gap.argmax(), gap.shape)
        raise ModelError(
            f"a gram is symmetric, this one holds {found[row, column]:g} at ({row}, {column}) and "
            f"{found[column, row]:g} at ({column}, {row}); take the same queries on both sides"
        )
    return np.asarray((found + found.T) / 2)
