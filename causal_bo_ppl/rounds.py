"""What happens in a round? Suggest, run, learn, recommend."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import jax
import numpy as np

from causal_bo_ppl.acquisition import confidence_bound, first_best
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import (
    CausalBOError,
    CausalBOWarning,
    DataError,
    DomainError,
    ExperimentFailed,
    ExplorationError,
)
from causal_bo_ppl.laboratory import Laboratory, Measured
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries, stack
from causal_bo_ppl.runs import Choice, Step
from causal_bo_ppl.settings import Settings
from causal_bo_ppl.surrogates import Coupled, Prediction, couple
from causal_bo_ppl.surrogates.outcomes import Outcomes, add, no_outcomes
from causal_bo_ppl.ties import TIE


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

    def begin(self, post: Posterior, experiments: Data) -> Coupled:
        """The surrogate before the first round; earlier experiments are told to it, with the model's noise."""
        surrogate, left_out = couple(post, accept_unconverged=self.settings.accept_unconverged), []
        for query, outcome in zip(experiments.queries, experiments.outcomes.tolist(), strict=True):
            try:
                surrogate = surrogate.tell(query, outcome, float(post.outcome_variances(query)[0]))
            except (DomainError, ExplorationError) as error:
                left_out.append(str(error))
        if left_out:
            message = (
                f"{len(left_out)} of {len(experiments)} earlier experiments are left out; the first: {left_out[0]}"
            )
            warnings.warn(message, CausalBOWarning, stacklevel=3)
        return surrogate.recentre() if self.settings.kernel == "adaptive" else surrogate

    def suggest(self, surrogate: Coupled, spent: list[float]) -> list[Choice]:
        """The next batch that can be paid for; the second is chosen as if the first had come out as predicted."""
        choices: list[Choice] = []
        for _ in range(self.settings.batch):
            affordable = np.flatnonzero(self._is_affordable([*spent, *(choice.cost for choice in choices)]))
            if not len(affordable):
                break
            predicted = surrogate.predict(self.candidates)
            bounds = confidence_bound(predicted, self.settings.beta, self.objective)
            if not np.ptp(bounds) > TIE * np.abs(bounds).max():
                message = f"all {len(bounds)} interventions look equally good; the first of a smallest set is taken"
                warnings.warn(message, CausalBOWarning, stacklevel=4)
            at = int(affordable[first_best(bounds[affordable], self.objective)])
            query, believed = self.candidates[at], (predicted.mean[at], predicted.sd[at], bounds[at], self.costs[at])
            choices.append(Choice(query, *map(float, believed)))
            if len(choices) < self.settings.batch:
                surrogate = surrogate.imagine(query, self.noise(surrogate.post, query))
        return choices

    def _is_affordable(self, spent: list[float]) -> np.ndarray:
        budget = math.inf if self.settings.budget is None else self.settings.budget * (1 + 1e-12)  # sums are rounded
        return np.asarray(self.costs + math.fsum(spent) <= budget)

    def noise(self, post: Posterior, query: Queries) -> float:
        """Variance of one outcome: given, or what the model implies."""
        given = self.laboratory.noise
        return float(post.outcome_variances(query)[0]) if given is None else given

    def learn(self, surrogate: Coupled, choices: list[Choice], measured: Measured) -> Coupled:
        """After a round: from the target alone, or from the whole rows."""
        if self.settings.update == "full":
            if measured.rows is None:
                raise DataError('update="full" needs whole rows: let the experiment return Data')
            return couple(surrogate.post.update(measured.rows), accept_unconverged=self.settings.accept_unconverged)
        for choice, outcome in zip(choices, measured.outcomes.tolist(), strict=True):
            surrogate = surrogate.tell(choice.query, outcome, self.noise(surrogate.post, choice.query))
        return surrogate.recentre() if self.settings.kernel == "adaptive" else surrogate

    def recommend(self, surrogate: Coupled, seen: Outcomes) -> tuple[Queries, Prediction]:
        """The best intervention as `report` understands it, and what is believed of it."""
        among = self.candidates if self.settings.report == "model" else seen.queries
        predicted = surrogate.predict(among)
        at = first_best(seen.means if self.settings.report == "observed" else predicted.mean, self.objective)
        return among[at], Prediction(predicted.mean[at], predicted.sd[at])

    def play(self, surrogate: Coupled, key: jax.Array) -> Iterator[tuple[list[Step], Coupled]]:
        """Suggest, run and learn, round after round, until rounds or budget are used up."""
        seen, spent = no_outcomes(self.candidates.mask.shape[1]), list[float]()
        for number in count(1) if self.settings.rounds is None else range(1, self.settings.rounds + 1):
            choices = self.suggest(surrogate, spent)
            if not choices:
                return
            noises = [self.noise(surrogate.post, choice.query) for choice in choices]
            measured = self.measure(choices, number, key)
            trials = list(zip(choices, measured.outcomes.tolist(), noises, strict=True))
            try:
                for choice, outcome, noise in trials:
                    seen, _ = add(seen, choice.query, outcome, noise)
                surrogate = self.learn(surrogate, choices, measured)
            except CausalBOError as error:
                came = f"came out as {measured.outcomes.tolist()}, but cannot be used: {error}"
                raise ExperimentFailed(f"round {number}, {self.describe(choices)}, {came}") from error
            spent += [choice.cost for choice in choices]
            best, predicted = self.recommend(surrogate, seen)
            after = best, float(predicted.mean), float(predicted.sd)
            yield [Step(number, choice, outcome, noise, *after) for choice, outcome, noise in trials], surrogate

    def measure(self, choices: list[Choice], number: int, key: jax.Array) -> Measured:
        """Run the experiments of a round."""
        try:
            return self.laboratory.run(stack(choice.query for choice in choices), jax.random.fold_in(key, number))
        except Exception as error:  # the analyst's code may raise anything
            raise ExperimentFailed(f"round {number}, {self.describe(choices)}, failed: {error!r}") from error

    def describe(self, choices: list[Choice]) -> str:
        """The interventions of a round, for a message."""
        asked = self.laboratory.problem.interventions(stack(choice.query for choice in choices))
        return "; ".join(f"do({', '.join(f'{name} = {value:.9g}' for name, value in each.items())})" for each in asked)
