"""Which checks stand for which assumption, and what does each finding mean for the recommendation?

Each check is a function of the situation that returns a finding: a verdict, the figure and its
limit, and what they mean. A check of the package that failed becomes "failed" where it takes the
ground from the recommendation, and "warning" where it does not; the functions below say which.
"""

import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from causal_bo_ppl import diagnostics, theory
from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics.overlap import WEAKEST_F
from causal_bo_ppl.diagnostics.prior_predictive import TOO_WIDE
from causal_bo_ppl.diagnostics.samples import OBSERVATIONS_PER_COEFFICIENT
from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOError,
    CausalBOWarning,
    listed,
    unknown,
)
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.draws import InferenceMethod
from causal_bo_ppl.inputs import (
    PROGRESS_DELAY,
    as_key,
    host_generator,
    require_one_of,
    write_key,
)
from causal_bo_ppl.kernels import exact_gram, monte_carlo_gram
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.mechanisms import Choice
from causal_bo_ppl.mechanisms.base import AveragedMap, MechanismMap, Prior
from causal_bo_ppl.optimization import Run, Study
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.interventions import split_by_set
from causal_bo_ppl.responses import independent_coefficients
from causal_bo_ppl.serialization import find_versions
from causal_bo_ppl.theory.information_gains import causal_rank
from causal_bo_ppl.validation.cards import (
    NOT_APPLICABLE,
    NOT_COMPUTED,
    WARNING,
    Card,
    Validation,
)
from causal_bo_ppl.validation.robustness import PLAUSIBLE_P, assess_robustness
from causal_bo_ppl.validation.situation import GRAPH_ALPHA, Situation, read_situation

MODEL_ALPHA = 5e-3  # the share of true models that fail each check of the mechanisms
WEAKEST_DESIGN = 0.01  # of the smallest eigenvalue of the correlations of a mechanism's causes
STRONG_INSTRUMENT = 20.0  # F below which a warning remains
FEWEST_BEYOND_CAUSES = 8  # observations without which a mechanism cannot be checked at all
LARGEST_LOSS = 0.1  # of what the recommendation gains over doing nothing
LARGEST_OPTIMISM = 0.5  # posterior sds: the coverage of a 90 % interval falls to about 0.85
LARGEST_KERNEL_ERROR = 0.1  # relative, of the sd of an effect
CONFIDENCE_BETA = 4.0  # of the bound by which kernels are compared in the decision
SELECTION_DRAWS = 400
NO_OBSERVATIONS = "The posterior was made of draws, without observations."
QUICK_DRAWS = 800  # where the default takes long
LARGEST_STEP_BEYOND = 0.25  # of the observed range, by which a linear mechanism is extended
MOST_COMPARED = 400  # interventions whose kernels are compared


class Finding(NamedTuple):
    """What a check found; see `cb.validation.Card`."""

    verdict: str
    text: str
    quantity: str = ""
    figure: float = np.nan
    threshold: float = np.nan
    meaning: str = ""
    advice: str = ""
    check: Check | None = None


def not_applicable(why: str) -> Finding:
    """Return the finding that a question does not arise."""
    return Finding(NOT_APPLICABLE, why)


def of_check(
    check: Check,
    *figure: Any,
    grave: bool = False,
    meaning: str = "",
    unknown_is: str = NOT_APPLICABLE,
) -> Finding:
    """Return a finding from a check of the package.

    figure: quantity, value and limit. grave: whether a failure takes the ground from the
    recommendation. unknown_is: the verdict where nothing could be assessed.
    """
    verdict = {FAILED: FAILED if grave else WARNING, UNKNOWN: unknown_is}.get(check.verdict, PASSED)
    is_bad = verdict in (FAILED, WARNING)
    quantity, value, limit = figure or ("", np.nan, np.nan)
    shown = quantity, float(value), float(limit), meaning if is_bad else "", check.advice
    return Finding(verdict, check.text, *shown, check)


def _smallest(table: pd.DataFrame, column: str = "p_corrected") -> float:
    return float(table[column].min()) if len(table) and table[column].notna().any() else np.nan


def _fit(now: Situation) -> Finding:
    if now.fitted is None:
        text = f"These data cannot be fitted: {now.refused}"
        return Finding(FAILED, text, meaning="There is no recommendation.")
    return Finding(PASSED, f"{now.post!r}.")


def _sample(now: Situation) -> Finding:
    if not len(now.data):
        return not_applicable(NO_OBSERVATIONS)
    check = diagnostics.check_sample(now.problem, now.data)
    figure = "largest distance from the median, in robust sds", check.table["outlier"].max(), 8.0
    meaning = "A few values may decide the effects; the recommendation may rest on them."
    return of_check(check, *figure, meaning=meaning)


