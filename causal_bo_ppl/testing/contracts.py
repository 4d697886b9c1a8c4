"""Do user-defined mechanisms, methods, surrogates and acquisitions keep their interfaces?

Each check compares every promise of an interface with an independent computation (simulation with
its standard error, finite differences, a closed form), and returns a `Check` with a row for each.
`check.require()` raises where a row failed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.checks import Check, run_lines
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import no_outcomes
from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.draws import InferenceMethod, Limits, learned_entries
from causal_bo_ppl.inference.posterior import read_method
from causal_bo_ppl.inference.potentials import potential, value_and_gradient
from causal_bo_ppl.inputs import as_key
from causal_bo_ppl.mechanisms import Choice, read_mechanisms
from causal_bo_ppl.mechanisms.base import Model, ResponseMap, Task
from causal_bo_ppl.optimization.acquisition import Acquisition, Context, in_round, read_acquisition
from causal_bo_ppl.optimization.settings import read_surrogate
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import default_design, default_vertices
from causal_bo_ppl.problem.interventions import split_sets
from causal_bo_ppl.responses import response
from causal_bo_ppl.surrogates import Surrogate, SurrogateMaker

MOST_ERRORS = 4.5  # standard errors: a right number fails one comparison in 150,000
SIMULATED_OUTCOMES = 20_000  # of each query
DIFFERENCE_STEP = 1e-6  # of finite differences, relative to the size of a coordinate
Promise = tuple[str, Callable[[], str]]


def _fault(gap: float, limit: float, text: str) -> str:
    """Return the text with the gap where it exceeds a limit or is NaN, and "" otherwise."""
    return "" if gap <= limit else f"{text} by {gap:.2g}"


def check_response_map(
    problem: Problem, response_map: ResponseMap, theta: np.ndarray, *, key: jax.Array | int = 0
) -> Check:
    """Check a user-defined map from theta to effects.

    Derivatives are compared with central differences, one query with a batch, many thetas with one,
    and its attributes with its values: affine in the values, linear in theta.

    Parameters
    ----------
    problem:
        The problem whose effects it maps to.
    response_map:
        The map; see `mechanisms.base.ResponseMap`.
    theta:
        The parameters (d,) at which it is checked.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every promise.

    Raises
    ------
    ArgumentError
        If theta does not have a finite number for every coordinate of the map.
    SeedError
        If `key` is neither a JAX key nor a seed.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(50, 0))
    >>> response_map = post.distribution.response
    >>> cb.testing.check_response_map(system.problem, response_map, post.mean).passed
    True
    """
    as_key(key)
    post = Posterior.from_draws(problem, _around(theta), mechanisms=response_map)
    queries = _some_queries(problem, response_map)
    promises = dict(_response_promises(post, np.asarray(theta, float), queries))
    return run_lines("response map", promises, "See mechanisms.base.ResponseMap.")


def _around(theta: np.ndarray) -> np.ndarray:
    moves = np.vstack([np.eye(len(theta)), -np.eye(len(theta)), np.zeros((4, len(theta)))])
    return np.asarray(theta + 0.01 * (1 + np.abs(theta)) * moves)


def _some_queries(problem: Problem, response_map: ResponseMap, most: int = 24) -> Queries:
    """Return vertices and inner points of the sets, at most `most` of each kind."""
    if not problem.is_box:
        return default_design(problem, response_map.sets, None, most)
    corners = default_vertices(problem, response_map.sets, None, most)
    chosen = np.linspace(0, len(corners) - 1, min(len(corners), most)).round().astype(int)
    mask, value = np.asarray(corners.mask)[chosen], np.asarray(corners.value)[chosen]
    low, high = np.array([problem.domains.get(name, (0.0, 0.0)) for name in problem.graph.nodes]).T
    inner = np.where(mask, 0.3 * value + 0.7 * (0.6 * low + 0.4 * high), 0.0)
    return Queries(np.vstack([mask, mask]), np.vstack([value, inner]))


def _nonlinearity(problem: Problem, queries: Queries, effects: np.ndarray) -> float:
    """Return the largest residual of a regression of each set's effects on its values."""
    gap = 0.0
    for positions in split_sets(problem, queries).indices:
        values = np.asarray(queries.value)[positions][:, np.asarray(queries.mask)[positions[0]]]
        width = np.where(np.ptp(values, axis=0) > 0, np.ptp(values, axis=0), 1.0)
        design = np.column_stack([np.ones(len(positions)), (values - values[0]) / width])
        fitted = design @ np.linalg.lstsq(design, effects[positions], rcond=None)[0]
        gap = max(gap, float(np.abs(effects[positions] - fitted).max()))
    return gap


