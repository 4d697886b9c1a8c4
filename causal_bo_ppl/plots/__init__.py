"""What does the analyst see? Functions that take a result and an Axes, and return the Axes."""

from causal_bo_ppl.plots.effects import draw_effect as draw_effect
from causal_bo_ppl.plots.effects import draw_identification as draw_identification
from causal_bo_ppl.plots.effects import draw_sharing as draw_sharing
from causal_bo_ppl.plots.graphs import draw_graph as draw_graph
from causal_bo_ppl.plots.graphs import draw_problem as draw_problem
from causal_bo_ppl.plots.posteriors import draw_coverage as draw_coverage
from causal_bo_ppl.plots.posteriors import draw_posterior as draw_posterior
from causal_bo_ppl.plots.posteriors import draw_response as draw_response
from causal_bo_ppl.plots.runs import draw_run as draw_run