def _sample_size(now: Situation) -> Finding:
    if not len(now.data):
        return not_applicable(NO_OBSERVATIONS)
    check = diagnostics.check_sample_size(now.problem, now.data)
    table = check.table
    spare = table["observations"] - table["coefficients"]
    hopeless = table.index[(spare < FEWEST_BEYOND_CAUSES).to_numpy()]
    least = float(table["per_coefficient"].min())
    figure = "observations per coefficient, at least", least, float(OBSERVATIONS_PER_COEFFICIENT)
    meaning = now.concern(check.failures.index)
    return of_check(check, *figure, grave=now.rests_on(hopeless), meaning=meaning)


def _groups(now: Situation) -> Finding:
    check = diagnostics.check_groups(now.post, now.data)
    evidence = check.table["evidence"].max() if len(check.table) else np.nan
    meaning = now.concern(check.failures.index)
    return of_check(check, "evidence for two groups (BIC)", float(evidence), 10.0, meaning=meaning)


def _invariance(now: Situation) -> Finding:
    if now.data.is_observational.all():
        return not_applicable("No variable was set in any of the observations.")
    check = diagnostics.check_invariance(now.post, now.data, alpha=GRAPH_ALPHA)
    names = check.failures.index
    figure = "smallest corrected p-value", _smallest(check.table), GRAPH_ALPHA
    return of_check(check, *figure, grave=now.rests_on(names), meaning=now.concern(names))


def _identification(now: Situation) -> Finding:
    ids = now.problem.identification
    sets = [members for members in ids if members]
    bare = [ids[members] for members in sets if not ids[members].identifiable]
    unverified = [each for each in sets if ids[each].identifiable and not ids[each].verified]
    used = {*now.post.sets}
    by_linearity = [each for each in bare if each.intervened in used]
    figure = "sets used without a verified estimand", len(by_linearity) + len(unverified), 0.0
    routes = pd.Series([ids[each].route for each in sets if ids[each].identifiable]).value_counts()
    how = ", ".join(f"{count} by {route}" for route, count in routes.items()) or "none"
    text = f"{len(sets) - len(bare)} of {len(sets)} sets have a verified estimand ({how})."
    if unverified:
        return Finding(FAILED, f"{text} {len(unverified)} estimands are not verified.", *figure)
    if by_linearity:
        text += f" {len(by_linearity)} are identified by linearity alone."
        meaning = "These effects hold only as far as the mechanisms are linear."
        advice = "Set the cause in an experiment, which needs no such assumption."
        return Finding(WARNING, text, *figure, meaning, advice)
    if bare:
        text += f" {len(bare)} were dropped: no data without experiments determine them."
    return Finding(PASSED, text, *figure)


def _graph(now: Situation) -> Finding:
    check = now.graph_check
    if check.table.empty:
        meaning = "That the graph is right must be known from elsewhere."
        return Finding(NOT_APPLICABLE, check.text, meaning=meaning, advice=check.advice)
    figure = "smallest corrected p-value", _smallest(check.table), GRAPH_ALPHA
    meaning = (
        "An effect may be confounded, or be mediated by a path that the model does not have. The "
        "robustness table shows what other graphs recommend."
    )
    return of_check(check, *figure, grave=True, meaning=meaning)


def _instruments(now: Situation) -> Finding:
    ids = now.problem.identification
    if all(ids[members].identifiable for members in now.post.sets if members in ids):
        return not_applicable("No effect in use rests on an instrument.")
    check = diagnostics.check_instruments(now.problem, now.data)
    least = float(check.table["F"].min())
    figure = "smallest F of an instrument", least, WEAKEST_F
    meaning = "The effect leans towards the confounded regression, and its interval is too short."
    found = of_check(check, *figure, grave=True, meaning=meaning)
    if found.verdict == PASSED and not least >= STRONG_INSTRUMENT:
        return found._replace(verdict=WARNING, meaning="The posterior has long tails.")
    return found


