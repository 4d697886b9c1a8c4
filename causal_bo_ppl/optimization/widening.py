"""What is tried next where no bound beats the best exact outcome? Bounds widen until one does.

Otherwise what is left of the rounds would only confirm what is known. Where effects bend, a local
optimum can hold a run as well: every round promises a little more of it. So every second round asks
for a gain that is worth the name, a share of the range of all outcomes, and bounds widen until some
candidate promises that much; the rounds between them go on with what is best so far.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from causal_bo_ppl.data.outcomes import Replicates
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.optimization.confidence import HAIR
from causal_bo_ppl.optimization.interface import Acquisition, Context, is_affine, sign_of
from causal_bo_ppl.optimization.search import Found, next_to

WORTHWHILE = 0.02  # of the range of outcomes: what every second round must promise to gain


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
    widen = offered(rule, "widen")
    if widen is None:
        return rule, search(rule=rule)
    sign = sign_of(context.objective)
    best = float(sign * (sign * tried.means).max())
    unknown = ~next_to(context.surrogate.post.problem, context.candidates, tried.queries)
    among = replace(context, candidates=context.candidates[unknown])
    if context.round % 2 == 0 and not is_affine(context.surrogate):
        gain = max(HAIR * abs(best), WORTHWHILE * float(np.ptp(tried.means)))
        wider: Acquisition = widen(among, best + sign * gain)
        return wider, _say(rule, wider, search(rule=wider))
    found = search(rule=rule)
    if found.worth > sign * best + HAIR * abs(best):
        return rule, found
    wider = widen(among, best)
    return wider, (found if wider is rule else _say(rule, wider, search(rule=wider)))


def _say(rule: Acquisition, wider: Acquisition, found: Found) -> Found:
    """Return what was found, with words about a bound that was widened for it."""
    before, after = (getattr(each, "beta", None) for each in (rule, wider))
    if before == after:
        return found
    reason = "no candidate promised enough more than the best outcome"
    return found._replace(how=f"{found.how}; beta {after:.3g} instead of {before:.3g}: {reason}")
