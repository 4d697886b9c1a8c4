"""Is it enough? `Settings.stop` says when no experiment is worth its cost, round by round.

A study never ends by itself: it says that its rule would end a run of `optimize` here, and answers
all the same when it is asked.
"""

from collections.abc import Sequence

import numpy as np

from causal_bo_ppl.campaign.learning import believe
from causal_bo_ppl.campaign.told import Record
from causal_bo_ppl.optimization.observing import best_gain, explain_stop
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import State


def find_stop(start: State, records: Sequence[Record], settings: Settings) -> str:
    """Return why the rule would end the experiments; empty where it would not, or there is none.

    Parameters
    ----------
    start:
        What was known before anything was told.
    records:
        All that was told, in that order: the rule is about rounds one after another.
    settings:
        `stop`, and what makes a round: `batch` and `observe`.
    """
    stop = settings.stop
    if stop is None:
        return ""
    told = [each for each in records if not each.failed]
    latest, idle = 0.0, 0
    for count in reversed(find_round_ends(told, settings)[-stop.patience :]):
        gain = best_gain(believe(start, told[:count]))
        if not gain < stop.gain:
            break
        latest, idle = gain if not idle else latest, idle + 1
    return explain_stop(stop, latest, idle)


def find_round_ends(told: Sequence[Record], settings: Settings) -> list[int]:
    """Return how many outcomes were there at the end of every round, the first being before any.

    Rounds are counted as the loop of `optimize` counts them; rows that were observed without being
    asked for make none, and are known at the end of the last.
    """
    rows = 0 if settings.observe is None else settings.observe.rows
    passive = np.cumsum([0, *(each.is_passive for each in told)])
    active = np.arange(len(told) + 1) - passive
    rounds = active // settings.batch + (passive // rows if rows else 0)
    ends = np.unique(np.maximum.accumulate(rounds), return_index=True)[1].tolist()
    if active[-1] % settings.batch == 0:
        ends[-1] = len(told)
    return [int(each) for each in ends]
