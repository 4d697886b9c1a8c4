"""Graph-coupled causal Bayesian optimization, Algorithm 1 of the paper: a loop over ask and tell.

Each round: choose the intervention that is worth most over all sets at once, run it, learn from its
outcome about every effect, and linearize again where theta has moved to.
"""

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import (
    CausalBOError,
    CausalBOWarning,
    DataError,
    DomainError,
    ExperimentFailed,
    ModelError,
    shown,
)
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.fitting import read_method, trait
from causal_bo_ppl.inference.posterior import digest
from causal_bo_ppl.inputs import PATIENCE, as_key
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.optimization.experiments import Experiment, ExperimentRunner
from causal_bo_ppl.optimization.run import Recommendation, Run, Step, Unlearned
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import Entry, State, Suggestion, ask, begin, recommend, tell
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.systems import CausalSystem

REFUSED = (CausalBOError, ArithmeticError, np.linalg.LinAlgError)  # the outcome's fault, not ours
PACKAGES = ("jax", "numpy", "numpyro")


def optimize(
    problem: CausalSystem | Problem,
    *,
    method: str = "gc-cbo",
    mechanisms: Any = "linear",
    data: Data | None = None,
    experiment: Experiment | None = None,
    outcomes: str = "noisy",
    noise: float | None = None,
    acquisition: Any = "ucb",
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
    inference: Any = None,
    prior: Any = None,
    surrogate: Any = "coupled",
    accept: str | None = None,
    settings: Settings | None = None,
    progress: bool = True,
    key: jax.Array | int,
) -> Run:
    """Look for the intervention with the best E[Y | do(...)], experiment by experiment.

    Parameters
    ----------
    problem:
        A system with known truth, which is observed and simulated; or a problem, with `data` and
        `experiment`.
    method:
        "gc-cbo", or "gc-cbo-fixed" (kernel="fixed").
    mechanisms, prior:
        As in `fit`: "linear", "gp", `cb.GP(...)`, a dictionary of these by variable, or a family
        of your own, with a prior of that family.
    data, observations:
        Rows to start from; of a system, how many to observe where none are given.
    experiment:
        From Queries to Data or to one outcome for each; a system is simulated without it.
    outcomes, noise:
        "noisy" or "exact" (the effect itself). `noise` is the variance of an outcome; by default
        what the model implies for each set. A simulated system with a given `noise` returns its
        exact effect plus that noise.
    acquisition, beta:
        "ucb", the confidence bound mean +- sqrt(beta) sd; or a record of your own, see
        `optimization.acquisition.Acquisition`.
    kernel:
        "adaptive" (the response is linearized anew after each round) or "fixed".
    update:
        "target": only the outcome is used. "full": the whole row enters the posterior of every
        equation not set.
    report:
        What is recommended: of the interventions tried, the best by posterior "mean" or as
        "observed"; or the best of all by the "model".
    rounds, budget:
        When to stop; the budget is in units of the problem's costs. At least one is needed. Where
        effects are affine in the values, what is tried are vertices of the sets' boxes, the best of
        which has the best bound of all; a budget pays for vertices only.
    batch:
        Experiments per round.
    inference:
        Method of `fit`, a name or a record; by default "conjugate", or "wishart" where latent
        causes join causes of the target, and "laplace" for mechanisms without a closed form.
    surrogate:
        "coupled", or a record of your own, see `surrogates.SurrogateMaker`.
    accept:
        Why a posterior whose verdict failed is used all the same, as in `post.accept(why)`; by
        default such a posterior is refused. It is recorded with the run.
    settings:
        The keywords above, other than `data` and `experiment`, as one record instead.
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

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=5, observations=50, key=0)
    >>> run.best.intervention, run.regret().tolist()[-1]
    ({'Z': 5.0}, 0.0)
    """
    keywords = Settings(
        method, mechanisms, outcomes, noise, acquisition, beta, kernel, coupling, residual, update,
        report, observations, rounds, budget, batch, inference, prior, surrogate, accept,
    )  # fmt: skip
    chosen = keywords if settings is None else _read_settings(settings, keywords)
    if chosen.rounds is None and chosen.budget is None:
        raise ModelError("when to stop? Give rounds, budget, or both")
    system = problem if isinstance(problem, CausalSystem) else None
    posed = problem.problem if isinstance(problem, CausalSystem) else problem
    if not isinstance(posed, Problem):
        raise DomainError(
            f"optimize needs a CausalSystem or a Problem, got {type(problem).__name__}"
        )
    given = as_key(key)
    for_rows, for_rounds = jax.random.split(given)
    runner = ExperimentRunner(posed, system, experiment, chosen.known_noise)
    rows = _start(system, data, chosen, for_rows)
    post, experiments = _learn(posed, rows, chosen, jax.random.fold_in(for_rows, 1))
    start = begin(post, chosen, experiments)
    loop = Loop(runner, chosen, system, given, rows, _versions())
    progressed = begun = Progress(start, ())
    try:
        with tqdm(
            total=chosen.rounds,
            desc=chosen.method,
            unit="round",
            delay=PATIENCE,
            leave=False,
            disable=not progress,
        ) as bar:
            for progressed in loop.play(begun, for_rounds):
                bar.update(0 if progressed.waiting else 1)
    except BaseException as error:  # whatever it is: what was paid for is kept
        if progressed.steps or progressed.waiting:
            _keep(error, loop.finish(progressed, f"cut off by {type(error).__name__}"))
        raise
    if not progressed.steps:
        cheapest = start.candidates.costs.min()
        raise DomainError(
            f"the budget {chosen.budget} pays for no vertex of any set; the cheapest costs "
            f"{cheapest:g}"
        )
    return loop.finish(progressed)


