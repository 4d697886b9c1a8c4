"""How far are the kernels from each other, and what of it is Monte-Carlo error?"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.kernels.blocks import Parts, cut, multipliers
from causal_bo_ppl.kernels.curvature import remainder_bounds
from causal_bo_ppl.kernels.estimates import require_trusted
from causal_bo_ppl.kernels.exact import exact_gram, left_out_gram
from causal_bo_ppl.kernels.jacobian import jacobian_gram
from causal_bo_ppl.kernels.monte_carlo import DRAWS, HEAVY, centred_effects, draw_theta, tail_degrees, warn_of_tails
from causal_bo_ppl.kernels.pairs import COMPARED, TERMS, Kernels, Pair, compare_grams, compare_sets, judge
from causal_bo_ppl.kernels.sets import split_sets
from causal_bo_ppl.keys import as_key, host_generator
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.posterior.equations import Equations
from causal_bo_ppl.posterior.sampled import Sampled
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.responses import response

if TYPE_CHECKING:
    import xarray as xr

LEAST = 100  # draws
ROUNDING = 256 * np.finfo(float).eps  # of the terms of an effect
SETS, PARTS = ("left", "right"), ("", "_se", "_z")
Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]


def compare_kernels(
    post: Posterior,
    queries: Queries,
    *,
    draws: int = DRAWS,
    level: float = 0.95,
    key: jax.Array | int,
    accept_unconverged: bool = False,
) -> "xr.Dataset":
    """Compare the Jacobian, exact and Monte-Carlo kernels for every pair of intervention sets.

    Returns
    -------
    Dataset over `left` and `right`, sets in the order of the graph.
        `frobenius` (relative to the reference), `maximum` and `spectral` error of each `comparison`. With `_se`: the
        root mean square that Monte-Carlo error alone would give; with `_z`: by how many sds the error exceeds what that
        gives (nearly normal: 4 is rare). An error without Monte-Carlo part has `_se` 0 and no z. NaN where there is no
        exact kernel, and of a relative error where the reference is 0. `_se` is infinite where tails are too heavy.
        `size` of each `term` of Cov(f, f'): leading Cov(J d, J d'), mixed Cov(J d, r') + Cov(r, J d') and remainder
        Cov(r, r'), d = theta - mean, r what linearization misses; Frobenius norms, exact where equations are
        independent. `drawn`, `drawn_se` and `drawn_z`: the same by draws, always.
        `remainder_maximum`: the largest |Cov(r, r')|. `bound`: the paper's on it, and `bound_kind`: "rigorous", "if
        theta were Gaussian", or "local" (of `level`), where it need not hold.
        `overall_frobenius`, `overall_size` and `overall_drawn` are of all sets together. `rows`: of the posterior.
    """
    import xarray as xr

    post = require_trusted(post, accept_unconverged)
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < LEAST:
        raise ModelError(f"a comparison needs a whole number of draws, at least {LEAST}; got {draws!r}")
    sets = split_sets(post.problem, queries)
    if not len(queries):
        raise ModelError("there is nothing to compare: give at least one query")
    bounds = remainder_bounds(post, queries, sets, level)
    kernels = _kernels(post, queries, int(draws), as_key(key))
    warn_of_tails(post)
    pairs = compare_sets(kernels, sets)
    found = _by_pair(pairs, len(sets.labels)) | _overall(kernels, pairs)
    found |= {"bound": (SETS, bounds.bounds), "bound_kind": (SETS, bounds.kinds)}
    labels = list(sets.labels)
    coordinates = {"left": labels, "right": labels, "comparison": list(COMPARED), "term": list(TERMS)}
    return xr.Dataset(found, coordinates | {"rows": post.rows}, _attributes(post, kernels, level))


def _kernels(post: Posterior, queries: Queries, draws: int, key: jax.Array) -> Kernels:
    for_theta, for_weights = jax.random.split(key)
    theta, chains = draw_theta(post, draws, for_theta)
    if len(theta) < LEAST:
        raise ModelError(f"a comparison needs at least {LEAST} draws, the posterior has {len(theta)}; draw longer")
    effects = centred_effects(post, theta, queries, 0).values
    linear, missed = _split(post, theta, queries, effects)
    parts = Parts(cut(linear, chains), cut(missed, chains))
    grams = {"jacobian": np.asarray(jacobian_gram(post, queries, accept_unconverged=True).gram)}
    grams["monte_carlo"] = effects.T @ effects / (len(effects) - 1)
    if isinstance(post.belief, Equations):
        grams |= _exact(post, queries, grams["jacobian"])
    common = isinstance(post.belief, Sampled) and len(theta) == post.belief.theta[..., 0].size
    weights = multipliers(len(parts.linear), host_generator(for_weights))
    return Kernels(grams, parts, weights, common, tail_degrees(post) > HEAVY)


def _split(post: Posterior, theta: np.ndarray, queries: Queries, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(S, M) centred linearized effects, and what they miss; rounding is nothing."""
    values, jacobian = map(np.asarray, response(post.problem, post).linearize(post.mean, queries))
    linear = (theta - post.mean) @ jacobian.T
    linear -= linear.mean(axis=0)
    missed = effects - linear
    scale = np.abs(values) + np.abs(theta).max(axis=0) @ np.abs(jacobian).T  # what effects are sums of
    missed[:, np.abs(missed).max(axis=0) <= ROUNDING * scale] = 0.0
    return linear, missed


def _exact(post: Posterior, queries: Queries, linear: np.ndarray) -> dict[str, np.ndarray]:
    """The exact kernel and its terms; where effects are linear in theta, nothing is left out."""
    exact = np.asarray(exact_gram(post, queries).gram)
    nothing = np.zeros(exact.shape)
    if post.parameters.kind != "structural":
        return {"exact": exact, "leading": exact, "mixed": nothing, "remainder": nothing}
    return {"exact": exact, "leading": linear, "mixed": nothing, "remainder": left_out_gram(post, queries)}


def _by_pair(pairs: dict[tuple[int, int], Pair], count: int) -> Variables:
    """Variables over both sets, from pairs of which the earlier set comes first."""

    def grid(pick: Callable[[Pair], Any]) -> np.ndarray:
        cells = [[pick(pairs[min(i, j), max(i, j)]) for j in range(count)] for i in range(count)]
        return np.moveaxis(np.array(cells), (0, 1), (-2, -1))

    found: Variables = {"size": (("term", *SETS), grid(lambda pair: pair.known))}
    for place, part in enumerate(PARTS):
        found[f"drawn{part}"] = (("term", *SETS), grid(lambda pair: pair.terms[:, place]))  # noqa: B023
        for name in pairs[0, 0].errors:
            found[name + part] = (("comparison", *SETS), grid(lambda pair: pair.errors[name][:, place]))  # noqa: B023
    return found | {"remainder_maximum": (SETS, grid(lambda pair: pair.largest))}


def _overall(kernels: Kernels, pairs: dict[tuple[int, int], Pair]) -> Variables:
    """Of all sets together: squares are summed over pairs, those of different sets twice."""

    def total(pick: Callable[[Pair], Any]) -> np.ndarray:
        return np.asarray(np.sqrt(sum((1 + (left != right)) * pick(pair) for (left, right), pair in pairs.items())))

    alone = {name: total(lambda pair: pair.noise[name]) for name in pairs[0, 0].noise}  # noqa: B023
    known = {name: {"frobenius": alone[name]} for name in ("all", "curved")}
    errors = compare_grams(kernels, kernels.grams, known)["frobenius"]
    drawn = total(lambda pair: pair.terms[:, 0] ** 2)
    scored = np.array([(size, *judge(kernels, size, alone[term])) for term, size in zip(TERMS, drawn, strict=True)])
    found: Variables = {"overall_size": (("term",), total(lambda pair: pair.known**2))}
    for place, part in enumerate(PARTS):
        found[f"overall_frobenius{part}"] = (("comparison",), errors[:, place])
        found[f"overall_drawn{part}"] = (("term",), scored[:, place])
    return found


def _attributes(post: Posterior, kernels: Kernels, level: float) -> dict[str, Any]:
    return {
        "target": post.problem.target,
        "method": post.method,
        "parameters": post.parameters.kind,
        "moments_by": post.moments_by,
        "verdict": post.verdict,
        "reference": "exact" if "exact" in kernels.grams else "monte_carlo",
        "batches": len(kernels.parts.linear),
        "level": level,
    }
