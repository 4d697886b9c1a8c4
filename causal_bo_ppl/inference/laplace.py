"""What does the posterior look like around its mode? A Gaussian with the curvature there.

The mode of the model's potential by L-BFGS, then Newton's steps; the Hessian by automatic differentiation, factored by
Cholesky. A posterior without a proper maximum is refused. The mode of (coefficients, log sd) takes disturbances as
smaller than they are on average: with few rows the Gaussian is too narrow.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import CausalBOWarning, ModelError, NumericalError, listed
from causal_bo_ppl.inference.convergence import FAILED, PASSED, Limits, overall
from causal_bo_ppl.inference.draws import CHAINS, Drawn, even
from causal_bo_ppl.inference.linear_model import LinearModel
from causal_bo_ppl.inference.noise import outcome_variances
from causal_bo_ppl.inference.nuts import explain, flat_potential, value_and_gradient
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.linear.density import Shape
from causal_bo_ppl.mechanisms.linear.priors import Prior
from causal_bo_ppl.problem import Queries

NEWTON = 50  # steps at most
CLOSE = 1e-10  # Newton decrement, in log density: the mode is found
NARROW, NARROWEST = 0.9, 0.8  # sd relative to the exact one: warned of, and refused
WORST = 1e10  # condition number of the Hessian in whitened coordinates: half of the digits are left


@dataclass(frozen=True, eq=False)
class Laplace:
    """A Gaussian at the mode. mode: (k,); factor: (k, k) of the covariance; decrement: how far the mode still is."""

    model: LinearModel
    mode: np.ndarray
    factor: np.ndarray
    decrement: float
    condition: float

    settings = ""

    @property
    def verdict(self) -> str:
        """Was a mode found, and are there rows enough for its curvature to say how wide the posterior is?"""
        return overall(self.lines(Limits()))

    @cached_property
    def width(self) -> float:
        """Sd at the mode of the disturbances' variances, relative to the exact one; of the worst regression."""
        exact, used = self.model.equations.posterior, (self.model.equations.causes >= 0).sum(axis=1)
        shape = exact.shape[self.learned]
        if np.isinf(shape).all():
            return 1.0
        found = 2 * np.maximum(shape - 1, 0) / (2 * shape + used[self.learned])
        return float(np.sqrt(found.min()))

    @property
    def prior(self) -> Prior:
        """What was believed before."""
        return self.model.prior

    @property
    def learned(self) -> np.ndarray:
        """(k,) of which variables the density is known."""
        return self.model.equations.needed

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found."""
        return "mode and curvature" + ("" if self.model.readout.is_structural else ", delta method")

    @cached_property
    def at_mode(self) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (p + 1, p) and disturbances' covariance (p, p)."""
        matrices, noises = self.model.models(self.mode[None])
        return matrices[0], noises[0]

    @cached_property
    def directions(self) -> np.ndarray:
        """(p + 1, p, k) how the coefficients move along the factor's columns; they are linear in the coordinates."""
        shape, chart = self.model.shape, self.model.arguments[0]
        used = np.nonzero(shape.used)
        z = np.zeros((*shape.used.shape, self.factor.shape[1]))
        z[used] = self.factor[: len(used[0])]
        moved = np.exp(chart.log_sd)[:, None, None] * np.einsum("ekl,eln->ekn", chart.root, z)
        found = np.zeros((shape.size + 1, shape.size, self.factor.shape[1]))
        found[shape.places] = moved[used]
        return found

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) of theta_Y, and a factor (d, r) of its covariance."""
        matrix, _ = self.at_mode
        return self.model.readout.read(matrix[None])[0], self.model.readout.push(
            matrix, self.directions
        )

    def flat_draws(self, n: int, key: jax.Array) -> np.ndarray:
        """(n, k) coordinates from the Gaussian."""
        return np.asarray(
            self.mode + host_generator(key).standard_normal((n, len(self.mode))) @ self.factor.T
        )

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """(n, d) draws of theta_Y."""
        return self.model.readout.read(self.model.models(self.flat_draws(n, key)).matrices)

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Draws of all, by default 4,000."""
        flat = self.flat_draws(even(n), key)
        models, (log_prior, _) = self.model.models(flat), self.model.log_parts(flat)
        return Drawn(
            CHAINS,
            self.model.readout.read(models.matrices),
            models,
            log_prior,
            {},
            self.model.told(models),
        )

    def lines(self, limits: Limits) -> pd.DataFrame:
        """What the computation's success is judged by."""
        rows = [
            (
                "newton decrement",
                self.decrement,
                f"<= {CLOSE:g}",
                PASSED if self.decrement <= CLOSE else FAILED,
            ),
            (
                "width",
                self.width,
                f">= {NARROWEST:g}",
                PASSED if self.width >= NARROWEST else FAILED,
            ),
            (
                "condition number",
                self.condition,
                f"<= {WORST:g}",
                PASSED if self.condition <= WORST else FAILED,
            ),
        ]
        return pd.DataFrame(rows, columns=["line", "value", "limit", "verdict"]).set_index("line")

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """(M,) variance of one outcome at the mode."""
        return outcome_variances(*self.at_mode, self.learned, queries)

    def update(self, rows: Data) -> "Laplace":
        """After more rows: the mode of all of them."""
        return approximate(self.model.with_rows(rows))


