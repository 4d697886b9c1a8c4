"""Which experiment next?"""

from causal_bo_ppl.optimization.run import Run as Run
from causal_bo_ppl.optimization.run import optimize as optimize
from causal_bo_ppl.optimization.settings import Observe as Observe
from causal_bo_ppl.optimization.settings import Settings as Settings
from causal_bo_ppl.optimization.settings import Stop as Stop
from causal_bo_ppl.optimization.study import Study as Study
from causal_bo_ppl.theory.regret import RegretDecomposition as RegretDecomposition
from causal_bo_ppl.theory.regret import decompose_regret as decompose_regret