def _overlap(now: Situation) -> Finding:
    check = diagnostics.check_overlap(now.problem, now.data)
    table = check.table.set_index("set")
    ours = ", ".join(now.problem.graph.ordered(now.recommendation))
    own = table.loc[[ours]].iloc[0] if ours in table.index else None
    share = len(check.failures) / max(len(table), 1)
    reach = float(table["reach"].max() if own is None else own["reach"])
    figure = "reach of the recommended set's domain, in radii of the data", reach, 4.0
    if own is not None and own["verdict"] == FAILED:
        entangled = float(own["explained"]) > 0.99
        why = "hardly varies by itself" if entangled else "reaches far beyond the observations"
        meaning = f"The set of the recommended {now.label} {why}: its effect is extrapolated."
        return of_check(check, *figure, grave=True, meaning=meaning)
    if share > 0.5:
        meaning = "The domains as a whole do not fit the observations."
        return of_check(check, *figure, meaning=meaning)
    found = of_check(check, *figure)
    if check.verdict != FAILED:
        return found
    text = f"{check.text} The recommended set overlaps with the observations."
    return found._replace(verdict=PASSED, text=text)


def _explored(now: Situation) -> Finding:
    if now.problem.sets_rule == "mis":
        return Finding(PASSED, "All minimal intervention sets are explored, so eps_E is 0.")
    if not now.full and now.problem.sets_rule != "pomis":
        return not_applicable(
            'The sets were chosen by hand or by size; budget="full" estimates what others gain.'
        )
    check = theory.check_exploration(now.trusted, key=now.key("explored sets"))
    row = check.table.iloc[0]
    rule = ""
    if now.problem.sets_rule == "pomis":
        rule = " POMIS assumes that domains cover the values that variables take by themselves."
    meaning = f"A better intervention may lie outside the sets that are explored.{rule}"
    return of_check(check, "eps_E, upper 90 %", row["upper"], row["limit"], meaning=meaning)


def _predictive(now: Situation) -> Finding:
    check = diagnostics.check_predictive(
        now.post, alpha=MODEL_ALPHA, key=now.key("posterior predictive")
    )
    failed = check.failures
    shape = failed[failed["statistic"].isin(("curvature", "interaction", "mean"))]
    figure = "smallest corrected p-value", _smallest(check.table), MODEL_ALPHA
    grave = now.rests_on(shape["variable"])
    return of_check(check, *figure, grave=grave, meaning=now.concern(failed["variable"]))


def _interactions(now: Situation) -> Finding:
    check = diagnostics.check_interactions(now.post, alpha=MODEL_ALPHA, key=now.key("interactions"))
    if check.table.empty:
        return not_applicable("No mechanism has two causes.")
    names = check.failures.index.get_level_values("mechanism")
    figure = "smallest corrected p-value", _smallest(check.table), MODEL_ALPHA
    return of_check(check, *figure, grave=now.rests_on(names), meaning=now.concern(names))


def _noise(now: Situation) -> Finding:
    check = diagnostics.check_noise(now.post, alpha=MODEL_ALPHA, key=now.key("noise"))
    names = check.failures.index.get_level_values("mechanism")
    figure = "smallest corrected p-value", _smallest(check.table), MODEL_ALPHA
    meaning = f"Intervals are too narrow where the noise is large. {now.concern(names)}"
    return of_check(check, *figure, meaning=meaning)


def _linearity(now: Situation) -> Finding:
    is_affine = now.post.distribution.response.is_affine
    if is_affine and not now.full:
        return not_applicable(
            'Curvature is tested by the posterior predictive; budget="full" also compares with '
            "Gaussian processes on held-out observations."
        )
    post = now.post if not is_affine else fit(now.problem, now.data, mechanisms="gp")
    check = diagnostics.check_linearity(post, key=now.key("linearity"))
    table = check.table
    nonlinear = table.index[(table["finding"] == "nonlinear").to_numpy()]
    figure = "largest gain in log density over a linear mechanism", table["difference"].max(), 1.0
    if not is_affine or not len(nonlinear):
        return Finding(PASSED, check.text, *figure, check=check)
    verdict = FAILED if now.rests_on(nonlinear) else WARNING
    advice = 'Fit with mechanisms="auto".'
    return Finding(verdict, check.text, *figure, now.concern(nonlinear), advice, check)


def _loo(now: Situation) -> Finding:
    check = diagnostics.check_loo(now.post, key=now.key("leave one out"))
    worst = float(check.table["largest_k"].max())
    meaning = now.concern(check.failures.index)
    return of_check(check, "largest Pareto k", worst, 0.7, meaning=meaning)


def _computed(now: Situation) -> Finding:
    check = diagnostics.check_posterior(now.post)
    meaning = "The posterior may miss a part of what is plausible; nothing that follows is safe."
    found = of_check(check, grave=True, meaning=meaning, unknown_is=WARNING)
    if found.verdict == FAILED and now.post.accepted:
        text = f"{found.text} It was accepted: {now.post.accepted}."
        return found._replace(verdict=WARNING, text=text)
    return found


