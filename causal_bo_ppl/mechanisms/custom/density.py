"""The posterior density of an analyst's mechanisms, beside linear and bent ones.

Coordinates psi are first those of linear and bent mechanisms, see `gp.density`, then those of the
analyst's: theta = centre + root psi, around the mode of each block of parameters given its rows and
with the width of the posterior there, so that samplers have little left to do.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from causal_bo_ppl.mechanisms.custom.blocks import Block, log_probability
from causal_bo_ppl.mechanisms.custom.propagation import PathProgram, Typical
from causal_bo_ppl.mechanisms.custom.quantiles import is_exact
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
    columns = [jnp.asarray(rows.values)[:, place] for place in range(len(nodes))]
    made = block.run(theta, setting, dict(zip(nodes, columns, strict=True)))[1]
    found = []
    for name in block.variables:
        place = nodes.index(name)
        if is_exact(made[name]):  # compared with the rows once, when the model is made
            found.append(jnp.zeros(()))
            continue
        logs = log_probability(made[name], jnp.asarray(rows.filled)[:, place])
        found.append(jnp.where(jnp.asarray(rows.free)[:, place], logs, 0.0).sum())
    return jnp.stack(found)


compiled_likelihood = partial(jax.jit, static_argnums=(0, 1))(block_likelihood)


def block_prior(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, theta: jax.Array
) -> jax.Array:
    """Return the log prior of a block at theta (k,), which does not depend on the rows."""
    centre = jnp.asarray(typical.centre)
    columns = {name: centre[place : place + 1] for place, name in enumerate(nodes)}
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
