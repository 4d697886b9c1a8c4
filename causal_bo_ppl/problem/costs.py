"""What does an intervention cost?

One unit per variable, a constant per variable, a constant plus the size of every value that is set,
or any function of the interventions. A search needs to know which: where costs do not depend on the
values, vertices stay the best places, and where they are a constant + |x|, planes x = 0 join them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from causal_bo_ppl.errors import CausalBOError, DomainError, listed, shown
from causal_bo_ppl.inputs import read_number
from causal_bo_ppl.problem.interventions import Queries

CostFunction = Callable[[Queries], "np.ndarray"]
Costs = Mapping[str, float] | CostFunction | str | None


@dataclass(frozen=True)
class ConstantCost:
    """The cost c(z) = sum of a constant for each variable that is set.

    constants: one for each variable, in the order of the graph's nodes.
    """

    constants: tuple[float, ...]

    def __call__(self, queries: Queries) -> np.ndarray:
        """Return the costs of a batch, an array of shape (M,)."""
        mask = np.asarray(queries.mask)  # summed as it stands: products by BLAS differ by processor
        return np.asarray(np.where(mask, np.asarray(self.constants), 0.0).sum(axis=1))


@dataclass(frozen=True)
class MagnitudeCost:
    """The cost c(z) = sum of (constant + |x|) over the variables set to x."""

    constant: float = 1.0

    def __call__(self, queries: Queries) -> np.ndarray:
        """Return the costs of a batch, an array of shape (M,)."""
        mask = np.asarray(queries.mask)
        return np.asarray(
            np.where(mask, self.constant + np.abs(np.asarray(queries.value)), 0.0).sum(axis=1)
        )


def read_costs(
    costs: Costs,
    nodes: tuple[str, ...],
    manipulable: tuple[str, ...],
) -> CostFunction:
    """Turn what the analyst gave into a function of a batch; None means one unit per variable."""
    if callable(costs):
        return costs
    if isinstance(costs, str) and costs == "magnitude":
        return MagnitudeCost()
    if costs is not None and not isinstance(costs, Mapping):
        raise DomainError(
            'costs must be {variable: cost}, "magnitude" (1 + |x| per variable) or a function of '
            f"Queries, got {costs!r}"
        )
    given = (
        dict.fromkeys(manipulable, 1.0)
        if costs is None
        else {name: read_number(name, c) for name, c in costs.items()}
    )
    if set(given) != set(manipulable):
        missing, extra = (
            listed(sorted(names, key=str))
            for names in ({*manipulable} - {*given}, {*given} - {*manipulable})
        )
        raise DomainError(
            f"costs must name each manipulable variable; missing: {missing}; "
            f"not manipulable: {extra}"
        )
    for name, cost in given.items():
        if not (np.isfinite(cost) and cost > 0):
            raise DomainError(f"the cost of {name!r} is {cost}; costs must be positive and finite")
    return ConstantCost(tuple(float(given.get(name, 0.0)) for name in nodes))


def evaluate_costs(costs: CostFunction, queries: Queries) -> np.ndarray:
    """Return the costs of a batch, an array of shape (M,); refuse any not positive and finite."""
    batch = Queries(np.array(queries.mask), np.array(queries.value))  # it may write into its copy
    try:
        numbers = np.asarray(costs(batch))
    except CausalBOError:
        raise
    except Exception as error:  # the function is somebody else's code and may raise anything
        raise DomainError(
            f"the cost function raised {shown(error)} for {len(queries)} interventions; it must "
            "return the cost of every legal intervention"
        ) from error
    if numbers.dtype.kind not in "iuf":
        raise DomainError(f"the cost function returned {numbers.dtype}; return (M,) real numbers")
    if numbers.shape != (len(queries),):
        raise DomainError(
            f"the cost function returned shape {numbers.shape} for {len(queries)} interventions; "
            "return (M,)"
        )
    bad = ~(np.isfinite(numbers) & (numbers > 0))
    bad &= np.asarray(queries.mask).any(axis=1) | ~(numbers == 0)  # doing nothing may be free
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DomainError(
            f"the cost of intervention {row} is {numbers[row]}; costs must be positive and finite"
        )
    return numbers.astype(float)
