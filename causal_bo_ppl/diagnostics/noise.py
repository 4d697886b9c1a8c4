"""Does the noise of a mechanism vary in size, and does its shape move effects?

Residuals r = R y of a regression have the variances diag(R) s^2 if the noise has one sd s; see
`regressions`, where powers and products of the regressors are taken out too, so that a mean that is
wrong is not mistaken for noise that varies. Let w be half-normal scores: the quantiles of |N(0, 1)|
at the ranks of |r_i| / sqrt(R_ii). The statistic is the share of their variance that lies along a
cause x and |x - median|: the test of Glejser, by ranks, so that heavy tails do not decide.

Were the residuals independent, the share would be Beta(q / 2, (n - 1 - q) / 2) for q columns. But
each is a mixture of the noise of many observations, more so at the ends of a cause; the noise of an
exponential distribution looks smaller there. So r_i / sqrt(R_ii) are permuted, fitted again (R is a
matrix) and tested, and p-values are those of the smallest of all tests among such permutations
(Westfall and Young 1993).

Effects of nonlinear mechanisms are averages over the noise, which is assumed to be Gaussian. With
the distribution of the residuals in its place, and the same mean and sd, an effect moves by

    shift = (E[Y | do] by the residuals - E[Y | do] by a Gaussian) / posterior sd of the effect.

A shift by 0.3 sds brings the coverage of a 90 % interval to .89, by one sd to .74. Residuals hold
less of a long tail than the noise does, so that the true shift is often twice as large.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import beta

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm, sentence
from causal_bo_ppl.diagnostics.predictive import NoiseDesign, assess_noise
from causal_bo_ppl.diagnostics.regressions import find_regressions
from causal_bo_ppl.errors import listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, host_generator, read_share
from causal_bo_ppl.mechanisms.gp_responses import effects_at
from causal_bo_ppl.mechanisms.regression_tests import (
    FEWEST_OBSERVATIONS,
    ObservedRegression,
    Smoother,
    combine,
    mean_columns,
    orthonormal,
    share_along,
    size_columns,
    size_scores,
)
from causal_bo_ppl.mechanisms.scm_responses import SCMResponse
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import default_design
from causal_bo_ppl.problem.interventions import labels
from causal_bo_ppl.responses import response

VARYING, SHAPE = "varying", "shape"
FITTED = "its mean"  # what the noise may depend on, besides the causes
SMALLEST_CORRELATION = 0.1  # of the scores, beyond what chance explains: less is harmless
NEGLIGIBLE_NOISE = 1e-3  # sd of residuals, in sds: ten noise floors of user-defined mechanisms
LARGEST_SHIFT = 0.2  # of an effect, in its posterior sds: see the module
SMALLEST_RESIDUAL = 1e-6  # in sds of the residuals, below which their logarithm is not taken
CENTRAL = 0.05, 0.95  # quantiles of a cause between which the sd is compared
DESIGN_QUERIES = 64  # vertices, and as many points inside the boxes, where no query is named
MOST_NAMED = 3  # in a text; the table has all
INDEX = ["mechanism", "statistic", "source"]
REDRAWN = 999  # permutations of the residuals
MOST_REDRAWN_OBSERVATIONS = 1_000  # of more, residuals are as good as independent
LARGEST_SUSPECT_TAIL = 0.05  # of a test as if residuals were independent, above which it passes
VARYING_SHARE = 0.75  # of the error rate: shapes fail only where they move effects too


class NoiseRow(NamedTuple):
    """One test of the noise of one mechanism; see `check_noise`."""

    mechanism: str
    statistic: str
    source: str
    observed: float = np.nan
    gap: float = np.nan
    tolerance: float = np.nan
    factor: float = np.nan
    where: str = ""
    p_value: float = np.nan
    p_corrected: float = np.nan


def check_noise(
    post: Posterior,
    queries: Queries | None = None,
    *,
    alpha: float = 0.01,
    key: jax.Array | int = 0,
) -> Check:
    """Test whether the noise varies in size, and whether its shape moves effects.

    The sizes of the residuals of every mechanism are compared with each of its causes, and with its
    fitted mean where there are several, by ranks. Powers and products of the causes are taken out
    of the residuals first. The null distribution is that of 999 permutations of the residuals that
    are smoothed like the data: it holds for skewed noise and heavy tails.

    Where effects are averages over the noise (Gaussian processes), those of the residuals are
    compared with those of Gaussian noise. Only the shape is compared, mean and sd are the same.
    Where all mechanisms are linear, effects do not depend on the shape.

    Parameters
    ----------
    post:
        A posterior of whole models, from at least 8 observations.
    queries:
        Interventions whose effects are compared; by default up to 64 vertices of the sets, and as
        many points inside their boxes.
    alpha:
        How often a true model may fail at all: in at most this share of data sets. p-values are
        corrected for the number of tests.
    key:
        For the permutations: a JAX key or an int seed.

    Returns
    -------
    Check
        A row for every test of a mechanism. "varying" noise: `observed` is the correlation of the
        sizes with the `source` and its square, and `gap` the same beyond what chance explains; the
        sd differs by the `factor` over the central 90 % of the source's values, and is largest
        `where` named. The "shape": `observed` is the skewness of the residuals, and `gap` by how
        much an effect moves at most, in its posterior sds, `where` named. A row fails where it is
        significant and the gap larger than the `tolerance`: intervals are too narrow where the sd
        is large, or effects are off. Where the sd of the noise is less than a thousandth of that of
        the variable, the tolerance of "varying" is infinite. With fewer than 8 observations beyond
        the causes nothing is assessed.

    Raises
    ------
    DataError
        If there are fewer than 8 observations.
    PosteriorError
        If the draws are of theta alone.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> import numpy as np, pandas as pd
    >>> problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), target="Y", domains={"X": (-2, 2)})
    >>> x, e = np.random.default_rng(0).normal(size=(2, 100))
    >>> table = pd.DataFrame({"X": x, "Y": x + (0.1 + 0.5 * abs(x)) * e})
    >>> check = cb.diagnostics.check_noise(cb.fit(problem, table))
    >>> check.verdict, check.failures.index.to_list()
    ('failed', [('Y', 'varying', 'X')])
    """
    alpha = read_share("alpha", alpha)
    regressions = find_regressions("check_noise", post, key)
    shape = _shift_effects(post, regressions, queries)
    return _judge(post, _vary(regressions, key), shape, alpha)


def check_varying_noise(post: Posterior, *, alpha: float = 0.01, key: jax.Array | int = 0) -> Check:
    """Test only whether the noise varies in size; see `check_noise`."""
    regressions = find_regressions("check_noise", post, key)
    return _judge(post, _vary(regressions, key), [], alpha)


def _judge(post: Posterior, varying: list[NoiseRow], shape: list[NoiseRow], alpha: float) -> Check:
    table = pd.DataFrame([*varying, *shape], columns=NoiseRow._fields).set_index(INDEX)
    corrected = [holm(np.array([row.p_value for row in shape], float)) / (1 - VARYING_SHARE)]
    corrected.insert(0, np.array([row.p_corrected for row in varying], float) / VARYING_SHARE)
    table["p_corrected"] = np.minimum(np.concatenate(corrected), 1.0)
    gap, tolerance, p_values = table[["gap", "tolerance", "p_corrected"]].to_numpy(float).T
    bad = (gap > tolerance) & (p_values < alpha)
    table["verdict"] = np.where(np.isfinite(p_values), np.where(bad, FAILED, PASSED), UNKNOWN)
    failed = table[bad].sort_values("p_corrected", kind="stable")
    return Check("noise", table, _describe(post, table, failed), _advise(failed))


class SizeTests(NamedTuple):
    """Whether the sd of one mechanism's noise varies, by k sources.

    rows: a row for each. shares: (k,) the statistics as p-values of a beta distribution. redrawn:
    (B, k) the same for residuals that are permuted.
    """

    rows: list[NoiseRow]
    shares: np.ndarray
    redrawn: np.ndarray


def _vary(regressions: Iterable[ObservedRegression], key: jax.Array | int) -> list[NoiseRow]:
    """Return whether the noise of each mechanism varies, with p-values corrected for all tests."""
    generator, tests, rows = host_generator(as_key(key)), [], list[NoiseRow]()
    for regression in regressions:
        if regression.is_testable and regression.regressors:
            tests.append(_test_sizes(regression, generator))
        elif regression.regressors:
            few = f"fewer than {FEWEST_OBSERVATIONS} observations beyond its causes"
            first = regression.regressors[0]
            rows.append(NoiseRow(regression.variable, VARYING, first, where=few))
    if not tests:
        return rows
    smallest = np.column_stack([each.redrawn for each in tests]).min(axis=1, initial=1.0)
    found = []
    for each in tests:
        raw = 1 + (each.redrawn <= each.shares).sum(axis=0)
        corrected = 1 + (smallest[:, None] <= each.shares).sum(axis=0)
        for row, one, other in zip(each.rows, raw, corrected, strict=True):
            p_values = float(one) / (1 + REDRAWN), float(other) / (1 + REDRAWN)
            found.append(row._replace(p_value=p_values[0], p_corrected=p_values[1]))
    return [*found, *rows]


def _test_sizes(regression: ObservedRegression, generator: np.random.Generator) -> SizeTests:
    """Test whether the sizes of one mechanism's residuals depend on its causes or its mean."""
    name, regressors = regression.variable, regression.regressors
    smoother = Smoother.of(mean_columns(regression), regression.features)
    response = regression.response.mean(axis=1, keepdims=True)
    raw, sds = smoother.apply(response), np.sqrt(smoother.diagonal())[:, None]
    rest, n = raw / sds, len(raw)
    sources = dict(zip(regressors, regression.inputs.T, strict=True))
    if len(regressors) > 1:
        sources[FITTED] = regression.outcome - regression.scale * raw[:, 0]
    constant, scores = np.full((n, 1), 1 / np.sqrt(n)), size_scores(rest)
    columns = {source: size_columns(values) for source, values in sources.items()}
    new = {source: orthonormal(constant, each.T) for source, each in columns.items()}
    new = {source: each for source, each in new.items() if each.shape[1]}
    shares = {source: float(share_along(scores, each)[0]) for source, each in new.items()}
    sizes = {source: _fitted_sds(columns[source], rest[:, 0]) for source in new}
    degrees = {
        source: (each.shape[1] / 2, (n - 1 - each.shape[1]) / 2) for source, each in new.items()
    }
    tails = [float(beta.sf(share, *degrees[source])) for source, share in shares.items()]
    again, rows, redrawn = None, [], [np.zeros((REDRAWN, 0))]
    tolerance = SMALLEST_CORRELATION if rest.std() > NEGLIGIBLE_NOISE else np.inf
    # The tails of independent residuals are too small rather than too large: most need no others.
    if n <= MOST_REDRAWN_OBSERVATIONS and min(tails, default=1.0) < LARGEST_SUSPECT_TAIL:
        orders = np.argsort(generator.random((n, REDRAWN)), axis=0)
        noise = (rest[:, 0] - rest[:, 0].mean())[orders]
        again = size_scores(smoother.apply(noise) / sds)
    for source, share in shares.items():
        q = new[source].shape[1]
        if again is None:
            redrawn.append(generator.random((REDRAWN, 1)))
        else:
            redrawn.append(beta.sf(share_along(again, new[source]), *degrees[source])[:, None])
        gap = float(np.sqrt(max(share - q / (n - 1), 0.0)))
        factor, at = _compare_sds(sources[source], sizes[source])
        where = f"a mean of {at:.3g}" if source == FITTED else f"{source} = {at:.3g}"
        numbers = float(np.sqrt(share)), gap, tolerance, factor, where
        rows.append(NoiseRow(name, VARYING, source, *numbers))
    return SizeTests(rows, np.array(tails), np.column_stack(redrawn))