def _gaussian(now: Situation) -> Finding:
    check = diagnostics.gaussian_error(now.post, key=now.key("Gaussian error"))
    error = float(check.table["value"]["effect: 90 % interval"])
    meaning = "Bounds and intervals by the kernel are off; take quantiles of draws."
    rows = check.table[[str(name).startswith("effect") for name in check.table.index]]
    figure = "largest error of a 90 % interval, in posterior sds", error, 0.1
    found = of_check(check, *figure, meaning=meaning, unknown_is=NOT_COMPUTED)
    if found.verdict == WARNING and FAILED not in set(rows["verdict"]):
        return found._replace(
            verdict=PASSED, meaning="Theta is not Gaussian, but no effect depends on that."
        )
    return found


def _prior_predictive(now: Situation) -> Finding:
    draws = 2_000 if now.full else QUICK_DRAWS
    key = now.key("prior predictive")
    check = diagnostics.check_prior_predictive(now.post, draws=draws, key=key)
    apart = check.failures[check.failures["finding"] != TOO_WIDE]
    figure = "smallest corrected p-value", _smallest(check.table), 0.01
    if len(apart):
        meaning = f"The prior contradicts the data. {now.concern(apart.index)}"
        return of_check(check, *figure, grave=now.rests_on(apart.index), meaning=meaning)
    found = of_check(check, *figure)
    if check.verdict != FAILED:
        return found
    text = f"The prior allows the observations. It is vague: {check.text}"
    return found._replace(verdict=PASSED, text=text, advice="")


def _sensitivity(now: Situation) -> Finding:
    draws = 4_000 if now.full else QUICK_DRAWS
    key = now.key("prior sensitivity")
    check = diagnostics.prior_sensitivity(now.post, now.best, draws=draws, key=key)
    most = float(check.table["prior"].max())
    ours = check.failures.index.intersection([now.effect_name])
    meaning = "The prior helps to decide the recommended effect."
    found = of_check(check, "sensitivity to the prior", most, 0.05, meaning=meaning)
    if found.verdict == WARNING and not len(ours):
        return found._replace(
            verdict=PASSED, meaning="The recommended effect itself does not depend on the prior."
        )
    return found


def _weak(now: Situation) -> Finding:
    table = theory.design_strength(now.post)
    known = table[table["standardized"].notna()]
    weak = known[~(known["standardized"] >= WEAKEST_DESIGN)]
    least = float(known["standardized"].min()) if len(known) else np.nan
    figure = "smallest eigenvalue of a mechanism's causes", least, WEAKEST_DESIGN
    if not len(weak):
        text = f"Causes of {len(known)} mechanisms vary apart from each other."
        return Finding(PASSED, text, *figure)
    parts = [f"{row['weakest']} in the mechanism of {name}" for name, row in weak.iterrows()]
    text = f"Only combinations of these are learned, however many observations: {listed(parts, 3)}."
    advice = "Vary them apart in experiments, or give a prior that says what is known."
    return Finding(WARNING, text, *figure, now.concern(weak.index), advice)


def _calibration(now: Situation) -> Finding:
    if not now.full:
        return not_applicable('Simulation-based calibration needs budget="full".')
    if now.post.recipe is None or not now.post.distribution.response.is_affine:
        return not_applicable("Only posteriors of linear mechanisms are calibrated here.")
    method = now.post.recipe.method
    simulations = 200 if now.post.distribution.chains is None else 40
    check = diagnostics.calibrate(
        now.problem,
        method=method,
        observations=now.post.n_observations,
        simulations=simulations,
        progress=False,
        key=now.key("calibration"),
    )
    figure = "smallest corrected p-value", _smallest(check.table), 0.01
    meaning = "Intervals do not have the coverage that they state."
    return of_check(check, *figure, grave=True, meaning=meaning)


def _bounded(now: Situation) -> Finding:
    check = theory.check_bounded_kernel(now.trusted)
    kappa = float(check.table["value"]["kappa"])
    limit = float(check.table["limit"]["kappa"])
    meaning = "The least known effect is less certain than a single outcome."
    return of_check(check, "kappa", kappa, limit, meaning=meaning)


def _fixed(now: Situation) -> Finding:
    check = theory.check_fixed_kernel(now.trusted, rounds=now.rounds)
    cost = float(check.table["value"]["cost"])
    figure = "sd under the fixed kernel, in sds under the updated one", cost, 2.0
    if now.settings.relinearize:
        text = f"These settings update the kernel, so A4 is not used; A5 and A6 are. {check.text}"
        return Finding(NOT_APPLICABLE, text, *figure, check=check)
    meaning = "The guarantee holds for this kernel, which learns more slowly than it could."
    return of_check(check, *figure, meaning=meaning)


