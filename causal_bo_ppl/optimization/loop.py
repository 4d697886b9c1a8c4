"""Graph-coupled causal Bayesian optimization, Algorithm 1 of the paper: a loop over ask and tell.

Each round: choose the intervention that is worth most over all sets at once, run it, learn from its
outcome about every effect, and linearize again where theta has moved to.
"""

import warnings
from collections.abc import Callable
from typing import Any

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
from causal_bo_ppl.inputs import PATIENCE, as_key
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.optimization.beginnings import begin_from_rows, find_versions
from causal_bo_ppl.optimization.experiments import Experiment, ExperimentRunner
from causal_bo_ppl.optimization.rounds import Loop, Progress
from causal_bo_ppl.optimization.run import Run
from causal_bo_ppl.optimization.settings import Observe, Settings, Stop
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.systems import CausalSystem


def optimize(
    problem: CausalSystem | Problem,
    *,
    method: str = "gc-cbo",
    mechanisms: Any = "linear",
    data: Data | None = None,
    experiment: Experiment | None = None,
    outcomes: str = "noisy",
    noise: float | None = None,
    acquisition: Any = None,
    beta: Any = None,
    kernel: str | None = None,
    coupling: bool | None = None,
    residual: bool | str = "auto",
    update: str = "auto",
    report: str = "mean",
    observations: int = 100,
    rounds: int | None = None,
    budget: float | None = None,
    batch: int = 1,
    inference: Any = None,
    prior: Any = None,
    surrogate: Any = None,
    accept: str | None = None,
    observe: Observe | None = None,
    stop: Stop | None = None,
    settings: Settings | None = None,
    callback: Callable[[Run], object] | None = None,
    resume: Run | None = None,
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
        "gc-cbo", the coupled surrogate. Its variants are "gc-cbo-ei" (expected improvement),
        "gc-cbo-nocoupling" (coupling=False) and "gc-cbo-fixed" (kernel="fixed"). The baselines are
        "cbo" (a Gaussian process for every set, with the effect that the rows imply as its prior
        mean), "cbo-noprior" (without that mean) and "bo" (one process over all manipulable
        variables), each with log expected improvement per unit of cost.
    mechanisms, prior:
        As in `fit`: "linear", "gp", "auto", `cb.GP(...)`, a dictionary by variable of these and of
        NumPyro functions, a NumPyro program, or a family of your own, with a prior of that family.
    data, observations:
        Rows to start from; of a system, how many to observe where none are given.
    experiment:
        From Queries to Data or to one outcome for each; a system is simulated without it.
    outcomes, noise:
        "noisy" or "exact" (the effect itself). `noise` is the variance of an outcome; by default
        what the model implies for each set. A simulated system with a given `noise` returns its
        exact effect plus that noise.
    acquisition, beta:
        "ucb", the confidence bound mean +- sqrt(beta) sd, where beta is a number, "schedule" or
        `cb.BetaSchedule(delta)`, by default 2, or 9 where effects bend and outcomes are noisy. With
        exact outcomes beta grows where no bound beats the best of them, and where effects bend, in
        every second round, until some bound beats it by 2 % of their range. "ucb-regret-safe",
        "ucb-pointwise", "ei", "log-ei", "thompson", "look-ahead"; `cb.PerCost(...)` or
        `cb.CostSubtracted(...)` of these; or a record of your own, see
        `optimization.interface.Acquisition`.
    kernel:
        "adaptive" (the response is linearized anew after each round) or "fixed".
    coupling:
        Whether an outcome of one set teaches about others.
    residual:
        Whether every set has a smooth function of its own, added to the effect that the mechanisms
        imply. "auto": as soon as the outcomes favour it by a Bayes factor above 20; from then on
        all outcomes are told to the surrogate; from the first outcome on where the rows contradict
        an independence that the graph implies. `run.trace["residual"]` shows when.
    update:
        "target": only the outcome is used. "full": the whole row enters the posterior of every
        equation not set. "auto": whole rows where the experiment gives them and the method can
        learn from them. With mechanisms="gp" hyperparameters are fitted again with every row that
        enters. A noisy outcome of an intervention on all causes of the target is a row of its
        mechanism, whatever `update` says; other outcomes alone, and exact ones, move the
        coefficients, with hyperparameters as the rows left them.
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
        "coupled", "independent", "independent-noprior", "plain", or a record of your own, see
        `surrogates.SurrogateMaker`.
    accept:
        Why a posterior whose verdict failed is used all the same, as in `post.accept(why)`; by
        default such a posterior is refused. It is recorded with the run.
    observe:
        `cb.Observe(...)`: when a round observes rows instead of running an experiment.
    stop:
        `cb.Stop(gain)`: the run ends when no experiment is worth its cost.
    settings:
        The keywords above, other than `data` and `experiment`, as one record instead.
    callback:
        A function that is called with the run so far after every round; it ends when that returns
        something true.
    resume:
        An earlier run, with the same settings (other than `rounds` and `budget`), rows and key,
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

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=5, observations=50, key=0)
    >>> run.best.intervention, run.regret().tolist()[-1]
    ({'Z': 5.0}, 0.0)
    """
    keywords = Settings(
        method, mechanisms, outcomes, noise, acquisition, beta, kernel, coupling, residual, update,
        report, observations, rounds, budget, batch, inference, prior, surrogate, accept, observe,
        stop,
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
    start, checks = begin_from_rows(posed, rows, chosen, for_rows, stacklevel=2)
    loop = Loop(runner, chosen, system, given, rows, find_versions(), checks, callback)
    progressed = begun = Progress(start, ()) if resume is None else loop.replay(start, resume)
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


def _read_settings(settings: object, keywords: Settings) -> Settings:
    if not isinstance(settings, Settings):
        raise ModelError(f"settings must be cb.Settings(...), got {settings!r}")
    if keywords != Settings():
        raise ModelError("give `settings`, or the keywords that it holds, not both")
    return settings


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
