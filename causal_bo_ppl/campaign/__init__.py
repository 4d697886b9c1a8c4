"""Experiments that somebody else runs: what to try next, and what came back."""

from causal_bo_ppl.campaign.reasons import Reasons as Reasons
from causal_bo_ppl.campaign.study import Study as Study
from causal_bo_ppl.campaign.suggestions import Suggestion as Suggestion
from causal_bo_ppl.campaign.suggestions import Suggestions as Suggestions
