"""What was known before each round of a run? Its record is told again to the state it began with.

Belief is a function of the ledger, so that every state along the way is found from the run's steps
and observed rows; nothing else is stored.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.optimization.precheck import contradicts_graph
from causal_bo_ppl.optimization.run import Run
from causal_bo_ppl.optimization.state import Entry, State, begin, tell


class Known(NamedTuple):
    """What was known before a round. number: of the round, from 1."""

    number: int
    state: State


def told_by_round(run: Run) -> list[tuple[int, tuple[Entry, ...]]]:
    """Return what each round of a run told: its experiments, or the rows that it observed."""
    is_known, nothing = run.settings.known_noise is not None, run.problem.baseline()
    found = [
        (
            each.round,
            Entry(nothing, float(row.outcomes[0]), 0.0, row, each.cost / len(each.rows)),
        )
        for each in run.observed
        for row in (each.rows.rows(slice(at, at + 1)) for at in range(len(each.rows)))
    ]
    found += [
        (
            step.round,
            Entry(
                step.suggestion.query,
                step.outcome,
                step.noise if is_known else None,
                step.row,
                step.suggestion.cost,
            ),
        )
        for step in run.steps
    ]
    found.sort(key=lambda each: each[0])
    return [
        (number, tuple(entry for _, entry in group))
        for number, group in groupby(found, key=lambda each: each[0])
    ]


def restart(run: Run) -> State:
    """Return the state before the first round of a run, earlier experiments included."""
    if run.base is None:
        raise ModelError("this run does not hold the posterior that it began with; run it again")
    settings = run.settings.doubting(contradicts_graph(run.checks))
    start = begin(run.base, settings, takes_rows=run.takes_rows)
    return tell(start, run.earlier) if run.earlier else start


def retrace(run: Run) -> Iterator[Known]:
    """Yield what was known before every round that told something, and after the last one."""
    state, number = restart(run), 0
    for number, entries in told_by_round(run):
        yield Known(number, state)
        state = tell(state, entries)
    yield Known(number + 1, state)
