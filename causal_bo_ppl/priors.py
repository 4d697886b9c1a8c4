"""What is known before the data? The priors that `cb.fit` and `cb.Settings` take."""

from causal_bo_ppl.mechanisms.gp_priors import GPPrior as GPPrior
from causal_bo_ppl.mechanisms.linear_equations import FixedPrior as FixedPrior
from causal_bo_ppl.mechanisms.linear_equations import MomentPrior as MomentPrior
from causal_bo_ppl.mechanisms.linear_equations import ScaledPrior as ScaledPrior
