"""The Laplace approximation: a Gaussian at the mode of a posterior, with the curvature there.

The mode of the potential by L-BFGS, then Newton's steps; the Hessian by automatic differentiation,
factored by Cholesky. A posterior without a proper maximum is refused.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Timer
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from tqdm import tqdm

from causal_bo_ppl.checks import judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import CausalBOWarning, NumericalError, listed
from causal_bo_ppl.inference import potentials
from causal_bo_ppl.inference.draws import (
    NOMINAL_CHAINS,
    Drawn,
    Limits,
    ModelDistribution,
    draw_count,
    drawn_at,
    overall,
)
from causal_bo_ppl.inputs import PROGRESS_DELAY, host_generator
from causal_bo_ppl.mechanisms.base import (
    CoefficientModel,
    Density,
    HeldOut,
    Mechanisms,
    Model,
    ModeModel,
    Task,
)
from causal_bo_ppl.problem import Queries

MOST_NEWTON_STEPS = 50
CONVERGED_DECREMENT = 1e-10  # Newton decrement, in log density, at which the search ends
LARGEST_DECREMENT = 1e-5  # that still passes, where rounding or a kink stops the search
COVERAGE_LEVEL = 0.9  # of the intervals whose coverage is judged
# The coverage of these intervals by the exact posterior below which a warning is given, and below
# which they fail. They may be off by 0.05, as `cb.diagnostics.calibrate` allows.
WARNED_COVERAGE, LEAST_COVERAGE = 0.87, 0.85
LARGEST_CONDITION = 1e10  # of the Hessian in whitened coordinates: half of the digits are left
SMALLEST_STEP = 1e-8  # share of a Newton step at which halving it ends


@dataclass(frozen=True)
class Laplace:
    """A Gaussian at the mode of the whole model, for any mechanisms.

    Parameters
    ----------
    progress:
        Whether a progress bar is shown when the search takes more than a few seconds.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.fit(system.problem, system.observe(100, 0), method=cb.Laplace(progress=False)).verdict
    'passed'
    """

    progress: bool = field(default=True, compare=False)

    name = "laplace"
    needs_key = False
    is_approximate = True

    def infer(
        self, task: Task, mechanisms: Mechanisms, key: jax.Array | None
    ) -> "GaussianDistribution":
        """Return the Gaussian at the mode; warn where its intervals are too narrow.

        An update with more observations does not warn again.
        """
        distribution = approximate(mechanisms.bind(task), progress=self.progress)
        if distribution.coverage is not None and distribution.coverage < WARNED_COVERAGE:
            warnings.warn(
                f"with so few observations laplace is too narrow: its {COVERAGE_LEVEL:.0%} "
                f"intervals hold only about {distribution.coverage:.0%} of the exact posterior; "
                'use method="nuts", or add observations',
                CausalBOWarning,
                stacklevel=3,
            )
        return distribution


@dataclass(frozen=True, eq=False)
class GaussianDistribution(ModelDistribution):
    """A Gaussian in a model's coordinates; see `draws.ThetaDistribution`.

    mode: the coordinates at the mode, (k,). factor: a factor of the covariance, (k, k). decrement:
    how far the mode still is. condition: the condition number of the Hessian.
    """

    model: Model
    mode: np.ndarray
    factor: np.ndarray
    decrement: float
    condition: float

    settings = ""
    chains = None
    summary = None
    effective_draws = np.inf
    tail_degrees = np.inf

    @property
    def verdict(self) -> str:
        """Whether a mode was found, and a Gaussian there is wide enough."""
        return overall(self.lines(Limits()))

    @cached_property
    def coverage(self) -> float | None:
        """The exact probability of 90 % intervals; None where it is not known."""
        if not isinstance(self.model, CoefficientModel):
            return None
        return float(self.model.mode_coverage(COVERAGE_LEVEL))

    @property
    def is_gaussian(self) -> bool:
        """Whether theta is Gaussian under this approximation: linear in the coordinates."""
        model = self.model
        return isinstance(model, ModeModel | CoefficientModel) and model.theta_is_linear

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance of theta were computed."""
        if isinstance(self.model, ModeModel):
            return "mode and curvature of the hyperparameters, averaged over them"
        return "mode and curvature" + ("" if self.is_gaussian else ", delta method")

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of theta (d,), and a factor (d, r) of its covariance.

        They are those at the mode and to first order, unless the model offers others.
        """
        if isinstance(self.model, ModeModel):
            return self.model.moments(self.mode, self.factor)
        theta, jacobian = map(np.asarray, _linearize_theta(self.model.density, self.mode))
        return theta.copy(), np.asarray(jacobian @ self.factor)

    def _coordinates(self, n: int, key: jax.Array) -> np.ndarray:
        standard = host_generator(key).standard_normal((n, len(self.mode)))
        return np.asarray(self.mode + standard @ self.factor.T)

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d)."""
        return self.model.theta(self.model.draws(self._coordinates(n, key)))

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Draw theta with the whole models, by default 4,000 times."""
        psi = self._coordinates(draw_count(n), key)
        return drawn_at(self.model, psi, NOMINAL_CHAINS, {})

    def importance(self, draws: int, key: jax.Array) -> potentials.Importance:
        """Return weights of the Gaussian for the density that it approximates."""
        return self.resampled(draws, key)[1]

    def resampled(self, draws: int, key: jax.Array) -> tuple[np.ndarray, potentials.Importance]:
        """Draw theta (n, d) from the density that the Gaussian approximates, with the weights.

        Gaussian draws in all coordinates of the model, weighted, then chosen systematically in
        proportion to their weights.
        """
        generator = host_generator(key)
        z = generator.standard_normal((potentials.PROPOSALS_PER_DRAW * draws, len(self.mode)))
        psi = self.mode + z @ self.factor.T
        ratios = 0.5 * (z**2).sum(axis=1) - potentials.potentials(self.model, psi)
        weights = potentials.weigh(ratios, potentials.WHOLE)
        chosen = potentials.resample(weights.weights, draws, generator)
        return self.model.theta(self.model.draws(psi[chosen])), weights

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return a table of diagnostics of the computation."""
        most, verdict = LARGEST_DECREMENT, judge(self.decrement <= LARGEST_DECREMENT)
        rows = [("newton decrement", self.decrement, f"<= {most:g}", verdict)]
        if self.coverage is not None:
            verdict = judge(self.coverage >= LEAST_COVERAGE)
            rows.append(("coverage", self.coverage, f">= {LEAST_COVERAGE:g}", verdict))
        most, verdict = LARGEST_CONDITION, judge(self.condition <= LARGEST_CONDITION)
        rows.append(("condition number", self.condition, f"<= {most:g}", verdict))
        return pd.DataFrame(rows, columns=["line", "value", "limit", "verdict"]).set_index("line")

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on the mode and the curvature there."""
        if not self.decrement <= LARGEST_DECREMENT:
            return f"The mode was not found: the log density could rise by {self.decrement:.3g}."
        text = (
            "The mode was found and its curvature is positive definite, condition number "
            f"{self.condition:.3g}."
        )
        if self.coverage is None:
            return text
        share = f"{self.coverage:.0%} of the exact posterior"
        return f"{text} Its {COVERAGE_LEVEL:.0%} intervals hold about {share}."

    @cached_property
    def _at_mode(self) -> Any:
        """The model at the mode."""
        return self.model.draws(self.mode[None])

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mode."""
        return self.model.outcome_variances(self._at_mode, queries)

    def held_out(self, post: object) -> dict[str, HeldOut] | None:
        """Hold out every observation of every mechanism; None where there is no closed form."""
        return self.model.held_out() if isinstance(self.model, ModeModel) else None

    def update(self, data: Data) -> "GaussianDistribution":
        """Return the Gaussian at the mode of the posterior of all observations."""
        return approximate(self.model.with_observations(data), progress=False)


