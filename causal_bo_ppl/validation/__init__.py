"""May the answer be used? All assumptions checked by one call, and what another model would say."""

from causal_bo_ppl.validation.assumptions import validate as validate
from causal_bo_ppl.validation.cards import SECTIONS as SECTIONS
from causal_bo_ppl.validation.cards import Card as Card
from causal_bo_ppl.validation.cards import Validation as Validation
