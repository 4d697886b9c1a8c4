"""Which problems, rows, posteriors and thresholds do checks refuse?"""

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.interfaces import RowModel
from causal_bo_ppl.inference.posterior import require_rows_of
from causal_bo_ppl.inputs import read_count, read_number, require_float64
from causal_bo_ppl.problem import Problem


def require_inputs(
    who: str, problem: Problem | Posterior, data: Data | None
) -> tuple[Problem, Data]:
    """Return a problem and its rows, or those of a posterior.

    What is neither is refused, and so are rows of another problem.
    """
    require_float64()
    if isinstance(problem, Posterior):
        data = problem.data if data is None else data
        problem = problem.problem
    if not isinstance(problem, Problem):
        raise ModelError(
            f"{who} needs a Problem, got {type(problem).__name__}; of a system take system.problem"
        )
    if not isinstance(data, Data):
        raise DataError(
            f"{who} needs Data, got {type(data).__name__}; read a table with "
            "Data.from_frame(problem, ...)"
        )
    require_rows_of(problem, data)
    return problem, data


def require_between(name: str, number: float, low: float, high: float) -> float:
    """Return a threshold if it is a number strictly between two others."""
    threshold = read_number(name, number)
    if not low < threshold < high:
        raise ModelError(f"{name} must lie between {low:g} and {high:g}, got {threshold:g}")
    return threshold


def require_posterior(who: str, post: Posterior) -> None:
    """Refuse what is not a posterior."""
    require_float64()
    if not isinstance(post, Posterior):
        raise ModelError(
            f"{who} needs a Posterior, got {type(post).__name__}; make one with cb.fit"
        )


def require_draws(who: str, draws: object, post: Posterior, least: int = 100) -> int:
    """Return how many draws are asked for; refuse fewer than `least`, asked for or there."""
    count = read_count("draws", draws, least)
    chains = post.belief.chains
    if chains is not None and chains[..., 0].size < least:
        raise ModelError(
            f"{who} needs at least {least} draws, the posterior has {chains[..., 0].size}; "
            "draw longer"
        )
    return count


def require_rows_known(who: str, post: Posterior) -> RowModel:
    """Return what draws of a posterior say about rows; refuse one that knows theta alone."""
    if post.belief.model is None:
        raise ModelError(f"{who} needs whole models, and these draws are of theta alone")
    return post.belief.model