@jax.jit
def _linearize_theta(density: Density, psi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return theta (d,) and its derivatives (d, k) at psi (k,)."""
    return density.theta(psi), potentials.derivatives(density, density.theta, psi)


@contextmanager
def _progress(wanted: bool) -> Iterator[tqdm]:
    """Show how often the density was evaluated, from a few seconds on.

    The bar also appears while the first evaluation is still being compiled.
    """
    options = {"desc": "laplace", "unit": "evaluation", "delay": PROGRESS_DELAY, "leave": False}
    with tqdm(disable=not wanted, **options) as bar:
        first = Timer(PROGRESS_DELAY, bar.refresh)
        first.daemon = True
        first.start()
        try:
            yield bar
        finally:
            first.cancel()
            first.join()


def approximate(model: Model, *, progress: bool = True) -> GaussianDistribution:
    """Return the Gaussian at the mode of a model, with a progress bar if the search takes long."""
    known = model.mode() if isinstance(model, ModeModel) else None
    if known is not None:
        mode, factor, decrement = known
        return GaussianDistribution(model, mode, factor, decrement, 1.0)
    if isinstance(model, CoefficientModel):
        model, _ = model.with_linear_theta()
    with _progress(progress) as bar:
        return _search(model, bar)


def _search(model: Model, bar: tqdm) -> GaussianDistribution:
    """Return the Gaussian at the mode that L-BFGS and Newton's steps find."""
    density = jax.tree.map(jnp.asarray, model.density)

    def evaluate(psi: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = potentials.value_and_gradient(density, psi)
        bar.update()
        return float(value), np.asarray(gradient)

    start = np.zeros(len(model.coordinates))
    if not np.isfinite(evaluate(start)[0]):
        raise NumericalError(potentials.explain(model))
    mode = minimize(evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": 1_000}).x
    for _ in range(MOST_NEWTON_STEPS):
        value, gradient = evaluate(mode)
        root = _factor(model, np.asarray(potentials.hessian(density, mode)))
        half = solve_triangular(root, gradient, lower=True)
        step = solve_triangular(root, half, lower=True, trans="T")
        decrement = float(gradient @ step) / 2
        if decrement <= CONVERGED_DECREMENT:
            break
        size = 1.0
        while evaluate(mode - size * step)[0] > value and size > SMALLEST_STEP:
            size /= 2
        if size <= SMALLEST_STEP:  # no step leads down: rounding, or a kink of the density
            break
        mode = mode - size * step
    if not decrement <= LARGEST_DECREMENT:
        raise NumericalError(
            f"the mode was not found: after {MOST_NEWTON_STEPS} Newton steps the log density could "
            f'still rise by {decrement:.3g}; use method="nuts", or a stronger prior'
        )
    sizes = np.linalg.svd(root, compute_uv=False)
    factor = solve_triangular(root, np.eye(len(mode)), lower=True, trans="T")
    condition = float((sizes[0] / sizes[-1]) ** 2)
    return GaussianDistribution(model, mode, factor, max(decrement, 0.0), condition)


def _factor(model: Model, curvature: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor of a Hessian; refuse one that is not or hardly definite."""
    if not np.isfinite(curvature).all():
        raise NumericalError(
            "the posterior's curvature is not finite at the mode; rescale the data"
        )
    sizes, directions = np.linalg.eigh(curvature)
    if not sizes[0] > sizes[-1] / LARGEST_CONDITION:
        weights = np.abs(directions[:, 0])
        pairs = zip(model.coordinates, weights, strict=True)
        flat = [name for name, weight in pairs if weight > 0.3 * weights.max()]
        raise NumericalError(
            f"the posterior has no Gaussian around its mode: its curvature along {listed(flat)} is "
            f"{sizes[0]:.3g} (largest {sizes[-1]:.3g}); the data do not distinguish these: use "
            'method="nuts", or a stronger prior'
        )
    return np.linalg.cholesky(curvature)
