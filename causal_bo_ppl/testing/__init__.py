"""Do user-defined systems and plugins keep the promises of their interfaces?"""

from causal_bo_ppl.testing.contracts import check_acquisition as check_acquisition
from causal_bo_ppl.testing.contracts import check_mechanisms as check_mechanisms
from causal_bo_ppl.testing.contracts import check_method as check_method
from causal_bo_ppl.testing.contracts import check_response_map as check_response_map
from causal_bo_ppl.testing.contracts import check_surrogate as check_surrogate
from causal_bo_ppl.testing.systems import check_system as check_system
