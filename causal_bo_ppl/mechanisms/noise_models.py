"""Mechanisms whose noise varies in size with the causes, or has heavy tails.

    V = g(causes) + e,    varying:  e ~ Normal(0, sqrt(s^2 + floor^2)),  log s = r(causes)
                          student:  e ~ s t with df degrees of freedom, df > 2

g is a mechanism of `gp_basis` (trend, Gaussian processes, products, hinges). r is a trend with
another slope beyond the mean, plus a few sines, of every cause, and is constant outside of the box.
The prior sds of the coefficients of g have hyperparameters. These are held at the mode of the
evidence of observations that are weighted by the precision of their noise,

    log p(y W | eta),    W = diag(s_bar / s_i),

with s_i from the residuals of an unweighted fit. So are those of r, from the same residuals. All
other parameters have a posterior: a Gaussian at their mode, or draws. Coordinates theta are the
coefficients of g, standardized those of its processes, then the log sd at the causes' means and the
coefficients of r, standardized those of its sines; or the log of the scale and log(df - 2).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import betainc, ndtri

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.gp_basis import Form, Frame, Group, features, log_spectrum
from causal_bo_ppl.mechanisms.gp_basis import mean as sum_of_features
from causal_bo_ppl.mechanisms.gp_priors import GP, MechanismChoice, read_spread
from causal_bo_ppl.mechanisms.gp_regressions import (
    BoundEquation,
    bind_equation,
    feature_matrix,
    find_mode,
    log_sds_of_many,
    make_form,
    samples_of_mechanisms,
    scales_of,
    starts,
    summarize,
)

VARYING, STUDENT = "varying", "student"
MEAN_FUNCTIONS = 24  # of one cause, by default: enough for lengthscales of half an sd
NOISE_FUNCTIONS, FEWER_NOISE_FUNCTIONS = 16, 8  # sines of one cause in the log sd
MANY_CAUSES = 2  # beyond which the log sd has fewer sines of each
NOISE_KERNEL = "matern32"  # of the processes in the log sd, which may have kinks
TREND_SD = 1.0  # of the slope of the log sd, for one sd of the cause
# Of the processes in the log sd: sds, and lengthscales in sds of the cause. The pair with the
# highest evidence of the residuals is taken.
PROCESS_SDS, PROCESS_LENGTHS = (0.25, 0.5, 1.0, 2.0), (0.5, 1.0, 2.0)
NOISE_FLOOR = 1e-3  # constant sd that is added to varying noise, in sds of the variable
TYPICAL_DF, DF_SPREAD = 10.0, 1.2  # median of df - 2, and the sd of its logarithm
STARTING_DF = 4.0  # by which outliers are weighted for the evidence
LEAST_WEIGHT = 0.05  # relative to the typical one, of a root of a precision
MOST_STEPS = 50


class NoiseSetting(NamedTuple):
    """Numbers of one mechanism that are not learned with its parameters; a JAX pytree.

    frame: location and range of the causes. slopes: (k,) known slopes. level: the prior mean of the
    level. sd: (K,) prior sds of the coefficients. centre, width: prior of the log sd, or of the log
    scale. noise_sd: (H,) prior sds of the coefficients of the log sd. floor: see the module. unit:
    a typical sd of the noise, for numbers that are shown.
    """

    frame: Frame
    slopes: Any
    level: Any
    sd: Any
    centre: Any
    width: Any
    noise_sd: Any
    floor: Any
    unit: Any


class StudentNoise(dist.StudentT):  # type: ignore[misc]
    """Student's t distribution, with quantiles that are fast and differentiable."""

    def icdf(self, q: Any) -> jax.Array:
        """Return quantiles of ranks q."""
        quantiles: jax.Array = self.loc + self.scale * student_quantile(self.df, q)
        return quantiles


