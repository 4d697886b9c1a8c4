"""Which experiment next?"""

from causal_bo_ppl.optimization.acquisition import CostSubtracted as CostSubtracted
from causal_bo_ppl.optimization.acquisition import InTurn as InTurn
from causal_bo_ppl.optimization.acquisition import PerCost as PerCost
from causal_bo_ppl.optimization.confidence import BetaSchedule as BetaSchedule
from causal_bo_ppl.optimization.confidence import ConfidenceBound as ConfidenceBound
from causal_bo_ppl.optimization.confidence import PointwiseBound as PointwiseBound
from causal_bo_ppl.optimization.confidence import RegretSafeBound as RegretSafeBound
from causal_bo_ppl.optimization.confidence import Thompson as Thompson
from causal_bo_ppl.optimization.improvement import ExpectedImprovement as ExpectedImprovement
from causal_bo_ppl.optimization.improvement import LogExpectedImprovement as LogExpectedImprovement
from causal_bo_ppl.optimization.lookahead import LookAhead as LookAhead
from causal_bo_ppl.optimization.loop import optimize as optimize
from causal_bo_ppl.optimization.regret import RegretDecomposition as RegretDecomposition
from causal_bo_ppl.optimization.regret import decompose_regret as decompose_regret
from causal_bo_ppl.optimization.run import Run as Run
from causal_bo_ppl.optimization.settings import Observe as Observe
from causal_bo_ppl.optimization.settings import Settings as Settings
from causal_bo_ppl.optimization.settings import Stop as Stop
