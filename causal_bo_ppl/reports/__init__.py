"""What can be handed to a colleague? A page with the answer and all that stands behind it."""

from causal_bo_ppl.reports.pages import report as report
