"""Which mechanism does each variable need? "auto" tests first, then compares held-out observations.

For every variable with causes, simplest first:

1. *Mean.* Two tests of the linear regression: squares and cubes of all causes, and hinges of each
   (F-test), and products of pairs (`regression_tests`). Only where one of them is significant are
   others fitted: a linear mechanism with these products, a Gaussian process of every cause, and the
   same with a joint process of these pairs. The next is taken where held-out observations are more
   probable,

       gain = sum_i min(d_i, 5)  >  max(1, k se),    se = sqrt(n) sd(d_i),

   with d_i the difference of the log density of observation i to that of the one taken before. k is
   0 at first, since the tests bound how often a linear truth comes so far, and 1 then.
2. *Noise*, from the residuals of the mechanism that was taken. It varies where the ranks of the
   sizes depend on a cause or the mean (Glejser). It has heavy tails where the kurtosis is large. In
   both cases residuals, held out, must gain by more than max(1, se) and be symmetric: the distances
   above and below their median have one distribution (Kolmogorov and Smirnov). Other noise stays
   constant, so that the checks see its shape.

So a linear truth is rarely fitted by anything but linear regression, which takes no longer. Nothing
depends on the order of the observations or on random numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.stats import beta, ks_2samp, kurtosistest
from scipy.stats import t as students_t

from causal_bo_ppl.checks import PASSED, UNKNOWN, Check, holm, sentence
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.mechanisms.base import HeldOut, Mechanisms, RegressionModel
from causal_bo_ppl.mechanisms.families import GaussianProcesses, find_plans, with_noise_models
from causal_bo_ppl.mechanisms.gp_priors import (
    CONSTANT_NOISE,
    GP,
    MOST_CAUSES_IN_A_GROUP,
    MOST_INTERACTIONS,
    Linear,
    regressors,
    usable_entries,
)
from causal_bo_ppl.mechanisms.linear import LinearMechanisms
from causal_bo_ppl.mechanisms.noise_models import STUDENT, VARYING, fit_log_sds
from causal_bo_ppl.mechanisms.regression_tests import (
    FEWEST_OBSERVATIONS,
    ObservedRegression,
    Smoother,
    find_interactions,
    mean_columns,
    orthonormal,
    share_along,
    size_columns,
    size_scores,
)
from causal_bo_ppl.mechanisms.selection import Diagnosable, hold_out_each
from causal_bo_ppl.problem import Problem

FEWEST_HELD_OUT = 4  # observations, below which nothing is compared
LARGEST_P_OF_A_MEAN = 0.045  # of the curvature of any mechanism, above which it is linear
LARGEST_P_OF_A_PAIR = 0.01  # of products, after Holm's correction within one mechanism
LARGEST_P_OF_NOISE = 0.006  # of sizes and tails of the residuals of any mechanism
POWERS_SHARE = 0.8  # of the error rate of the test of curvature; the rest is that of hinges
LEAST_P_OF_SYMMETRY = {VARYING: 0.01, STUDENT: 0.1}  # below which noise stays constant
HINGES = 6  # of each cause, at quantiles, in the test of its curvature
LEAST_GAIN, MOST_GAIN_OF_ONE = 1.0, 5.0  # in log density of held-out observations
WORST_PARETO_K, RELIABLE_SHARE = 0.7, 0.9
SELECTION_DRAWS = 2_000
SIZE_SD = 1.0  # prior sd of the slopes of the log sd of residuals, for one sd of a cause
MOST_PAIRS = 3  # that one mechanism is given
LINEAR_ENOUGH, NONLINEAR, INTERACTION = "linear is enough", "nonlinear", "interaction"
Choice = GP | Linear
Fit = Callable[[Mechanisms, object], Diagnosable]


class Chosen(NamedTuple):
    """A family and the check by which it was chosen; None where there was nothing to choose."""

    family: Mechanisms
    check: Check | None


class ChoiceRow(NamedTuple):
    """What was chosen for one variable, and why.

    choice: the text that makes it. difference, se: of the log density of held-out observations,
    compared with a linear mechanism; 0 where no other was fitted. p_nonlinear, p_interaction,
    p_noise: of the tests, the last of the test that decided about the noise.
    """

    mechanism: str
    observations: int
    choice: str
    finding: str
    difference: float
    se: float
    p_nonlinear: float
    p_interaction: float
    p_noise: float
    noise: str
    verdict: str


class Screened(NamedTuple):
    """The linear regression of one variable, and what its tests say; pairs: significant ones."""

    regression: ObservedRegression
    p_nonlinear: float
    p_interaction: float
    pairs: tuple[tuple[str, str], ...]

    def is_suspect(self, mechanisms: int) -> bool:
        """Return whether other means are compared; mechanisms: how many are tested."""
        return bool(self.pairs) or self.p_nonlinear < LARGEST_P_OF_A_MEAN / mechanisms


class Candidate(NamedTuple):
    """One mechanism of one variable with its held-out observations, and the model it is part of."""

    choice: Choice
    held_out: HeldOut
    model: Any


def choose_mechanisms(
    problem: Problem, data: Data, family: Mechanisms, prior: object, fit: Fit
) -> Chosen:
    """Return the mechanisms that the observations ask for; see the module.

    Parameters
    ----------
    problem, data:
        What is asked, and the observations.
    family, prior:
        The family that was given, and its prior.
    fit:
        Function of a family and a prior that returns the posterior to be compared.
    """
    if len(data) < FEWEST_HELD_OUT:
        raise DataError(
            f"{family.name!r} compares mechanisms on held-out observations, and there are "
            f"{len(data)}; give at least {FEWEST_HELD_OUT}, or use "
            'mechanisms="linear" or "gp"'
        )
    plans = find_plans(problem)
    screened = {each.regression.variable: each for each in screen(problem, data, plans)}
    candidates = _candidates(problem, screened, prior, plans is not None, fit)
    choices: dict[str, Choice] = {}
    rows = []
    for name, each in screened.items():
        taken, difference, error = _take(candidates.get(name, []))
        choice: Choice = Linear() if taken is None else taken.choice
        noise, p_noise = CONSTANT_NOISE, np.nan
        if plans is None and each.regression.is_testable:
            level = LARGEST_P_OF_NOISE / len(screened)
            noise, p_noise = choose_noise(_residual_regression(each, taken), level)
        choices[name] = replace(choice, noise=noise)
        rows.append(_row(each, choices[name], difference, error, p_noise))
    table = pd.DataFrame(rows, columns=ChoiceRow._fields).set_index("mechanism")
    check = Check("mechanisms chosen", table, describe_choice(table))
    named = {name: choice for name, choice in choices.items() if choice != Linear()}
    if not named and prior is None and plans is None:
        return Chosen(LinearMechanisms(), check)
    return Chosen(with_noise_models(GaussianProcesses(named, "linear")), check)


def screen(problem: Problem, data: Data, plans: Any) -> list[Screened]:
    """Return the tests of the linear regression of every variable that has regressors to learn."""
    graph = problem.graph.ancestral(problem.target)
    usable = dict(zip(graph.nodes, usable_entries(plans, graph.nodes, data).T, strict=True))
    columns = {name: data.column(name) for name in graph.nodes}
    found = []
    for name, given in regressors(problem, plans).items():
        known = [cause for cause in given if (cause, name) in problem.known]
        causes = tuple(cause for cause in given if cause not in known)
        if not causes:
            continue
        rows = usable[name]
        outcome = columns[name] - sum(problem.known[c, name] * columns[c] for c in known)
        inputs = np.column_stack([columns[cause] for cause in causes])[rows]
        none = np.zeros((int(rows.sum()), 0))
        regression = ObservedRegression(name, causes, inputs, outcome[rows], none)
        if not regression.is_testable:
            found.append(Screened(regression, np.nan, np.nan, ()))
            continue
        tests = find_interactions(regression)
        p_values = holm(np.array([test.p_value for test in tests], float))
        pairs = [
            tests[k].pair
            for k in np.argsort(p_values, kind="stable").tolist()
            if p_values[k] < LARGEST_P_OF_A_PAIR
        ]
        least = float(np.nanmin(p_values)) if np.isfinite(p_values).any() else np.nan
        p_nonlinear = curvature_p_value(regression)
        found.append(Screened(regression, p_nonlinear, least, tuple(pairs[:MOST_PAIRS])))
    return found


def curvature_p_value(regression: ObservedRegression) -> float:
    """Return the p-value of powers of all causes, and of hinges of each, in the F-test.

    p-values are corrected for the number of tests, those of powers least.
    """
    inputs, outcome = regression.standardized, regression.response[:, 0]
    n, ranks = len(inputs), np.arange(1, HINGES + 1) / (HINGES + 1)
    basis = orthonormal(np.empty((n, 0)), [np.ones(n), *inputs.T])
    residual = outcome - basis @ (basis.T @ outcome)

    def tail(columns: list[np.ndarray]) -> float:
        new = orthonormal(basis, columns)
        size, freedom = new.shape[1], n - basis.shape[1]
        if not size or freedom - size < FEWEST_OBSERVATIONS:
            return np.nan
        share = float(((new.T @ residual) ** 2).sum() / max(residual @ residual, 1e-300))
        return float(beta.sf(share, size / 2, (freedom - size) / 2))

    of_powers = tail([*(inputs**2).T, *(inputs**3).T])
    of_hinges = [
        tail([np.maximum(column - knot, 0.0) for knot in np.quantile(column, ranks)])
        for column in inputs.T
    ]
    rest = len(of_hinges) / (1 - POWERS_SHARE)
    p_values = [of_powers / POWERS_SHARE, *(rest * each for each in of_hinges)]
    known = [each for each in p_values if np.isfinite(each)]
    return min(1.0, *known) if known else np.nan


def _candidates(
    problem: Problem,
    screened: Mapping[str, Screened],
    prior: object,
    has_plans: bool,
    fit: Fit,
) -> dict[str, list[Candidate]]:
    """Return the mechanisms that are compared, by variable, simplest first.

    All suspect variables are fitted together: each kind of mechanism takes one fit.
    """
    suspect = [name for name, each in screened.items() if each.is_suspect(len(screened))]
    if not suspect:
        return {}
    simplest: Mechanisms = GaussianProcesses({}, "linear") if has_plans else LinearMechanisms()
    joined = {name: screened[name].pairs for name in suspect if screened[name].pairs}
    products = {name: Linear(pairs[:MOST_INTERACTIONS]) for name, pairs in joined.items()}
    processes = dict.fromkeys(suspect, GP())
    groups = {name: GP(groups=merge_pairs(pairs)) for name, pairs in joined.items()}
    found: dict[str, list[Candidate]] = {name: [] for name in suspect}
    kinds: list[tuple[Mechanisms, Mapping[str, Choice]]] = [
        (simplest, dict.fromkeys(suspect, Linear())),
        (GaussianProcesses(products, "linear"), products),
        (GaussianProcesses(processes, "linear"), processes),
        (GaussianProcesses({**processes, **groups}, "linear"), groups),
    ]
    for family, choices in kinds:
        if not choices:
            continue
        post = fit(family, None if family is simplest and not has_plans else prior)
        held_out = hold_out_each(post, SELECTION_DRAWS, 0)
        model = getattr(getattr(post, "distribution", None), "model", None)
        for name, choice in choices.items():
            if name in held_out:
                found[name].append(Candidate(choice, held_out[name], model))
    return found


def merge_pairs(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return groups of at most three causes that hold the pairs, the most significant first."""
    groups: list[tuple[str, ...]] = []
    for pair in pairs:
        touched = [group for group in groups if {*group} & {*pair}]
        whole = tuple(dict.fromkeys(name for part in (*touched, pair) for name in part))
        if len(whole) <= MOST_CAUSES_IN_A_GROUP:
            groups = [group for group in groups if group not in touched] + [whole]
    return groups


