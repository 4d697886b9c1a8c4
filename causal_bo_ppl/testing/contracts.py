"""Do mechanisms, methods, surrogates and acquisitions keep their promises? Contract checks.

Each check takes what a user wrote, compares every promise with an independent computation
(simulation with its standard error, finite differences, a closed form), and returns a `Check` with
a line for each. `check.require()` raises where a line failed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.checks import Check, run_lines
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import no_outcomes
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.base import Method, learned_entries
from causal_bo_ppl.inference.draws import Limits
from causal_bo_ppl.inference.methods import read_method
from causal_bo_ppl.inference.potentials import potential, value_and_gradient
from causal_bo_ppl.inputs import as_key
from causal_bo_ppl.mechanisms import Choice, read_mechanisms
from causal_bo_ppl.mechanisms.base import Model, ResponseMap, Task
from causal_bo_ppl.optimization.acquisition import Acquisition, read_acquisition
from causal_bo_ppl.optimization.analytic import Context, prepare
from causal_bo_ppl.optimization.settings import read_surrogate
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import default_design, default_vertices, split_sets
from causal_bo_ppl.responses import response
from causal_bo_ppl.surrogates import Surrogate, SurrogateMaker

MOST_ERRORS = 4.5  # standard errors: a right number fails one comparison in 150,000
ROWS = 20_000  # simulated for each query
STEP = 1e-6  # of finite differences, relative to the size of a coordinate
Line = tuple[str, Callable[[], str]]


def check_response_map(
    problem: Problem, response_map: ResponseMap, theta: np.ndarray, *, key: jax.Array | int = 0
) -> Check:
    """Check a map from theta to effects at one theta (d,) and at random interventions.

    Compared are derivatives with central differences, one query with a batch, many thetas with one,
    and what the map says about itself: affine in the values, linear in theta.
    """
    as_key(key)
    post = Posterior.from_draws(problem, _around(theta), mechanisms=response_map)
    queries = _some_queries(problem, response_map)
    lines = dict(_response_lines(post, np.asarray(theta, float), queries))
    return run_lines("response map", lines, "See mechanisms.interfaces.ResponseMap.")


def _around(theta: np.ndarray) -> np.ndarray:
    moves = np.vstack([np.eye(len(theta)), -np.eye(len(theta)), np.zeros((4, len(theta)))])
    return np.asarray(theta + 0.01 * (1 + np.abs(theta)) * moves)


def _some_queries(problem: Problem, response_map: ResponseMap, most: int = 24) -> Queries:
    """Return vertices and inner points of the sets, at most `most` of each kind."""
    if not problem.is_box:
        return default_design(problem, response_map.sets, None, most)
    corners = default_vertices(problem, response_map.sets, None, most)
    rows = np.linspace(0, len(corners) - 1, min(len(corners), most)).round().astype(int)
    mask, value = np.asarray(corners.mask)[rows], np.asarray(corners.value)[rows]
    inner = 0.3 * value + 0.7 * np.asarray(_middles(problem, mask))
    return Queries(np.vstack([mask, mask]), np.vstack([value, np.where(mask, inner, 0.0)]))


def _middles(problem: Problem, mask: np.ndarray) -> np.ndarray:
    ends = [problem.domains.get(name, (0.0, 0.0)) for name in problem.graph.nodes]
    middle = np.array([0.6 * low + 0.4 * high for low, high in ends])
    return np.where(mask, middle, 0.0)


def _bend(problem: Problem, queries: Queries, effects: np.ndarray) -> float:
    """Return the largest residual of a regression of each set's effects on its values."""
    gap = 0.0
    for rows in split_sets(problem, queries).rows:
        values = np.asarray(queries.value)[rows][:, np.asarray(queries.mask)[rows[0]]]
        width = np.where(np.ptp(values, axis=0) > 0, np.ptp(values, axis=0), 1.0)
        line = np.column_stack([np.ones(len(rows)), (values - values[0]) / width])
        left = effects[rows] - line @ np.linalg.lstsq(line, effects[rows], rcond=None)[0]
        gap = max(gap, float(np.abs(left).max()))
    return gap


