"""Which parameters does a user-defined NumPyro function have, and which distributions result?

A parameter is a latent sample site. Its coordinates are unconstrained: `biject_to` maps them into
the support of its prior, which may depend on other parameters. The log prior is that of the
coordinates, with the volume of that map. A *block* is a function of the causes or a whole program.

NumPyro has the quantile functions of many distributions, but not of those made of gamma variables:
these are computed by bisection, and their derivatives by one Newton step from there (the implicit
function theorem). Draws by rejection would not be continuous in the parameters.

Blocks are independent given whole observations: the mode of each is found by damped Newton steps.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammainc, gammaln
from numpyro.distributions.transforms import (
    ExpTransform,
    IdentityTransform,
    SigmoidTransform,
    Transform,
)
from numpyro.primitives import Messenger
from scipy.linalg import solve_triangular

from causal_bo_ppl.errors import CausalBOError, MechanismError
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.mechanisms.noise_models import NoisyEquation, StudentNoise

# NumPyro's stack of effect handlers belongs to the process: a program that runs in one thread would
# be seeded, traced and conditioned by the handlers of another. Every use of handlers in this
# package holds this lock. A thread may take it again, since a simulated program may itself
# simulate. Code inside a traced function holds it only while it is traced: compiled programs run
# side by side.
HANDLER_LOCK = RLock()

MOST_NEWTON_STEPS = 200
SMALLEST_DECREMENT = 1e-11  # of the log density, at which the Newton steps end
LARGEST_DECREMENT = 1e-6  # that counts as a mode, where rounding stops the search
LONGEST_STEP = 5.0  # in any coordinate
FLATTEST_CURVATURE = 1e-12  # relative to the largest, below which a direction counts as flat
START_DRAWS = 15  # draws of the prior that give starts
FOLLOWED_STARTS = 3  # starts with the smallest loss, from which Newton steps are made
SMALLEST_LOG_QUANTILE = -700.0  # of a gamma variable
BISECTION_STEPS = 48
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
    """Find the parameters, and the shapes of their values; their coordinates are 0."""

    def __init__(self, owner: str, given: Columns) -> None:
        super().__init__(owner, given)
        self.sites: list[Site] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Record the parameter."""
        shape = tuple(transform.inverse_shape(prior.shape()))
        self.sites.append(Site(name, shape, SCALE_NAMES.get(type(transform), "free")))
        value = transform(jnp.zeros(shape))
        self.shapes[name] = jnp.shape(value)
        return value


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


class Unconstrained(SiteHandler):
    """Compute the coordinates of parameters from their values, whose names end with a suffix."""

    def __init__(self, owner: str, given: Columns, draw: Columns, suffix: str) -> None:
        super().__init__(owner, given)
        self.draw, self.suffix, self.parts = draw, suffix, [jnp.zeros(0)]

    def read(self, name: str, prior: Any, transform: Transform) -> Any:
        """Return the value of a parameter, and record its coordinates."""
        value = self.draw[f"{name}{self.suffix}"]
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


NOISE_SITE = Site("sd", (), "log")


