"""What did an optimization do, and what does it recommend?

The state before each round is a function of the entries recorded until then, so that it is
computed again from the run's steps and observations; nothing else is stored.
"""

import html
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl.checks import FAILED, Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics import check_extrapolation
from causal_bo_ppl.errors import ArgumentError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.monitor import PredictedOutcome, Surprise, assess, contradicts_graph
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import (
    CHOICE_WARNING,
    Entry,
    Proposal,
    Recommendation,
    State,
    begin,
    tell,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import set_label, stack
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.systems import CausalSystem


class RunStep(NamedTuple):
    """One experiment: its suggestion, its outcome, and the recommendation after its round.

    noise: variance of the outcome's noise. row: the whole observation, where it was measured.
    predicted: what the mechanisms alone predicted for the outcome. discrepancy: the amplitude of
    the model discrepancy after the round, 0 where there is none.
    """

    round: int
    suggestion: Proposal
    outcome: float
    noise: float
    best: Queries
    best_mean: float
    best_sd: float
    row: Data | None = None
    predicted: PredictedOutcome | None = None
    discrepancy: float = 0.0


class Observed(NamedTuple):
    """The observations of a round, and what they cost."""

    round: int
    data: Data
    cost: float


class Unlearned(NamedTuple):
    """An experiment that was run and from which nothing was learned.

    outcome: what was measured. row: the whole observation, where it was measured. why: the reason.
    """

    round: int
    intervention: dict[str, float]
    outcome: float
    row: Data | None
    why: str


@dataclass(frozen=True, eq=False)
class Run:
    """An optimization, finished or cut off, with all that is needed to make it again.

    Attributes
    ----------
    problem, settings, system:
        What was optimized and how, and the truth, where it is known.
    steps:
        The experiments that were learned from.
    surrogate:
        The surrogate in the end; `surrogate.predict(queries)` for any effect.
    best:
        What is recommended; without any experiment learned from, by the model alone.
    unlearned:
        Outcomes that were measured but not learned from, since they were refused or since the run
        was cut off.
    key, versions, data_digest:
        The words of the key, the packages that computed it, and a hash of the data it began with,
        in any order.
    checks:
        What was checked before the first experiment.
    observed:
        The observations between the experiments.
    base:
        The posterior before the first experiment.
    stopped:
        Why it ended, empty before that.
    earlier:
        Experiments in the data that it began with.
    takes_observations:
        Whether the posterior can be updated by whole observations of experiments.
    """

    problem: Problem
    settings: Settings
    steps: tuple[RunStep, ...]
    surrogate: Surrogate
    best: Recommendation
    system: CausalSystem | None
    unlearned: tuple[Unlearned, ...]
    key: tuple[int, ...]
    versions: tuple[tuple[str, str], ...]
    data_digest: str
    checks: tuple[Check, ...]
    observed: tuple[Observed, ...]
    base: Posterior
    stopped: str
    earlier: tuple[Entry, ...]
    takes_observations: bool

    @cached_property
    def surprise(self) -> Surprise:
        """Whether the outcomes agree with what the mechanisms predicted for them."""
        predicted = [step.predicted for step in self.steps if step.predicted is not None]
        return assess(self.problem, predicted)

    @cached_property
    def extrapolation(self) -> Check | None:
        """Whether the recommendation extrapolates beyond the data of the mechanisms.

        As `cb.diagnostics.check_extrapolation`; None where the mechanisms do not know where their
        data end.
        """
        post, best = self.surrogate.post, self.best.intervention
        if offered(post.distribution.response, "extrapolation") is None:
            return None
        check = check_extrapolation(post, self.problem.queries([best]))
        count = self.problem.interventions(self.queries).count(best)
        if check.verdict != FAILED or not count:
            return check
        advice = (
            f"It was tried {count} {'time' if count == 1 else 'times'}: rely on what came out "
            "there rather than on the mechanisms."
        )
        return replace(check, advice=advice)

    @cached_property
    def queries(self) -> Queries:
        """The interventions tried, in order."""
        return self._stack([step.suggestion.query for step in self.steps])

    def _stack(self, queries: list[Queries]) -> Queries:
        """Return several queries as one batch, also none."""
        return stack([self.problem.baseline()[:0], *queries])

    @cached_property
    def trace(self) -> xr.Dataset:
        """A row for every experiment: what was set, predicted and measured, and the best so far."""
        best = self._stack([step.best for step in self.steps])
        columns: dict[str, list[object]] = {"round": [step.round for step in self.steps]}
        for name in ("mean", "sd", "bound", "cost"):
            columns[name] = [getattr(step.suggestion, name) for step in self.steps]
        for name in ("outcome", "noise", "best_mean", "best_sd", "discrepancy"):
            columns[name] = [getattr(step, name) for step in self.steps]
        tried = self.problem.interventions(self.queries)
        columns["set"] = [set_label(tuple(intervention)) for intervention in tried]
        columns["total_cost"] = self._total_costs().tolist()
        columns["why"] = [step.suggestion.why for step in self.steps]
        if self.system is not None:
            columns["effect"] = np.asarray(self.system.effect(self.queries)).tolist()
            columns["best_effect"] = np.asarray(self.system.effect(best)).tolist()
        values = {
            name: (("experiment", "variable"), self.problem.to_frame(batch).to_numpy())
            for name, batch in (("value", self.queries), ("best_value", best))
        }
        return xr.Dataset(
            {name: ("experiment", column) for name, column in columns.items()} | values,
            coords={
                "experiment": np.arange(1, len(self.steps) + 1),
                "variable": list(self.problem.manipulable),
            },
            attrs=self._attributes(),
        )

    def _total_costs(self) -> np.ndarray:
        """Return what was paid up to each experiment, observations included."""
        paid = np.cumsum([step.suggestion.cost for step in self.steps])
        before = [
            sum(each.cost for each in self.observed if each.round < step.round)
            for step in self.steps
        ]
        return np.asarray(paid + np.array(before, float))

    def to_frame(self) -> pd.DataFrame:
        """Return the trace as a table, with a column do(X) for every manipulable variable."""
        values = self.problem.to_frame(self.queries).rename(columns="do({})".format)
        values.index = pd.Index(np.arange(1, len(self.steps) + 1), name="experiment")
        rest = self.trace.drop_dims("variable").to_dataframe()
        first = ["round", "set"]
        return pd.concat([rest[first], values, rest.drop(columns=first)], axis=1)

    def _attributes(self) -> dict[str, str]:
        """Return what the run depends on, as texts."""
        words = {each.name: str(getattr(self.settings, each.name)) for each in fields(Settings)}
        return words | {
            "name": self.settings.name,
            "key": " ".join(map(str, self.key)),
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions),
            "data_digest": self.data_digest,
            "verdict": self.surrogate.post.status,
        }

    def regret(self, of: str = "recommended") -> np.ndarray:
        """Return the simple regret after each experiment: the gap to the true optimum.

        Parameters
        ----------
        of:
            "recommended": of what was recommended after the round of each experiment. "tried": of
            the best that was tried so far, by true effects; only an oracle knows which that is.

        Returns
        -------
        array
            A number that is at least 0 for every experiment.

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
        return np.asarray(gaps if of == "recommended" else np.minimum.accumulate(gaps))

    def __repr__(self) -> str:
        rest = f", {len(self.unlearned)} outcomes not learned from" if self.unlearned else ""
        if self.extrapolation is not None and self.extrapolation.verdict == FAILED:
            rest += ", beyond the data of the mechanisms"
        best = f"best {self.best.text}{rest}"
        return f"Run({self.settings.name}, {len(self.steps)} experiments, {best})"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(max_rows=60, float_format="{:.4g}".format, na_rep="")
        texts, check = [repr(self), CHOICE_WARNING], self.extrapolation
        if check is not None and check.verdict == FAILED:
            texts.append(f"{check.text} {check.advice}")
        return "".join(f"<p>{html.escape(text)}</p>" for text in texts) + table


class RoundState(NamedTuple):
    """The state before a round. number: of the round, from 1."""

    number: int
    state: State


def split_rows(data: Data) -> list[Data]:
    """Return every row of the data by itself."""
    return [data.select(slice(row, row + 1)) for row in range(len(data))]


def observed_entries(problem: Problem, data: Data, cost: float) -> list[Entry]:
    """Return the ledger's entries of observations; cost: of each."""
    nothing_set = problem.baseline()
    return [Entry(nothing_set, float(row.outcomes[0]), 0.0, row, cost) for row in split_rows(data)]