def _drift(now: Situation) -> Finding:
    meaning = "The regret bound of the paper needs a further term rho_t; the search may miss more."
    if now.run is not None and now.run.system is not None and len(now.run):
        check = theory.check_drift(now.run)
    else:
        check = theory.check_drift(now.trusted, rounds=now.rounds, key=now.key("drift"))
    rho = float(check.table["rho"].max())
    return of_check(check, "largest rho_t beyond eps_t", rho, 0.0, meaning=meaning)


def _variance_sum(now: Situation) -> Finding:
    if now.run is None or not len(now.run):
        return not_applicable("The sum is along the path of a run; there is none yet.")
    check = theory.check_variance_sum(now.run)
    ratio, ceiling = (float(check.table[name].iloc[0]) for name in ("ratio", "ceiling"))
    meaning = "The regret bound for adaptive kernels says little for this run."
    return of_check(check, "variance-sum ratio", ratio, ceiling, meaning=meaning)


def _kernels(now: Situation) -> Finding:
    """Compare sds, and suggestions by a confidence bound, with those of a better kernel."""
    found, post = now.candidates, now.trusted
    chosen = np.unique(np.linspace(0, len(found.mean) - 1, MOST_COMPARED).round().astype(int))
    first = first_smallest(now.sign * found.mean - np.sqrt(CONFIDENCE_BETA) * found.sd)
    chosen = np.union1d(chosen, [first, first_smallest(now.sign * found.mean)])
    queries, mean, sd = found.queries[chosen], found.mean[chosen], found.sd[chosen]
    if independent_coefficients(post) is not None:
        name, other = "exact", exact_gram(post, queries, progress=False).gram
    else:
        name, other = (
            "Monte-Carlo",
            monte_carlo_gram(post, queries, draws=4000, key=now.key("kernel")).gram,
        )
    better = np.sqrt(np.maximum(np.diagonal(np.asarray(other)), 0.0))
    error = float(np.abs(sd / np.where(better > 0, better, 1.0) - 1)[better > 0].max(initial=0.0))
    bounds = [now.sign * mean - np.sqrt(CONFIDENCE_BETA) * each for each in (sd, better)]
    picks = [first_smallest(each) for each in bounds]
    lost = float(bounds[1][picks[0]] - bounds[1][picks[1]])
    names = [now.show(queries[pick]) for pick in picks]
    rank = causal_rank(post, queries)
    figure = "largest relative error of an sd", error, LARGEST_KERNEL_ERROR
    text = (
        f"Sds of {len(mean)} effects by the Jacobian kernel (rank {rank}) differ from those of the "
        f"{name} one by up to {error:.0%}."
    )
    scale = float(better.max(initial=0.0))
    if picks[0] == picks[1] or lost <= 0.01 * scale:
        meaning = f"Both suggest {names[0]} by a confidence bound."
        return Finding(PASSED, text, *figure, meaning)
    meaning = f"The Jacobian kernel suggests {names[0]}, the {name} one {names[1]}."
    advice = 'Take Settings(kernel="monte_carlo"), or observe more.'
    verdict = WARNING if error > LARGEST_KERNEL_ERROR else PASSED
    return Finding(verdict, text, *figure, meaning, advice if verdict == WARNING else "")


def _averages(now: Situation) -> Finding:
    if now.post.distribution.response.is_affine:
        return not_applicable("Effects are closed forms, so eps_adj is 0.")
    check = theory.check_adjustment(now.trusted)
    row = check.table.iloc[0]
    figure = "eps_adj in posterior sds of the effect", row["relative"], row["limit"]
    return of_check(check, *figure, meaning="Small differences of effects are numerical error.")


def _mechanism_errors(now: Situation) -> Finding:
    if not len(now.data):
        return not_applicable(NO_OBSERVATIONS)
    if not isinstance(now.post.distribution.response, MechanismMap):
        return not_applicable("Theta of this posterior does not hold the mechanisms.")
    check = theory.check_mechanism_errors(now.trusted, key=now.key("mechanism errors"))
    most = (check.table["inside"] / check.table["limit"]).max()
    figure = "eps_i within the data, in sds of the variable", most, 1.0
    return of_check(check, *figure, meaning=now.concern(check.failures.index))


