"""How does every variable depend on its causes? Families of mechanisms, by name or object."""

from causal_bo_ppl.mechanisms.gp_priors import GP as GP
from causal_bo_ppl.mechanisms.gp_priors import Linear as Linear
from causal_bo_ppl.mechanisms.selection import Choice as Choice
from causal_bo_ppl.mechanisms.selection import read_mechanisms as read_mechanisms
from causal_bo_ppl.mechanisms.selection import read_prior as read_prior
from causal_bo_ppl.mechanisms.selection import read_response as read_response
from causal_bo_ppl.mechanisms.selection import read_written_mechanisms as read_written_mechanisms
from causal_bo_ppl.mechanisms.selection import write_mechanisms as write_mechanisms
from causal_bo_ppl.mechanisms.selection import write_prior as write_prior