def _response_promises(post: Posterior, theta: np.ndarray, queries: Queries) -> Iterator[Promise]:
    effect = response(post)
    values, jacobian = effect.linearize(theta, queries)
    step, scale = DIFFERENCE_STEP * (1 + np.abs(theta)), 1 + np.abs(values).max()

    def differences() -> str:
        moves = np.vstack([theta + np.diag(step), theta - np.diag(step)])
        ahead, behind = np.split(effect(moves, queries), 2)
        slopes = ((ahead - behind) / (2 * step[:, None])).T
        limit = 1e-5 * (np.abs(jacobian).max() + np.abs(values).max())
        return _fault(np.abs(slopes - jacobian).max(), limit, "derivatives differ from differences")

    def same_alone() -> str:
        alone = [effect(theta, queries[index])[0] for index in range(0, len(queries), 5)]
        gap = np.abs(np.array(alone) - values[::5]).max()
        return _fault(gap, 1e-9 * scale, "a query alone differs")

    def linear() -> str:
        if not effect.map.is_linear:
            return ""
        far = theta + 2.0
        gap = np.abs(effect(far, queries) - values - jacobian @ (far - theta)).max()
        return _fault(gap, 1e-7 * scale, "it is nonlinear in theta")

    def affine() -> str:
        if not effect.map.is_affine:
            return ""
        if not post.problem.is_box:
            gap = _nonlinearity(post.problem, queries, values)
        else:
            half, value = len(queries) // 2, np.asarray(queries.value)
            middle = Queries(np.asarray(queries.mask)[:half], (value[:half] + value[half:]) / 2)
            gap = np.abs(effect(theta, middle) - (values[:half] + values[half:]) / 2).max()
        return _fault(gap, 1e-7 * scale, "it is nonlinear in the values")

    shape = values.shape == (len(queries),) and jacobian.shape == (len(queries), len(theta))
    yield "shapes", lambda: "" if shape else f"shapes {values.shape} and {jacobian.shape}"
    yield "finite", lambda: "" if np.isfinite(jacobian).all() else "derivatives are not finite"
    yield "derivatives are those of the effects", differences
    yield "an effect does not depend on its batch", same_alone
    yield "is_linear is true", linear
    yield "is_affine is true", affine


def check_mechanisms(
    mechanisms: Choice, problem: Problem, data: Data, *, key: jax.Array | int = 0
) -> Check:
    """Check a user-defined family of mechanisms.

    The density is compared with the sum of the densities of observations, its gradient with
    differences, theta of draws with that of the density, effects with the mean of simulated
    outcomes, the variance of an outcome with that of simulated ones, and the response map with its
    own interface.

    Parameters
    ----------
    mechanisms:
        The family, or what `cb.fit` takes as `mechanisms`; see `mechanisms.base.Model`.
    problem, data:
        A problem, and observations of it.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every promise.

    Raises
    ------
    ArgumentError
        If these are no mechanisms that `cb.fit` takes.
    SeedError
        If `key` is neither a JAX key nor a seed.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.testing.check_mechanisms("linear", system.problem, system.observe(50, 0)).passed
    True
    """
    family, given = read_mechanisms(mechanisms), as_key(key)
    model = family.bind(Task(problem, data, no_outcomes(len(problem.graph.nodes))))
    promises = dict(_model_promises(model, problem, data, given))
    return run_lines(f"mechanisms {family.name}", promises, "See mechanisms.base.Model.")


