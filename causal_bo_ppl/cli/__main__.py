"""Run the command line by `python -m causal_bo_ppl.cli`."""

from causal_bo_ppl.cli import app

app()
