"""What does the prior predict, before any observation informs the parameters?

From each draw of the prior a data set is drawn, with as many observations as there are. What was
set, and variables that no effect needs the mechanism of, keep their observed values, so that a
variable is predicted from its causes as its mechanism predicts them.

A prior can be wrong in two ways. It may hardly allow what was observed: then it disagrees with the
data, and the posterior is a compromise between the two. Or it may spread over values that are far
from any that occur: then it says little, and where observations are few, intervals are wider than
they need to be.
"""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm, sentence
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import no_outcomes
from causal_bo_ppl.errors import ArgumentError, DataError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import drawn_before, learned_entries, require_prior
from causal_bo_ppl.inference.posterior import (
    choose_family,
    require_inputs,
    require_observations_known,
)
from causal_bo_ppl.inputs import as_key, read_count, read_share
from causal_bo_ppl.mechanisms import Choice, read_mechanisms
from causal_bo_ppl.mechanisms.base import Prior, Task
from causal_bo_ppl.mechanisms.linear_equations import ScaledPrior
from causal_bo_ppl.problem import Problem, Queries

FEWEST_OBSERVATIONS = 2  # of a variable, for a mean and an sd
FEWEST_DRAWS = 100
FAR, VERY_FAR = 10.0, 100.0  # observed ranges beyond which a prediction is absurd
MOST_NUMBERS = 20_000_000  # predicted at once; with more observations, some of them are predicted
INTERVAL = (0.05, 0.95)  # of all predictions of a variable
MOST_NAMED = 3  # variables in a text; the table has all
TOO_WIDE = "too wide"


class PriorPredictions(NamedTuple):
    """Data sets that a prior predicts, beside the observations.

    observed: {variable: (m,)}. predicted: {variable: (s, m)}, for s draws of the prior. prior: what
    was drawn from. note: how its draws differ from it; empty where they do not.
    """

    observed: dict[str, np.ndarray]
    predicted: dict[str, np.ndarray]
    prior: Prior
    note: str


