"""Is an outcome so far from what was expected that it should be asked back? And what was expected?

A typing error, another unit or a swapped sample gives an outcome that the model holds for nearly
impossible and that lies far from what was expected also on the target's own scale. Smaller
contradictions are the subject of `optimization.surprise`.
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

from causal_bo_ppl.campaign.told import Record, describe
from causal_bo_ppl.errors import DataError, DomainError, ExplorationError
from causal_bo_ppl.optimization.contradictions import predict_outcomes
from causal_bo_ppl.optimization.predicted_outcomes import (
    Arrays,
    PredictedOutcome,
    noise_degrees,
)
from causal_bo_ppl.optimization.state import State
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.surrogates.effect_moments import target_moments
from causal_bo_ppl.surrogates.told import Told

IMPROBABLE = 1e-6  # two-sided: below, an outcome is asked back
FAR = 3.0  # sds of the target in the rows: nearer ones are not asked back


def predict_records(state: State, records: list[Record]) -> list[Record]:
    """Return the records with what the mechanisms predicted for each outcome, where they did."""
    places = find_predictable(state, records)
    if not places:
        return records
    chosen = [records[at] for at in places]
    found = predict_outcomes(state, _read_told(state, chosen))
    after = list(records)
    for at, predicted in zip(places, found, strict=True):
        after[at] = records[at]._replace(predicted=predicted)
    return after


def require_expected(state: State, records: list[Record]) -> None:
    """Refuse outcomes that are far from what was expected.

    Raises
    ------
    DataError
        If an outcome has a probability below 1e-6 under all that is believed, and lies more than 3
        sds of the target from what was expected; the error says how to tell it all the same.
    """
    chosen = [records[at] for at in find_predictable(state, records)]
    observed = [each for each in records if each.is_passive and each.outcome is not None]
    usual = target_moments(state.base)
    mean, spread, outcomes = np.zeros(0), np.zeros(0), np.zeros(0)
    if chosen:
        queries, outcomes, noises = _read_told(state, chosen)
        factor = float(getattr(getattr(state.surrogate, "learned", None), "noise", 1.0))
        mean, sd = state.surrogate.predict(queries)
        unknown = np.full(len(mean), np.inf)
        found = Arrays(mean, sd, noises * max(factor, 1.0), outcomes, unknown)
        spread = found.spread
    mean = np.append(mean, [usual.mean] * len(observed))
    spread = np.append(spread, [usual.sd] * len(observed))
    outcomes = np.append(outcomes, np.array([each.outcome for each in observed], float))
    gap = np.abs(outcomes - mean)
    z = gap / np.where(spread > 0, spread, 1.0)
    p = 2 * student.sf(z, noise_degrees(state.posterior))
    bad = np.flatnonzero((p < IMPROBABLE) & (gap > FAR * usual.sd))
    if not len(bad):
        return
    first, told = int(bad[0]), [*chosen, *observed]
    more = f" ({len(bad)} of {len(told)} outcomes are like that)" if len(bad) > 1 else ""
    raise DataError(
        f"{describe(state.problem, told[first].query)} came out as {outcomes[first]:.6g}, but "
        f"{mean[first]:.4g} +- {spread[first]:.2g} was expected{more}: is it a typing error, "
        "another unit or another sample? Look again, and if it is right, tell it with sure=True"
    )


def find_predictable(state: State, records: Sequence[Record]) -> list[int]:
    """Return the places of the records of whose outcomes something was expected.

    Of a set that may not be proposed nothing is expected where the surrogate does not know it.
    """
    knows: dict[bytes, bool] = {}
    found = []
    for place, record in enumerate(records):
        if record.outcome is None or record.is_passive:
            continue
        kind = np.asarray(record.query.mask).tobytes()
        if record.is_foreign and kind not in knows:
            knows[kind] = _knows(state, record.query)
        if not record.is_foreign or knows[kind]:
            found.append(place)
    return found


def _knows(state: State, query: Queries) -> bool:
    try:
        state.surrogate.predict(query)
    except (DomainError, ExplorationError):
        return False
    return True


def _read_told(state: State, records: list[Record]) -> Told:
    """Return outcomes with the variances of their noise, those that were given where there are."""
    queries = stack(each.query for each in records)
    outcomes = np.array([each.outcome for each in records], float)
    given = np.array([np.nan if each.variance is None else each.variance for each in records])
    return Told(queries, outcomes, np.where(np.isnan(given), state.noises(queries), given))


def predictions(records: tuple[Record, ...]) -> list[PredictedOutcome]:
    """Return what was predicted, in the order in which it was told."""
    return [each.predicted for each in records if each.predicted is not None]