def _take(candidates: Sequence[Candidate]) -> tuple[Candidate | None, float, float]:
    """Return the mechanism that is taken, None for a linear one, and its gain with its error."""
    if not candidates:
        return None, 0.0, 0.0
    taken = candidates[0]
    for each in candidates[1:]:
        gain, error = compare(each.held_out, taken.held_out)
        if gain > (LEAST_GAIN if taken is candidates[0] else max(LEAST_GAIN, error)):
            taken = each
    if taken is candidates[0]:
        return None, 0.0, 0.0
    return taken, *compare(taken.held_out, candidates[0].held_out)


def compare(one: HeldOut, other: HeldOut) -> tuple[float, float]:
    """Return by how much observations are more probable under the first, and the standard error.

    An observation counts 5 at most. Minus infinity where too many are not reliable.
    """
    reliable = one.is_exact | (one.pareto_k <= WORST_PARETO_K)
    gaps = np.minimum(one.elpd - other.elpd, MOST_GAIN_OF_ONE)[reliable]
    gaps = gaps[np.isfinite(gaps)]
    if not np.mean(reliable) >= RELIABLE_SHARE or len(gaps) < 2:
        return -np.inf, np.inf
    return float(gaps.sum()), float(np.sqrt(len(gaps)) * gaps.std(ddof=1))


