"""Linear where that is enough, Gaussian processes where a mechanism bends: the rows decide."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from causal_bo_ppl.mechanisms.gp.family import GaussianProcesses
from causal_bo_ppl.mechanisms.interfaces import Mechanisms, Task
from causal_bo_ppl.mechanisms.linear.model import Linear


@dataclass(frozen=True)
class Automatic:
    """The choice between lines and mechanisms that bend; see `interfaces.Mechanisms`.

    What is fitted first may bend everywhere; `decide` then returns the family to go on with.
    """

    name = "auto"

    def bind(self, task: Task) -> Any:
        """Return the model in which every mechanism may bend."""
        return GaussianProcesses().bind(task)

    def decide(self, straight: Collection[str], bent: Collection[str], prior: object) -> Mechanisms:
        """Return the family in which only some mechanisms bend.

        straight, bent: the variables with causes whose mechanisms were compared. prior: what was
        given; without one, lines alone are the linear family, whose posterior is exact.
        """
        if not bent and prior is None:
            return Linear()
        return GaussianProcesses(dict.fromkeys(bent, "gp"), "linear")
