"""Would the model have produced such rows, and how well does it predict rows it has not seen?

Statistics of every variable are compared with those of rows drawn from the posterior: mean, sd,
skewness and kurtosis of the values, for every mechanism skewness and kurtosis of its disturbances,
and its curvature, the correlation of the disturbance with the square of the cause where that is
largest. They are compared on scales on which differences are nearly Gaussian: logarithms of sd and
kurtosis, Fisher's z of the correlation.

Mechanisms whose Gaussian processes assume that they bend as strongly everywhere are compared with
the same on a stretched cause: a Bayes factor of 1000 against the assumption counts as a p-value of
1/1000, which it is at most, by Markov's inequality.

Rows are left out one by one by Pareto-smoothed importance sampling (PSIS-LOO), which also shows
whether a single row decides a mechanism.
"""

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import norm

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, holm, judge, sentence
from causal_bo_ppl.diagnostics.convergence import (
    require_between,
    require_draws,
    require_posterior,
    require_rows_known,
)
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_share
from causal_bo_ppl.mechanisms.interfaces import Unevenness, offered
from causal_bo_ppl.problem import Queries

# The differences that matter, on the scales on which they are compared.
TOLERANCES = {
    "mean": 0.1,
    "sd": 0.1,
    "skewness": 0.2,
    "kurtosis": 0.2,
    "residual skewness": 0.2,
    "residual kurtosis": 0.2,
    "curvature": 0.1,
    "uneven curvature": 1.0,
}
NATURAL = {"sd": np.exp, "kurtosis": np.exp, "residual kurtosis": np.exp, "curvature": np.tanh}
TAIL = 1.6448536269514722  # sds on each side that hold 90 % of a Gaussian
FEWEST = 8  # rows that a kurtosis needs
COLUMNS = "variable statistic observed predicted low high gap p_value where".split()
WORST_K = 0.7  # beyond it the estimate for that row is not to be trusted
LOO_COLUMNS = "mechanism rows elpd se p_loo largest_k influential which verdict".split()