def _response_lines(post: Posterior, theta: np.ndarray, queries: Queries) -> Iterator[Line]:
    effect = response(post)
    values, jacobian = effect.linearize(theta, queries)
    step = STEP * (1 + np.abs(theta))

    def differences() -> str:
        moves = np.vstack([theta + np.diag(step), theta - np.diag(step)])
        ahead, behind = np.split(effect(moves, queries), 2)
        slopes = ((ahead - behind) / (2 * step[:, None])).T
        scale = np.abs(jacobian).max() + np.abs(values).max()
        gap = np.abs(slopes - jacobian).max()
        return "" if gap <= 1e-5 * scale else f"derivatives differ from differences by {gap:.2g}"

    def same_alone() -> str:
        alone = [effect(theta, queries[row])[0] for row in range(0, len(queries), 5)]
        gap = np.abs(np.array(alone) - values[::5]).max()
        return (
            ""
            if gap <= 1e-9 * (1 + np.abs(values).max())
            else f"a query alone differs by {gap:.2g}"
        )

    def linear() -> str:
        if not effect.map.is_linear:
            return ""
        far = theta + 2.0
        gap = np.abs(effect(far, queries) - values - jacobian @ (far - theta)).max()
        return "" if gap <= 1e-7 * (1 + np.abs(values).max()) else f"bends in theta by {gap:.2g}"

    def affine() -> str:
        if not effect.map.is_affine:
            return ""
        if not post.problem.is_box:
            gap = _bend(post.problem, queries, values)
            return "" if gap <= 1e-7 * (1 + np.abs(values).max()) else f"bends by {gap:.2g}"
        half = len(queries) // 2
        mask, value = np.asarray(queries.mask)[:half], np.asarray(queries.value)
        middle = Queries(mask, (value[:half] + value[half:]) / 2)
        gap = np.abs(effect(theta, middle) - (values[:half] + values[half:]) / 2).max()
        return (
            "" if gap <= 1e-7 * (1 + np.abs(values).max()) else f"bends in the values by {gap:.2g}"
        )

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
    """Check a family of mechanisms on one problem with its rows.

    Compared are the density with the sum of the rows' densities, its gradient with differences,
    theta of draws with that of the density, effects with the mean of simulated outcomes, the
    variance of an outcome with that of simulated ones, and the response map with its own contract.
    """
    family, given = read_mechanisms(mechanisms), as_key(key)
    task = Task(problem, data, no_outcomes(len(problem.graph.nodes)))
    model = family.bind(task)
    lines = dict(_model_lines(model, problem, data, given))
    return run_lines(f"mechanisms {family.name}", lines, "See mechanisms.interfaces.Model.")


def _model_lines(model: Model, problem: Problem, data: Data, key: jax.Array) -> Iterator[Line]:
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
    one = model.draws(np.repeat(psi[:1], ROWS, axis=0))
    rows = model.replicate(one, upstream, jax.random.fold_in(key, 1))

    def likelihood() -> str:
        parts = model.log_densities(draws, values, free).sum(axis=(1, 2))
        whole = np.array([float(model.density.log_likelihood(jnp.asarray(each))) for each in psi])
        gap = np.ptp(parts - whole)
        good = gap <= 1e-7 * (1 + np.abs(whole).max())
        return "" if good else f"rows and density differ by up to {gap:.2g} between draws"

    def gradient() -> str:
        at, (_, slope) = psi[0], value_and_gradient(model.density, psi[0])
        ends = [at + STEP * np.eye(size)[k] * sign for k in range(size) for sign in (1, -1)]
        found = np.array([float(potential(model.density, jnp.asarray(end))) for end in ends])
        slopes = (found[::2] - found[1::2]) / (2 * STEP)
        gap = np.abs(slopes - np.asarray(slope)).max()
        scale = 1 + np.abs(slopes).max()
        return "" if gap <= 1e-4 * scale else f"the gradient differs from differences by {gap:.2g}"

    def same_theta() -> str:
        other = np.array([np.asarray(model.density.theta(jnp.asarray(each))) for each in psi])
        gap = np.abs(other - theta).max()
        return "" if gap <= 1e-9 * (1 + np.abs(theta).max()) else f"theta differs by {gap:.2g}"

    def kept() -> str:
        return "" if (np.where(mask, rows, value) == np.where(mask, value, value)).all() else "lost"

    def means() -> str:
        post = Posterior.from_draws(problem, _around(theta[0]), mechanisms=model.response)
        effects = response(post)(theta[0], queries)
        outcomes = rows[:, :, -1]
        errors = outcomes.std(axis=0, ddof=1) / np.sqrt(ROWS)
        z = np.abs(outcomes.mean(axis=0) - effects) / np.where(errors > 0, errors, 1.0)
        return "" if z.max() <= MOST_ERRORS else f"an effect is {z.max():.1f} standard errors off"

    def variances() -> str:
        outcomes, said = rows[:, :, -1], model.outcome_variances(model.draws(psi[:1]), upstream)
        ratio = said / outcomes.var(axis=0, ddof=1)
        return "" if (np.abs(ratio - 1) < 0.15).all() else f"ratios up to {ratio.max():.2f}"

    def grows() -> str:
        longer = model.with_observations(data)
        return "" if len(longer.data) == 2 * len(data) else f"{len(longer.data)} rows"

    yield (
        "coordinates and names have sizes",
        lambda: (
            ""
            if theta.shape == (3, len(model.response.names))
            else f"theta has shape {theta.shape}"
        ),
    )
    yield "the density is that of the rows", likelihood
    yield "its gradient is right", gradient
    yield "theta of draws is theta of the density", same_theta
    yield "simulation keeps what is set", kept
    yield "effects are means of simulated outcomes", means
    yield "variances are those of simulated outcomes", variances
    yield "more rows are joined", grows
    post = Posterior.from_draws(problem, _around(theta[0]), mechanisms=model.response)
    yield from _response_lines(post, theta[0], queries)