def _model_promises(
    model: Model, problem: Problem, data: Data, key: jax.Array
) -> Iterator[Promise]:
    size = len(model.coordinates)
    psi = 0.3 * np.asarray(jax.random.normal(key, (3, size)))
    columns = [data.nodes.index(name) for name in model.nodes]
    values = data.values[:, columns]
    free = learned_entries(model, model.learned, data, model.nodes)
    draws = model.draws(psi)
    theta = model.theta(draws)
    queries = _some_queries(problem, model.response, 6)
    mask, value = np.asarray(queries.mask)[:, columns], np.asarray(queries.value)[:, columns]
    upstream = Queries(mask, value)
    one = model.draws(np.repeat(psi[:1], SIMULATED_OUTCOMES, axis=0))
    simulated = model.replicate(one, upstream, jax.random.fold_in(key, 1))
    outcomes = simulated[:, :, -1]
    post = Posterior.from_draws(problem, _around(theta[0]), mechanisms=model.response)

    def likelihood() -> str:
        parts = model.log_densities(draws, values, free).sum(axis=(1, 2))
        whole = np.array([float(model.density.log_likelihood(jnp.asarray(draw))) for draw in psi])
        limit = 1e-7 * (1 + np.abs(whole).max())
        return _fault(np.ptp(parts - whole), limit, "densities of the data and of a draw differ")

    def gradient() -> str:
        _, slope = value_and_gradient(model.density, psi[0])
        steps = DIFFERENCE_STEP * np.eye(size)
        ahead, behind = (
            np.array([float(potential(model.density, jnp.asarray(end))) for end in ends])
            for ends in (psi[0] + steps, psi[0] - steps)
        )
        slopes = (ahead - behind) / (2 * DIFFERENCE_STEP)
        limit = 1e-4 * (1 + np.abs(slopes).max())
        gap = np.abs(slopes - np.asarray(slope)).max()
        return _fault(gap, limit, "the gradient differs from differences")

    def same_theta() -> str:
        other = np.array([np.asarray(model.density.theta(jnp.asarray(draw))) for draw in psi])
        limit = 1e-9 * (1 + np.abs(theta).max())
        return _fault(np.abs(other - theta).max(), limit, "theta differs")

    def is_set() -> str:
        return "" if (np.where(mask, simulated, value) == value).all() else "values were changed"

    def means() -> str:
        effects = response(post)(theta[0], queries)
        errors = outcomes.std(axis=0, ddof=1) / np.sqrt(SIMULATED_OUTCOMES)
        z = np.abs(outcomes.mean(axis=0) - effects) / np.where(errors > 0, errors, 1.0)
        return "" if z.max() <= MOST_ERRORS else f"an effect is {z.max():.1f} standard errors off"

    def variances() -> str:
        variances = model.outcome_variances(model.draws(psi[:1]), upstream)
        ratio = variances / outcomes.var(axis=0, ddof=1)
        return "" if (np.abs(ratio - 1) < 0.15).all() else f"ratios up to {ratio.max():.2f}"

    def grows() -> str:
        longer = model.with_observations(data)
        return "" if len(longer.data) == 2 * len(data) else f"{len(longer.data)} observations"

    def shapes() -> str:
        good = theta.shape == (3, len(model.response.names))
        return "" if good else f"theta has shape {theta.shape}"

    yield "coordinates and names have sizes", shapes
    yield "the density is that of the observations", likelihood
    yield "its gradient is right", gradient
    yield "theta of draws is theta of the density", same_theta
    yield "simulation keeps what is set", is_set
    yield "effects are means of simulated outcomes", means
    yield "variances are those of simulated outcomes", variances
    yield "more observations are joined", grows
    yield from _response_promises(post, theta[0], queries)


def check_method(
    method: str | InferenceMethod,
    problem: Problem,
    data: Data,
    *,
    mechanisms: Choice = "linear",
    key: jax.Array | int = 0,
) -> Check:
    """Check a user-defined method of inference.

    Mean and covariance are compared with draws, updates with a refit, and fits with the same key
    with each other.

    Parameters
    ----------
    method:
        The method, or its name; see `inference.draws.ThetaDistribution`.
    problem, data:
        A problem, and observations of it.
    mechanisms:
        As in `cb.fit`.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every promise.

    Raises
    ------
    ArgumentError
        If there is no method of this name, or the object has no method `infer`.
    SeedError
        If `key` is neither a JAX key nor a seed.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.testing.check_method("conjugate", system.problem, system.observe(50, 0)).passed
    True
    """
    chosen, given = read_method(method), as_key(key)
    options: dict[str, Any] = {"mechanisms": mechanisms, "method": chosen, "key": given}
    promises = dict(_method_promises(problem, data, options, given))
    advice = "See inference.draws.ThetaDistribution."
    return run_lines(f"method {chosen.name}", promises, advice)


