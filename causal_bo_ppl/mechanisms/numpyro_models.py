"""What is the model, as a NumPyro program that an analyst can read and run?

A mechanism is a function of the values of all earlier variables that draws its parameters at sites
and returns the distribution of its variable given these values: user-defined mechanisms are written
so, and the linear and Gaussian-process ones below too. The program draws one variable after the
other in causal order,

    V_j ~ mechanism_j(V_1, ..., V_{j-1}).

Where latent causes join variables, their noise is correlated: with L the Cholesky factor of the
correlations of all noise that was not replaced by an experiment, and u the standardized noise,

    V_j ~ Normal(mean_j + sd_j sum_{i<j} L_ji u_i, sd_j L_jj).

`coordinates_at` maps draws of the sites to the coordinates psi of the densities that are fitted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.hsgp.laplacian import eigenfunctions
from numpyro.distributions import constraints
from numpyro.handlers import do
from numpyro.primitives import _PYRO_STACK, Messenger

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.errors import (
    DataError,
    DomainError,
    MechanismError,
    ModelError,
    listed,
    unknown,
)
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.inputs import read_count, read_number
from causal_bo_ppl.mechanisms.base import Mechanism
from causal_bo_ppl.mechanisms.custom_sites import (
    FunctionBlock,
    Noise,
    ProgramBlock,
    is_exact,
    log_probability,
)
from causal_bo_ppl.mechanisms.gp_basis import BOUNDARY_FACTOR, Frame, Group, log_spectrum
from causal_bo_ppl.mechanisms.gp_priors import usable_entries
from causal_bo_ppl.mechanisms.gp_regressions import (
    AffineChart,
    BoundEquation,
    bind_equation,
    condition,
)
from causal_bo_ppl.mechanisms.gp_responses import coefficient_sites, label_of, scale_sites
from causal_bo_ppl.mechanisms.linear import LinearModel, correlation_factor
from causal_bo_ppl.mechanisms.linear_equations import (
    DRAWN_WEIGHT,
    FixedPrior,
    ScaledPrior,
    learn_equations,
)
from causal_bo_ppl.mechanisms.noise_models import NoisyEquation, NoisyMechanism
from causal_bo_ppl.mechanisms.scm import SCM
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.interventions import distinct_rows

OBSERVATIONS = "observations"  # the name of the plate

NO_OUTCOMES = (
    "a NumPyro program holds whole observations; outcomes of the target alone are learned from by "
    "cb.fit(..., outcomes=...)"
)

Values = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]


class RootInverseGamma(dist.Distribution):  # type: ignore[misc]
    """The distribution of an sd whose square is inverse gamma.

    Its density in sd is proportional to sd^-(2 concentration + 1) exp(-rate / sd^2). Where the
    concentration is not positive it is improper, has no constant and cannot be drawn from.
    """

    arg_constraints = {"concentration": constraints.real, "rate": constraints.positive}
    support = constraints.positive

    def __init__(self, concentration: float, rate: float) -> None:
        self.concentration, self.rate = concentration, rate
        super().__init__()

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw sds of this shape."""
        if not self.concentration > 0:
            raise NotImplementedError("an improper prior cannot be drawn from")
        gamma = jax.random.gamma(key, self.concentration, sample_shape)
        return jnp.sqrt(self.rate / gamma)

    def log_prob(self, value: Any) -> jax.Array:
        """Return the log density of sds."""
        power = 2 * self.concentration + 1
        return -power * jnp.log(value) - self.rate / jnp.asarray(value) ** 2


class WeakPrior(dist.Distribution):  # type: ignore[misc]
    """A prior that is improper or nearly so: `density` is its density, draws are from `drawn`.

    So are variances under a `ScaledPrior` that has no mean, see there.
    """

    pytree_data_fields = ("density", "drawn")

    def __init__(self, density: Any, drawn: Any) -> None:
        self.density, self.drawn = density, drawn
        super().__init__(density.batch_shape)

    @property
    def support(self) -> Any:
        """The support of the density."""
        return self.density.support

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw from the narrower distribution."""
        drawn: jax.Array = self.drawn.sample(key, sample_shape)
        return drawn

    def log_prob(self, value: Any) -> jax.Array:
        """Return the log density of the prior itself."""
        log_density: jax.Array = self.density.log_prob(value)
        return log_density


class RoundedNoise(dist.LogNormal):  # type: ignore[misc]
    """The prior of the sd of the noise of values with rounding errors.

    It is log-normal, times exp(-rounding / (2 sd^2)) with `rounding` the sum of squares of the
    rounding errors of all values, so that sds near 0 are not possible.
    """

    arg_constraints = dist.LogNormal.arg_constraints | {"rounding": constraints.nonnegative}

    def __init__(self, loc: float, scale: float, rounding: float) -> None:
        self.rounding = rounding
        super().__init__(loc, scale)

    def log_prob(self, value: Any) -> jax.Array:
        """Return the log density of sds, up to a constant."""
        log_density: jax.Array = super().log_prob(value) - 0.5 * self.rounding / value**2
        return log_density


class Experiment(dist.Distribution):  # type: ignore[misc]
    """The distribution of n values of a variable some of which are given, as by an experiment.

    Given values have no density and are what is drawn. filled: the values, with one that is
    possible in place of each that is given.
    """

    pytree_data_fields = ("natural", "is_given", "values", "filled")

    def __init__(self, natural: Any, is_given: Any, values: Any, filled: Any) -> None:
        self.natural, self.is_given = natural, is_given
        self.values, self.filled = values, filled
        super().__init__(jnp.shape(values))

    @property
    def support(self) -> Any:
        """The support of the values that are not given."""
        return self.natural.support

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw all values that are not given."""
        drawn = self.natural.sample(key, sample_shape)
        return jnp.where(self.is_given, self.values, drawn)

    def log_prob(self, value: Any) -> jax.Array:
        """Return the log density of each value, 0 where it is given."""
        safe = jnp.where(self.is_given, self.filled, value)
        return jnp.where(self.is_given, 0.0, log_probability(self.natural, safe))


