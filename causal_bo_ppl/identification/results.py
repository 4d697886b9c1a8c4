"""What is known about the effects of all intervention sets?"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import pandas as pd
from tqdm import tqdm

from causal_bo_ppl.errors import ExplorationError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.assembly import PATIENCE
from causal_bo_ppl.identification.coordinates import Explored, Parameters, collect, require_kind, set_label
from causal_bo_ppl.identification.identified import DROP, Identification, braces
from causal_bo_ppl.identification.reduction import Names


class Identifications(Mapping[Any, Identification]):
    """One result for every intervention set; `ids["X", "Z"]` and any other order of names finds it.

    Iterates over the sets, smallest first. `unidentified` lists what cannot be learned, `usable` the rest.
    """

    def __init__(
        self, graph: CausalGraph, target: str, found: Iterable[Identification], *, identifiable_only: bool, linear: bool
    ) -> None:
        self.graph, self.target = graph, target
        self.identifiable_only, self.linear = identifiable_only, linear
        self._found = {identification.intervened: identification for identification in found}

    def __getitem__(self, names: str | Iterable[str]) -> Identification:
        wanted = self.graph.require(names)
        if wanted not in self._found:
            raise ExplorationError(f"{braces(wanted)} is not among the {len(self)} sets that were identified")
        return self._found[wanted]

    def __contains__(self, names: object) -> bool:
        given = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
        members = [name for name in given if isinstance(name, str) and name in self.graph.nodes]
        return len(members) == len(given) and self.graph.require(members) in self._found

    def get(self, names: Any, default: Any = None) -> Any:
        """The result of a set, or the default where it was not identified."""
        return self[names] if names in self else default

    def __iter__(self) -> Iterator[Names]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @cached_property
    def usable(self) -> tuple[Names, ...]:
        """Sets whose effects can be learned; with `linear=True` also those that linearity identifies."""
        shown = tqdm(self._found.items(), desc="judging linearity", unit="set", delay=PATIENCE, leave=False)
        return tuple(
            members for members, found in shown if found.identifiable or (self.linear and found.linearity.identified)
        )

    @cached_property
    def unidentified(self) -> tuple[Names, ...]:
        """Sets whose effects cannot be learned."""
        usable = set(self.usable)
        return tuple(members for members in self._found if members not in usable)

    @property
    def dropped(self) -> tuple[Names, ...]:
        """Sets that are left out of all that follows: the unidentified ones, where `identifiable_only` says so."""
        return self.unidentified if self.identifiable_only else ()

    def require_usable(self) -> tuple[Names, ...]:
        """The usable sets; raises NotIdentifiable for the first that is not, unless `identifiable_only`."""
        if self.unidentified and not (self.identifiable_only and self.usable):
            rest = f" ({len(self.unidentified)} of {len(self)} sets are like that)"
            advice = DROP if self.usable else "no other set of this problem can be learned either"
            raise self._found[self.unidentified[0]].not_identifiable(advice + rest)
        return self.usable

    def parameters(self, kind: str = "structural", *, intercepts: bool = True) -> Parameters:
        """theta_Y: the coordinates that the usable sets share; kinds: structural, total_effect, estimand."""
        require_kind(kind)
        sets = self.require_usable()
        if kind == "estimand" and (bare := [members for members in sets if not self._found[members].identifiable]):
            raise self._found[bare[0]].not_identifiable(
                "linearity identifies it, but there is no estimand for it: take structural parameters"
            )
        found = [self._found[members] for members in sets]
        reductions = tuple(identification.reduction for identification in found)
        explored = Explored(self.graph, self.target, sets, reductions, dict(found[0].known))
        return collect(explored, kind, intercepts=intercepts)

    def to_frame(self) -> pd.DataFrame:
        """A row for every set."""
        index = pd.Index(map(set_label, self._found), name="set")
        return pd.DataFrame([_row(found, self.linear) for found in self._found.values()], index=index)

    def __repr__(self) -> str:
        learned = sum(found.identifiable for found in self._found.values())
        again = sum(found.route == "rederived" for found in self._found.values())
        rest = (f", {again} rederived" if again else "") + (
            f"; {'dropped' if self.dropped else 'not'}: {listed(map(braces, self.unidentified), 5)}"
            if self.unidentified
            else ""
        )
        return f"Identifications({self.target}: {learned} of {len(self)} sets identifiable and verified{rest})"

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(max_rows=60)


def _row(found: Identification, linear: bool) -> dict[str, object]:
    row = {
        "identifiable": found.identifiable,
        "estimand": found.text if found.identifiable else "",
        "route": found.route,
        "verified": found.verified,
        "error": found.error,
        "effective": ", ".join(found.effective),
        "parameters": ", ".join(found.parameters(intercepts=False)),
        "hedge": " in ".join(map(braces, reversed(found.hedge))),
    }
    return row | ({"linearity": f"{found.linearity.verdict} ({found.linearity.evidence})"} if linear else {})
