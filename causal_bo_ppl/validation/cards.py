"""What did a validation find, may the answer be used, and by which rule?

A card is one finding. Its verdict is one of five:

- "passed";
- "warning": effects or their intervals may be somewhat off, or the assumption stands on little;
- "failed": the recommendation rests on something that the data contradict, or that was not computed
  as it should have been;
- "not applicable": the question does not arise for this problem, this model or these data;
- "could not be computed": with the reason. Nothing is known, which is not the same as passed.

The verdict of the whole follows from those of the cards alone: "do not use" if a card failed; else
"use with care" if there is a warning or a card that could not be computed; else "may be used".
"""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from causal_bo_ppl.checks import FAILED, PASSED, Check
from causal_bo_ppl.errors import ArgumentError, unknown
from causal_bo_ppl.serialization import write_document

WARNING, NOT_APPLICABLE, NOT_COMPUTED = "warning", "not applicable", "could not be computed"
CARD_VERDICTS = (FAILED, NOT_COMPUTED, WARNING, PASSED, NOT_APPLICABLE)  # the worst first
MAY_BE_USED, WITH_CARE, DO_NOT_USE = "may be used", "use with care", "do not use"
FORMAT_OF_VALIDATIONS = 1
MOST_NAMED_CARDS = 4  # in a text
SECTIONS = {
    "data": "Data: is the sample usable, and one population?",
    "A1": "A1 Identifiability: do graph and data determine the effects?",
    "mechanisms": "Mechanisms: would the fitted model have produced these data?",
    "A2": "A2 Posterior regularity: was the posterior computed, and is it Gaussian?",
    "A3": "A3 Bounded kernel: are domains and variances bounded, and small?",
    "A4": "A4 Fixed kernel: is it what the settings use, and what does fixing cost?",
    "A5": "A5 Drift: does the confidence bound hold while the kernel changes?",
    "A6": "A6 Variance sum: do the variances along the path stay within the information gained?",
    "kernels": "Kernels: would another kernel suggest something else?",
    "decision": "Decision: how firm is the recommendation?",
}


@dataclass(frozen=True, eq=False)
class Card:
    """One finding of a validation.

    Attributes
    ----------
    section, name:
        Where it belongs (a key of `cb.validation.SECTIONS`), and what was checked.
    verdict:
        "passed", "warning", "failed", "not applicable" or "could not be computed".
    text:
        The finding as a sentence; why, where nothing was found.
    quantity, figure, threshold:
        What was compared, its value, and the limit beyond which the card does not pass; empty and
        NaN where there is no single figure.
    meaning:
        What the finding means for the recommendation.
    advice:
        What to do about it.
    seconds:
        How long the check took.
    check:
        The check behind the card, with its table; None where there is none.
    """

    section: str
    name: str
    verdict: str
    text: str
    quantity: str = ""
    figure: float = math.nan
    threshold: float = math.nan
    meaning: str = ""
    advice: str = ""
    seconds: float = 0.0
    check: Check | None = None

    @property
    def passed(self) -> bool:
        """Whether the verdict is "passed"."""
        return self.verdict == PASSED

    @property
    def compared(self) -> str:
        """The figure beside its threshold, as a text; empty where there is no figure."""
        if not self.quantity or math.isnan(self.figure):
            return ""
        limit = "" if math.isnan(self.threshold) else f" (limit {self.threshold:.4g})"
        return f"{self.quantity}: {self.figure:.4g}{limit}"

    def __repr__(self) -> str:
        parts = [f"{self.name}: {self.verdict}.", self.text, self.meaning, self.advice]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, eq=False)