def _residual_regression(screened: Screened, taken: Candidate | None) -> ObservedRegression:
    """Return the regression of the mechanism that was taken, with its features."""
    if taken is None or not isinstance(taken.model, RegressionModel):
        return screened.regression
    data: Data = taken.model.data  # type: ignore[attr-defined]
    fitted = taken.model.regressions(taken.model.usable(data))
    if fitted is None:
        return screened.regression
    known = {each.variable: ObservedRegression(*each) for each in fitted}
    return known[screened.regression.variable]


def choose_noise(regression: ObservedRegression, level: float) -> tuple[str, float]:
    """Return the noise that the residuals of a regression ask for, and the p-value that decided.

    level: of the tests.
    """
    smoother = Smoother.of(mean_columns(regression), regression.features)
    if smoother.freedom < FEWEST_OBSERVATIONS:
        return CONSTANT_NOISE, np.nan
    raw = smoother.apply(regression.response[:, :1])
    rest = raw[:, 0] / np.sqrt(smoother.diagonal())
    if not rest.std() > 1e-6:
        return CONSTANT_NOISE, np.nan
    n, sources = len(rest), [*regression.inputs.T]
    if len(sources) > 1:
        sources.append(regression.outcome - regression.scale * raw[:, 0])
    constant, scores, p_values = np.full((n, 1), n**-0.5), size_scores(rest[:, None]), []
    for values in sources:
        new = orthonormal(constant, size_columns(values).T)
        if new.shape[1]:
            share, size = float(share_along(scores, new)[0]), new.shape[1]
            p_values.append(float(beta.sf(share, size / 2, (n - 1 - size) / 2)))
    p_varying = min(1.0, len(p_values) * min(p_values)) if p_values else 1.0
    design = [size_columns(values) for values in regression.inputs.T]
    above, below = rest[rest > np.median(rest)], rest[rest < np.median(rest)]
    distances = above - np.median(rest), np.median(rest) - below
    p_symmetric = float(ks_2samp(*distances, method="asymp").pvalue)
    is_symmetric = {kind: p_symmetric > least for kind, least in LEAST_P_OF_SYMMETRY.items()}
    if p_varying < level / 2 and is_symmetric[VARYING]:
        if _is_gain(gains_of_varying(rest, design)):
            return VARYING, p_varying
    p_heavy = float(kurtosistest(rest, alternative="greater").pvalue) if n >= 20 else 1.0
    if p_heavy < level / 2 and is_symmetric[STUDENT] and _is_gain(gains_of_tails(rest)):
        return STUDENT, p_heavy
    return CONSTANT_NOISE, min(p_varying, p_heavy)


