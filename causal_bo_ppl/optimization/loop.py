"""How does an optimization run? Round after round: ask, experiment, tell (Algorithm 1).

Each round observes the system or runs experiments, as the settings say: the intervention with the
largest acquisition value over all sets is chosen and run, its outcome informs every effect, and the
response is linearized again at the new mean of theta. Outcomes are compared with what the
mechanisms predicted for them, with one warning when they contradict the model.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import read_data
from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOError,
    CausalBOWarning,
    DataError,
    DomainError,
    ExperimentFailed,
    SettingsError,
    shown,
)
from causal_bo_ppl.inputs import PROGRESS_DELAY, as_key
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.optimization.experiments import (
    Experiment,
    ExperimentRunner,
    best_gain,
    explain_stop,
    observes,
)
from causal_bo_ppl.optimization.initial_state import begin_from_data, digest_data, find_versions
from causal_bo_ppl.optimization.monitor import (
    IssuedWarnings,
    assess,
    is_due,
    predict_outcomes,
    warn_of_contradictions,
)
from causal_bo_ppl.optimization.run import (
    Observed,
    Run,
    RunStep,
    Unlearned,
    entries_by_round,
    make_entry,
    observed_entries,
    split_rows,
    tell_rounds,
)
from causal_bo_ppl.optimization.settings import Settings, read_settings
from causal_bo_ppl.optimization.state import (
    Entry,
    Proposal,
    State,
    ask,
    recommend,
    recommendation,
    tell,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.surrogates.base import NoisyOutcomes
from causal_bo_ppl.systems import CausalSystem

OUTCOME_ERRORS = (CausalBOError, ArithmeticError, np.linalg.LinAlgError)  # caused by an outcome


class MeasuredOutcome(NamedTuple):
    """One experiment that was run.

    noise: variance of its outcome's noise. row: the whole observation, where it was measured.
    fault: why it cannot be used, or "".
    """

    round: int
    suggestion: Proposal
    outcome: float
    noise: float
    row: Data | None
    fault: str


class Progress(NamedTuple):
    """A state, the experiments learned from, and those that were run and not learned from.

    observed: the observations made. number: of the last round. idle: the number of successive
    rounds in which no experiment was expected to gain its cost. said: which warnings were given.
    stopped: why the run ended.
    """

    state: State
    steps: tuple[RunStep, ...]
    waiting: tuple[MeasuredOutcome, ...] = ()
    observed: tuple[Observed, ...] = ()
    number: int = 0
    idle: int = 0
    said: IssuedWarnings = IssuedWarnings()
    stopped: str = ""


@dataclass(frozen=True, eq=False)
class Loop:
    """What all rounds of an optimization share."""

    runner: ExperimentRunner
    settings: Settings
    key: jax.Array
    data: Data
    checks: tuple[Check, ...]
    callback: Callable[[Run], object] | None

    def play(self, progress: Progress, key: jax.Array) -> Iterator[Progress]:
        """Ask, run and tell, round after round, until rounds or budget are used up.

        Yields the progress twice in a round: when the outcomes are measured, and when they are
        learned from. So the caller holds every outcome, whatever is raised while learning from it.
        """
        rounds, first = self.settings.rounds, progress.number + 1
        for number in count(first) if rounds is None else range(first, rounds + 1):
            progress = self.pause(progress._replace(number=number))
            if progress.stopped:
                yield progress
                return
            for_round = jax.random.fold_in(key, number)
            if observes(progress.state, for_round):
                progress = self.observe(progress, for_round)
                yield progress
                continue
            for_rule = jax.random.fold_in(jax.random.fold_in(key, 0), number)
            suggestions = ask(progress.state, self.settings.batch, key=for_rule)
            if not suggestions:
                yield progress._replace(stopped="what is left of the budget pays for no experiment")
                return
            measured = self.measure(progress.state, suggestions, number, for_round)
            yield progress._replace(waiting=measured)
            progress = self.learn(progress, measured)
            callback = None if progress.waiting else self.callback
            if callback is not None and callback(self.finish(progress)):
                progress = progress._replace(stopped=f"the callback ended it after round {number}")
            yield progress
            progress = self._warn(progress)
            if progress.waiting:
                raise self._failure(progress.waiting, len(measured))
            if progress.stopped:
                return

    @property
    def key_words(self) -> tuple[int, ...]:
        """The words of the key."""
        return tuple(int(word) for word in np.ravel(jax.random.key_data(self.key)))

    def replay(self, start: State, run: Run) -> Progress:
        """Return the progress of an earlier run, for it to be continued."""
        if run.problem != self.runner.problem or run.key != self.key_words:
            raise ArgumentError("resume continues a run of the same problem with the same key")
        one, other = (replace(of.settings, rounds=None, budget=None) for of in (run, self))
        if one != other:
            raise ArgumentError(
                "resume continues a run with the same settings; only rounds and budget may differ"
            )
        if run.data_digest != digest_data(self.data):
            raise DataError("the run to resume began with other data; give the same `data`")
        rounds = entries_by_round(run)
        has_switched = any(step.discrepancy for step in run.steps)
        is_auto = self.settings.discrepancy == "auto"
        return Progress(
            tell_rounds(start, rounds),
            run.steps,
            observed=run.observed,
            number=rounds[-1][0] if rounds else 0,
            idle=self._count_idle(start, rounds),
            said=IssuedWarnings(self._has_warned(run.steps), is_auto and has_switched),
        )

    def _count_idle(self, start: State, rounds: list[tuple[int, tuple[Entry, ...]]]) -> int:
        """Return in how many of the last rounds no experiment was expected to gain its cost."""
        stop, idle = self.settings.stop, 0
        if stop is None:
            return 0
        for last in range(len(rounds) - 1, max(len(rounds) - stop.patience, -1), -1):
            if not best_gain(tell_rounds(start, rounds[:last])) < stop.gain:
                break
            idle += 1
        return idle

    def _has_warned(self, steps: tuple[RunStep, ...]) -> bool:
        """Return whether a warning was given that outcomes contradict the model."""
        predicted = [step.predicted for step in steps if step.predicted is not None]
        total, counts = 0, dict[int, int]()  # of predicted outcomes, after each round
        for step in steps:
            total += step.predicted is not None
            counts[step.round] = total
        seen = max((count for count in counts.values() if is_due(count)), default=0)
        return assess(self.runner.problem, predicted[:seen]).alarm is not None

    def pause(self, progress: Progress) -> Progress:
        """Return the progress, with the reason to stop where no experiment gains its cost."""
        stop = self.settings.stop
        if stop is None:
            return progress
        gain = best_gain(progress.state)
        idle = progress.idle + 1 if gain < stop.gain else 0
        return progress._replace(idle=idle, stopped=explain_stop(stop, gain, idle))

    def observe(self, progress: Progress, key: jax.Array) -> Progress:
        """Observe the system, and learn from the observations."""
        policy = self.settings.observe
        assert policy is not None  # noqa: S101  (asked before)
        data = self.runner.observe(policy.batch, jax.random.fold_in(key, 2))
        observed = Observed(progress.number, data, policy.cost * len(data))
        state = tell(progress.state, observed_entries(self.runner.problem, data, policy.cost))
        return progress._replace(state=state, observed=(*progress.observed, observed))

    def measure(
        self, state: State, suggestions: tuple[Proposal, ...], number: int, key: jax.Array
    ) -> tuple[MeasuredOutcome, ...]:
        """Run the experiments of a round."""
        queries = stack(suggestion.query for suggestion in suggestions)
        where = f"round {number}, {self.describe(queries)}"
        noises = [state.noise(suggestion.query) for suggestion in suggestions]
        try:
            returned = self.runner.run(queries, key)
        except Exception as error:  # user-defined code may raise anything
            raise ExperimentFailed(f"{where}, failed: {shown(error)}") from error
        try:
            outcomes, data, faults = self.runner.read(returned, queries)
        except Exception as error:  # and so may the object that it returned
            why = str(error) if isinstance(error, CausalBOError) else shown(error)
            message = f"{where}, came out, but cannot be read: {why}"
            raise ExperimentFailed(message, returned=returned) from error
        rows = [None] * len(suggestions) if data is None else split_rows(data)
        parts = zip(suggestions, outcomes.tolist(), noises, rows, faults, strict=True)
        return tuple(MeasuredOutcome(number, *part) for part in parts)

    def learn(self, progress: Progress, measured: tuple[MeasuredOutcome, ...]) -> Progress:
        """Learn from the outcomes of a round; those refused stay in `waiting`, with the reason.

        From all at once; where one of them is refused, from one after another.
        """
        usable = tuple(each for each in measured if not each.fault)
        try:
            after = self._absorb(progress, usable)
            return after._replace(waiting=tuple(each for each in measured if each.fault))
        except OUTCOME_ERRORS:
            waiting = []
        for each in measured:
            try:
                progress = progress if each.fault else self._absorb(progress, (each,))
            except OUTCOME_ERRORS as error:
                each = each._replace(fault=str(error))
            waiting += [each] if each.fault else []
        return progress._replace(waiting=tuple(waiting))

    def _absorb(self, progress: Progress, measured: tuple[MeasuredOutcome, ...]) -> Progress:
        if not measured:
            return progress
        if self.settings.learn_from == "rows" and any(each.row is None for each in measured):
            raise DataError(
                'learn_from="rows" needs whole observations: let the experiment return Data'
            )
        queries = stack(each.suggestion.query for each in measured)
        numbers = np.array([(each.outcome, each.noise) for each in measured], float)
        predictions = predict_outcomes(progress.state, NoisyOutcomes(queries, *numbers.T))
        is_known = self.settings.noise is not None
        state = tell(progress.state, [make_entry(each, is_known) for each in measured])
        best, discrepancy = recommend(state), getattr(state.surrogate, "discrepancy", None)
        amplitude = 0.0 if discrepancy is None else float(discrepancy.amplitude)
        steps = [
            RunStep(*each[:4], *best, each.row, predicted, amplitude)
            for each, predicted in zip(measured, predictions, strict=True)
        ]
        return progress._replace(state=state, steps=(*progress.steps, *steps), waiting=())

    def _warn(self, progress: Progress) -> Progress:
        """Warn, once each, that outcomes contradict the model and that a discrepancy is used."""
        predicted = [step.predicted for step in progress.steps if step.predicted is not None]
        said = warn_of_contradictions(
            progress.state, self.settings, predicted, progress.said, stacklevel=4
        )
        return progress._replace(said=said)

    def _failure(self, refused: tuple[MeasuredOutcome, ...], of: int) -> ExperimentFailed:
        """Return the error that names the outcomes refused, and why the first of them was."""
        queries = stack(each.suggestion.query for each in refused)
        where = f"round {refused[0].round}, {self.describe(queries)}"
        came = f"came out as {[each.outcome for each in refused]}, but cannot be used"
        others = of - len(refused)
        rest = f" (the other {others} of the round were learned from)" if others else ""
        error = ExperimentFailed(f"{where}, {came}: {refused[0].fault}{rest}")
        error.__cause__ = DataError(refused[0].fault)
        return error

    def describe(self, queries: Queries) -> str:
        """Return the interventions of a round, for a message."""
        return "; ".join(
            f"do({', '.join(f'{name} = {value:.9g}' for name, value in values.items())})"
            for values in self.runner.problem.interventions(queries)
        )

    def finish(self, progress: Progress, why: str = "") -> Run:
        """Return the run; why: the reason why waiting outcomes were not learned from."""
        problem, state, rounds = self.runner.problem, progress.state, self.settings.rounds
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
        used_up = f"all {rounds} rounds were used" if progress.number == rounds else ""
        return Run(
            problem,
            self.settings,
            progress.steps,
            state.surrogate,
            recommendation(state),
            self.runner.system,
            tuple(unlearned),
            self.key_words,
            find_versions(),
            digest_data(self.data),
            self.checks,
            progress.observed,
            state.base,
            progress.stopped or why or used_up,
            tuple(entry for entry in state.ledger if entry.is_earlier),
            state.takes_observations,
        )


def optimize(
    system_or_problem: CausalSystem | Problem,
    settings: Settings | str = "gc-cbo",
    *,
    data: Data | pd.DataFrame | None = None,
    experiment: Experiment | None = None,
    rounds: int | None = None,
    budget: float | None = None,
    observations: int | None = None,
    callback: Callable[[Run], object] | None = None,
    resume: Run | None = None,
    progress: bool = True,
    key: jax.Array | int,
) -> Run:
    """Search for the intervention with the best E[Y | do(...)], experiment by experiment.

    Parameters
    ----------
    system_or_problem:
        A system with known truth, which is observed and simulated; or a problem, with `data` and
        `experiment`.
    settings:
        `cb.Settings(...)`, or the name of a preset: "gc-cbo", "gc-cbo-ei", "gc-cbo-nocoupling",
        "gc-cbo-fixed", "cbo", "cbo-noprior" or "bo"; see `Settings.preset`.
    data:
        Observations to begin with, as `cb.Data` or a table; a system is observed without them.
    experiment:
        Function of Queries that returns Data, or one outcome for each; a system is simulated
        without it.
    rounds, budget, observations:
        Instead of those of the settings. At least one of `rounds` and `budget` is needed.
    callback:
        A function that is called with the run so far after every round; the run ends when it
        returns something true.
    resume:
        An earlier run, with the same settings (other than `rounds` and `budget`), data and key,
        that is continued as if it had not ended.
    progress:
        Whether a progress bar is shown when the run takes more than a few seconds.
    key:
        For all that is drawn: a JAX key or an int.

    Returns
    -------
    Run
        `run.best` is what is recommended, `run.to_frame()` shows every experiment.

    Raises
    ------
    ExperimentFailed
        When an experiment fails or an outcome cannot be used. Whatever error escapes, also an
        interrupt, all that was finished is in its `run`; outcomes that were measured but not
        learned from are in `run.unlearned`. Of a batch with one bad outcome the others are learned
        from first.
    SettingsError
        If the settings contradict each other, or neither rounds nor a budget are given.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=5, observations=50, key=0)
    >>> run.best.intervention, run.regret().tolist()[-1]
    ({'Z': 5.0}, 0.0)
    """
    chosen = read_settings(settings, rounds=rounds, budget=budget, observations=observations)
    if chosen.rounds is None and chosen.budget is None:
        raise SettingsError("an optimization needs an end: give rounds, budget, or both")
    system = system_or_problem if isinstance(system_or_problem, CausalSystem) else None
    problem = system_or_problem if system is None else system.problem
    if not isinstance(problem, Problem):
        raise DomainError(
            f"optimize needs a CausalSystem or a Problem, got {type(problem).__name__}"
        )
    run_key = as_key(key)
    for_data, for_rounds = jax.random.split(run_key)
    runner = ExperimentRunner(problem, system, experiment, chosen.noise)
    begun_with = _find_data(runner, data, chosen, for_data)
    start, checks = begin_from_data(problem, begun_with, chosen, for_data, stacklevel=2)
    loop = Loop(runner, chosen, run_key, begun_with, checks, callback)
    progressed = begun = Progress(start, ()) if resume is None else loop.replay(start, resume)
    try:
        with tqdm(
            total=chosen.rounds,
            desc=chosen.name,
            unit="round",
            delay=PROGRESS_DELAY,
            leave=False,
            disable=not progress,
        ) as bar:
            for progressed in loop.play(begun, for_rounds):
                bar.update(0 if progressed.waiting or progressed.stopped else 1)
    except BaseException as error:  # whatever it is: what was paid for is kept
        if progressed.steps or progressed.waiting:
            _keep(error, loop.finish(progressed, f"cut off by {type(error).__name__}"))
        raise
    if not progressed.steps and not progressed.observed and not progressed.idle:
        cheapest = start.candidates.costs.min()
        raise DomainError(
            f"the budget {chosen.budget} pays for no vertex of any set; the cheapest costs "
            f"{cheapest:g}"
        )
    return loop.finish(progressed)


def _keep(error: BaseException, run: Run) -> None:
    """Attach the run to the error; one that does not take it becomes the cause of one that does."""
    note = f"the {len(run.steps)} experiments before it are in this error's `run`"
    if run.unlearned:
        note += (
            f", and in `run.unlearned` {len(run.unlearned)} outcomes that were measured but not "
            "learned from"
        )
    try:
        error.run = run  # type: ignore[attr-defined]
        error.add_note(note)
    except Exception:  # the class of the error is user-defined
        raise ExperimentFailed(f"{shown(error)}; {note}", run) from error


def _find_data(
    runner: ExperimentRunner, data: Data | pd.DataFrame | None, settings: Settings, key: jax.Array
) -> Data:
    """Return the observations to begin with."""
    family, system = read_mechanisms(settings.mechanisms), runner.system
    if system is not None and not system.is_affine and getattr(family, "is_linear", False):
        message = f"{system.name} is not linear; {family.name} mechanisms are fitted to it"
        warnings.warn(message, CausalBOWarning, stacklevel=3)
    if data is not None:
        return read_data(runner.problem, data)
    if system is None:
        raise DataError("a problem has no observations: give `data`, or optimize a CausalSystem")
    return system.observe(settings.observations, key)
