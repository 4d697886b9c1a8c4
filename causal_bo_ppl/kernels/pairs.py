"""What do all kernels say about two intervention sets, and what of their difference is Monte-Carlo error?"""

from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from causal_bo_ppl.kernels.blocks import MEASURES, Parts, frobenius, noise, products, score
from causal_bo_ppl.kernels.sets import Sets

PATIENCE = 3.0  # seconds without a progress bar
COMPARED = {
    "jacobian - exact": ("jacobian", "exact"),
    "monte_carlo - exact": ("monte_carlo", "exact"),
    "jacobian - monte_carlo": ("jacobian", "monte_carlo"),
}
TERMS = ("leading", "mixed", "remainder")
Grams = dict[str, np.ndarray]


class Kernels(NamedTuple):
    """All kernels on one batch.

    grams: (M, M) by name; without independent equations there is no "exact", and terms are known by draws only.
    parts: draws in batches. weights: (R, B) multipliers. common: is the Jacobian kernel made of the same draws? Then
    errors of the linear term are common to both, and only those of what is curved tell them apart. light: have the
    effects fourth moments, without which Monte-Carlo errors cannot be estimated?
    """

    grams: Grams
    parts: Parts
    weights: np.ndarray
    common: bool
    light: bool


class Pair(NamedTuple):
    """Of two sets. In the last axis: value, standard error, z-score.

    errors: {measure: (comparison, 3)}. terms: (term, 3), Frobenius norms by draws. known: (term,) the same, exact where
    it can be. largest: entry of the remainder. noise: {term: (R,)} squared Frobenius norms of Monte-Carlo errors.
    """

    errors: dict[str, np.ndarray]
    terms: np.ndarray
    known: np.ndarray
    largest: float
    noise: dict[str, np.ndarray]


def compare_sets(kernels: Kernels, sets: Sets) -> dict[tuple[int, int], Pair]:
    """Every pair of sets, the earlier one first: covariances are symmetric."""
    pairs = [(left, right) for left in range(len(sets.rows)) for right in range(left, len(sets.rows))]
    shown = tqdm(pairs, desc="comparing kernels", unit="pair", delay=PATIENCE, leave=False)
    return {(left, right): compare_pair(kernels, sets.rows[left], sets.rows[right]) for left, right in shown}


def compare_pair(kernels: Kernels, left: np.ndarray, right: np.ndarray) -> Pair:
    """Two sets of queries, given by their rows."""
    grams = {name: gram[np.ix_(left, right)] for name, gram in kernels.grams.items()}
    batches = products(kernels.parts.columns(left), kernels.parts.columns(right))
    errors = {name: noise(each, kernels.weights) for name, each in batches.items()}
    drawn = {term: batches[term].mean(axis=0) for term in TERMS}
    sizes = {term: float(np.linalg.norm(drawn[term])) for term in TERMS}
    norms = {name: frobenius(each) for name, each in errors.items()}
    terms = np.array([(sizes[term], *judge(kernels, sizes[term], norms[term])) for term in TERMS])
    known = terms[:, 0] if "exact" not in grams else np.array([np.linalg.norm(grams[term]) for term in TERMS])
    alone = {name: {each: size(errors[name]) for each, size in MEASURES.items()} for name in ("all", "curved")}
    compared = compare_grams(kernels, grams, alone)
    largest = float(np.abs(grams.get("remainder", drawn["remainder"])).max())
    return Pair(compared, terms, known, largest, {name: norm**2 for name, norm in norms.items()})


def compare_grams(kernels: Kernels, grams: Grams, errors: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """{measure: (comparison, 3)} against what Monte-Carlo error alone gives; Frobenius norms are relative.

    errors: {"all" or "curved": {measure: (R,)}}, of whole covariances and of what linearization misses.
    """
    found = {name: np.full((len(COMPARED), 3), np.nan) for name in errors["all"]}
    for place, (one, reference) in enumerate(COMPARED.values()):
        if not {one, reference} <= grams.keys():
            continue
        part = "curved" if kernels.common and one == "jacobian" else "all"
        for name, alone in errors[part].items():
            size = float(MEASURES[name](grams[one] - grams[reference]))
            drawn = "monte_carlo" in (one, reference)
            found[name][place] = size, *(judge(kernels, size, alone) if drawn else (0.0, np.nan))
        scale = np.linalg.norm(grams[reference])
        found["frobenius"][place, :2] /= scale if scale > 0 else np.nan
    return found


def judge(kernels: Kernels, size: float, errors: np.ndarray) -> tuple[float, float]:
    """Standard error and z-score of a size."""
    return score(size, errors) if kernels.light else (np.inf, np.nan)
