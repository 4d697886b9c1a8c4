"""Conjugate posteriors: independent linear equations in closed form."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import MechanismError
from causal_bo_ppl.inference.draws import (
    NOMINAL_CHAINS,
    Drawn,
    Limits,
    ModelDistribution,
    ThetaDistribution,
    draw_count,
    exact_lines,
    require_no_outcomes,
)
from causal_bo_ppl.inference.laplace import approximate
from causal_bo_ppl.inference.potentials import COEFFICIENTS, Importance, weigh
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.base import (
    Coefficients,
    ExpectedInformation,
    HeldOut,
    Mechanisms,
    ModeModel,
    Task,
)
from causal_bo_ppl.mechanisms.linear import LinearModel
from causal_bo_ppl.mechanisms.linear_equations import Equations
from causal_bo_ppl.problem import Queries


@dataclass(frozen=True)
class Conjugate:
    """A normal-inverse-gamma posterior of every equation upstream of the target, in closed form.

    For mechanisms with hyperparameters it gives the coefficients in closed form, with the
    hyperparameters at the mode of their evidence; their uncertainty is ignored.

    It takes observational and interventional data, and is refused where a latent cause joins two
    equations, and for mechanisms that have no closed form.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.fit(system.problem, system.observe(50, 0), method=cb.Conjugate()).verdict
    'exact'
    """

    name = "conjugate"
    needs_key = False
    uses_linearity = False

    def infer(self, task: Task, mechanisms: Mechanisms, key: jax.Array | None) -> ThetaDistribution:
        """Return the posterior of all equations."""
        require_no_outcomes(task, self.name)
        model = mechanisms.bind(task)
        given = model.given_hyperparameters() if isinstance(model, ModeModel) else None
        if given is not None:
            return approximate(given, progress=False)
        if not isinstance(model, LinearModel):
            raise MechanismError(
                f"{mechanisms.name} mechanisms have no posterior in closed form; use "
                'method="nuts" or method="laplace"'
            )
        return ExactDistribution(model, model.closed_form())


@dataclass(frozen=True, eq=False)
class ExactDistribution(ModelDistribution):
    """The posterior of independent equations; see `draws.ThetaDistribution`.

    model: the mechanisms, with the data of the first fit. equations: with all data.
    """

    model: LinearModel
    equations: Equations

    settings = ""
    verdict = "exact"
    chains = None
    summary = None
    effective_draws = np.inf

    @property
    def posterior(self) -> object:
        """The normal-inverse-gamma posteriors of all equations."""
        return self.equations.posterior

    def coefficients(self) -> Coefficients | None:
        """Return the moments of the equations, which are independent given the data.

        None where a known total effect joins them.
        """
        return None if self.model.response.parameters.fixed else self.equations.coefficients

    @property
    def tail_degrees(self) -> float:
        """The fewest degrees of freedom of a coefficient's Student's t."""
        return self.equations.tail_degrees

    @property
    def is_gaussian(self) -> bool:
        """Whether theta is Gaussian: coefficients of equations whose noise variance is known."""
        return self.model.response.is_selection and self.equations.has_known_noise

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance of theta were computed."""
        return "closed form" if self.model.response.is_selection else "delta method"

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (d,) of theta, and a factor (d, r) of its covariance."""
        mean, factor = self._joint
        gain, size = self._gain, len(self.response.names)
        return self._condition(mean), factor[:size] - gain @ factor[size:]

    @cached_property
    def _joint(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and factor of the covariance of theta, and then of the known total effects."""
        matrix, response = self.equations.coefficients.mean, self.model.response
        return response.read(matrix[None])[0], response.push(matrix, self.equations.directions)

    @cached_property
    def _gain(self) -> np.ndarray:
        """The regression (d, k) of theta on the known total effects."""
        factor, size = self._joint[1], len(self.response.names)
        return np.asarray(factor[:size] @ np.linalg.pinv(factor[size:]))

    def _condition(self, joint: np.ndarray) -> np.ndarray:
        """Return theta (..., d) given that the known total effects, its last, have their values.

        That is exact for a Gaussian, where both are linear in the coefficients; elsewhere it is
        exact to first order, as the moments of the delta method are.
        """
        size = len(self.response.names)
        known = np.array([value for _, value in self.model.response.parameters.fixed])
        return np.asarray(joint[..., :size] + (known - joint[..., size:]) @ self._gain.T)

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d), exactly."""
        return self._condition(self.model.theta(self.equations.draw(n, key)[0]))

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Draw theta with the whole models, by default 4,000 times."""
        models, log_prior = self.equations.draw(draw_count(n), key)
        theta = self._condition(self.model.theta(models))
        return Drawn(NOMINAL_CHAINS, theta, models, log_prior)

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times from the prior, scaled to all data where it is scaled to them."""
        models, _, note = self.model.draw_prior(draw_count(n), key, self.equations)
        return Drawn(NOMINAL_CHAINS, self.model.theta(models), models, note=note)

    def importance(self, draws: int, key: jax.Array) -> Importance:
        """Return weights of a Gaussian in the coefficients, whose density is known exactly."""
        solved, causes = self.equations.posterior, self.equations.causes
        needed, used = self.learned, causes >= 0
        root = np.sqrt(np.where(needed, solved.variance, 0.0))[:, None, None] * solved.root
        z = host_generator(key).standard_normal((draws, *causes.shape)) * used
        proposed = solved.mean + np.einsum("ekl,nel->nek", root, z)
        squares = z[:, used & needed[:, None]] ** 2
        ratios = self.equations.log_student(proposed) + 0.5 * squares.sum(axis=1)
        return weigh(ratios, COEFFICIENTS)

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return the one row of a closed form."""
        return exact_lines("regression of every equation")

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on how the posterior was computed."""
        return "conjugate is a closed form: nothing was sampled and nothing can have failed."

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the posterior means."""
        return self.equations.outcome_variances(queries)

    def held_out(self, post: Any) -> dict[str, HeldOut]:
        """Hold out every observation of every equation of a posterior with this distribution."""
        return self.equations.held_out(*post.learned_observations)

    def expected_information(self, queries: Queries) -> ExpectedInformation | None:
        """Return the expected information of one observation of each query about theta.

        None where a known total effect joins the equations.
        """
        if self.model.response.parameters.fixed:
            return None
        return self.equations.expected_information(queries)

    def update(self, data: Data) -> "ExactDistribution":
        """Return the posterior after more observations: exactly that of all together."""
        return ExactDistribution(self.model, self.equations.update(data))
