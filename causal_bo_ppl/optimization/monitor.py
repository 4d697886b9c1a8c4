"""What was predicted for the outcomes of a log, and of what is an analyst warned?

Each outcome is predicted by the mechanisms alone, given the outcomes that count before it;
`diagnostics.sequential` judges how well they agree.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.data.observations import Observations
from causal_bo_ppl.diagnostics.sequential import (
    PredictionArrays,
    Surprise,
    condition_in_order,
    select_for_warning,
)
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import Start, State, States
from causal_bo_ppl.problem.interventions import split_by_set
from causal_bo_ppl.surrogates.base import find_fault
from causal_bo_ppl.surrogates.discrepancy import DECISIVE_BAYES_FACTOR

ROWS_PREDICTED_TOGETHER = 16  # the smallest batch for which programs are compiled
MANY_ROUNDS = 4_096  # from which on more are predicted together


class Predicted(NamedTuple):
    """Outcomes and what was predicted for them.

    rows: the positions in the log, in the order in which they count. arrays: predictions and
    outcomes, in that order.
    """

    rows: np.ndarray
    arrays: PredictionArrays


def find_predictable(state: State, rows: Observations) -> np.ndarray:
    """Return which outcomes can be predicted, (t,).

    Those out of domain are not, where the surrogate does not know their set.
    """
    is_known = ~rows.is_out_of_domain
    for _, positions in split_by_set(rows.queries) if not is_known.all() else ():
        if rows.is_out_of_domain[positions].any():
            is_known[positions] |= not find_fault(state.surrogate, rows.queries[positions])
    return np.asarray(is_known & rows.is_observed & ~rows.is_passive)


def implied_noises(state: State, rows: Observations) -> np.ndarray:
    """Return the variances of the outcomes' noise, (t,): given, or what the model implies."""
    return np.where(np.isnan(rows.variance), state.noises(rows.queries), rows.variance)


def predict_outcomes(state: State, rows: Observations) -> PredictionArrays:
    """Predict each of some outcomes by the mechanisms alone, given the outcomes before it."""
    if not len(rows):
        return PredictionArrays(*np.zeros((5, 0)))
    without = offered(state.surrogate, "without_discrepancy")
    surrogate = state.surrogate if without is None else without()
    noises, joint = implied_noises(state, rows), surrogate.joint(rows.queries)
    means, variances = condition_in_order(joint.mean, joint.covariance, rows.outcome, noises)
    degrees = np.full(len(rows), state.posterior.noise_degrees)
    return PredictionArrays(means, np.sqrt(variances), noises, rows.outcome, degrees)


def in_order(log: Observations) -> np.ndarray:
    """Return the positions of the observed rows in the order in which they count.

    A suggestion depends on outcomes of earlier suggestions alone, so that outcomes of suggestions
    count in the order of their numbers, whenever they were reported, and those of one suggestion in
    the order of their hashes, which does not depend on their size. Others count when they were
    reported: nobody knows what their choice depended on.
    """
    rows = np.flatnonzero(log.is_observed)
    is_numbered = log.was_suggested[rows]
    numbered = rows[is_numbered]
    numbers, hashes = log.number[numbered].tolist(), log.hashes
    keys = [(number, hashes[row]) for number, row in zip(numbers, numbered.tolist(), strict=True)]
    rows[is_numbered] = numbered[sorted(range(len(keys)), key=keys.__getitem__)]
    return rows


