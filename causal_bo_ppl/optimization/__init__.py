"""Which experiment next?"""

from causal_bo_ppl.optimization.loop import optimize as optimize
from causal_bo_ppl.optimization.run import Run as Run
from causal_bo_ppl.optimization.settings import Settings as Settings
