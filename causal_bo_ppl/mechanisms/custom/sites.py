"""What are the parameters of an analyst's NumPyro function, and which values do they have?

A parameter is a latent sample site. Its coordinates are unconstrained: `biject_to` maps them into
the support of its prior, which may depend on other parameters. The log prior is that of the
coordinates, with the volume of that map.

An analyst's function of the causes, or whole program, as distributions given parameters.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
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

from causal_bo_ppl.errors import CausalBOError, ModelError
from causal_bo_ppl.mechanisms.simulation import HANDLER_LOCK

SILENT = ("plate", "deterministic", "sample")
SCALES = {IdentityTransform: "", ExpTransform: "log", SigmoidTransform: "logit"}


class Site(NamedTuple):
    """One parameter; hashable.

    shape: of its coordinates. scale: what a coordinate is of the parameter: "" the parameter
    itself, "log" or "logit" of it, "free" for another map into its support.
    """

    name: str
    shape: tuple[int, ...]
    scale: str

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        total = 1
        for length in self.shape:
            total *= length
        return total

    def labels(self, variable: str | None) -> list[str]:
        """Return the names of its coordinates; variable: whose mechanism it belongs to."""
        name = f"{self.scale}_{self.name}" if self.scale else self.name
        own = "" if variable is None else variable
        if not self.shape:
            return [f"{name}[{own}]" if own else name]
        numbers = [f"{own},{number}" if own else f"{number}" for number in range(1, self.size + 1)]
        return [f"{name}[{number}]" for number in numbers]


class Run(NamedTuple):
    """One run of a function: what it returned, and the log prior of its coordinates.

    made: {variable: its distribution} of the variables that were given values.
    """

    returned: Any
    log_prior: Any
    made: dict[str, Any]


class Parameters(Messenger):  # type: ignore[misc]
    """Give all sites their values: parameters by `read`, variables as they are given."""

    def __init__(self, owner: str, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.owner, self.given = owner, given
        self.made: dict[str, Any] = {}
        self.seen: set[str] = set()

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Return the value of a parameter."""
        raise NotImplementedError

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the value of a site before anything reads it."""
        kind, name = msg["type"], str(msg.get("name"))
        if kind not in SILENT:
            raise ModelError(
                f"{self.owner} has the site {name!r} of the kind {kind!r}; parameters are drawn by "
                "numpyro.sample, each once"
            )
        if kind == "plate" or (kind == "deterministic" and name not in self.given):
            return
        if name in self.seen:
            raise ModelError(f"{self.owner} has two sites named {name!r}; give each its own name")
        self.seen.add(name)
        if kind == "sample" and msg["is_observed"]:
            raise ModelError(
                f"the site {name!r} of {self.owner} is observed (obs=, or a factor); rows are "
                "compared with the distribution by `fit`, so draw parameters only"
            )
        if name in self.given:
            self.made[name] = dist.Delta(msg["value"]) if kind == "deterministic" else msg["fn"]
            msg["value"] = self.given[name]
            return
        prior = msg["fn"]
        if prior.is_discrete:
            raise ModelError(
                f"the parameter {name!r} of {self.owner} is discrete; neither laplace nor nuts "
                "can learn it: write the mixture over its values"
            )
        msg["value"] = self.read(name, prior, dist.biject_to(prior.support))


class Discovery(Parameters):
    """Find the parameters; their coordinates are 0."""

    def __init__(self, owner: str, given: Mapping[str, Any]) -> None:
        super().__init__(owner, given)
        self.sites: list[Site] = []

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Record the parameter."""
        shape = tuple(transform.inverse_shape(prior.shape()))
        self.sites.append(Site(name, shape, SCALES.get(type(transform), "free")))
        return transform(jnp.zeros(shape))


class Reading(Parameters):
    """Read parameters off their coordinates (k,), and add up their log priors."""

    def __init__(
        self, owner: str, given: Mapping[str, Any], sites: tuple[Site, ...], theta: Any
    ) -> None:
        super().__init__(owner, given)
        self.positions, start = {}, 0
        for site in sites:
            self.positions[site.name] = (start, site)
            start += site.size
        self.theta, self.log_prior = theta, jnp.zeros(())
        self.values: dict[str, Any] = {}

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Return the value at its coordinates."""
        start, site = self.positions[name]
        free = self.theta[start : start + site.size].reshape(site.shape)
        value = transform(free)
        volume = transform.log_abs_det_jacobian(free, value)
        self.log_prior += prior.log_prob(value).sum() + jnp.sum(volume)
        self.values[name] = value
        return value


class Drawing(Parameters):
    """Draw parameters from their priors, and keep their coordinates."""

    def __init__(self, owner: str, given: Mapping[str, Any], key: jax.Array) -> None:
        super().__init__(owner, given)
        self.key, self.parts = key, [jnp.zeros(0)]

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Draw one parameter."""
        value = prior.sample(jax.random.fold_in(self.key, len(self.parts)))
        self.parts.append(jnp.ravel(transform.inv(value)))
        return value


def perform(work: Callable[[], Any], messenger: Messenger) -> Any:
    """Run an analyst's function; no outer handler sees or changes it."""
    with ExitStack() as stack:
        for each in (HANDLER_LOCK, numpyro.handlers.block(), messenger):
            stack.enter_context(each)
        return work()


def traced(owner: str, run: Callable[..., None], *arguments: Any) -> None:
    """Trace an analyst's function without running it; say whose it is where it fails."""
    try:
        jax.eval_shape(run, *arguments)
    except CausalBOError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()
        raise ModelError(
            f"{owner} failed with {type(error).__name__}: {first[0] if first else ''}; it is "
            "called with arrays of many rows, so compute with jax.numpy"
        ) from error


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