def check_predictive(
    post: Posterior, *, draws: int = 400, alpha: float = 0.01, key: jax.Array | int = 0
) -> Check:
    """Compare every variable with what the fitted model predicts for it.

    A line fails where the difference is significant after Holm's correction and larger than what
    matters (a mean by 0.1 sd, an sd by 10 %, a skewness by 0.2, a kurtosis by 20 %, a correlation
    by 0.1). Residual skewness and kurtosis are those of the disturbances of a mechanism that has
    causes: its disturbances are Gaussian however much the mechanism bends.

    A Gaussian process bends as strongly everywhere. The "uneven curvature" of such a mechanism
    fails where the rows would be far likelier (Bayes factor above 1 / `alpha`, corrected) if one
    part of a cause were stretched against another, and the mechanism's mean would change in some
    row by more than one of its sds. Then bands are too narrow where rows are sparse: of 100 rows of
    C = exp(-B) + e, with B of variance 2 and e of variance 1, the 90 % interval of do(B = -3) holds
    the truth in about half of the data sets in which -3 lies among the rows; nine in ten of those
    in which it does not are named.

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, from at least 8 rows.
    draws:
        How many data sets are predicted.
    alpha:
        How often a true model may fail at all: p-values are corrected for their number (Holm).
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for every statistic of every variable: `observed`, `predicted` with 90 % of the
        predictions between `low` and `high`, the `gap` on the scale compared, its `tolerance`, and
        the p-value, raw and corrected. Variables that are constant or have fewer than 8 free rows
        are not assessed. For an uneven curvature, `observed` is the mechanism's mean in the row
        `where` it would change most if the cause were stretched, `predicted` what was fitted, and
        the gap is in posterior sds.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.check_predictive(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("check_predictive", post)
    if post.rows < FEWEST:
        raise DataError(
            f"{post.rows} rows are too few to compare with predictions; at least {FEWEST} are "
            "needed"
        )
    require_draws("check_predictive", draws, post)
    alpha = read_share("alpha", alpha)
    table = pd.DataFrame(_lines(post, draws, as_key(key)), columns=COLUMNS)
    table["p_corrected"] = holm(table["p_value"].to_numpy())
    table["tolerance"] = table["statistic"].map(TOLERANCES)
    bad = ~(table["gap"] <= table["tolerance"]) & ~(table["p_corrected"] >= alpha)
    known = table["statistic"].isin(list(TOLERANCES))
    table["verdict"] = [
        judge(not each) if is_known else UNKNOWN for each, is_known in zip(bad, known, strict=True)
    ]
    advice = _advise(table, post.belief.response.is_affine)
    return Check("posterior predictive", table, _tell(table, post.rows), advice)


def _lines(post: Posterior, draws: int, key: jax.Array) -> Iterator[tuple[object, ...]]:
    graph, (values, free) = post.problem.graph.ancestral(post.problem.target), post.learned_rows
    for_draws, for_rows = jax.random.split(key)
    model = require_rows_known("check_predictive", post)
    models = post.belief.drawn(draws, for_draws).thinned(draws).models
    rows = model.replicate(models, Queries(~free, np.where(free, 0.0, values)), for_rows)
    errors = offered(model, "disturbances")
    for place, name in enumerate(graph.nodes):
        chosen = free[:, place]
        if chosen.sum() < FEWEST or not np.ptp(values[chosen, place]) > 0:
            if chosen.any():
                why = "constant" if chosen.sum() >= FEWEST else f"{chosen.sum()} rows"
                yield name, why, *[np.nan] * 6, ""
            continue
        same = values[chosen][None]
        seen, predicted = (_statistics(part[:, :, place]) for part in (same, rows[:, chosen]))
        causes = [graph.index(cause) for cause in graph.parents(name)]
        if causes and errors is not None:
            ours, theirs = (errors(models, each, place) for each in (same, rows[:, chosen]))
            seen, predicted = seen | _residual(ours), predicted | _residual(theirs)
            curved = _curvatures(ours, same, causes)
            worst = int(np.abs(curved.mean(axis=1)).argmax())
            seen["curvature"] = curved[worst]
            [predicted["curvature"]] = _curvatures(theirs, rows[:, chosen], [causes[worst]])
        sd = float(values[chosen, place].std())
        for statistic in seen:
            compared = _compare(statistic, seen[statistic], predicted[statistic], sd)
            yield name, statistic, *compared, ""
    stretched = offered(model, "unevenness")
    if stretched is not None:
        yield from map(_uneven, stretched())


def _uneven(found: Unevenness) -> tuple[object, ...]:
    """Return the line of a mechanism with one of its causes stretched."""
    low, high = (found.fitted + sign * TAIL * found.sd for sign in (-1, 1))
    gap, p_value = abs(found.instead - found.fitted) / found.sd, np.exp(-max(found.log_factor, 0.0))
    means = (found.instead, found.fitted, low, high)
    where = f"{found.cause} = {found.value:.3g}"
    return found.variable, "uneven curvature", *means, gap, float(p_value), where


def _statistics(value: np.ndarray) -> dict[str, np.ndarray]:
    """Return statistics of one variable's values (s, n), an array of shape (s,) by name."""
    centred = value - value.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1)
    return {
        "mean": value.mean(axis=1),
        "sd": 0.5 * np.log(variance),
        "skewness": (centred**3).mean(axis=1) / variance**1.5,
        "kurtosis": np.log((centred**4).mean(axis=1) / variance**2),
    }


def _residual(error: np.ndarray) -> dict[str, np.ndarray]:
    """Return skewness and kurtosis of disturbances (s, n), of shape (s,) each."""
    found = _statistics(error)
    return {f"residual {name}": found[name] for name in ("skewness", "kurtosis")}


