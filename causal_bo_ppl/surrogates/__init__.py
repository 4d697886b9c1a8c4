"""What do we believe about every effect after k experiments?"""

from causal_bo_ppl.surrogates.coupled import Coupled as Coupled
from causal_bo_ppl.surrogates.coupled import CoupledMaker as CoupledMaker
from causal_bo_ppl.surrogates.coupled import couple as couple
from causal_bo_ppl.surrogates.effect_tables import effects as effects
from causal_bo_ppl.surrogates.independent import Independent as Independent
from causal_bo_ppl.surrogates.independent import IndependentMaker as IndependentMaker
from causal_bo_ppl.surrogates.interface import Prediction as Prediction
from causal_bo_ppl.surrogates.interface import Surrogate as Surrogate
from causal_bo_ppl.surrogates.interface import SurrogateMaker as SurrogateMaker
from causal_bo_ppl.surrogates.plain import PlainMaker as PlainMaker
from causal_bo_ppl.surrogates.plain import all_at_once as all_at_once
from causal_bo_ppl.surrogates.uncoupled import Uncoupled as Uncoupled
from causal_bo_ppl.surrogates.uncoupled import UncoupledMaker as UncoupledMaker
