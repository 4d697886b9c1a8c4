"""What should I try next? A study suggests experiments and records their outcomes.

It is the public face of `optimization.state`: immutable, so that `tell` returns a new study, and
everything that it answers follows from the data, the settings, the key and what was recorded, in
any order. No simulator is needed. Suggestions are those that the loop of `optimize` would run: each
round has a key, and its number follows from the count of outcomes, so that asking changes nothing.
A study never ends by itself: `stopped` reports that `Settings.stop` would end a run here.

As a JSON text it holds the problem, the settings, the key, a digest of the data it began with, and
all records; posterior and surrogate follow from these. A checksum guards against accidents.
"""

import hashlib
import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import read_data
from causal_bo_ppl.effect_estimates.table import effects
from causal_bo_ppl.errors import (
    ArgumentError,
    DataError,
    DomainError,
    ObservationError,
    StoreError,
)
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import (
    as_key,
    read_count,
    read_key,
    read_list,
    require_float64,
    write_key,
)
from causal_bo_ppl.optimization import ingest, monitor
from causal_bo_ppl.optimization.experiments import best_gain, explain_stop, observes
from causal_bo_ppl.optimization.explain import Reasons, Suggestion, Suggestions, explain
from causal_bo_ppl.optimization.ingest import OUT_OF_DOMAIN, StudyRecord, write_setting
from causal_bo_ppl.optimization.initial_state import begin_from_data, digest_data, find_versions
from causal_bo_ppl.optimization.monitor import IssuedWarnings, PredictedOutcome, Surprise
from causal_bo_ppl.optimization.settings import Settings, read_settings
from causal_bo_ppl.optimization.state import (
    CHOICE_WARNING,
    Choice,
    Recommendation,
    State,
    choose,
    recommendation,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import Interventions, read_interventions, set_label
from causal_bo_ppl.surrogates import Surrogate

FORMAT_VERSION = 2  # of the JSON text
REWRITE_ADVICE = "write the text again with study.to_json()"
PLAIN_FIELDS = ("outcome", "variance", "number", "failed", "cost", "is_out_of_domain")
Outcome = float | Iterable[float] | Mapping[str, float] | Data | pd.DataFrame | None
What = Suggestion | Suggestions | Queries | Interventions | Data | pd.DataFrame


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
    settings: Settings
    data: Data
    key: jax.Array
    checks: tuple[Check, ...]
    state: State
    records: tuple[StudyRecord, ...]
    _start: State
    _issued: IssuedWarnings

    def __init__(
        self,
        problem: Problem,
        data: Data | pd.DataFrame,
        settings: Settings | str | None = None,
        *,
        key: jax.Array | int,
    ) -> None:
        self._begin(problem, data, settings, key, stacklevel=2)

    def _begin(
        self, problem: object, data: object, settings: object, key: Any, stacklevel: int | None
    ) -> None:
        if not isinstance(problem, Problem):
            raise ArgumentError(
                f"a study needs a Problem, got {type(problem).__name__}; of a system take its "
                ".problem"
            )
        given, chosen = as_key(key), read_settings("gc-cbo" if settings is None else settings)
        checked = read_data(problem, data)
        for_data, _ = jax.random.split(given)
        level = None if stacklevel is None else stacklevel + 1
        state, checks = begin_from_data(problem, checked, chosen, for_data, stacklevel=level)
        self.__dict__.update(
            problem=problem, settings=chosen, data=checked, key=given, checks=checks
        )
        self.__dict__.update(state=state, records=(), _start=state, _issued=IssuedWarnings())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Study never changes; `study = study.tell(...)` makes a new one")

    def _after(
        self, records: tuple[StudyRecord, ...], state: State, issued: IssuedWarnings
    ) -> "Study":
        """Return the study with these records and this state."""
        shared = "problem settings data key checks _start fingerprint data_digest".split()
        study = object.__new__(type(self))
        study.__dict__.update({name: getattr(self, name) for name in shared})
        study.__dict__.update(records=records, state=state, _issued=issued)
        return study

    @cached_property
    def data_digest(self) -> str:
        """A hash of the data that the study began with, for any order of the observations."""
        return digest_data(self.data)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of problem, data, settings and key; the same whatever was recorded."""
        prior = self.settings.prior  # a user-defined one cannot be written
        parts = [
            self.problem.fingerprint,
            self.data_digest,
            replace(self.settings, prior=None).to_json(),
            "" if prior is None else str(prior.canonical()),
            str(write_key(self.key)),
        ]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()

    @cached_property
    def round_key(self) -> jax.Array:
        """The key from which those of all rounds are derived, as in `optimize`."""
        return jax.random.split(self.key)[1]

    @property
    def posterior(self) -> Posterior:
        """The posterior of theta, updated by whole rows of experiments where these are used."""
        return self.state.posterior

    @property
    def surrogate(self) -> Surrogate:
        """The present model of every effect."""
        return self.state.surrogate

    @property
    def spent(self) -> float:
        """The total cost of all experiments, those that failed included."""
        return self.state.spent

    @cached_property
    def best(self) -> Recommendation:
        """The recommended intervention.

        Its `by` is "outcomes" where it is the best of those tried, and "model" before any outcome,
        where it is the best by the model.
        """
        return recommendation(self.state)

    @cached_property
    def surprise(self) -> Surprise:
        """Whether the outcomes agree with what the mechanisms predicted for them on arrival."""
        return monitor.assess(self.state.problem, ingest.predictions(self.records))

    @cached_property
    def stopped(self) -> str:
        """Why `Settings.stop` would end a run here; empty where it would not, or without a rule."""
        return _find_stop(self._start, self.records, self.settings)

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
    def ask(self, n: None = None, *, pending: object = ()) -> Suggestion: ...

    @overload
    def ask(self, n: int, *, pending: object = ()) -> Suggestions: ...

    def ask(self, n: int | None = None, *, pending: object = ()) -> Suggestion | Suggestions:
        """Return the next experiments; asking changes nothing.

        Parameters
        ----------
        n:
            How many experiments; without it one Suggestion is returned, otherwise a batch of at
            most n that can be paid for.
        pending:
            Suggestions or interventions that are under way; their outcomes are taken to be as
            predicted. Suggestions with a recorded outcome or failure are ignored.

        Returns
        -------
        Suggestion or Suggestions
            `suggestion.intervention` is what to set, `suggestion.why` tells why. `{}` is to
            observe, where `Settings.observe` allows that.

        Raises
        ------
        DomainError
            If the budget pays for no experiment.

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
        suggestions = _suggest(self, 1 if n is None else n, pending)
        return suggestions[0] if n is None else suggestions

    def tell(
        self,
        what: What,
        outcome: Outcome = None,
        *,
        variance: float | Iterable[float] | None = None,
        failed: str | None = None,
        again: bool = False,
        sure: bool = False,
    ) -> "Study":
        """Return the study after something was reported; this one stays as it is.

        Parameters
        ----------
        what:
            A suggestion of this study, also an earlier one or one of a batch; a batch with a list
            of outcomes, None for those that are not known yet, or with a table of as many rows;
            what was set, {variable: value}, also if it was not suggested or is out of domain, or
            several of them with a list of outcomes; or whole rows, Data or a DataFrame with columns
            `do(X)`, which need no `outcome`. `{}` is an observation in which nothing was set.
        outcome:
            A number; replicates, a list of numbers; or the whole row, a mapping, a DataFrame or
            Data.
        variance:
            Of each number, where it is known; by default what the model implies.
        failed:
            Why there is no outcome: recorded and paid for, not learned from.
        again:
            Whether this is another measurement of what was recorded before.
        sure:
            Whether an outcome, or another value of a row, is right though it is far from what was
            expected.

        Returns
        -------
        Study
            With all that was recorded; the order and the grouping do not matter.

        Raises
        ------
        ObservationError
            If an outcome cannot be used, was recorded before with another value, is of a suggestion
            of another study, or if it or another value of its row is far from what was expected.
            Nothing is changed then.

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
        options: dict[str, Any] = {"variance": variance, "failed": failed, "again": again}
        try:
            new = ingest.read_answers(self, what, outcome, **options)
            if not new:
                return self
            state, predicted = ingest.learn(self.state, new, sure=sure)
        except DataError as error:
            raise ObservationError(str(error)) from error
        records = (*self.records, *predicted)
        state = ingest.add_losses(state, records)
        issued = monitor.warn_of_contradictions(
            state, self.settings, ingest.predictions(records), self._issued, stacklevel=2
        )
        return self._after(records, state, issued)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for everything that was recorded, in that order.

        `suggestion` is the number of the suggestion. `expected` and `spread` are mean and sd of the
        outcome as the mechanisms predicted it, `z` is the standardized residual.

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
        records, nodes, arrays = self.records, self.problem.graph.nodes, self.surprise.arrays
        settings = [write_setting(self.problem, each.query) for each in records]
        columns: dict[str, Any] = {
            "suggestion": pd.array([each.number for each in records], dtype="Int64"),
            "set": [set_label(tuple(setting)) for setting in settings],
        }
        for name in nodes:
            if name in self.problem.manipulable or any(name in setting for setting in settings):
                values = [setting.get(name, math.nan) for setting in settings]
                columns[f"do({name})"] = np.array(values, float)
        was_predicted = [each.predicted is not None for each in records]
        predicted = pd.DataFrame(
            {"expected": arrays.mean, "spread": arrays.spread, "z": arrays.z},
            index=np.flatnonzero(was_predicted),
        ).reindex(range(len(records)))
        columns |= {
            "expected": predicted["expected"].to_numpy(),
            "spread": predicted["spread"].to_numpy(),
            "outcome": np.array([each.outcome for each in records], float),
            "z": predicted["z"].to_numpy(),
            "variance": np.array([each.variance for each in records], float),
            "whole_row": [each.row is not None for each in records],
            "cost": [each.cost for each in records],
            "failed": [each.failed for each in records],
            "note": [_describe_domain(each) for each in records],
        }
        return pd.DataFrame(columns, index=pd.RangeIndex(1, len(records) + 1, name="record"))

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
        document = {
            "format": FORMAT_VERSION,
            "kind": "study",
            "versions": dict(find_versions()),
            "problem": json.loads(self.problem.to_json()),
            "settings": json.loads(self.settings.to_json()),
            "key": write_key(self.key),
            "data_digest": self.data_digest,
            "records": [_write_record(self.problem, each) for each in self.records],
            "warnings": list(self._issued),
        }
        return json.dumps(document | {"checksum": _checksum(document)}, allow_nan=False)

    @classmethod
    def from_json(
        cls, text: str, data: Data | pd.DataFrame, functions: Mapping[str, Any] | None = None
    ) -> "Study":
        """Read a study from the text that `to_json` wrote; it continues unchanged.

        Parameters
        ----------
        text:
            What `to_json` returned.
        data:
            The data that the study began with, in any order; others are refused.
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
            If these are other data.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> data = system.observe(50, 0)
        >>> study = cb.Study(system.problem, data, key=0).tell({"Z": 5.0}, -6.1)
        >>> cb.Study.from_json(study.to_json(), data).best.mean == study.best.mean
        True
        """
        document = _read_document(text)
        callables = {k: v for k, v in (functions or {}).items() if callable(v)}
        problem = Problem.from_json(json.dumps(document["problem"]), callables)
        settings = Settings.from_json(json.dumps(document["settings"]), functions)
        checked = read_data(problem, data)
        written, digest = document["data_digest"], digest_data(checked)
        if written != digest:
            raise DataError(
                f"these are other data than those that the study began with (digest "
                f"{digest[:12]}..., written was {written[:12]}...); give the same observations, in "
                "any order, and report new ones with tell"
            )
        study = object.__new__(cls)
        study._begin(problem, checked, settings, read_key(document["key"]), stacklevel=None)
        records = tuple(_read_record(problem, each) for each in document["records"])
        state = ingest.condition(study.state, records)
        return study._after(records, state, IssuedWarnings(*document["warnings"]))

    def __repr__(self) -> str:
        failed = sum(bool(each.failed) for each in self.records)
        count = len(self.records) - failed
        outcomes = f"{count} outcome{'' if count == 1 else 's'}"
        outcomes += f", {failed} failed" if failed else ""
        best = "best" if self.best.by == "outcomes" else "the model's best"
        best += f" {self.best.text}" + ("; Settings.stop is met" if self.stopped else "")
        return f"Study({self.problem.objective} {self.problem.target}, {outcomes}; {best})"

    def _repr_html_(self) -> str:
        options: dict[str, Any] = {"float_format": "{:.4g}".format, "na_rep": "", "max_rows": 60}
        recorded = "<p>Nothing is recorded yet.</p>"
        if self.records:
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


def _describe_domain(record: StudyRecord) -> str:
    if not record.is_out_of_domain:
        return ""
    return OUT_OF_DOMAIN if record.failed else f"{OUT_OF_DOMAIN}: learned from, never suggested"


def _read_document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (TypeError, ValueError) as error:
        is_path = isinstance(text, os.PathLike) or str(text).strip().endswith(".json")
        advice = "give the text of the file, Path(...).read_text()" if is_path else REWRITE_ADVICE
        raise StoreError(f"a study is read from a JSON text: {error}; {advice}") from None
    if not isinstance(document, dict) or document.get("kind") != "study":
        raise StoreError(f"this is not the text of a study; {REWRITE_ADVICE}")
    if document.get("format") != FORMAT_VERSION:
        raise StoreError(
            f"this study was written in format {document.get('format')!r} by "
            f"{document.get('versions')!r}; this version reads format {FORMAT_VERSION}"
        )
    if document.pop("checksum", None) != _checksum(document):
        raise StoreError(
            f"this text of a study was cut off or changed: its checksum differs; {REWRITE_ADVICE}"
        )
    return document


def _write_record(problem: Problem, record: StudyRecord) -> dict[str, Any]:
    predicted = None
    if record.predicted is not None:
        *numbers, degrees = record.predicted[1:]
        predicted = [*numbers, degrees if math.isfinite(degrees) else None]
    return {name: getattr(record, name) for name in PLAIN_FIELDS} | {
        "set": write_setting(problem, record.query),
        "row": None if record.row is None else record.row.values[0].tolist(),
        "predicted": predicted,
    }


def _read_record(problem: Problem, written: Mapping[str, Any]) -> StudyRecord:
    query, row, predicted = ingest.read_intervention(problem, written["set"]), None, None
    if written["row"] is not None:
        values = np.array([written["row"]], float)
        row = Data(problem.graph.nodes, problem.target, values, np.asarray(query.mask))
    if written["predicted"] is not None:
        *numbers, degrees = written["predicted"]
        predicted = PredictedOutcome._make(
            (query, *numbers, math.inf if degrees is None else degrees)
        )
    plain = {name: written[name] for name in PLAIN_FIELDS}
    return StudyRecord(query, row=row, predicted=predicted, **plain)


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _count_rounds(active: Any, passive: Any, settings: Settings) -> Any:
    """Return the rounds that so many experiments and observations make, as `optimize` counts."""
    rows = 0 if settings.observe is None else settings.observe.batch
    return active // settings.batch + (passive // rows if rows else 0)


def _find_stop(start: State, records: Sequence[StudyRecord], settings: Settings) -> str:
    """Return why the stopping rule is met; empty where it is not, or where there is none.

    start: the state before any record. records: in the order of recording, since the rule is about
    successive rounds.
    """
    stop = settings.stop
    if stop is None:
        return ""
    outcomes = [each for each in records if not each.failed]
    latest, idle = 0.0, 0
    for count in reversed(_find_round_ends(outcomes, settings)[-stop.patience :]):
        gain = best_gain(ingest.condition(start, outcomes[:count]))
        if not gain < stop.gain:
            break
        latest, idle = gain if not idle else latest, idle + 1
    return explain_stop(stop, latest, idle)


def _find_round_ends(outcomes: Sequence[StudyRecord], settings: Settings) -> list[int]:
    """Return how many outcomes there were at the end of every round, the first being before any.

    Observations that were not suggested make no round, and are known at the end of the last.
    """
    passive = np.cumsum([0, *(each.is_passive for each in outcomes)])
    active = np.arange(len(outcomes) + 1) - passive
    rounds = _count_rounds(active, passive, settings)
    ends = np.unique(np.maximum.accumulate(rounds), return_index=True)[1].tolist()
    if active[-1] % settings.batch == 0:
        ends[-1] = len(outcomes)
    return [int(each) for each in ends]


def _suggest(study: Study, n: int, pending: object) -> Suggestions:
    require_float64()
    count, under_way = read_count("n", n, 1), _read_pending(study, pending)
    waiting = [query for query in under_way if np.asarray(query.mask).any()]
    is_passive = [each.is_passive for each in study.records if not each.failed]
    passive, active = sum(is_passive), len(is_passive) - sum(is_passive)
    number = 1 + _count_rounds(active, passive, study.settings)  # of the round
    position = active % study.settings.batch  # in the round
    first = max([len(is_passive), *(each.number or 0 for each in study.records)]) + len(waiting) + 1
    of_round = jax.random.fold_in(study.round_key, number)
    if not under_way and not position and observes(study.state, of_round):
        return Suggestions([_suggest_observing(study, first)])
    key = jax.random.fold_in(jax.random.fold_in(study.round_key, 0), number)
    choices = choose(study.state, count, waiting, key, position=position)
    if not choices:
        raise DomainError(
            f"{study.spent:g} of the budget {study.settings.budget:g} are spent, and what is left "
            "pays for no experiment; begin a study with a larger budget in Settings"
        )
    return Suggestions(
        _make_suggestion(study, choice, index, jax.random.fold_in(key, index))
        for index, choice in enumerate(choices, first)
    )


def _read_pending(study: Study, pending: object) -> list[Queries]:
    is_one = isinstance(pending, Suggestion | Mapping | Queries)
    given = [pending] if is_one else read_list(pending)
    if given is None:
        raise ArgumentError(f"pending is a list of suggestions or interventions; got {pending!r}")
    queries: list[Queries] = []
    for each in given:
        if isinstance(each, Suggestion):
            ingest.require_own(study.fingerprint, each)
            queries += [] if ingest.answered(study.records, each) else [each.query]
        else:
            queries.extend(read_interventions(study.problem, each))
    return queries


def _make_suggestion(study: Study, choice: Choice, number: int, key: jax.Array) -> Suggestion:
    chosen = choice.suggestion
    [intervention] = study.problem.interventions(chosen.query)

    def why() -> Reasons:
        note = _note(study, chosen.query)
        return explain(study.problem, choice, suggestion.interval(), key, note)

    suggestion = Suggestion(
        intervention, chosen.mean, chosen.sd, chosen.cost, number, chosen.bound, 1, chosen.query,
        study.fingerprint, float(getattr(study.surrogate, "degrees", np.inf)), why,
    )  # fmt: skip
    return suggestion


def _note(study: Study, query: Queries) -> str:
    """Return that it failed before, and that the stopping rule is met, where it is so."""
    failures = [each.failed for each in study.records if each.failed and each.is_of(query)]
    notes = [f"It failed before: {'; '.join(failures)}."] if failures else []
    notes += [f"By Settings.stop a run would end: {study.stopped}."] if study.stopped else []
    return " ".join(notes)


def _suggest_observing(study: Study, number: int) -> Suggestion:
    """Return the suggestion to observe, where `Settings.observe` asks for it."""
    policy, baseline = study.settings.observe, study.problem.baseline()
    assert policy is not None  # noqa: S101  (asked before)
    [line] = effects(study, baseline).to_dict("records")
    cost = policy.batch * policy.cost
    rule = (
        "the expected gain per unit of cost"
        if policy.probability is None
        else f"chance, with probability {policy.probability:g}"
    )

    def why() -> Reasons:
        title = f"Collect {policy.batch} observations without setting anything."
        return Reasons(title, rule, None, None, cost, note=_note(study, baseline))

    return Suggestion(
        {}, line["mean"], line["sd"], cost, number, line["mean"], policy.batch, baseline,
        study.fingerprint, np.inf, why,
    )  # fmt: skip
