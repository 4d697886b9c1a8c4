"""Which posterior do all effects have after k experiments?"""

from causal_bo_ppl.responses import Prediction as Prediction
from causal_bo_ppl.surrogates.base import JointPrediction as JointPrediction
from causal_bo_ppl.surrogates.base import Surrogate as Surrogate
from causal_bo_ppl.surrogates.base import SurrogateMaker as SurrogateMaker
from causal_bo_ppl.surrogates.coupled import Coupled as Coupled
from causal_bo_ppl.surrogates.coupled import CoupledMaker as CoupledMaker
from causal_bo_ppl.surrogates.coupled import couple as couple
from causal_bo_ppl.surrogates.independent_gp import Independent as Independent
from causal_bo_ppl.surrogates.independent_gp import IndependentMaker as IndependentMaker
from causal_bo_ppl.surrogates.independent_gp import Uncoupled as Uncoupled
from causal_bo_ppl.surrogates.independent_gp import UncoupledMaker as UncoupledMaker
