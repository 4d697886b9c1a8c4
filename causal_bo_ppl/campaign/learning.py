"""What is believed after all that was told? Records enter the ledger of a state.

An intervention that may not be proposed, of another set or beyond its domain, is data: the state is
opened for it, and learns from it where the surrogate or the mechanisms know its effect.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from causal_bo_ppl.campaign.asking_back import predict_records
from causal_bo_ppl.campaign.told import FOREIGN, Record
from causal_bo_ppl.errors import DataError, DomainError, ExplorationError
from causal_bo_ppl.optimization.state import State, take_measured, tell

BLOCK = 1_024  # outcomes of a table that are predicted together


def open_for(state: State, records: Sequence[Record]) -> State:
    """Return the state, opened where one of the records may not be proposed."""
    return take_measured(state) if any(each.is_foreign for each in records) else state


def believe(start: State, records: Sequence[Record]) -> State:
    """Return what is believed after all records, given the state before any of them."""
    state, noise = open_for(start, records), start.settings.known_noise
    entries = [each.entry(noise) for each in records if not each.failed]
    return add_losses(tell(state, entries) if entries else state, records)


def learn(state: State, records: Sequence[Record]) -> tuple[State, list[Record]]:
    """Return the state after more records, and these with what was predicted for them.

    Raises
    ------
    DataError
        If an outcome of an intervention that may not be proposed cannot be learned from.
    """
    told, noise = list[Record](), state.settings.known_noise
    try:
        for start in range(0, len(records), BLOCK):
            part = predict_records(state, list(records[start : start + BLOCK]))
            entries = [each.entry(noise) for each in part if not each.failed]
            state, told = tell(state, entries) if entries else state, [*told, *part]
    except (DomainError, ExplorationError) as error:
        if not any(each.is_foreign for each in records):
            raise
        raise DataError(
            f"an outcome {FOREIGN.split(':')[0]} cannot be learned from here: {error}. Tell the "
            "whole row where the mechanisms learn from rows, or change the problem"
        ) from error
    return state, told


def add_losses(state: State, records: Sequence[Record]) -> State:
    """Return the state with what failed experiments have cost."""
    return replace(state, lost=math.fsum(each.cost for each in records if each.failed))