class Validation:
    """What `cb.validate` found; its module states the rules.

    Attributes
    ----------
    cards:
        All findings, section by section.
    subject:
        What was validated: the posterior, study or run, whose graph and effects a report shows; the
        problem where it could not be fitted.
    recommendation:
        The intervention that is recommended, {variable: value}; empty where none could be found.
    facts:
        What was asked and how: texts by name.
    robustness:
        A table of what other models recommend, as `cb.validation.robustness` makes it; None where
        it was not computed.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> found = cb.validate(system.problem, system.observe(100, 0), only=["A1"], key=0)
    >>> found.verdict, found.passed, [card.name for card in found.of("passed")]
    ('may be used', True, ['identification', 'causal graph', 'overlap', 'explored sets'])
    """

    cards: tuple[Card, ...]
    subject: Any
    recommendation: Mapping[str, float]
    facts: Mapping[str, str]
    robustness: pd.DataFrame | None = None

    @cached_property
    def verdict(self) -> str:
        """The verdict of the whole: "may be used", "use with care" or "do not use"."""
        found = {card.verdict for card in self.cards}
        if FAILED in found:
            return DO_NOT_USE
        is_sure = found <= {PASSED, NOT_APPLICABLE} and PASSED in found
        return MAY_BE_USED if is_sure else WITH_CARE

    @property
    def passed(self) -> bool:
        """Whether no card failed: the verdict is not "do not use"."""
        return self.verdict != DO_NOT_USE

    def __getitem__(self, name: str) -> Card:
        """Return the card of a name."""
        found = {card.name: card for card in self.cards}
        if name not in found:
            raise ArgumentError(unknown("card", name, found))
        return found[name]

    def of(self, verdict: str) -> tuple[Card, ...]:
        """Return the cards with a verdict."""
        return tuple(card for card in self.cards if card.verdict == verdict)

    @cached_property
    def text(self) -> str:
        """The verdict as a sentence, with the cards that decided it."""
        counts = [f"{len(self.of(each))} {each}" for each in CARD_VERDICTS if self.of(each)]
        parts = [f"{self.verdict[0].upper()}{self.verdict[1:]}: {', '.join(counts)}."]
        for verdict in (FAILED, NOT_COMPUTED, WARNING):
            names = [card.name for card in self.of(verdict)]
            if names:
                more = f" and {len(names) - MOST_NAMED_CARDS} more"
                named = ", ".join(names[:MOST_NAMED_CARDS])
                rest = more if len(names) > MOST_NAMED_CARDS else ""
                parts.append(f"{verdict[0].upper()}{verdict[1:]}: {named}{rest}.")
        return " ".join(parts)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for every card."""
        names = "section verdict quantity figure threshold text meaning advice seconds".split()
        lines = [{name: getattr(card, name) for name in names} for card in self.cards]
        index = pd.Index([card.name for card in self.cards], name="card")
        return pd.DataFrame(lines, index=index, columns=names)

    def to_json(self) -> str:
        """Return the verdict, the facts and every card as a JSON text, with a checksum.

        Numbers that are not finite are null. The tables behind the cards are not part of it.
        """
        names = "section name verdict quantity figure threshold text meaning advice seconds".split()
        cards = [{name: _plain(getattr(card, name)) for name in names} for card in self.cards]
        table = None
        if self.robustness is not None:
            lines = self.robustness.reset_index().to_dict("records")
            table = [{str(name): _plain(value) for name, value in row.items()} for row in lines]
        content = {
            "verdict": self.verdict,
            "passed": self.passed,
            "recommendation": dict(self.recommendation),
            "facts": dict(self.facts),
            "cards": cards,
            "robustness": table,
        }
        return write_document("Validation", FORMAT_OF_VALIDATIONS, content)

    def __repr__(self) -> str:
        return f"Validation({self.text})"

    def _repr_html_(self) -> str:
        title = f"<p><strong>{html.escape(self.text)}</strong></p>"
        rows = []
        for card in sorted(self.cards, key=lambda card: CARD_VERDICTS.index(card.verdict)):
            words = [card.section, card.name, card.verdict, card.compared]
            words.append(" ".join(filter(None, (card.text, card.meaning, card.advice))))
            rows.append("".join(f"<td>{html.escape(word)}</td>" for word in words))
        head = "".join(f"<th>{name}</th>" for name in ("section", "card", "verdict", "", "finding"))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return title + table


def _plain(value: Any) -> Any:
    """Return a number, a text or a bool for JSON; null where a number is not finite."""
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