def _extrapolation(now: Situation) -> Finding:
    if not len(now.data):
        return not_applicable(NO_OBSERVATIONS)
    if not isinstance(now.post.distribution.response, AveragedMap):
        outside = [
            name
            for name, value in now.recommendation.items()
            if _ranges_beyond(now.data.column(name), value) > LARGEST_STEP_BEYOND
        ]
        text = f"The recommended {now.label} lies near the observations."
        figure = "variables set far outside their observed range", float(len(outside)), 0.0
        if not outside:
            return Finding(PASSED, text, *figure)
        text = f"The recommended {now.label} sets {listed(outside)} far beyond what was observed."
        meaning = "Its effect assumes that the mechanisms stay linear there."
        return Finding(WARNING, text, *figure, meaning, "Try it before relying on it.")
    check = diagnostics.check_extrapolation(now.trusted, now.best)
    outside_share = float(check.table["outside"].iloc[0])
    meaning = "The recommended effect is that of mechanisms beyond their data."
    return of_check(check, "share of paths beyond the data", outside_share, 0.05, meaning=meaning)


def _ranges_beyond(column: np.ndarray, value: float) -> float:
    """Return how far a value lies outside the range of a column, in such ranges."""
    low, high = float(column.min()), float(column.max())
    return max(low - value, value - high, 0.0) / (high - low) if high > low else 0.0


def _selection(now: Situation) -> Finding:
    """Estimate the optimism of the best of many estimated effects by a parametric bootstrap.

    The truth is a draw of the posterior, f* = m + F a, and its estimate f = f* + F b, with a and b
    standard normal. Optimism is by how much f is better than f* where f is best.
    """
    if not now.post.distribution.response.is_affine:
        return not_applicable("The prior of nonlinear mechanisms shrinks effects that stand out.")
    found = now.candidates
    size = found.features.shape[1]
    truth, error = host_generator(now.key("selection")).standard_normal((2, SELECTION_DRAWS, size))
    true = now.sign * (found.mean + truth @ found.features.T)
    estimate = true + now.sign * (error @ found.features.T)
    picks = estimate.argmin(axis=1)[:, None]
    gaps = np.take_along_axis(true - estimate, picks, axis=1)[:, 0]
    sd = float(np.median(found.sd[picks[:, 0]]))
    optimism = float(gaps.mean()) / sd if sd > 0 else 0.0
    figure = "optimism of the best of all, in its posterior sds", optimism, LARGEST_OPTIMISM
    text = (
        f"The best of {len(found.mean)} estimated effects is expected to be {gaps.mean():.3g} "
        "better than it truly is, since it was chosen."
    )
    if optimism <= LARGEST_OPTIMISM:
        return Finding(PASSED, text, *figure)
    meaning = (
        f"Expect E[{now.problem.target}] nearer to {now.best_mean + now.sign * gaps.mean():.4g} "
        f"than to {now.best_mean:.4g}; the interval is too narrow."
    )
    return Finding(WARNING, text, *figure, meaning, "Confirm the recommendation by an experiment.")


def _runner_up(now: Situation) -> Finding:
    """Compare the recommendation with the best of every set under draws of the posterior."""
    found = now.candidates
    best = [
        positions[first_smallest(now.sign * found.mean[positions])]
        for _, positions in split_by_set(found.queries)
    ]
    best = sorted(best, key=lambda position: float(now.sign * found.mean[position]))
    queries = found.queries[np.array(best)]
    theta = now.trusted.draws(1_000, now.key("runner-up"))
    effects = now.sign * now.effects_of(theta, queries)
    ours = now.sign * now.effects_of(theta, now.best)[:, [0]]
    regret = np.maximum(ours - effects, 0.0)
    loss, limit = float(regret.max(axis=1).mean()), LARGEST_LOSS * now.gain
    others = [place for place in range(len(best)) if now.show(queries[place]) != now.label]
    figure = "expected loss against the best of all sets", loss, limit
    if not others:
        return Finding(PASSED, "There is no other set to compare with.", *figure)
    place = others[0]
    chance = float((effects[:, place] < ours[:, 0]).mean())
    text = (
        f"Next comes {now.show(queries[place])}, which is better with probability {chance:.2g}. "
        f"The recommendation is expected to lose {loss:.3g}; it gains {now.gain:.3g} over doing "
        "nothing."
    )
    if loss <= limit:
        return Finding(PASSED, text, *figure)
    meaning = "The data do not tell the best intervention from others."
    return Finding(WARNING, text, *figure, meaning, "Experiment with both before deciding.")