class FunctionBlock(NamedTuple):
    """One mechanism, written as a function of the causes; hashable.

    by_mapping: whether the causes are passed as one mapping. sites: those of the function.
    adds_noise: whether it returns a mean, to which Gaussian noise is added; its log sd is the last
    coordinate.
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

    def distribution(self, noise: Noise, columns: Columns) -> Any:
        """Draw the parameters at their sites; return the distribution given the causes."""
        returned = self.call(columns)
        if not self.adds_noise:
            return returned
        sd = numpyro.sample(NOISE_SITE.name, dist.LogNormal(noise.centre, noise.width))
        return dist.Normal(jnp.asarray(returned, float), jnp.sqrt(sd**2 + noise.floor**2))

    def run(self, theta: jax.Array, noise: Noise, columns: Columns) -> tuple[Any, dict[str, Any]]:
        """Return the log prior at coordinates (k,), and {variable: distribution}."""
        sites = (*self.sites, *[NOISE_SITE] * self.adds_noise)
        reader = ParameterReader(self.owner, {}, sites, theta)
        found = perform(partial(self.distribution, noise, columns), reader)
        return reader.log_prior, {self.variable: found}

    def draw(self, key: jax.Array, noise: Noise, columns: Columns) -> jax.Array:
        """Draw coordinates (k,) from the prior."""
        sampler = ParameterSampler(self.owner, {}, key)
        perform(partial(self.distribution, noise, columns), sampler)
        return jnp.concatenate(sampler.parts)

    def _visit(self, handler: SiteHandler) -> None:
        """Run the function where all causes are 0, to find its parameters."""
        causes = dict.fromkeys(self.causes, jnp.zeros(1))
        perform(partial(self.distribution, Noise(0.0, 1.0, 1.0), causes), handler)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{site: shape} of its parameters in a NumPyro program."""
        found = ParameterDiscovery(self.owner, {})
        self._visit(found)
        return {f"{name}[{self.variable}]": shape for name, shape in found.shapes.items()}

    def coordinates(self, draw: Columns) -> jax.Array:
        """Return the coordinates (k,) of one draw of the sites."""
        reader = Unconstrained(self.owner, {}, draw, f"[{self.variable}]")
        self._visit(reader)
        return jnp.concatenate(reader.parts)


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

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{site: shape} of its parameters in a NumPyro program."""
        found = ParameterDiscovery(self.owner, dict.fromkeys(self.nodes, jnp.zeros(1)))
        perform(self.program, found)
        return found.shapes

    def coordinates(self, draw: Columns) -> jax.Array:
        """Return the coordinates (k,) of one draw of the sites."""
        given = dict.fromkeys(self.nodes, jnp.zeros(1))
        reader = Unconstrained(self.owner, given, draw, "")
        perform(self.program, reader)
        return jnp.concatenate(reader.parts)


Block = FunctionBlock | ProgramBlock | NoisyEquation


def log_probability(distribution: Any, values: Any) -> jax.Array:
    """Return the log density of values under a distribution; minus infinity outside its support."""
    inside = distribution.support(values)
    rounded = jnp.round(values).astype(int) if distribution.is_discrete else values
    logs: jax.Array = jnp.where(inside, distribution.log_prob(rounded), -jnp.inf)
    return logs


def is_exact(distribution: Any) -> bool:
    """Return whether a variable is a function of its causes, without any noise."""
    return isinstance(distribution, dist.Delta)


def has_mean(distribution: Any) -> bool:
    """Return whether NumPyro has the mean and variance of a distribution."""
    try:
        return distribution.mean is not None and distribution.variance is not None
    except NotImplementedError:
        return False


def quantiles(distribution: Any, normal: Any, uniform: Any, extra: Any, key: jax.Array) -> Any:
    """Return values of a distribution at points of given ranks.

    Parameters
    ----------
    distribution:
        A distribution of one number, or of one for each point.
    normal, uniform:
        Standard normal and uniform points (S,) of the same ranks.
    extra:
        Further uniform points (S,), independent of these.
    key:
        For reparameterized draws, where no quantile function is available.

    Raises
    ------
    MechanismError
        If the distribution has no reparameterized draws either.
    """
    if is_exact(distribution):
        return distribution.v
    if type(distribution) is dist.Normal:
        return distribution.loc + distribution.scale * normal
    if isinstance(distribution, dist.Gamma):
        return gamma_quantile(distribution.concentration, uniform) / distribution.rate
    if isinstance(distribution, dist.InverseGamma):
        return distribution.rate / gamma_quantile(distribution.concentration, 1 - uniform)
    if isinstance(distribution, dist.Beta):
        one = gamma_quantile(distribution.concentration1, uniform)
        return one / (one + gamma_quantile(distribution.concentration0, extra))
    if isinstance(distribution, dist.StudentT) and not isinstance(distribution, StudentNoise):
        chi = gamma_quantile(distribution.df / 2, extra) / (distribution.df / 2)
        return distribution.loc + distribution.scale * normal / jnp.sqrt(chi)
    try:
        return distribution.icdf(uniform)
    except (NotImplementedError, ImportError):
        pass
    if not distribution.has_rsample:
        raise MechanismError(f"{type(distribution).__name__} has no reparameterized draws")
    return distribution.sample(key, () if distribution.batch_shape else jnp.shape(uniform))


def gamma_quantile(shape: Any, uniform: Any) -> jax.Array:
    """Return quantiles of a gamma variable of rate 1, for shapes () or (S,) and ranks (S,)."""
    shape = jnp.asarray(shape, float) + jnp.zeros(jnp.shape(uniform))
    fixed = jax.lax.stop_gradient(shape)
    high = jnp.log(fixed + 40 * jnp.sqrt(fixed) + 800)

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2
        below = gammainc(fixed, jnp.exp(middle)) < uniform
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = (jnp.full_like(fixed, SMALLEST_LOG_QUANTILE), high)
    ends = jax.lax.fori_loop(0, BISECTION_STEPS, halve, start)
    root = jax.lax.stop_gradient((ends[0] + ends[1]) / 2)
    density = jnp.exp(fixed * root - jnp.exp(root) - gammaln(fixed))  # of the logarithm
    density = jnp.maximum(density, 1e-300)
    quantile: jax.Array = jnp.exp(root - (gammainc(shape, jnp.exp(root)) - uniform) / density)
    return quantile


class PaddedObservations(NamedTuple):
    """Observations of all variables (n, p), and where each was not set; padding is all set.

    filled: (n, p) the same values, but where a variable was set, an observed one.
    """

    values: Any
    filled: Any
    free: Any


class Typical(NamedTuple):
    """Mean and sd (p,) of the observations of every variable."""

    centre: Any
    scale: Any


def block_log_densities(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    observations: PaddedObservations,
    theta: jax.Array,
) -> jax.Array:
    """Return the log densities (n, v) of observations of the variables of a block at theta (k,)."""
    values, filled, free = map(jnp.asarray, observations)
    distributions = block.run(theta, setting, dict(zip(nodes, values.T, strict=True)))[1]
    columns = []
    for name in block.variables:
        position = nodes.index(name)
        if is_exact(distributions[name]):  # compared with the data once, by `require_formulas`
            columns.append(jnp.zeros(len(values)))
            continue
        logs = log_probability(distributions[name], filled[:, position])
        columns.append(jnp.where(free[:, position], logs, 0.0))
    return jnp.stack(columns, axis=1)


@partial(jax.jit, static_argnums=(0, 1))
def block_log_densities_of_many(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    observations: PaddedObservations,
    theta: jax.Array,
) -> jax.Array:
    """Return the log densities (n, m, v) of m observations at thetas (n, k) of a block."""
    work = partial(block_log_densities, block, nodes, setting, observations)
    logs: jax.Array = jax.lax.map(work, theta, batch_size=16)
    return logs


@partial(jax.jit, static_argnums=(0, 1, 2))
def block_samples_of_each(
    block: Block,
    name: str,
    nodes: tuple[str, ...],
    setting: Any,
    theta: jax.Array,
    seeds: jax.Array,
    values: jax.Array,
) -> jax.Array:
    """Draw a variable of a block (n, m) given values (n, m, p), at thetas (n, k), seeds (n, 1)."""

    def one(row: Any) -> jax.Array:
        own, seed, given = row
        distribution = block.run(own, setting, dict(zip(nodes, given.T, strict=True)))[1][name]
        shape = () if distribution.batch_shape else (len(given),)
        drawn: jax.Array = distribution.sample(jax.random.key(seed[0]), shape)
        return drawn + jnp.zeros(len(given))

    samples: jax.Array = jax.lax.map(one, (theta, seeds, values), batch_size=16)
    return samples


def block_prior(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, theta: jax.Array
) -> jax.Array:
    """Return the log prior of a block at theta (k,), which does not depend on the data."""
    log_prior: jax.Array = block.run(theta, setting, _typical_columns(nodes, typical))[0]
    return log_prior


def _typical_columns(nodes: tuple[str, ...], typical: Typical) -> dict[str, jax.Array]:
    """Return the mean (1,) of every variable, at which functions are run for their priors."""
    return dict(zip(nodes, jnp.asarray(typical.centre)[:, None], strict=True))


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
        likelihood = block_log_densities(block, nodes, setting, observations, point).sum()
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
    except MechanismError:  # an improper prior
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
