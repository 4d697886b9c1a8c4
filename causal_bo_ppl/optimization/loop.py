"""The rounds of an optimization: ask, run, tell, and what is recorded of each.

A round observes a row or runs experiments, as the settings say. Outcomes are compared with what the
mechanisms predicted for them, and the analyst is warned once when they contradict the model.

Graph-coupled causal Bayesian optimization, Algorithm 1 of the paper: a loop over ask and tell.

Each round: choose the intervention that is worth most over all sets at once, run it, learn from its
outcome about every effect, and linearize again where theta has moved to.
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
    CausalBOError,
    CausalBOWarning,
    DataError,
    DomainError,
    ExperimentFailed,
    ModelError,
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
from causal_bo_ppl.optimization.initial_state import begin_from_rows, digest_rows, find_versions
from causal_bo_ppl.optimization.monitor import (
    Said,
    assess,
    is_due,
    predict_outcomes,
    warn_of_contradictions,
)
from causal_bo_ppl.optimization.run import (
    Observed,
    Run,
    Step,
    Unlearned,
    recommendation,
    told_by_round,
)
from causal_bo_ppl.optimization.settings import Settings, read_settings
from causal_bo_ppl.optimization.state import Entry, Proposal, State, ask, recommend, tell
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.surrogates.base import Told
from causal_bo_ppl.systems import CausalSystem

REFUSED = (CausalBOError, ArithmeticError, np.linalg.LinAlgError)  # the outcome's fault, not ours


class Trial(NamedTuple):
    """One experiment that was run.

    noise: variance of its outcome's noise. row: the whole row, where it was measured. fault: why it
    cannot be used, or "".
    """

    round: int
    suggestion: Proposal
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
            switched=self.settings.discrepancy == "auto"
            and any(each.discrepancy for each in run.steps),
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
            sum(each.predicted is not None for each in steps[: position + 1])
            for position, step in enumerate(steps)
            if position + 1 == len(steps) or steps[position + 1].round != step.round
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
        rows = self.runner.observe(policy.batch, jax.random.fold_in(key, 2))
        nothing = self.runner.problem.baseline()
        entries = [
            Entry(nothing, float(row.outcomes[0]), 0.0, row, policy.cost)
            for row in (rows.select(slice(at, at + 1)) for at in range(len(rows)))
        ]
        state = tell(progress.state, entries)
        seen = Observed(number, rows, policy.cost * len(rows))
        return progress._replace(state=state, observed=(*progress.observed, seen))

    def measure(
        self, state: State, suggestions: tuple[Proposal, ...], number: int, key: jax.Array
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
            each = [rows.select(slice(at, at + 1)) for at in range(len(rows))]
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
        if self.settings.learn_from == "rows" and any(trial.row is None for trial in trials):
            raise DataError(
                'learn_from="rows" needs whole observations: let the experiment return Data'
            )
        queries = stack(trial.suggestion.query for trial in trials)
        outcomes, noises = (np.array([trial[at] for trial in trials], float) for at in (3, 2))
        predicted = predict_outcomes(progress.state, Told(queries, outcomes, noises))
        is_known = self.settings.noise is not None
        state = tell(progress.state, [trial.entry(is_known) for trial in trials])
        best, residual = recommend(state), getattr(state.surrogate, "discrepancy", None)
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
            state.takes_observations,
        )

    def _used_up(self, progress: Progress) -> str:
        rounds = self.settings.rounds
        return f"all {rounds} rounds were used" if progress.number == rounds else ""


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
    given = as_key(key)
    for_rows, for_rounds = jax.random.split(given)
    runner = ExperimentRunner(problem, system, experiment, chosen.noise)
    rows = _start(problem, system, data, chosen, for_rows)
    start, checks = begin_from_rows(problem, rows, chosen, for_rows, stacklevel=2)
    loop = Loop(runner, chosen, system, given, rows, find_versions(), checks, callback)
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
    """Put the run into the error.

    An error that does not take it becomes the cause of one that does.
    """
    note = f"the {len(run.steps)} experiments before it are in this error's `run`"
    if run.unlearned:
        note += (
            f", and in `run.unlearned` {len(run.unlearned)} outcomes that were measured but not "
            "learned from"
        )
    try:
        error.run = run  # type: ignore[attr-defined]
        error.add_note(note)
    except Exception:  # it is somebody else's class
        raise ExperimentFailed(f"{shown(error)}; {note}", run) from error


def _start(
    problem: Problem,
    system: CausalSystem | None,
    data: Data | pd.DataFrame | None,
    settings: Settings,
    key: jax.Array,
) -> Data:
    """Return the observations to begin with."""
    family = read_mechanisms(settings.mechanisms)
    if system is not None and not system.is_affine and getattr(family, "is_linear", False):
        message = f"{system.name} is not linear; {family.name} mechanisms are fitted to it"
        warnings.warn(message, CausalBOWarning, stacklevel=3)
    if data is not None:
        return read_data(problem, data)
    if system is None:
        raise DataError("a problem has no observations: give `data`, or optimize a CausalSystem")
    return system.observe(settings.observations, key)
