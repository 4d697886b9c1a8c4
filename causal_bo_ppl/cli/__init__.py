"""Which commands does `causal-bo` have, and what do they print?

What computes is imported where it is used: help and lists of names must not wait for JAX.
"""

from causal_bo_ppl.cli import analysis, beginning, experiments, simulations
from causal_bo_ppl.cli.terminal import app as app

# Importing a module registers its commands; help lists them in the order of these modules.
MODULES = (beginning, analysis, experiments, simulations)
_POSITIONS = {module.__name__: position for position, module in enumerate(MODULES)}
app.registered_commands.sort(key=lambda each: _POSITIONS[str(each.callback.__module__)])
