"""What did an optimization do, and what does it recommend? Views of a study's log."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl.checks import FAILED, Check
from causal_bo_ppl.data.observations import FAILED_EXPERIMENT, Observations
from causal_bo_ppl.diagnostics import check_extrapolation
from causal_bo_ppl.diagnostics.sequential import Surprise
from causal_bo_ppl.effect_estimates.table import effects
from causal_bo_ppl.errors import ArgumentError, CausalBOError, ModelError
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.acquisition import fixed_beta
from causal_bo_ppl.optimization.choosing import Suggestion
from causal_bo_ppl.optimization.monitor import in_order
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import CHOICE_WARNING, Recommendation, State, recommend
from causal_bo_ppl.optimization.study import Study, count_rounds
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import Interventions, set_label, stack
from causal_bo_ppl.serialization import find_versions
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.systems import CausalSystem
from causal_bo_ppl.theory.regret import RegretPath, RegretRound


@dataclass(frozen=True, eq=False)
class Run:
    """An optimization, finished or cut off: a study, and the system where the truth is known.

    Attributes
    ----------
    study:
        The study after all experiments; it can be continued and written as JSON.
    system:
        The truth, where it is known.
    asked:
        The suggestions that were run, without the computation of `why`.
    stopped:
        Why it ended, empty before that.
    """

    study: Study
    system: CausalSystem | None = None
    asked: tuple[Suggestion, ...] = ()
    stopped: str = ""

    def record(self, asked: Sequence[Suggestion], came_back: Observations) -> "Run":
        """Return the run with what came back of some suggestions in its log."""
        new = [
            replace(each, explain=None, noise=noise)
            for each, noise in zip(asked, self._noises(asked), strict=True)
        ]
        return replace(self, study=self.study.record(came_back), asked=(*self.asked, *new))

    def _noises(self, asked: Sequence[Suggestion]) -> list[float]:
        """Return the variances of the noise that is expected of some outcomes."""
        queries = stack(each.query for each in asked)
        if not np.asarray(queries.mask).any():
            return [np.nan] * len(asked)
        return [float(noise) for noise in self.study.state.noises(queries)]

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
        return self.study.observations.select(in_order(self.study.observations))

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
        passive = np.cumsum(self.log.is_passive) - self.log.is_passive
        active = np.arange(len(self.log)) - passive
        rounds = 1 + count_rounds(active, passive, self.settings)
        return np.asarray(np.maximum.accumulate(rounds) if len(rounds) else rounds, int)

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
        """Whether the recommendation extrapolates beyond the data of the mechanisms.

        As `cb.diagnostics.check_extrapolation`; None where the mechanisms do not know where their
        data end.
        """
        post, best = self.surrogate.post, self.best
        if offered(post.distribution.response, "extrapolation") is None:
            return None
        check = check_extrapolation(post, self.problem.queries([best.intervention]))
        if check.verdict != FAILED or not best.tried:
            return check
        advice = (
            f"It was tried {best.tried} {'time' if best.tried == 1 else 'times'}: rely on what "
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
        after = [self._after_round(row) for row in np.flatnonzero(is_active).tolist()]
        best = stack([self.problem.baseline()[:0], *(each[0].query for each in after)])
        columns["best_mean"] = np.array([each[0].mean for each in after], float)
        columns["best_sd"] = np.array([each[0].sd for each in after], float)
        columns["discrepancy"] = np.array([each[1] for each in after], float)
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
        return xr.Dataset(
            {name: ("experiment", column) for name, column in columns.items()} | values,
            coords={
                "experiment": np.arange(1, len(tried) + 1),
                "variable": list(self.problem.manipulable),
            },
            attrs=self._attributes(),
        )

    def _when_chosen(
        self, suggestion: Suggestion | None, row: int
    ) -> tuple[float, float, float, float, str]:
        """Return mean, sd, bound and noise of an experiment when it was chosen, and how it was."""
        if suggestion is not None:
            found = suggestion.mean, suggestion.sd, suggestion.bound, suggestion.noise
            return *found, suggestion.how
        query = self.log.queries[row]

        def predict(state: State) -> tuple[float, float, float]:
            mean, sd = state.surrogate.predict(query)
            return float(mean[0]), float(sd[0]), float(state.noises(query)[0])

        before = self.log.select(self.rounds < self.rounds[row])
        name = ("predict", self.log.hashes[row])
        mean, sd, noise = self.study.states.number(name, before, predict)
        return mean, sd, np.nan, noise, ""

    def _after_round(self, row: int) -> tuple[Any, float]:
        """Return the recommendation after the round of a row, and the discrepancy's amplitude."""
        until = self.log.select(self.rounds <= self.rounds[row])
        found: tuple[Any, float] = self.study.states.number("recommended", until, recommend)
        return found

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
        numbers = np.unique(self.rounds)
        logs = [(int(number), self.log.select(self.rounds < number)) for number in numbers]
        for number, log in [*logs, (int(numbers.max(initial=0)) + 1, self.log)]:
            state = self.study.states.after(log)

            def beta_of(experiment: int, state: State = state) -> float:
                if isinstance(beta, float) and np.isnan(beta):
                    return beta
                context = replace(state.context(by_model=True), round=experiment, exact=is_exact)
                return fixed_beta(beta, context)

            yield RegretRound(number, state.posterior, state.surrogate, state.noises, beta_of)

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
