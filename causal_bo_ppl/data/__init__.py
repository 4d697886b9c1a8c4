"""Are these data usable for this problem, and what can be learned from them?"""

from causal_bo_ppl.data.data import Data as Data
