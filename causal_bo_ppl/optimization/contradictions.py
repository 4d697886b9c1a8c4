"""What did a state predict for outcomes, and do they contradict it? The analyst is told once."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import CausalBOWarning
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.optimization.predicted_outcomes import (
    PredictedOutcome,
    noise_degrees,
    predict_in_order,
)
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import State
from causal_bo_ppl.optimization.surprise import assess, is_due
from causal_bo_ppl.surrogates.evidence import ENOUGH
from causal_bo_ppl.surrogates.told import Told


class Said(NamedTuple):
    """What the analyst was told before.

    warned: that outcomes contradict the model. switched: that a residual is used.
    """

    warned: bool = False
    switched: bool = False


def predict_outcomes(state: State, told: Told) -> tuple[PredictedOutcome, ...]:
    """Return what the mechanisms alone predicted for each outcome of a batch.

    state: what was known before the batch.
    """
    without = offered(state.surrogate, "without_residual")
    surrogate = state.surrogate if without is None else without()
    return predict_in_order(surrogate, told, noise_degrees(state.posterior))


def warn_of_contradictions(
    state: State,
    settings: Settings,
    told: Sequence[PredictedOutcome],
    said: Said,
    stacklevel: int = 1,
) -> Said:
    """Warn, once each, that outcomes contradict the mechanisms and that a residual is used.

    Parameters
    ----------
    state:
        What is known after all outcomes.
    settings:
        Those that were given; the state's may ask for a residual where rows contradict the graph.
    told:
        Every outcome with its prediction, in order of arrival.
    said:
        What was said before.
    stacklevel:
        1 points at the caller of this function, 2 at the caller of that one, and so on.
    """
    if offered(state.surrogate, "without_residual") is None:
        return said
    warned, switched = said
    learned = getattr(state.surrogate, "learned", None)
    residual = getattr(learned, "residual", None)
    is_auto, log_factor = settings.residual == "auto", getattr(learned, "log_factor", -np.inf)
    if log_factor > np.log(ENOUGH) and is_auto and residual is not None and not switched:
        message = (
            f"The outcomes of experiments are better explained with a residual of "
            f"{residual.amplitude:.3g} for every set (Bayes factor "
            f"{np.exp(min(log_factor, 200.0)):.3g}): from here on they teach the "
            "surrogate, not the mechanisms; `surprise` and cb.check_linearity help to find what is "
            "wrong"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=stacklevel + 1)
        switched = True
    if not warned and is_due(len(told)):
        found = assess(state.problem, told)
        if found.alarm is not None:
            warnings.warn(found.message, CausalBOWarning, stacklevel=stacklevel + 1)
            warned = True
    return Said(warned, switched)
