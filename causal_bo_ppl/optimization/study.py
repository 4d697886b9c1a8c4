"""What should I try next? A study suggests experiments and records their outcomes.

A study is immutable: problem, data, settings, a key and a log of observations. Everything that it
answers is a function of these, so that neither the order nor the grouping in which outcomes were
reported matters to what it infers. Each round has a key, and its number follows from the count of
outcomes, so that asking changes nothing. `optimize` is a loop over `ask` and the log.

As a JSON text it holds the problem, the settings, the key, a digest of the data it began with, and
the log; posterior and surrogate follow from these. A checksum guards against accidents.
"""

import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import read_data
from causal_bo_ppl.data.observations import (
    FAILED_EXPERIMENT,
    RETRACTED,
    Observations,
)
from causal_bo_ppl.diagnostics.sequential import Surprise
from causal_bo_ppl.effect_estimates.table import effects
from causal_bo_ppl.errors import (
    ArgumentError,
    DataError,
    DomainError,
    ObservationError,
    SettingsError,
    warn_caller,
)
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, read_count, read_key, read_list, require_float64, write_key
from causal_bo_ppl.optimization import ingest
from causal_bo_ppl.optimization.acquisition import acquisition_values
from causal_bo_ppl.optimization.choosing import (
    Reasons,
    Suggestion,
    Suggestions,
    best_gain,
    choose,
    explain,
    observes,
)
from causal_bo_ppl.optimization.ingest import Report
from causal_bo_ppl.optimization.maximize import Found
from causal_bo_ppl.optimization.settings import Settings, read_settings
from causal_bo_ppl.optimization.state import (
    CHOICE_WARNING,
    Predicted,
    Recommendation,
    Start,
    State,
    States,
    begin_from_data,
    can_update,
    expect_effort,
    find_warnings,
    predict_log,
    recall_predictions,
    recommend,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import (
    Interventions,
    read_interventions,
    stack,
    to_mappings,
)
from causal_bo_ppl.serialization import read_document, write_document
from causal_bo_ppl.surrogates import Surrogate

FORMAT_VERSION = 4  # of the JSON text
Outcome = float | Iterable[float] | Mapping[str, float] | Data | pd.DataFrame | None
What = Suggestion | Suggestions | Queries | Interventions | Data | pd.DataFrame
Fixed = Mapping[str, float] | None


class Study:
    """Experiments that are suggested and reported one by one; immutable.

    Parameters
    ----------
    problem:
        What may be set, and what is to be improved.
    data:
        The observations there are: Data, or a pandas DataFrame with a column for every variable.
        Earlier experiments belong here too, with columns `do(X)`.
    settings:
        `cb.Settings(...)` or the name of a preset; `rounds` and `observations` do not matter here.
        A study does not end by itself: with `stop` it reports in `stopped` that it would end.
    key:
        For all that is drawn: a JAX key or an int.

    Raises
    ------
    ArgumentError
        If the problem is not a Problem.
    SettingsError
        If the settings are not Settings, or ask for what the mechanisms cannot do.
    DataError
        If the data cannot be used for this problem.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> study = cb.Study(system.problem, system.observe(50, 0), key=0)
    >>> suggestion = study.ask()
    >>> suggestion.intervention
    {'Z': 5.0}
    >>> study = study.tell(suggestion, -6.1)
    >>> study = study.tell({"X": 5.0}, [-5.0, -5.4])
    >>> study  # doctest: +NORMALIZE_WHITESPACE
    Study(min Y, 3 outcomes; best do(Z = 5): -7.045, 90 % in [-7.813, -6.277],
          not adjusted for being chosen)
    """

    problem: Problem
    data: Data
    settings: Settings
    key: jax.Array
    observations: Observations
    start: Start
    states: States
    fingerprint: str
    data_digest: str
    given: str
    _for_rounds: jax.Array

    def __init__(
        self,
        problem: Problem,
        data: Data | pd.DataFrame,
        settings: Settings | str | None = None,
        *,
        key: jax.Array | int,
    ) -> None:
        if not isinstance(problem, Problem):
            raise ArgumentError(
                f"a study needs a Problem, got {type(problem).__name__}; of a system take its "
                ".problem"
            )
        given, chosen = as_key(key), read_settings("gc-cbo" if settings is None else settings)
        checked = read_data(problem, data)
        if effort := expect_effort(problem, checked, chosen):
            warn_caller([effort])
        self.__dict__.update(self._begin(problem, checked, chosen, given))
        self.warn_since(None)

    @classmethod
    def from_posterior(
        cls, post: Posterior, settings: Settings | str | None = None, *, key: jax.Array | int
    ) -> "Study":
        """Begin a study with a posterior, such as one of your own sampler.

        Parameters
        ----------
        post:
            A posterior whose verdict did not fail, or that was accepted. One that was made of given
            draws cannot be updated by whole rows, so that the outcomes alone are learned from.
        settings:
            As for a study that begins with data, without mechanisms, prior and inference.
        key:
            For all that is drawn: a JAX key or an int.

        Returns
        -------
        Study

        Raises
        ------
        ArgumentError
            If this is not a posterior.
        PosteriorError
            If its verdict failed and it was not accepted.
        SettingsError
            If the settings name mechanisms, a prior or a method of inference, or ask for what the
            posterior cannot do.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(50, 0), method="laplace")
        >>> cb.Study.from_posterior(post, key=0).ask().intervention
        {'Z': 5.0}
        """
        given, chosen = as_key(key), read_settings("gc-cbo" if settings is None else settings)
        require_trusted(post)
        usual = Settings()
        for name in ("mechanisms", "inference", "prior"):
            if getattr(chosen, name) != getattr(usual, name):
                raise SettingsError(
                    f"the posterior has its {name} already; omit {name}={getattr(chosen, name)!r}"
                )
        if chosen.learn_from == "rows" and not can_update(post):
            raise SettingsError(
                f"a posterior by {post.method} cannot be updated by whole rows; take "
                'learn_from="auto", which then learns from the outcomes'
            )
        return cls._of(cls._begin(post.problem, post.data, chosen, given, post)).warn_since(None)

    @staticmethod
    def _begin(
        problem: Problem,
        data: Data,
        settings: Settings,
        key: jax.Array,
        post: Posterior | None = None,
    ) -> dict[str, Any]:
        """Fit the data, and return what a study is made of; nothing is warned of."""
        for_data, for_rounds = jax.random.split(key)
        start = begin_from_data(problem, data, settings, for_data, post)
        digest, nothing = data.fingerprint, Observations.of(problem.graph.nodes, problem.target)
        prior, given = settings.prior, "" if post is None else post.fingerprint
        parts = [
            problem.fingerprint,
            digest,
            replace(settings, prior=None, rounds=None, budget=None).to_json(),
            "" if prior is None else str(prior.canonical()),  # a user-defined one is not written
            str(write_key(key)),
            *filter(None, [given]),
        ]
        fingerprint = hashlib.sha256("|".join(parts).encode()).hexdigest()
        return {
            "problem": problem, "data": data, "settings": settings, "key": key, "start": start,
            "states": States(start), "observations": nothing, "fingerprint": fingerprint,
            "data_digest": digest, "given": given, "_for_rounds": for_rounds,
        }  # fmt: skip

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Study never changes; `study = study.tell(...)` makes a new one")

    @classmethod
    def _of(cls, attributes: Mapping[str, Any]) -> "Study":
        """Return a study that is made of these attributes, which were checked before."""
        study = object.__new__(cls)
        study.__dict__.update(attributes)
        return study

    def _with(self, **changes: Any) -> "Study":
        """Return the study with other values of some attributes."""
        return self._of({name: getattr(self, name) for name in Study.__annotations__} | changes)

    def with_limits(self, settings: Settings) -> "Study":
        """Return the study with the rounds and the budget of other settings."""
        limits: dict[str, Any] = {"rounds": settings.rounds, "budget": settings.budget}
        start = replace(self.start, settings=replace(self.start.settings, **limits))
        chosen = replace(self.settings, **limits)
        return self._with(settings=chosen, start=start, states=self.states.of_start(start))

    def with_log(self, observations: Observations) -> "Study":
        """Return the study with another log; nothing is learned from it yet."""
        return self._with(observations=observations)

    @cached_property
    def state(self) -> State:
        """The posterior and the surrogate, with what follows from them."""
        return self.states.after(self.observations)

    @property
    def posterior(self) -> Posterior:
        """The posterior of theta, updated by whole rows of experiments where these are used."""
        return self.state.posterior

    @property
    def surrogate(self) -> Surrogate:
        """The present model of every effect."""
        return self.state.surrogate

    @property
    def checks(self) -> tuple[Any, ...]:
        """What was checked before the first experiment."""
        return self.start.checks

    @property
    def spent(self) -> float:
        """The total cost of all experiments, those that failed or were retracted included."""
        return math.fsum(self.observations.cost.tolist())

    @cached_property
    def best(self) -> Recommendation:
        """The recommended intervention.

        Its `by` is "outcomes" where it is the best of those tried, and "model" before any outcome,
        where it is the best by the model; `tried` counts the outcomes of it.
        """
        return self.state.best

    @cached_property
    def predicted(self) -> Predicted:
        """What the mechanisms predicted for every outcome, given those that count before it."""
        return predict_log(self.states, self.observations)

    @cached_property
    def surprise(self) -> Surprise:
        """Whether the outcomes agree with what the mechanisms predicted for them.

        Outcomes of suggestions count in the order of the suggestions, others as they were reported.
        """
        queries = self.observations.queries[self.predicted.rows]
        return Surprise(self.state.problem, queries, self.predicted.arrays)

    @cached_property
    def findings(self) -> dict[str, str]:
        """What the study warns of, by kind."""
        return find_warnings(self.state, self.surprise, self.settings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the study warns of; each kind of warning is said once, when it first applies."""
        return tuple(self.findings.values())

    def warn_since(self, before: "Study | None") -> "Study":
        """Warn of what an earlier state of the study had not found; return the study itself."""
        findings, known = {} if before is self else self.findings, before.findings if before else ()
        if new := [text for kind, text in findings.items() if kind not in known]:
            warn_caller(new)
        return self

    @cached_property
    def stopped(self) -> str:
        """Why `Settings.stop` would end a run here; empty where it would not, or without a rule."""
        stop = self.settings.stop
        if stop is None:
            return ""
        sequence = self.observations.in_order
        gains: list[float] = []  # of the latest rounds, from the last one back
        ends = np.unique(count_rounds(sequence, self.settings), return_index=True)[1].tolist()
        if not self.position:  # observations that were not suggested are known at the last end
            ends[-1] = len(sequence)
        for count in reversed(ends[-stop.patience :]):
            gains.append(self.states.number("gain", sequence.select(slice(0, count)), best_gain))
            if not gains[-1] < stop.gain:
                return ""
        if len(gains) < stop.patience:
            return ""
        return (
            f"no experiment paid for its cost in {len(gains)} rounds: one more outcome would "
            f"improve the recommendation by {gains[0]:.3g} per unit of cost, less than "
            f"{stop.gain:g}"
        )

    @property
    def rounds(self) -> int:
        """The number of rounds that are finished: whole batches of outcomes and observations."""
        return int(count_rounds(self._learned, self.settings)[-1])

    @property
    def position(self) -> int:
        """How many experiments of the next round are known already."""
        return int((~self._learned.is_passive).sum()) % self.settings.batch

    @property
    def recommended(self) -> tuple[Recommendation, float]:
        """The best intervention, and the amplitude of the model discrepancy."""
        found: tuple[Recommendation, float]
        found = self.states.number("recommended", self.observations, recommend)
        return found

    @cached_property
    def _learned(self) -> Observations:
        """What was learned from, in the order in which it was reported."""
        return self.observations.select(self.observations.is_observed)

    def effects(
        self,
        interventions: Queries | Interventions,
        *,
        against: Queries | Interventions | None = None,
        level: float = 0.9,
    ) -> pd.DataFrame:
        """Return E[Y | do(...)] of some interventions, with intervals; see `cb.effects`.

        Parameters
        ----------
        interventions, against, level:
            What is set, what is subtracted where differences are wanted, and the probability of
            the central interval. `{}` sets nothing.

        Returns
        -------
        pd.DataFrame

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> study = cb.Study(system.problem, system.observe(50, 0), key=0)
        >>> study.effects({"Z": 5.0}, against={"Z": 0.0})["mean"].round(1).tolist()
        [-7.4]
        """
        return effects(self, interventions, against=against, level=level)

    @overload
    def ask(self, n: None = None, *, pending: object = (), fixed: Fixed = None) -> Suggestion: ...

    @overload
    def ask(self, n: int, *, pending: object = (), fixed: Fixed = None) -> Suggestions: ...

    def ask(
        self, n: int | None = None, *, pending: object = (), fixed: Fixed = None
    ) -> Suggestion | Suggestions:
        """Return the next experiments; asking changes nothing.

        Parameters
        ----------
        n:
            How many experiments, as far as they can be paid for; without it one Suggestion.
        pending:
            Suggestions or interventions that are under way; their outcomes are taken to be as
            predicted. Suggestions with a recorded outcome or failure are ignored.
        fixed:
            {variable: value} that somebody insists on; other variables may be set too.

        Returns
        -------
        Suggestion or Suggestions
            `suggestion.intervention` is what to set, `suggestion.why` tells why. `{}` is to
            observe, where `Settings.observe` allows that.

        Raises
        ------
        DomainError
            If the budget pays for no experiment, or none is allowed with what is fixed.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> study = cb.Study(system.problem, system.observe(50, 0), key=0)
        >>> study.ask()  # doctest: +NORMALIZE_WHITESPACE
        Suggestion(1: do(Z = 5); expected -7.459, 90 % in [-8.396, -6.523],
                   not adjusted for being chosen; cost 1)
        >>> [each.number for each in study.ask(2, pending={"X": 5.0})]
        [2, 3]
        """
        require_float64()
        count = read_count("n", 1 if n is None else n, 1)
        under_way, reserved = _read_pending(self, pending)
        if fixed is not None and not isinstance(fixed, Mapping):
            raise ArgumentError(f"fixed is {{variable: value}} of what is held; got {fixed!r}")
        suggestions = self.suggest(count, under_way, fixed or None, reserved)
        if not suggestions:
            raise DomainError(
                f"{self.spent:g} of the budget {self.settings.budget:g} are spent, and what is "
                f"left{' after what is pending' if under_way else ''} pays for no experiment"
                f"{f' with {dict(fixed)} held' if fixed else ''}; begin a study with a larger "
                "budget in Settings"
            )
        return suggestions[0] if n is None else suggestions

    def suggest(
        self,
        count: int,
        under_way: Iterable[Queries] = (),
        fixed: Fixed = None,
        reserved: float = 0.0,
    ) -> Suggestions:
        """Return the next experiments that can be paid for, if any, besides a `reserved` cost."""
        begun, position, number = list(under_way), self.position, self.rounds + 1
        waiting = [query for query in begun if np.asarray(query.mask).any()]
        last = max(len(self._learned), int(self.observations.number.max(initial=0)))
        first = last + len(begun) + 1
        if not begun and not position and fixed is None:
            if observes(self.state, self.spent, self.round_key(number)):
                return Suggestions([_suggest_observing(self, first)])
        key, spent = jax.random.fold_in(self.round_key(0), number), self.spent + reserved
        chosen = choose(
            self.state, count, waiting, key, spent=spent, position=position, fixed=fixed
        )
        if notes := dict.fromkeys(each.note for each in chosen if each.note):
            warn_caller(notes)
        if not chosen:
            return Suggestions()
        noises = self.state.noises(stack(each.query for each in chosen)).tolist()
        return Suggestions(
            _make_suggestion(self, choice, index, jax.random.fold_in(key, index), noise)
            for index, (choice, noise) in enumerate(zip(chosen, noises, strict=True), first)
        )

    def round_key(self, number: int) -> jax.Array:
        """Return the key of a round, from which all that is drawn in it is derived."""
        return jax.random.fold_in(self._for_rounds, number)

    def score(self, candidates: Queries | Interventions, *, level: float = 0.9) -> pd.DataFrame:
        """Return what the study makes of some interventions, the best to try first.

        Parameters
        ----------
        candidates:
            Interventions that are legal for the problem.
        level:
            The probability of the intervals.

        Returns
        -------
        pd.DataFrame
            By position among the candidates: mean, sd and interval of the effect; `value`, the
            acquisition value, larger being better; `short`, how much less that is than the value of
            what `ask` would suggest; the cost; and how many outcomes are known.

        Raises
        ------
        DomainError
            If a candidate is not legal.
        ExplorationError
            If nothing is known of its effect, since its set is not one of the problem's.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> study = cb.Study(system.problem, system.observe(50, 0), key=0)
        >>> table = study.score([{"X": 1.0}, {"Z": 5.0}])
        >>> table["intervention"].tolist(), bool(table["short"].iloc[0] < 1e-9)
        (['do(Z = 5)', 'do(X = 1)'], True)
        """
        require_float64()
        queries = read_interventions(self.problem, candidates)
        if not len(queries):
            raise DomainError("there is no candidate to score; give at least one intervention")
        if not np.asarray(queries.mask).any(axis=1).all():
            raise DomainError("a candidate sets nothing, which is to observe: give interventions")
        key = jax.random.fold_in(self.round_key(0), self.rounds + 1)
        [choice] = choose(self.state, 1, (), key, position=self.position, is_limited=False)
        both = stack([queries, choice.query])
        values = acquisition_values(choice.search.rule, both, choice.search.context)
        table = effects(self, queries, level=level).drop(columns="by")
        table["value"], table["short"] = values[:-1], np.maximum(values[-1] - values[:-1], 0.0)
        table["cost"] = self.problem.cost(queries)
        table["outcomes"] = [int(self._learned.is_of(query).sum()) for query in queries]
        return table.iloc[np.argsort(-values[:-1], kind="stable")]

    def tell(
        self,
        what: What,
        outcome: Outcome = None,
        *,
        variance: float | Iterable[float] | None = None,
        actual: Mapping[str, float] | None = None,
        failed: str | None = None,
        again: bool = False,
        sure: bool = False,
        who: str = "",
        when: str = "",
    ) -> "Study":
        """Return the study after something was reported; this one stays as it is.

        Parameters
        ----------
        what:
            A suggestion of this study, also an earlier one; a batch with a list of outcomes, None
            for those that are not known yet, or with a table of as many rows; what was set,
            {variable: value}, also if it was not suggested or is out of domain, or a list of these;
            or whole rows, Data or a DataFrame with columns `do(X)`, which need no `outcome`. `{}`
            is an observation in which nothing was set.
        outcome:
            A number; replicates, a list of numbers; or the whole row, a mapping, a DataFrame or
            Data.
        variance:
            Of each number, where it is known; by default what the model implies.
        actual:
            What was really set, {variable: value}, where that differs from the suggestion.
        failed:
            Why there is no outcome: recorded and paid for, not learned from.
        again:
            Whether this is another measurement of what was recorded before.
        sure:
            Whether an outcome, or another value of a row, is right though it is far from what was
            expected.
        who, when:
            Texts that are recorded with it.

        Returns
        -------
        Study
            With all that was recorded; the order and the grouping do not matter.

        Raises
        ------
        ObservationError
            If an outcome cannot be used, was recorded before with another value, is of a suggestion
            of another study, or if it or another value of its row is far from what was expected.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> study = cb.Study(system.problem, system.observe(50, 0), key=0)
        >>> study = study.tell({"X": 2.0}, -2.0, variance=0.1)
        >>> study = study.tell({"Z": 2.0}, {"X": 0.3, "Y": -2.9})       # a whole row
        >>> study = study.tell({"Z": -2.0}, failed="leaked")
        >>> study.to_frame()["outcome"].tolist()
        [-2.0, -2.9, nan]
        """
        report = Report(variance, actual, failed, again, who, when)
        try:
            new = ingest.read_report(self, what, outcome, report)
            if not len(new):
                return self
            after = self.with_log(self.observations.join(new))
            state = self.state.for_rows(new)
            ingest.require_learnable(state, new)
            if not sure:
                ingest.require_expected(state, new)
            after.state  # noqa: B018  (an outcome that cannot be used is refused here)
        except DataError as error:
            raise ObservationError(str(error)) from error
        return after.warn_since(self)

    def retract(self, record: int, why: str) -> "Study":
        """Return the study without one observation, which stays in its log as retracted.

        Parameters
        ----------
        record:
            The number of the observation in `to_frame`, from 1.
        why:
            The reason, which is recorded.

        Returns
        -------
        Study
            What it infers is as if the observation had never been made; its cost stays paid.

        Raises
        ------
        ObservationError
            If there is no such observation, if it was retracted before, or without a reason.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> study = cb.Study(system.problem, system.observe(50, 0), key=0)
        >>> study.tell({"X": 1.0}, -1.2).retract(1, "wrong sample").to_frame()["status"].tolist()
        ['retracted']
        """
        if not isinstance(why, str) or not why.strip():
            raise ObservationError(f'state why it is retracted: why="typing error"; got {why!r}')
        row, known = read_count("record", record, 1) - 1, self.observations
        if row >= len(known):
            raise ObservationError(
                f"there is no record {record}; study.to_frame() has {len(known)} of them"
            )
        if known.status[row] == RETRACTED:
            raise ObservationError(f"record {record} was retracted before: {known.note[row]}")
        note = "; ".join(filter(None, (why.strip(), str(known.note[row]))))  # both are kept
        after = self.with_log(known.change(row, status=RETRACTED, note=note))
        after.state  # noqa: B018
        return after

    def to_frame(self) -> pd.DataFrame:
        """Return a row for everything that was recorded, in that order.

        `expected` and `spread` are mean and sd of the outcome as the mechanisms predicted it.

        Returns
        -------
        pd.DataFrame

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> study = cb.Study(system.problem, system.observe(50, 0), key=0)
        >>> study = study.tell(study.ask(), -6.1).tell({"X": 1.0}, failed="leaked")
        >>> study.to_frame()[["suggestion", "failed"]].values.tolist()
        [[1, ''], [<NA>, 'leaked']]
        """
        known, arrays = self.observations, self.predicted.arrays
        columns = {"expected": arrays.mean, "spread": arrays.spread, "z": arrays.z}
        table = known.to_frame().join(pd.DataFrame(columns, index=self.predicted.rows + 1))
        table["whole_row"] = known.has_row
        table["failed"] = np.where(known.status == FAILED_EXPERIMENT, known.note, "")
        table["note"] = known.notes()
        may_be_set = {*table.columns, *(f"do({name})" for name in self.problem.manipulable)}
        names = ["suggestion", "set", *(f"do({name})" for name in self.problem.graph.nodes)]
        names = [name for name in names if name in may_be_set]
        names += ["expected", "spread", "outcome", "z", "variance", "whole_row", "cost", "status"]
        signed = [name for name in ("who", "when") if (table[name] != "").any()]
        return table.reindex(columns=[*names, "failed", "note", *signed])

    def to_json(self) -> str:
        """Return a JSON text without code and without the data it began with.

        `Study.from_json(text, data)` reads it back. Functions of the problem and user-defined
        objects in the settings are written by their names.

        Returns
        -------
        str

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> "checksum" in cb.Study(system.problem, system.observe(50, 0), key=0).to_json()
        True
        """
        content = {
            "problem": json.loads(self.problem.to_json()),
            "settings": json.loads(self.settings.to_json()),
            "key": write_key(self.key),
            "data_digest": self.data_digest,
            "posterior": self.given,
            "observations": self.observations.to_records(),
            "predicted": self._write_predicted(),
        }
        return write_document("study", FORMAT_VERSION, content)

    def _write_predicted(self) -> list[list[float | None] | None]:
        """Return mean, sd, noise and degrees of the prediction of every row; None for none."""
        written: list[list[float | None] | None] = [None] * len(self.observations)
        rows, (mean, sd, noise, _, degrees) = self.predicted
        for row, *numbers in zip(rows, mean, sd, noise, degrees, strict=True):
            written[row] = [float(each) if math.isfinite(each) else None for each in numbers]
        return written

    @classmethod
    def from_json(
        cls,
        text: str,
        data: Data | pd.DataFrame | Posterior,
        functions: Mapping[str, Any] | None = None,
    ) -> "Study":
        """Read a study from the text that `to_json` wrote; it continues unchanged.

        Parameters
        ----------
        text:
            What `to_json` returned.
        data:
            The data that the study began with, in any order, or the posterior of one that
            `from_posterior` made; others are refused.
        functions:
            {name: function or object} of what the text holds by its name only.

        Returns
        -------
        Study

        Raises
        ------
        StoreError
            If this is not the text of a study, or if it was changed.
        DataError
            If these are other data, or another posterior.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> data = system.observe(50, 0)
        >>> study = cb.Study(system.problem, data, key=0).tell({"Z": 5.0}, -6.1)
        >>> cb.Study.from_json(study.to_json(), data).best.mean == study.best.mean
        True
        """
        document = read_document(text, "study", FORMAT_VERSION)
        callables = {k: v for k, v in (functions or {}).items() if callable(v)}
        problem = Problem.from_json(json.dumps(document["problem"]), callables)
        settings = Settings.from_json(json.dumps(document["settings"]), functions)
        post = data if isinstance(data, Posterior) else None
        if document["posterior"] != ("" if post is None else post.fingerprint):
            begun_with = "a posterior" if document["posterior"] else "data"
            raise DataError(
                f"the study began with {begun_with}; give the same one, not "
                f"{'another posterior' if post is not None else 'data alone'}"
            )
        checked = read_data(problem, data if post is None else post.data)
        written, digest = document["data_digest"], checked.fingerprint
        if written != digest:
            raise DataError(
                f"these are other data than those that the study began with (digest "
                f"{digest[:12]}..., written was {written[:12]}...); give the same observations, in "
                "any order, and report new ones with tell"
            )
        key = read_key(document["key"])
        begun = cls._of(cls._begin(problem, checked, settings, key, post))
        nodes, target = problem.graph.nodes, problem.target
        study = begun.with_log(Observations.from_records(nodes, target, document["observations"]))
        predicted = [
            each and [math.inf if number is None else number for number in each]
            for each in document["predicted"]
        ]
        recall_predictions(study.states, study.observations, predicted)
        return study

    def __repr__(self) -> str:
        status = self.observations.status
        count = int(self.observations.is_observed.sum())
        outcomes = f"{count} outcome{'' if count == 1 else 's'}"
        for name in (FAILED_EXPERIMENT, RETRACTED):
            many = int((status == name).sum())
            outcomes += f", {many} {name}" if many else ""
        best = "best" if self.best.by == "outcomes" else "the model's best"
        best += f" {self.best.text}" + ("; Settings.stop is met" if self.stopped else "")
        return f"Study({self.problem.objective} {self.problem.target}, {outcomes}; {best})"

    def _repr_html_(self) -> str:
        options: dict[str, Any] = {"float_format": "{:.4g}".format, "na_rep": "", "max_rows": 60}
        recorded = "<p>Nothing is recorded yet.</p>"
        if len(self.observations):
            recorded = f"<p>Recorded:</p>{self.to_frame().to_html(**options)}"
        tried = self.problem.interventions(self.state.tried.queries)
        distinct = {tuple(each.items()): each for each in (self.best.intervention, *tried)}
        table = self.effects(list(distinct.values())).to_html(index=False, **options)
        stopped = f"<p>Stop: {html.escape(self.stopped)}.</p>" if self.stopped else ""
        return (
            f"<p><strong>{html.escape(repr(self))}</strong></p><p>{html.escape(CHOICE_WARNING)}</p>"
            f"{recorded}<p>Estimated effects:</p>{table}"
            f"<p>Surprise: {html.escape(self.surprise.message)}</p>{stopped}"
        )


def count_rounds(sequence: Observations, settings: Settings) -> np.ndarray:
    """Return the number of rounds that were finished before each row, and after the last, (t + 1,).

    sequence: observed rows, in the order in which they count. Observations that were not suggested
    make no round.
    """
    passive = np.cumsum(np.append(0, sequence.is_passive))
    active = np.arange(len(sequence) + 1) - passive
    rows = 0 if settings.observe is None else settings.observe.batch
    return np.asarray(active // settings.batch + (passive // rows if rows else 0))


def _read_pending(study: Study, pending: object) -> tuple[list[Queries], float]:
    """Return what is under way, and the cost of observing among it."""
    is_one = isinstance(pending, Suggestion | Mapping | Queries)
    given = [pending] if is_one else read_list(pending)
    if given is None:
        raise ArgumentError(f"pending is a list of suggestions or interventions; got {pending!r}")
    queries: list[Queries] = []
    reserved = 0.0
    for each in given:
        if isinstance(each, Suggestion):
            ingest.require_own(study, each)
            known = study.observations.select(study.observations.status != RETRACTED)
            is_answered = ingest.is_answer(known, each).any()
            queries += [] if is_answered else [each.query]
            reserved += 0.0 if is_answered or each.intervention else each.cost
        else:
            queries.extend(read_interventions(study.problem, each))
    return queries, reserved


def _make_suggestion(
    study: Study, choice: Found, number: int, key: jax.Array, noise: float
) -> Suggestion:
    query, search = choice.query, choice.search
    [intervention] = to_mappings(query, study.problem.graph.nodes)
    mean, sd = (float(part[0]) for part in search.context.surrogate.predict(query))
    how = f"{search.rule.name}: the best of {choice.how}"

    def why() -> Reasons:
        return explain(suggestion, choice, key, _note(study, query))

    suggestion = Suggestion(
        intervention, mean, sd, choice.cost, number, choice.bound, 1, query,
        study.fingerprint, study.state.degrees, how, why, noise,
    )  # fmt: skip
    return suggestion


def _note(study: Study, query: Queries) -> str:
    """Return that it failed before, and that the stopping rule is met, where it is so."""
    known = study.observations
    is_failure = known.is_of(query) & (known.status == FAILED_EXPERIMENT)
    notes = []
    if is_failure.any():
        notes.append(f"It failed before: {'; '.join(map(str, known.note[is_failure]))}.")
    notes += [f"By Settings.stop a run would end: {study.stopped}."] if study.stopped else []
    return " ".join(notes)


def _suggest_observing(study: Study, number: int) -> Suggestion:
    """Return the suggestion to observe, where `Settings.observe` asks for it."""
    policy, baseline = study.settings.observe, study.problem.baseline()
    assert policy is not None  # noqa: S101  (asked before)
    [line] = effects(study, baseline).to_dict("records")
    cost = policy.batch * policy.cost
    rule = "the expected gain per unit of cost"
    if policy.probability is not None:
        rule = f"chance, with probability {policy.probability:g}"

    def why() -> Reasons:
        title = f"Collect {policy.batch} observations without setting anything."
        return Reasons(title, rule, None, None, cost, note=_note(study, baseline))

    return Suggestion(
        {}, line["mean"], line["sd"], cost, number, line["mean"], policy.batch, baseline,
        study.fingerprint, np.inf, rule, why,
    )  # fmt: skip