@partial(jax.jit, static_argnames="shape")
def _hessian(shape: Shape, arguments: object, flat: jax.Array) -> jax.Array:
    found: jax.Array = jax.hessian(flat_potential, argnums=2)(shape, arguments, flat)
    return found


def approximate(model: LinearModel) -> Laplace:
    """The Laplace approximation."""
    model = replace(model, follows=False)
    arguments = jax.tree.map(jnp.asarray, model.arguments)

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(model.shape, arguments, flat)
        return float(value), np.asarray(gradient)

    start = np.zeros(model.dimension)
    if not np.isfinite(evaluate(start)[0]):
        raise ModelError(explain(model))
    mode = minimize(evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": 1_000}).x
    for _ in range(NEWTON):
        value, gradient = evaluate(mode)
        root = _factor(model, np.asarray(_hessian(model.shape, arguments, mode)))
        step = solve_triangular(
            root, solve_triangular(root, gradient, lower=True), lower=True, trans="T"
        )
        decrement = float(gradient @ step) / 2
        if decrement <= CLOSE:
            break
        size = 1.0
        while evaluate(mode - size * step)[0] > value and size > 1e-8:
            size /= 2
        mode = mode - size * step
    if not decrement <= CLOSE:
        raise NumericalError(
            f"the mode was not found: after {NEWTON} Newton steps the log density could still rise by {decrement:.3g}; "
            'use method="nuts", or a stronger prior'
        )
    sizes = np.linalg.svd(root, compute_uv=False)
    factor = solve_triangular(root, np.eye(len(mode)), lower=True, trans="T")
    found = Laplace(model, mode, factor, max(decrement, 0.0), float((sizes[0] / sizes[-1]) ** 2))
    if found.width < NARROW:
        warnings.warn(
            f"with so few rows laplace is too narrow: its sds are about {1 - found.width:.0%} too small; "
            'use method="nuts", or add rows',
            CausalBOWarning,
            stacklevel=3,
        )
    return found


def _factor(model: LinearModel, hessian: np.ndarray) -> np.ndarray:
    """The Cholesky factor; refuses a Hessian that is not positive definite, or hardly so."""
    if not np.isfinite(hessian).all():
        raise NumericalError(
            "the posterior's curvature is not finite at the mode; rescale the data"
        )
    sizes, directions = np.linalg.eigh(hessian)
    if not sizes[0] > sizes[-1] / WORST:
        weights = np.abs(directions[:, 0])
        flat = [
            name
            for name, weight in zip(model.names, weights, strict=True)
            if weight > 0.3 * weights.max()
        ]
        raise NumericalError(
            f"the posterior has no Gaussian around its mode: its curvature along {listed(flat)} is {sizes[0]:.3g} "
            f'(largest {sizes[-1]:.3g}); the data do not tell these apart: use method="nuts", or a FixedPrior'
        )
    return np.linalg.cholesky(hessian)
