"""Which covariances do effects have under the posterior of theta?"""

from causal_bo_ppl.kernels.comparison import compare_kernels as compare_kernels
from causal_bo_ppl.kernels.exact import KernelEstimate as KernelEstimate
from causal_bo_ppl.kernels.exact import exact_gram as exact_gram
from causal_bo_ppl.kernels.jacobian import coupling as coupling
from causal_bo_ppl.kernels.jacobian import jacobian_features as jacobian_features
from causal_bo_ppl.kernels.jacobian import jacobian_gram as jacobian_gram
from causal_bo_ppl.kernels.jacobian import variance_reduction as variance_reduction
from causal_bo_ppl.kernels.monte_carlo import monte_carlo_features as monte_carlo_features
from causal_bo_ppl.kernels.monte_carlo import monte_carlo_gram as monte_carlo_gram
