"""Which mechanisms are lines, and which may bend? The rows decide, and it is said in words."""

from typing import NamedTuple

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.identity import digest
from causal_bo_ppl.data.outcomes import no_outcomes
from causal_bo_ppl.errors import DataError, ModelError, listed
from causal_bo_ppl.inference.comparison_with_lines import (
    DRAWS,
    STRAIGHT,
    compare_with_lines,
    leave_rows_out,
    tell,
)
from causal_bo_ppl.inference.conjugate import Conjugate
from causal_bo_ppl.inference.posterior import Posterior
from causal_bo_ppl.mechanisms.interfaces import Mechanisms, Task, offered
from causal_bo_ppl.mechanisms.linear.model import Linear
from causal_bo_ppl.problem import Problem

FEWEST = 4  # rows that are left out one by one


class Chosen(NamedTuple):
    """A family, and how it was chosen; None where there was nothing to choose."""

    family: Mechanisms
    check: Check | None


def choose_mechanisms(
    problem: Problem, data: Data, family: Mechanisms, prior: object = None
) -> Chosen:
    """Return the family to go on with; a family that offers no `decide` is kept as it is.

    Every mechanism that may bend is compared with a linear one on rows that were left out (see
    `cb.check_linearity`). It is linear where a line is enough, and may bend elsewhere, also where
    the rows cannot tell.
    """
    decide = offered(family, "decide")
    if decide is None:
        return Chosen(family, None)
    graph = problem.graph.ancestral(problem.target)
    if graph.bidirected:
        one, other = graph.bidirected[0]
        raise ModelError(
            f"a latent cause joins {one!r} and {other!r}, so that there are no mechanisms to be "
            f'compared on rows; say mechanisms="linear" or "gp" instead of {family.name!r}'
        )
    if len(data) < FEWEST:
        raise DataError(
            f"{family.name!r} compares mechanisms on rows that are left out, and there are "
            f'{len(data)}; give at least {FEWEST}, or say mechanisms="linear" or "gp"'
        )
    bent, lines = (
        leave_rows_out(_fit(problem, data, each, own), DRAWS, 0)
        for each, own in ((family, prior), (Linear(), None))
    )
    table = compare_with_lines(problem, bent, lines)
    is_straight = table["finding"] == STRAIGHT
    straight, bends = (list(map(str, table.index[each])) for each in (is_straight, ~is_straight))
    chosen = [f"Gaussian processes for {listed(bends)}"] if bends else []
    chosen += [f"lines for {listed(straight)}"] if straight else []
    text = f"The rows chose {' and '.join(chosen)}. {tell(table)}"
    return Chosen(decide(straight, bends, prior), Check("mechanisms chosen", table, text))


def _fit(problem: Problem, data: Data, family: Mechanisms, prior: object) -> Posterior:
    nothing = no_outcomes(len(problem.graph.nodes))
    belief = Conjugate().infer(Task(problem, data, nothing, prior), family, None)
    return Posterior(problem, "conjugate", belief, (data,), digest(data), "", family.name)
