"""How large are the quantities of the paper's theory for a given problem and posterior?"""

from causal_bo_ppl.theory.constants import exploration_error as exploration_error
from causal_bo_ppl.theory.constants import kappa2 as kappa2
from causal_bo_ppl.theory.constants import lipschitz as lipschitz
from causal_bo_ppl.theory.constants import parameter_error as parameter_error
from causal_bo_ppl.theory.drift import concentration as concentration
from causal_bo_ppl.theory.drift import design_strength as design_strength
from causal_bo_ppl.theory.drift import growing_data_bound as growing_data_bound
from causal_bo_ppl.theory.drift import growing_data_sum as growing_data_sum
from causal_bo_ppl.theory.drift import kernel_drift as kernel_drift
from causal_bo_ppl.theory.drift import rate as rate
from causal_bo_ppl.theory.drift import variance_sum_ceiling as variance_sum_ceiling
from causal_bo_ppl.theory.drift import variance_sum_ratio as variance_sum_ratio
from causal_bo_ppl.theory.information_gains import causal_rank as causal_rank
from causal_bo_ppl.theory.information_gains import effective_rank as effective_rank
from causal_bo_ppl.theory.information_gains import gain_curves as gain_curves
from causal_bo_ppl.theory.information_gains import greedy_gain as greedy_gain
from causal_bo_ppl.theory.information_gains import information_gain as information_gain
from causal_bo_ppl.theory.information_gains import information_gain_bound as information_gain_bound
from causal_bo_ppl.theory.information_gains import theory_table as theory_table
from causal_bo_ppl.theory.paths import mechanism_errors as mechanism_errors
from causal_bo_ppl.theory.paths import mechanism_slopes as mechanism_slopes
from causal_bo_ppl.theory.paths import path_errors as path_errors
from causal_bo_ppl.theory.paths import path_lipschitz_bound as path_lipschitz_bound
from causal_bo_ppl.theory.paths import path_sensitivities as path_sensitivities
from causal_bo_ppl.theory.regret import RegretDecomposition as RegretDecomposition
from causal_bo_ppl.theory.regret import decompose_regret as decompose_regret
