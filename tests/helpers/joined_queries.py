"""Batches of interventions, joined with NumPy alone."""

import numpy as np

import causal_bo_ppl as cb


def joined(batches):
    """Return one batch of all interventions, in the order given."""
    parts = list(batches)
    return cb.problem.Queries(
        np.concatenate([part.mask for part in parts]),
        np.concatenate([part.value for part in parts]),
    )