@dataclass(frozen=True, eq=False)
class LinearMechanism:
    """V = a + sum_i b_i V_i + e with the prior |half b - pull|^2 / s2 of the d coefficients b.

    names: of the sites of the coefficients. causes: of each, None for the intercept. half (d, d) is
    upper triangular, so that each coefficient is Gaussian given the later ones, and the intercept
    comes last. noise: the prior of the sd, or the sd where it is known. known: {cause: slope}.
    """

    variable: str
    names: tuple[str, ...]
    causes: tuple[str | None, ...]
    half: np.ndarray
    pull: np.ndarray
    noise: Any
    known: Mapping[str, float]

    @property
    def shapes(self) -> Shapes:
        """{site: shape} of its parameters."""
        noise = [] if isinstance(self.noise, float) else [f"sd[{self.variable}]"]
        return dict.fromkeys([*self.names, *noise], ())

    def __call__(self, values: Values) -> Any:
        """Draw sd, slopes and intercept; return the distribution given the causes."""
        is_known = isinstance(self.noise, float)
        sd = self.noise if is_known else numpyro.sample(f"sd[{self.variable}]", self.noise)
        drawn: dict[int, Any] = {}
        for k in reversed(range(len(self.names))):
            later = sum(float(self.half[k, j]) * b for j, b in drawn.items())
            centre = (float(self.pull[k]) - later) / float(self.half[k, k])
            width = sd / abs(float(self.half[k, k]))
            drawn[k] = numpyro.sample(self.names[k], dist.Normal(centre, width))
        mean = sum((slope * values[cause] for cause, slope in self.known.items()), 0.0)
        for k, cause in enumerate(self.causes):
            mean = mean + (drawn[k] if cause is None else drawn[k] * values[cause])
        return dist.Normal(mean, sd)

    @property
    def formula(self) -> str:
        """The mechanism on paper."""
        terms = [
            name if cause is None else f"{name} {cause}"
            for name, cause in zip(self.names, self.causes, strict=True)
        ]
        terms += [f"{slope:g} {cause}" for cause, slope in self.known.items()]
        sd = f"{self.noise:g}" if isinstance(self.noise, float) else f"sd[{self.variable}]"
        return f"{self.variable} ~ Normal({' + '.join(terms) or '0'}, {sd})"


