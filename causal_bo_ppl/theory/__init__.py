"""What do the paper's quantities come to, here?"""

from causal_bo_ppl.theory.ranks import causal_rank as causal_rank
