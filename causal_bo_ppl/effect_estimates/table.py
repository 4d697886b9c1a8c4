"""What is E[Y | do(...)], and how much better is one intervention than another? A table.

A contrast f(z) - f(z') has the variance Var f(z) + Var f(z') - 2 Cov(f(z), f(z')): effects share
their mechanisms, so that a contrast is often known far more precisely than either effect.
"""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import pandas as pd
from scipy.stats import t as student

from causal_bo_ppl.effect_estimates.moments import effect_moments
from causal_bo_ppl.errors import (
    ArgumentError,
    DataError,
    DomainError,
    ExplorationError,
    PosteriorError,
)
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, read_share, require_float64
from causal_bo_ppl.kernels.exact import remainder_gram
from causal_bo_ppl.linalg import clip_rounding
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import Interventions, labels, read_interventions, stack
from causal_bo_ppl.responses import (
    independent_coefficients,
    require_finite_effects,
    response,
    response_to_draws,
)

DRAWS_OF_EFFECTS = 4_000  # where effects must be drawn anew
MOST_PAIRS_AT_ONCE = 256  # whose joint covariance is formed
BY_MOMENTS, BY_DRAWS, BY_OBSERVATIONS = "moments", "draws", "observations"


class HasSurrogate(Protocol):
    """A run or a study."""

    @property
    def surrogate(self) -> Any:
        """The surrogate after all outcomes, a joint Gaussian model of effects."""


class EffectSummary(NamedTuple):
    """Means, sds and interval ends of effects or contrasts, each (M,), and how they were found."""

    mean: np.ndarray
    sd: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    by: str


def effects(
    of: Posterior | HasSurrogate,
    interventions: Queries | Interventions,
    *,
    against: Queries | Interventions | None = None,
    level: float = 0.9,
    key: jax.Array | int | None = None,
) -> pd.DataFrame:
    """Return E[Y | do(...)] of some interventions, with credible intervals.

    Parameters
    ----------
    of:
        A posterior, a study or a run.
    interventions:
        One mapping {variable: value}, a list of them, or Queries. `{}` sets nothing: its effect is
        the observational mean of the target.
    against:
        One intervention, or as many as `interventions`, that are subtracted: the table is then of
        the contrasts, whose uncertainty is that of both effects jointly.
    level:
        The probability of the intervals.
    key:
        Draws the effects anew, for a posterior. It is needed for one that has neither moments of
        effects in closed form nor draws.

    Returns
    -------
    pd.DataFrame
        Columns intervention, against (for contrasts), mean, sd, lower, upper, and `by`: "moments"
        (Student's t or a normal with this mean and sd), "draws" (mean, sd and quantiles of draws),
        or "observations" (the mean of the observational data, where the model does not imply that
        of setting nothing; a contrast with it has the largest sd that any joint distribution
        allows, the sum of both, and the difference of both intervals).

    Raises
    ------
    DomainError
        If an intervention is not legal.
    ArgumentError
        If `of` is neither a posterior nor a study nor a run.
    PosteriorError
        If effects would have to be drawn and there is no key.
    DataError
        If the mean without intervention follows neither from the model nor from the data.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0))
    >>> table = cb.effects(post, [{"X": 1.0}, {"Z": 1.0}, {}])
    >>> table[["intervention", "by"]].values.tolist()
    [['do(X = 1)', 'moments'], ['do(Z = 1)', 'moments'], ['nothing set', 'observations']]
    >>> contrast = cb.effects(post, {"Z": 1.0}, against={"Z": 0.0})
    >>> bool(contrast["sd"][0] < table["sd"][1])
    True
    """
    require_float64()
    post = _post_of(of)
    problem, level = getattr(of, "problem", post.problem), read_share("level", level)
    queries = read_interventions(problem, interventions)
    others = None if against is None else _read_against(problem, against, len(queries))
    asked = queries if others is None else stack([queries, others])
    columns: dict[str, Any] = {"intervention": labels(problem, queries) if len(queries) else []}
    if others is not None:
        columns["against"] = labels(problem, others) if len(queries) else []
    numbers = {name: np.full(len(queries), np.nan) for name in ("mean", "sd", "lower", "upper")}
    by = np.full(len(queries), BY_MOMENTS, object)
    sets_nothing = ~np.asarray(asked.mask).any(axis=1).reshape(-1, len(queries) or 1)
    from_data = np.asarray(sets_nothing.any(axis=0))
    if from_data.any() and _implies_baseline(of, problem):
        from_data = np.zeros(len(queries), bool)
    for chosen, summarize in ((~from_data, _of_model), (from_data, _of_observations)):
        if len(queries) and chosen.any():
            compared = None if others is None else others[chosen]
            summary = summarize(of, queries[chosen], compared, level, key)
            for name, values in numbers.items():
                values[chosen] = getattr(summary, name)
            by[chosen] = summary.by
    return pd.DataFrame(columns | numbers | {"by": by})


