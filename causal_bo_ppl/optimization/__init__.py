"""Which experiment next?"""

from causal_bo_ppl.optimization.acquisition import CostSubtracted as CostSubtracted
from causal_bo_ppl.optimization.acquisition import InTurn as InTurn
from causal_bo_ppl.optimization.acquisition import PerCost as PerCost
from causal_bo_ppl.optimization.analytic import BetaSchedule as BetaSchedule
from causal_bo_ppl.optimization.analytic import ConfidenceBound as ConfidenceBound
from causal_bo_ppl.optimization.analytic import ExpectedImprovement as ExpectedImprovement
from causal_bo_ppl.optimization.analytic import LogExpectedImprovement as LogExpectedImprovement
from causal_bo_ppl.optimization.analytic import PointwiseBound as PointwiseBound
from causal_bo_ppl.optimization.analytic import RegretSafeBound as RegretSafeBound
from causal_bo_ppl.optimization.analytic import Thompson as Thompson
from causal_bo_ppl.optimization.lookahead import LookAhead as LookAhead
from causal_bo_ppl.optimization.loop import optimize as optimize
from causal_bo_ppl.optimization.regret import RegretDecomposition as RegretDecomposition
from causal_bo_ppl.optimization.regret import decompose_regret as decompose_regret
from causal_bo_ppl.optimization.run import Run as Run
from causal_bo_ppl.optimization.settings import Observe as Observe
from causal_bo_ppl.optimization.settings import Settings as Settings
from causal_bo_ppl.optimization.settings import Stop as Stop
from causal_bo_ppl.optimization.study import Study as Study
