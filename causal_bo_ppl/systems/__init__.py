"""Causal systems whose truth is known: a problem, a generator of rows, and exact effects."""

from causal_bo_ppl.systems.system import CausalSystem as CausalSystem
from causal_bo_ppl.systems.system import Optimum as Optimum