def check_method(
    method: str | Method,
    problem: Problem,
    data: Data,
    *,
    mechanisms: Choice = "linear",
    key: jax.Array | int = 0,
) -> Check:
    """Check a method of inference on one problem.

    Compared are mean and covariance with draws, updates with a refit, keys, and what the belief
    says about itself.
    """
    chosen, given = read_method(method), as_key(key)
    half = len(data) // 2
    options: dict[str, Any] = {"mechanisms": mechanisms, "method": chosen, "key": given}
    post = fit(problem, data, **options)
    lines = dict(_method_lines(post, problem, data, half, options, given))
    return run_lines(f"method {chosen.name}", lines, "See inference.interfaces.Belief.")


def _method_lines(
    post: Posterior,
    problem: Problem,
    data: Data,
    half: int,
    options: Any,
    key: jax.Array,
) -> Iterator[Line]:
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
        words = {"exact", "passed", "failed", "not assessed"}
        lines = post.distribution.lines(Limits())
        good = post.verdict in words and {"value", "limit", "verdict"} <= set(lines.columns)
        return "" if good else f"the verdict is {post.verdict!r}"

    yield (
        "moments have sizes",
        lambda: (
            "" if post.covariance.shape == (len(post.names),) * 2 else f"{post.covariance.shape}"
        ),
    )
    yield "draws have the moments", moments
    yield "an update is a refit", updates
    yield "the same key gives the same posterior", again
    yield "a verdict is reached", verdict
    yield (
        "variances of outcomes are positive",
        lambda: (
            ""
            if (
                post.outcome_variances(_some_queries(problem, post.distribution.response)) > 0
            ).all()
            else "not"
        ),
    )
    yield "a DataTree is made", lambda: "" if post.to_datatree(draws=40) is not None else "none"


def check_surrogate(
    surrogate: str | SurrogateMaker, post: Posterior, *, key: jax.Array | int = 0
) -> Check:
    """Check a surrogate on a posterior: predictions, joint draws, and learning from outcomes.

    Compared are the covariance with the sds and with draws, imagined outcomes with the means, all
    orders and groupings of telling with each other, and the log density with its integral.
    """
    maker, given = read_surrogate(surrogate), as_key(key)
    lines = dict(_surrogate_lines(maker.begin(post), post, given))
    return run_lines(f"surrogate {maker.name}", lines, "See surrogates.interface.Surrogate.")


