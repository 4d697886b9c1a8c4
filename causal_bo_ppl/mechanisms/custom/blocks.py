"""An analyst's function of the causes, or whole program, as distributions given parameters."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from causal_bo_ppl.mechanisms.custom.sites import Drawing, Reading, Site, perform

Columns = Mapping[str, Any]


class Noise(NamedTuple):
    """What is believed about the sd of a disturbance that is added to a mean.

    centre, width: mean and sd of its logarithm. floor: an sd that it always has besides, so that a
    mechanism without any disturbance has a density.
    """

    centre: Any
    width: Any
    floor: Any


class FunctionBlock(NamedTuple):
    """One mechanism, written as a function of the causes; hashable.

    by_mapping: whether the causes are passed as one mapping. adds_noise: whether the function
    returns a mean, to which a Gaussian disturbance is added; its log sd is the last coordinate.
    """

    function: Callable[..., Any]
    by_mapping: bool
    variable: str
    causes: tuple[str, ...]
    sites: tuple[Site, ...]
    adds_noise: bool

    @property
    def owner(self) -> str:
        """What messages call it."""
        return f"the mechanism of {self.variable!r}"

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it makes."""
        return (self.variable,)

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return sum(site.size for site in self.sites) + self.adds_noise

    @property
    def labels(self) -> list[tuple[str, str, str]]:
        """(name, variable, part) of all coordinates."""
        name = self.variable
        found = [(label, name, _part(site)) for site in self.sites for label in site.labels(name)]
        if self.adds_noise:
            found.append((f"log_sd[{name}]", name, "log sd of the disturbance"))
        return found

    def call(self, columns: Columns) -> Any:
        """Call the function with the values of the causes."""
        own = {name: columns[name] for name in self.causes}
        return self.function(own) if self.by_mapping else self.function(**own)

    def run(self, theta: jax.Array, noise: Noise, columns: Columns) -> tuple[Any, dict[str, Any]]:
        """Return the log prior at coordinates (k,), and {variable: distribution}."""
        reading = Reading(self.owner, {}, self.sites, theta)
        returned, log_prior = perform(partial(self.call, columns), reading), reading.log_prior
        if self.adds_noise:
            log_sd = theta[-1]
            log_prior = log_prior + dist.Normal(noise.centre, noise.width).log_prob(log_sd)
            sd = jnp.sqrt(jnp.exp(2 * log_sd) + noise.floor**2)
            returned = dist.Normal(jnp.asarray(returned, float), sd)
        return log_prior, {self.variable: returned}

    def draw(self, key: jax.Array, noise: Noise, columns: Columns) -> jax.Array:
        """Draw coordinates (k,) from the prior."""
        drawing = Drawing(self.owner, {}, key)
        perform(partial(self.call, columns), drawing)
        if self.adds_noise:
            normal = jax.random.normal(jax.random.fold_in(key, 0), (1,))
            drawing.parts.append(noise.centre + noise.width * normal)
        return jnp.concatenate(drawing.parts)

    def values(self, theta: jax.Array, noise: Noise, columns: Columns) -> dict[str, Any]:
        """Return the parameters themselves at coordinates (k,)."""
        reading = Reading(self.owner, {}, self.sites, theta)
        perform(partial(self.call, columns), reading)
        found = {f"{name}[{self.variable}]": value for name, value in reading.values.items()}
        if self.adds_noise:
            found[f"sd[{self.variable}]"] = jnp.sqrt(jnp.exp(2 * theta[-1]) + noise.floor**2)
        return found


class ProgramBlock(NamedTuple):
    """All mechanisms, written as one program with a site for every variable; hashable.

    variables: those whose mechanisms are learned. nodes: all; what is not given a value is 0, for
    nothing that is learned depends on it.
    """

    program: Callable[[], Any]
    variables: tuple[str, ...]
    nodes: tuple[str, ...]
    sites: tuple[Site, ...]

    @property
    def owner(self) -> str:
        """What messages call it."""
        return "the program"

    @property
    def adds_noise(self) -> bool:
        """Whether disturbances are added; a program has its own."""
        return False

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return sum(site.size for site in self.sites)

    @property
    def labels(self) -> list[tuple[str, str, str]]:
        """(name, variable, part) of all coordinates; parameters may be shared by variables."""
        return [(label, "", _part(site)) for site in self.sites for label in site.labels(None)]

    def _given(self, columns: Columns) -> Columns:
        return {name: columns.get(name, 0.0) for name in self.nodes}

    def run(self, theta: jax.Array, noise: Noise, columns: Columns) -> tuple[Any, dict[str, Any]]:
        """Return the log prior at coordinates (k,), and {variable: distribution}."""
        reading = Reading(self.owner, self._given(columns), self.sites, theta)
        perform(self.program, reading)
        return reading.log_prior, reading.made

    def draw(self, key: jax.Array, noise: Noise, columns: Columns) -> jax.Array:
        """Draw coordinates (k,) from the prior."""
        drawing = Drawing(self.owner, self._given(columns), key)
        perform(self.program, drawing)
        return jnp.concatenate(drawing.parts)

    def values(self, theta: jax.Array, noise: Noise, columns: Columns) -> dict[str, Any]:
        """Return the parameters themselves at coordinates (k,)."""
        reading = Reading(self.owner, self._given(columns), self.sites, theta)
        perform(self.program, reading)
        return dict(reading.values)


Block = FunctionBlock | ProgramBlock


def _part(site: Site) -> str:
    words = {"": "parameter", "log": "log of the parameter", "logit": "logit of the parameter"}
    return f"{words.get(site.scale, 'parameter without constraints')} {site.name}"


def log_probability(made: Any, values: Any) -> jax.Array:
    """Return the log density of values under a distribution; minus infinity outside its support."""
    inside = made.support(values)
    rounded = jnp.round(values).astype(int) if made.is_discrete else values
    found: jax.Array = jnp.where(inside, made.log_prob(rounded), -jnp.inf)
    return found
