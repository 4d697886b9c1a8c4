"""How much is an experiment worth, and where do we look for the next one?

The confidence bound of an effect: mu + sqrt(beta) sd for `max`, mu - sqrt(beta) sd for `min`. Where
the response is affine in the values, mu is affine and sd convex, so the best bound over a box lies
at a vertex: enumerating all vertices of all sets solves this step exactly. Otherwise Sobol points
that fill the boxes are tried too.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_size
from causal_bo_ppl.mechanisms.interfaces import read_record
from causal_bo_ppl.numerics import first_smallest
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import vertices, vertices_and_points
from causal_bo_ppl.surrogates import Prediction, Surrogate


class Acquisition(Protocol):
    """How much a query is worth, given what is believed about all effects."""

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the worth of M queries, (M,); larger is better, whatever the objective.

        It must depend on the surrogate and the query alone, not on the other queries of the batch.
        """


@dataclass(frozen=True)
class ConfidenceBound:
    """The optimistic value of an effect, mean +- sqrt(beta) sd; see `Acquisition`."""

    beta: float = 2.0

    name = "ucb"

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", read_size("beta", self.beta, positive=False))

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        bounds = confidence_bound(surrogate.predict(queries), self.beta, objective)
        return bounds if objective == "max" else -bounds


def confidence_bound(predicted: Prediction, beta: float, objective: str) -> np.ndarray:
    """Return the optimistic value of each effect, (M,)."""
    sign = 1.0 if objective == "max" else -1.0
    return np.asarray(predicted.mean + sign * np.sqrt(beta) * predicted.sd)


def first_best(values: np.ndarray, objective: str) -> int:
    """Return the place of the best value, the first one where several are equally good.

    Candidates come smallest set first, so that a smaller set wins a tie.
    """
    if not len(values):
        raise DomainError("there is no intervention to choose from")
    return first_smallest(values if objective == "min" else -values)


def read_acquisition(given: object, beta: float) -> Acquisition:
    """Return an acquisition, given by its name or as a record of one's own."""
    rule: Acquisition = read_record("acquisition", given, {"ucb": ConfidenceBound(beta)}, "worth")
    return rule


FILL = 64  # Sobol points of every set, where effects bend


class Candidates(NamedTuple):
    """Interventions to choose from, and what each costs, (M,)."""

    queries: Queries
    costs: np.ndarray


def find_candidates(post: Posterior) -> Candidates:
    """Return the interventions among which a posterior's problem is optimized."""
    problem, sets = post.problem, post.sets
    if post.belief.response.is_affine and problem.feasible_rule is None:
        queries = vertices(problem, sets)
    else:
        queries = vertices_and_points(problem, sets, FILL)
    return Candidates(queries, problem.cost(queries))