def make_entry(step: Any, is_known: bool) -> Entry:
    """Return the ledger's entry of an experiment; is_known: whether the noise was given."""
    suggestion, noise = step.suggestion, step.noise if is_known else None
    return Entry(suggestion.query, step.outcome, noise, step.row, suggestion.cost)


def entries_by_round(run: Run) -> list[tuple[int, tuple[Entry, ...]]]:
    """Return the entries of each round of a run: its experiments, or its observations."""
    rounds, is_known = defaultdict[int, list[Entry]](list), run.settings.noise is not None
    for each in run.observed:
        rounds[each.round] += observed_entries(run.problem, each.data, each.cost / len(each.data))
    for step in run.steps:
        rounds[step.round].append(make_entry(step, is_known))
    return [(number, tuple(rounds[number])) for number in sorted(rounds)]


def tell_rounds(start: State, rounds: list[tuple[int, tuple[Entry, ...]]]) -> State:
    """Return the state after the entries of some rounds."""
    entries = [entry for _, group in rounds for entry in group]
    return tell(start, entries) if entries else start


def restart(run: Run) -> State:
    """Return the state before the first round of a run, earlier experiments included."""
    settings = run.settings.with_discrepancy(contradicts_graph(run.checks))
    start = begin(run.base, settings, takes_observations=run.takes_observations)
    return tell(start, run.earlier) if run.earlier else start


def retrace(run: Run) -> Iterator[RoundState]:
    """Yield the state before every round with some entry, and after the last one."""
    state, number = restart(run), 0
    for number, entries in entries_by_round(run):
        yield RoundState(number, state)
        state = tell(state, entries)
    yield RoundState(number + 1, state)
