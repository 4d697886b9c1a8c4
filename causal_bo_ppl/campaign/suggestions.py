"""A suggested experiment, as a person reads it; and several of them, as a table."""

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from causal_bo_ppl.campaign.reasons import Reasons
from causal_bo_ppl.optimization.run import CHOSEN, UNADJUSTED, Recommendation
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import set_label


@dataclass(frozen=True, eq=False)
class Suggestion:
    """An experiment that a study suggests.

    Attributes
    ----------
    intervention:
        {variable: value}; `{}` is to observe, without setting anything.
    mean, sd:
        What is believed of its effect; `interval` for an interval.
    cost:
        What it costs.
    number:
        Of the experiment, from 1.
    bound:
        What the acquisition makes of it, in the direction of the target.
    rows:
        How many rows are asked for; more than 1 only where it is to observe.
    query:
        The intervention in one row of Queries.
    study:
        The fingerprint of the study that made it.
    degrees:
        Of Student's t, whose quantiles the interval needs.
    """

    intervention: dict[str, float]
    mean: float
    sd: float
    cost: float
    number: int
    bound: float
    rows: int
    query: Queries
    study: str
    degrees: float
    explain: Callable[[], Reasons] = field(repr=False)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central credible interval of the effect; it ignores that this was chosen."""
        believed = Recommendation(self.intervention, self.mean, self.sd, self.degrees)
        return believed.interval(level)

    @cached_property
    def why(self) -> Reasons:
        """Why it is suggested, computed when it is asked for; its `text` is shown."""
        return self.explain()

    @property
    def label(self) -> str:
        """The intervention in words."""
        words = ", ".join(f"{name} = {value:.6g}" for name, value in self.intervention.items())
        return f"do({words})" if words else f"observe {self.rows} rows"

    def __repr__(self) -> str:
        low, high = self.interval()
        believed = f"expected {self.mean:.4g}, 90 % in [{low:.4g}, {high:.4g}]"
        believed += f", {UNADJUSTED}" if self.intervention else ""
        return f"Suggestion({self.number}: {self.label}; {believed}; cost {self.cost:g})"

    def _repr_html_(self) -> str:
        return Suggestions([self])._repr_html_() + self.why._repr_html_()


class Suggestions(tuple[Suggestion, ...]):
    """A batch of suggestions, the most worthwhile first; shown as a table."""

    __slots__ = ()

    def __new__(cls, given: Iterable[Suggestion] = ()) -> "Suggestions":
        """Return a batch of these suggestions."""
        return super().__new__(cls, given)

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """Return a row for every suggestion, with a column do(X) for every variable that is set."""
        names = dict.fromkeys(name for each in self for name in each.intervention)
        rows = [
            {"set": set_label(tuple(each.intervention))}
            | {f"do({name})": each.intervention.get(name) for name in names}
            | {"mean": each.mean, "sd": each.sd}
            | dict(zip(("lower", "upper"), each.interval(level), strict=True))
            | {"cost": each.cost}
            for each in self
        ]
        return pd.DataFrame(rows, index=pd.Index([each.number for each in self], name="number"))

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(float_format="{:.4g}".format, na_rep="")
        return f"{table}<p>{html.escape(CHOSEN)}</p>"
