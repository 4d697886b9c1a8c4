"""What causes what? The causal graph, its text notation, its intervention sets and its picture."""

from causal_bo_ppl.graph.admg import CausalGraph as CausalGraph
from causal_bo_ppl.graph.admg import Edge as Edge
from causal_bo_ppl.graph.admg import Names as Names
from causal_bo_ppl.graph.intervention_sets import mis as mis
from causal_bo_ppl.graph.intervention_sets import pomis as pomis
