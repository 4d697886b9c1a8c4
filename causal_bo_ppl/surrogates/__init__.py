"""What do we believe about every effect after k experiments?"""

from causal_bo_ppl.surrogates.coupled import Coupled as Coupled
from causal_bo_ppl.surrogates.coupled import Prediction as Prediction
from causal_bo_ppl.surrogates.coupled import couple as couple