def _post_of(of: Any) -> Posterior:
    post = of if isinstance(of, Posterior) else getattr(_surrogate_of(of), "post", None)
    if not isinstance(post, Posterior):
        raise ArgumentError(
            f"effects are of a posterior, a study or a run; got {type(of).__name__}. For a system "
            "with known truth take system.effect(queries)"
        )
    return post


def _surrogate_of(of: Any) -> Any:
    return getattr(of, "surrogate", None) or of


def _read_against(problem: Problem, against: object, count: int) -> Queries:
    others = read_interventions(problem, against)
    if len(others) == 1:
        return others.repeat(count)
    if len(others) != count:
        raise DomainError(
            f"`against` holds {len(others)} interventions for {count}; give one for all, or one "
            "for each"
        )
    return others


def _implies_baseline(of: Any, problem: Problem) -> bool:
    """Return whether the model implies the target's mean without intervention."""
    try:
        if isinstance(of, Posterior):
            response(of).learned_upstream(problem.baseline())
        else:
            _surrogate_of(of).predict(problem.baseline())
    except (ExplorationError, DomainError):
        return False
    return True


def _of_model(
    of: Any, queries: Queries, others: Queries | None, level: float, key: jax.Array | int | None
) -> EffectSummary:
    if not isinstance(of, Posterior):
        return _of_surrogate(_surrogate_of(of), queries, others, level)
    post, effect = require_trusted(of), response(of)
    is_closed = independent_coefficients(post) is not None or effect.map.is_linear
    chains = post.distribution.chains
    if key is None and chains is None and is_closed:
        return _of_moments(post, queries, others, level)
    if key is None and chains is None:
        raise PosteriorError(
            f"effects under a posterior by {post.method} have no closed form here, so they are "
            "drawn: give key=, such as key=0"
        )
    if key is not None:
        theta = post.draws(DRAWS_OF_EFFECTS, as_key(key))
    else:
        theta = np.asarray(chains).reshape(-1, len(post.names))
    effect = response_to_draws(post)
    drawn = np.asarray(effect.effects(theta, queries))
    if others is not None:
        drawn = drawn - np.asarray(effect.effects(theta, others))
    require_finite_effects(post, queries, drawn, "look at cb.diagnostics.check_posterior(post)")
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return EffectSummary(drawn.mean(axis=0), drawn.std(axis=0, ddof=1), low, high, BY_DRAWS)


def _of_moments(
    post: Posterior, queries: Queries, others: Queries | None, level: float
) -> EffectSummary:
    mean, sd = effect_moments(post, queries)
    if others is not None:
        mean, variance = _contrast_moments(post, queries, others)
        sd = np.sqrt(variance)
    # A coordinate that is Student's t has the sd of its scale times sqrt(nu / (nu - 2)).
    degrees = float(post.distribution.tail_degrees)
    narrowed = np.sqrt((degrees - 2) / degrees) if 2 < degrees < np.inf else 1.0
    return _ends(mean, sd, sd * narrowed, degrees, level)


