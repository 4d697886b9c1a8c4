"""The posterior density of an analyst's mechanisms, beside linear and bent ones.

Coordinates psi are first those of linear and bent mechanisms, see `gp.density`, then those of the
analyst's: theta = centre + root psi, around the mode of each block of parameters given its rows and
with the width of the posterior there, so that samplers have little left to do.

The mode of one block of an analyst's parameters given its rows, by damped Newton steps.

Blocks are independent given whole rows. The density is one program for all rows of one padded
size: new rows compile nothing.
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
from causal_bo_ppl.mechanisms.gp.density import Chart, GPDensity, Told
from causal_bo_ppl.mechanisms.gp.propagation import Equation


class Rows(NamedTuple):
    """Rows of all variables (n, p), and where each was not set; padded with rows that are all set.

    filled: (n, p) the same values, but where a variable was set, one that it had by itself.
    """

    values: Any
    filled: Any
    free: Any


def block_likelihood(
    block: Block, nodes: tuple[str, ...], setting: Any, rows: Rows, theta: jax.Array
) -> jax.Array:
    """Return the log densities (v,) of all rows of each variable of a block, at theta (k,)."""
    columns = [jnp.asarray(rows.values)[:, position] for position in range(len(nodes))]
    made = block.run(theta, setting, dict(zip(nodes, columns, strict=True)))[1]
    found = []
    for name in block.variables:
        position = nodes.index(name)
        if is_exact(made[name]):  # compared with the rows once, when the model is made
            found.append(jnp.zeros(()))
            continue
        logs = log_probability(made[name], jnp.asarray(rows.filled)[:, position])
        found.append(jnp.where(jnp.asarray(rows.free)[:, position], logs, 0.0).sum())
    return jnp.stack(found)


compiled_likelihood = partial(jax.jit, static_argnums=(0, 1))(block_likelihood)


def block_prior(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, theta: jax.Array
) -> jax.Array:
    """Return the log prior of a block at theta (k,), which does not depend on the rows."""
    centre = jnp.asarray(typical.centre)
    columns = {name: centre[position : position + 1] for position, name in enumerate(nodes)}
    found: jax.Array = block.run(theta, setting, columns)[0]
    return found


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CustomDensity:
    """Prior and likelihood of all mechanisms over coordinates psi; see `interfaces.Density`.

    bent: the density of linear and bent mechanisms; it may have none. charts: of the analyst's
    blocks. program: the paths to the target, with all that is fixed.
    """

    bent: GPDensity
    charts: tuple[Chart, ...]
    rows: Rows
    told: Told
    program: PathProgram
    bent_size: int = field(metadata={"static": True})

    @property
    def one_by_one(self) -> bool:
        """Whether bent mechanisms factor matrices."""
        return bool(self.bent.equations)

    def _blocks(self, psi: jax.Array) -> list[tuple[Block, Any, jax.Array]]:
        """Return every block with its setting and its coordinates of theta."""
        found, start, charts = [], self.bent_size, iter(self.charts)
        for part, setting in zip(self.program.parts, self.program.settings, strict=True):
            if isinstance(part, Equation):
                continue
            chart, end = next(charts), start + part.size
            theta = jnp.asarray(chart.centre) + jnp.asarray(chart.root) @ psi[start:end]
            found.append((part, setting, theta))
            start = end
        return found

    def _own_prior(self, psi: jax.Array) -> jax.Array:
        nodes, typical = self.program.nodes, self.program.typical
        parts = [block_prior(b, nodes, s, typical, own) for b, s, own in self._blocks(psi)]
        return sum(parts, jnp.zeros(()))

    def _own_likelihood(self, psi: jax.Array) -> jax.Array:
        nodes = self.program.nodes
        parts = [block_likelihood(b, nodes, s, self.rows, t) for b, s, t in self._blocks(psi)]
        total = sum((part.sum() for part in parts), jnp.zeros(()))
        if not len(self.told.values):
            return total
        terms = self.program.log_outcomes(self.theta(psi), self.told.queries, self.told.values)
        weights = jnp.asarray(self.told.weights)
        return total + jnp.where(weights > 0, terms, 0.0).sum()

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log prior at psi (k,), up to a constant."""
        own = self._own_prior(psi)
        return own + self.bent.log_prior(psi[: self.bent_size]) if self.bent_size else own

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all rows and outcomes given psi (k,)."""
        own = self._own_likelihood(psi)
        return own + self.bent.log_likelihood(psi[: self.bent_size]) if self.bent_size else own

    def log_posterior(self, psi: jax.Array) -> jax.Array:
        """Return log prior, likelihood and volume together, up to a constant."""
        own = self._own_prior(psi) + self._own_likelihood(psi)
        return own + self.bent.log_posterior(psi[: self.bent_size]) if self.bent_size else own

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of the bent mechanisms' coefficients in psi, up to a constant."""
        return self.bent.log_volume(psi[: self.bent_size]) if self.bent_size else jnp.zeros(())

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,): the coordinates of every part, in causal order."""
        bent = self.bent.theta(psi[: self.bent_size]) if self.bent_size else jnp.zeros(0)
        own, start, pieces = iter(self._blocks(psi)), 0, []
        for part in self.program.parts:
            if isinstance(part, Equation):
                pieces.append(bent[start : start + part.size])
                start += part.size
            else:
                pieces.append(next(own)[2])
        return jnp.concatenate(pieces)


STEPS = 200  # Newton steps at most
CLOSE = 1e-11  # decrement, in log density, at which the mode is found
ENOUGH = 1e-6  # decrement that still counts as a mode, where rounding stops the search
LONGEST = 5.0  # of a step, in any coordinate
FLATTEST = 1e-12  # curvature in units of the largest, below which a direction counts as flat
DRAWS, TRIED = 15, 3  # draws of the prior that give starts, and starts that are followed


class BlockMode(NamedTuple):
    """Where a block's density is highest.

    centre: (k,). root: (k, k), a factor of the inverse Hessian there, or a diagonal guess.
    decrement: by how much the log density could still rise; infinite where no mode was found.
    """

    centre: np.ndarray
    root: np.ndarray
    decrement: float


class Position(NamedTuple):
    """The loss at a point, its gradient (k,) and its Hessian (k, k)."""

    value: float
    slope: np.ndarray
    curve: np.ndarray


@partial(jax.jit, static_argnums=(0, 1))
def _look(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    typical: Typical,
    rows: Rows,
    theta: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return minus the log posterior of a block with its first two derivatives."""

    def loss(at: jax.Array) -> jax.Array:
        likelihood = block_likelihood(block, nodes, setting, rows, at).sum()
        return -likelihood - block_prior(block, nodes, setting, typical, at)

    def both(at: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, slope = jax.value_and_grad(loss)(at)
        return slope, (value, slope)

    curve, (value, slope) = jax.jacfwd(both, has_aux=True)(theta)
    return value, slope, curve


@partial(jax.jit, static_argnums=(0, 1))
def prior_draws(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, seeds: jax.Array
) -> jax.Array:
    """Draw coordinates (n, k) from the prior, one for each seed (n,)."""
    centre = jnp.asarray(typical.centre)
    columns = {name: centre[position : position + 1] for position, name in enumerate(nodes)}
    found: jax.Array = jax.lax.map(
        lambda seed: block.draw(jax.random.key(seed), setting, columns), seeds
    )
    return found


def find_block_mode(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, rows: Rows
) -> BlockMode | None:
    """Return the highest mode that is found from a few starts; None where none has a density.

    Starts are coordinates of 0, the medians of the prior and draws from it.
    """
    if not block.size:
        return BlockMode(np.zeros(0), np.zeros((0, 0)), 0.0)
    look = partial(_look, block, nodes, setting, typical, rows)

    def at(theta: np.ndarray) -> Position:
        value, slope, curve = map(np.asarray, look(theta))
        return Position(float(value), slope, curve)

    starts = _starts(block, nodes, setting, typical)
    positions = [at(start) for start in starts]
    usable = [k for k, position in enumerate(positions) if _is_usable(position)]
    if not usable:
        return None
    order = sorted(usable, key=lambda k: positions[k].value)[:TRIED]
    ends = [_descend(at, starts[k], positions[k]) for k in order]
    best = first_largest(-np.array([position.value for _, position in ends]))
    return _finish(*ends[best])


def _starts(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical
) -> list[np.ndarray]:
    zero = np.zeros(block.size)
    try:
        drawn = np.asarray(prior_draws(block, nodes, setting, typical, np.arange(DRAWS)))
    except NotImplementedError:  # an improper prior
        return [zero]
    drawn = drawn[np.isfinite(drawn).all(axis=1)]
    return [zero, np.median(drawn, axis=0), *drawn[:6]] if len(drawn) else [zero]


def _is_usable(position: Position) -> bool:
    return bool(
        np.isfinite(position.value)
        and np.isfinite(position.slope).all()
        and np.isfinite(position.curve).all()
    )


def _step(position: Position) -> np.ndarray:
    """Return Newton's step down; where the loss curves down, by the size of the curvature."""
    sizes, ways = np.linalg.eigh((position.curve + position.curve.T) / 2)
    sizes = np.abs(sizes)
    sizes = np.maximum(sizes, max(FLATTEST * sizes.max(), 1e-300))
    step = ways @ ((ways.T @ position.slope) / sizes)
    return np.asarray(step / max(1.0, float(np.abs(step).max()) / LONGEST))


def _descend(
    look: Callable[[np.ndarray], Position], theta: np.ndarray, position: Position
) -> tuple[np.ndarray, Position]:
    """Return where Newton steps, halved until the loss falls, lead from a start."""
    for _ in range(STEPS):
        step = _step(position)
        falls = float(position.slope @ step)
        if 0.5 * falls <= CLOSE:
            break
        length = 1.0
        while length > 1e-10:
            moved = look(theta - length * step)
            if _is_usable(moved) and moved.value <= position.value - 1e-4 * length * falls:
                break
            length /= 2
        else:  # no step leads down: rounding, or a kink
            break
        theta, position = theta - length * step, moved
    return theta, position


def _finish(theta: np.ndarray, position: Position) -> BlockMode:
    """Return the mode with its width; coordinates are scaled first, for they may differ much."""
    curve = (position.curve + position.curve.T) / 2
    width = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curve)), 1e-8))
    try:
        lower = np.linalg.cholesky(width[:, None] * curve * width)
    except np.linalg.LinAlgError:  # no maximum there
        return BlockMode(theta, np.diag(width), np.inf)
    half = solve_triangular(lower, width * position.slope, lower=True)
    root = width[:, None] * solve_triangular(lower, np.eye(len(theta)), lower=True).T
    decrement = 0.5 * float(half @ half)
    return BlockMode(theta, root, decrement if decrement <= ENOUGH else np.inf)
