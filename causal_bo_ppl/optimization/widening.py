"""What is tried next where no bound beats the best exact outcome? Bounds widen until one does.

Otherwise what is left of the rounds would only confirm what is known.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from causal_bo_ppl.data.outcomes import Replicates
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.optimization.confidence import HAIR
from causal_bo_ppl.optimization.interface import Acquisition, Context, sign_of
from causal_bo_ppl.optimization.search import Found, next_to

FAR = 2.0  # by which beta must grow for a search with the narrower bound to be left out


def search_beyond(
    search: Callable[..., Found], rule: Acquisition, context: Context, tried: Replicates
) -> tuple[Acquisition, Found]:
    """Return the best query by a bound that beats the best exact outcome, and that bound.

    Parameters
    ----------
    search:
        Function of a `rule` that returns the best query by it.
    rule:
        A prepared acquisition; one without the method `widen` stays as it is.
    context:
        What it knows.
    tried:
        Exact outcomes, at least one.
    """
    sign = sign_of(context.objective)
    best = float(sign * (sign * tried.means).max())
    widen = offered(rule, "widen")
    if widen is None:
        return rule, search(rule=rule)
    unknown = ~next_to(context.surrogate.post.problem, context.candidates, tried.queries)
    wider: Any = widen(replace(context, candidates=context.candidates[unknown]), best)
    narrow: Any = rule
    if wider is not rule and wider.beta > FAR * narrow.beta:
        return wider, search(rule=wider)
    found = search(rule=rule)
    if wider is rule or found.worth > sign * best + HAIR * abs(best):
        return rule, found
    return wider, search(rule=wider)