def _method_promises(
    problem: Problem, data: Data, options: dict[str, Any], key: jax.Array
) -> Iterator[Promise]:
    post, half = fit(problem, data, **options), len(data) // 2
    draws = post.draws(4_000, key)

    def moments() -> str:
        scale = np.where(post.sd > 0, post.sd, 1.0)
        gap = np.abs(draws.mean(axis=0) - post.mean) / scale
        ratio = draws.std(axis=0, ddof=1) / scale
        good = gap.max() <= 0.25 and (np.abs(ratio - 1)[post.sd > 0] <= 0.25).all()
        return "" if good else f"draws are {gap.max():.2f} sd off, with sds of {ratio.max():.2f}"

    def updates() -> str:
        first = fit(problem, data.select(slice(0, half)), **options)
        gap = np.abs(first.update(data.select(slice(half, None))).mean - post.mean) / post.sd
        return "" if gap.max() <= 0.5 else f"an update is {gap.max():.2f} sd from a refit"

    def again() -> str:
        same = fit(problem, data, **options)
        equal = np.array_equal(same.mean, post.mean) and same.fingerprint == post.fingerprint
        return "" if equal else "the same key gave another posterior"

    def verdict() -> str:
        verdicts = {"exact", "passed", "failed", "not assessed"}
        lines = post.distribution.lines(Limits())
        good = post.verdict in verdicts and {"value", "limit", "verdict"} <= set(lines.columns)
        return "" if good else f"the verdict is {post.verdict!r}"

    def shapes() -> str:
        shape = post.covariance.shape
        return "" if shape == (len(post.names),) * 2 else f"the covariance has the shape {shape}"

    def variances() -> str:
        found = post.outcome_variances(_some_queries(problem, post.distribution.response))
        return "" if (found > 0).all() else f"the smallest is {found.min():.2g}"

    yield "moments have sizes", shapes
    yield "draws have the moments", moments
    yield "an update is a refit", updates
    yield "the same key gives the same posterior", again
    yield "a verdict is reached", verdict
    yield "variances of outcomes are positive", variances
    yield "a DataTree is made", lambda: "" if post.to_datatree(draws=40) is not None else "none"


def check_surrogate(
    surrogate: str | SurrogateMaker, post: Posterior, *, key: jax.Array | int = 0
) -> Check:
    """Check a user-defined surrogate: predictions, joint draws, and learning from outcomes.

    The covariance is compared with the sds and with draws, fantasized outcomes with the means, all
    orders and groupings of outcomes with each other, and the log density with its integral.

    Parameters
    ----------
    surrogate:
        The surrogate, or its name; see `surrogates.base.Surrogate`.
    post:
        The posterior from which it begins.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every promise.

    Raises
    ------
    ArgumentError
        If there is no surrogate of this name, or the object has no method `begin`.
    SeedError
        If `key` is neither a JAX key nor a seed.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(50, 0))
    >>> cb.testing.check_surrogate("coupled", post).passed
    True
    """
    maker, given = read_surrogate(surrogate), as_key(key)
    promises = dict(_surrogate_promises(maker.begin(post), post, given))
    return run_lines(f"surrogate {maker.name}", promises, "See surrogates.base.Surrogate.")


