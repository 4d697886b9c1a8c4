"""How is a study written as a JSON text without code, and read back?

The text holds the problem, the settings, the key, a digest of the rows it began with, and all that
was told. What is believed follows from these, so that it is not written. A checksum guards against
accidents.

What was told, what is believed now, and what surprised? A study as tables.

What should I try next? A study asks and is told; nobody needs a simulator.

It is the face of `optimization.state` for a person: immutable, so that `tell` returns a new study,
and all that is believed follows from the rows, the settings, the key and what was told, in any
order.
"""

import hashlib
import html
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, overload

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import require_data_of
from causal_bo_ppl.effect_estimates.table import effects
from causal_bo_ppl.errors import DataError, DomainError, StoreError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_key, write_key
from causal_bo_ppl.optimization.explain import Suggestion, Suggestions
from causal_bo_ppl.optimization.ingest import (
    OUT_OF_DOMAIN,
    Record,
    predictions,
    read_answers,
    require_expected,
    require_expected_rows,
)
from causal_bo_ppl.optimization.initial_state import begin_from_rows, digest_rows, find_versions
from causal_bo_ppl.optimization.monitor import (
    PredictedOutcome,
    Said,
    Surprise,
    assess,
    warn_of_contradictions,
)
from causal_bo_ppl.optimization.run import CHOSEN, Recommendation, recommendation
from causal_bo_ppl.optimization.settings import Settings, read_settings
from causal_bo_ppl.optimization.state import State
from causal_bo_ppl.optimization.suggest import (
    add_losses,
    believe,
    find_stop,
    learn,
    open_for,
    suggest,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import Interventions, named, set_label
from causal_bo_ppl.surrogates import Surrogate

FORMAT = 1
AGAIN = "write the text again with study.to_json()"


class Written(NamedTuple):
    """What a text holds of a study."""

    problem: Problem
    settings: Settings
    key: jax.Array
    digest: str
    records: tuple[Record, ...]
    said: Said


def write_study(
    problem: Problem,
    settings: Settings,
    key: jax.Array,
    digest: str,
    records: tuple[Record, ...],
    said: Said,
) -> str:
    """Return the JSON text of a study."""
    record = {
        "format": FORMAT,
        "kind": "study",
        "versions": dict(find_versions()),
        "problem": json.loads(problem.to_json()),
        "settings": json.loads(settings.to_json()),
        "key": write_key(key),
        "data_digest": digest,
        "told": [_write_record(problem, each) for each in records],
        "said": list(said),
    }
    return json.dumps(record | {"checksum": _checksum(record)}, allow_nan=False)


def read_study(text: str, functions: Mapping[str, Any] | None) -> Written:
    """Return what a text holds of a study.

    Raises
    ------
    StoreError
        If the text is none of a study, was cut off or changed, or is of a newer format.
    """
    try:
        record = json.loads(text)
    except (TypeError, ValueError) as error:
        is_path = isinstance(text, os.PathLike) or str(text).strip().endswith(".json")
        advice = "give the text of the file, Path(...).read_text()" if is_path else AGAIN
        raise StoreError(f"a study is read from a JSON text: {error}; {advice}") from None
    if not isinstance(record, dict) or record.get("kind") != "study":
        raise StoreError(f"this is no text of a study; {AGAIN}")
    if record.get("format") != FORMAT:
        raise StoreError(
            f"this study was written in format {record.get('format')!r} by "
            f"{record.get('versions')!r}; this version reads format {FORMAT}"
        )
    if record.pop("checksum", None) != _checksum(record):
        raise StoreError(
            f"this text of a study was cut off or changed: its checksum differs; {AGAIN}"
        )
    problem = Problem.from_json(json.dumps(record["problem"]), _called(functions))
    settings = Settings.from_json(json.dumps(record["settings"]), functions)
    records = tuple(_read_record(problem, each) for each in record["told"])
    key = read_key(record["key"])
    return Written(problem, settings, key, record["data_digest"], records, Said(*record["said"]))


def find_fingerprint(problem: Problem, settings: Settings, key: jax.Array, digest: str) -> str:
    """Return a hash of all that a study began with; `digest` is that of its rows."""
    prior = settings.prior  # one's own cannot be written
    parts = [
        problem.fingerprint,
        digest,
        replace(settings, prior=None).to_json(),
        "" if prior is None else str(prior.canonical()),
        str(write_key(key)),
    ]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def require_digest(written: str, found: str) -> None:
    """Refuse other rows than those that a study began with."""
    if written != found:
        raise DataError(
            f"these are other rows than those that the study began with (digest {found[:12]}..., "
            f"written was {written[:12]}...); give the same rows, in any order, and tell new ones"
        )


def _called(functions: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the functions among what was given; records of settings are given with them."""
    return None if functions is None else {k: v for k, v in functions.items() if callable(v)}


def _write_record(problem: Problem, record: Record) -> dict[str, Any]:
    pairs = zip(problem.graph.nodes, record.query.mask[0], record.query.value[0], strict=True)
    predicted = record.predicted
    return {
        "set": {name: float(value) for name, is_set, value in pairs if is_set},
        "outcome": record.outcome,
        "variance": record.variance,
        "row": None if record.row is None else record.row.values[0].tolist(),
        "number": record.number,
        "failed": record.failed,
        "cost": record.cost,
        "is_out_of_domain": record.is_out_of_domain,
        "predicted": None
        if predicted is None
        else [
            predicted.mean,
            predicted.sd,
            predicted.noise,
            predicted.outcome,
            predicted.degrees if math.isfinite(predicted.degrees) else None,
        ],
    }


def _read_record(problem: Problem, written: Mapping[str, Any]) -> Record:
    nodes = problem.graph.nodes
    mask = np.array([[name in written["set"] for name in nodes]])
    value = np.array([[float(written["set"].get(name, 0.0)) for name in nodes]])
    query, row, predicted = named(Queries(mask, value), nodes), None, None
    if written["row"] is not None:
        row = Data(nodes, problem.target, np.array([written["row"]], float), mask)
    if written["predicted"] is not None:
        mean, sd, noise, outcome, degrees = written["predicted"]
        degrees = math.inf if degrees is None else degrees
        predicted = PredictedOutcome(query, mean, sd, noise, outcome, degrees)
    return Record(
        query,
        written["outcome"],
        written["variance"],
        row,
        written["number"],
        written["failed"],
        written["cost"],
        written["is_out_of_domain"],
        predicted,
    )


def _checksum(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tabulate(study: "Study") -> pd.DataFrame:
    """Return a row for everything that was told; see `Study.to_frame`."""
    records, problem, blank = study.records, study.problem, math.nan
    nodes, count = problem.graph.nodes, len(records)
    mask = np.array([np.asarray(each.query.mask)[0] for each in records], bool)
    value = np.array([np.asarray(each.query.value)[0] for each in records], float)
    mask, value = mask.reshape(count, len(nodes)), value.reshape(count, len(nodes))
    columns: dict[str, Any] = {
        "asked": pd.array([each.number for each in records], dtype="Int64"),
        "set": [
            set_label(tuple(name for name, on in zip(nodes, row, strict=True) if on))
            for row in mask
        ],
    }
    for at, name in enumerate(nodes):
        if mask[:, at].any() or name in problem.manipulable:
            columns[f"do({name})"] = np.where(mask[:, at], value[:, at], blank)
    seen = study.surprise.arrays
    was_predicted = np.array([each.predicted is not None for each in records], bool)
    for name, found in (("expected", seen.mean), ("spread", seen.spread)):
        columns[name] = np.full(count, blank)
        columns[name][was_predicted] = found
    columns["outcome"] = np.array([each.outcome for each in records], float)
    columns["z"] = np.full(count, blank)
    columns["z"][was_predicted] = seen.z
    columns["variance"] = np.array([each.variance for each in records], float)
    columns["whole_row"] = [each.row is not None for each in records]
    columns["cost"] = [each.cost for each in records]
    columns["failed"] = [each.failed for each in records]
    columns["note"] = [_note(each) for each in records]
    return pd.DataFrame(columns, index=pd.Index(range(1, count + 1), name="told"))


def _note(record: Record) -> str:
    if not record.is_out_of_domain:
        return ""
    return OUT_OF_DOMAIN.split(":")[0] if record.failed else OUT_OF_DOMAIN


def describe_best(study: "Study") -> str:
    """Return what is recommended, in words; before any outcome it is the model's."""
    whose = "best" if study.best.by == "outcomes" else "the model's best"
    return f"{whose} {study.best.text}"


def write_html(study: "Study") -> str:
    """Return tables of what was told and of what is believed now, and what surprised."""
    shown: dict[str, Any] = {"float_format": "{:.4g}".format, "na_rep": "", "max_rows": 60}
    told = "<p>Nothing was told yet.</p>"
    if study.records:
        told = f"<p>What was told:</p>{study.to_frame().to_html(**shown)}"
    own = [each.query for each in study.records if not (each.is_out_of_domain or each.is_passive)]
    rows = [study.best.intervention, *(study.problem.interventions(each)[0] for each in own)]
    distinct = list({tuple(each.items()): each for each in rows}.values())
    believed = study.effects(distinct).to_html(index=False, **shown)
    enough = f"<p>It is enough: {html.escape(study.stopped)}.</p>" if study.stopped else ""
    return (
        f"<p><strong>{html.escape(repr(study))}</strong></p><p>{html.escape(CHOSEN)}</p>{told}"
        f"<p>What is believed now:</p>{believed}"
        f"<p>What surprised: {html.escape(study.surprise.message)}</p>{enough}"
    )


Outcome = float | Iterable[float] | Mapping[str, float] | Data | pd.DataFrame | None
What = Suggestion | Suggestions | Queries | Interventions | Data | pd.DataFrame


class Study:
    """Experiments that are asked for and told by hand; never changed, `tell` returns a new study.

    Parameters
    ----------
    problem:
        What may be set, and what is to be improved.
    data:
        The rows there are: Data, or a pandas table with a column for every variable. Rows of
        earlier experiments belong here too, with columns `do(X)`.
    settings:
        `cb.Settings(...)` or the name of a preset; `rounds` and `observations` do not
        matter here. A study does not end by itself: with `stop` it says in `stopped` that it would
        be enough.
    key:
        For all that is drawn: a JAX key or an int.

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
    records: tuple[Record, ...]
    _start: State
    _said: Said

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
            raise DomainError(
                f"a study needs a Problem, got {type(problem).__name__}; of a system take its "
                ".problem"
            )
        given, chosen = as_key(key), read_settings("gc-cbo" if settings is None else settings)
        rows = data if isinstance(data, Data) else Data.from_frame(problem, data)  # type: ignore[arg-type]
        require_data_of(problem, rows)
        for_rows, _ = jax.random.split(given)
        level = None if stacklevel is None else stacklevel + 1
        state, checks = begin_from_rows(problem, rows, chosen, for_rows, stacklevel=level)
        self.__dict__.update(
            problem=problem,
            settings=chosen,
            data=rows,
            key=given,
            checks=checks,
            state=state,
            records=(),
            _start=state,
            _said=Said(),
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Study never changes; `study = study.tell(...)` makes a new one")

    def _after(self, records: tuple[Record, ...], state: State, said: Said) -> "Study":
        """Return the study with these records and this state."""
        kept = "problem settings data key checks _start fingerprint data_digest".split()
        made = object.__new__(type(self))
        made.__dict__.update({name: getattr(self, name) for name in kept})
        made.__dict__.update(records=records, state=state, _said=said)
        return made

    @cached_property
    def data_digest(self) -> str:
        """A hash of the rows that the study began with, in any order."""
        return digest_rows(self.data)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of problem, rows, settings and key; the same whatever was told."""
        return find_fingerprint(self.problem, self.settings, self.key, self.data_digest)

    @cached_property
    def round_key(self) -> jax.Array:
        """The key from which those of all rounds are derived, as in `optimize`."""
        return jax.random.split(self.key)[1]

    @property
    def posterior(self) -> Posterior:
        """What is believed about theta, whole rows of experiments included where they teach it."""
        return self.state.posterior

    @property
    def surrogate(self) -> Surrogate:
        """What is believed about every effect."""
        return self.state.surrogate

    @property
    def spent(self) -> float:
        """What all experiments have cost, those that failed included."""
        return self.state.spent

    @cached_property
    def best(self) -> Recommendation:
        """What is recommended now.

        Its `by` is "outcomes" where it is the best of what was tried, and "model" before any
        outcome, where it is what the model holds for best.
        """
        return recommendation(self.state)

    @cached_property
    def surprise(self) -> Surprise:
        """Whether the outcomes agree with what the mechanisms predicted for them on arrival."""
        return assess(self.state.problem, predictions(self.records))

    @cached_property
    def stopped(self) -> str:
        """Why it is enough by `Settings.stop`; empty where it is not, or where there is no rule."""
        return find_stop(self._start, self.records, self.settings)

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
        """Return what to try next. Asking changes nothing: the same study gives the same answer.

        Parameters
        ----------
        n:
            How many experiments; without it one Suggestion is returned, otherwise a batch of at
            most n that can be paid for.
        pending:
            Suggestions or interventions that are under way; they are taken to come out as
            predicted. Suggestions of which something was told meanwhile, an outcome or that they
            failed, are left out.

        Returns
        -------
        Suggestion or Suggestions
            `suggestion.intervention` is what to set, `suggestion.why` says why. `{}` is to observe
            rows, where `Settings.observe` allows that.

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
        found = suggest(self, 1 if n is None else n, pending)
        return found[0] if n is None else found

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
        """Return the study after something came back; this one stays as it is.

        Parameters
        ----------
        what:
            A suggestion of this study, also an earlier one or one of a batch; a batch with a list
            of outcomes, None for those that are not there yet, or with a table of as many rows;
            what was set, {variable: value}, also if nobody asked for it and where it may not be
            proposed, or several of them with a list of outcomes; or whole rows,
            Data or a table with columns `do(X)`, which need no `outcome`. `{}` is a row in which
            nothing was set.
        outcome:
            A number; replicates, a list of numbers; or the whole row, a mapping, a table or Data.
        variance:
            Of each number told, where it is known; by default what the model implies.
        failed:
            Why there is no outcome: recorded and paid for, not learned from.
        again:
            Whether this is another measurement of what was told before.
        sure:
            Whether an outcome, or another value of a row, is right though it is far from what was
            expected.

        Returns
        -------
        Study
            With all that was told; the order and the grouping of telling do not matter.

        Raises
        ------
        DataError
            If an outcome cannot be used, was told before with another value, is of a suggestion of
            another study, or if it or another value of its row is far from what was expected.
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
        records = read_answers(self, what, outcome, variance=variance, failed=failed, again=again)
        if not records:
            return self
        state = open_for(self.state, records)
        if not sure:
            require_expected(state, records)
            require_expected_rows(state, records)
        state, told = learn(state, records)
        everything = (*self.records, *told)
        state = add_losses(state, everything)
        said = warn_of_contradictions(
            state, self.settings, predictions(everything), self._said, stacklevel=2
        )
        return self._after(everything, state, said)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for everything that was told, in the order of telling.

        `asked` is the number of the suggestion. `expected` and `spread` are mean and sd of the
        outcome as the mechanisms predicted it, `z` is the standardized residual.
        """
        return tabulate(self)

    def to_json(self) -> str:
        """Return a JSON text without code and without the rows it began with.

        `Study.from_json(text, data)` reads it back. Functions of the problem and records of your
        own in the settings are written by their names.

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
        return write_study(
            self.problem, self.settings, self.key, self.data_digest, self.records, self._said
        )

    @classmethod
    def from_json(
        cls,
        text: str,
        data: Data | pd.DataFrame,
        functions: Mapping[str, Any] | None = None,
    ) -> "Study":
        """Read a study from the text that `to_json` wrote; it goes on as if nothing had happened.

        Parameters
        ----------
        text:
            What `to_json` returned.
        data:
            The rows that the study began with, in any order; others are refused.
        functions:
            {name: function or record} of what the text holds by its name only.

        Returns
        -------
        Study

        Raises
        ------
        StoreError
            If this is no text of a study, or if it was changed.
        DataError
            If the rows are others.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> rows = system.observe(50, 0)
        >>> study = cb.Study(system.problem, rows, key=0).tell({"Z": 5.0}, -6.1)
        >>> cb.Study.from_json(study.to_json(), rows).best.mean == study.best.mean
        True
        """
        written = read_study(text, functions)
        rows = data if isinstance(data, Data) else Data.from_frame(written.problem, data)
        require_digest(written.digest, digest_rows(rows))
        study = object.__new__(cls)
        study._begin(written.problem, rows, written.settings, written.key, stacklevel=None)
        state = believe(study.state, written.records)
        return study._after(written.records, state, written.said)

    def __repr__(self) -> str:
        failed = sum(bool(each.failed) for each in self.records)
        count = len(self.records) - failed
        told = f"{count} outcome{'' if count == 1 else 's'}" + (f", {failed} failed" * bool(failed))
        believed = describe_best(self) + ("; enough by Settings.stop" if self.stopped else "")
        return f"Study({self.problem.objective} {self.problem.target}, {told}; {believed})"

    def _repr_html_(self) -> str:
        return write_html(self)
