"""What happens in a round? Suggest, run, learn, recommend."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import count
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import (
    CausalBOError,
    CausalBOWarning,
    DataError,
    DomainError,
    ExperimentFailed,
    ExplorationError,
    shown,
)
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.numerics import TIE
from causal_bo_ppl.optimization.acquisition import confidence_bound, first_best
from causal_bo_ppl.optimization.experiments import Laboratory
from causal_bo_ppl.optimization.run import Choice, Step
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.surrogates import Coupled, couple
from causal_bo_ppl.surrogates.coupled import Outcomes, add, no_outcomes

REFUSED = (
    CausalBOError,
    ArithmeticError,
    np.linalg.LinAlgError,
)  # the outcome's fault, not the program's


class Best(NamedTuple):
    """What is recommended: a query of one row, with mean and sd of its effect."""

    query: Queries
    mean: float
    sd: float


class Trial(NamedTuple):
    """One experiment that was run.

    noise: variance of its outcome's noise. row: the whole row, where it was measured. fault: why it
    cannot be used, or "".
    """

    round: int
    choice: Choice
    noise: float
    outcome: float
    row: Data | None
    fault: str


class State(NamedTuple):
    """All that a run has found out so far.

    seen: the outcomes learned from, by intervention. steps: the experiments learned from. waiting:
    those that were run and not learned from, yet or at all.
    """

    surrogate: Coupled
    seen: Outcomes
    steps: tuple[Step, ...]
    best: Best
    waiting: tuple[Trial, ...] = ()


@dataclass(frozen=True, eq=False)
class Rounds:
    """What all rounds share: the vertices of all sets with their costs, where experiments run, and the settings."""

    candidates: Queries
    costs: np.ndarray
    laboratory: Laboratory
    settings: Settings

    @property
    def objective(self) -> str:
        """Either "min" or "max"."""
        return self.laboratory.problem.objective

    def begin(self, post: Posterior, experiments: Data) -> State:
        """The state before the first round; earlier experiments are told to the surrogate, with the model's noise."""
        surrogate, left_out = self._couple(post), []
        for query, outcome in zip(experiments.queries, experiments.outcomes.tolist(), strict=True):
            try:
                surrogate = surrogate.tell(query, outcome, float(post.outcome_variances(query)[0]))
            except (DomainError, ExplorationError) as error:
                left_out.append(str(error))
        if left_out:
            message = f"{len(left_out)} of {len(experiments)} earlier experiments are left out; the first: {left_out[0]}"
            warnings.warn(message, CausalBOWarning, stacklevel=3)
        surrogate = surrogate.recentre() if self.settings.kernel == "adaptive" else surrogate
        seen = no_outcomes(self.candidates.mask.shape[1])
        return State(surrogate, seen, (), self.recommend(surrogate, seen))

    def suggest(self, surrogate: Coupled, spent: list[float]) -> list[Choice]:
        """The next batch that can be paid for; the second is chosen as if the first had come out as predicted."""
        choices: list[Choice] = []
        for _ in range(self.settings.batch):
            affordable = np.flatnonzero(
                self._is_affordable([*spent, *(choice.cost for choice in choices)])
            )
            if not len(affordable):
                break
            predicted = surrogate.predict(self.candidates)
            bounds = confidence_bound(predicted, self.settings.beta, self.objective)
            if not np.ptp(bounds) > TIE * np.abs(bounds).max():
                message = f"all {len(bounds)} interventions look equally good; the first of a smallest set is taken"
                warnings.warn(message, CausalBOWarning, stacklevel=4)
            at = int(affordable[first_best(bounds[affordable], self.objective)])
            query, believed = (
                self.candidates[at],
                (predicted.mean[at], predicted.sd[at], bounds[at], self.costs[at]),
            )
            choices.append(Choice(query, *map(float, believed)))
            if len(choices) < self.settings.batch:
                surrogate = surrogate.imagine(query, self.noise(surrogate.post, query))
        return choices

    def _is_affordable(self, spent: list[float]) -> np.ndarray:
        budget = (
            math.inf if self.settings.budget is None else self.settings.budget * (1 + 1e-12)
        )  # sums are rounded
        return np.asarray(self.costs + math.fsum(spent) <= budget)

    def noise(self, post: Posterior, query: Queries) -> float:
        """Variance of one outcome: given, or what the model implies."""
        given = self.laboratory.noise
        return float(post.outcome_variances(query)[0]) if given is None else given

    def play(self, state: State, key: jax.Array) -> Iterator[State]:
        """Suggest, run and learn, round after round, until rounds or budget are used up.

        Gives the state twice in a round: when the outcomes are measured, and when they are learned
        from. So the caller holds every outcome, whatever is raised while learning from it.
        """
        for number in (
            count(1) if self.settings.rounds is None else range(1, self.settings.rounds + 1)
        ):
            choices = self.suggest(state.surrogate, [step.choice.cost for step in state.steps])
            if not choices:
                return
            trials = self.measure(state.surrogate.post, choices, number, key)
            yield state._replace(waiting=trials)
            state = self.learn(state, trials)
            yield state
            if state.waiting:
                raise self._failure(state.waiting, len(trials))

    def measure(
        self, post: Posterior, choices: list[Choice], number: int, key: jax.Array
    ) -> tuple[Trial, ...]:
        """Run the experiments of a round."""
        queries, where = (
            stack(choice.query for choice in choices),
            f"round {number}, {self.describe(choices)}",
        )
        noises = [self.noise(post, choice.query) for choice in choices]
        try:
            found = self.laboratory.run(queries, jax.random.fold_in(key, number))
        except Exception as error:  # the analyst's code may raise anything
            raise ExperimentFailed(f"{where}, failed: {shown(error)}") from error
        try:
            outcomes, rows, faults = self.laboratory.read(found, queries)
        except Exception as error:  # and so may the object that it returned
            why = str(error) if isinstance(error, CausalBOError) else shown(error)
            raise ExperimentFailed(
                f"{where}, came out, but cannot be read: {why}", returned=found
            ) from error
        each = (
            [None] * len(choices)
            if rows is None
            else [rows.rows(slice(at, at + 1)) for at in range(len(rows))]
        )
        parts = zip(choices, noises, outcomes.tolist(), each, faults, strict=True)
        return tuple(Trial(number, *part) for part in parts)

    def learn(self, state: State, trials: tuple[Trial, ...]) -> State:
        """Learn from the outcomes of a round; those that are refused stay in `waiting`, with the reason.

        From all at once; where one of them is refused, from one after another.
        """
        good = tuple(trial for trial in trials if not trial.fault)
        try:
            return self._absorb(state, good)._replace(
                waiting=tuple(trial for trial in trials if trial.fault)
            )
        except REFUSED:
            waiting = []
        for trial in trials:
            try:
                state = state if trial.fault else self._absorb(state, (trial,))
            except REFUSED as error:
                trial = trial._replace(fault=str(error))
            waiting += [trial] if trial.fault else []
        return state._replace(waiting=tuple(waiting))

    def _absorb(self, state: State, trials: tuple[Trial, ...]) -> State:
        """Return the state after these outcomes: from the target alone, or from the whole rows."""
        if not trials:
            return state
        surrogate, seen = state.surrogate, state.seen
        for trial in trials:
            seen, _ = add(seen, trial.choice.query, trial.outcome, trial.noise)
        if self.settings.update == "full":
            surrogate = self._couple(surrogate.post.update(reduce(Data.join, map(_row, trials))))
        else:
            for trial in trials:
                surrogate = surrogate.tell(trial.choice.query, trial.outcome, trial.noise)
            surrogate = surrogate.recentre() if self.settings.kernel == "adaptive" else surrogate
        best = self.recommend(surrogate, seen)
        steps = [
            Step(trial.round, trial.choice, trial.outcome, trial.noise, *best) for trial in trials
        ]
        return State(surrogate, seen, (*state.steps, *steps), best)

    def recommend(self, surrogate: Coupled, seen: Outcomes) -> Best:
        """Find the best intervention as `report` understands it; before any outcome it is the model's."""
        by_model = self.settings.report == "model" or not len(seen.counts)
        among = self.candidates if by_model else seen.queries
        predicted = surrogate.predict(among)
        is_observed = self.settings.report == "observed" and not by_model
        at = first_best(seen.means if is_observed else predicted.mean, self.objective)
        return Best(among[at], float(predicted.mean[at]), float(predicted.sd[at]))

    def _couple(self, post: Posterior) -> Coupled:
        why = self.settings.accept
        return couple(post if why is None else post.accept(why))

    def _failure(self, refused: tuple[Trial, ...], of: int) -> ExperimentFailed:
        """Say which outcomes of a round were refused, and why the first of them was."""
        where = f"round {refused[0].round}, {self.describe([trial.choice for trial in refused])}"
        came = f"came out as {[trial.outcome for trial in refused]}, but cannot be used: {refused[0].fault}"
        rest = (
            f" (the other {of - len(refused)} of the round were learned from)"
            if of > len(refused)
            else ""
        )
        error = ExperimentFailed(f"{where}, {came}{rest}")
        error.__cause__ = DataError(refused[0].fault)
        return error

    def describe(self, choices: list[Choice]) -> str:
        """The interventions of a round, for a message."""
        asked = self.laboratory.problem.interventions(stack(choice.query for choice in choices))
        return "; ".join(
            f"do({', '.join(f'{name} = {value:.9g}' for name, value in each.items())})"
            for each in asked
        )


def _row(trial: Trial) -> Data:
    if trial.row is None:
        raise DataError('update="full" needs whole rows: let the experiment return Data')
    return trial.row
