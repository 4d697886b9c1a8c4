"""Is this a real number?"""

import numpy as np

from causal_bo_ppl.errors import DomainError


def read_number(name: object, number: object) -> float:
    """Return a variable's number as a float; a bool, a text, an array or a giant integer is none."""
    try:
        if isinstance(number, bool | np.bool_ | str | bytes | complex):
            raise TypeError
        return float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise DomainError(f"the value of {name!r} must be a real number, got {number!r}") from None
