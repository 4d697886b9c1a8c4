"""Can a posterior, its Gaussian approximation, and the causal graph be trusted?"""

from causal_bo_ppl.checks import Check as Check
from causal_bo_ppl.diagnostics.calibration import calibrate as calibrate
from causal_bo_ppl.diagnostics.convergence import check_posterior as check_posterior
from causal_bo_ppl.diagnostics.gaussian import Tolerances as Tolerances
from causal_bo_ppl.diagnostics.gaussian import gaussian_error as gaussian_error
from causal_bo_ppl.diagnostics.graph_tests import check_graph as check_graph
from causal_bo_ppl.diagnostics.loo import check_basis as check_basis
from causal_bo_ppl.diagnostics.loo import check_linearity as check_linearity
from causal_bo_ppl.diagnostics.loo import check_loo as check_loo
from causal_bo_ppl.diagnostics.noise import check_noise as check_noise
from causal_bo_ppl.diagnostics.overlap import check_extrapolation as check_extrapolation
from causal_bo_ppl.diagnostics.overlap import check_instruments as check_instruments
from causal_bo_ppl.diagnostics.overlap import check_overlap as check_overlap
from causal_bo_ppl.diagnostics.predictive import check_predictive as check_predictive
from causal_bo_ppl.diagnostics.prior_predictive import (
    check_prior_predictive as check_prior_predictive,
)
from causal_bo_ppl.diagnostics.regressions import check_interactions as check_interactions
from causal_bo_ppl.diagnostics.samples import check_groups as check_groups
from causal_bo_ppl.diagnostics.samples import check_invariance as check_invariance
from causal_bo_ppl.diagnostics.samples import check_sample as check_sample
from causal_bo_ppl.diagnostics.samples import check_sample_size as check_sample_size
from causal_bo_ppl.diagnostics.sensitivity import prior_sensitivity as prior_sensitivity
from causal_bo_ppl.identification import check_estimand as check_estimand
from causal_bo_ppl.inference import Limits as Limits
from causal_bo_ppl.responses import compare_propagations as compare_propagations
