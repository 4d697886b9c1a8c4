"""May we believe that posterior, its Gaussian approximation, and the graph?"""

from causal_bo_ppl.diagnostics.checks import Check as Check