def _is_gain(gaps: np.ndarray) -> bool:
    gaps = np.minimum(gaps, MOST_GAIN_OF_ONE)
    error = float(np.sqrt(len(gaps)) * gaps.std(ddof=1))
    return bool(gaps.sum() > max(LEAST_GAIN, error))


def gains_of_varying(rest: np.ndarray, design: Sequence[np.ndarray]) -> np.ndarray:
    """Return the gain (n,) in log density of each residual, held out, if log sds are linear.

    design: columns (n, 2) of each cause. Without observation i the coefficients move by one Newton
    step from the mode, c - (H - h_i x_i x_i')^-1 x_i s_i, with its slope s_i and curvature h_i.
    """
    wide = np.column_stack([np.ones(len(rest)), *design])
    return np.asarray(_held_out_logs(rest, wide) - _held_out_logs(rest, wide[:, :1]))


def _held_out_logs(rest: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    sd = np.full(matrix.shape[1], SIZE_SD)
    sd[0] = 10.0
    coefficients = fit_log_sds(rest, matrix, sd, 0.5 * float(np.log((rest**2).mean())))[0]
    logs = matrix @ coefficients
    ratio = rest**2 * np.exp(-2 * logs)
    curve = (matrix * (2 * ratio)[:, None]).T @ matrix + np.diag(1 / sd**2)
    solved = np.linalg.solve(curve, matrix.T).T
    leverage = (solved * matrix).sum(axis=1)
    moved = leverage * (1 - ratio) / np.maximum(1 - 2 * ratio * leverage, 0.1)
    logs = logs + moved
    return np.asarray(-logs - 0.5 * rest**2 * np.exp(-2 * logs))


def gains_of_tails(rest: np.ndarray) -> np.ndarray:
    """Return the gain (n,) in log density of each residual if noise is Student's t, not Gaussian.

    Log densities at the maximum, less the one parameter more (Akaike).
    """

    def logs(parameters: Any) -> np.ndarray:
        df, scale = 2 + np.exp(parameters[0]), np.exp(parameters[1])
        return np.asarray(students_t.logpdf(rest, df, 0.0, scale))

    sd = float(np.sqrt((rest**2).mean()))
    start = np.array([np.log(4.0), np.log(0.8 * sd)])
    loss: Any = lambda parameters: -float(logs(parameters).sum())  # noqa: E731
    best = minimize(loss, start, method="Nelder-Mead").x
    normal = -np.log(sd) - 0.5 * (rest / sd) ** 2 - 0.5 * np.log(2 * np.pi)
    return np.asarray(logs(best) - normal - 1 / len(rest))


def _row(
    screened: Screened, choice: Choice, difference: float, error: float, p_noise: float
) -> ChoiceRow:
    regression = screened.regression
    is_joint = (
        isinstance(choice, Linear)
        and choice.interactions
        or (isinstance(choice, GP) and choice.groups)
    )
    mean = INTERACTION if is_joint else NONLINEAR if isinstance(choice, GP) else LINEAR_ENOUGH
    return ChoiceRow(
        regression.variable,
        len(regression.outcome),
        write_choice(choice),
        mean,
        difference,
        error,
        screened.p_nonlinear,
        screened.p_interaction,
        p_noise,
        choice.noise,
        PASSED if regression.is_testable else UNKNOWN,
    )


def write_choice(choice: Choice) -> str:
    """Return the text that makes a choice."""
    if choice in (GP(), Linear()):
        return "linear" if isinstance(choice, Linear) else "gp"
    kind = "Linear" if isinstance(choice, Linear) else "GP"
    joint = choice.interactions if isinstance(choice, Linear) else choice.groups
    name = "interactions" if isinstance(choice, Linear) else "groups"
    options = [f"{name}={list(joint)!r}"] if joint else []
    options += [] if choice.noise == CONSTANT_NOISE else [f'noise="{choice.noise}"']
    return f"cb.{kind}({', '.join(options)})"


def describe_choice(table: pd.DataFrame) -> str:
    """Return what was chosen, and why, as sentences."""
    if not len(table):
        return "No mechanism has causes whose influence is learned: there is nothing to choose."
    kinds = (
        (table["finding"] == LINEAR_ENOUGH, "linear mechanisms"),
        (table["finding"] == INTERACTION, "interactions"),
        (table["finding"] == NONLINEAR, "Gaussian processes"),
    )
    parts = [
        f"{words} for {listed(list(map(str, table.index[chosen])), most=6)}"
        for chosen, words in kinds
        if chosen.any()
    ]
    text = f"Tests and held-out observations chose {'; '.join(parts)}."
    reasons = [
        f"{name} ({row['choice']}) gains {row['difference']:.1f} +- {row['se']:.1f} in log density "
        "of held-out observations, compared with a linear mechanism"
        for name, row in table[table["finding"] != LINEAR_ENOUGH].head(6).iterrows()
    ]
    reasons += [
        f"the noise of {name} {'varies' if row['noise'] == VARYING else 'has heavy tails'} "
        f"(p = {row['p_noise']:.1g})"
        for name, row in table[table["noise"] != CONSTANT_NOISE].head(6).iterrows()
    ]
    unknown = table.index[table["verdict"] == UNKNOWN]
    if len(unknown):
        names = listed(list(map(str, unknown)), most=5)
        reasons.append(f"too few observations to compare: {names}")
    return f"{text} {sentence(reasons)}" if reasons else text
