"""How does an optimization run (Algorithm 1), what did it do, and what does it recommend?

`optimize` asks a study, runs what it suggests, by simulation or by a user-defined experiment,
writes what came back into the study's log, and lets it learn, round after round. Whatever is
raised, the log holds all that was measured before. A `Run` is that study: views of its log.
"""

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from causal_bo_ppl.checks import FAILED, Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import match_rows, read_data, require_data_of
from causal_bo_ppl.data.observations import FAILED_EXPERIMENT, OBSERVED, Observations
from causal_bo_ppl.diagnostics import check_extrapolation
from causal_bo_ppl.diagnostics.sequential import Surprise
from causal_bo_ppl.effect_estimates.table import effects
from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOError,
    DataError,
    DomainError,
    ExperimentFailed,
    ModelError,
    ObservationError,
    SettingsError,
    shown,
    warn_caller,
)
from causal_bo_ppl.inputs import PROGRESS_DELAY, as_key, read_returned, write_key
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import AveragedMap
from causal_bo_ppl.optimization.acquisition import fixed_beta
from causal_bo_ppl.optimization.choosing import Suggestion, Suggestions
from causal_bo_ppl.optimization.settings import Settings, read_settings
from causal_bo_ppl.optimization.state import (
    CHOICE_WARNING,
    Recommendation,
    State,
    recommend,
)
from causal_bo_ppl.optimization.study import Study, count_rounds
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import (
    Interventions,
    read_interventions,
    set_label,
    show,
    stack,
    to_mappings,
)
from causal_bo_ppl.serialization import find_versions
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.systems import CausalSystem
from causal_bo_ppl.theory.regret import RegretPath, RegretRound

OUTCOME_ERRORS = (CausalBOError, ArithmeticError, np.linalg.LinAlgError)  # caused by an outcome
MOST_ROUNDS_ALWAYS_CHECKED = 100  # up to here a run looks for warnings after every round
Experiment = Callable[[Queries], "Data | np.ndarray | float"]
Read = tuple[np.ndarray, np.ndarray, tuple[str, ...]]  # outcomes, values of all variables, faults


