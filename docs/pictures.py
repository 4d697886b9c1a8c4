"""Draw the README's picture: the synthetic system, its target and the variables one may set."""

from pathlib import Path

import causal_bo_ppl as cb

axes = cb.plots.draw_problem(cb.models.load("synthetic").problem)
axes.figure.savefig(Path(__file__).with_name("synthetic.png"), dpi=150)
