"""How much information can T outcomes carry at most, by the kernel's rank alone?"""

from typing import Any

import numpy as np

from causal_bo_ppl.theory.inputs import read_count, read_share, read_size
from causal_bo_ppl.theory.ranks import leading
from causal_bo_ppl.theory.spectra import spectrum


def information_gain_bound(rank: int, T: int, kappa2: float, noise: float) -> float:
    """gamma_T <= r/2 log(1 + T kappa^2 / (s2 r)): T outcomes, k(z, z) <= kappa^2, noise of variance s2; 0 for rank 0.

    It grows with the rank, so r_causal in place of dim theta_Y is never worse.

    Examples
    --------
    >>> round(information_gain_bound(2, 320, 7.33, 1.0), 2)
    7.07
    """
    rank, rounds = read_count("rank", rank, 0), read_count("T", T, 0)
    largest, noise = read_size("kappa2", kappa2, positive=False), read_size("noise", noise)
    return float(rank / 2 * np.log1p(rounds * largest / (noise * rank))) if rank else 0.0


def effective_gain_bound(gram: Any, noise: Any, *, share: float = 0.99) -> float:
    """1/2 logdet(I + K/s2) <= r/2 log(1 + kept / (s2 r)) + discarded / (2 s2), r the effective rank of K.

    kept: what the r largest eigenvalues sum to; discarded: the rest of the trace. The first term is Jensen's
    inequality, the second log(1 + x) <= x. With (T,) variances K is taken in their units, D^-1/2 K D^-1/2.
    """
    sizes = spectrum(gram, noise)
    rank = leading(sizes, read_share("share", share))
    return float(rank / 2 * np.log1p(sizes[:rank].sum() / rank) + sizes[rank:].sum() / 2) if rank else 0.0
