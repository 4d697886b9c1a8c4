"""How well does the Gaussian stand in for a posterior, as a proposal for importance sampling?

Where equations are independent their coefficients' density is known, Student's t for each; elsewhere the ratio is that
of the whole model, disturbances and latent causes included.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.equations import Equations
from causal_bo_ppl.inference.laplace import Laplace
from causal_bo_ppl.inference.linear_model import LinearModel
from causal_bo_ppl.inference.nuts import Sampled, flat_potential
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.linear.density import Shape

FLAT = 1e-9  # spread of the log ratios below which the Gaussian is exact
EQUAL = 0.05  # share lost below which the tail of the weights does not matter
PROPOSALS = 4  # for each draw resampled
ENOUGH = 50  # draws for every dimension of a covariance that is estimated from them
TOO_FEW = "too few draws for a covariance"
UNKNOWN_DENSITY = "no density of the estimands is known"


class Importance(NamedTuple):
    """pareto_k: tail of the ratios; NaN where they cannot be had. lost: share of the draws that the weights cost.

    over: what the ratios are densities of. weights: (n,), summing to 1.
    """

    pareto_k: float
    lost: float
    over: str
    weights: np.ndarray


def importance(post: Posterior, draws: int, key: jax.Array) -> Importance:
    """Of N(mean, covariance) for the posterior."""
    belief = post.belief
    if isinstance(belief, Sampled) and len(belief.models.noises) < ENOUGH * belief.model.dimension:
        return Importance(np.nan, np.nan, TOO_FEW, np.full(draws, 1 / draws))
    found = _log_ratios(post, draws, host_generator(key))
    if found is None:
        return Importance(np.nan, np.nan, UNKNOWN_DENSITY, np.full(draws, 1 / draws))
    return weigh(*found)


def weigh(ratios: np.ndarray, over: str) -> Importance:
    """Smooth the weights by PSIS; over: what the log ratios (n,) are of."""
    if np.ptp(ratios) < FLAT:
        return Importance(
            -np.inf, 0.0, f"{over}: exactly Gaussian", np.full(len(ratios), 1 / len(ratios))
        )
    from arviz_stats.base import array_stats

    logs, pareto_k = array_stats.psislw(-ratios)  # it takes the negative
    weights = np.exp(logs)
    lost = 1 - 1 / (weights**2).sum() / len(ratios)
    return Importance(
        float(pareto_k),
        float(lost),
        f"{over}: weights are practically equal" if lost < EQUAL else over,
        weights,
    )


def resampled(belief: Laplace, draws: int, key: jax.Array) -> tuple[np.ndarray, Importance]:
    """Draws (n, d) of theta_Y from the density that a Laplace approximation stands for, and the weights used.

    Gaussian draws in all coordinates of the model, weighted, then chosen systematically in proportion to their weights.
    """
    generator = host_generator(key)
    z = generator.standard_normal((PROPOSALS * draws, len(belief.mode)))
    flat = belief.mode + z @ belief.factor.T
    found = weigh(0.5 * (z**2).sum(axis=1) - _energies(belief.model, flat), "the whole model")
    places = (generator.uniform() + np.arange(draws)) / draws
    chosen = np.minimum(np.searchsorted(np.cumsum(found.weights), places), len(flat) - 1)
    return belief.model.readout.read(belief.model.models(flat[chosen]).matrices), found


def _log_ratios(
    post: Posterior, draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, str] | None:
    belief = post.belief
    if isinstance(belief, Equations):
        root = (
            np.sqrt(np.where(belief.needed, belief.posterior.variance, 0.0))[:, None, None]
            * belief.posterior.root
        )
        used = np.nonzero((belief.causes >= 0) & belief.needed[:, None])
        z = generator.standard_normal((draws, *belief.causes.shape)) * (belief.causes >= 0)
        proposed = belief.posterior.mean + np.einsum("ekl,nel->nek", root, z)
        return _students(belief, proposed) + 0.5 * (z[:, used[0], used[1]] ** 2).sum(
            axis=1
        ), "coefficients"
    if not isinstance(belief, Sampled):
        return None
    if not belief.model.shape.arcs and not len(belief.model.outcomes.values):
        return _of_coefficients(belief, draws, generator), "coefficients"
    return _of_model(belief, draws, generator), "the whole model"


def _students(equations: Equations, coefficients: np.ndarray) -> np.ndarray:
    """(n,) log density of coefficients (n, E, D), up to a constant."""
    found, used = equations.posterior, equations.causes >= 0
    gaps = (coefficients - found.mean)[:, equations.needed]
    padded = (
        found.root[equations.needed] + np.eye(used.shape[1]) * ~used[equations.needed][:, None, :]
    )
    square = (np.einsum("ekl,nel->nek", np.linalg.inv(padded), gaps) ** 2).sum(axis=-1)
    shape, rate = found.shape[equations.needed], found.rate[equations.needed]
    if np.isinf(shape).all():
        return np.asarray(-0.5 * (square / found.variance[equations.needed]).sum(axis=1))
    power = shape + used[equations.needed].sum(axis=1) / 2
    return np.asarray(-(power * np.log1p(square / (2 * rate))).sum(axis=1))


def _of_coefficients(belief: Sampled, draws: int, generator: np.random.Generator) -> np.ndarray:
    equations, places = belief.model.equations, belief.model.shape.places
    found = belief.models.matrices[:, *places]
    centre, root = (
        found.mean(axis=0),
        np.linalg.cholesky(np.cov(found.T).reshape(found.shape[1], -1)),
    )
    z = generator.standard_normal((draws, len(centre)))
    used = np.nonzero((equations.causes >= 0) & equations.needed[:, None])
    proposed = np.zeros((draws, *equations.causes.shape)) + equations.posterior.mean
    proposed[:, used[0], used[1]] = centre + z @ root.T
    return np.asarray(_students(equations, proposed) + 0.5 * (z**2).sum(axis=1))


def _of_model(belief: Sampled, draws: int, generator: np.random.Generator) -> np.ndarray:
    """In coordinates in which the coefficients are linear."""
    model = replace(belief.model, follows=False)
    flat = _unfollowed(belief.model, belief.chains.flat.reshape(-1, model.dimension))
    centre, root = flat.mean(axis=0), np.linalg.cholesky(np.cov(flat.T))
    z = generator.standard_normal((draws, model.dimension))
    return np.asarray(0.5 * (z**2).sum(axis=1) - _energies(model, centre + z @ root.T))


def _energies(model: LinearModel, flat: np.ndarray) -> np.ndarray:
    return np.asarray(
        in_pieces(partial(_potentials, model.shape, model.arguments), flat, len(flat))
    )


def _unfollowed(model: LinearModel, flat: np.ndarray) -> np.ndarray:
    """Coordinates with a constant scale instead of the disturbances' own."""
    shape, chart = model.shape, model.arguments[0]
    if shape.known_noise:
        return flat
    count = int(shape.used.sum())
    scales = flat[:, count : count + len(shape.equations)] * chart.sd_width
    equation = np.nonzero(shape.used)[0]
    return np.concatenate([flat[:, :count] * np.exp(scales)[:, equation], flat[:, count:]], axis=1)


@partial(jax.jit, static_argnames="shape")
def _potentials(shape: Shape, arguments: Any, flat: jax.Array) -> jax.Array:
    found: jax.Array = jax.vmap(partial(flat_potential, shape, arguments))(flat)
    return found
