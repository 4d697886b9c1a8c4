"""How well do the rows tell the coefficients of each equation apart?

The regular design of the theory is l_min(X'X) growing like N. Where l_min(X'X)/N is near 0 a combination of
coefficients stays unknown however many rows there are: it is weakly identified.
"""

import numpy as np
import pandas as pd

from causal_bo_ppl.diagnostics.inputs import require_posterior
from causal_bo_ppl.diagnostics.partial_fits import scale_rows
from causal_bo_ppl.identification.coordinates import set_label
from causal_bo_ppl.posterior import Posterior

MINOR = 0.1  # of the largest weight: a name with less is not named
COLUMNS = ["rows", "lambda_min", "standardized", "weakest"]


def design_strength(post: Posterior) -> pd.DataFrame:
    """A line for every equation that is learned: how far its rows spread in the direction they show least.

    lambda_min: the smallest eigenvalue of X'X/N, X the parents with unknown coefficients and, with intercepts, the
    constant 1, over the N rows in which the variable was not set; it depends on units. standardized: the same for the
    parents' correlations, 1 where they are uncorrelated and 0 where collinear, in any units (without intercepts:
    about 0, not the means). weakest: the parents whose combination that is. Where latent causes join a variable to
    others, its regressors are those of its factor in the observational density: the earlier variables so joined, and
    all their parents.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> design_strength(cb.fit(system.problem, system.observe(200, 0))).round(2).loc["Y"].to_dict()
    {'rows': 200, 'lambda_min': 1.0, 'standardized': 1.0, 'weakest': 'Z'}
    """
    require_posterior("design_strength", post)
    lines = {node: _line(post, node) for node in _learned(post)}
    return pd.DataFrame.from_dict(lines, orient="index", columns=COLUMNS).rename_axis("equation")


def _learned(post: Posterior) -> list[str]:
    """The variables some effect leaves free, and whose equations have an unknown coefficient."""
    explored = post.parameters.explored
    opened = explored.graph.require({name for reduction in explored.reductions for name in reduction.open})
    return [node for node in opened if post.parameters.intercepts or _parents(post, node)]


def _parents(post: Posterior, node: str) -> tuple[str, ...]:
    explored = post.parameters.explored
    graph = explored.graph.ancestral(explored.target)
    joined = [name for name in graph.district(node) if graph.index(name) < graph.index(node)]
    if not joined:
        return tuple(cause for cause in graph.parents(node) if (cause, node) not in explored.known)
    together = {*joined, *(cause for name in (node, *joined) for cause in graph.parents(name))} - {node}
    return tuple(name for name in graph.nodes if name in together)


def _line(post: Posterior, node: str) -> tuple[int, float, float, str]:
    data, names, intercepts = post.data, _parents(post, node), post.parameters.intercepts
    used = ~data.intervened[:, data.nodes.index(node)]
    values = data.values[used][:, [data.nodes.index(name) for name in names]]
    raw, _ = _smallest(np.column_stack([np.ones(len(values)), values]) if intercepts else values)
    if not names:
        return len(values), raw, np.nan, ""
    relative, direction = _smallest(_standardize(values, intercepts))
    weights = np.abs(direction)
    together = [name for name, weight in zip(names, weights, strict=True) if weight >= MINOR * weights.max()]
    return len(values), raw, relative, set_label(tuple(together))


def _standardize(values: np.ndarray, centred: bool) -> np.ndarray:
    """Columns with mean square 1, a constant one (or one of zeros) as zeros."""
    if centred and len(values):
        return scale_rows(values).scaled
    shares = values / np.maximum(np.abs(values).max(axis=0, initial=0.0), np.finfo(float).tiny)
    return np.asarray(shares / np.where(shares.any(axis=0), np.sqrt((shares**2).sum(axis=0) / max(len(values), 1)), 1))


def _smallest(columns: np.ndarray) -> tuple[float, np.ndarray]:
    """The smallest eigenvalue of X'X/N by singular values, and its direction; 0 where the rows are too few."""
    count, width = columns.shape
    root = np.linalg.qr(columns, mode="r")
    _, sizes, directions = np.linalg.svd(np.vstack([root, np.zeros((width - len(root), width))]))
    return float(sizes[-1] ** 2 / max(count, 1)), directions[-1]
