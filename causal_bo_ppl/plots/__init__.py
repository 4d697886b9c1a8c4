"""What does the analyst see? Functions that take a result and an Axes, and return the Axes."""

from causal_bo_ppl.plots.graphs import draw_graph as draw_graph
from causal_bo_ppl.plots.graphs import draw_problem as draw_problem