def _contrast_moments(
    post: Posterior, queries: Queries, others: Queries
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances (M,) of the contrasts of M pairs under a posterior."""
    effect, is_independent = response(post), independent_coefficients(post) is not None
    left, right = (effect.linearize(post.mean, part) for part in (queries, others))
    variance = (((left[1] - right[1]) @ post.factor) ** 2).sum(axis=1)
    for start in range(0, len(queries) if is_independent else 0, MOST_PAIRS_AT_ONCE):
        part = slice(start, start + MOST_PAIRS_AT_ONCE)
        pairs = ((queries, queries), (others, others), (queries, others))
        own, other, both = (np.diagonal(remainder_gram(post, a[part], b[part])) for a, b in pairs)
        variance[part] += clip_rounding(own + other - 2 * both, own + other)
    return left[0] - right[0], variance


def _of_surrogate(
    surrogate: Any, queries: Queries, others: Queries | None, level: float
) -> EffectSummary:
    mean, sd = surrogate.predict(queries)
    if others is not None:
        mean, sd = mean - surrogate.predict(others).mean, np.array(sd)
        for start in range(0, len(queries), MOST_PAIRS_AT_ONCE):
            part = slice(start, start + MOST_PAIRS_AT_ONCE)
            joint = surrogate.joint(stack([queries[part], others[part]])).covariance
            count = len(joint) // 2
            own, both = np.diagonal(joint), np.diagonal(joint[:count, count:])
            total = own[:count] + own[count:]
            sd[part] = np.sqrt(clip_rounding(total - 2 * both, total))
    return _ends(mean, sd, sd, float(getattr(surrogate, "degrees", np.inf)), level)


def central_interval(mean: Any, sd: Any, degrees: float, level: float) -> tuple[Any, Any]:
    """Return the ends of the central interval of Student's t that has the probability `level`."""
    width = float(student.ppf((1 + level) / 2, degrees)) * sd
    return mean - width, mean + width


def _ends(
    mean: np.ndarray, sd: np.ndarray, scale: np.ndarray, degrees: float, level: float
) -> EffectSummary:
    return EffectSummary(mean, sd, *central_interval(mean, scale, degrees, level), BY_MOMENTS)


def _of_observations(
    of: Any, queries: Queries, others: Queries | None, level: float, key: jax.Array | int | None
) -> EffectSummary:
    """Return effects and contrasts in which what sets nothing is the mean of the observations.

    The joint distribution of that mean and an effect is not known. Their contrast has at most the
    sum of both sds, and its interval is the difference of the intervals.
    """
    left = _with_baseline(of, queries, level, key)
    if others is None:
        return left
    right = _with_baseline(of, others, level, key)
    contrast = np.stack(
        [
            left.mean - right.mean,
            left.sd + right.sd,
            left.lower - right.upper,
            left.upper - right.lower,
        ]
    )
    differs = (np.asarray(queries.mask) | np.asarray(others.mask)).any(axis=1)
    mean, sd, lower, upper = np.where(differs, contrast, 0.0)
    return EffectSummary(mean, sd, lower, upper, BY_OBSERVATIONS)


def _with_baseline(
    of: Any, queries: Queries, level: float, key: jax.Array | int | None
) -> EffectSummary:
    """Return the mean of the observations for what sets nothing, and effects for the others."""
    is_set = np.asarray(queries.mask).any(axis=1)
    numbers = np.empty((4, len(queries)))
    if not is_set.all():
        numbers[:, ~is_set] = np.array(_observed_mean(of, level))[:, None]
    if is_set.any():
        numbers[:, is_set] = np.stack(_of_model(of, queries[is_set], None, level, key)[:4])
    mean, sd, lower, upper = numbers
    return EffectSummary(mean, sd, lower, upper, BY_OBSERVATIONS)


def _observed_mean(of: Any, level: float) -> tuple[float, float, float, float]:
    """Return mean, sd and interval ends of the target's mean in the observational data."""
    post = _post_of(of)
    values = post.data.outcomes[post.data.is_observational]
    if len(values) < 2:
        raise DataError(
            f"the mean of {post.problem.target} without intervention is not implied by the model, "
            f"and {len(values)} observations do not determine it; omit {{}}"
        )
    mean, sd = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    return mean, sd, *central_interval(mean, sd, len(values) - 1, level)
