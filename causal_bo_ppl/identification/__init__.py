"""Can this effect be learned from these data at all, and through which quantities?"""

import warnings

from tqdm import TqdmWarning

with warnings.catch_warnings():
    # In notebooks y0 asks for a progress widget that it never shows.
    warnings.simplefilter("ignore", TqdmWarning)
    import y0.algorithm.identify  # noqa: F401

from causal_bo_ppl.identification.algorithm import Identification as Identification
from causal_bo_ppl.identification.algorithm import Identifications as Identifications
from causal_bo_ppl.identification.algorithm import identify as identify
from causal_bo_ppl.identification.linear_identification import LinearVerdict as LinearVerdict
from causal_bo_ppl.identification.parameters import Coordinate as Coordinate
from causal_bo_ppl.identification.parameters import Parameters as Parameters
from causal_bo_ppl.identification.verification import check_estimand as check_estimand
