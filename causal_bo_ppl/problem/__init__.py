"""What may we change, within which limits and at what cost, to improve what?"""

from causal_bo_ppl.problem.domains import Levels as Levels
from causal_bo_ppl.problem.domains import LinearConstraint as LinearConstraint
from causal_bo_ppl.problem.interventions import MagnitudeCost as MagnitudeCost
from causal_bo_ppl.problem.interventions import Queries as Queries
from causal_bo_ppl.problem.problem import Problem as Problem
