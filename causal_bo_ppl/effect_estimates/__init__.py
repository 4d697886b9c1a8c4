"""Effects of interventions: their moments, and the table that an analyst reads."""

from causal_bo_ppl.effect_estimates.table import effects as effects
