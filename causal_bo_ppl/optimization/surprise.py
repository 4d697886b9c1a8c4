"""Do the outcomes of experiments contradict what was believed before them?

Every outcome is compared with its prediction, in order of arrival and given all outcomes before it.
What is improbable under the model, after correction for looking after every outcome and for the
number of statistics, is said in words: which interventions, which mechanisms, and what to do.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import chi2, norm
from scipy.stats import f as fisher
from scipy.stats import t as student

from causal_bo_ppl.checks import FAILED, UNKNOWN, judge
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.optimization.predicted_outcomes import ROUNDING, Arrays, PredictedOutcome
from causal_bo_ppl.optimization.sequential_tests import (
    WEIGHTS,
    Evidence,
    cumulate,
    normal_scores,
    weigh_evidence,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import labels, set_label, stack

IMPROBABLE = 1e-3  # corrected: below, the outcomes are a surprise
SHOWN = 3  # interventions that the text names; the table has all
ALIKE = 100.0  # times the smallest p: mechanisms up to there are named together
EVERY = 100  # outcomes up to which each is looked at when it arrives
KNOWN = 1e9  # degrees of freedom: as good as infinitely many


def assess(problem: Problem, told: Sequence[PredictedOutcome]) -> "Surprise":
    """Compare outcomes with what was predicted for them.

    Parameters
    ----------
    problem:
        What was optimized.
    told:
        Every outcome with its prediction, in order of arrival.

    Returns
    -------
    Surprise
        `surprise.p` is the corrected probability, `surprise.table` the running statistics.

    Raises
    ------
    DataError
        If a number is not finite, or a variance is negative.
    """
    numbers = np.array([each[1:5] for each in told], float).reshape(-1, 4)
    if not np.isfinite(numbers).all() or (numbers[:, 1:3] < 0).any():
        bad = ~np.isfinite(numbers).all(axis=1) | (numbers[:, 1:3] < 0).any(axis=1)
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"outcome {row + 1} has mean, sd, noise and outcome {numbers[row].tolist()}; they must "
            "be finite, sd and noise not negative"
        )
    return Surprise(problem, tuple(told))


@dataclass(frozen=True, eq=False)
class Surprise:
    """How well outcomes agree with what was predicted for them; made by `assess`.

    problem: what was optimized. told: every outcome with its prediction, in order of arrival.
    """

    problem: Problem
    told: tuple[PredictedOutcome, ...]

    @cached_property
    def arrays(self) -> Arrays:
        """Predictions and outcomes as arrays."""
        numbers = np.array([each[1:] for each in self.told], float).reshape(-1, 5)
        return Arrays(*numbers.T)

    @cached_property
    def queries(self) -> Queries:
        """The interventions, in order of arrival."""
        return stack([self.problem.baseline()[:0], *(each.query for each in self.told)])

    @cached_property
    def scores(self) -> np.ndarray:
        """Residuals as standard normal quantiles, independent under the model, (t,)."""
        return normal_scores(self.arrays.z, self.arrays.degrees)

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Which set and which intervention each outcome is of, numbered as they first appear."""
        mask = np.asarray(self.queries.mask)
        value = np.where(mask, np.asarray(self.queries.value), 0.0) + 0.0
        sets = [kind.tobytes() for kind in mask]
        return _number(sets), _number([a + b.tobytes() for a, b in zip(sets, value, strict=True)])

    @cached_property
    def evidence(self) -> Evidence:
        """Likelihood ratios against the model after each outcome."""
        away = np.asarray(1.0 if self.problem.objective == "min" else -1.0)
        found = self.arrays
        told = (found.outcome, found.mean, found.sd**2, found.noise)
        return weigh_evidence(self.scores, away, *self._groups, told)

    @cached_property
    def p(self) -> float:
        """Probability under the model of evidence that ever is so strong; 1 for no outcome.

        It holds for looking after every outcome, and for all statistics together.
        """
        return float(self.evidence.corrected[-1]) if self.told else 1.0

    @cached_property
    def alarm(self) -> int | None:
        """The experiment, counted from 1, at which p fell below 0.001; None where it did not."""
        if not self.told:
            return None
        below = np.flatnonzero(self.evidence.corrected < IMPROBABLE)
        return int(below[0]) + 1 if len(below) else None

    @property
    def verdict(self) -> str:
        """Verdict: "failed" where p is below 0.001, "not assessed" without outcomes."""
        return judge(self.alarm is None) if self.told else UNKNOWN

    @property
    def is_scatter(self) -> bool:
        """Whether outcomes scatter rather than being shifted, judged where evidence is largest."""
        parts = Evidence(*(WEIGHTS[:, None] * np.stack(self.evidence)))
        most = int(self.evidence.average.argmax())
        scatter = parts.size[most] + parts.replicates[most]
        return bool(scatter > sum(part[most] for part in parts) - scatter)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Running statistics, a line for every outcome.

        `z` is the standardized residual, `score` its normal quantile. `size` is the sum of squares
        of the scores (chi-square), `signed` their sum over sqrt(t), `set_signed` the same for the
        outcomes of this set; each with its own p-value. `p_corrected` is for all together.
        """
        found, scores, (sets, _) = self.arrays, self.scores, self._groups
        count, ones = np.arange(1, len(scores) + 1), np.ones(len(scores))
        size, signed = np.cumsum(scores**2), np.cumsum(scores) / np.sqrt(count)
        per_set = cumulate(scores, sets) / np.sqrt(cumulate(ones, sets))
        asked = self.problem.interventions(self.queries)
        columns = {
            "set": [set_label(tuple(each)) for each in asked],
            "intervention": labels(self.problem, self.queries) if asked else [],
            "predicted": found.mean,
            "spread": found.spread,
            "outcome": found.outcome,
            "z": found.z,
            "score": scores,
            "size": size,
            "p_size": chi2.sf(size, count),
            "signed": signed,
            "p_signed": 2 * norm.sf(np.abs(signed)),
            "set_signed": per_set,
            "p_set": 2 * norm.sf(np.abs(per_set)),
            "p_corrected": self.evidence.corrected,
        }
        return pd.DataFrame(columns, index=pd.Index(count, name="experiment"))

    @cached_property
    def interventions(self) -> pd.DataFrame:
        """What was believed of each intervention and what came out, most surprising first.

        `believed` and `sd` are of the effect before the first of its `outcomes`, `came_out` is
        their mean. `z` compares the two; `p_bias` is its tail probability by Student's t.
        `noise_ratio` is the variance of replicates over what was predicted; `p_noise` its tail
        probability by Fisher's F, NaN for a single outcome.
        """
        lines, found, (_, groups) = [], self.arrays, self._groups
        names = labels(self.problem, self.queries) if self.told else []
        for group in range(int(groups.max(initial=-1)) + 1):
            rows = np.flatnonzero(groups == group)
            lines.append((names[rows[0]], len(rows), *_compare(found, rows)))
        columns = "outcomes believed sd came_out z p_bias noise_ratio p_noise".split()
        table = pd.DataFrame(lines, columns=["intervention", *columns]).set_index("intervention")
        least = table[["p_bias", "p_noise"]].min(axis=1)
        return table.loc[least.sort_values(kind="stable").index]

    @cached_property
    def mechanisms(self) -> pd.DataFrame:
        """The mechanisms between what was set and the target, the most suspicious first.

        A line for every mechanism on a directed path from a member of a set to the target, after
        surgery: how many `outcomes` ran through it, `signed` and `size` of their scores, and `p`,
        twice the smaller of the two p-values.
        """
        graph, target, mask = self.problem.graph, self.problem.target, np.asarray(self.queries.mask)
        through: dict[str, list[int]] = {}
        for group in range(int(self._groups[0].max(initial=-1)) + 1):
            rows = np.flatnonzero(self._groups[0] == group)
            members = [graph.nodes[at] for at in np.flatnonzero(mask[rows[0]])]
            for name in between(self.problem, members) or [target]:
                through.setdefault(name, []).extend(rows.tolist())
        lines = []
        for name in graph.require(through):
            scores = self.scores[through[name]]
            size, signed = float(scores @ scores), float(scores.sum() / np.sqrt(len(scores)))
            p = min(2 * chi2.sf(size, len(scores)), 4 * norm.sf(abs(signed)), 1.0)
            lines.append((name, len(scores), signed, size, float(p)))
        columns = "mechanism outcomes signed size p".split()
        table = pd.DataFrame(lines, columns=columns).set_index("mechanism")
        return table.loc[table["p"].sort_values(kind="stable").index]

    @cached_property
    def text(self) -> str:
        """What was believed, what came out, and how improbable that is."""
        if not self.told:
            return "There is no outcome yet."
        if self.alarm is None:
            count = len(self.told)
            agree = "outcome agrees" if count == 1 else f"{count} outcomes agree"
            return (
                f"The {agree} with what was predicted (p = {self.p:.2g}, corrected for looking "
                "after every outcome)."
            )
        how = "scatter more than predicted" if self.is_scatter else "contradict what was believed"
        lines = [self._tell(name) for name in self._named()]
        behind = listed(self._suspects(), most=5)
        return (
            f"The outcomes of experiments {how}: under the model the probability of such outcomes "
            f"is {self.p:.1g}, corrected for looking after every outcome (below {IMPROBABLE:g} "
            f"since experiment {self.alarm}). {'; '.join(lines)}. Between what was set and "
            f"{self.problem.target} acts the mechanism of {behind}."
        )

    @property
    def advice(self) -> str:
        """What to do about it; empty where nothing is to be done."""
        if self.verdict != FAILED:
            return ""
        if self.is_scatter:
            return (
                "Repeat an intervention to measure the noise of outcomes, and give it as noise=; "
                "look for outliers and for conditions that changed between experiments; see "
                "whether a mechanism bends: cb.check_predictive(post)."
            )
        names = listed(self._suspects(), most=5)
        return (
            "Look at the experiments first: was set what was asked for? See whether a mechanism "
            f"bends ({names}): cb.check_predictive(post), or cb.check_linearity of a fit with "
            'mechanisms="gp"; if so, optimize with mechanisms="gp". See whether an arrow or a '
            "latent cause is missing: cb.check_graph(problem, data). Until then let outcomes "
            'correct the model: residual="auto"; do not trust the intervals.'
        )

    @property
    def message(self) -> str:
        """The words of a warning."""
        return f"{self.text} {self.advice}".strip()

    def _named(self) -> list[str]:
        """Return the interventions that the text names: the worst, and others that are improbable.

        Those that are improbable have a p-value below a tenth divided by their number.
        """
        least = self.interventions[["p_bias", "p_noise"]].min(axis=1).head(SHOWN)
        return [str(least.index[0]), *map(str, least.index[1:][least.iloc[1:] < 0.1 / len(least)])]

    def _suspects(self) -> list[str]:
        p = self.mechanisms["p"]
        return [str(name) for name in p.index[p <= max(ALIKE * p.iloc[0], 1e-300)]]

    def _tell(self, name: str) -> str:
        line: Any = self.interventions.loc[name]
        rows = (self.table["intervention"] == name).to_numpy()
        spread = float(self.table.loc[rows, "spread"].iloc[0])
        count, gap = int(line["outcomes"]), float(line["came_out"] - line["believed"])
        side = "worse" if (gap > 0) == (self.problem.objective == "min") else "better"
        came = f"{count} outcomes came out at {line['came_out']:.3g} on average"
        one = f"the outcome came out at {line['came_out']:.3g}"
        noisy = (
            f", and vary {line['noise_ratio']:.2g} times as much as their noise should"
            if line["p_noise"] < 0.01
            else ""
        )
        return (
            f"{name}: believed was {line['believed']:.3g} +- {line['sd']:.2g}, a single outcome "
            f"+- {spread:.2g}; {came if count > 1 else one}, {side} than believed "
            f"(z = {line['z']:.1f}){noisy}"
        )

    def __repr__(self) -> str:
        return f"Surprise: {self.verdict}. {self.message}"

    def _repr_html_(self) -> str:
        advice = f"<p><em>{html.escape(self.advice)}</em></p>" if self.advice else ""
        title = f"<p><strong>surprise: {self.verdict}.</strong> {html.escape(self.text)}</p>"
        tables = (self.interventions, self.mechanisms, self.table)
        shown = "".join(each.to_html(max_rows=60, float_format="{:.4g}".format) for each in tables)
        return title + advice + shown


def is_due(count: int) -> bool:
    """Return whether to look after this many outcomes: after each of the first 100, then rarer.

    A look costs a time proportional to the outcomes; a fiftieth more outcomes between two looks
    keeps that constant per outcome. The correction holds for any times of looking, and evidence
    that an earlier look would have seen is found by the next.
    """
    return count <= EVERY or count % (count // 50) == 0


def between(problem: Problem, members: Sequence[str]) -> tuple[str, ...]:
    """Return the variables whose mechanisms carry an effect of a set to the target.

    They lie on directed paths from a member to the target, in the graph after surgery.
    """
    after, target = problem.graph.do(members), problem.target
    causes = {target, *after.ancestors(target)}
    return tuple(name for name in after.descendants(members) if name in causes)


def _number(keys: Sequence[bytes]) -> np.ndarray:
    """Return a number for each key, 0, 1, ... in order of first appearance."""
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], int)


def _compare(found: Arrays, rows: np.ndarray) -> tuple[float, ...]:
    """Return belief, sd, mean outcome, z, p_bias, noise ratio and p_noise of one intervention."""
    outcomes, noise, first = found.outcome[rows], found.noise[rows], rows[0]
    mean, nu = float(outcomes.mean()), float(min(found.degrees[first], KNOWN))
    variance = found.sd[first] ** 2 + noise.sum() / len(rows) ** 2
    least = (ROUNDING * max(abs(mean), abs(found.mean[first]))) ** 2
    gap, wide = mean - float(found.mean[first]), max(float(variance), least)
    z = gap / wide**0.5 if wide > 0 else 0.0
    p_bias = float(2 * student.sf(abs(z), nu))
    ratio, p_noise, typical = np.nan, np.nan, float(noise.mean())
    if len(rows) > 1 and typical > 0:
        ratio = float(outcomes.var(ddof=1)) / typical
        p_noise = float(fisher.sf(ratio, len(rows) - 1, nu))
    return float(found.mean[first]), float(found.sd[first]), mean, z, p_bias, ratio, p_noise
