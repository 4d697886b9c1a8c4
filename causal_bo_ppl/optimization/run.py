"""What did an optimization do, and what does it recommend?

What was known before each round of a run? Its record is told again to the state it began with.

Belief is a function of the ledger, so that every state along the way is found from the run's steps
and observed rows; nothing else is stored.
"""

import html
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import t as student

from causal_bo_ppl.checks import FAILED, Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics import check_extrapolation
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.monitor import PredictedOutcome, Surprise, assess, contradicts_graph
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import Entry, Proposal, State, begin, recommend, tell
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import set_label, stack
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.systems import CausalSystem

# What must be said wherever an interval of a chosen intervention is shown, shortly and in full.
UNADJUSTED = "not adjusted for being chosen"
CHOSEN = (
    "The interval of a chosen intervention would be right if that intervention had been fixed "
    "beforehand. It does not account for the choice: what looks best is often something that is "
    "overestimated. Where many effects are weak and nearly equal, it holds the true effect less "
    "often than it says (in 77 to 84 % of the runs instead of 90 %, after one round on two "
    "networks). Outcomes that are measured after the choice are free of this."
)


class Recommendation(NamedTuple):
    """An intervention with what is believed about its effect.

    degrees: of Student's t, whose quantiles its interval needs. by: "outcomes", the best of the
    interventions that were tried, or "model", the best of all as the model sees them.
    """

    intervention: dict[str, float]
    mean: float
    sd: float
    degrees: float = np.inf
    by: str = "outcomes"

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central credible interval of the effect; it ignores that this was chosen.

        Where many effects are weak and nearly equal, the interval of the one that looked best
        holds the true effect less often than `level`.
        """
        width = float(student.ppf((1 + read_share("level", level)) / 2, self.degrees)) * self.sd
        return self.mean - width, self.mean + width

    @property
    def distribution(self) -> str:
        """The intervention, its mean and its interval in words."""
        words = ", ".join(f"{name} = {value:.4g}" for name, value in self.intervention.items())
        low, high = self.interval()
        return f"do({words}): {self.mean:.4g}, 90 % in [{low:.4g}, {high:.4g}], {UNADJUSTED}"

    def __repr__(self) -> str:
        return f"Recommendation({self.distribution}; by {self.by})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p><p>{html.escape(CHOSEN)}</p>"


def recommendation(state: State) -> Recommendation:
    """Return what is recommended in a state, for people to read."""
    best, degrees = recommend(state), float(getattr(state.surrogate, "degrees", np.inf))
    [intervention] = state.problem.interventions(best.query)
    is_model = state.settings.report == "model" or not len(state.tried.counts)
    by = "model" if is_model else "outcomes"
    return Recommendation(intervention, best.mean, best.sd, degrees, by)


class Step(NamedTuple):
    """One experiment: why it was chosen, what came out, and what is best after its round.

    noise: variance of the outcome's noise. row: the whole row, where it was measured. predicted:
    what the mechanisms alone predicted for the outcome. discrepancy: the amplitude of the model
    discrepancy after the round, 0 where there is none.
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
    """Rows that were observed in a round, and what they cost."""

    round: int
    rows: Data
    cost: float


class Unlearned(NamedTuple):
    """An experiment that was run and from which nothing was learned.

    outcome: what was measured. row: the whole row, where it was measured. why: what was wrong.
    """

    round: int
    intervention: dict[str, float]
    outcome: float
    row: Data | None
    why: str


