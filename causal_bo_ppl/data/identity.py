"""Are these the rows of this problem, and the same rows as before?

The digest of rows is a sum of hashes of the rows, modulo 2^256: the same in any order, and that of
joined tables is the sum of theirs. It recognizes rows that were changed, lost or repeated by
accident; it is no protection against somebody who looks for other rows with the same digest.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from causal_bo_ppl.data.data import Data, Posed
from causal_bo_ppl.errors import DataError, listed

LANES = 4  # hashes of 64 bits for every row
NUMBERS = 2**18  # numbers hashed at once: they stay in the processor's cache
SEED = 20021
Words = np.ndarray  # of uint64, in which sums and products are modulo 2^64


def digest(rows: Data) -> int:
    """Return a sum of the hashes of all rows: the same in any order, and of parts the sum.

    A row is the bits of its values, and one bit for each variable that says whether it was set.
    Every word w_c of these is scrambled by itself, and lane l of the row's hash is the scrambled
    sum over c of w_c k_cl, with fixed odd numbers k_cl.
    """
    total = 0
    step = max(1, NUMBERS // len(rows.nodes))
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        total += _sum_of_hashes(
            [*rows.values[block].view(np.uint64).T, *_bits(rows.intervened[block])]
        )
    return total % 2**256


def _bits(marks: np.ndarray) -> Words:
    """Return marks (n, p) as words (ceil(p / 64), n), one bit for each mark."""
    bits = np.packbits(marks, axis=1, bitorder="little")
    padded = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))))
    return padded.view("<u8").astype(np.uint64).T


@lru_cache(maxsize=64)
def _constants(width: int) -> tuple[Words, Words]:
    """Return what is added to every word (w,), and the factors of every lane (w, LANES)."""
    draws = np.random.default_rng(SEED)
    shifts, factors = (
        draws.integers(2**63, size=shape, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        for shape in (width, (width, LANES))
    )
    return shifts, factors


def _sum_of_hashes(columns: Sequence[Words]) -> int:
    """Return the sum of the hashes of n rows, given as columns of n words."""
    shifts, factors = _constants(len(columns))
    words = [_scramble(column + shift) for column, shift in zip(columns, shifts, strict=True)]
    total = 0
    for lane in range(LANES):
        hashes = np.zeros(len(words[0]), np.uint64)
        for word, factor in zip(words, factors[:, lane], strict=True):
            hashes += word * factor
        hashes = _scramble(hashes)
        high, low = hashes >> np.uint64(32), hashes & np.uint64(2**32 - 1)
        total += ((int(high.sum()) << 32) + int(low.sum())) << (64 * lane)
    return total


def _scramble(words: Words) -> Words:
    """Make every bit of the words depend on all bits, by the last steps of SplitMix64.

    The words are changed in place, and returned.
    """
    shifted = np.empty_like(words)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        words ^= shifted
        words *= np.uint64(factor)
    return words


def require_rows_of(problem: Posed, rows: Data) -> None:
    """Refuse rows of another graph."""
    if (rows.nodes, rows.target) != (problem.graph.nodes, problem.target):
        raise DataError(
            f"the rows are of {listed(rows.nodes)} with the target {rows.target!r}, the problem "
            f"has {listed(problem.graph.nodes)} and {problem.target!r}; read them for this problem"
        )
