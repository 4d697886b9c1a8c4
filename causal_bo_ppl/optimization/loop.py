"""Which experiment next? Graph-coupled causal Bayesian optimization, Algorithm 1 of the paper.

Each round: choose the intervention with the best confidence bound over all sets at once, run it, learn from its outcome
about every effect, and linearize again where theta has moved to.
"""

import warnings
from dataclasses import asdict

import jax
from tqdm import tqdm

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import (
    CausalBOWarning,
    DataError,
    DomainError,
    ExperimentFailed,
    ModelError,
    shown,
)
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inputs import as_key
from causal_bo_ppl.mechanisms.linear.priors import Prior
from causal_bo_ppl.optimization.experiments import Experiment, Laboratory
from causal_bo_ppl.optimization.rounds import Rounds, State
from causal_bo_ppl.optimization.run import Recommendation, Run, Unlearned
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.default_queries import vertices
from causal_bo_ppl.systems import CausalSystem

PATIENCE = 3.0  # seconds without a progress bar


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
    accept: str | None = None,
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
        Method of `fit`; by default "conjugate", or "wishart" where latent causes join causes of the target.
    prior:
        As of `fit`.
    accept:
        Why a posterior whose verdict failed is used all the same, as in `post.accept(why)`; by
        default such a posterior is refused. It is recorded with the run.

    Raises ExperimentFailed when an experiment fails or an outcome cannot be used. Whatever error escapes, also an
    interrupt, all that was finished is in its `run`; outcomes that were measured but not learned from are in
    `run.unlearned`. Of a batch with one bad outcome the others are learned from first.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=5, observations=50, key=0)
    >>> run.best.intervention, run.regret().tolist()[-1]
    ({'Z': 5.0}, 0.0)
    """
    settings = Settings(
        method, outcomes, noise, acquisition, beta, kernel, coupling, residual, update, report, observations, rounds,
        budget, batch, inference, accept,
    )  # fmt: skip
    system, posed = (
        (problem, problem.problem) if isinstance(problem, CausalSystem) else (None, problem)
    )
    if not isinstance(posed, Problem):
        raise DomainError(
            f"optimize needs a CausalSystem or a Problem, got {type(problem).__name__}"
        )
    for_rows, for_rounds = jax.random.split(as_key(key))
    for_fit = jax.random.fold_in(for_rows, 1)
    laboratory = Laboratory(posed, system, experiment, settings.known_noise)
    post, experiments = _learn(
        posed, _start(system, data, settings, for_rows), settings, prior, for_fit
    )
    candidates = vertices(posed, post.sets)
    loop = Rounds(candidates, posed.cost(candidates), laboratory, settings)
    state = begun = loop.begin(post, experiments)
    try:
        with tqdm(total=rounds, desc=method, unit="round", delay=PATIENCE, leave=False) as bar:
            for state in loop.play(begun, for_rounds):
                bar.update(0 if state.waiting else 1)
    except BaseException as error:  # whatever it is: what was paid for is kept
        if state.steps or state.waiting:
            _keep(
                error, finish(posed, settings, state, system, f"cut off by {type(error).__name__}")
            )
        raise
    if not state.steps:
        raise DomainError(
            f"the budget {budget} pays for no vertex of any set; the cheapest costs {loop.costs.min():g}"
        )
    return finish(posed, settings, state, system)


def finish(
    problem: Problem, settings: Settings, state: State, system: CausalSystem | None, why: str = ""
) -> Run:
    """Make the record of a run. why: what kept the trials that still wait from being learned from."""
    [intervention] = problem.interventions(state.best.query)
    unlearned = [
        Unlearned(
            each.round,
            problem.interventions(each.choice.query)[0],
            each.outcome,
            each.row,
            each.fault or why,
        )
        for each in state.waiting
    ]
    best = Recommendation(intervention, state.best.mean, state.best.sd)
    return Run(
        problem, asdict(settings), state.steps, state.surrogate, best, system, tuple(unlearned)
    )


def _keep(error: BaseException, run: Run) -> None:
    """Put the run into the error; an error that does not take it becomes the cause of one that does."""
    note = f"the {len(run.steps)} experiments before it are in this error's `run`"
    if run.unlearned:
        note += f", and in `run.unlearned` {len(run.unlearned)} outcomes that were measured but not learned from"
    try:
        error.run = run  # type: ignore[attr-defined]
        error.add_note(note)
    except Exception:  # it is somebody else's class
        raise ExperimentFailed(f"{shown(error)}; {note}", run) from error


def _start(
    system: CausalSystem | None, data: Data | None, settings: Settings, key: jax.Array
) -> Data:
    """The rows to begin with."""
    if system is not None and not system.is_affine:
        message = f"{system.name} is not linear; linear mechanisms are fitted to it"
        warnings.warn(message, CausalBOWarning, stacklevel=3)
    if data is not None:
        return data
    if system is None:
        raise DataError("a problem has no rows of its own: give `data`, or optimize a CausalSystem")
    return system.observe(settings.observations, key)


def _learn(
    problem: Problem, data: Data, settings: Settings, prior: Prior | None, key: jax.Array
) -> tuple[Posterior, Data]:
    """The posterior, and rows of earlier experiments that it did not use."""
    confounded = bool(problem.graph.ancestral(problem.target).bidirected)
    method = settings.inference or ("wishart" if confounded else "conjugate")
    if method != "wishart":
        return fit(problem, data, method=method, prior=prior, key=key), data.rows(slice(0, 0))
    if settings.update == "full":
        raise ModelError(
            'latent causes join causes of the target, so whole rows of experiments cannot be used; take update="target"'
        )
    observed = data.rows(data.is_observational)
    return fit(problem, observed, method=method, prior=prior), data.rows(~data.is_observational)