def predict_from_prior(
    who: str,
    given: Posterior | Problem,
    data: Data | None,
    mechanisms: Choice | None,
    prior: Prior | None,
    draws: int,
    key: jax.Array,
) -> PriorPredictions:
    """Predict data sets from the prior of a posterior, or of mechanisms before they are fitted."""
    if isinstance(given, Posterior):
        if any(each is not None for each in (data, mechanisms, prior)):
            raise ArgumentError(
                f"{who} takes data, mechanisms and prior of the posterior; leave them out, or give "
                "the problem in place of the posterior"
            )
        problem, data = require_inputs(who, given, None)
        model = require_observations_known(who, given)
        of, learned = given.prior, given.distribution.learned
        drawing = given.distribution.draw_prior
    else:
        problem, data = require_inputs(who, given, data)
        task = Task(problem, data, no_outcomes(len(problem.graph.nodes)), prior)
        chosen = read_mechanisms("linear" if mechanisms is None else mechanisms)
        family, _ = choose_family(task, chosen)
        bound = family.bind(task)
        model, of, learned = bound, bound.prior, bound.learned
        drawing = partial(drawn_before, bound)
    nodes = problem.graph.ancestral(problem.target).nodes
    free = learned_entries(model, learned, data, nodes)
    values = data.values[:, [problem.graph.index(name) for name in nodes]]
    step = max(1, -(-draws * values.size // MOST_NUMBERS))
    values, free = values[::step], free[::step]
    if not free.any():
        raise DataError(
            f"{who} compares predictions with observations, and there are none of a variable whose "
            "mechanism is learned; add observations in which these were not set"
        )
    for_models, for_rows = jax.random.split(key)
    drawn = require_prior(who, drawing, draws, for_models)
    rows = Queries(~free, np.where(free, 0.0, values))
    sets = model.replicate(drawn.models, rows, for_rows)[:draws]
    columns = [(name, k, free[:, k]) for k, name in enumerate(nodes) if free[:, k].any()]
    observed = {name: values[which, k] for name, k, which in columns}
    predicted = {name: sets[:, which, k] for name, k, which in columns}
    return PriorPredictions(observed, predicted, of, drawn.note)


def share_beyond(observed: np.ndarray, predicted: np.ndarray, ranges: float) -> float:
    """Return the share of predictions so many observed ranges outside; NaN and infinity count."""
    low, high = observed.min(), observed.max()
    reach = ranges * (high - low)
    return float(1 - ((predicted >= low - reach) & (predicted <= high + reach)).mean())


class PriorRow(NamedTuple):
    """What the prior predicts of one variable; see `check_prior_predictive`."""

    variable: str
    observations: int
    mean: float = np.nan
    mean_rank: float = np.nan
    sd: float = np.nan
    sd_rank: float = np.nan
    width: float = np.nan
    beyond_10: float = np.nan
    beyond_100: float = np.nan
    p_value: float = np.nan
    worst: str = ""
    is_outside: bool = False


def check_prior_predictive(
    given: Posterior | Problem,
    data: Data | None = None,
    *,
    mechanisms: Choice | None = None,
    prior: Prior | None = None,
    draws: int = 2_000,
    most_beyond: float = 0.1,
    alpha: float = 0.01,
    key: jax.Array | int = 0,
) -> Check:
    """Compare the observations with data sets that the prior predicts.

    A variable fails where its observed mean lies in the tails of the predicted means, or its
    observed sd above the predicted sds: the prior disagrees with the data. It also fails where many
    predictions are absurd: more than 10 times the observed range outside of it.

    A prior that is scaled to the data cannot disagree with their means and sds. The default,
    `ScaledPrior`, is vague on purpose, and this check says so where effects pass through several
    mechanisms: each multiplies the spread of the predictions by about 10. That is harmless where
    observations are many.

    Parameters
    ----------
    given:
        A posterior, or a problem whose mechanisms are not fitted yet.
    data, mechanisms, prior:
        As in `cb.fit`, where a problem is given. The moments of "wishart" are checked with its
        posterior.
    draws:
        How many data sets are predicted, at least 100.
    most_beyond:
        The share of absurd predictions beyond which a variable fails.
    alpha:
        How often a prior that the truth was drawn from may disagree with the data, over all
        variables: p-values are corrected for their number (Holm). An observed mean or sd beyond all
        predicted ones fails in any case.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every variable whose mechanism is learned: the observed `mean` and `sd`; the
        shares `mean_rank` and `sd_rank` of data sets whose mean and sd are smaller; `width`, that
        of 90 % of the predictions in observed ranges; the shares `beyond_10` and `beyond_100` of
        predictions more than so many observed ranges outside; the corrected p-value; and the
        `finding`. A variable that is constant, or was observed once, is not assessed.

    Raises
    ------
    ArgumentError
        If the posterior is given with data, mechanisms or a prior, or a number is not possible.
    DataError
        If no variable whose mechanism is learned was observed.
    PosteriorError
        If nothing can be drawn from the prior.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> data = system.observe(50, 0)
    >>> check = cb.diagnostics.check_prior_predictive
    >>> check(system.problem, data, prior=cb.priors.FixedPrior()).passed
    True
    >>> check(system.problem, data, prior=cb.priors.FixedPrior(centres={"Y": 1e3})).failures.index
    Index(['Y'], dtype='str', name='variable')
    """
    who = "check_prior_predictive"
    draws, alpha = read_count("draws", draws, FEWEST_DRAWS), read_share("alpha", alpha)
    most_beyond = read_share("most_beyond", most_beyond)
    found = predict_from_prior(who, given, data, mechanisms, prior, draws, as_key(key))
    names = found.observed
    rows = [_compare(name, names[name], found.predicted[name]) for name in names]
    table = pd.DataFrame(rows, columns=PriorRow._fields).set_index("variable")
    corrected = holm(table.pop("p_value").to_numpy(float))
    outside, worst = table.pop("is_outside").to_numpy(bool), table.pop("worst")
    known = table["beyond_10"].notna().to_numpy()
    in_tail, wide = outside | (corrected < alpha), table["beyond_10"].to_numpy() > most_beyond
    table["p_corrected"] = corrected
    table["finding"] = np.where(in_tail, worst, np.where(wide, TOO_WIDE, ""))
    table["verdict"] = np.where(known, np.where(in_tail | wide, FAILED, PASSED), UNKNOWN)
    note = f" Of the draws: {found.note}." if found.note else ""
    size = max(map(len, names.values()))
    text, advice = _describe(table, size) + note, _advise(table, found.prior, size)
    return Check("prior predictive", table, text, advice)


def _compare(name: str, observed: np.ndarray, predicted: np.ndarray) -> PriorRow:
    """Return the row of one variable, from observations (m,) and predictions (s, m)."""
    size = len(observed)
    if size < FEWEST_OBSERVATIONS or not np.ptp(observed) > 0:
        return PriorRow(name, size)
    with np.errstate(all="ignore"):  # predictions may overflow; that is a finding
        means, sds = predicted.mean(axis=1), predicted.std(axis=1)
    mean, sd, count = float(observed.mean()), float(observed.std()), len(predicted)
    below, above = int((means <= mean).sum()), int((means >= mean).sum())
    wider = int((~(sds < sd)).sum())  # NaN too
    tails = {
        "the observed mean is above the predicted ones": 2 * (above + 1) / (count + 1),
        "the observed mean is below the predicted ones": 2 * (below + 1) / (count + 1),
        "the observed sd is above the predicted ones": (wider + 1) / (count + 1),
    }
    worst = min(tails, key=lambda tail: tails[tail])
    low, high = np.quantile(np.nan_to_num(predicted, nan=np.inf), INTERVAL, method="inverted_cdf")
    return PriorRow(
        name,
        size,
        mean,
        float((means < mean).mean()),
        sd,
        float((sds < sd).mean()),
        float((high - low) / np.ptp(observed)) if np.isfinite(high - low) else np.inf,
        share_beyond(observed, predicted, FAR),
        share_beyond(observed, predicted, VERY_FAR),
        min(1.0, 2 * tails[worst]),  # for mean and sd
        worst,
        min(below, above, wider) == 0,
    )


def _describe(table: pd.DataFrame, size: int) -> str:
    failed, known = table[table["verdict"] == FAILED], table[table["verdict"] != UNKNOWN]
    rest = table.index[table["verdict"] == UNKNOWN]
    unknown = f" Not assessed (constant, or observed once): {listed(rest)}." if len(rest) else ""
    if not len(known):
        return f"Nothing could be compared.{unknown}"
    if not len(failed):
        return (
            f"The prior predicts data like these {size} observations: means and sds of "
            f"{listed(known.index, most=MOST_NAMED)} lie among the predicted ones, and at most "
            f"{known['beyond_10'].max():.0%} of the predictions lie more than {FAR:g} times the "
            f"observed range outside of it.{unknown}"
        )
    parts = [_describe_row(str(name), row) for name, row in failed.iterrows()]
    share = f"{len(failed)} of {len(known)} variables"
    return f"The prior does not predict {share} as observed: {listed(parts, MOST_NAMED)}.{unknown}"


def _describe_row(name: str, row: pd.Series) -> str:
    if row["finding"] == TOO_WIDE:
        return (
            f"{row['beyond_10']:.0%} of the predictions of {name} lie more than {FAR:g} times the "
            f"observed range outside of it (90 % of them are {row['width']:.3g} ranges wide)"
        )
    number = row["mean"] if "mean" in row["finding"] else row["sd"]
    return f"for {name} {row['finding']} ({number:.3g})"


def _advise(table: pd.DataFrame, prior: Prior, size: int) -> str:
    findings = set(table.loc[table["verdict"] == FAILED, "finding"])
    advice = []
    if findings - {TOO_WIDE}:
        advice.append(
            "the prior disagrees with the data: look at the units of both, and at the prior's "
            "centres and scales"
        )
    if TOO_WIDE in findings and isinstance(prior, ScaledPrior):
        advice.append(
            f"this prior is vague on purpose, with the weight of {prior.observations:g} of {size} "
            "observations: cb.diagnostics.prior_sensitivity shows whether it matters; where "
            "observations are few, give cb.priors.FixedPrior(scales=..., centres=...)"
        )
    elif TOO_WIDE in findings:
        advice.append(
            "the prior allows values that are far from any that occur: make it narrower, unless "
            "observations are so many that it does not matter (cb.diagnostics.prior_sensitivity)"
        )
    return sentence(advice)
