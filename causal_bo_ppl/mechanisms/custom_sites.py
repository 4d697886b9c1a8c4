"""Which parameters does a user-defined NumPyro function have, and which distributions result?

A parameter is a latent sample site. Its coordinates are unconstrained: `biject_to` maps them into
the support of its prior, which may depend on other parameters. The log prior is that of the
coordinates, with the volume of that map. A *block* is a function of the causes or a whole program.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import (
    ExpTransform,
    IdentityTransform,
    SigmoidTransform,
    Transform,
)
from numpyro.primitives import Messenger

from causal_bo_ppl.errors import CausalBOError, MechanismError
from causal_bo_ppl.mechanisms.noise_models import NoisyEquation
from causal_bo_ppl.mechanisms.simulation import HANDLER_LOCK

SUPPORTED_SITES = ("plate", "deterministic", "sample")
SCALE_NAMES = {IdentityTransform: "", ExpTransform: "log", SigmoidTransform: "logit"}

Columns = Mapping[str, Any]


class Site(NamedTuple):
    """One parameter; hashable.

    shape: of its coordinates. scale: of a coordinate: "" for the parameter itself, "log" or "logit"
    of it, "free" for another map into its support.
    """

    name: str
    shape: tuple[int, ...]
    scale: str

    @property
    def size(self) -> int:
        """Number of its coordinates."""
        return math.prod(self.shape)

    def labels(self, variable: str = "") -> list[tuple[str, str, str]]:
        """Return (name, variable, part) of its coordinates; variable: of its mechanism, if any."""
        name = f"{self.scale}_{self.name}" if self.scale else self.name
        words = {"": "parameter", "log": "log of the parameter", "logit": "logit of the parameter"}
        part = f"{words.get(self.scale, 'unconstrained coordinate of the parameter')} {self.name}"
        prefix = [variable] if variable else []
        numbers = [[str(number)] for number in range(1, self.size + 1)] if self.shape else [[]]
        inner = [",".join([*prefix, *number]) for number in numbers]
        return [(f"{name}[{each}]" if each else name, variable, part) for each in inner]


class SiteHandler(Messenger):  # type: ignore[misc]
    """Set the values of all sites: parameters by `read`, variables to given values."""

    def __init__(self, owner: str, given: Columns) -> None:
        super().__init__()
        self.owner, self.given = owner, given
        self.distributions: dict[str, Any] = {}
        self.visited: set[str] = set()

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Return the value of a parameter."""
        raise NotImplementedError

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the value of a site before anything reads it."""
        kind, name = msg["type"], str(msg.get("name"))
        if kind not in SUPPORTED_SITES:
            raise MechanismError(
                f"{self.owner} has the site {name!r} of the kind {kind!r}; parameters are drawn by "
                "numpyro.sample, each once"
            )
        if kind == "plate" or (kind == "deterministic" and name not in self.given):
            return
        if name in self.visited:
            raise MechanismError(f"{self.owner} has two sites named {name!r}; rename one of them")
        self.visited.add(name)
        if kind == "sample" and msg["is_observed"]:
            raise MechanismError(
                f"the site {name!r} of {self.owner} is observed (obs=, or a factor); `fit` adds "
                "the likelihood of the data, so draw parameters only"
            )
        if name in self.given:
            is_formula = kind == "deterministic"
            self.distributions[name] = dist.Delta(msg["value"]) if is_formula else msg["fn"]
            msg["value"] = self.given[name]
            return
        prior = msg["fn"]
        if prior.is_discrete:
            raise MechanismError(
                f"the parameter {name!r} of {self.owner} is discrete; neither laplace nor nuts "
                "can learn it: write the mixture over its values"
            )
        msg["value"] = self.read(name, prior, dist.biject_to(prior.support))


class ParameterDiscovery(SiteHandler):
    """Find the parameters; their coordinates are 0."""

    def __init__(self, owner: str, given: Columns) -> None:
        super().__init__(owner, given)
        self.sites: list[Site] = []

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Record the parameter."""
        shape = tuple(transform.inverse_shape(prior.shape()))
        self.sites.append(Site(name, shape, SCALE_NAMES.get(type(transform), "free")))
        return transform(jnp.zeros(shape))


class ParameterReader(SiteHandler):
    """Compute parameters from their coordinates (k,), and sum their log priors."""

    def __init__(self, owner: str, given: Columns, sites: tuple[Site, ...], theta: Any) -> None:
        super().__init__(owner, given)
        self.positions, start = {}, 0
        for site in sites:
            self.positions[site.name] = (start, site)
            start += site.size
        self.theta, self.log_prior = theta, jnp.zeros(())

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Return the value at its coordinates."""
        start, site = self.positions[name]
        free = self.theta[start : start + site.size].reshape(site.shape)
        value = transform(free)
        volume = transform.log_abs_det_jacobian(free, value)
        self.log_prior += prior.log_prob(value).sum() + jnp.sum(volume)
        return value


class ParameterSampler(SiteHandler):
    """Draw parameters from their priors, and collect their coordinates."""

    def __init__(self, owner: str, given: Columns, key: jax.Array) -> None:
        super().__init__(owner, given)
        self.key, self.parts = key, [jnp.zeros(0)]

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Draw one parameter."""
        try:
            value = prior.sample(jax.random.fold_in(self.key, len(self.parts)))
        except NotImplementedError:
            raise MechanismError(
                f"the prior of the parameter {name!r} of {self.owner}, {type(prior).__name__}, is "
                "improper: nothing can be drawn from it; give one that is a distribution, such as "
                "dist.Normal(0, 10)"
            ) from None
        self.parts.append(jnp.ravel(transform.inv(value)))
        return value


