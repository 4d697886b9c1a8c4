"""Which experiment next? Graph-coupled causal Bayesian optimization, Algorithm 1 of the paper.

Each round: choose the intervention with the best confidence bound over all sets at once, run it, learn from its outcome
about every effect, and linearize again where theta has moved to.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count

import jax
import numpy as np
from tqdm import tqdm

from causal_bo_ppl.acquisition import TIE, confidence_bound, first_best, vertices
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import (
    CausalBOError,
    CausalBOWarning,
    DataError,
    DomainError,
    ExperimentFailed,
    ExplorationError,
    ModelError,
)
from causal_bo_ppl.keys import as_key
from causal_bo_ppl.laboratory import Experiment, Laboratory, Measured
from causal_bo_ppl.posterior import Posterior, fit
from causal_bo_ppl.posterior.priors import Prior
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.queries import Queries, stack
from causal_bo_ppl.runs import Choice, Recommendation, Run, Step
from causal_bo_ppl.settings import Settings
from causal_bo_ppl.surrogates import Coupled, Prediction, couple
from causal_bo_ppl.surrogates.outcomes import Outcomes, add, no_outcomes
from causal_bo_ppl.system import CausalSystem

PATIENCE = 3.0  # seconds without a progress bar


@dataclass(frozen=True, eq=False)
class Search:
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

    def rounds(self, surrogate: Coupled, key: jax.Array) -> Iterator[tuple[list[Step], Coupled]]:
        """Suggest, run and learn, round after round, until rounds or budget are used up."""
        seen, spent = no_outcomes(self.candidates.mask.shape[1]), list[float]()
        for number in count(1) if self.settings.rounds is None else range(1, self.settings.rounds + 1):
            choices = self.suggest(surrogate, spent)
            if not choices:
                return
            noises = [self.noise(surrogate.post, choice.query) for choice in choices]
            batch = stack(choice.query for choice in choices)
            try:
                measured = self.laboratory.run(batch, jax.random.fold_in(key, number))
            except Exception as error:  # the analyst's code may raise anything
                raise ExperimentFailed(
                    f"round {number}, {self.laboratory.describe(batch)}, failed: {error!r}"
                ) from error
            trials = list(zip(choices, measured.outcomes.tolist(), noises, strict=True))
            try:
                for choice, outcome, noise in trials:
                    seen, _ = add(seen, choice.query, outcome, noise)
                surrogate = self.learn(surrogate, choices, measured)
            except CausalBOError as error:
                paid = f"{self.laboratory.describe(batch)}, came out as {measured.outcomes.tolist()}"
                raise ExperimentFailed(f"round {number}, {paid}, but cannot be used: {error}") from error
            spent += [choice.cost for choice in choices]
            best, predicted = self.recommend(surrogate, seen)
            after = best, float(predicted.mean), float(predicted.sd)
            yield [Step(number, choice, outcome, noise, *after) for choice, outcome, noise in trials], surrogate


def optimize(
    problem: CausalSystem | Problem,
    *,
    method: str = "gc-cbo",
    data: Data | None = None,
    experiment: Experiment | None = None,
    outcomes: str = "noisy",
    noise: float | None = None,
    acquisition: str = "ucb",
    beta: float = 2.0,
    kernel: str | None = None,
    coupling: bool = True,
    residual: bool = False,
    update: str = "target",
    report: str = "mean",
    observations: int = 100,
    rounds: int | None = None,
    budget: float | None = None,
    batch: int = 1,
    inference: str | None = None,
    prior: Prior | None = None,
    accept_unconverged: bool = False,
    key: jax.Array | int,
) -> Run:
    """Look for the intervention with the best E[Y | do(...)], experiment by experiment.

    Parameters
    ----------
    problem:
        A system with known truth, which is observed and simulated; or a problem, with `data` and `experiment`.
    method:
        "gc-cbo", or "gc-cbo-fixed" (kernel="fixed").
    data, observations:
        Rows to start from; of a system, how many to observe where none are given.
    experiment:
        From Queries to Data or to one outcome for each; a system is simulated without it.
    outcomes, noise:
        "noisy" or "exact" (the effect itself). `noise` is the variance of an outcome; by default what the model
        implies for each set. A simulated system with a given `noise` returns its exact effect plus that noise.
    beta:
        The confidence bound is mean +- sqrt(beta) sd.
    kernel:
        "adaptive" (the response is linearized anew after each round) or "fixed".
    update:
        "target": only the outcome is used. "full": the whole row enters the posterior of every equation not set.
    report:
        What is recommended: of the interventions tried, the best by posterior "mean" or as "observed"; or the best of
        all by the "model".
    rounds, budget:
        When to stop; the budget is in units of the problem's costs. At least one is needed. What is tried are vertices
        of the sets' boxes, the best of which has the best bound of all; a budget pays for vertices only.
    batch:
        Experiments per round.
    inference:
        "conjugate" or "wishart"; by default conjugate, unless latent causes join causes of the target.
    prior:
        As of `fit`.

    Raises ExperimentFailed, with all that was finished in its `run`, when an experiment fails.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=5, observations=50, key=0)
    >>> run.best.intervention, run.regret().tolist()[-1]
    ({'Z': 5.0}, 0.0)
    """
    settings = Settings(
        method, outcomes, noise, acquisition, beta, kernel, coupling, residual, update, report, observations, rounds,
        budget, batch, inference, accept_unconverged,
    )  # fmt: skip
    system, posed = (problem, problem.problem) if isinstance(problem, CausalSystem) else (None, problem)
    if not isinstance(posed, Problem):
        raise DomainError(f"optimize needs a CausalSystem or a Problem, got {type(problem).__name__}")
    for_rows, for_rounds = jax.random.split(as_key(key))
    laboratory = Laboratory(posed, system, experiment, settings.known_noise)
    post, experiments = _learn(posed, _start(system, data, settings, for_rows), settings, prior)
    candidates = vertices(posed, post.parameters.explored.sets)
    search = Search(candidates, posed.cost(candidates), laboratory, settings)
    surrogate, steps = search.begin(post, experiments), list[Step]()
    played = search.rounds(surrogate, for_rounds)
    try:
        for found, after in tqdm(played, total=rounds, desc=method, unit="round", delay=PATIENCE, leave=False):
            steps, surrogate = steps + found, after
    except (ExperimentFailed, KeyboardInterrupt) as error:  # what was paid for is kept
        if steps:
            error.run = finish(posed, settings, steps, surrogate, system)  # type: ignore[union-attr]
            error.add_note(f"the {len(steps)} experiments before it are in this error's `run`")
        raise
    if not steps:
        raise DomainError(
            f"the budget {budget} pays for no vertex of any set; the cheapest costs {search.costs.min():g}"
        )
    return finish(posed, settings, steps, surrogate, system)


def finish(
    problem: Problem, settings: Settings, steps: list[Step], surrogate: Coupled, system: CausalSystem | None
) -> Run:
    """The record of what was done."""
    [intervention] = problem.interventions(steps[-1].best)
    best = Recommendation(intervention, steps[-1].best_mean, steps[-1].best_sd)
    return Run(problem, asdict(settings), tuple(steps), surrogate, best, system)


def _start(system: CausalSystem | None, data: Data | None, settings: Settings, key: jax.Array) -> Data:
    """The rows to begin with."""
    if system is not None and not system.is_affine:
        message = f"{system.name} is not linear; linear mechanisms are fitted to it"
        warnings.warn(message, CausalBOWarning, stacklevel=3)
    if data is not None:
        return data
    if system is None:
        raise DataError("a problem has no rows of its own: give `data`, or optimize a CausalSystem")
    return system.observe(settings.observations, key)


def _learn(problem: Problem, data: Data, settings: Settings, prior: Prior | None) -> tuple[Posterior, Data]:
    """The posterior, and rows of earlier experiments that it did not use."""
    confounded = bool(problem.graph.ancestral(problem.target).bidirected)
    method = settings.inference or ("wishart" if confounded else "conjugate")
    if method == "conjugate":
        return fit(problem, data, method=method, prior=prior), data.rows(slice(0, 0))
    if settings.update == "full":
        raise ModelError(
            'latent causes join causes of the target, so whole rows of experiments cannot be used; take update="target"'
        )
    observed = data.rows(data.is_observational)
    return fit(problem, observed, method=method, prior=prior), data.rows(~data.is_observational)