def split_rounds(sequence: Observations, batch: int) -> list[slice]:
    """Return the parts of a sequence of observed rows that are predicted together.

    These are the rounds of a batch of experiments; from the 16th round on two of them and later
    more, so that few states are needed. They depend on the sequence alone, not on how it
    was reported.
    """
    before = np.cumsum(~sequence.is_passive) - ~sequence.is_passive  # experiments before each row
    rounds = before // batch
    most = max(ROWS_PREDICTED_TOGETHER // batch, 1)
    steps = [
        step if number >= MANY_ROUNDS else min(step, most)
        for number in rounds.tolist()
        for step in (1 << max(number.bit_length() - 4, 0),)
    ]
    starts = np.flatnonzero((before % batch == 0) & (rounds % np.array(steps, int) == 0))
    ends = np.append(starts[1:], len(sequence))[: len(starts)]
    return [slice(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def predict_log(states: States, log: Observations) -> Predicted:
    """Predict every outcome of a log, given the outcomes that count before it."""
    order = in_order(log)
    sequence, arrays, rows = log.select(order), [PredictionArrays(*np.zeros((5, 0)))], [order[:0]]
    digests = [0, *accumulate(sequence.hashes)]
    for part in split_rounds(sequence, states.start.settings.batch):
        name = sequence.hashes[part]
        found = states.known(name, digests[part.start])
        if found is None:
            block = sequence.select(part)
            found = Predicted(np.zeros(0, int), arrays[0])
            if not block.is_passive.all():
                before = sequence.select(slice(0, part.start))
                state = states.after(before).for_rows(block)
                chosen = find_predictable(state, block)
                predicted = predict_outcomes(state, block.select(chosen))
                found = Predicted(np.flatnonzero(chosen), predicted)
            states.keep(name, digests[part.start], found)
        arrays.append(found.arrays)
        rows.append(order[part][found.rows])
    joined = PredictionArrays(*(np.concatenate(column) for column in zip(*arrays, strict=True)))
    return Predicted(np.concatenate(rows), joined)


def recall_predictions(
    states: States, log: Observations, written: Sequence[Sequence[float] | None]
) -> None:
    """Keep predictions that were written before, so that they need not be computed again.

    written: mean, sd, noise and degrees of every row of the log; None where it was not predicted.
    """
    order = in_order(log)
    sequence = log.select(order)
    digests = [0, *accumulate(sequence.hashes)]
    for part in split_rounds(sequence, states.start.settings.batch):
        found = [written[row] for row in order[part]]
        chosen = np.flatnonzero([each is not None for each in found])
        numbers = np.array([each for each in found if each is not None], float).reshape(-1, 4)
        mean, sd, noise, degrees = numbers.T
        outcomes = sequence.outcome[part][chosen]
        predicted = Predicted(chosen, PredictionArrays(mean, sd, noise, outcomes, degrees))
        states.keep(sequence.hashes[part], digests[part.start], predicted)


def find_warnings(
    start: Start, state: State, surprise: Surprise, settings: Settings
) -> dict[str, str]:
    """Return what an analyst is warned of, by kind; each kind is said once.

    settings: those that were given; those of the start may ask for a model discrepancy where
    observations contradict the graph.
    """
    found = dict[str, str]()
    if start.omitted:
        count = len(start.omitted)
        found["earlier experiments"] = (
            f"{count} of {count + len(start.earlier)} earlier experiments are omitted; the first: "
            f"{start.omitted[0]}"
        )
    for check in select_for_warning(start.checks):
        message = f"before the first experiment: {check.text} {check.advice}".strip()
        found[f"check of the {check.name}"] = message
    if offered(state.surrogate, "without_discrepancy") is None:
        return found
    learned = getattr(state.surrogate, "learned", None)
    discrepancy = getattr(learned, "discrepancy", None)
    log_factor = getattr(learned, "log_factor", -np.inf)
    is_decisive = log_factor > np.log(DECISIVE_BAYES_FACTOR)
    if discrepancy is not None and is_decisive and settings.discrepancy == "auto":
        found["discrepancy"] = (
            f"The outcomes of experiments are better explained with a model discrepancy of "
            f"{discrepancy.amplitude:.3g} for every set (Bayes factor "
            f"{np.exp(min(log_factor, 200.0)):.3g}): from here on they update the surrogate, not "
            "the mechanisms; `surprise` and cb.diagnostics.check_linearity help to find what is "
            "wrong"
        )
    if surprise.alarm is not None:
        found["surprise"] = surprise.message
    return found