def perform(work: Callable[[], Any], messenger: Messenger) -> Any:
    """Run a user-defined function, isolated from all outer handlers."""
    with HANDLER_LOCK, numpyro.handlers.block(), messenger:
        return work()


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error."""
    return str(error).strip().partition("\n")[0]


def traced(owner: str, run: Callable[..., None], *arguments: Any) -> None:
    """Trace a user-defined function without running it; name its owner where it fails."""
    try:
        jax.eval_shape(run, *arguments)
    except CausalBOError:
        raise
    except Exception as error:
        raise MechanismError(
            f"{owner} failed with {type(error).__name__}: {first_line(error)}; it is "
            "called with arrays of many observations, so compute with jax.numpy"
        ) from error


class Noise(NamedTuple):
    """Prior of the sd of the noise that is added to a mean.

    centre, width: mean and sd of its logarithm. floor: a constant sd that is added to it, so that a
    mechanism without any noise has a density.
    """

    centre: Any
    width: Any
    floor: Any


class FunctionBlock(NamedTuple):
    """One mechanism, written as a function of the causes; hashable.

    by_mapping: whether the causes are passed as one mapping. adds_noise: whether the function
    returns a mean, to which Gaussian noise is added; its log sd is the last coordinate.
    """

    function: Callable[..., Any]
    by_mapping: bool
    variable: str
    causes: tuple[str, ...]
    sites: tuple[Site, ...]
    adds_noise: bool

    @property
    def owner(self) -> str:
        """The name of the block in messages."""
        return f"the mechanism of {self.variable!r}"

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables whose mechanisms it holds."""
        return (self.variable,)

    @property
    def size(self) -> int:
        """Number of its coordinates."""
        return sum(site.size for site in self.sites) + self.adds_noise

    @property
    def labels(self) -> list[tuple[str, str, str]]:
        """(name, variable, part) of all coordinates."""
        labels = [label for site in self.sites for label in site.labels(self.variable)]
        if self.adds_noise:
            labels.append((f"log_sd[{self.variable}]", self.variable, "log sd of the noise"))
        return labels

    def call(self, columns: Columns) -> Any:
        """Call the function with the values of the causes."""
        causes = {name: columns[name] for name in self.causes}
        return self.function(causes) if self.by_mapping else self.function(**causes)

    def run(self, theta: jax.Array, noise: Noise, columns: Columns) -> tuple[Any, dict[str, Any]]:
        """Return the log prior at coordinates (k,), and {variable: distribution}."""
        reader = ParameterReader(self.owner, {}, self.sites, theta)
        returned, log_prior = perform(partial(self.call, columns), reader), reader.log_prior
        if self.adds_noise:
            log_sd = theta[-1]
            log_prior = log_prior + dist.Normal(noise.centre, noise.width).log_prob(log_sd)
            sd = jnp.sqrt(jnp.exp(2 * log_sd) + noise.floor**2)
            returned = dist.Normal(jnp.asarray(returned, float), sd)
        return log_prior, {self.variable: returned}

    def draw(self, key: jax.Array, noise: Noise, columns: Columns) -> jax.Array:
        """Draw coordinates (k,) from the prior."""
        sampler = ParameterSampler(self.owner, {}, key)
        perform(partial(self.call, columns), sampler)
        if self.adds_noise:
            normal = jax.random.normal(jax.random.fold_in(key, 0), (1,))
            sampler.parts.append(noise.centre + noise.width * normal)
        return jnp.concatenate(sampler.parts)


class ProgramBlock(NamedTuple):
    """All mechanisms, written as one program with a site for every variable; hashable.

    variables: those whose mechanisms are learned. nodes: all; a variable without a value is 0,
    since no learned mechanism depends on it. adds_noise: a program has distributions, never means.
    """

    program: Callable[[], Any]
    variables: tuple[str, ...]
    nodes: tuple[str, ...]
    sites: tuple[Site, ...]
    owner: str = "the program"
    adds_noise: bool = False

    @property
    def size(self) -> int:
        """Number of its coordinates."""
        return sum(site.size for site in self.sites)

    @property
    def labels(self) -> list[tuple[str, str, str]]:
        """(name, variable, part) of all coordinates; parameters may be shared by variables."""
        return [label for site in self.sites for label in site.labels()]

    def _given(self, columns: Columns) -> Columns:
        return {name: columns.get(name, 0.0) for name in self.nodes}

    def run(self, theta: jax.Array, noise: Noise, columns: Columns) -> tuple[Any, dict[str, Any]]:
        """Return the log prior at coordinates (k,), and {variable: distribution}."""
        reader = ParameterReader(self.owner, self._given(columns), self.sites, theta)
        perform(self.program, reader)
        return reader.log_prior, reader.distributions

    def draw(self, key: jax.Array, noise: Noise, columns: Columns) -> jax.Array:
        """Draw coordinates (k,) from the prior."""
        sampler = ParameterSampler(self.owner, self._given(columns), key)
        perform(self.program, sampler)
        return jnp.concatenate(sampler.parts)


Block = FunctionBlock | ProgramBlock | NoisyEquation


def log_probability(distribution: Any, values: Any) -> jax.Array:
    """Return the log density of values under a distribution; minus infinity outside its support."""
    inside = distribution.support(values)
    rounded = jnp.round(values).astype(int) if distribution.is_discrete else values
    logs: jax.Array = jnp.where(inside, distribution.log_prob(rounded), -jnp.inf)
    return logs
