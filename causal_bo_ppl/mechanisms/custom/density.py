"""What is the posterior density of user-defined mechanisms, and where is its mode?

Coordinates psi are first those of linear and Gaussian-process mechanisms, see `gp.density`, then
those of user-defined blocks: theta = centre + root psi, around the mode of each block given its
observations and with the width of the posterior there. Modes are found by damped Newton steps.

Blocks are independent given whole observations. The density is one program for all data of one
padded size: new observations compile nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.mechanisms.custom.propagation import PathProgram, Typical, is_exact
from causal_bo_ppl.mechanisms.custom.sites import Block, log_probability
from causal_bo_ppl.mechanisms.gp.density import AffineChart, GPDensity, TargetOutcomes
from causal_bo_ppl.mechanisms.gp.propagation import Equation

MOST_NEWTON_STEPS = 200
SMALLEST_DECREMENT = 1e-11  # of the log density, at which the Newton steps end
LARGEST_DECREMENT = 1e-6  # that counts as a mode, where rounding stops the search
LONGEST_STEP = 5.0  # in any coordinate
FLATTEST_CURVATURE = 1e-12  # relative to the largest, below which a direction counts as flat
START_DRAWS = 15  # draws of the prior that give starts
FOLLOWED_STARTS = 3  # starts with the smallest loss, from which Newton steps are made


class PaddedObservations(NamedTuple):
    """Observations of all variables (n, p), and where each was not set; padding is all set.

    filled: (n, p) the same values, but where a variable was set, an observed one.
    """

    values: Any
    filled: Any
    free: Any


def block_likelihood(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    observations: PaddedObservations,
    theta: jax.Array,
) -> jax.Array:
    """Return the log likelihoods (v,) of the variables of a block at theta (k,)."""
    values, filled, free = map(jnp.asarray, observations)
    distributions = block.run(theta, setting, dict(zip(nodes, values.T, strict=True)))[1]
    sums = []
    for name in block.variables:
        position = nodes.index(name)
        if is_exact(distributions[name]):  # compared with the data once, by `require_formulas`
            sums.append(jnp.zeros(()))
            continue
        logs = log_probability(distributions[name], filled[:, position])
        sums.append(jnp.where(free[:, position], logs, 0.0).sum())
    return jnp.stack(sums)


compiled_likelihood = partial(jax.jit, static_argnums=(0, 1))(block_likelihood)


def block_prior(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, theta: jax.Array
) -> jax.Array:
    """Return the log prior of a block at theta (k,), which does not depend on the data."""
    log_prior: jax.Array = block.run(theta, setting, _typical_columns(nodes, typical))[0]
    return log_prior


def _typical_columns(nodes: tuple[str, ...], typical: Typical) -> dict[str, jax.Array]:
    """Return the mean (1,) of every variable, at which functions are run for their priors."""
    return dict(zip(nodes, jnp.asarray(typical.centre)[:, None], strict=True))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CustomDensity:
    """Prior and likelihood of all mechanisms over coordinates psi; see `base.Density`.

    gp: the density of linear and Gaussian-process mechanisms, of which there may be none, with
    gp_size coordinates. charts: of the user-defined blocks. program: the paths to the target.
    """

    gp: GPDensity
    charts: tuple[AffineChart, ...]
    observations: PaddedObservations
    outcomes: TargetOutcomes
    program: PathProgram
    gp_size: int = field(metadata={"static": True})

    @property
    def one_by_one(self) -> bool:
        """Whether Gaussian-process mechanisms factor matrices."""
        return bool(self.gp.equations)

    def _blocks(self, psi: jax.Array) -> list[tuple[Block, Any, jax.Array]]:
        """Return every block with its setting and its coordinates of theta."""
        blocks, start, charts = [], self.gp_size, iter(self.charts)
        for part, setting in zip(self.program.parts, self.program.settings, strict=True):
            if isinstance(part, Equation):
                continue
            chart, end = next(charts), start + part.size
            theta = jnp.asarray(chart.centre) + jnp.asarray(chart.root) @ psi[start:end]
            blocks.append((part, setting, theta))
            start = end
        return blocks

    def _block_priors(self, psi: jax.Array) -> jax.Array:
        nodes, typical = self.program.nodes, self.program.typical
        terms = [block_prior(b, nodes, s, typical, theta) for b, s, theta in self._blocks(psi)]
        return sum(terms, jnp.zeros(()))

    def _block_likelihoods(self, psi: jax.Array) -> jax.Array:
        nodes, data = self.program.nodes, self.observations
        terms = [block_likelihood(b, nodes, s, data, theta) for b, s, theta in self._blocks(psi)]
        total = sum((term.sum() for term in terms), jnp.zeros(()))
        queries, values, weights = self.outcomes
        if not len(values):
            return total
        logs = self.program.log_outcomes(self.theta(psi), queries, values)
        return total + jnp.where(jnp.asarray(weights) > 0, logs, 0.0).sum()

    def _add(self, total: jax.Array, term: Callable[[jax.Array], jax.Array], psi: Any) -> jax.Array:
        """Add a term of the Gaussian-process mechanisms, if there are any."""
        return total + term(psi[: self.gp_size]) if self.gp_size else total

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log prior at psi (k,), up to a constant."""
        return self._add(self._block_priors(psi), self.gp.log_prior, psi)

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all observations and outcomes given psi (k,)."""
        return self._add(self._block_likelihoods(psi), self.gp.log_likelihood, psi)

    def log_posterior(self, psi: jax.Array) -> jax.Array:
        """Return log prior, likelihood and volume together, up to a constant."""
        total = self._block_priors(psi) + self._block_likelihoods(psi)
        return self._add(total, self.gp.log_posterior, psi)

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of Gaussian-process coefficients in psi, up to a constant."""
        return self._add(jnp.zeros(()), self.gp.log_volume, psi)

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,): the coordinates of every part, in causal order."""
        rest = self.gp.theta(psi[: self.gp_size]) if self.gp_size else jnp.zeros(0)
        blocks, pieces = iter(self._blocks(psi)), []
        for part in self.program.parts:
            if isinstance(part, Equation):
                pieces.append(rest[: part.size])
                rest = rest[part.size :]
            else:
                pieces.append(next(blocks)[2])
        return jnp.concatenate(pieces)


class BlockMode(NamedTuple):
    """Mode of the density of a block.

    centre: (k,). root: (k, k), a factor of the inverse Hessian there, or a diagonal guess.
    decrement: the Newton decrement of the log density; infinite where no mode was found.
    """

    centre: np.ndarray
    root: np.ndarray
    decrement: float


class LossTerms(NamedTuple):
    """The loss at a point, its gradient (k,) and its Hessian (k, k)."""

    value: np.ndarray
    slope: np.ndarray
    curve: np.ndarray


@partial(jax.jit, static_argnums=(0, 1))
def _loss_terms(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    typical: Typical,
    observations: PaddedObservations,
    theta: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return minus the log posterior of a block with its first two derivatives."""

    def loss(point: jax.Array) -> jax.Array:
        likelihood = block_likelihood(block, nodes, setting, observations, point).sum()
        return -likelihood - block_prior(block, nodes, setting, typical, point)

    def both(point: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, slope = jax.value_and_grad(loss)(point)
        return slope, (value, slope)

    curve, (value, slope) = jax.jacfwd(both, has_aux=True)(theta)
    return value, slope, curve


@partial(jax.jit, static_argnums=(0, 1))
def prior_draws(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, seeds: jax.Array
) -> jax.Array:
    """Draw coordinates (n, k) from the prior, one for each seed (n,)."""
    columns = _typical_columns(nodes, typical)
    drawn: jax.Array = jax.lax.map(
        lambda seed: block.draw(jax.random.key(seed), setting, columns), seeds
    )
    return drawn


def find_block_mode(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    typical: Typical,
    observations: PaddedObservations,
) -> BlockMode | None:
    """Return the highest mode reached from a few starts; None where no start has a density.

    Starts are coordinates of 0, the medians of the prior and draws from it.
    """
    if not block.size:
        return BlockMode(np.zeros(0), np.zeros((0, 0)), 0.0)

    def evaluate(theta: np.ndarray) -> LossTerms:
        terms = _loss_terms(block, nodes, setting, typical, observations, theta)
        return LossTerms(*map(np.asarray, terms))

    starts = [(start, evaluate(start)) for start in _starts(block, nodes, setting, typical)]
    usable = [start for start in starts if _is_usable(start[1])]
    if not usable:
        return None
    usable.sort(key=lambda start: start[1].value)
    ends = [_descend(evaluate, *start) for start in usable[:FOLLOWED_STARTS]]
    best = first_largest(-np.array([terms.value for _, terms in ends]))
    return _block_mode(*ends[best])


def _starts(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical
) -> list[np.ndarray]:
    zero = np.zeros(block.size)
    try:
        drawn = np.asarray(prior_draws(block, nodes, setting, typical, np.arange(START_DRAWS)))
    except NotImplementedError:  # an improper prior
        return [zero]
    drawn = drawn[np.isfinite(drawn).all(axis=1)]
    return [zero, np.median(drawn, axis=0), *drawn[:6]] if len(drawn) else [zero]


def _is_usable(terms: LossTerms) -> bool:
    return all(np.isfinite(term).all() for term in terms)


def _newton_step(terms: LossTerms) -> np.ndarray:
    """Return Newton's descent step, by the absolute values of the curvature."""
    sizes, directions = np.linalg.eigh((terms.curve + terms.curve.T) / 2)
    sizes = np.abs(sizes)
    sizes = np.maximum(sizes, max(FLATTEST_CURVATURE * sizes.max(), 1e-300))
    step = directions @ ((directions.T @ terms.slope) / sizes)
    return np.asarray(step / max(1.0, float(np.abs(step).max()) / LONGEST_STEP))


def _descend(
    evaluate: Callable[[np.ndarray], LossTerms], theta: np.ndarray, terms: LossTerms
) -> tuple[np.ndarray, LossTerms]:
    """Return the end point of Newton steps that are halved until the loss decreases."""
    for _ in range(MOST_NEWTON_STEPS):
        step = _newton_step(terms)
        decrease = float(terms.slope @ step)
        if 0.5 * decrease <= SMALLEST_DECREMENT:
            break
        length = 1.0
        while length > 1e-10:
            moved = evaluate(theta - length * step)
            if _is_usable(moved) and moved.value <= terms.value - 1e-4 * length * decrease:
                break
            length /= 2
        else:  # no step decreases the loss: rounding, or a kink
            break
        theta, terms = theta - length * step, moved
    return theta, terms


def _block_mode(theta: np.ndarray, terms: LossTerms) -> BlockMode:
    """Return the mode with its width; coordinates are scaled first, for they may differ much."""
    curve = (terms.curve + terms.curve.T) / 2
    width = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curve)), 1e-8))
    try:
        lower = np.linalg.cholesky(width[:, None] * curve * width)
    except np.linalg.LinAlgError:  # no maximum there
        return BlockMode(theta, np.diag(width), np.inf)
    half = solve_triangular(lower, width * terms.slope, lower=True)
    root = width[:, None] * solve_triangular(lower, np.eye(len(theta)), lower=True).T
    decrement = 0.5 * float(half @ half)
    return BlockMode(theta, root, decrement if decrement <= LARGEST_DECREMENT else np.inf)