@dataclass(frozen=True, eq=False)
class Run:
    """An optimization, finished or cut off, with all that is needed to make it again.

    settings: what it was told. surrogate: what is believed in the end; `surrogate.predict(queries)`
    for any effect. system: the truth, where it is known. unlearned: outcomes that were measured but
    not learned from, since they were refused or since the run was cut off. Without any experiment
    learned from, `best` is the model's own. key: the words of the key it was given. versions: of
    the packages that computed it. data_digest: a hash of the rows it began with, in any order.
    checks: what was checked before the first experiment. observed: rows observed between the
    experiments. base: the posterior before any of them. stopped: why it ended, empty before that.
    earlier: outcomes that were told before the first round. takes_rows: whether the posterior can
    learn from whole rows of experiments.
    """

    problem: Problem
    settings: Settings
    steps: tuple[Step, ...]
    surrogate: Surrogate
    best: Recommendation
    system: CausalSystem | None = None
    unlearned: tuple[Unlearned, ...] = ()
    key: tuple[int, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    data_digest: str = ""
    checks: tuple[Check, ...] = ()
    observed: tuple[Observed, ...] = ()
    base: Posterior | None = None
    stopped: str = ""
    earlier: tuple[Entry, ...] = ()
    takes_observations: bool = True

    @property
    def prior(self) -> object:
        """What was believed before the rows."""
        return self.surrogate.post.prior

    @cached_property
    def surprise(self) -> Surprise:
        """Whether the outcomes agree with what the mechanisms predicted for them."""
        told = [step.predicted for step in self.steps if step.predicted is not None]
        return assess(self.problem, told)

    @cached_property
    def extrapolation(self) -> Check | None:
        """Whether mechanisms answer for what is recommended beyond their data.

        As `cb.diagnostics.check_extrapolation`; None where the mechanisms do not say where their data end.
        """
        post = self.surrogate.post
        if offered(post.distribution.response, "extrapolation") is None:
            return None
        found = check_extrapolation(post, self.problem.queries([self.best.intervention]))
        if found.verdict != FAILED:
            return found
        tried = self.problem.interventions(self.queries)
        count = sum(each == self.best.intervention for each in tried)
        advice = found.advice
        if count:
            advice = (
                f"It was tried {count} {'time' if count == 1 else 'times'}: rely on what came out "
                "there rather than on the mechanisms."
            )
        return replace(found, advice=advice)

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
        columns |= {
            name: [getattr(step.suggestion, name) for step in self.steps]
            for name in ("mean", "sd", "bound", "cost")
        }
        columns |= {
            name: [getattr(step, name) for step in self.steps]
            for name in ("outcome", "noise", "best_mean", "best_sd", "discrepancy")
        }
        columns["set"] = [
            set_label(tuple(found)) for found in self.problem.interventions(self.queries)
        ]
        columns["total_cost"] = list(self._total_costs())
        columns["why"] = [step.suggestion.why for step in self.steps]
        if self.system is not None:
            columns["effect"] = np.asarray(self.system.effect(self.queries)).tolist()
            columns["best_effect"] = np.asarray(self.system.effect(best)).tolist()
        settings = {
            variable: (("experiment", "variable"), self.problem.to_frame(batch).to_numpy())
            for variable, batch in (("value", self.queries), ("best_value", best))
        }
        return xr.Dataset(
            {name: ("experiment", column) for name, column in columns.items()} | settings,
            coords={
                "experiment": np.arange(1, len(self.steps) + 1),
                "variable": list(self.problem.manipulable),
            },
            attrs=self._attributes(),
        )

    def _total_costs(self) -> list[float]:
        """Return what was paid up to each experiment, observed rows included."""
        seen = [(each.round, each.cost) for each in self.observed]
        own = np.cumsum([step.suggestion.cost for step in self.steps])
        before = [sum(cost for at, cost in seen if at < step.round) for step in self.steps]
        return (own + np.array(before, float)).tolist() if self.steps else []

    def to_frame(self) -> pd.DataFrame:
        """Return the trace as a table, with a column do(X) for every manipulable variable."""
        set_to = self.problem.to_frame(self.queries).rename(columns="do({})".format)
        set_to.index = pd.Index(np.arange(1, len(self.steps) + 1), name="experiment")
        rest = self.trace.drop_dims("variable").to_dataframe()
        return pd.concat(
            [rest[["round", "set"]], set_to, rest.drop(columns=["round", "set"])], axis=1
        )

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
        """Return the simple regret after each experiment: what is lacking to the optimum.

        Parameters
        ----------
        of:
            "recommended": of what was recommended after the round of each experiment. "tried": of
            the best that was tried so far, by true effects; only an oracle knows which that is.
        """
        if self.system is None:
            raise ModelError("regret needs the truth: optimize a CausalSystem, not a Problem")
        if of not in ("recommended", "tried"):
            raise ModelError(f'regret is of what was "recommended" or "tried"; got {of!r}')
        sign = 1.0 if self.problem.objective == "min" else -1.0
        effects = self.trace["best_effect" if of == "recommended" else "effect"].to_numpy()
        gaps = np.maximum(sign * (effects - self.system.optimum.value), 0.0)
        return np.asarray(gaps if of == "recommended" else np.minimum.accumulate(gaps))

    def __repr__(self) -> str:
        found = f"best {self.best.distribution}"
        rest = f", {len(self.unlearned)} outcomes not learned from" if self.unlearned else ""
        if self.extrapolation is not None and self.extrapolation.verdict == FAILED:
            rest += ", beyond the data of the mechanisms"
        return f"Run({self.settings.name}, {len(self.steps)} experiments, {found}{rest})"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(max_rows=60, float_format="{:.4g}".format, na_rep="")
        words, far = [repr(self), CHOSEN], self.extrapolation
        if far is not None and far.verdict == FAILED:
            words.append(f"{far.text} {far.advice}")
        return "".join(f"<p>{html.escape(each)}</p>" for each in words) + table


class Known(NamedTuple):
    """What was known before a round. number: of the round, from 1."""

    number: int
    state: State


def told_by_round(run: Run) -> list[tuple[int, tuple[Entry, ...]]]:
    """Return what each round of a run told: its experiments, or the rows that it observed."""
    is_known, nothing = run.settings.noise is not None, run.problem.baseline()
    found = [
        (
            each.round,
            Entry(nothing, float(row.outcomes[0]), 0.0, row, each.cost / len(each.rows)),
        )
        for each in run.observed
        for row in (each.rows.select(slice(at, at + 1)) for at in range(len(each.rows)))
    ]
    found += [
        (
            step.round,
            Entry(
                step.suggestion.query,
                step.outcome,
                step.noise if is_known else None,
                step.row,
                step.suggestion.cost,
            ),
        )
        for step in run.steps
    ]
    found.sort(key=lambda each: each[0])
    return [
        (number, tuple(entry for _, entry in group))
        for number, group in groupby(found, key=lambda each: each[0])
    ]


def restart(run: Run) -> State:
    """Return the state before the first round of a run, earlier experiments included."""
    if run.base is None:
        raise ModelError("this run does not hold the posterior that it began with; run it again")
    settings = run.settings.with_discrepancy(contradicts_graph(run.checks))
    start = begin(run.base, settings, takes_observations=run.takes_observations)
    return tell(start, run.earlier) if run.earlier else start


def retrace(run: Run) -> Iterator[Known]:
    """Yield what was known before every round that told something, and after the last one."""
    state, number = restart(run), 0
    for number, entries in told_by_round(run):
        yield Known(number, state)
        state = tell(state, entries)
    yield Known(number + 1, state)
