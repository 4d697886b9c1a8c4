"""Which experiment comes next? The acquisition functions that `cb.Settings` takes."""

from causal_bo_ppl.optimization.acquisition import Acquisition as Acquisition
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
