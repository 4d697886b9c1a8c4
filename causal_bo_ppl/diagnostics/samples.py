"""Is the sample usable, is it one population, and do experiments follow the same mechanisms?

Two groups. A variable whose mechanism differs between two unknown groups is a mixture of two
regressions, V = x'b_g + e with a group g that was not recorded. Its likelihood is maximized by the
EM algorithm with one sd for both groups, so that it is bounded, and compared with that of one
regression by

    2 (log L_2 - log L_1) - (k + 1) log n > 10,

with k the columns of x and k + 1 more parameters: a difference of BIC that is called very strong.
Of one Gaussian population the ratio of likelihoods grows like log log n only.

Experiments. Setting other variables must leave the mechanism of V as it is. So the regression of V
on its causes has the same coefficients in observations with and without interventions, which is
tested by the F-test of Chow (1960), exact for linear mechanisms with Gaussian noise.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import f as fisher

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics.regressions import (
    NOISE_DRAWS,
    joined_before,
    regressors_given_district,
)
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_inputs, require_observations_known
from causal_bo_ppl.inputs import as_key, read_count, read_share, require_between
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.mechanisms.base import NoiseModel
from causal_bo_ppl.mechanisms.regression_tests import orthonormal
from causal_bo_ppl.problem import Problem

LARGEST_REPEATED_SHARE = 0.01  # of observations that repeat another one in every variable
CONTINUOUS_SHARE = 0.9  # of different values, from which on equal ones are no coincidence
LARGEST_OUTLIER = 8.0  # robust standard deviations from the median
LARGEST_OFFSET = 1e6  # means in sds: beyond, a rounded table has lost digits
NORMAL_MAD = 1.4826  # sds of a normal in a median absolute deviation
OBSERVATIONS_PER_COEFFICIENT = 10
VERY_STRONG = 10.0  # difference of BIC
SMALLEST_GROUP = 0.05  # share of the observations; fewer are outliers rather than a group
SMALLEST_SEPARATION = 1.0  # of the means of two groups, in sds of the noise
OBSERVATIONS_PER_GROUPED_COLUMN = 20
EM_STEPS, FINAL_EM_STEPS = 40, 400
FEWEST_OF_EXPERIMENTS = 3  # observations with interventions
SMALLEST_DRIFT = 0.1  # partial correlation beyond what chance explains: less is harmless
MOST_NAMED = 3  # in a text; the table has all


def check_sample(problem: Problem | Posterior, data: Data | None = None) -> Check:
    """Look for observations that were entered twice, outliers, and columns without information.

    Parameters
    ----------
    problem, data:
        The problem and its data, or a posterior, which has both.

    Returns
    -------
    Check
        A row for every variable: its `mean` and `sd`; how many `distinct` values it has; and its
        `outlier`, the largest distance from the median in robust sds (1.48 times the median
        absolute deviation), in observations without interventions where there are some. A row fails
        where that exceeds 8, where the variable is constant, or where its mean exceeds its sd by a
        factor of a million. The last row, "(observations)", counts those that `repeat` another one
        in every variable, where some variable is continuous, so that this is no coincidence; it
        fails where they are more than 1 %.

    Raises
    ------
    DataError
        If there are no observations.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.check_sample(system.problem, system.observe(100, 0)).passed
    True
    """
    problem, data = require_inputs("check_sample", problem, data)
    if not len(data):
        raise DataError("there are no observations to look at; observe some")
    plain = data.is_observational
    lines = {}
    for position, name in enumerate(problem.graph.nodes):
        column = data.values[:, position]
        natural = column[plain & ~data.intervened[:, position]] if plain.any() else column
        lines[name] = _describe_column(column, natural)
    table = pd.DataFrame.from_dict(
        lines, orient="index", columns=["mean", "sd", "distinct", "outlier", "fault", "verdict"]
    ).rename_axis("variable")
    repeats = _count_repeats(data)
    share = repeats / len(data)
    fault = "repeated" if share > LARGEST_REPEATED_SHARE else ""
    last = (np.nan, np.nan, len(data) - repeats, np.nan, fault, judge(not fault))
    table = pd.concat([table, pd.DataFrame([last], ["(observations)"], table.columns)])
    failed = table[table["verdict"] == FAILED]
    if failed.empty:
        text = (
            f"{len(data)} observations of {len(lines)} variables: none is constant, none has an "
            f"outlier beyond {LARGEST_OUTLIER:g} robust sds, and {repeats} observations repeat "
            "another."
        )
        return Check("sample", table, text)
    parts = [f"{name}: {row['fault']}" for name, row in failed.iterrows() if row.name in lines]
    if fault:
        parts.append(f"{repeats} of {len(data)} observations repeat another in every variable")
    advice = (
        "Look at these values: typing errors, units, another population, or observations that were "
        "entered twice. Transform a variable that is skewed."
    )
    return Check("sample", table, f"{'; '.join(parts[:MOST_NAMED])}.", advice)


def _describe_column(column: np.ndarray, natural: np.ndarray) -> tuple[object, ...]:
    """Return a row of `check_sample` for a variable, from all values and those not intervened."""
    mean, sd, distinct = float(column.mean()), float(column.std()), len(np.unique(column))
    centre = float(np.median(natural)) if len(natural) else mean
    width = NORMAL_MAD * float(np.median(np.abs(natural - centre))) if len(natural) else 0.0
    outlier = float(np.abs(natural - centre).max() / width) if width > 0 else 0.0
    fault = ""
    if distinct == 1:
        fault = f"constant at {mean:.4g}"
    elif abs(mean) > LARGEST_OFFSET * sd:
        fault = f"the mean {mean:.4g} is more than a million times the sd {sd:.2g}"
    elif outlier > LARGEST_OUTLIER:
        worst = natural[first_largest(np.abs(natural - centre))]
        fault = f"the value {worst:.4g} lies {outlier:.3g} robust sds from the median {centre:.4g}"
    return mean, sd, distinct, outlier, fault, judge(not fault)


def _count_repeats(data: Data) -> int:
    """Return how many observations repeat another, if some variable is continuous."""
    unique = np.unique(data.values, axis=0)
    shares = [len(np.unique(column)) / len(unique) for column in unique.T]
    return len(data) - len(unique) if max(shares) >= CONTINUOUS_SHARE else 0


def check_sample_size(
    problem: Problem | Posterior,
    data: Data | None = None,
    *,
    per_coefficient: int = OBSERVATIONS_PER_COEFFICIENT,
) -> Check:
    """Compare the number of observations of every mechanism with its number of coefficients.

    Parameters
    ----------
    problem, data:
        The problem and its data, or a posterior, which has both.
    per_coefficient:
        How many observations there should be for each coefficient, the intercept included.

    Returns
    -------
    Check
        A row for the target and each of its causes: `observations` in which it was not set, the
        number of `coefficients` of a linear mechanism, and the first divided by the second,
        `per_coefficient`. Under latent causes the coefficients are those of the regression on the
        variables that they join.

    Raises
    ------
    DataError
        If the data are not of this problem.
    ArgumentError
        If the number is not a whole one above 0.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.check_sample_size(system.problem, system.observe(15, 0)).verdict
    'failed'
    """
    problem, data = require_inputs("check_sample_size", problem, data)
    wanted = read_count("per_coefficient", per_coefficient, 1)
    graph, lines = problem.graph.ancestral(problem.target), {}
    for name in graph.nodes:
        count = int((~data.intervened[:, problem.graph.index(name)]).sum())
        size = len(regressors_given_district(graph, name)) + 1
        lines[name] = (count, size, count / size, judge(count >= wanted * size))
    columns = ["observations", "coefficients", "per_coefficient", "verdict"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("mechanism")
    failed = table[table["verdict"] == FAILED]
    least = table["per_coefficient"].min()
    text = f"Every mechanism has at least {least:.3g} observations for each coefficient."
    if failed.empty:
        return Check("sample size", table, text)
    parts = [
        f"{name} ({row['observations']} for {row['coefficients']})"
        for name, row in failed.iterrows()
    ]
    text = f"Fewer than {wanted} observations for each coefficient: {listed(parts, MOST_NAMED)}."
    advice = (
        "Intervals are wide, the prior matters, and faults of the model cannot be seen: observe "
        "more, or give a prior that states what is known."
    )
    return Check("sample size", table, text, advice)


class RegressionColumns(NamedTuple):
    """The regression of one variable over n observations.

    columns: (n, k) orthonormal. outcome: (n,) the standardized variable. inputs: (n, c) the
    regressors. is_experiment: (n,) whether something was set.
    """

    name: str
    columns: np.ndarray
    outcome: np.ndarray
    inputs: np.ndarray
    is_experiment: np.ndarray


def _regressions(
    given: Problem | Posterior, problem: Problem, data: Data
) -> list[RegressionColumns]:
    """Return the regressions of the target and its causes, in causal order.

    Of nonlinear mechanisms the outcome is their mean noise, where they know it.
    """
    graph, found = problem.graph.ancestral(problem.target), list[RegressionColumns]()
    errors = {} if _reads_linear(given) else _mean_noise(given)
    for name in graph.nodes:
        regressors, joined = regressors_given_district(graph, name), joined_before(graph, name)
        inside = [problem.graph.index(each) for each in (name, *joined)]
        free = ~data.intervened[:, inside].any(axis=1)
        is_known = _reads_linear(given) or name in errors
        outcome = errors.get(name, data.column(name))[free]
        if not is_known or not regressors or not len(outcome) or not np.ptp(outcome) > 0:
            continue
        inputs = data.values[free][:, [problem.graph.index(each) for each in regressors]]
        sd = inputs.std(axis=0)
        inputs = (inputs - inputs.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
        whole = np.column_stack([np.ones(len(inputs)), inputs])
        basis = orthonormal(np.empty((len(inputs), 0)), whole.T)
        scaled = (outcome - outcome.mean()) / outcome.std()
        found.append(RegressionColumns(name, basis, scaled, inputs, ~data.is_observational[free]))
    return found


def _reads_linear(given: object) -> bool:
    return not isinstance(given, Posterior) or given.distribution.response.is_affine


def _mean_noise(post: Any) -> dict[str, np.ndarray]:
    """Return the mean noise (N,) of nonlinear mechanisms that no latent cause joins to others."""
    model = require_observations_known("check_groups", post)
    graph = post.problem.graph.ancestral(post.problem.target)
    if not isinstance(model, NoiseModel):
        return {}
    models = post.distribution.drawn(NOISE_DRAWS, as_key(0)).thinned(NOISE_DRAWS).models
    values, _ = post.learned_observations
    return {
        name: np.asarray(model.disturbances(models, values[None], position).mean(axis=0))
        for position, name in enumerate(graph.nodes)
        if graph.parents(name) and graph.district(name) == (name,)
    }


def check_groups(problem: Problem | Posterior, data: Data | None = None) -> Check:
    """Look for two unknown groups between which a mechanism differs.

    Nonlinearity, heavy tails and noise that varies in size look alike; where checks for these fail
    too, consider them first.

    Parameters
    ----------
    problem, data:
        The problem and its data, or a posterior, which has both. Of nonlinear mechanisms the noise
        is looked at; of a problem, regressions.

    Returns
    -------
    Check
        A row for every variable with causes: `evidence`, the difference of BIC in favour of two
        groups; the `share` of the smaller one; and their `separation`, the root mean square
        difference of their means in sds of the noise. A row fails where the evidence exceeds 10,
        the share 5 % and the separation one sd. With fewer than 20 observations for each
        coefficient nothing is assessed.

    Raises
    ------
    DataError
        If the data are not of this problem.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> import numpy as np, pandas as pd
    >>> problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), target="Y", domains={"X": (-2, 2)})
    >>> x, e, u = np.random.default_rng(0).normal(size=(3, 200))
    >>> table = pd.DataFrame({"X": x, "Y": np.where(u > 0, x, -x) + 0.3 * e})
    >>> cb.diagnostics.check_groups(problem, cb.Data.from_frame(problem, table)).verdict
    'failed'
    """
    given = problem
    problem, data = require_inputs("check_groups", problem, data)
    lines: dict[str, tuple[object, ...]] = {}
    for each in _regressions(given, problem, data):
        n, k = each.columns.shape
        if n < OBSERVATIONS_PER_GROUPED_COLUMN * k:
            lines[each.name] = (n, np.nan, np.nan, np.nan, UNKNOWN)
            continue
        evidence, share, separation = _compare_groups(each)
        bad = evidence > VERY_STRONG and share > SMALLEST_GROUP and separation > SMALLEST_SEPARATION
        lines[each.name] = (n, evidence, share, separation, judge(not bad))
    columns = ["observations", "evidence", "share", "separation", "verdict"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("mechanism")
    failed = table[table["verdict"] == FAILED].sort_values("evidence", ascending=False)
    if failed.empty:
        count = int((table["verdict"] == PASSED).sum())
        return Check("two groups", table, f"None of {count} mechanisms differs between two groups.")
    parts = [
        f"{name} (the smaller one has {row['share']:.0%}; their means differ by "
        f"{row['separation']:.2g} sds of the noise)"
        for name, row in failed.iterrows()
    ]
    text = f"Two groups explain the mechanism far better than one: {listed(parts, MOST_NAMED)}."
    advice = (
        "Look for a variable that tells the groups apart, add it to the graph, or analyse the "
        "groups separately: an average effect may hold for neither."
    )
    return Check("two groups", table, text, advice)


def _compare_groups(given: RegressionColumns) -> tuple[float, float, float]:
    """Return the evidence for two groups, the share of the smaller, and their separation."""
    columns, y = given.columns, given.outcome
    n, k = columns.shape
    rest = y - columns @ (columns.T @ y)
    one = -0.5 * n * np.log((rest**2).mean())
    # Groups that differ in level, in the slope of a regressor, or by a cut through it.
    starts = [rest > np.median(rest), np.abs(rest) > np.median(np.abs(rest))]
    for x in given.inputs.T:
        starts += [rest * (x - np.median(x)) > 0, x > np.median(x)]
    weights = 0.1 + 0.8 * np.array(starts, float)
    likelihoods, weights, *_ = _expect_and_maximize(columns, y, weights, EM_STEPS)
    best = weights[[first_largest(likelihoods)]]
    likelihood, weights, means, variance = _expect_and_maximize(columns, y, best, FINAL_EM_STEPS)
    share = float(min(weights[0].mean(), 1 - weights[0].mean()))
    gap = means[0, 0] - means[1, 0]
    separation = float(np.sqrt((gap**2).mean() / variance[0]))
    return float(2 * (likelihood[0] - one) - (k + 1) * np.log(n)), share, separation


def _expect_and_maximize(
    columns: np.ndarray, y: np.ndarray, weights: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return log likelihoods (s,), weights (s, n), means (2, s, n) and variances (s,) after EM.

    weights: (s, n) the probabilities of the first group, from s starts. Log likelihoods omit the
    constant n/2 log(2 pi e), as that of one group does.
    """
    n, k = columns.shape
    floor = 1e-6 * float(y @ y) / n
    ridge = 1e-9 * np.eye(k)
    likelihoods = np.full(len(weights), -np.inf)
    means, variance = np.zeros((2, len(weights), n)), np.ones(len(weights))
    for _ in range(steps):
        parts = np.stack([weights, 1 - weights])  # (2, s, n)
        grams = np.einsum("gsn,nk,nl->gskl", parts, columns, columns, optimize=True) + ridge
        right = (parts * y) @ columns
        means = np.linalg.solve(grams, right[..., None])[..., 0] @ columns.T
        squares = (y - means) ** 2
        variance = np.maximum((parts * squares).sum(axis=(0, 2)) / n, floor)
        shares = np.clip(parts.mean(axis=2), 1e-6, 1.0)
        logs = np.log(shares)[:, :, None] - 0.5 * squares / variance[:, None]
        top = np.logaddexp(logs[0], logs[1])
        likelihoods = top.sum(axis=1) - 0.5 * n * np.log(variance) + 0.5 * n
        weights = np.exp(logs[0] - top)
    return likelihoods, weights, means, variance


