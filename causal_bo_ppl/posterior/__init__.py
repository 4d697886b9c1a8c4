"""What do the data say about theta, and did the computation work?"""

from causal_bo_ppl.posterior.fitting import fit as fit
from causal_bo_ppl.posterior.priors import FixedPrior as FixedPrior
from causal_bo_ppl.posterior.priors import MomentPrior as MomentPrior
from causal_bo_ppl.posterior.priors import ScaledPrior as ScaledPrior
from causal_bo_ppl.posterior.record import Posterior as Posterior
from causal_bo_ppl.posterior.storage import read_datatree as read_datatree
from causal_bo_ppl.posterior.storage import write_datatree as write_datatree
from causal_bo_ppl.posterior.verdict import Limits as Limits
