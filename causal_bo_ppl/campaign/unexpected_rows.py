"""Is another variable of a whole row so far from what was expected that it should be asked back?

A whole row teaches every mechanism, so that a typing error in any of its columns spoils what is
believed as much as one in the outcome. A value is asked back where it lies far from all rows that
were observed and is nearly impossible under what was set, by rows that are drawn from the model.
"""

from collections.abc import Sequence

import jax
import numpy as np
from scipy.stats import t as student

from causal_bo_ppl.campaign.asking_back import FAR, IMPROBABLE
from causal_bo_ppl.campaign.told import Record, describe
from causal_bo_ppl.errors import DataError
from causal_bo_ppl.optimization.predicted_outcomes import noise_degrees
from causal_bo_ppl.optimization.state import State
from causal_bo_ppl.problem.queries import stack

DRAWS = 256  # of models, with one row each, whose mean and sd are what is expected
FEWEST = 8  # observed rows that tell what is usual


def require_expected_rows(state: State, records: Sequence[Record]) -> None:
    """Refuse whole rows in which a variable is far from what was expected.

    Only values that teach the mechanisms count: of the target's causes, not set themselves, and of
    rows of experiments only where these teach more than their outcomes.

    Raises
    ------
    DataError
        If a value lies more than 3 sds of its variable from the mean of the observed rows, and has
        a probability below 1e-6 under what was set; the error says how to tell it all the same.
    """
    teaches = state.settings.uses_rows and state.takes_rows
    chosen = [each for each in records if each.row is not None and (each.is_passive or teaches)]
    problem, data = state.problem, state.base.data
    observed = data.values[data.is_observational]
    if not chosen or len(observed) < FEWEST:
        return
    values, was_set = (
        np.concatenate([np.asarray(getattr(each.row, name)) for each in chosen])
        for name in ("values", "intervened")
    )
    mean, sd = np.broadcast_to(observed.mean(axis=0), values.shape).copy(), observed.std(axis=0)
    spread = np.broadcast_to(sd, values.shape).copy()
    is_cause = np.isin(problem.graph.nodes, list(problem.graph.ancestors(problem.target)))
    far = (np.abs(values - mean) > FAR * sd) & (sd > 0) & is_cause & ~was_set
    active = np.flatnonzero(far.any(axis=1) & was_set.any(axis=1))
    if len(active):
        mean[active], spread[active] = _expect(state, [chosen[at] for at in active])
    z = np.abs(values - mean) / np.where(spread > 0, spread, 1.0)
    bad = far & (2 * student.sf(z, noise_degrees(state.posterior)) < IMPROBABLE)
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    more = f" ({int(bad.sum())} values are like that)" if bad.sum() > 1 else ""
    raise DataError(
        f"the row of {describe(problem, chosen[row].query)} has {problem.graph.nodes[column]} = "
        f"{values[row, column]:.6g}, but {mean[row, column]:.4g} +- {spread[row, column]:.2g} was "
        f"expected{more}: is it a typing error, another unit or another sample? Look again, and if "
        "it is right, tell it with sure=True"
    )


def _expect(state: State, records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sd of every variable under what was set in each record, (n, p) each.

    A variable that the model does not draw has an infinite sd: nothing is expected of it.
    """
    post, nodes = state.posterior, state.problem.graph.nodes
    mean, spread = np.zeros((len(records), len(nodes))), np.full((len(records), len(nodes)), np.inf)
    model = post.belief.model
    if model is None:
        return mean, spread
    for_models, for_rows = jax.random.split(jax.random.key(0))
    models = post.belief.drawn(DRAWS, for_models).thinned(DRAWS).models
    queries = post.upstream(stack(each.query for each in records))
    drawn = model.replicate(models, queries, for_rows)
    columns = [state.problem.graph.index(name) for name in model.nodes]
    mean[:, columns], spread[:, columns] = drawn.mean(axis=0), drawn.std(axis=0, ddof=1)
    return mean, spread
