"""The rounds of an optimization: ask, run, tell, and what is recorded of each.

A round observes a row or runs experiments, as the settings say. Outcomes are compared with what the
mechanisms predicted for them, and the analyst is warned once when they contradict the model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import (
    CausalBOError,
    DataError,
    ExperimentFailed,
    ModelError,
    shown,
)
from causal_bo_ppl.optimization.beginnings import digest_rows
from causal_bo_ppl.optimization.contradictions import (
    Said,
    predict_outcomes,
    warn_of_contradictions,
)
from causal_bo_ppl.optimization.experiments import ExperimentRunner
from causal_bo_ppl.optimization.observing import best_gain, explain_stop, observes
from causal_bo_ppl.optimization.replay import told_by_round
from causal_bo_ppl.optimization.run import Observed, Run, Step, Unlearned, recommendation
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import Entry, State, Suggestion, ask, recommend, tell
from causal_bo_ppl.optimization.surprise import assess, is_due
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.surrogates.told import Told
from causal_bo_ppl.systems import CausalSystem

REFUSED = (CausalBOError, ArithmeticError, np.linalg.LinAlgError)  # the outcome's fault, not ours


class Trial(NamedTuple):
    """One experiment that was run.

    noise: variance of its outcome's noise. row: the whole row, where it was measured. fault: why it
    cannot be used, or "".
    """

    round: int
    suggestion: Suggestion
    noise: float
    outcome: float
    row: Data | None
    fault: str

    def entry(self, is_known: bool) -> Entry:
        """Return what the ledger keeps of it; is_known: whether the noise was given."""
        suggestion, noise = self.suggestion, self.noise if is_known else None
        return Entry(suggestion.query, self.outcome, noise, self.row, suggestion.cost)


class Progress(NamedTuple):
    """A state, the experiments learned from, and those that were run and not learned from.

    observed: rows that were observed. number: of the last round. idle: how many rounds in
    succession no experiment was worth its cost. warned: whether outcomes were said to contradict
    the model. switched: whether a residual was said to be used. stopped: why the run ended.
    """

    state: State
    steps: tuple[Step, ...]
    waiting: tuple[Trial, ...] = ()
    observed: tuple[Observed, ...] = ()
    number: int = 0
    idle: int = 0
    warned: bool = False
    switched: bool = False
    stopped: str = ""


@dataclass(frozen=True, eq=False)
class Loop:
    """What all rounds share."""

    runner: ExperimentRunner
    settings: Settings
    system: CausalSystem | None
    key: jax.Array
    data: Data
    versions: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...] = ()
    callback: Callable[[Run], object] | None = None

    def play(self, progress: Progress, key: jax.Array) -> Iterator[Progress]:
        """Ask, run and tell, round after round, until rounds or budget are used up.

        Gives the progress twice in a round: when the outcomes are measured, and when they are
        learned from. So the caller holds every outcome, whatever is raised while learning from it.
        """
        rounds = self.settings.rounds
        first = progress.number + 1
        for number in count(first) if rounds is None else range(first, rounds + 1):
            progress = self.pause(progress._replace(number=number))
            if progress.stopped:
                yield progress
                return
            if self.observes(progress, jax.random.fold_in(key, number)):
                progress = self.observe(progress, jax.random.fold_in(key, number))
                yield progress
                continue
            for_rule = jax.random.fold_in(jax.random.fold_in(key, 0), number)
            suggestions = ask(progress.state, self.settings.batch, key=for_rule)
            if not suggestions:
                yield progress._replace(stopped="what is left of the budget pays for no experiment")
                return
            trials = self.measure(progress.state, suggestions, number, key)
            yield progress._replace(waiting=trials)
            progress = self.learn(progress, trials)
            if (
                self.callback is not None
                and not progress.waiting
                and self.callback(self.finish(progress))
            ):
                progress = progress._replace(stopped=f"the callback ended it after round {number}")
            yield progress
            progress = self._warn(progress)
            if progress.waiting:
                raise self._failure(progress.waiting, len(trials))
            if progress.stopped:
                return

    def replay(self, start: State, run: Run) -> Progress:
        """Return the progress of an earlier run, for it to be continued."""
        words = tuple(int(word) for word in np.ravel(jax.random.key_data(self.key)))
        same = replace(run.settings, rounds=None, budget=None)
        if run.problem != self.runner.problem or run.key != words:
            raise ModelError("resume continues a run of the same problem with the same key")
        if same != replace(self.settings, rounds=None, budget=None):
            raise ModelError(
                "resume continues a run with the same settings; only rounds and budget may differ"
            )
        if run.data_digest != self._digest():
            raise DataError("the run to resume began with other rows; give the same `data`")
        told = told_by_round(run)
        entries = [entry for _, group in told for entry in group]
        return Progress(
            tell(start, entries) if entries else start,
            run.steps,
            observed=run.observed,
            number=told[-1][0] if told else 0,
            idle=self._count_idle(start, told),
            warned=self._has_warned(run.steps),
            switched=self.settings.residual == "auto" and any(each.residual for each in run.steps),
        )

    def _count_idle(self, start: State, told: list[tuple[int, tuple[Entry, ...]]]) -> int:
        """Return in how many of the last rounds no experiment was worth its cost."""
        stop, idle = self.settings.stop, 0
        if stop is None:
            return 0
        for last in range(len(told) - 1, max(len(told) - stop.patience, -1), -1):
            entries = [entry for _, group in told[:last] for entry in group]
            if not best_gain(tell(start, entries) if entries else start) < stop.gain:
                break
            idle += 1
        return idle

    def _has_warned(self, steps: tuple[Step, ...]) -> bool:
        """Return whether outcomes were said to contradict the model, after some round of these."""
        counts = [
            sum(each.predicted is not None for each in steps[: place + 1])
            for place, step in enumerate(steps)
            if place + 1 == len(steps) or steps[place + 1].round != step.round
        ]
        seen = max((count for count in counts if is_due(count)), default=0)
        told = [step.predicted for step in steps if step.predicted is not None]
        return assess(self.runner.problem, told[:seen]).alarm is not None

    def _digest(self) -> str:
        return digest_rows(self.data)

    def pause(self, progress: Progress) -> Progress:
        """Return the progress, with the reason to stop where no experiment is worth its cost."""
        stop = self.settings.stop
        if stop is None:
            return progress
        gain = best_gain(progress.state)
        idle = progress.idle + 1 if gain < stop.gain else 0
        return progress._replace(idle=idle, stopped=explain_stop(stop, gain, idle))

    def observes(self, progress: Progress, key: jax.Array) -> bool:
        """Return whether a round observes rows instead of running an experiment."""
        return observes(progress.state, key)

    def observe(self, progress: Progress, key: jax.Array) -> Progress:
        """Observe rows, and learn from them."""
        policy, number = self.settings.observe, progress.number
        assert policy is not None  # noqa: S101  (asked before)
        rows = self.runner.observe(policy.rows, jax.random.fold_in(key, 2))
        nothing = self.runner.problem.baseline()
        entries = [
            Entry(nothing, float(row.outcomes[0]), 0.0, row, policy.cost)
            for row in (rows.rows(slice(at, at + 1)) for at in range(len(rows)))
        ]
        state = tell(progress.state, entries)
        seen = Observed(number, rows, policy.cost * len(rows))
        return progress._replace(state=state, observed=(*progress.observed, seen))

    def measure(
        self, state: State, suggestions: tuple[Suggestion, ...], number: int, key: jax.Array
    ) -> tuple[Trial, ...]:
        """Run the experiments of a round."""
        queries = stack(each.query for each in suggestions)
        where = f"round {number}, {self.describe(queries)}"
        noises = [state.noise(each.query) for each in suggestions]
        try:
            found = self.runner.run(queries, jax.random.fold_in(key, number))
        except Exception as error:  # the analyst's code may raise anything
            raise ExperimentFailed(f"{where}, failed: {shown(error)}") from error
        try:
            outcomes, rows, faults = self.runner.read(found, queries)
        except Exception as error:  # and so may the object that it returned
            why = str(error) if isinstance(error, CausalBOError) else shown(error)
            message = f"{where}, came out, but cannot be read: {why}"
            raise ExperimentFailed(message, returned=found) from error
        each: list[Data | None] = [None] * len(suggestions)
        if rows is not None:
            each = [rows.rows(slice(at, at + 1)) for at in range(len(rows))]
        parts = zip(suggestions, noises, outcomes.tolist(), each, faults, strict=True)
        return tuple(Trial(number, *part) for part in parts)

    def learn(self, progress: Progress, trials: tuple[Trial, ...]) -> Progress:
        """Learn from the outcomes of a round; those refused stay in `waiting`, with the reason.

        From all at once; where one of them is refused, from one after another.
        """
        good = tuple(trial for trial in trials if not trial.fault)
        try:
            after = self._absorb(progress, good)
            return after._replace(waiting=tuple(trial for trial in trials if trial.fault))
        except REFUSED:
            waiting = []
        for trial in trials:
            try:
                progress = progress if trial.fault else self._absorb(progress, (trial,))
            except REFUSED as error:
                trial = trial._replace(fault=str(error))
            waiting += [trial] if trial.fault else []
        return progress._replace(waiting=tuple(waiting))

    def _absorb(self, progress: Progress, trials: tuple[Trial, ...]) -> Progress:
        if not trials:
            return progress
        if self.settings.update == "full" and any(trial.row is None for trial in trials):
            raise DataError('update="full" needs whole rows: let the experiment return Data')
        queries = stack(trial.suggestion.query for trial in trials)
        outcomes, noises = (np.array([trial[at] for trial in trials], float) for at in (3, 2))
        predicted = predict_outcomes(progress.state, Told(queries, outcomes, noises))
        is_known = self.settings.known_noise is not None
        state = tell(progress.state, [trial.entry(is_known) for trial in trials])
        best, residual = recommend(state), getattr(state.surrogate, "residual", None)
        amplitude = 0.0 if residual is None else float(residual.amplitude)
        steps = [
            Step(
                trial.round, trial.suggestion, trial.outcome, trial.noise, *best, trial.row, told,
                amplitude,
            )
            for trial, told in zip(trials, predicted, strict=True)
        ]  # fmt: skip
        return progress._replace(state=state, steps=(*progress.steps, *steps), waiting=())

    def _warn(self, progress: Progress) -> Progress:
        """Say, once each, that outcomes contradict the mechanisms and that a residual is used."""
        told = [step.predicted for step in progress.steps if step.predicted is not None]
        said = Said(progress.warned, progress.switched)
        after = warn_of_contradictions(progress.state, self.settings, told, said, stacklevel=4)
        return progress._replace(warned=after.warned, switched=after.switched)

    def _failure(self, refused: tuple[Trial, ...], of: int) -> ExperimentFailed:
        """Say which outcomes of a round were refused, and why the first of them was."""
        queries = stack(trial.suggestion.query for trial in refused)
        where = f"round {refused[0].round}, {self.describe(queries)}"
        came = f"came out as {[trial.outcome for trial in refused]}, but cannot be used"
        others = of - len(refused)
        rest = f" (the other {others} of the round were learned from)" if others else ""
        error = ExperimentFailed(f"{where}, {came}: {refused[0].fault}{rest}")
        error.__cause__ = DataError(refused[0].fault)
        return error

    def describe(self, queries: Queries) -> str:
        """Return the interventions of a round, for a message."""
        asked = self.runner.problem.interventions(queries)
        words = [
            ", ".join(f"{name} = {value:.9g}" for name, value in each.items()) for each in asked
        ]
        return "; ".join(f"do({each})" for each in words)

    def finish(self, progress: Progress, why: str = "") -> Run:
        """Make the record of a run; why: what kept waiting trials from being learned from."""
        problem, state = self.runner.problem, progress.state
        unlearned = [
            Unlearned(
                each.round,
                problem.interventions(each.suggestion.query)[0],
                each.outcome,
                each.row,
                each.fault or why,
            )
            for each in progress.waiting
        ]
        return Run(
            problem,
            self.settings,
            progress.steps,
            state.surrogate,
            recommendation(state),
            self.system,
            tuple(unlearned),
            tuple(int(word) for word in np.ravel(jax.random.key_data(self.key))),
            self.versions,
            self._digest(),
            self.checks,
            progress.observed,
            progress.state.base,
            progress.stopped or why or self._used_up(progress),
            tuple(entry for entry in state.ledger if entry.is_earlier),
            state.takes_rows,
        )

    def _used_up(self, progress: Progress) -> str:
        rounds = self.settings.rounds
        return f"all {rounds} rounds were used" if progress.number == rounds else ""