def _robust(now: Situation) -> Finding:
    table = now.once("robustness", lambda: assess_robustness(now))
    known = table[table["verdict"] != UNKNOWN]
    if known.empty:
        return not_applicable('Alternatives to this model are fitted with budget="full".')
    failed = table[table["verdict"] == FAILED]
    weakest = table["strength"].where(~(table["p_value"] < PLAUSIBLE_P)).min()
    loss, limit = table["regret"].where(table["verdict"] != UNKNOWN).max(), table.attrs["limit"]
    figure = "largest regret under another model", float(loss), limit
    changed = int((known["recommended"] != now.label).sum())
    text = f"Of {len(known)} other models {changed} would recommend something else."
    if np.isfinite(weakest):
        name = table.index[(table["strength"] == weakest).to_numpy()][0]
        text += (
            f" Of those that the data do not exclude, {name} would change the recommendation "
            f"first, at a correlation of {weakest:.2g} of their disturbances."
        )
    if failed.empty:
        return Finding(PASSED, text, *figure)
    text += f" These matter and are not excluded by the data: {listed(failed.index, 4)}."
    meaning = "The recommendation depends on modelling choices that the data do not settle."
    advice = "Decide these questions by experiments or by what is known of the process."
    return Finding(WARNING, text, *figure, meaning, advice)


def _surprise(now: Situation) -> Finding:
    if now.study is None or not len(now.study.surprise):
        return not_applicable("No experiment has come back yet.")
    found = now.study.surprise
    figure = "probability of such outcomes under the model", found.p, 1e-3
    text = f"{len(found)} outcomes were compared with what was predicted for them."
    if found.verdict != FAILED:
        return Finding(PASSED, text, *figure)
    meaning = "Outcomes contradict the model that the recommendation rests on."
    return Finding(FAILED, str(found), *figure, meaning)


Look = Callable[[Situation], Finding]
LOOKS: dict[str, dict[str, Look]] = {
    "data": {
        "fit": _fit,
        "sample": _sample,
        "sample size": _sample_size,
        "two groups": _groups,
        "invariance": _invariance,
    },
    "A1": {
        "identification": _identification,
        "causal graph": _graph,
        "instruments": _instruments,
        "overlap": _overlap,
        "explored sets": _explored,
    },
    "mechanisms": {
        "posterior predictive": _predictive,
        "interactions": _interactions,
        "noise": _noise,
        "linearity": _linearity,
        "leave one out": _loo,
    },
    "A2": {
        "posterior": _computed,
        "Gaussian error": _gaussian,
        "prior predictive": _prior_predictive,
        "prior sensitivity": _sensitivity,
        "weak identification": _weak,
        "mechanism errors": _mechanism_errors,
        "calibration": _calibration,
    },
    "A3": {"bounded kernel": _bounded},
    "A4": {"fixed kernel": _fixed},
    "A5": {"drift": _drift},
    "A6": {"variance sum": _variance_sum},
    "kernels": {"kernel": _kernels, "averages": _averages},
    "decision": {
        "extrapolation": _extrapolation,
        "selection": _selection,
        "runner-up": _runner_up,
        "robustness": _robust,
        "surprise": _surprise,
    },
}


def validate(
    thing: Problem | Posterior | Study | Run,
    data: Data | pd.DataFrame | None = None,
    mechanisms: Choice | None = None,
    *,
    method: str | InferenceMethod | None = None,
    prior: Prior | None = None,
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
    budget: str = "quick",
    progress: bool = True,
    key: jax.Array | int,
) -> Validation:
    """Check every assumption behind a recommendation, and say whether it may be used.

    The verdict follows from the cards: "do not use" if one failed; else "use with care" if there is
    a warning or a card that could not be computed; else "may be used". A card fails where

    - the data cannot be fitted, or a mechanism that the recommended effect rests on has fewer than
      8 observations beyond its causes;
    - an estimand is not verified, the data contradict an independence of the graph (corrected
      p < 0.001 and a partial correlation above 0.1), an instrument in use has an F below 10, or the
      recommended set has no overlap with the observations;
    - a mechanism that the recommended effect rests on is nonlinear or has interactions that the fit
      lacks (corrected p < 0.005, and larger than what matters), or is another one in experiments
      (corrected p < 0.001);
    - the posterior was not computed as it should have been, is not calibrated, or its prior
      contradicts observations of what the recommended effect rests on;
    - outcomes of experiments contradict the model (p < 0.001 after looking at every outcome).

    The same findings elsewhere, and all other checks that do not pass, are warnings. A vague prior
    is none, nor a lack of overlap of some sets that are not recommended.

    Parameters
    ----------
    thing:
        A problem, with `data`; or a posterior, a study or a run, whose computations are used.
    data:
        The observations, where a problem is given: Data, or a pandas DataFrame.
    mechanisms, method, prior:
        As in `cb.fit`, where a problem is given; by default linear mechanisms and the method that
        they offer.
    skip, only:
        Names of cards or of sections (`cb.validation.SECTIONS`) to leave out, or to keep.
    budget:
        "quick", or "full", which adds calibration, refits with Gaussian processes and with other
        sets.
    progress:
        Whether a progress bar is shown when it takes more than a few seconds.
    key:
        For all that is drawn: a JAX key or an int seed.

    Returns
    -------
    Validation
        A card for every check. A check that raises has a card with the reason.

    Raises
    ------
    ArgumentError
        If a name in `skip` or `only` is unknown, or what is given cannot be validated.
    DataError
        If a problem is given without data, or the data are not of this problem.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> validation = cb.validate(system.problem, system.observe(200, 0), only=["A2"], key=0)
    >>> validation.verdict, validation["posterior"].verdict
    ('may be used', 'passed')
    """
    require_one_of("budget", budget, ("quick", "full"), ArgumentError)
    chosen = _choose(skip, only)
    now = read_situation(thing, data, mechanisms, method, prior, as_key(key), budget == "full")
    options = {"desc": "validate", "unit": "check", "delay": PROGRESS_DELAY, "leave": False}
    cards = []
    with tqdm(total=len(chosen), disable=not progress, **options) as bar:
        for section, name in chosen:
            bar.set_postfix_str(name, refresh=False)
            cards.append(_look(now, section, name))
            bar.update()
    table = now.memory.get("robustness")
    table = None if table is None or table.empty else table
    facts = _facts(now, budget) | {"call": _call(budget, key)}
    return Validation(tuple(cards), now.subject, _recommend(now), facts, table)


