"""What do we believe about every effect after k experiments?"""

from causal_bo_ppl.surrogates.coupled import Coupled as Coupled
from causal_bo_ppl.surrogates.coupled import CoupledMaker as CoupledMaker
from causal_bo_ppl.surrogates.coupled import couple as couple
from causal_bo_ppl.surrogates.interface import Prediction as Prediction
from causal_bo_ppl.surrogates.interface import Surrogate as Surrogate
from causal_bo_ppl.surrogates.interface import SurrogateMaker as SurrogateMaker