def _curvatures(error: np.ndarray, rows: np.ndarray, causes: list[int]) -> np.ndarray:
    """Return Fisher's z of the correlations of disturbances with squares of causes.

    The shape is (causes, s), for disturbances (s, n) and rows (s, n, p) of s draws.
    """
    squares = [
        (rows[:, :, cause] - rows[:, :, cause].mean(axis=1, keepdims=True)) ** 2 for cause in causes
    ]
    return np.stack(
        [
            np.arctanh(np.clip(_correlations(error, square), -0.999999, 0.999999))
            for square in squares
        ]
    )


def _correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    one, other = (part - part.mean(axis=1, keepdims=True) for part in (one, other))
    scale = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return np.asarray((one * other).sum(axis=1) / np.where(scale > 0, scale, 1.0))


def _compare(
    statistic: str, seen: np.ndarray, predicted: np.ndarray, sd: float
) -> tuple[float, ...]:
    """Return what a line shows of one statistic, from observed and predicted values (s,).

    These are the observed and the predicted value, the ends of 90 % of the predictions, the gap,
    and a p-value from the draws' differences.
    """
    gaps, natural = seen - predicted, NATURAL.get(statistic, lambda value: value)
    gap, spread = abs(float(gaps.mean())), float(gaps.std(ddof=1))
    p_value = float(2 * norm.sf(gap / spread)) if spread > 0 else float(gap == 0)
    shown = natural(
        np.array([seen.mean(), predicted.mean(), *np.quantile(predicted, (0.05, 0.95))])
    )
    return *map(float, shown), gap / sd if statistic == "mean" else gap, p_value


def _tell(table: pd.DataFrame, rows: int) -> str:
    failed = table[table["verdict"] == FAILED].sort_values("p_value", kind="stable")
    assessed = table[table["verdict"] != UNKNOWN]
    left_out = table.loc[table["verdict"] == UNKNOWN, "variable"]
    rest = (
        f" Not assessed (constant, or fewer than {FEWEST} free rows): {listed(left_out)}."
        if len(left_out)
        else ""
    )
    if not len(failed):
        statistics = f"{len(assessed)} statistics of {rows} rows"
        return f"All of {statistics} lie where the model predicts them.{rest}"
    words = [
        (
            f"{line['variable']} bends more in one part of the data than in another: near "
            f"{line['where']} its mean may be {line['observed']:.3g}, "
            if line["where"]
            else f"the {line['statistic']} of {line['variable']} is {line['observed']:.3g}, "
        )
        + f"predicted {line['predicted']:.3g} [{line['low']:.3g}, {line['high']:.3g}]"
        for _, line in failed.head(3).iterrows()
    ]
    count = f"{len(failed)} of {len(assessed)} statistics"
    return f"The model would not have produced these rows ({count}): {'; '.join(words)}.{rest}"


def _advise(table: pd.DataFrame, is_affine: bool) -> str:
    """Say what to do; is_affine: whether the effects of these mechanisms cannot bend."""
    failed = set(table.loc[table["verdict"] == FAILED, "statistic"])
    advice = []
    if "curvature" in failed:
        advice.append(
            'a mechanism bends: take mechanisms="gp" for it, transform the variable, or do not '
            "trust effects far from the data"
            if is_affine
            else "a mechanism bends more than these mechanisms follow: let it bend where it was "
            "kept linear, give it more functions or a shorter lengthscale, let causes that act "
            "together share a group, or look for outliers"
        )
    elif "uneven curvature" in failed:
        advice.append(
            "a mechanism bends more in one part of the data than in another, and its bands are too "
            "narrow where rows are sparse: give it more functions if cb.check_basis fails, "
            "transform the cause so that it bends evenly (its logarithm or exponential), add rows "
            "there, or take intervals there for twice as wide; "
            "disturbances that vary in size look alike"
        )
    if failed & {"residual skewness", "residual kurtosis"}:
        advice.append(
            "a disturbance is not Gaussian: look for outliers, bounds or several groups in what "
            "the causes leave unexplained; averages over it are off where a later mechanism bends"
        )
    elif failed & {"skewness", "kurtosis"}:
        advice.append(
            "a variable is not Gaussian: look for outliers, bounds or several groups, or "
            "transform it"
        )
    if failed & {"mean", "sd"}:
        advice.append(
            "location or scale is off: look at the prior, known coefficients and what was set in "
            "which rows"
        )
    return sentence(advice)


