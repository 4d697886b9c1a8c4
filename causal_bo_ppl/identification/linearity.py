"""What does linearity identify beyond ID?

With Omega(W) = (I - W')S(I - W), a model of the covariance S is a W whose Omega is zero for every pair without
an arc; Omega is then positive definite by itself. tau_s is locally identified when its gradient lies in the row space
of the Jacobian of these equations: a question of rank, answered without rounding. It is identified when the half-trek
criterion solves every equation it goes through; failing that, solving from many starts may find a second tau, or fail
to: evidence, no proof (`second_effects`).
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification.half_treks import half_trek_identified
from causal_bo_ppl.identification.reduction import Reduction, moved
from causal_bo_ppl.identification.residues import PRIME, draw_residues, eliminate, invert, times
from causal_bo_ppl.identification.second_effects import Known, LinearVerdict, look_for_another, unknowns


def judge(graph: CausalGraph, target: str, reduction: Reduction, known: Mapping[Edge, float]) -> LinearVerdict:
    """The verdict for one set; variables that are no causes of the target count too: they may be instruments."""
    return _judge(graph, target, reduction, tuple(known.items()))


@lru_cache(maxsize=100_000)  # sets with equal reductions have one effect
def _judge(graph: CausalGraph, target: str, reduction: Reduction, known: Known) -> LinearVerdict:
    gradient = _gradient(graph, target, reduction, known)
    if not gradient.any():
        return LinearVerdict(True, "identified under linearity", "every coefficient on its paths is known")
    spanned = _row_space(graph, known)
    if len(eliminate(np.vstack([spanned, gradient]))) > len(spanned):
        evidence = "at a random model, others with the same covariance differ in it"
        return LinearVerdict(False, "not identified under linearity", evidence)
    # The criterion holds for almost all coefficients, and given ones may be among the rest.
    settled = frozenset() if known else half_trek_identified(graph)
    if moved(graph, reduction) <= settled:
        return LinearVerdict(True, "identified under linearity", "half-trek criterion")
    return look_for_another(graph, target, reduction, known, settled)


@lru_cache(maxsize=16)
def _row_space(graph: CausalGraph, known: Known) -> np.ndarray:
    """Of d Omega_ab / d W_ij = -[b = j] (BS)_ai - [a = j] (BS)_bi, B = I - W', at a random model."""
    model = draw_residues(graph, 1, dict(known))
    causes, effects, pairs = unknowns(graph, known)
    left = (np.eye(len(graph.nodes), dtype=np.int64) - model.weights[0].T) % PRIME
    product, (one, other) = times(left, model.covariance[0]), pairs.T
    first = np.where(other[:, None] == effects, product[one][:, causes], 0)
    return eliminate(-first - np.where(one[:, None] == effects, product[other][:, causes], 0))


def _gradient(graph: CausalGraph, target: str, reduction: Reduction, known: Known) -> np.ndarray:
    """(d, e) derivatives of every slope in every unknown weight W_ij: what i gets, times how Y answers to j."""
    weights = draw_residues(graph, 1, dict(known)).weights
    free, members = ([graph.index(name) for name in names] for names in (reduction.open, reduction.effective))
    [inner], _ = invert((np.eye(len(free), dtype=np.int64) - weights[:, free][:, :, free]) % PRIME)
    gets, answers = np.zeros((len(members), len(graph.nodes)), np.int64), np.zeros(len(graph.nodes), np.int64)
    gets[:, free] = times(weights[0, members][:, free], inner)
    gets[np.arange(len(members)), members] = 1
    answers[free] = inner[:, free.index(graph.index(target))]
    causes, effects, _ = unknowns(graph, known)
    return np.asarray(gets[:, causes] * answers[effects] % PRIME)