@dataclass(frozen=True, eq=False)
class NonlinearMechanism:
    """A trend, Gaussian processes in a Hilbert-space basis, and hinges; see `gp_basis`.

    graph: the target and its causes. eta: the hyperparameters where they are fixed, except the sd
    of the noise.
    """

    graph: CausalGraph
    bound: BoundEquation
    eta: np.ndarray | None = None

    @property
    def node(self) -> str:
        """The variable, or a text such as Y|X,Z where it is a regression and no mechanism."""
        return label_of(self.graph, self.bound.equation)

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes whose influence is learned."""
        return tuple(self.graph.nodes[position] for position in self.bound.equation.causes)

    @property
    def joined(self) -> tuple[str, ...]:
        """The causes with known slopes."""
        return tuple(self.graph.nodes[position] for position in self.bound.equation.known)

    @property
    def scales(self) -> list[str]:
        """The sites of the hyperparameters, in the order of eta."""
        return [site for site, _ in scale_sites(self.graph, self.bound.equation)]

    def coefficients(self) -> list[tuple[str, int, bool]]:
        """Return site, size and whether it is standardized, of all coefficients in their order."""
        sites = coefficient_sites(self.graph, self.bound.equation)
        return [(site, size, site.startswith("f[")) for site, size, _ in sites]

    @property
    def shapes(self) -> Shapes:
        """{site: shape} of its parameters."""
        scales = self.scales if self.eta is None else self.scales[:1]
        vectors = {name: (size,) * is_long for name, size, is_long in self.coefficients()}
        return dict.fromkeys(scales, ()) | vectors

    def __call__(self, values: Values) -> Any:
        """Draw hyperparameters and coefficients; return the distribution given the causes."""
        (equation, setting, known), node = self.bound, self.node
        form, frame, prior = equation.form, setting.frame, known.prior
        widths, rounding = np.exp(np.asarray(prior.log_sd)), float(known.statistics.rounding)
        scales = self._draw_scales(rounding)
        trend = scales.get(f"trend[{node}]", 1.0)
        mean = numpyro.sample(f"level[{node}]", dist.Normal(float(prior.level), widths[0]))
        for index, cause in enumerate(self.causes):
            slope = dist.Normal(0.0, trend * widths[1 + index])
            b = numpyro.sample(f"b[{cause}->{node}]", slope)
            mean = mean + b * (values[cause] - frame.origin[index])
        for group in form.groups:
            members = [self.causes[column] for column in group.columns]
            label = f"{'*'.join(members)}->{node}"
            names = [f"amplitude[{label}]", *(f"lengthscale[{each}->{node}]" for each in members)]
            eta = jnp.log(jnp.stack([jnp.asarray(scales[name], float) for name in names]))
            sds = jnp.exp(0.5 * log_spectrum(group, frame, eta))  # a root of 0 has no derivative
            waves = hilbert_basis(group, frame, jnp.stack([values[c] for c in members], axis=-1))
            unit = dist.Normal(jnp.zeros(group.size), 1.0).to_event(1)
            mean = mean + waves @ (sds * numpyro.sample(f"f[{label}]", unit))
        for (one, other), width in zip(form.products, widths[form.multiplied], strict=True):
            first, second = self.causes[one], self.causes[other]
            b = numpyro.sample(f"b[{first}*{second}->{node}]", dist.Normal(0.0, width))
            centred = values[first] - frame.origin[one], values[second] - frame.origin[other]
            mean = mean + b * centred[0] * centred[1]
        for number, index in enumerate(form.hinged):
            cause, start = self.causes[index], form.size - 2 * (len(form.hinged) - number)
            below, above = (dist.Normal(0.0, width) for width in widths[start : start + 2])
            low = numpyro.sample(f"low[{cause}->{node}]", below)
            high = numpyro.sample(f"high[{cause}->{node}]", above)
            mean = mean + low * jnp.maximum(frame.low[index] - values[cause], 0.0)
            mean = mean + high * jnp.maximum(values[cause] - frame.high[index], 0.0)
        for slope, cause in zip(np.asarray(setting.slopes).tolist(), self.joined, strict=True):
            mean = mean + slope * values[cause]
        return dist.Normal(mean, scales[f"sd[{node}]"])

    def _draw_scales(self, rounding: float) -> dict[str, Any]:
        """Draw the sd of the noise and the hyperparameters, or take those that are fixed."""
        prior, drawn = self.bound.known.prior, {}
        for index, name in enumerate(self.scales):
            centre, width = float(prior.centre[index]), float(prior.width[index])
            if self.eta is not None and index:
                drawn[name] = math.exp(self.eta[index])
                continue
            scale = (
                dist.LogNormal(centre, width) if index else RoundedNoise(centre, width, rounding)
            )
            drawn[name] = numpyro.sample(name, scale)
        return drawn

    @property
    def formula(self) -> str:
        """The mechanism on paper."""
        terms = [f"level[{self.node}]"]
        terms += [f"b[{cause}->{self.node}] ({cause} - mean)" for cause in self.causes]
        for group in self.bound.equation.form.groups:
            members = [self.causes[column] for column in group.columns]
            terms.append(f"f[{'*'.join(members)}->{self.node}]({', '.join(members)})")
        for one, other in self.bound.equation.form.products:
            first, second = self.causes[one], self.causes[other]
            terms.append(f"b[{first}*{second}->{self.node}] ({first} - mean) ({second} - mean)")
        if self.bound.equation.form.hinged:
            terms.append("hinges")
        slopes = np.asarray(self.bound.setting.slopes).tolist()
        terms += [f"{slope:g} {cause}" for slope, cause in zip(slopes, self.joined, strict=True)]
        return f"{self.node} ~ Normal({' + '.join(terms)}, sd[{self.node}])"


def hilbert_basis(group: Group, frame: Frame, inputs: jax.Array) -> jax.Array:
    """Return the basis functions (n, K) of a group at inputs (n, c), by NumPyro."""
    columns = np.array(group.columns)
    middle, half = np.asarray(frame.middle)[columns], np.asarray(frame.half)[columns]
    ends, inside = (BOUNDARY_FACTOR * half).tolist(), inputs - middle[None]
    waves: jax.Array = eigenfunctions(jnp.clip(inside, -half, half), ends, list(group.functions))
    return waves


class Renamed(Messenger):  # type: ignore[misc]
    """Add the variable to the names of all sites of its mechanism: most becomes most[Z]."""

    def __init__(self, variable: str) -> None:
        super().__init__()
        self.variable = variable

    def process_message(self, msg: dict[str, Any]) -> None:
        """Rename a site before other handlers see it."""
        if msg["type"] in ("sample", "deterministic"):
            msg["name"] = f"{msg['name']}[{self.variable}]"


@dataclass(frozen=True, eq=False)
class FunctionMechanism:
    """A user-defined function of the causes, with the noise that is added to a mean."""

    block: FunctionBlock
    noise: Noise

    @property
    def shapes(self) -> Shapes:
        """{site: shape} of its parameters."""
        return self.block.shapes

    def __call__(self, values: Values) -> Any:
        """Call the function; return the distribution given the causes."""
        with Renamed(self.block.variable):
            return self.block.distribution(Noise(*map(float, self.noise)), values)

    @property
    def formula(self) -> str:
        """The mechanism on paper."""
        name = getattr(self.block.function, "__name__", "function")
        given = f"{name}({', '.join(self.block.causes)})"
        variable = self.block.variable
        return f"{variable} ~ " + (
            f"Normal({given}, sd[{variable}])" if self.block.adds_noise else given
        )


@dataclass(frozen=True, eq=False)
class UnknownMechanism:
    """A variable whose mechanism no effect depends on, and that data or prior do not determine.

    It is NaN where it is drawn, so that nothing is concluded from it; it may be set.
    """

    variable: str
    shapes = MappingProxyType[str, tuple[int, ...]]({})

    def __call__(self, values: Values) -> Any:
        """Return the distribution, a point at NaN."""
        return dist.Delta(jnp.nan)

    @property
    def formula(self) -> str:
        """The mechanism on paper."""
        return f"{self.variable} ~ ?"


@dataclass(frozen=True, eq=False)
class LatentArcs:
    """Latent causes of pairs of variables, each with a strength t; see `linear.correlation_factor`.

    members: the variables that are joined, in causal order. arcs: pairs of their positions. width:
    sd of a strength.
    """

    members: tuple[str, ...] = ()
    arcs: tuple[tuple[int, int], ...] = ()
    width: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """The sites of the strengths."""
        return tuple(f"t[{self.members[i]}<->{self.members[j]}]" for i, j in self.arcs)

    def __call__(self, is_given: np.ndarray) -> jax.Array:
        """Draw the strengths; return the Cholesky factor of the noise of every row, (n, k, k).

        is_given: (n, k), which members have no noise in a row, because their values were set.
        """
        prior = dist.Normal(0.0, self.width)
        strengths = jnp.stack([numpyro.sample(name, prior) for name in self.names])
        factor = correlation_factor(len(self.members), self.arcs, strengths)
        first, kind = distinct_rows(is_given)
        free = jnp.asarray(~is_given[first], float)
        both = free[:, :, None] * free[:, None, :]
        alone = jnp.eye(len(self.members))[None] * (1 - free)[:, None, :]
        roots: jax.Array = jnp.linalg.cholesky(both * (factor @ factor.T)[None] + alone)
        return roots[kind]


class KnownRows(NamedTuple):
    """What is known of n rows: {variable: values, whether they are given, possible values}."""

    size: int
    known: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]

    def observe(self, name: str, natural: Any) -> Any:
        """Return the values of a variable: observed where there are data, otherwise drawn."""
        if name not in self.known:
            return numpyro.sample(name, natural)
        values, is_given, filled = self.known[name]
        if isinstance(natural, dist.Normal) and not is_given.any():
            return numpyro.sample(name, natural, obs=values)
        everywhere = np.ones_like(is_given) if is_exact(natural) else is_given
        rows = Experiment(natural.expand((self.size,)), everywhere, values, filled)
        return numpyro.sample(name, rows, obs=values)

    def spread(self, value: Any) -> jax.Array:
        """Return one value for each row, of a value that may be the same for all."""
        return jnp.broadcast_to(jnp.asarray(value), (self.size,))


class ProgramSites(Messenger):  # type: ignore[misc]
    """Give the variables of a whole program their rows, and the data where there are any."""

    def __init__(self, nodes: Sequence[str], rows: KnownRows) -> None:
        super().__init__()
        self.nodes, self.rows = nodes, rows

    def process_message(self, msg: dict[str, Any]) -> None:
        """Change the site of a variable before other handlers see it."""
        name = str(msg.get("name"))
        if name not in self.nodes or msg["type"] not in ("sample", "deterministic"):
            return
        if msg["type"] == "deterministic":  # a formula; as a sample site it can be intervened on
            formula = self.rows.spread(msg["value"])
            unused = {"rng_key": None, "sample_shape": ()}
            msg |= {"type": "sample", "fn": dist.Delta(formula), "args": (), "kwargs": unused}
            msg |= {"value": formula, "is_observed": True, "scale": None, "infer": {}}
            msg |= {"intermediates": [], "cond_indep_stack": []}
        elif not isinstance(msg["fn"], Experiment):
            msg["fn"] = msg["fn"].expand((self.rows.size,))
        if name in self.rows.known and not isinstance(msg["fn"], Experiment):
            values, is_given, filled = self.rows.known[name]
            everywhere = np.ones_like(is_given) if is_exact(msg["fn"]) else is_given
            msg["fn"] = Experiment(msg["fn"], everywhere, values, filled)
            msg["value"], msg["is_observed"] = jnp.asarray(values), True


@dataclass(frozen=True, eq=False)
class NumPyroModel:
    """The NumPyro program of a problem; made by `cb.numpyro_model`, and by `post.numpyro_model`.

    Call it as NumPyro calls a model. `model()` observes the data. `model(rows=n)` draws n new rows
    of all variables, in which nothing is set: `Predictive(model, draws)(key, rows=100)`, and under
    an intervention `Predictive(model.do({"X": 1.0}), draws)(key, rows=100)`. A program without data
    draws one row by default. `print(model)` shows the mechanisms on paper.

    Attributes
    ----------
    problem:
        The problem whose mechanisms these are.
    data:
        The observations, none where it was made without data.
    mechanisms:
        {variable: function that draws its parameters and returns its distribution}, in the order
        in which variables are drawn. Each takes {variable: values}.
    arcs:
        The latent causes that correlate the noise.
    plans:
        Where regressions take the place of mechanisms, see `numpyro_model`, those of all effects.
    whole:
        A user-defined program that holds all mechanisms.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> print(cb.numpyro_model(system.problem, system.observe(50, 0)))
    NumPyroModel(50 observations of X, Z, Y)
      X ~ Normal(a[X], sd[X])
      Z ~ Normal(a[Z] + b[X->Z] X, sd[Z])
      Y ~ Normal(a[Y] + b[Z->Y] Z, sd[Y])
    """

    problem: Problem
    data: Data
    mechanisms: Mapping[str, Mechanism]
    arcs: LatentArcs = field(default_factory=LatentArcs)
    is_given: np.ndarray | None = None
    plans: SamplingPlans | None = None
    whole: ProgramBlock | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The variables, each with a site of its name, in the order in which they are drawn."""
        return tuple(self.mechanisms) if self.whole is None else self.whole.nodes

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """{site: shape} of all parameters."""
        shapes = {} if self.whole is None else self.whole.shapes
        for mechanism in self.mechanisms.values():
            shapes |= mechanism.shapes
        return shapes | dict.fromkeys(self.arcs.names, ())

    def __call__(self, rows: int | None = None) -> None:
        """Observe the data; or draw so many new rows, in which nothing is set."""
        known = self._rows(rows)
        if self.whole is not None:
            with ProgramSites(self.nodes, known):
                self.whole.program()
            return
        values: dict[str, Any] = {}
        noise = Disturbances(self.arcs, known)
        plate = numpyro.plate(OBSERVATIONS, known.size)
        for name, mechanism in self.mechanisms.items():
            natural = mechanism(values)
            with plate:
                drawn = noise.draw(name, natural) if name in self.arcs.members else None
                drawn = known.observe(name, natural) if drawn is None else drawn
            values[name] = known.spread(drawn)

    def _rows(self, rows: int | None) -> KnownRows:
        if rows is not None or not len(self.data):
            return KnownRows(1 if rows is None else read_count("rows", rows, 1), {})
        return KnownRows(len(self.data), self._observed)

    @cached_property
    def _observed(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The values of every variable, which have no density, and possible ones in their place."""
        columns, known = [self.data.nodes.index(name) for name in self.nodes], {}
        is_given = self.data.intervened[:, columns] if self.is_given is None else self.is_given
        for name, given in zip(self.nodes, is_given.T, strict=True):
            values = self.data.column(name)
            known[name] = values, given, np.where(given, values[given.argmin()], values)
        return known

    def do(self, intervention: Mapping[str, float]) -> Any:
        """Return the program after an intervention; every name and value is checked.

        It is `numpyro.handlers.do`, which by itself ignores a name that is no site. What is
        downstream sees the values that are set; under the name of a variable that is set NumPyro
        keeps what it would have been.

        Parameters
        ----------
        intervention:
            {variable: value}, of any variables but the target.

        Returns
        -------
        Callable
            A NumPyro program like this one.

        Raises
        ------
        DomainError
            If a variable is unknown or the target, or a value is no number or outside its domain.
        ModelError
            If the program consists of regressions that the intervention changes.

        Examples
        --------
        >>> import jax
        >>> import causal_bo_ppl as cb
        >>> from numpyro.infer import Predictive
        >>> system = cb.models.load("chain")
        >>> prior = cb.priors.FixedPrior(noise_observations=10.0)
        >>> model = cb.numpyro_model(system.problem, prior=prior)
        >>> drawn = Predictive(model.do({"Z": 2.0}), num_samples=50)(jax.random.key(0), rows=3)
        >>> drawn["Y"].shape
        (50, 3)
        """
        if not isinstance(intervention, Mapping):
            raise DomainError(f"an intervention is {{variable: value}}, got {intervention!r}")
        values = {}
        for name, value in intervention.items():
            if name not in self.nodes:
                raise DomainError(unknown("variable", name, self.nodes))
            if name == self.problem.target:
                raise DomainError(f"the target {name!r} cannot be set")
            values[name] = read_number(name, value)
            low, high = self.problem.domains.get(name, (-math.inf, math.inf))
            if not (math.isfinite(values[name]) and low <= values[name] <= high):
                raise DomainError(
                    f"do({name} = {values[name]:g}) lies outside [{low:g}, {high:g}]; widen the "
                    "domain in the problem, or clip the value"
                )
        if self.plans is not None:
            plans = self.plans
            others = [name for name in self.nodes if name not in values]
            changed = [name for name in others if not plans.is_invariant(name, tuple(values))]
            if changed:
                raise ModelError(
                    f"latent causes join variables, so that this program consists of regressions, "
                    f"and do({', '.join(values)}) changes that of {listed(changed)}; the right "
                    "effect is that of cb.effects(post, ...), which draws by another plan"
                )
        return do(self, data=values)

    def __repr__(self) -> str:
        size = f"{len(self.data)} observations" if len(self.data) else "no observations"
        lines = [f"NumPyroModel({size} of {listed(self.nodes)})"]
        lines += [mechanism.formula for mechanism in self.mechanisms.values()]
        lines += [f"{name}: the latent cause of both" for name in self.arcs.names]
        lines += [] if self.whole is None else [f"program {_name(self.whole.program)}"]
        return "\n  ".join(lines)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


class Disturbances:
    """The standardized noise of variables that latent causes join, as they are drawn in turn.

    New noise has a site e[X] of its own and the variable is a point, so that `do` sets the variable
    and leaves the noise, which others share, as it is. Observed noise follows from the data.
    """

    def __init__(self, arcs: LatentArcs, rows: KnownRows) -> None:
        self.rows, self.members = rows, arcs.members
        self.drawn: list[jax.Array] = []
        if not arcs.members:
            return
        free = np.zeros((rows.size, len(arcs.members)), bool)
        if rows.known:
            free = np.stack([rows.known[name][1] for name in arcs.members], axis=1)
        self.factor = arcs(free)

    def draw(self, name: str, natural: Any) -> Any:
        """Draw or observe one of these variables, given the noise of earlier ones."""
        index = self.members.index(name)
        shared = jnp.zeros(self.rows.size)
        for earlier, noise in zip(range(index), self.drawn, strict=True):
            shared = shared + self.factor[:, index, earlier] * noise
        mean = natural.loc + natural.scale * shared
        sd = natural.scale * self.factor[:, index, index]
        if name not in self.rows.known:
            self.drawn.append(numpyro.sample(f"e[{name}]", dist.Normal(0.0, 1.0)))
            return numpyro.sample(name, dist.Delta(mean + sd * self.drawn[-1]))
        if any(isinstance(each, do) and name in map(_unscoped, each.data) for each in _PYRO_STACK):
            raise ModelError(
                f"{name!r} shares latent causes, and its noise follows from its observed values, "
                "which `do` would replace; draw new rows: Predictive(model, draws)(key, rows=100)"
            )
        value = self.rows.observe(name, dist.Normal(mean, sd))
        self.drawn.append(jnp.where(self.rows.known[name][1], 0.0, (value - mean) / sd))
        return value


def _unscoped(site: str) -> str:
    """Return the name of a site without the prefix that `numpyro.handlers.scope` gave it."""
    return site.rpartition("/")[2]


def program_of(model: Any) -> NumPyroModel:
    """Return the program of the model of a family.

    Every cause of the target has a mechanism, also one that no effect depends on, which is learned
    apart from the others.
    """
    if isinstance(model, LinearModel):
        return _linear_program(model)
    if isinstance(model, SCM):
        return _nonlinear_program(model)
    raise MechanismError(
        "only linear, Gaussian-process and user-defined NumPyro mechanisms have a NumPyro program; "
        f"got {'no mechanisms' if model is None else type(model).__name__}"
    )


def _linear_program(model: LinearModel) -> NumPyroModel:
    graph, prior, problem = model.graph, model.prior, model.problem
    if len(model.outcomes.values):
        raise MechanismError(NO_OUTCOMES)
    spare = 3 + model.intercepts
    is_known = model.learned | np.array(
        [isinstance(prior, FixedPrior) or _is_learnable(model, name, spare) for name in graph.nodes]
    )
    equations = learn_equations(graph, model.known, model.intercepts, prior, is_known, model.data)
    terms, known_noise = equations.prior_terms, equations.has_known_noise
    mechanisms: dict[str, Mechanism] = {}
    rows = np.cumsum(is_known) - 1
    for position, (name, row) in enumerate(zip(graph.nodes, rows.tolist(), strict=True)):
        if not is_known[position]:
            mechanisms[name] = UnknownMechanism(name)
            continue
        free = equations.free_parents[position]
        causes: tuple[str | None, ...] = (*[None] * model.intercepts, *free)
        size = len(causes)
        names = [f"a[{name}]" if each is None else f"b[{each}->{name}]" for each in causes]
        noise: Any = float(np.sqrt(equations.posterior.variance[position]))
        if not known_noise:
            shape, rate = float(terms.shape[row]), float(terms.rate[row])
            noise = RootInverseGamma(shape, rate)
            if isinstance(prior, ScaledPrior) and not equations.has_prior_mean[row]:
                guess = rate * DRAWN_WEIGHT / prior.observations
                noise = WeakPrior(noise, RootInverseGamma(DRAWN_WEIGHT / 2, guess))
        known = {
            cause: problem.known[cause, name] for cause in graph.parents(name) if cause not in free
        }
        half, pull = terms.half[row, :size, :size], terms.pull[row, :size]
        options = half, pull, noise, known
        mechanisms[name] = LinearMechanism(name, tuple(names), causes, *options)
    return NumPyroModel(problem, model.data, mechanisms, _arcs(graph, prior, is_known))


def _is_learnable(model: LinearModel, name: str, spare: int) -> bool:
    """Return whether the data determine the equation of a variable that no effect depends on."""
    problem = model.problem
    try:
        require_learnable(model.data, problem.graph, problem.known, nodes=[name], spare=spare)
    except DataError:
        return False
    return True


def _arcs(graph: CausalGraph, prior: Any, is_known: np.ndarray) -> LatentArcs:
    """Return the latent causes that join learned variables."""
    pairs = [arc for arc in graph.bidirected if all(is_known[graph.index(name)] for name in arc)]
    members = graph.ordered({name for arc in pairs for name in arc})
    arcs = tuple((members.index(one), members.index(other)) for one, other in pairs)
    is_fixed = isinstance(prior, FixedPrior)
    return LatentArcs(members, arcs, prior.latent_sd if is_fixed else prior.observations**-0.5)


def _nonlinear_program(model: SCM) -> NumPyroModel:
    task, graph, data = model.task, model.graph, model.data
    if len(task.outcomes.values):
        raise MechanismError(NO_OUTCOMES)
    plans, blocks = model.plans, (*model.blocks, *model.unneeded)
    if blocks and isinstance(whole := blocks[0], ProgramBlock):
        unscored = np.array([name not in whole.variables for name in data.nodes])
        is_given = data.intervened | unscored[None]
        return NumPyroModel(task.problem, data, {}, is_given=is_given, whole=whole)
    mechanisms: dict[str, Mechanism] = {
        block.variable: FunctionMechanism(block, model.noise_of(block))
        for block in blocks
        if isinstance(block, FunctionBlock)
    }
    mechanisms |= {
        block.variable: NoisyMechanism(block, model.noise_of(block))
        for block in blocks
        if isinstance(block, NoisyEquation)
    }
    bound = {graph.nodes[each.equation.position]: each for each in model.bound}
    usable = usable_entries(plans, graph.nodes, data)
    given = {name: graph.parents(name) for name in graph.nodes} if plans is None else plans.given
    for name, regressors in given.items():
        if name in mechanisms:
            continue
        if name not in bound:
            options = model.choices[name], name, regressors, usable[:, graph.index(name)]
            try:
                bound[name] = bind_equation(task, graph, *options)
            except MechanismError:  # set in all observations
                mechanisms[name] = UnknownMechanism(name)
                continue
        mechanisms[name] = _mechanism_of(model, bound[name])
    ordered = {name: mechanisms[name] for name in given}
    is_given = ~usable[:, [graph.index(name) for name in ordered]]
    return NumPyroModel(task.problem, data, ordered, is_given=is_given, plans=plans)


def parameter_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return {site: shape of one draw} of all parameters that the effects of a model depend on."""
    if isinstance(model, LinearModel):
        return dict.fromkeys(_linear_sites(model), ())
    shapes: dict[str, tuple[int, ...]] = {}
    for equation in model.bound:
        shapes |= _mechanism_of(model, equation).shapes
    for block, _ in model.custom:
        shapes |= block.shapes
    return shapes


def coordinates_at(model: Any, sites: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the coordinates psi (n, k) of a model at n draws of its parameters.

    sites: {name: (n, ...)} with the names and shapes of `parameter_shapes`.
    """
    rows = [np.reshape(sites[name], (len(sites[name]), -1)) for name in parameter_shapes(model)]
    flat = np.concatenate(rows, axis=1)
    return np.asarray(in_pieces(jax.jit(jax.vmap(coordinate_map(model))), flat, len(flat)))


def coordinate_map(model: Any) -> Callable[[jax.Array], jax.Array]:
    """Return the map from all parameters, one after the other as in `parameter_shapes`, to psi."""
    shapes, density = parameter_shapes(model), model.density
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])

    def coordinates(flat: jax.Array) -> jax.Array:
        pieces = zip(shapes.items(), jnp.split(flat, ends[:-1]), strict=True)
        draw = {name: jnp.reshape(piece, shape) for (name, shape), piece in pieces}
        if isinstance(model, LinearModel):
            return _linear_coordinates(model, draw)
        parts = [
            _equation_coordinates(_mechanism_of(model, equation), chart, draw)
            for equation, chart in zip(model.bound, density.charts, strict=True)
        ]
        pairs = zip(model.custom, density.blocks.charts, strict=True)
        for (block, _), (centre, root) in pairs:
            gap = block.coordinates(draw) - jnp.asarray(centre)
            parts.append(jnp.linalg.solve(jnp.asarray(root), gap) if block.size else gap)
        return jnp.concatenate(parts)

    return coordinates


def _linear_sites(model: LinearModel) -> list[str]:
    """Return the sites of coefficients, sds and strengths, in the order of the coordinates."""
    spec, nodes = model.spec, model.graph.nodes
    names = [
        f"b[{nodes[cause]}->{nodes[effect]}]" if cause < len(nodes) else f"a[{nodes[effect]}]"
        for cause, effect in zip(*spec.positions, strict=True)
    ]
    names += [] if spec.known_noise else [f"sd[{nodes[position]}]" for position in spec.equations]
    return names + [f"t[{nodes[one]}<->{nodes[other]}]" for one, other in spec.arcs]


def _linear_coordinates(model: LinearModel, draw: Mapping[str, jax.Array]) -> jax.Array:
    """Return the whitened coordinates; the inverse of `LinearDensity.point`."""
    spec, whitening = model.spec, model.density.whitening
    count, scales, _ = spec.sizes
    flat = jnp.stack([draw[name] for name in _linear_sites(model)])
    strengths, used = flat[count + scales :], spec.used
    conditional = jnp.asarray(whitening.log_sd)
    if scales:
        joined = [[later == node for _, later in spec.arcs] for node in spec.equations]
        shared = jnp.asarray(np.array(joined, float).reshape(scales, -1)) @ strengths**2
        conditional = jnp.log(flat[count : count + scales]) - 0.5 * jnp.log1p(shared)
    scale = jnp.exp(conditional if spec.scale_by_sd else jnp.asarray(whitening.log_sd))
    coefficients = jnp.zeros(used.shape).at[np.nonzero(used)].set(flat[:count])
    gaps = (coefficients - whitening.centre) * used / scale[:, None]
    roots = whitening.root + np.eye(used.shape[1])[None] * ~used[:, None, :]
    z = jnp.linalg.solve(jnp.asarray(roots), gaps[..., None])[..., 0]
    u = (conditional - whitening.log_sd) / whitening.sd_width if scales else jnp.zeros(0)
    return jnp.concatenate([z[np.nonzero(used)], u, strengths / whitening.arc_width])


def _equation_coordinates(
    mechanism: NonlinearMechanism, chart: AffineChart, draw: Mapping[str, jax.Array]
) -> jax.Array:
    """Return the coordinates z and u of one equation; the inverse of `SCMDensity.states`."""
    form, known = mechanism.bound.equation.form, mechanism.bound.known
    names, centre, root = mechanism.scales, jnp.asarray(chart.centre), jnp.asarray(chart.root)
    if mechanism.eta is None:
        eta = jnp.log(jnp.stack([draw[name] for name in names]))
        u = jnp.linalg.solve(root, eta - centre)
    else:  # only the sd of the noise is free
        eta = centre.at[0].set(jnp.log(draw[names[0]]))
        u = (eta[:1] - centre[:1]) / root[0]
    given = condition(form, known, eta)
    white, start = [], 0
    for name, size, is_standardized in mechanism.coefficients():
        value = jnp.reshape(draw[name], (size,))
        if not is_standardized:
            level = known.prior.level if start == 0 else 0.0
            value = (value - level) / given.sd[start : start + size]
        white.append(value)
        start += size
    return jnp.concatenate([given.root.T @ (jnp.concatenate(white) - given.mean), u])


def _mechanism_of(model: SCM, bound: BoundEquation) -> NonlinearMechanism:
    """Return the mechanism of an equation, with its hyperparameters where they are fixed."""
    is_fixed = model.fixed and bound.equation in model.equations
    eta = model.modes[model.equations.index(bound.equation)].eta if is_fixed else None
    return NonlinearMechanism(model.graph, bound, eta)
