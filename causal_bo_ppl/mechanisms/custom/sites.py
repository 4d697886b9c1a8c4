"""What are the parameters of an analyst's NumPyro function, and which values do they have?

A parameter is a latent sample site. Its coordinates are unconstrained: `biject_to` maps them into
the support of its prior, which may depend on other parameters. The log prior is that of the
coordinates, with the volume of that map.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
        self.places, start = {}, 0
        for site in sites:
            self.places[site.name] = (start, site)
            start += site.size
        self.theta, self.log_prior = theta, jnp.zeros(())
        self.values: dict[str, Any] = {}

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Return the value at its coordinates."""
        start, site = self.places[name]
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