def _versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of the packages that compute a run."""
    import causal_bo_ppl

    others = ((name, version(name)) for name in PACKAGES)
    return (("causal_bo_ppl", causal_bo_ppl.__version__), *others)


def _read_settings(settings: object, keywords: Settings) -> Settings:
    if not isinstance(settings, Settings):
        raise ModelError(f"settings must be cb.Settings(...), got {settings!r}")
    if keywords != Settings():
        raise ModelError("give `settings`, or the keywords that it holds, not both")
    return settings


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

    def entry(self) -> Entry:
        """Return what the ledger keeps of it."""
        suggestion = self.suggestion
        return Entry(suggestion.query, self.outcome, self.noise, self.row, suggestion.cost)


class Progress(NamedTuple):
    """A state, the experiments learned from, and those that were run and not learned from."""

    state: State
    steps: tuple[Step, ...]
    waiting: tuple[Trial, ...] = ()


@dataclass(frozen=True, eq=False)
class Loop:
    """What all rounds share."""

    runner: ExperimentRunner
    settings: Settings
    system: CausalSystem | None
    key: jax.Array
    data: Data
    versions: tuple[tuple[str, str], ...]

    def play(self, progress: Progress, key: jax.Array) -> Iterator[Progress]:
        """Ask, run and tell, round after round, until rounds or budget are used up.

        Gives the progress twice in a round: when the outcomes are measured, and when they are
        learned from. So the caller holds every outcome, whatever is raised while learning from it.
        """
        rounds = self.settings.rounds
        for number in count(1) if rounds is None else range(1, rounds + 1):
            suggestions = ask(progress.state, self.settings.batch)
            if not suggestions:
                return
            trials = self.measure(progress.state, suggestions, number, key)
            yield progress._replace(waiting=trials)
            progress = self.learn(progress, trials)
            yield progress
            if progress.waiting:
                raise self._failure(progress.waiting, len(trials))

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
        state = tell(progress.state, [trial.entry() for trial in trials])
        best = recommend(state)
        steps = [
            Step(trial.round, trial.suggestion, trial.outcome, trial.noise, *best)
            for trial in trials
        ]
        return Progress(state, (*progress.steps, *steps))

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
        best = recommend(state)
        [intervention] = problem.interventions(best.query)
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
            Recommendation(intervention, best.mean, best.sd),
            self.system,
            tuple(unlearned),
            tuple(int(word) for word in np.ravel(jax.random.key_data(self.key))),
            self.versions,
            hashlib.sha256(f"{digest(self.data):x}".encode()).hexdigest(),
        )


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
    system: CausalSystem | None, data: Data | None, settings: Settings, key: jax.Array
) -> Data:
    """Return the rows to begin with."""
    family = read_mechanisms(settings.mechanisms)
    if system is not None and not system.is_affine and getattr(family, "is_linear", False):
        message = f"{system.name} is not linear; {family.name} mechanisms are fitted to it"
        warnings.warn(message, CausalBOWarning, stacklevel=3)
    if data is not None:
        return data
    if system is None:
        raise DataError("a problem has no rows of its own: give `data`, or optimize a CausalSystem")
    return system.observe(settings.observations, key)


def _learn(
    problem: Problem, data: Data, settings: Settings, key: jax.Array
) -> tuple[Posterior, Data]:
    """Return the posterior, and rows of earlier experiments that it did not use."""
    family = read_mechanisms(settings.mechanisms)
    default = offered(family, "default_method")
    usual = "laplace" if default is None else default(problem)
    method = read_method(settings.inference or usual)
    options = {"mechanisms": family, "method": method, "prior": settings.prior, "key": key}
    if trait(method, "takes_experiments"):
        return fit(problem, data, **options), data.rows(slice(0, 0))
    if settings.update == "full":
        raise ModelError(
            f"{method.name}, the default here, learns from observational rows only, so whole rows "
            'of experiments cannot be used; take update="target"'
        )
    observed = data.rows(data.is_observational)
    return fit(problem, observed, **options), data.rows(~data.is_observational)