def student_quantile(df: Any, rank: Any) -> jax.Array:
    """Return the quantile of Student's t of rank (S,), for df > 2, by Hill (1970).

    Algorithm 396 of the ACM: an expansion around the normal quantile in the middle, and one of the
    tail beyond it. Its relative error is below 1e-3, and below 1e-5 for df > 4.
    """
    rank = jnp.asarray(rank, float)
    two_sided, sign = 2 * jnp.minimum(rank, 1 - rank), jnp.sign(rank - 0.5)
    a = 1 / (df - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * jnp.sqrt(0.5 * jnp.pi * a) * df
    power = jnp.exp(2 / df * jnp.log(d * two_sided))
    x = ndtri(0.5 * two_sided)
    inner = c + jnp.where(df < 5, 0.3 * (df - 4.5) * (x + 0.6), 0.0)
    inner = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + inner
    square = x**2
    middle = (((0.4 * square + 6.3) * square + 36) * square + 94.5) / inner - square - 3
    middle = jnp.expm1(a * ((middle / b + 1) * x) ** 2)
    tail = (
        1 / (((df + 6) / (df * power) - 0.089 * d - 0.822) * (df + 2) * 3) + 0.5 / (df + 4)
    ) * power
    tail = (tail - 1) * (df + 1) / (df + 2) + 1 / power
    squared = jnp.where(power > 0.05 + a, middle, tail)
    return sign * jnp.sqrt(df * jnp.maximum(squared, 1e-300))


class NoisyEquation(NamedTuple):
    """One mechanism with such noise; hashable. It is a block, as user-defined functions are.

    causes: those whose influence is learned. joined: those with a known slope. form: of the mean.
    noise: "varying" or "student". noise_form: of the log sd.
    """

    variable: str
    causes: tuple[str, ...]
    joined: tuple[str, ...]
    form: Form
    noise: str
    noise_form: Form

    @property
    def adds_noise(self) -> bool:
        """Whether noise is added to a mean: no, `run` returns the distribution."""
        return False

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
        return self.form.size + (self.noise_form.size if self.noise == VARYING else 2)

    def sites(self) -> list[tuple[str, int, str, str]]:
        """Return site, size, name of the coordinate and meaning of all parameters in their order.

        The size of a number is 0.
        """
        node, form = self.variable, self.form
        found = [(f"level[{node}]", 0, f"level[{node}]", "level")]
        found += [(f"b[{c}->{node}]", 0, f"b[{c}->{node}]", f"slope of {c}") for c in self.causes]
        for group in form.groups:
            label = "*".join(self.causes[column] for column in group.columns)
            site = f"f[{label}->{node}]"
            found.append((site, group.size, site, f"process of {label}, standardized"))
        for one, other in form.products:
            site = f"b[{self.causes[one]}*{self.causes[other]}->{node}]"
            part = f"product of {self.causes[one]} and {self.causes[other]}"
            found.append((site, 0, site, part))
        for cause in map(self.causes.__getitem__, form.hinged):
            for end, where in (("low", "below"), ("high", "above")):
                site = f"{end}[{cause}->{node}]"
                found.append((site, 0, site, f"slope of {cause} {where} the data"))
        if self.noise == STUDENT:
            found.append((f"scale[{node}]", 0, f"log_scale[{node}]", "log scale of the noise"))
            return [*found, (f"df[{node}]", 0, f"log_df[{node}]", "log degrees of freedom over 2")]
        found.append((f"sd[{node}]", 0, f"log_sd[{node}]", "log sd of the noise at the means"))
        for cause in self.causes:
            site = f"d[{cause}->{node}]"
            found.append((site, 0, site, f"slope of the log sd in {cause}"))
        for group in self.noise_form.groups:
            cause = self.causes[group.columns[0]]
            site = f"g[{cause}->{node}]"
            found.append(
                (site, group.size, site, f"process of the log sd in {cause}, standardized")
            )
        for cause in map(self.causes.__getitem__, self.noise_form.hinged):
            for side in ("below", "above"):
                site = f"d_{side}[{cause}->{node}]"
                found.append((site, 0, site, f"slope of the log sd {side} the mean of {cause}"))
        return found

    @property
    def labels(self) -> list[tuple[str, str, str]]:
        """(name, variable, part) of all coordinates."""
        return [
            (f"{name[:-1]},{number}]" if size else name, self.variable, part)
            for _, size, name, part in self.sites()
            for number in range(1, 1 + max(size, 1))
        ]

    def prior(self, setting: NoiseSetting) -> tuple[Any, Any]:
        """Return the means and sds (k,) of the coordinates, which are independent Gaussians."""
        sd = jnp.where(in_processes(self.form), 1.0, jnp.asarray(setting.sd))
        centre = jnp.zeros(self.form.size).at[0].set(setting.level)
        if self.noise == STUDENT:
            tail = jnp.stack([jnp.asarray(setting.centre, float), math.log(TYPICAL_DF)])
            return jnp.append(centre, tail), jnp.append(sd, jnp.array([setting.width, DF_SPREAD]))
        inner = jnp.where(in_processes(self.noise_form), 1.0, jnp.asarray(setting.noise_sd))
        outer = jnp.zeros(self.noise_form.size).at[0].set(setting.centre)
        return jnp.append(centre, outer), jnp.append(sd, inner)

    def run(
        self,
        theta: jax.Array,
        setting: Any,
        columns: Mapping[str, Any],
        fast: bool = False,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the log prior at coordinates (k,), and {variable: distribution}.

        fast: by recurrences, which have derivatives in reverse mode only.
        """

        def total(form: Form, frame: Frame, sds: Any, free: jax.Array, values: list[Any]) -> Any:
            coefficients = jnp.where(in_processes(form), jnp.asarray(sds), 1.0) * free
            if fast:
                return sum_of_features(form, frame, coefficients, values)
            return features(form, frame, values) @ coefficients

        log_prior = dist.Normal(*self.prior(setting)).log_prob(theta).sum()
        count, inputs = self.form.size, [columns[cause] for cause in self.causes]
        mean = total(self.form, setting.frame, setting.sd, theta[:count], inputs)
        for number, cause in enumerate(self.joined):
            mean = mean + setting.slopes[number] * columns[cause]
        if self.noise == STUDENT:
            df = 2 + jnp.exp(theta[count + 1])
            return log_prior, {self.variable: StudentNoise(df, mean, jnp.exp(theta[count]))}
        frame, inside = noise_frame(setting.frame, inputs)
        log_sd = total(self.noise_form, frame, setting.noise_sd, theta[count:], inside)
        sd = jnp.sqrt(jnp.exp(2 * log_sd) + setting.floor**2)
        return log_prior, {self.variable: dist.Normal(mean, sd)}

    def draw(self, key: jax.Array, setting: NoiseSetting, columns: Mapping[str, Any]) -> jax.Array:
        """Draw coordinates (k,) from the prior."""
        drawn: jax.Array = dist.Normal(*self.prior(setting)).sample(key)
        return drawn

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{site: shape} of the parameters in a NumPyro program."""
        return {site: (size,) if size else () for site, size, *_ in self.sites()}

    def coordinates(self, draw: Mapping[str, jax.Array]) -> jax.Array:
        """Return the coordinates (k,) of one draw of the sites."""
        pieces = []
        for site, *_ in self.sites():
            kind, value = site.partition("[")[0], jnp.ravel(draw[site])
            value = value - 2 if kind == "df" else value
            pieces.append(jnp.log(value) if kind in ("sd", "scale", "df") else value)
        return jnp.concatenate(pieces)


def in_processes(form: Form) -> np.ndarray:
    """Return which coefficients (K,) are those of Gaussian processes."""
    places, start = np.arange(form.size), 1 + form.causes
    return np.asarray((places >= start) & (places < form.multiplied.start))


def noise_frame(frame: Frame, inputs: Sequence[Any]) -> tuple[Frame, list[Any]]:
    """Return the frame of the log sd, with hinges at the means, and inputs clipped at the box."""
    middle, half, origin = map(jnp.asarray, (frame.middle, frame.half, frame.origin))
    inside = [jnp.clip(x, middle[c] - half[c], middle[c] + half[c]) for c, x in enumerate(inputs)]
    return frame._replace(low=origin, high=origin), inside


def normal_scores(distribution: Any, values: Any) -> jax.Array:
    """Return the standard normal quantiles of the ranks of values under their distribution."""
    z = (values - distribution.loc) / distribution.scale
    if type(distribution) is dist.Normal:
        return jnp.asarray(z)
    df = distribution.df
    tail = 0.5 * betainc(0.5 * df, 0.5 * jnp.ones_like(z), df / (df + z**2))
    return -jnp.sign(z) * ndtri(jnp.maximum(tail, 1e-300))


@dataclass(frozen=True, eq=False)
class NoisyMechanism:
    """The same mechanism in a NumPyro program; see `numpyro_models`."""

    equation: NoisyEquation
    setting: NoiseSetting

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{site: shape} of its parameters."""
        return self.equation.shapes

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Draw the parameters; return the distribution given the causes."""
        equation, setting = self.equation, self.setting
        with jax.ensure_compile_time_eval():
            centres, widths = map(np.asarray, equation.prior(setting))
        theta, start = [], 0
        for site, size, *_ in equation.sites():
            kind, part = site.partition("[")[0], slice(start, start + max(size, 1))
            centre, width = centres[part], widths[part]
            start = part.stop
            if kind in ("sd", "scale", "df"):
                prior: Any = dist.LogNormal(centre[0], width[0])
                if kind == "df":
                    shift = dist.transforms.AffineTransform(2.0, 1.0, domain=prior.support)
                    prior = dist.TransformedDistribution(prior, shift)
                drawn = numpyro.sample(site, prior)
                theta.append(jnp.log(drawn - 2 if kind == "df" else drawn)[None])
            elif size:
                theta.append(numpyro.sample(site, dist.Normal(centre, width).to_event(1)))
            else:
                theta.append(numpyro.sample(site, dist.Normal(centre[0], width[0]))[None])
        return equation.run(jnp.concatenate(theta), setting, values)[1][equation.variable]

    @property
    def formula(self) -> str:
        """The mechanism on paper."""
        equation, node = self.equation, self.equation.variable
        terms = [f"level[{node}]"]
        terms += [f"b[{cause}->{node}] ({cause} - mean)" for cause in equation.causes]
        for group in equation.form.groups:
            members = [equation.causes[column] for column in group.columns]
            terms.append(f"f[{'*'.join(members)}->{node}]({', '.join(members)})")
        for one, other in equation.form.products:
            first, second = equation.causes[one], equation.causes[other]
            terms.append(f"b[{first}*{second}->{node}] ({first} - mean) ({second} - mean)")
        terms += ["hinges"] if equation.form.hinged else []
        slopes = np.asarray(self.setting.slopes).tolist()
        terms += [
            f"{slope:g} {cause}" for slope, cause in zip(slopes, equation.joined, strict=True)
        ]
        mean = " + ".join(terms)
        if equation.noise == STUDENT:
            return f"{node} ~ StudentT(df[{node}], {mean}, scale[{node}])"
        return f"{node} ~ Normal({mean}, sd[{node}] exp(r({', '.join(equation.causes)})))"


def make_equation(
    name: str, choice: MechanismChoice, causes: Sequence[str], joined: Sequence[str]
) -> NoisyEquation | None:
    """Return the mechanism of a variable; None where its noise is constant."""
    noise = "constant" if choice is None else choice.noise
    if noise not in (VARYING, STUDENT) or (noise == VARYING and not causes):
        return None
    form = make_form(name, with_few_functions(choice), list(causes))
    count = NOISE_FUNCTIONS if len(causes) <= MANY_CAUSES else FEWER_NOISE_FUNCTIONS
    groups = tuple(Group((c,), (count,), NOISE_KERNEL) for c in range(len(causes)))
    hinged = tuple(range(len(causes)))
    noise_form = Form(len(causes), groups, hinged) if noise == VARYING else Form(0, (), ())
    return NoisyEquation(name, tuple(causes), tuple(joined), form, noise, noise_form)


def with_few_functions(choice: MechanismChoice) -> MechanismChoice:
    """Return a choice with fewer basis functions than Gaussian processes have by default."""
    if isinstance(choice, GP) and choice.functions is None and not choice.groups:
        return replace(choice, functions=MEAN_FUNCTIONS)
    return choice


def bind_noise(
    task: Task,
    graph: CausalGraph,
    equation: NoisyEquation,
    choice: MechanismChoice,
    usable: np.ndarray,
) -> NoiseSetting:
    """Return the numbers of a mechanism that follow from its prior and its observations.

    usable: (n, p) which observations inform the equation of each variable.
    """
    name, prior = equation.variable, task.prior
    position, regressors = graph.index(name), graph.parents(name)
    few = with_few_functions(choice)
    bound = bind_equation(task, graph, few, name, regressors, usable[:, position])
    known, frame = bound.known, bound.setting.frame
    values = dict(zip(graph.nodes, task.data.values[:, _columns(task, graph)].T, strict=True))
    free = usable[:, position]
    scale = read_spread(prior, name, values[name][free]).scale
    sizes = [read_spread(prior, cause, values[cause]).scale for cause in equation.causes]
    priors = [
        _log_sd_prior(equation.noise_form, frame, np.array(sizes), prior.noise_spread, *pair)
        for pair in product(PROCESS_SDS, PROCESS_LENGTHS)
    ]
    centre, floor = math.log((prior.noise if regressors else 1.0) * scale), NOISE_FLOOR * scale
    [sample] = samples_of_mechanisms([bound], task.data, graph.nodes, usable)
    eta, unit = find_mode(equation.form, known, starts(equation.form, known)).eta, scale
    noise_sd = priors[len(priors) // 2]
    if len(sample.outcome):
        sds, noise_sd = _noise_sds(equation, bound, eta, sample, priors, centre)
        unit = float(np.exp(np.log(sds).mean()))
        roots = np.maximum(unit / sds, LEAST_WEIGHT)[:, None]
        matrix = feature_matrix(equation.form, known.frame, sample.inputs, len(sample.outcome))
        table = np.column_stack([matrix, sample.outcome - known.prior.level])
        known = known._replace(statistics=summarize(roots * table))
        eta = find_mode(equation.form, known, starts(equation.form, known)).eta
    [log_sd] = np.asarray(log_sds_of_many(scales_of(equation.form, known), eta[None]))
    numbers = known.prior.level, np.exp(log_sd), centre, prior.noise_spread, noise_sd, floor, unit
    return NoiseSetting(frame, bound.setting.slopes, *map(np.asarray, numbers))


def _columns(task: Task, graph: CausalGraph) -> list[int]:
    return [task.data.nodes.index(name) for name in graph.nodes]


def _log_sd_prior(
    form: Form, frame: Frame, sizes: np.ndarray, level: float, amplitude: float, length: float
) -> np.ndarray:
    """Return the prior sds (H,) of the coefficients of the log sd; sizes: sds of the causes."""
    slopes = TREND_SD / sizes if form.causes else np.zeros(0)
    parts = [np.array([level]), slopes]
    for group in form.groups:
        eta = jnp.log(jnp.array([amplitude, length * sizes[group.columns[0]]]))
        parts.append(np.exp(0.5 * np.asarray(log_spectrum(group, frame, eta))))
    parts.append(np.repeat(slopes, 2))
    return np.concatenate(parts)


def _noise_sds(
    equation: NoisyEquation,
    bound: BoundEquation,
    eta: np.ndarray,
    sample: Any,
    priors: Sequence[np.ndarray],
    centre: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sd (n,) of the noise of each observation, from the residuals of a plain fit.

    priors: the prior sds (H,) of the coefficients of the log sd under several hyperparameters. The
    second array is the most probable one of these.
    """
    residuals = plain_residuals(bound, eta, sample)
    if equation.noise == STUDENT:
        scale = np.median(np.abs(residuals)) / 0.74 + 1e-300
        squares = (STARTING_DF + (residuals / scale) ** 2) / (STARTING_DF + 1)
        return np.asarray(scale * np.sqrt(squares)), priors[0]
    inputs = [jnp.asarray(column) for column in sample.inputs.T]
    matrix = np.asarray(features(equation.noise_form, *noise_frame(bound.known.frame, inputs)))
    fits = [fit_log_sds(residuals, matrix, sd, centre) for sd in priors]
    best = first_largest(np.array([evidence for _, evidence in fits]))
    return np.exp(matrix @ fits[best][0]), priors[best]


def plain_residuals(bound: BoundEquation, eta: np.ndarray, sample: Any) -> np.ndarray:
    """Return residuals (n,) with equal variances if the noise has one sd, given hyperparameters.

    They are r_i / sqrt(1 - h_i) with the leverages h_i.
    """
    form, known = bound.equation.form, bound.known
    matrix = feature_matrix(form, known.frame, sample.inputs, len(sample.outcome))
    [log_sd] = np.asarray(log_sds_of_many(scales_of(form, known), eta[None]))
    scaled = matrix * np.exp(log_sd - eta[0])
    outcome = sample.outcome - known.prior.level
    root = np.linalg.cholesky(np.eye(scaled.shape[1]) + scaled.T @ scaled)
    half = np.linalg.solve(root, scaled.T)
    leverage = np.clip((half**2).sum(axis=0), 0.0, 1 - 1e-6)
    return np.asarray((outcome - half.T @ (half @ outcome)) / np.sqrt(1 - leverage))


def fit_log_sds(
    residuals: np.ndarray, matrix: np.ndarray, sd: np.ndarray, centre: float
) -> tuple[np.ndarray, float]:
    """Return the coefficients (H,) at the mode of log sd = matrix (n, H) @ coefficients.

    The second number is the log evidence by Laplace's method, up to a constant. Residuals (n,) are
    Gaussian, coefficients have prior sds (H,), the first the mean `centre`. The loss is convex;
    Newton steps are halved until it decreases.
    """
    mean = np.zeros(len(sd))
    mean[0] = centre
    precision, floor = 1 / sd**2, 1e-12 * np.square(residuals).mean() + 1e-300
    squares = residuals**2 + floor

    def loss(c: np.ndarray) -> float:
        logs = matrix @ c
        return float(
            (logs + 0.5 * squares * np.exp(-2 * logs)).sum() + 0.5 * precision @ (c - mean) ** 2
        )

    coefficients = mean.copy()
    coefficients[0] = 0.5 * math.log(squares.mean())
    value = loss(coefficients)
    for _ in range(MOST_STEPS):
        ratio = squares * np.exp(-2 * (matrix @ coefficients))
        slope = matrix.T @ (1 - ratio) + precision * (coefficients - mean)
        curve = (matrix * (2 * ratio)[:, None]).T @ matrix + np.diag(precision)
        step = np.linalg.solve(curve, slope)
        if slope @ step < 1e-9:
            break
        length = 1.0
        while not loss(coefficients - length * step) < value and length > 1e-6:
            length /= 2
        coefficients = coefficients - length * step
        value = loss(coefficients)
    ratio = squares * np.exp(-2 * (matrix @ coefficients))
    scaled = sd[:, None] * ((matrix * (2 * ratio)[:, None]).T @ matrix) * sd
    volume = np.linalg.slogdet(np.eye(len(sd)) + scaled)[1]
    return coefficients, -value - 0.5 * float(volume)
