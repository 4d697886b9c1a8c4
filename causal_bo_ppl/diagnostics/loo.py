"""How well does each mechanism predict a row it has not seen, and does a single row decide it?

Rows are left out by Pareto-smoothed importance sampling (PSIS-LOO).
"""

import warnings

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, judge
from causal_bo_ppl.diagnostics.convergence import require_between, require_draws, require_posterior
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.inference import Posterior

WORST_K = 0.7  # beyond it the estimate for that row is not to be trusted
COLUMNS = "mechanism rows elpd se p_loo largest_k influential which verdict".split()


def check_loo(
    post: Posterior, *, draws: int = 2_000, worst_k: float = WORST_K, key: jax.Array | int = 0
) -> Check:
    """Leave every row out of every mechanism, by Pareto-smoothed importance sampling.

    A mechanism is the density of a variable given its causes (and the disturbances of its district
    before it).

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, from at least 2 rows.
    draws:
        About how many draws are used.
    worst_k:
        A line fails where the Pareto k of a row exceeds this: then that row has great influence, or
        the mechanism does not fit it.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for every mechanism: `elpd`, its expected log density for a new row, summed over the
        rows, with the standard error `se`; `p_loo`, how many parameters it seems to have; the
        `largest_k`; and how many rows are `influential`, and `which`.
    """
    require_posterior("check_loo", post)
    if post.rows < 2:
        raise DataError(f"leaving rows out needs at least 2 of them, got {post.rows}")
    require_draws("check_loo", draws, post)
    worst_k = require_between("worst_k", worst_k, 0, np.inf)
    from arviz_stats import loo

    tree, lines = post.to_datatree(draws=draws, key=key), []
    for name in map(str, tree["observed_data"].data_vars):
        rows = tree["log_likelihood"][name].sizes[f"row[{name}]"]
        if rows < 2:
            lines.append((name, rows, *[float("nan")] * 4, 0, "", UNKNOWN))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of large k: the table reports them
            left_out = loo(tree, var_name=name, pointwise=True)
        shapes = left_out.pareto_k
        bad = shapes[f"row[{name}]"].values[~(shapes <= worst_k).values]
        numbers = map(float, (left_out.elpd, left_out.se, left_out.p, shapes.max()))
        which = listed(bad, most=5) if len(bad) else ""
        lines.append((name, rows, *numbers, len(bad), which, judge(not len(bad))))
    table = pd.DataFrame(lines, columns=COLUMNS).set_index("mechanism")
    return Check("leave one out", table, _tell(table), _advise(table))


def _tell(table: pd.DataFrame) -> str:
    total = (
        f"Expected log density of new rows: {table['elpd'].sum():.1f} over {len(table)} mechanisms."
    )
    failed = table[table["verdict"] == FAILED]
    words = [
        f"{name} (rows {line['which']}, k up to {line['largest_k']:.2f})"
        for name, line in failed.iterrows()
    ]
    return (
        f"{total} Single rows decide {listed(words, most=5)}."
        if words
        else f"{total} No row has undue influence."
    )


def _advise(table: pd.DataFrame) -> str:
    if FAILED not in set(table["verdict"]):
        return ""
    return (
        "Look at these rows: an error in the data, or a part of the domain where the mechanism is "
        "another."
    )