def _surrogate_promises(before: Surrogate, post: Posterior, key: jax.Array) -> Iterator[Promise]:
    queries = _some_queries(post.problem, post.distribution.response, 8)
    prior = before.predict(queries)
    noise = np.full(4, float(np.median(prior.sd) ** 2) / 4 + 1e-6)
    positions = np.array([0, 3, 0, 5])
    tried, outcomes = queries[positions], prior.mean[positions] + prior.sd[positions]
    after = before.condition(tried, outcomes, noise)
    scale = 1 + np.abs(prior.mean).max() + prior.sd.max()

    def joint() -> str:
        found, (mean, sd) = after.joint(queries), after.predict(queries)
        sds = np.sqrt(np.maximum(np.diagonal(found.covariance), 0))
        gap = max(np.abs(sds - sd).max(), np.abs(found.mean - mean).max())
        return _fault(gap, 1e-6 * scale, "the mean or the diagonal differs")

    def sampled() -> str:
        draws, (mean, sd) = after.sample(key, queries, 4_000), after.predict(queries)
        z = np.abs(draws.mean(axis=0) - mean) / np.where(sd > 0, sd / np.sqrt(4_000), 1.0)
        ratio = draws.std(axis=0) / np.where(sd > 0, sd, 1.0)
        good = z.max() <= MOST_ERRORS and (np.abs(ratio - 1)[sd > 1e-9 * scale] < 0.1).all()
        return "" if good else f"draws are {z.max():.1f} standard errors off"

    def learned() -> str:
        # The posterior mean minimizes the squares of these gaps plus the squares of weights.
        gaps = after.predict(tried).mean - outcomes
        closer = (gaps**2).sum() < ((prior.mean[positions] - outcomes) ** 2).sum()
        less = (after.predict(queries).sd <= prior.sd + 1e-6 * scale).all()
        return "" if closer and less else "means do not approach the outcomes, or an sd grows"

    def fantasized() -> str:
        for some in (queries[2], queries[:3]):
            mean, sd = before.fantasize(some, noise[0]).predict(queries)
            same = np.abs(mean - prior.mean).max() <= 1e-6 * scale
            less = (sd <= prior.sd + 1e-6 * scale).all()
            if not (same and less):
                return "a fantasized outcome moves a mean, or an sd grows"
        return ""

    def order() -> str:
        reversed_, single = before.condition(tried[::-1], outcomes[::-1], noise[::-1]), before
        for index in (2, 0, 3, 1):
            single = single.condition(tried[index], outcomes[index], noise[index])
        means = [surrogate.predict(queries).mean for surrogate in (after, reversed_, single)]
        gap = np.ptp(means, axis=0).max()
        return _fault(gap, 1e-6 * scale, "the order of outcomes moves a mean")

    def untouched() -> str:
        same = np.array_equal(before.predict(queries).mean, prior.mean)
        return "" if same else "an outcome changed the surrogate that was conditioned on it"

    def density() -> str:
        mean, sd = (float(part[0]) for part in after.predict(queries[1]))
        width = np.sqrt(sd**2 + noise[0])
        grid = (mean + np.linspace(-12, 12, 961) * width)[::8]
        logs = [after.log_density(queries[1], float(value), float(noise[0])) for value in grid]
        total = float(np.trapezoid(np.exp(np.array(logs)), grid))
        return "" if abs(total - 1) < 0.02 else f"the density integrates to {total:.3f}"

    yield "covariance and sd agree", joint
    yield "draws have the predicted moments", sampled
    yield "outcomes are learned from", learned
    yield "fantasized outcomes change no mean", fantasized
    yield "order and grouping do not matter", order
    yield "conditioning leaves the old one unchanged", untouched
    yield "the log density integrates to one", density


def check_acquisition(
    acquisition: str | Acquisition, surrogate: Surrogate, *, objective: str = "min"
) -> Check:
    """Check a user-defined acquisition: finite, of the right shape, the same query by query.

    Parameters
    ----------
    acquisition:
        The acquisition, or its name; see `cb.acquisition.Acquisition`.
    surrogate:
        The surrogate on which it is evaluated.
    objective:
        "min" or "max".

    Returns
    -------
    Check
        A row for every promise.

    Raises
    ------
    ArgumentError
        If the objective is neither.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(50, 0))
    >>> cb.testing.check_acquisition("ucb", cb.surrogates.couple(post)).passed
    True
    """
    given = read_acquisition(acquisition, 2.0)
    if objective not in ("min", "max"):
        raise ArgumentError(f'objective must be "min" or "max", got {objective!r}')
    post = surrogate.post
    queries = _some_queries(post.problem, post.distribution.response, 8)
    context = Context(surrogate, objective, queries, queries, key=jax.random.key(0))
    rule = in_round(given, context)
    values = rule.value(surrogate, queries, context)

    def same_alone() -> str:
        chosen = range(0, len(queries), 3)
        alone = [rule.value(surrogate, queries[index], context)[0] for index in chosen]
        gap = np.abs(np.array(alone) - values[::3]).max()
        return _fault(gap, 1e-7 * (1 + np.abs(values).max()), "a query alone differs")

    promises = {
        "shape": lambda: "" if values.shape == (len(queries),) else f"{values.shape}",
        "finite": lambda: "" if np.isfinite(values).all() else "not finite",
        "a value does not depend on the batch": same_alone,
    }
    advice = "See cb.acquisition.Acquisition."
    return run_lines(f"acquisition {rule.name}", promises, advice)