def _surrogate_lines(before: Surrogate, post: Posterior, key: jax.Array) -> Iterator[Line]:
    queries = _some_queries(post.problem, post.distribution.response, 8)
    prior = before.predict(queries)
    noise = np.full(4, float(np.median(prior.sd) ** 2) / 4 + 1e-6)
    told, outcomes = (
        queries[np.array([0, 3, 0, 5])],
        prior.mean[[0, 3, 0, 5]] + prior.sd[[0, 3, 0, 5]],
    )
    after = before.tell(told, outcomes, noise)
    scale = 1 + np.abs(prior.mean).max() + prior.sd.max()

    def joint() -> str:
        gap = np.abs(
            np.sqrt(np.maximum(np.diagonal(after.covariance(queries)), 0))
            - after.predict(queries).sd
        )
        return "" if gap.max() <= 1e-6 * scale else f"the diagonal differs by {gap.max():.2g}"

    def sampled() -> str:
        draws, (mean, sd) = after.sample(queries, 4_000, key), after.predict(queries)
        z = np.abs(draws.mean(axis=0) - mean) / np.where(sd > 0, sd / np.sqrt(4_000), 1.0)
        ratio = draws.std(axis=0) / np.where(sd > 0, sd, 1.0)
        good = z.max() <= MOST_ERRORS and (np.abs(ratio - 1)[sd > 1e-9 * scale] < 0.1).all()
        return "" if good else f"draws are {z.max():.1f} standard errors off"

    def learned() -> str:
        closer = np.abs(after.predict(told).mean - outcomes) < np.abs(
            prior.mean[[0, 3, 0, 5]] - outcomes
        )
        less = after.predict(queries).sd <= prior.sd + 1e-6 * scale
        return (
            "" if closer.all() and less.all() else "outcomes do not draw the means and lower doubt"
        )

    def fantasized() -> str:
        dreamt = before.fantasize(queries[2], noise[0])
        (mean, sd), old = dreamt.predict(queries), prior
        good = np.abs(mean - old.mean).max() <= 1e-6 * scale and (sd <= old.sd + 1e-6 * scale).all()
        return "" if good else "an imagined outcome moves a mean, or adds doubt"

    def order() -> str:
        turned, single = before.tell(told[::-1], outcomes[::-1], noise[::-1]), before
        for row in (2, 0, 3, 1):
            single = single.tell(told[row], outcomes[row], noise[row])
        means = [each.predict(queries).mean for each in (after, turned, single)]
        gap = np.ptp(means, axis=0).max()
        return "" if gap <= 1e-6 * scale else f"the order of telling moves a mean by {gap:.2g}"

    def untouched() -> str:
        same = np.array_equal(before.predict(queries).mean, prior.mean)
        return "" if same else "telling changed the surrogate that was told"

    def density() -> str:
        mean, sd = (float(part[0]) for part in after.predict(queries[1]))
        width = np.sqrt(sd**2 + noise[0])
        grid = mean + np.linspace(-12, 12, 961) * width
        logs = np.array(
            [after.log_density(queries[1], float(at), float(noise[0])) for at in grid[::8]]
        )
        total = float(np.trapezoid(np.exp(logs), grid[::8]))
        return "" if abs(total - 1) < 0.02 else f"the density integrates to {total:.3f}"

    yield "covariance and sd agree", joint
    yield "draws have the predicted moments", sampled
    yield "outcomes are learned from", learned
    yield "imagined outcomes change no mean", fantasized
    yield "order and grouping do not matter", order
    yield "telling leaves the old one alone", untouched
    yield "the log density is one", density


def check_acquisition(
    acquisition: str | Acquisition, surrogate: Surrogate, *, objective: str = "min"
) -> Check:
    """Check an acquisition on a surrogate: finite, of the right shape, query by query."""
    given = read_acquisition(acquisition, 2.0)
    if objective not in ("min", "max"):
        raise ModelError(f'objective must be "min" or "max", got {objective!r}')
    post = surrogate.post
    queries = _some_queries(post.problem, post.distribution.response, 8)
    rule = prepare(given, Context(surrogate, objective, queries, queries, key=jax.random.key(0)))
    worth = rule.value(surrogate, queries, objective)

    def alone() -> str:
        each = [
            rule.value(surrogate, queries[row], objective)[0] for row in range(0, len(queries), 3)
        ]
        gap = np.abs(np.array(each) - worth[::3]).max()
        return (
            "" if gap <= 1e-7 * (1 + np.abs(worth).max()) else f"a query alone differs by {gap:.2g}"
        )

    lines = dict(
        [
            ("shape", lambda: "" if worth.shape == (len(queries),) else f"{worth.shape}"),
            ("finite", lambda: "" if np.isfinite(worth).all() else "not finite"),
            ("worth does not depend on the batch", alone),
        ]
    )
    return run_lines(f"acquisition {rule.name}", lines, "See optimization.interface.Acquisition.")
