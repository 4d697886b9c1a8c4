"""What is the posterior of theta given the data, and did the computation work?"""

from causal_bo_ppl.inference.conjugate import Conjugate as Conjugate
from causal_bo_ppl.inference.draws import Limits as Limits
from causal_bo_ppl.inference.laplace import Laplace as Laplace
from causal_bo_ppl.inference.nuts import NUTS as NUTS
from causal_bo_ppl.inference.posterior import Posterior as Posterior
from causal_bo_ppl.inference.posterior import fit as fit
from causal_bo_ppl.inference.posterior import numpyro_model as numpyro_model
from causal_bo_ppl.inference.wishart import Wishart as Wishart