def _choose(skip: Iterable[str], only: Iterable[str] | None) -> list[tuple[str, str]]:
    """Return the section and name of every card that is wanted, in order."""
    pairs = [(section, name) for section, looks in LOOKS.items() for name in looks]
    known = [*LOOKS, *(name for _, name in pairs)]
    given = {"skip": skip, "only": known if only is None else only}
    named = {}
    for what, names in given.items():
        named[what] = [names] if isinstance(names, str) else list(names)
        for name in named[what]:
            if name not in known:
                raise ArgumentError(unknown(f"card or section in {what}", name, known))
    return [pair for pair in pairs if {*pair} & {*named["only"]} and not {*pair} & {*named["skip"]}]


def _look(now: Situation, section: str, name: str) -> Card:
    """Run one check, and return its card whatever happens."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CausalBOWarning)
        try:
            found = LOOKS[section][name](now)
        except Exception as error:  # a user's mechanism may raise anything; nothing is silent
            kind = "" if isinstance(error, CausalBOError) else f"{type(error).__name__}: "
            found = Finding(NOT_COMPUTED, f"{kind}{error}" or type(error).__name__)
    noted = []
    for each in caught:
        if issubclass(each.category, CausalBOWarning):
            noted.append(str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    text = " ".join([found.text, *(f"Warning: {note}." for note in dict.fromkeys(noted))])
    figure, threshold = float(found.figure), float(found.threshold)
    shown = found.verdict, text, found.quantity, figure, threshold, found.meaning, found.advice
    return Card(section, name, *shown, time.perf_counter() - start, found.check)


def _recommend(now: Situation) -> dict[str, float]:
    """Return the recommended intervention; empty where none can be found."""
    try:
        return now.recommendation
    except Exception:  # why is said by a card
        return {}


def _call(budget: str, key: jax.Array | int) -> str:
    """Return the options of the call as Python code."""
    option = "" if budget == "quick" else f"budget={budget!r}, "
    if isinstance(key, int):
        return f"{option}key={key}"
    words = write_key(key)["words"]
    return f"{option}key=jax.random.wrap_key_data(jax.numpy.array({words}, 'uint32'))"


def _facts(now: Situation, budget: str) -> dict[str, str]:
    """Return what was asked and how, as texts."""
    problem, data = now.problem, now.data
    words = [str(word) for word in np.ravel(jax.random.key_data(now.root))]
    facts = {
        "goal": f"{problem.objective} E[{problem.label(problem.target)}]",
        "sets": f"{len(problem.sets)} intervention sets ({problem.sets_rule or 'as listed'})",
        "data": repr(data),
        "data digest": data.fingerprint,
        "problem digest": problem.fingerprint,
        "budget": budget,
        "key": " ".join(words),
        "versions": ", ".join(f"{name} {version}" for name, version in find_versions()),
    }
    if now.study is not None and not now.study.best.intervention:
        facts["recommended"] = (
            f"to set nothing; the findings are about the best of all, {now.label}"
        )
    if now.fitted is not None:
        facts["posterior"] = repr(now.fitted)
    return facts