def check_invariance(
    problem: Problem | Posterior,
    data: Data | None = None,
    *,
    alpha: float = 0.01,
    least_correlation: float = SMALLEST_DRIFT,
) -> Check:
    """Test whether mechanisms are the same in experiments as in observations.

    A mechanism that a latent cause joins to other variables is not tested, since setting these
    changes its regression.

    Parameters
    ----------
    problem, data:
        The problem and its data, or a posterior, which has both.
    alpha:
        How often mechanisms that are the same fail at all: p-values are corrected (Holm).
    least_correlation:
        A partial correlation with the difference up to this size, beyond chance, is harmless.

    Returns
    -------
    Check
        A row for every variable with causes: the number of observations with interventions,
        `experiments`, and without; the partial `correlation` of the variable with the difference of
        both regressions; its p-value, raw and corrected. Fewer than 3 of either are not assessed.

    Raises
    ------
    DataError
        If nothing was set in any observation.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> problem = system.problem
    >>> queries = problem.queries([{"X": value} for value in (-4.0, -2.0, 0.0, 2.0, 4.0)])
    >>> data = system.observe(100, 0).join(system.experiment(queries, 1))
    >>> cb.diagnostics.check_invariance(problem, data).passed
    True
    """
    given = problem
    problem, data = require_inputs("check_invariance", problem, data)
    alpha = read_share("alpha", alpha)
    limit = require_between("least_correlation", least_correlation, 0, 1)
    if data.is_observational.all():
        raise DataError("nothing was set in these observations, so there is nothing to compare")
    graph = problem.graph.ancestral(problem.target)
    lines = {
        each.name: _compare_experiments(each)
        for each in _regressions(given, problem, data)
        if graph.district(each.name) == (each.name,)
    }
    columns = ["experiments", "observations", "correlation", "gap", "p_value"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("mechanism")
    table["p_corrected"] = holm(table["p_value"].to_numpy(float))
    known = table["p_corrected"].notna()
    bad = (table["p_corrected"] < alpha) & (table["gap"] > limit)
    table["verdict"] = np.where(known, np.where(bad, FAILED, PASSED), UNKNOWN)
    failed = table[bad].sort_values("p_value", kind="stable")
    if failed.empty:
        count = int(known.sum())
        text = f"None of {count} mechanisms differs between experiments and observations."
        return Check("invariance", table, text)
    parts = [
        f"{name} ({row['experiments']:.0f} experiments; partial correlation "
        f"{row['correlation']:.2f}, p = {row['p_corrected']:.1g})"
        for name, row in failed.iterrows()
    ]
    text = f"Mechanisms are not the same in experiments: {listed(parts, MOST_NAMED)}."
    advice = (
        "Something else changed with the experiments (time, batch, device), the intervention acts "
        "elsewhere too, an arrow is missing, or a mechanism is nonlinear beyond the observations: "
        "find out which before experiments and observations are analysed together."
    )
    return Check("invariance", table, text, advice)


def _compare_experiments(given: RegressionColumns) -> tuple[float, float, float, float, float]:
    """Return a row of `check_invariance`: counts, partial correlation, gap and p-value."""
    among = given.is_experiment
    counts = float(among.sum()), float((~among).sum())
    added = np.column_stack([np.ones(len(among)), given.inputs]) * among[:, None]
    new = orthonormal(given.columns, added.T)
    freedom = len(among) - given.columns.shape[1] - new.shape[1]
    if min(counts) < FEWEST_OF_EXPERIMENTS or freedom < 1 or not new.shape[1]:
        return *counts, np.nan, np.nan, np.nan
    rest = given.outcome - given.columns @ (given.columns.T @ given.outcome)
    share = float(((new.T @ rest) ** 2).sum() / max(float(rest @ rest), 1e-300))
    q = new.shape[1]
    ratio = share / q / max(1 - share, 1e-300) * freedom
    gap = float(np.sqrt(max(share - q / (q + freedom), 0.0)))
    return *counts, float(np.sqrt(share)), gap, float(fisher.sf(ratio, q, freedom))
