"""How far are the kernels from each other, and how much of that is Monte-Carlo error?

With f = J d + r, d = theta - mean and r the remainder of the linearization, a covariance is

    Cov(f, f') = Cov(J d, J d') + [Cov(J d, r') + Cov(r, J d')] + Cov(r, r'):

the leading, the mixed and the remainder term.
"""

from collections.abc import Callable, Iterable
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from causal_bo_ppl.errors import ArgumentError, PosteriorError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import PROGRESS_DELAY, as_key, host_generator, read_count
from causal_bo_ppl.kernels.exact import (
    exact_gram,
    remainder_bounds,
    remainder_gram,
)
from causal_bo_ppl.kernels.jacobian import jacobian_gram, posterior_attributes
from causal_bo_ppl.kernels.monte_carlo import (
    DEFAULT_DRAWS,
    LEAST_TAIL_DEGREES,
    MEASURES,
    EffectBatches,
    batch_covariances,
    batch_errors,
    bootstrap_weights,
    centred_effects,
    cut_batches,
    frobenius,
    score_size,
    warn_of_tails,
)
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import split_sets
from causal_bo_ppl.responses import draw_theta, independent_coefficients, response_to_draws

if TYPE_CHECKING:
    import xarray as xr

COMPARED = {
    "jacobian - exact": ("jacobian", "exact"),
    "monte_carlo - exact": ("monte_carlo", "exact"),
    "jacobian - monte_carlo": ("jacobian", "monte_carlo"),
}
TERMS = ("leading", "mixed", "remainder")
FEWEST_DRAWS = 100  # that a comparison needs
LEAST_REMAINDER = 256 * np.finfo(float).eps  # of the terms that an effect is the sum of: rounding
SETS, SCORES = ("left", "right"), ("", "_se", "_z")
Grams = dict[str, np.ndarray]
Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]


class ComparedKernels(NamedTuple):
    """All kernels on one batch of M queries.

    grams: covariances (M, M) by name; without independent equations there is no "exact", and terms
    are known by draws only. batches: draws in batches. weights: multipliers (R, B).
    has_common_draws: whether the Jacobian kernel is made of the same draws. Then errors of the
    linear term are common to both, and only those of the nonlinear part tell them apart.
    has_fourth_moments: whether the effects do, without which Monte-Carlo errors cannot be
    estimated.
    """

    grams: Grams
    batches: EffectBatches
    weights: np.ndarray
    has_common_draws: bool
    has_fourth_moments: bool


class PairComparison(NamedTuple):
    """The comparison of all kernels for the effects of two sets.

    An axis of length 3 holds value, standard error and z-score. errors: {measure: (comparison, 3)}.
    terms: Frobenius norms of the terms by draws, (term, 3). known: the same norms (term,), exact
    where they can be. largest: the largest absolute entry of the remainder. noise: {term: (R,)},
    squared Frobenius norms of Monte-Carlo errors.
    """

    errors: dict[str, np.ndarray]
    terms: np.ndarray
    known: np.ndarray
    largest: float
    noise: dict[str, np.ndarray]


def compare_pair(kernels: ComparedKernels, left: np.ndarray, right: np.ndarray) -> PairComparison:
    """Compare the kernels for two sets of queries, given by their indices."""
    grams = {name: gram[np.ix_(left, right)] for name, gram in kernels.grams.items()}
    covariances = batch_covariances(kernels.batches.columns(left), kernels.batches.columns(right))
    errors = {name: batch_errors(part, kernels.weights) for name, part in covariances.items()}
    drawn = {term: covariances[term].mean(axis=0) for term in TERMS}
    sizes = [float(np.linalg.norm(drawn[term])) for term in TERMS]
    norms = {name: frobenius(part) for name, part in errors.items()}
    terms = _score_terms(kernels, sizes, norms)
    known = terms[:, 0]
    if "exact" in grams:
        known = np.array([np.linalg.norm(grams[term]) for term in TERMS])
    alone = {
        name: {measure: size(errors[name]) for measure, size in MEASURES.items()}
        for name in ("all", "nonlinear")
    }
    compared = compare_grams(kernels, grams, alone)
    largest = float(np.abs(grams.get("remainder", drawn["remainder"])).max())
    squares = {name: norm**2 for name, norm in norms.items()}
    return PairComparison(compared, terms, known, largest, squares)