def check_loo(
    post: Posterior, *, draws: int = 2_000, worst_k: float = WORST_K, key: jax.Array | int = 0
) -> Check:
    """Leave every row out of every mechanism, by Pareto-smoothed importance sampling.

    A mechanism is the density of a variable given its causes (and the disturbances of its district
    before it).

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, from at least 2 rows.
    draws:
        About how many draws are used.
    worst_k:
        A line fails where the Pareto k of a row exceeds this: then that row has great influence, or
        the mechanism does not fit it.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for every mechanism: `elpd`, its expected log density for a new row, summed over the
        rows, with the standard error `se`; `p_loo`, how many parameters it seems to have; the
        `largest_k`; and how many rows are `influential`, and `which`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.check_loo(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("check_loo", post)
    worst_k, lines = require_between("worst_k", worst_k, 0, np.inf), []
    for name, each in leave_out("check_loo", post, draws, key).items():
        if len(each.rows) < 2:
            lines.append((name, len(each.rows), *[float("nan")] * 4, 0, "", UNKNOWN))
            continue
        bad = each.rows[~(each.pareto_k <= worst_k)]
        numbers = (each.elpd.sum(), each.standard_error, each.size, each.pareto_k.max())
        which = listed(bad, most=5) if len(bad) else ""
        line = (name, len(each.rows), *map(float, numbers), len(bad), which)
        lines.append((*line, judge(not len(bad))))
    table = pd.DataFrame(lines, columns=LOO_COLUMNS).set_index("mechanism")
    return Check("leave one out", table, _tell_left_out(table), _advise_on_rows(table))


class LeftOut(NamedTuple):
    """What a mechanism says about each of n rows when it has not learned from that row.

    rows: (n,) places among the posterior's rows. elpd: (n,) log densities. pareto_k: (n,) tails of
    the importance weights. standard_error: of the sum of `elpd`. size: how many parameters the
    mechanism seems to have. A single row cannot be left out; then nothing else is known.
    """

    rows: np.ndarray
    elpd: np.ndarray
    pareto_k: np.ndarray
    standard_error: float
    size: float


def leave_out(who: str, post: Posterior, draws: int, key: jax.Array | int) -> dict[str, LeftOut]:
    """Leave every row out of every mechanism by PSIS-LOO, with the variables' names as keys."""
    if post.rows < 2:
        raise DataError(f"leaving rows out needs at least 2 of them, got {post.rows}")
    require_draws(who, draws, post)
    require_rows_known(who, post)
    from arviz_stats import loo

    tree, found = post.to_datatree(draws=draws, key=key), {}
    for name in map(str, tree["observed_data"].data_vars):
        rows = np.asarray(tree["log_likelihood"][name].coords[f"row[{name}]"])
        if len(rows) < 2:
            unknown = np.full(len(rows), np.nan)
            found[name] = LeftOut(rows, unknown, unknown, np.nan, np.nan)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of large k: tables report them
            each = loo(tree, var_name=name, pointwise=True)
        parts = (np.asarray(each.elpd_i), np.asarray(each.pareto_k))
        found[name] = LeftOut(rows, *parts, float(each.se), float(each.p))
    return found


def _tell_left_out(table: pd.DataFrame) -> str:
    total = (
        f"Expected log density of new rows: {table['elpd'].sum():.1f} over {len(table)} mechanisms."
    )
    failed = table[table["verdict"] == FAILED]
    words = [
        f"{name} (rows {line['which']}, k up to {line['largest_k']:.2f})"
        for name, line in failed.iterrows()
    ]
    return (
        f"{total} Single rows decide {listed(words, most=5)}."
        if words
        else f"{total} No row has undue influence."
    )


def _advise_on_rows(table: pd.DataFrame) -> str:
    if FAILED not in set(table["verdict"]):
        return ""
    return (
        "Look at these rows: an error in the data, or a part of the domain where the mechanism is "
        "another."
    )
