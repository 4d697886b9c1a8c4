"""What did an optimization do, and what does it recommend?"""

import html
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import set_label, stack
from causal_bo_ppl.surrogates import Coupled
from causal_bo_ppl.systems import CausalSystem


class Recommendation(NamedTuple):
    """An intervention with what is believed about its effect."""

    intervention: dict[str, float]
    mean: float
    sd: float

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Central credible interval of the effect."""
        if not (isinstance(level, float) and 0 < level < 1):
            raise ModelError(f"level must lie between 0 and 1, got {level!r}")
        width = NormalDist().inv_cdf((1 + level) / 2) * self.sd
        return self.mean - width, self.mean + width


class Choice(NamedTuple):
    """A suggested intervention: what is believed of its effect, its confidence bound and its cost."""

    query: Queries
    mean: float
    sd: float
    bound: float
    cost: float


class Step(NamedTuple):
    """One experiment: why it was chosen, what came out, the variance of its noise, and what is best after its round."""

    round: int
    choice: Choice
    outcome: float
    noise: float
    best: Queries
    best_mean: float
    best_sd: float


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
    """An optimization, finished or cut off.

    settings: what it was told. surrogate: what is believed in the end; `surrogate.predict(queries)` for any effect.
    system: the truth, where it is known. unlearned: outcomes that were measured but not learned from, since they were
    refused or since the run was cut off. Without any experiment learned from, `best` is the model's own.
    """

    problem: Problem
    settings: dict[str, object]
    steps: tuple[Step, ...]
    surrogate: Coupled
    best: Recommendation
    system: CausalSystem | None = None
    unlearned: tuple[Unlearned, ...] = ()

    @cached_property
    def queries(self) -> Queries:
        """The interventions tried, in order."""
        return self._stack([step.choice.query for step in self.steps])

    def _stack(self, queries: list[Queries]) -> Queries:
        """Several queries as one batch, also none."""
        return stack([self.problem.baseline()[:0], *queries])

    @cached_property
    def trace(self) -> xr.Dataset:
        """A row for every experiment: what was set, predicted and measured, its cost, and the best so far."""
        best = self._stack([step.best for step in self.steps])
        columns: dict[str, list[object]] = {"round": [step.round for step in self.steps]}
        columns |= {
            name: [getattr(step.choice, name) for step in self.steps]
            for name in ("mean", "sd", "bound", "cost")
        }
        columns |= {
            name: [getattr(step, name) for step in self.steps]
            for name in ("outcome", "noise", "best_mean", "best_sd")
        }
        columns["set"] = [
            set_label(tuple(found)) for found in self.problem.interventions(self.queries)
        ]
        columns["total_cost"] = np.cumsum([step.choice.cost for step in self.steps]).tolist()
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
            attrs={name: str(value) for name, value in self.settings.items()},
        )

    def to_frame(self) -> pd.DataFrame:
        """The trace as a table, with a column do(X) of the value set for every manipulable variable."""
        set_to = self.problem.to_frame(self.queries).rename(columns="do({})".format)
        set_to.index = pd.Index(np.arange(1, len(self.steps) + 1), name="experiment")
        rest = self.trace.drop_dims("variable").to_dataframe()
        return pd.concat(
            [rest[["round", "set"]], set_to, rest.drop(columns=["round", "set"])], axis=1
        )

    def regret(self) -> np.ndarray:
        """(number of experiments,) simple regret: what the best of the interventions tried so far lacks to the optimum.

        By true effects, as benchmarks report it; `trace["best_effect"]` is the true effect of what was recommended.
        """
        if self.system is None:
            raise ModelError("regret needs the truth: optimize a CausalSystem, not a Problem")
        sign = 1.0 if self.problem.objective == "min" else -1.0
        gaps = sign * (self.trace["effect"].to_numpy() - self.system.optimum.value)
        return np.asarray(np.minimum.accumulate(np.maximum(gaps, 0.0)))

    def __repr__(self) -> str:
        best = ", ".join(f"{name} = {value:.4g}" for name, value in self.best.intervention.items())
        low, high = self.best.interval()
        found = f"best do({best}): {self.best.mean:.4g}, 90 % in [{low:.4g}, {high:.4g}]"
        rest = f", {len(self.unlearned)} outcomes not learned from" if self.unlearned else ""
        return f"Run({self.settings['method']}, {len(self.steps)} experiments, {found}{rest})"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(max_rows=60, float_format="{:.4g}".format, na_rep="")
        return f"<p>{html.escape(repr(self))}</p>{table}"