def compare_grams(
    kernels: ComparedKernels, grams: Grams, errors: dict[str, dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Compare grams with each other, and with what Monte-Carlo error alone gives.

    The result is {measure: (comparison, 3)}; Frobenius norms are relative to the reference. errors:
    {"all" or "nonlinear": {measure: (R,)}}, of whole covariances and of their nonlinear part.
    """
    compared = {name: np.full((len(COMPARED), 3), np.nan) for name in errors["all"]}
    for position, (one, reference) in enumerate(COMPARED.values()):
        if not {one, reference} <= grams.keys():
            continue
        part = "nonlinear" if kernels.has_common_draws and one == "jacobian" else "all"
        is_drawn = "monte_carlo" in (one, reference)
        for name, alone in errors[part].items():
            size = float(MEASURES[name](grams[one] - grams[reference]))
            score = _score(kernels, size, alone) if is_drawn else (0.0, np.nan)
            compared[name][position] = (size, *score)
        scale = np.linalg.norm(grams[reference])
        compared["frobenius"][position, :2] /= scale if scale > 0 else np.nan
    return compared


def _score(kernels: ComparedKernels, size: float, errors: np.ndarray) -> tuple[float, float]:
    """Return the standard error and the z-score of a size."""
    return score_size(size, errors) if kernels.has_fourth_moments else (np.inf, np.nan)


def _score_terms(
    kernels: ComparedKernels, sizes: Iterable[float], errors: dict[str, np.ndarray]
) -> np.ndarray:
    """Return the size of each term with its standard error and z-score, (term, 3)."""
    named = zip(TERMS, sizes, strict=True)
    return np.array([(size, *_score(kernels, size, errors[term])) for term, size in named])


def compare_kernels(
    post: Posterior,
    queries: Queries,
    *,
    draws: int = DEFAULT_DRAWS,
    level: float = 0.95,
    progress: bool = True,
    key: jax.Array | int,
) -> "xr.Dataset":
    """Compare the Jacobian, exact and Monte-Carlo kernels for every pair of intervention sets.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        The effects whose covariances are compared.
    draws:
        How many draws of theta the Monte-Carlo kernel is made of, at least 100.
    level:
        The level of the credible ellipsoid within which a local bound holds.
    progress:
        Whether a progress bar is shown when this takes more than a few seconds.
    key:
        A JAX key or an int seed.

    Returns
    -------
    xr.Dataset
        Over `left` and `right`, the sets in the order of the graph.

        `frobenius` (relative to the reference), `maximum` and `spectral` are the errors of each
        `comparison`. With `_se` they are the root mean square that Monte-Carlo error alone would
        give, infinite where tails are too heavy; with `_z`, by how many sds the error exceeds what
        Monte-Carlo error gives (nearly normal, so that 4 is rare). An error without Monte-Carlo
        part has `_se` 0 and no z. Errors are NaN where there is no exact kernel, and relative ones
        where the reference is 0.

        `size` is the Frobenius norm of each `term` of Cov(f, f'), exact where equations are
        independent. With d = theta - mean and r the remainder of the linearization, the terms are
        leading, Cov(J d, J d'); mixed, Cov(J d, r') + Cov(r, J d'); and remainder, Cov(r, r').
        `drawn`, `drawn_se` and `drawn_z` are the same by draws, always.

        `remainder_maximum` is the largest |Cov(r, r')|, and `bound` the paper's bound on it.
        `bound_kind` is "rigorous", "if theta were Gaussian", or "local" (of `level`), where the
        bound need not hold.

        `overall_frobenius`, `overall_size` and `overall_drawn` are of all sets together;
        `observations` is the number of observations of the posterior.

    Raises
    ------
    ArgumentError
        If there is no query, or an option has a wrong value.
    PosteriorError
        If the posterior has too few draws.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(100, 0))
    >>> found = cb.compare_kernels(post, system.problem.vertices(), key=0)
    >>> bool(found.overall_frobenius.sel(comparison="jacobian - exact") < 0.1)
    True
    """
    import xarray as xr

    post = require_trusted(post)
    queries = post.problem.require(queries)
    draws = read_count("draws", draws, FEWEST_DRAWS)
    sets = split_sets(post.problem, queries)
    if not len(queries):
        raise ArgumentError("there is nothing to compare: give at least one query")
    bounds, kinds = remainder_bounds(post, queries, sets, level)
    kernels = _kernels(post, queries, draws, as_key(key))
    warn_of_tails(post)
    bar = {"desc": "comparing kernels", "unit": "pair", "delay": PROGRESS_DELAY, "leave": False}
    both = list(
        combinations_with_replacement(range(len(sets.indices)), 2)
    )  # the others by symmetry
    pairs = {
        (left, right): compare_pair(kernels, sets.indices[left], sets.indices[right])
        for left, right in tqdm(both, disable=not progress, **bar)
    }
    variables = _by_pair(pairs, len(sets.labels)) | _overall(kernels, pairs)
    variables |= {"bound": (SETS, bounds), "bound_kind": (SETS, kinds)}
    labels = list(sets.labels)
    coordinates = {"left": labels, "right": labels, "comparison": list(COMPARED)}
    coordinates["term"] = list(TERMS)
    attributes = posterior_attributes(post) | {
        "parameters": post.kind,
        "moments_by": post.moments_by,
        "reference": "exact" if "exact" in kernels.grams else "monte_carlo",
        "batches": len(kernels.batches.linear),
        "level": level,
    }
    return xr.Dataset(variables, coordinates | {"observations": post.n_observations}, attributes)


def _kernels(post: Posterior, queries: Queries, draws: int, key: jax.Array) -> ComparedKernels:
    for_theta, for_weights = jax.random.split(key)
    theta, chains = draw_theta(post, draws, for_theta)
    if len(theta) < FEWEST_DRAWS:
        raise PosteriorError(
            f"a comparison needs at least {FEWEST_DRAWS} draws, the posterior has {len(theta)}; "
            "draw longer"
        )
    effects = centred_effects(post, theta, queries, 0).values
    linear, errors = _split(post, theta, queries, effects)
    batches = EffectBatches(cut_batches(linear, chains), cut_batches(errors, chains))
    grams = {"jacobian": np.asarray(jacobian_gram(post, queries).gram)}
    grams["monte_carlo"] = effects.T @ effects / (len(effects) - 1)
    if independent_coefficients(post) is not None:
        grams |= _exact(post, queries, grams["jacobian"])
    chain_draws = post.distribution.chains
    is_common = chain_draws is not None and len(theta) == chain_draws[..., 0].size
    weights = bootstrap_weights(len(batches.linear), host_generator(for_weights))
    has_fourth = post.distribution.tail_degrees > LEAST_TAIL_DEGREES
    return ComparedKernels(grams, batches, weights, is_common, has_fourth)


def _split(
    post: Posterior, theta: np.ndarray, queries: Queries, effects: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the centred linearized effects (S, M), and the linearization errors, (S, M).

    These count as 0 where they are no more than rounding.
    """
    values, jacobian = map(np.asarray, response_to_draws(post).linearize(post.mean, queries))
    linear = (theta - post.mean) @ jacobian.T
    linear -= linear.mean(axis=0)
    errors = effects - linear
    # The size of the terms that each effect is the sum of.
    scale = np.abs(values) + np.abs(theta).max(axis=0) @ np.abs(jacobian).T
    errors[:, np.abs(errors).max(axis=0) <= LEAST_REMAINDER * scale] = 0.0
    return linear, errors


def _exact(post: Posterior, queries: Queries, linear: np.ndarray) -> dict[str, np.ndarray]:
    """Return the exact kernel and its terms, by name.

    Where effects are linear in theta, there is no linearization error.
    """
    exact = np.asarray(exact_gram(post, queries).gram)
    zero = np.zeros(exact.shape)
    is_linear = post.distribution.response.is_linear
    leading, remainder = (exact, zero) if is_linear else (linear, remainder_gram(post, queries))
    return {"exact": exact, "leading": leading, "mixed": zero, "remainder": remainder}


def _by_pair(pairs: dict[tuple[int, int], PairComparison], count: int) -> Variables:
    """Return the variables over both sets, from pairs of which the earlier set comes first."""

    def grid(pick: Callable[[PairComparison], Any]) -> np.ndarray:
        cells = [[pick(pairs[min(i, j), max(i, j)]) for j in range(count)] for i in range(count)]
        return np.moveaxis(np.array(cells), (0, 1), (-2, -1))

    found: Variables = {"size": (("term", *SETS), grid(lambda pair: pair.known))}
    for position, part in enumerate(SCORES):
        found[f"drawn{part}"] = (("term", *SETS), grid(lambda pair: pair.terms[:, position]))  # noqa: B023
        for name in pairs[0, 0].errors:
            found[name + part] = (
                ("comparison", *SETS),
                grid(lambda pair: pair.errors[name][:, position]),  # noqa: B023
            )
    return found | {"remainder_maximum": (SETS, grid(lambda pair: pair.largest))}


def _overall(kernels: ComparedKernels, pairs: dict[tuple[int, int], PairComparison]) -> Variables:
    """Return the variables of all sets together.

    Squares are summed over pairs, those of two different sets twice.
    """

    def total(pick: Callable[[PairComparison], Any]) -> np.ndarray:
        counted = ((1 + (left != right)) * pick(pair) for (left, right), pair in pairs.items())
        return np.asarray(np.sqrt(sum(counted)))

    alone = {name: total(lambda pair: pair.noise[name]) for name in pairs[0, 0].noise}  # noqa: B023
    known = {name: {"frobenius": alone[name]} for name in ("all", "nonlinear")}
    errors = compare_grams(kernels, kernels.grams, known)["frobenius"]
    drawn = total(lambda pair: pair.terms[:, 0] ** 2)
    scored = _score_terms(kernels, drawn, alone)
    found: Variables = {"overall_size": (("term",), total(lambda pair: pair.known**2))}
    for position, part in enumerate(SCORES):
        found[f"overall_frobenius{part}"] = (("comparison",), errors[:, position])
        found[f"overall_drawn{part}"] = (("term",), scored[:, position])
    return found
