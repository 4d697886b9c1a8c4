"""How is a result drawn?

Each function takes a result and, mostly, an Axes, and returns the Axes that it drew on.
"""

from causal_bo_ppl.plots.comparisons import draw_convergence as draw_convergence
from causal_bo_ppl.plots.comparisons import draw_differences as draw_differences
from causal_bo_ppl.plots.comparisons import draw_sizes as draw_sizes
from causal_bo_ppl.plots.comparisons import draw_transfer as draw_transfer
from causal_bo_ppl.plots.diagnostics import draw_calibration as draw_calibration
from causal_bo_ppl.plots.diagnostics import draw_effect_errors as draw_effect_errors
from causal_bo_ppl.plots.diagnostics import draw_mahalanobis as draw_mahalanobis
from causal_bo_ppl.plots.diagnostics import draw_overlap as draw_overlap
from causal_bo_ppl.plots.diagnostics import draw_prior_predictive as draw_prior_predictive
from causal_bo_ppl.plots.diagnostics import draw_robustness as draw_robustness
from causal_bo_ppl.plots.graphs import draw_effect as draw_effect
from causal_bo_ppl.plots.graphs import draw_graph as draw_graph
from causal_bo_ppl.plots.graphs import draw_identification as draw_identification
from causal_bo_ppl.plots.graphs import draw_problem as draw_problem
from causal_bo_ppl.plots.graphs import draw_sharing as draw_sharing
from causal_bo_ppl.plots.kernels import draw_concentration as draw_concentration
from causal_bo_ppl.plots.kernels import draw_coupling as draw_coupling
from causal_bo_ppl.plots.kernels import draw_errors_by_observations as draw_errors_by_observations
from causal_bo_ppl.plots.kernels import draw_gains as draw_gains
from causal_bo_ppl.plots.kernels import draw_kernel_errors as draw_kernel_errors
from causal_bo_ppl.plots.kernels import draw_spectrum as draw_spectrum
from causal_bo_ppl.plots.kernels import draw_terms as draw_terms
from causal_bo_ppl.plots.kernels import draw_theory as draw_theory
from causal_bo_ppl.plots.kernels import draw_variance_reduction as draw_variance_reduction
from causal_bo_ppl.plots.mechanisms import draw_mechanisms as draw_mechanisms
from causal_bo_ppl.plots.mechanisms import draw_prior as draw_prior
from causal_bo_ppl.plots.posteriors import draw_coverage as draw_coverage
from causal_bo_ppl.plots.posteriors import draw_energy as draw_energy
from causal_bo_ppl.plots.posteriors import draw_posterior as draw_posterior
from causal_bo_ppl.plots.posteriors import draw_rank as draw_rank
from causal_bo_ppl.plots.posteriors import draw_response as draw_response
from causal_bo_ppl.plots.posteriors import draw_trace as draw_trace
from causal_bo_ppl.plots.runs import draw_experiments as draw_experiments
from causal_bo_ppl.plots.runs import draw_learning as draw_learning
from causal_bo_ppl.plots.runs import draw_progress as draw_progress
from causal_bo_ppl.plots.runs import draw_run as draw_run
from causal_bo_ppl.plots.runs import draw_surprise as draw_surprise
from causal_bo_ppl.plots.style import to_png as to_png
from causal_bo_ppl.plots.style import to_svg as to_svg
