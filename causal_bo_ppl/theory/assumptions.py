"""Do the assumptions A3 to A6 of the paper hold, and what do sets cost that are not explored?

A3 asks for k(z, z) <= kappa^2, A4 for a kernel that stays as it was in the beginning. A5 asks for

    |f(z) - mu_t(z)| <= sqrt(beta_t) sigma_t(z) + eps_t + rho_t   for all z and t,

with rho_t for the drift of the kernel, and A6 for sum_t sigma_t(z_t)^2 <= C sup_t gamma_T(k_t).

A5 and A4 are forecast before any experiment. After t observations theta_t, the posterior mean, is
distributed as N(theta_0, Sigma_0 - Sigma_t), and the truth as N(theta_t, Sigma_t). So both are
drawn, and the error of the kernel that is linearized at theta_t is compared with the bound.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import chi2

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, judge
from causal_bo_ppl.errors import ArgumentError, DataError, PosteriorError, listed
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, read_count, read_share
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import default_design
from causal_bo_ppl.problem.interventions import labels
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.constants import (
    BetaSchedule,
    adjustment_error,
    design,
    kappa2,
    lipschitz,
    parameter_error,
)
from causal_bo_ppl.theory.information_gains import greedy_gain
from causal_bo_ppl.theory.paths import learned_variables, mechanism_box, require_mechanisms
from causal_bo_ppl.theory.regret import decompose_regret

MOST_FORECAST_QUERIES = 256  # over which suprema of a forecast are taken
MOST_COMPARED_EFFECTS = 4_000_000  # draws times interventions, held in memory
LARGEST_LOSS = 0.1  # in sds of the outcomes
SEEN_SHARE = 0.95  # of the observations, at which a mechanism must be known
MOST_SEEN_VALUES = 500  # observations at which bands of mechanisms are evaluated
LARGEST_ADJUSTMENT = 0.1  # of the averages' standard error, in posterior sds of the effect
LARGEST_COST_OF_FIXING = 2.0  # sds under the fixed kernel, in those under the updated one


def check_bounded_kernel(post: Posterior, *, delta: float = 0.05) -> Check:
    """Compare kappa and L, the constants of assumption A3, with the scale of the outcomes.

    Parameters
    ----------
    post:
        A posterior by any method, with observations.
    delta:
        The level of eps_param is 1 - delta.

    Returns
    -------
    Check
        Rows with a `value` and a `limit`, the sd of the target in the observations: "kappa", the
        largest posterior sd of an effect over the domains, fails where it exceeds the limit, since
        the worst known effect is then less certain than a single outcome; "L", the largest change
        of an effect per unit of theta, and "eps_param", L times the radius of theta, need only be
        finite. `where` is the intervention.

    Raises
    ------
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DataError
        If the posterior has no observations.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.theory.check_bounded_kernel(cb.fit(system.problem, system.observe(100, 0))).verdict
    'passed'
    """
    post = require_trusted(post)
    if not post.n_observations:
        raise DataError("without observations the outcomes have no scale; fit some data")
    variance, slope = kappa2(post), lipschitz(post)
    error, scale = parameter_error(post, delta=delta), float(post.data.outcomes.std())
    kappa = float(np.sqrt(variance.value))
    worst = labels(post.problem, post.problem.queries([variance.intervention, slope.intervention]))
    lines = [
        ("kappa", kappa, scale, worst[0], judge(kappa <= scale)),
        ("L", slope.value, np.inf, worst[1], judge(slope.value < np.inf)),
        ("eps_param", error.value, np.inf, worst[1], judge(error.value < np.inf)),
    ]
    columns = ["constant", "value", "limit", "where", "verdict"]
    table = pd.DataFrame(lines, columns=columns).set_index("constant")
    text = (
        f"Domains are bounded, and no effect has a posterior sd above kappa = {kappa:.3g} "
        f"({variance.how}), at {worst[0]}; outcomes have an sd of {scale:.3g}. L is "
        f"{slope.value:.3g}; with probability {1 - delta:.0%} no effect is off by more than "
        f"{error.pointwise:.3g} to first order (L times the radius of theta: {error.value:.3g})."
    )
    advice = (
        ""
        if kappa <= scale
        else (
            f"The effect of {worst[0]} is hardly known: narrow the domains, observe more, or run "
            "an experiment there."
        )
    )
    return Check("bounded kernel", table, text, advice)


class ForecastKernel(NamedTuple):
    """A kernel before and after T further experiments, over M queries.

    before: features (M, r) now. after: features once the T greedily chosen experiments have
    informed the mechanisms. factor: of the covariance of theta after them, (d, r). fixed: sds (M,)
    after T outcomes of the same experiments by the kernel that stays as it is.
    """

    queries: Queries
    before: np.ndarray
    after: np.ndarray
    factor: np.ndarray
    fixed: np.ndarray


def forecast_kernel(post: Posterior, rounds: int) -> ForecastKernel:
    """Forecast the kernel after T experiments, each chosen where the effect is most uncertain.

    With features F = J S, Sigma = S S', and I(z) the expected information of one observation of z
    about the weights, Sigma_T = S (I + sum_t I(z_t))^-1 S'. Where that information is not known,
    an observation is taken to inform as its outcome alone does. The fixed kernel is conditioned on
    the outcomes alone.
    """
    post, count = require_trusted(post), read_count("rounds", rounds, 1)
    queries = default_design(post.problem, post.sets, None, MOST_FORECAST_QUERIES)
    factor = post.factor
    features = np.asarray(response(post).jacobian(post.mean, queries)) @ factor
    noise = post.outcome_variances(queries)
    chosen = np.asarray(greedy_gain(features, noise, count).chosen)
    size = factor.shape[1]
    information = post.expected_information(queries[chosen])
    scaled = features[chosen] / np.sqrt(noise[chosen])[:, None]
    total = scaled.T @ scaled if information is None else information.whole(size).sum(axis=0)
    root = np.linalg.cholesky(np.linalg.inv(np.eye(size) + (total + total.T) / 2))
    precision = np.eye(size) + scaled.T @ scaled
    fixed = np.sqrt(np.einsum("ij,ij->i", features @ np.linalg.inv(precision), features))
    return ForecastKernel(queries, features, features @ root, factor @ root, fixed)


def check_fixed_kernel(post: Posterior, *, rounds: int = 20) -> Check:
    """Compute what the fixed kernel of assumption A4 costs, compared with one that is updated.

    Parameters
    ----------
    post:
        A posterior that determines the variance of outcomes.
    rounds:
        The number T of planned experiments.

    Returns
    -------
    Check
        Rows with a `value` and a `limit`: "cost", the largest sd of an effect after T experiments
        under the fixed kernel, which learns from outcomes alone, divided by the largest one under
        the updated kernel, which learns from whole observations; it fails above 2. "information",
        gamma_T(k_0) over gamma_T(k_T), by greedy choices.

    Raises
    ------
    PosteriorError
        If the variance of outcomes is not known.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> check = cb.theory.check_fixed_kernel(cb.fit(system.problem, system.observe(100, 0)))
    >>> bool(check.table.loc["cost", "value"] >= 1)
    True
    """
    found = forecast_kernel(post, rounds)
    updated = float(np.linalg.norm(found.after, axis=1).max())
    fixed = float(found.fixed.max())
    cost = fixed / updated if updated > 0 else 1.0
    noise = post.outcome_variances(found.queries)
    gains = [
        float(greedy_gain(each, noise, rounds).gains[-1]) for each in (found.before, found.after)
    ]
    ratio = gains[0] / gains[1] if gains[1] > 0 else 1.0
    lines = [
        ("cost", cost, LARGEST_COST_OF_FIXING, judge(cost <= LARGEST_COST_OF_FIXING)),
        ("information", ratio, np.nan, UNKNOWN),
    ]
    table = pd.DataFrame(lines, columns=["quantity", "value", "limit", "verdict"])
    text = (
        f"After {rounds} experiments the least known effect has an sd of {fixed:.3g} under the "
        f"kernel as it is now, {updated:.3g} if whole observations update it; gamma_T is "
        f"{gains[0]:.3g} and {gains[1]:.3g}."
    )
    advice = (
        ""
        if cost <= LARGEST_COST_OF_FIXING
        else ('Let whole observations update the mechanisms (learn_from="auto", relinearize=True).')
    )
    return Check("fixed kernel", table.set_index("quantity"), text, advice)


def check_drift(
    of: Any,
    *,
    rounds: int = 20,
    delta: float = 0.05,
    beta_delta: float = 0.1,
    draws: int = 2_000,
    key: jax.Array | int = 0,
) -> Check:
    """Check the confidence bound of assumption A5: by what a run needed, or by a forecast.

    Parameters
    ----------
    of:
        A run whose truth is known, or a posterior, for which the bound is forecast.
    rounds:
        The number of planned experiments, for a forecast; of given draws, whose noise is not known,
        only the first round is judged.
    delta:
        The probability at which theta may lie outside the ball of eps_t, and with which the bound
        may fail.
    beta_delta:
        The level of the schedule beta_t = 2 log(|Z| t^2 pi^2 / (6 delta)) of a forecast, with |Z|
        the number of interventions compared.
    draws, key:
        How many truths a forecast draws; a JAX key or an int seed.

    Returns
    -------
    Check
        A row for each experiment of a run, or for the first and the last round of a forecast:
        `bound`, eps_t = sup_z sqrt(q J Sigma J'), which does not depend on the units of theta;
        `needed`, the least eps_t + rho_t with which the bound holds, of a forecast its 1 - delta
        quantile; `rho`, what of it eps_t does not cover; `share`, how often the bound
        fails without rho_t. A row passes where rho is 0.

    Raises
    ------
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DataError
        If it is a run without experiments, or whose truth is not known.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> check = cb.theory.check_drift(cb.fit(system.problem, system.observe(100, 0)))
    >>> check.verdict, check.table["rho"].tolist()
    ('passed', [0.0, 0.0])
    """
    delta = read_share("delta", delta)
    if isinstance(of, Posterior):
        level = read_share("beta_delta", beta_delta)
        return _forecast_drift(of, rounds, delta, level, draws, as_key(key))
    found = decompose_regret(of, delta=delta).path
    if "needed" not in found:
        raise DataError(
            "without the truth it is not known what the bound needed; forecast it with a posterior"
        )
    table = pd.DataFrame(
        {name: found[column] for name, column in (("bound", "pointwise"), ("needed", "needed"))},
        index=pd.Index(found["experiment"].to_numpy(), name="experiment"),
    )
    table["rho"] = np.maximum(table["needed"] - table["bound"], 0.0)
    table["share"] = (table["rho"] > 0).astype(float)
    table["verdict"] = [judge(rho <= 0) for rho in table["rho"]]
    return _describe_drift(table, "in this run", delta)


def _describe_drift(table: pd.DataFrame, when: str, delta: float) -> Check:
    failed = table[table["verdict"] == FAILED]
    share = f"{len(failed)} of {len(table)}"
    text = (
        f"The confidence bound {when} holds with rho_t = 0: it needs at most "
        f"{table['needed'].max():.3g} beyond sqrt(beta_t) sigma_t, and eps_t is at least "
        f"{table['bound'].min():.3g}."
    )
    if failed.empty:
        return Check("drift", table, text)
    text = (
        f"The confidence bound {when} needs rho_t up to {table['rho'].max():.3g} ({share}): "
        "linearization is too rough for the uncertainty of theta."
    )
    advice = (
        'Take kernel="monte_carlo", observe more before experimenting, or add a model discrepancy.'
    )
    return Check("drift", table, text, advice)


def _forecast_drift(
    post: Posterior, rounds: int, delta: float, level: float, draws: int, key: jax.Array
) -> Check:
    post, lines = require_trusted(post), []
    try:
        forecast = forecast_kernel(post, rounds).factor
    except PosteriorError:
        forecast = None  # draws without a noise: only what is now can be judged
    queries = default_design(post.problem, post.sets, None, MOST_FORECAST_QUERIES)
    effect = response(post)
    generator = host_generator(key)
    count = max(100, min(read_count("draws", draws, 100), MOST_COMPARED_EFFECTS // len(queries)))
    radius = float(np.sqrt(chi2.ppf(1 - delta, len(post.names))))
    steps: list[tuple[int, np.ndarray | None, np.ndarray]] = [(1, None, post.factor)]
    if forecast is not None:  # what is learned moves the posterior mean: Sigma_0 - Sigma_T
        moved = post.covariance - forecast @ forecast.T
        values, vectors = np.linalg.eigh((moved + moved.T) / 2)
        steps.append((rounds, vectors * np.sqrt(np.clip(values, 0.0, None)), forecast))
    for number, path, factor in steps:
        centre = (
            post.mean
            if path is None
            else post.mean + path @ generator.standard_normal(path.shape[1])
        )
        truths = centre + generator.standard_normal((count, factor.shape[1])) @ factor.T
        mean, jacobian = effect.linearize(centre, queries)
        sd = np.linalg.norm(np.asarray(jacobian) @ factor, axis=1)
        beta = BetaSchedule(level).at(number, len(queries))
        gaps = np.abs(np.asarray(effect.effects(truths, queries)) - np.asarray(mean))
        needed = np.maximum((gaps - np.sqrt(beta) * sd).max(axis=1), 0.0)
        bound = radius * float(sd.max(initial=0.0))
        quantile = float(np.quantile(needed, 1 - delta))
        share = float((needed > bound).mean())
        rho = max(quantile - bound, 0.0)
        lines.append((number, bound, quantile, rho, share, judge(rho <= 0)))
    columns = ["round", "bound", "needed", "rho", "share", "verdict"]
    table = pd.DataFrame(lines, columns=columns).set_index("round")
    return _describe_drift(table, f"as forecast for {rounds} rounds", delta)


def check_variance_sum(run: Any, *, delta: float = 0.05) -> Check:
    """Compare the ratio of assumption A6 along a run with its ceiling for a single kernel.

    Parameters
    ----------
    run:
        A run with at least one experiment.
    delta:
        As for `decompose_regret`.

    Returns
    -------
    Check
        A single row: the `ratio` sum_t sigma_t(z_t)^2 / sup_t gamma_T(k_t), and its `ceiling`
        C / (1 - 1/e) with C = 2 kappa^2 / log(1 + kappa^2 / s2), since gamma_T is that of greedy
        choices. It is not assessed where outcomes are exact, since gamma_T is infinite then.

    Raises
    ------
    DataError
        If it is not a run, or one without experiments.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=3, observations=50, key=0)
    >>> cb.theory.check_variance_sum(run).verdict
    'passed'
    """
    found = decompose_regret(run, delta=delta)
    ratio, constant = found["variance-sum ratio"], found["C"]
    ceiling = constant / (1 - np.exp(-1))
    gain = found["sup gamma_T"]
    known = np.isfinite(ratio) and np.isfinite(gain) and constant > 0
    verdict = judge(ratio <= ceiling) if known else UNKNOWN
    columns = {"ratio": [ratio], "ceiling": [ceiling], "gain": [gain], "verdict": [verdict]}
    text = (
        f"The variances along the path sum to {ratio:.3g} times sup gamma_T = {gain:.3g}; for one "
        f"kernel at most {ceiling:.3g} times."
    )
    advice = (
        ""
        if verdict != FAILED
        else ("The kernels of this run changed so much that the bound for them says little.")
    )
    return Check("variance sum", pd.DataFrame(columns), text, advice)


def check_exploration(
    post: Posterior, *, level: float = 0.9, draws: int = 400, key: jax.Array | int = 0
) -> Check:
    """Estimate eps_E, what the best of all sets gains over the best of the problem's, from data.

    At each draw of theta, eps_E = f*_all - f*_E for max and f*_E - f*_all for min, over vertices,
    or points that fill the domains where effects are not affine. `exploration_error` computes it
    where the truth is known.

    Parameters
    ----------
    post:
        A posterior that `cb.fit` made; it is fitted again for all minimal sets.
    level:
        The probability of the upper bound.
    draws, key:
        How many draws of theta; a JAX key or an int seed.

    Returns
    -------
    Check
        A single row: how many `sets` are not explored; the `mean` of eps_E and its `upper` bound;
        the `probability` that one of these sets is better; the `limit`, a tenth of the sd of the
        outcomes, which `upper` must not exceed; and the `best` intervention of all sets.

    Raises
    ------
    PosteriorError
        If the posterior was not made by `cb.fit`, so that it cannot be fitted again.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.theory.check_exploration(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    post, level = require_trusted(post), read_share("level", level)
    if post.recipe is None:
        raise PosteriorError(
            "this posterior was made of given draws, and cannot be fitted for other sets"
        )
    problem, task = post.problem.explore("mis"), post.recipe.task
    added = [members for members in problem.sets if members not in post.sets]
    whole, losses = post, np.zeros(1)
    if added:
        whole = fit(
            problem,
            post.data,
            mechanisms=post.recipe.mechanisms,
            method=post.recipe.method,
            intercepts=task.intercepts,
            prior=task.prior,
            linear=task.linear,
            key=post.recipe.key,
        )
        whole = whole if whole.verdict in ("exact", PASSED) else whole.accept(post.status)
    queries = design(whole).queries
    sign = 1.0 if problem.objective == "max" else -1.0
    if added:
        known = {tuple(row) for row in problem.graph.masks(post.sets).tolist()}
        inside = np.array([tuple(row) in known for row in np.asarray(queries.mask).tolist()])
        count = max(50, min(read_count("draws", draws, 50), MOST_COMPARED_EFFECTS // len(queries)))
        theta = whole.draws(count, as_key(key))
        drawn = sign * np.asarray(response(whole).effects(theta, queries))
        losses = np.maximum(drawn.max(axis=1) - drawn[:, inside].max(axis=1), 0.0)
    effects = sign * np.asarray(response(whole).effects(whole.mean, queries))
    best = labels(problem, queries[np.array([first_largest(effects)])])[0]
    upper, limit = float(np.quantile(losses, level)), LARGEST_LOSS * float(post.data.outcomes.std())
    row = (len(added), float(losses.mean()), upper, float((losses > 0).mean()), limit, best)
    columns = ["sets", "mean", "upper", "probability", "limit", "best", "verdict"]
    table = pd.DataFrame([(*row, judge(upper <= limit))], columns=columns)
    if not added:
        return Check("explored sets", table, "All minimal sets are explored, so eps_E is 0.")
    text = (
        f"{len(added)} minimal sets are not explored; with probability {row[3]:.0%} one of them is "
        f"better, by {row[1]:.3g} on average; best of all is {best}."
    )
    advice = "" if upper <= limit else "Explore more sets, such as with problem.explore('mis')."
    return Check("explored sets", table, text, advice)


def check_adjustment(post: Posterior, queries: Queries | None = None) -> Check:
    """Compare eps_adj, the numerical error of effects that are averages, with their posterior sds.

    Effects of linear mechanisms are closed forms without such an error. Those of nonlinear ones are
    averages over points, whose standard error is estimated from other points.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        Interventions; by default vertices of all sets and points inside their boxes.

    Returns
    -------
    Check
        A single row: the largest `error`, in units of the target, `where` it is attained; and the
        largest in posterior sds of the effect, `relative`, which must not exceed the `limit` 0.1.

    Raises
    ------
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    ArgumentError
        If there is no query.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> check = cb.theory.check_adjustment(cb.fit(system.problem, system.observe(100, 0)))
    >>> check.verdict, check.table["error"].tolist()
    ('passed', [0.0])
    """
    post = require_trusted(post)
    asked = default_design(post.problem, post.sets, queries, MOST_FORECAST_QUERIES // 4)
    if not len(asked):
        raise ArgumentError("there is no intervention: give at least one query")
    found = adjustment_error(post, asked)
    where = labels(post.problem, post.problem.queries([found.intervention]))[0]
    passes = bool(found.relative <= LARGEST_ADJUSTMENT)
    row = (found.value, where, found.relative, LARGEST_ADJUSTMENT, judge(passes))
    table = pd.DataFrame([row], columns=["error", "where", "relative", "limit", "verdict"])
    text = (
        f"Averages over noise are off by at most {found.value:.2g}, {found.relative:.2g} posterior "
        "sds of an effect."
    )
    advice = "" if passes else "Differences of effects below this error mean nothing."
    return Check("averages", table, text, advice)


def check_mechanism_errors(
    post: Posterior, *, level: float = 0.95, draws: int = 1_000, key: jax.Array | int = 0
) -> Check:
    """Bound the error eps_i of every fitted mechanism by simultaneous bands, without the truth.

    With h the mechanism at the posterior mean, h_s at draw s and sd(v) their standard deviation at
    causes v, c is the `level` quantile over draws of max_v |h_s(v) - h(v)| / sd(v), so that all of
    a mechanism lies within c sd(v) with that probability. eps_i is the largest c sd(v).

    Parameters
    ----------
    post:
        A posterior whose response map knows its mechanisms.
    level:
        The probability with which the band of each mechanism holds it.
    draws, key:
        How many draws of theta; a JAX key or an int seed.

    Returns
    -------
    Check
        A row for each variable whose mechanism was learned: `multiplier`, c; `error`, eps_i over
        the box of its causes, each in its domain and the range of its data; `inside`, the largest
        at 95 % of the observed values of the causes; and the `limit`, the sd of the variable,
        beyond which the mechanism is not known better than by its mean, so that the row fails.

    Raises
    ------
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted, or theta does not hold the
        mechanisms.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> check = cb.theory.check_mechanism_errors(cb.fit(system.problem, system.observe(100, 0)))
    >>> check.verdict, check.table.index.tolist()
    ('passed', ['Z', 'Y'])
    """
    post, level = require_trusted(post), read_share("level", level)
    mechanism = require_mechanisms(post).mechanism
    theta = post.draws(read_count("draws", draws, 100), as_key(key))
    graph, lines = post.problem.graph, {}
    for variable in learned_variables(post):
        causes = graph.parents(variable)
        values = mechanism_box(post, causes)
        values = values[:: -(-len(values) * len(theta) // MOST_COMPARED_EFFECTS)]
        seen = post.data.values[:: -(-len(post.data) // MOST_SEEN_VALUES)]
        values = np.vstack([values, seen])
        centre = np.asarray(mechanism(post.mean[None], variable, values))[0]
        drawn = np.asarray(mechanism(theta, variable, values))
        sd = drawn.std(axis=0)
        scaled = np.abs(drawn - centre) / np.where(sd > 0, sd, 1.0)
        multiplier = float(np.quantile(scaled.max(axis=1), level))
        errors = (
            multiplier * float(sd.max()),
            multiplier * float(np.quantile(sd[-len(seen) :], SEEN_SHARE)),
        )
        limit = float(post.data.column(variable).std())
        lines[variable] = (multiplier, *errors, limit, judge(errors[1] <= limit))
    columns = ["multiplier", "error", "inside", "limit", "verdict"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("variable")
    failed = table.index[table["verdict"] == FAILED]
    text = (
        f"With probability {level:.0%} each mechanism is within its band: at the data by at "
        f"most {(table['inside'] / table['limit']).max():.2g} sds of the variable."
    )
    advice = f"Observe more: {listed(failed)} is hardly known." if len(failed) else ""
    return Check("mechanism errors", table, text, advice)
