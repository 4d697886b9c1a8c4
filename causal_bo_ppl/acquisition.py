"""Which experiment comes next? The acquisition functions that `cb.Settings` takes."""

from causal_bo_ppl.optimization.acquisition import Acquisition as Acquisition
from causal_bo_ppl.optimization.acquisition import ConfidenceBound as ConfidenceBound
from causal_bo_ppl.optimization.acquisition import Context as Context
from causal_bo_ppl.optimization.acquisition import CostSubtracted as CostSubtracted
from causal_bo_ppl.optimization.acquisition import ExpectedImprovement as ExpectedImprovement
from causal_bo_ppl.optimization.acquisition import InTurn as InTurn
from causal_bo_ppl.optimization.acquisition import LogExpectedImprovement as LogExpectedImprovement
from causal_bo_ppl.optimization.acquisition import LookAhead as LookAhead
from causal_bo_ppl.optimization.acquisition import PerCost as PerCost
from causal_bo_ppl.optimization.acquisition import PointwiseBound as PointwiseBound
from causal_bo_ppl.optimization.acquisition import RegretSafeBound as RegretSafeBound
from causal_bo_ppl.optimization.acquisition import Thompson as Thompson
from causal_bo_ppl.theory.constants import BetaSchedule as BetaSchedule