def _fitted_sds(columns: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return the sds (n,) of residuals (n,), up to a factor, by regression on columns (n, 2).

    Their logarithms are linear in the columns.
    """
    sizes = np.abs(rest) / np.sqrt((rest**2).mean())
    logs = np.log(np.maximum(sizes, SMALLEST_RESIDUAL))
    design = np.column_stack([np.ones(len(rest)), columns])
    fitted = design @ np.linalg.lstsq(design, logs, rcond=None)[0]
    return np.asarray(np.exp(fitted - fitted.mean()))


def _compare_sds(values: np.ndarray, sds: np.ndarray) -> tuple[float, float]:
    """Return by what factor sds (n,) differ over the central values (n,), and the worst value."""
    low, high = np.quantile(values, CENTRAL)
    inside = np.flatnonzero((values >= low) & (values <= high))
    largest = inside[int(sds[inside].argmax())]
    return float(sds[largest] / sds[inside].min()), float(values[largest])


def _shift_effects(
    post: Posterior, regressions: list[ObservedRegression], queries: Queries | None
) -> list[NoiseRow]:
    """Return by how much the residuals of each mechanism, in place of Gaussian noise, move effects.

    The noise of the target is not averaged over by any nonlinear mechanism.
    """
    averaged = post.distribution.response
    if not isinstance(averaged, SCMResponse) or averaged.has_blocks or averaged.is_affine:
        return []
    asked = default_design(post.problem, post.sets, queries, DESIGN_QUERIES)
    residuals, p_values, skewness = {}, {}, {}
    for regression in regressions:
        n, name = len(regression.outcome), regression.variable
        if name == post.problem.target or not regression.is_testable:
            continue
        columns = np.column_stack([np.ones(n), regression.standardized])
        smoother = Smoother.of(columns, regression.features)
        rest = smoother.apply(regression.response) / np.sqrt(smoother.diagonal())[:, None]
        design = NoiseDesign(np.arange(n), smoother.basis, {})
        tests = assess_noise(rest.T, design)
        if tests:
            least = min(combine(test.p_values) for test in tests.values())
            residuals[name], p_values[name] = rest[:, 0], min(1.0, len(tests) * least)
            skewness[name] = tests["skewness"].observed
    if not residuals or not len(asked):
        return []
    whole = response(post)
    jacobian = np.asarray(whole.linearize(post.mean, asked)[1])
    sds = np.sqrt(((jacobian @ post.factor) ** 2).sum(axis=1))
    batch, theta = averaged.batch(asked), post.mean
    usual = np.asarray(effects_at(averaged.program, theta, batch))
    rows = []
    for name, rest in residuals.items():
        moved = np.asarray(effects_at(averaged.with_residuals({name: rest}), theta, batch))
        shifts = (moved - usual) / np.where(sds > 0, sds, np.inf)
        worst = int(np.abs(shifts).argmax())
        where = labels(post.problem, asked[worst : worst + 1])[0]
        gap = float(np.abs(shifts[worst]))
        numbers = skewness[name], gap, LARGEST_SHIFT, np.nan, where, p_values[name]
        rows.append(NoiseRow(name, SHAPE, "residuals", *numbers))
    return rows


def _describe(post: Posterior, table: pd.DataFrame, failed: pd.DataFrame) -> str:
    linear = ""
    if post.distribution.response.is_affine:
        linear = " The shape of the noise is harmless: effects of linear mechanisms do not change."
    if not len(table):
        return f"No mechanism has causes that its noise could vary with.{linear}"
    unknown = table.index.get_level_values("mechanism")[table["verdict"] == UNKNOWN].unique()
    rest = (
        f" Not assessed (too few observations): {listed(unknown, most=5)}." if len(unknown) else ""
    )
    if not len(failed):
        count = len(table) - int((table["verdict"] == UNKNOWN).sum())
        return f"None of {count} tests finds noise that varies or moves effects.{rest}{linear}"
    parts = []
    for _, row in failed.head(MOST_NAMED).reset_index().iterrows():
        if row["statistic"] == VARYING:
            parts.append(
                f"the noise of {row['mechanism']} varies with {row['source']}: its sd differs by a "
                f"factor of {row['factor']:.2g} and is largest at {row['where']}"
            )
        else:
            parts.append(
                f"the noise of {row['mechanism']} is not Gaussian (skewness "
                f"{row['observed']:.2g}): averaged over the residuals the effect of {row['where']} "
                f"is {row['gap']:.2g} posterior sds away"
            )
    return f"{sentence(parts)}{rest}"


def _advise(failed: pd.DataFrame) -> str:
    kinds = set(failed.index.get_level_values("statistic"))
    parts = []
    if VARYING in kinds:
        parts.append(
            "intervals are too narrow where the sd is large, and averages over such noise are off "
            "where a later mechanism is nonlinear: transform the variable (its logarithm, where "
            "the sd grows with the mean), measure what the noise depends on, or let it vary, by "
            'cb.Linear(noise="varying") or cb.GP(noise="varying")'
        )
    if SHAPE in kinds:
        parts.append(
            "transform the variable so that its noise is symmetric, look for outliers, or take "
            "effects as uncertain by this shift too"
        )
    return sentence(parts)