@dataclass(frozen=True, eq=False)
class Run:
    """An optimization, finished or cut off: a study, and the system where the truth is known.

    study: after all experiments; it can be continued and written as JSON. system: the truth, where
    it is known. asked: the suggestions that were run, without the computation of `why`. stopped:
    why it ended, empty before that.
    """

    study: Study
    system: CausalSystem | None = None
    asked: tuple[Suggestion, ...] = ()
    stopped: str = ""

    def record(self, asked: Sequence[Suggestion], came_back: Observations) -> "Run":
        """Return the run with what came back of some suggestions in its log."""
        study = self.study.with_log(self.study.observations.join(came_back))
        return replace(self, study=study, asked=(*self.asked, *asked))

    @property
    def problem(self) -> Problem:
        """What was optimized."""
        return self.study.problem

    @property
    def settings(self) -> Settings:
        """How it was optimized."""
        return self.study.settings

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate in the end; `surrogate.predict(queries)` for any effect."""
        return self.study.surrogate

    @property
    def best(self) -> Recommendation:
        """What is recommended; without any experiment learned from, by the model alone."""
        return self.study.best

    @property
    def checks(self) -> tuple[Check, ...]:
        """What was checked before the first experiment."""
        return self.study.checks

    @property
    def surprise(self) -> Surprise:
        """Whether the outcomes agree with what the mechanisms predicted for them."""
        return self.study.surprise

    @property
    def unlearned(self) -> Observations:
        """Outcomes that were measured but not learned from; their `note` is the reason."""
        log = self.study.observations
        was_run = np.isin(log.number, [each.number for each in self.asked])
        came_back = was_run | ~np.isnan(log.outcome)
        return log.select((log.status == FAILED_EXPERIMENT) & came_back)

    @cached_property
    def log(self) -> Observations:
        """What was learned from, in the order in which it counts."""
        return self.study.observations.in_order

    @cached_property
    def experiments(self) -> Observations:
        """The experiments that were learned from, without passive observations."""
        return self.log.select(~self.log.is_passive)

    def __len__(self) -> int:
        """The number of experiments that were learned from."""
        return len(self.experiments)

    def __bool__(self) -> bool:
        return True

    @property
    def queries(self) -> Queries:
        """The interventions tried, in order."""
        return self.experiments.queries

    @cached_property
    def rounds(self) -> np.ndarray:
        """The number of the round of every row of the log, from 1, (t,)."""
        return 1 + count_rounds(self.log, self.settings)[:-1]

    @cached_property
    def recommended(self) -> list[tuple[Recommendation, float]]:
        """What was recommended after the round of each experiment, with the discrepancy then."""
        states, rounds = self.study.states, self.rounds[~self.log.is_passive].tolist()
        found = {
            number: states.number("recommended", self.log.select(self.rounds <= number), recommend)
            for number in dict.fromkeys(rounds)
        }
        return [found[number] for number in rounds]

    def effects(
        self,
        interventions: Queries | Interventions,
        *,
        against: Queries | Interventions | None = None,
        level: float = 0.9,
    ) -> pd.DataFrame:
        """Return E[Y | do(...)] of some interventions in the end; see `cb.effects`."""
        return effects(self, interventions, against=against, level=level)

    @cached_property
    def extrapolation(self) -> Check | None:
        """Whether the recommendation lies beyond the data of the mechanisms; None where unknown."""
        post, best = self.surrogate.post, self.best
        if not isinstance(post.distribution.response, AveragedMap) or not best.intervention:
            return None
        check = check_extrapolation(post, self.problem.queries([best.intervention]))
        if check.verdict != FAILED or not best.outcomes:
            return check
        advice = (
            f"It has {best.outcomes} outcome{'' if best.outcomes == 1 else 's'}: rely on what "
            "came out there rather than on the mechanisms."
        )
        return replace(check, advice=advice)

    @cached_property
    def trace(self) -> xr.Dataset:
        """A row for every experiment: what was set, predicted and measured, and the best so far.

        `mean` and `sd` are of the effect when the experiment was chosen, `bound` its acquisition
        value, NaN where the run does not know how it was chosen. `best_*` is what was recommended
        after its round.
        """
        tried, is_active = self.experiments, ~self.log.is_passive
        asked = {each.number: each for each in self.asked}
        columns: dict[str, Any] = {"round": self.rounds[is_active]}
        found = [
            self._when_chosen(asked.get(int(self.log.number[row])), row)
            for row in np.flatnonzero(is_active).tolist()
        ]
        for index, name in enumerate(("mean", "sd", "bound", "noise")):
            columns[name] = np.array([each[index] for each in found], float)
        columns["cost"], columns["outcome"] = tried.cost, tried.outcome
        after = self.recommended
        best = read_interventions(self.problem, [each.intervention for each, _ in after])
        columns["best_mean"] = np.array([each.mean for each, _ in after], float)
        columns["best_sd"] = np.array([each.sd for each, _ in after], float)
        columns["discrepancy"] = np.array([amplitude for _, amplitude in after], float)
        columns["set"] = np.array([set_label(tuple(each)) for each in tried.settings()], object)
        columns["total_cost"] = np.cumsum(self.log.cost)[is_active]
        columns["why"] = np.array([each[-1] for each in found], object)
        if self.system is not None:
            columns["effect"] = np.full(len(tried), np.nan)  # what is out of domain has no truth
            inside = ~tried.is_out_of_domain
            columns["effect"][inside] = np.asarray(self.system.effect(self.queries[inside]))
            columns["best_effect"] = np.asarray(self.system.effect(best))
        names = [self.problem.graph.index(name) for name in self.problem.manipulable]
        values = {
            name: (("experiment", "variable"), np.where(of.mask, of.value, np.nan)[:, names])
            for name, of in (("value", self.queries), ("best_value", best))
        }
        variables = values | {name: ("experiment", column) for name, column in columns.items()}
        experiments, manipulable = np.arange(1, len(tried) + 1), list(self.problem.manipulable)
        coords = {"experiment": experiments, "variable": manipulable}
        return xr.Dataset(variables, coords, self._attributes())

    def _when_chosen(
        self, suggestion: Suggestion | None, row: int
    ) -> tuple[float, float, float, float, str]:
        """Return mean, sd, bound and noise of an experiment when it was chosen, and how it was."""
        if suggestion is not None:
            found = suggestion.mean, suggestion.sd, suggestion.bound, suggestion.noise
            return *found, suggestion.how
        query = self.log.queries[row]

        def predict(state: State) -> tuple[float, float, float]:
            state = state.for_rows(self.log.select([row]))
            mean, sd = state.surrogate.predict(query)
            return float(mean[0]), float(sd[0]), float(state.noises(query)[0])

        before = self.log.select(self.rounds < self.rounds[row])
        name = ("predict", self.log.hashes[row])
        mean, sd, noise = self.study.states.number(name, before, predict)
        return mean, sd, np.nan, noise, ""

    def to_frame(self) -> pd.DataFrame:
        """Return the trace as a table, with a column do(X) for every manipulable variable."""
        values = pd.DataFrame(
            self.trace["value"].to_numpy(),
            columns=[f"do({name})" for name in self.problem.manipulable],
            index=pd.Index(np.arange(1, len(self) + 1), name="experiment"),
        )
        rest = self.trace.drop_dims("variable").to_dataframe()
        first = ["round", "set"]
        return pd.concat([rest[first], values, rest.drop(columns=first)], axis=1)

    def _attributes(self) -> dict[str, str]:
        """Return what the run depends on, as texts."""
        words = {each.name: str(getattr(self.settings, each.name)) for each in fields(Settings)}
        return words | {
            "name": self.settings.name,
            "key": " ".join(str(word) for word in np.ravel(jax.random.key_data(self.study.key))),
            "versions": ", ".join(f"{name} {version}" for name, version in find_versions()),
            "data_digest": self.study.data_digest,
            "verdict": self.surrogate.post.status,
        }

    def retrace(self) -> Iterator[RegretRound]:
        """Yield what was known before every round with some observation, and after the last one."""
        beta, is_exact = getattr(self.settings.rule, "beta", np.nan), self.settings.noise == 0
        last = int(self.rounds.max(initial=0)) + 1
        for number in np.unique([*self.rounds, last]).tolist():
            state = self.study.states.after(self.log.select(self.rounds < number))

            def beta_of(experiment: int, state: State = state) -> float:
                if isinstance(beta, float) and np.isnan(beta):
                    return beta
                context = replace(state.context(by_model=True), round=experiment, exact=is_exact)
                return fixed_beta(beta, context)

            yield RegretRound(number, state.posterior, state.surrogate, state.noises, beta_of)

    def regret(self, of: str = "recommended") -> np.ndarray:
        """Return the simple regret after each experiment: the gap to the true optimum, at least 0.

        Parameters
        ----------
        of:
            "recommended": of what was recommended after the round of each experiment. "tried": of
            the best that was tried so far, by true effects; only an oracle knows which that is.

        Returns
        -------
        array

        Raises
        ------
        ModelError
            If the truth is not known.
        ArgumentError
            If `of` is something else.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=50, key=0)
        >>> run.regret("tried").shape
        (2,)
        """
        if self.system is None:
            raise ModelError("regret needs the truth: optimize a CausalSystem, not a Problem")
        if of not in ("recommended", "tried"):
            raise ArgumentError(f'regret is of what was "recommended" or "tried"; got {of!r}')
        sign = 1.0 if self.problem.objective == "min" else -1.0
        effects = self.trace["best_effect" if of == "recommended" else "effect"].to_numpy()
        gaps = np.maximum(sign * (effects - self.system.optimum.value), 0.0)
        return np.asarray(gaps if of == "recommended" else np.fmin.accumulate(gaps))

    def regret_path(self) -> RegretPath:
        """Return the experiments, and what was known before each, for `decompose_regret`."""
        start, rule = self.study.start, self.settings.rule
        known = self.problem, self.system, start.post, start.candidates.queries, self.retrace()
        return RegretPath(*known, self.queries, self.trace, rule)

    def __repr__(self) -> str:
        try:
            self.study.state  # noqa: B018
        except CausalBOError as error:  # cut off before an outcome was refused
            return f"Run({self.settings.name}; not learned from yet: {error})"
        count = len(self.unlearned)
        rest = f", {count} outcomes not learned from" if count else ""
        if self.extrapolation is not None and self.extrapolation.verdict == FAILED:
            rest += ", beyond the data of the mechanisms"
        best = f"best {self.best.text}{rest}"
        return f"Run({self.settings.name}, {len(self)} experiments, {best})"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(max_rows=60, float_format="{:.4g}".format, na_rep="")
        texts, check = [repr(self), CHOICE_WARNING], self.extrapolation
        if check is not None and check.verdict == FAILED:
            texts.append(f"{check.text} {check.advice}")
        return "".join(f"<p>{html.escape(text)}</p>" for text in texts) + table


def optimize(
    system_or_problem: CausalSystem | Problem,
    settings: Settings | str | None = None,
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
        `cb.Settings(...)`, the default, or the name of a preset; see `Settings.preset`.
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
        interrupt, all that was measured is in its `run`, whose study can be continued; outcomes
        that cannot be used are in `run.unlearned`.
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
    if resume is not None and not isinstance(resume, Run):
        raise ArgumentError(f"resume continues a Run, got {type(resume).__name__}")
    if callback is not None and not callable(callback):
        raise ArgumentError(f"callback is a function of the run so far, got {callback!r}")
    if chosen.rounds is None and chosen.budget is None:
        raise SettingsError("an optimization needs an end: give rounds, budget, or both")
    system = system_or_problem if isinstance(system_or_problem, CausalSystem) else None
    problem = system_or_problem if system is None else system.problem
    if not isinstance(problem, Problem):
        raise DomainError(
            f"optimize needs a CausalSystem or a Problem, got {type(problem).__name__}"
        )
    run_key, runner = as_key(key), ExperimentRunner(problem, system, experiment, chosen.noise)
    begun_with = _find_data(runner, data, chosen, jax.random.split(run_key)[0])
    if resume is None:
        run = Run(Study(problem, begun_with, chosen, key=run_key), system)
    else:
        run = _learn(_continue(resume, begun_with, chosen, run_key, system_or_problem), 0)
    checked = run.study
    look = {"unit": "round", "delay": PROGRESS_DELAY, "leave": False, "disable": not progress}
    try:
        with tqdm(total=chosen.rounds, desc=chosen.name, initial=run.study.rounds, **look) as bar:
            while not run.stopped:
                before = run.study
                asked, why = _ask(before)
                if why:
                    run = replace(run, stopped=why)
                    break
                came_back = runner.perform(before, asked)
                run = run.record(asked, came_back)  # in the log before it is learned from
                run = _learn(run, len(before.observations))
                refused = _find_refused(run, len(before.observations))
                if refused is None and callback is not None and callback(run):
                    why = f"the callback ended it after round {run.study.rounds}"
                    run = replace(run, stopped=why)
                if refused is not None or _is_due(run.study.rounds):
                    checked = run.study.warn_since(checked)
                if refused is not None:
                    raise refused
                bar.update()
        run.study.warn_since(checked)
    except BaseException as error:  # whatever it is: what was measured is kept
        if len(run.study.observations):
            _keep(error, replace(run, stopped=f"cut off by {type(error).__name__}"))
        raise
    if not len(run.study.observations) and not run.study.stopped:
        cheapest = run.study.start.candidates.costs.min()
        raise DomainError(
            f"the budget {chosen.budget} pays for no vertex of any set; the cheapest costs "
            f"{cheapest:g}"
        )
    return run


def _is_due(rounds: int) -> bool:
    """Return whether to look for warnings: after each of the first 100 rounds, then less often.

    A look costs time in proportion to the outcomes; so the time per round stays constant.
    """
    return rounds <= MOST_ROUNDS_ALWAYS_CHECKED or rounds % (rounds // 50) == 0


def _ask(study: Study) -> tuple[Suggestions, str]:
    """Return the experiments of the next round with their noise, or why there is none."""
    rounds, batch = study.settings.rounds, study.settings.batch
    if rounds is not None and study.rounds >= rounds:
        return Suggestions(), f"all {rounds} rounds were used"
    if study.stopped:
        return Suggestions(), study.stopped
    asked = study.suggest(batch - study.position)
    if not asked:
        return asked, "what is left of the budget pays for no experiment"
    queries, noises = stack(each.query for each in asked), np.full(len(asked), np.nan)
    if np.asarray(queries.mask).any():
        noises = study.state.noises(queries)
    pairs = zip(asked, noises.tolist(), strict=True)
    return Suggestions(replace(each, explain=None, noise=noise) for each, noise in pairs), ""


def _learn(run: Run, known: int) -> Run:
    """Learn from the rows that were recorded after the first `known` ones.

    From all at once; where one of them is refused, from one after another, and those that are
    refused have the status "failed", with the reason.
    """
    try:
        run.study.recommended  # noqa: B018  (the state and what it recommends)
        return run
    except OUTCOME_ERRORS:
        log = run.study.observations
    fresh = [row for row in np.flatnonzero(log.is_observed).tolist() if row >= known]
    for row in fresh:
        log = log.change(row, status=FAILED_EXPERIMENT, note="not learned from yet")
    for row in fresh:
        tried = run.study.with_log(log.change(row, status=OBSERVED, note=""))
        try:
            tried.recommended  # noqa: B018
            log = tried.observations
        except OUTCOME_ERRORS as error:
            log = log.change(row, note=str(error))
    return replace(run, study=run.study.with_log(log))


def _find_refused(run: Run, known: int) -> ExperimentFailed | None:
    """Return the error that names the outcomes refused since, and why the first of them was."""
    log = run.study.observations.select(slice(known, None))
    refused = log.select(log.status == FAILED_EXPERIMENT)
    if not len(refused):
        return None
    others = len(log) - len(refused)
    rest = f" (the other {others} of the round were learned from)" if others else ""
    number = run.study.rounds + (others < run.settings.batch)
    error = ExperimentFailed(
        f"{_describe(run.study, refused.queries, number)}, came out as {refused.outcome.tolist()}, "
        f"but cannot be used: {refused.note[0]}{rest}"
    )
    error.__cause__ = DataError(str(refused.note[0]))
    return error


def _describe(study: Study, queries: Queries, number: int) -> str:
    """Return the round and its interventions, for a message."""
    asked = to_mappings(queries, study.problem.graph.nodes)
    return f"round {number}, {'; '.join(show(each, 9) for each in asked)}"


def _keep(error: BaseException, run: Run) -> None:
    """Attach the run to the error; one that does not take it becomes the cause of one that does."""
    note = f"the {len(run)} experiments before it are in this error's `run`"
    if len(run.unlearned):
        note += (
            f", and in `run.unlearned` {len(run.unlearned)} outcomes that were measured but not "
            "learned from"
        )
    try:
        error.run = run  # type: ignore[attr-defined]
        error.add_note(note)
    except Exception:  # the class of the error is user-defined
        raise ExperimentFailed(f"{shown(error)}; {note}", run) from error


def _continue(
    run: Run, data: Data, settings: Settings, key: jax.Array, of: CausalSystem | Problem
) -> Run:
    """Return the run from which to go on; refuse one of something else."""
    study, system = run.study, of if isinstance(of, CausalSystem) else None
    problem = of if system is None else system.problem
    if study.problem != problem or write_key(study.key) != write_key(key):
        raise ArgumentError("resume continues a run of the same problem with the same key")
    one, other = (replace(each, rounds=None, budget=None) for each in (study.settings, settings))
    if one != other:
        raise ArgumentError(
            "resume continues a run with the same settings; only rounds and budget may differ"
        )
    if study.data_digest != data.fingerprint:
        raise DataError("the run to resume began with other data; give the same `data`")
    return Run(study.with_limits(settings), system, run.asked)


def _find_data(
    runner: "ExperimentRunner", data: Data | pd.DataFrame | None, settings: Settings, key: jax.Array
) -> Data:
    """Return the observations to begin with."""
    family, system = read_mechanisms(settings.mechanisms), runner.system
    if system is not None and not system.is_affine and getattr(family, "is_linear", False):
        warn_caller([f"{system.name} is not linear; {family.name} mechanisms are fitted to it"])
    if data is not None:
        return read_data(runner.problem, data)
    if system is None:
        raise DataError("a problem has no observations: give `data`, or optimize a CausalSystem")
    return system.observe(settings.observations, key)


@dataclass(frozen=True, eq=False)
class ExperimentRunner:
    """Run experiments, and read what they return.

    experiment: from Queries to Data (all variables) or to one outcome for each; without it the
    system is simulated, with its noise or with Gaussian noise of a given variance.
    """

    problem: Problem
    system: CausalSystem | None
    experiment: Experiment | None
    noise: float | None

    def __post_init__(self) -> None:
        is_simulated = self.experiment is None and self.system is not None
        if not is_simulated and not callable(self.experiment):
            raise ArgumentError(
                "give `experiment`: a problem cannot be simulated, and its experiment must be a "
                f"function from Queries to outcomes, got {self.experiment!r}"
            )

    def perform(self, study: Study, asked: Suggestions) -> Observations:
        """Run what a study suggested; outcomes that cannot be used have the status "failed"."""
        nodes, target, number = self.problem.graph.nodes, self.problem.target, study.rounds + 1
        key, discarded = study.round_key(number), int((~study.observations.is_observed).sum())
        if discarded:  # what is run again is drawn anew
            key = jax.random.fold_in(jax.random.fold_in(key, 3), discarded)
        count = 0 if asked[0].intervention else asked[0].observations
        if count:
            queries, key = self.problem.baseline().repeat(count), jax.random.fold_in(key, 2)
            where = f"round {number}, {count} observations"
        else:
            queries = stack(each.query for each in asked)
            where = _describe(study, queries, number)
        try:
            returned = self.run(queries, key, study.position)
        except Exception as error:  # user-defined code may raise anything
            raise ExperimentFailed(f"{where}, failed: {shown(error)}") from error
        try:
            read = self.read_observations if count else self.read
            outcomes, measured, faults = read(returned, queries)
        except BaseException as error:  # and so may the object that it returned
            if not isinstance(error, Exception):  # an interrupt: what came out is kept with it
                error.returned = returned  # type: ignore[attr-defined]
                raise
            why = str(error) if isinstance(error, CausalBOError) else shown(error)
            message = f"{where}, came out, but cannot be {'used' if count else 'read'}: {why}"
            raise ExperimentFailed(message, returned=returned) from error
        if study.settings.learn_from == "rows" and np.isnan(measured).all():
            why = 'learn_from="rows" needs whole observations: let the experiment return Data'
            faults = tuple(fault or why for fault in faults)
        return Observations.of(
            nodes, target, queries, outcome=outcomes, measured=measured,
            cost=np.resize([each.cost / each.observations for each in asked], len(queries)),
            number=np.resize([each.number for each in asked], len(queries)),
            status=[FAILED_EXPERIMENT if fault else OBSERVED for fault in faults],
            note=list(faults),
        )  # fmt: skip

    def run(self, queries: Queries, key: jax.Array, position: int = 0) -> object:
        """Run one experiment for each intervention, on a copy; return whatever it gives.

        position: how many experiments of the round were run before, whose draws are not made again.
        """
        asked = Queries(np.array(queries.mask), np.array(queries.value))
        if not position or self.experiment is not None:
            return self._perform(asked, key)
        whole: Any = self._perform(stack([asked[:1].repeat(position), asked]), key)
        rest = slice(position, None)
        return whole.select(rest) if isinstance(whole, Data) else whole[rest]

    def read_observations(self, returned: object, queries: Queries) -> Read:
        """Read as many observations as were asked for, in which nothing was set; see `read`."""
        if not isinstance(returned, Data):
            raise ObservationError(
                "to observe, the experiment is asked to set nothing and must return Data, the "
                f"values of all variables; it returned {type(returned).__name__}"
            )
        require_data_of(self.problem, returned)
        if len(returned) != len(queries) or not returned.is_observational.all():
            raise ObservationError(
                f"{len(queries)} rows are needed in which nothing was set; it returned "
                f"{len(returned)}, {int((~returned.is_observational).sum())} of them set"
            )
        return returned.outcomes, returned.values, ("",) * len(queries)

    def read(self, returned: object, queries: Queries) -> Read:
        """Read what `run` returned for M interventions.

        Returns the outcomes (M,), the values of all variables (M, p), NaN where they were not
        measured, and for each outcome why it cannot be used, "" where it can. Raises
        ObservationError or DataError if nothing can be read.
        """
        if isinstance(returned, Data):
            require_data_of(self.problem, returned)
            rows, faults = match_rows(returned, queries, self.problem)
            return rows.outcomes, rows.values, faults
        outcomes = read_returned(returned)
        if outcomes.shape != (len(queries),) or outcomes.dtype.kind not in "iuf":
            raise ObservationError(
                f"the experiment returned {outcomes.dtype} of shape {outcomes.shape} for "
                f"{len(queries)} interventions; return one number for each, or Data"
            )
        tried = to_mappings(queries, self.problem.graph.nodes)
        pairs = zip(tried, np.isfinite(outcomes), strict=True)
        faults = tuple(
            "" if is_finite else f"the outcome of {intervention} is not finite; run it again"
            for intervention, is_finite in pairs
        )
        return outcomes.astype(float), np.full(np.shape(queries.mask), np.nan), faults

    def _perform(self, queries: Queries, key: jax.Array) -> "Data | np.ndarray | float":
        if self.experiment is not None:
            return self.experiment(queries)
        assert self.system is not None  # noqa: S101  (checked above; for the type checker)
        if not np.asarray(queries.mask).any():
            return self.system.observe(len(queries), key)
        if self.noise is None:
            return self.system.experiment(queries, key)
        draws = np.asarray(jax.random.normal(key, (len(queries),)))
        return np.asarray(self.system.effect(queries) + np.sqrt(self.noise) * draws)
