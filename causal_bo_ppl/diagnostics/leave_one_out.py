"""How well does a mechanism predict rows that it has not seen, and does a single row decide it?

Rows are left out one by one by Pareto-smoothed importance sampling (PSIS-LOO).
"""

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, judge
from causal_bo_ppl.diagnostics.convergence import (
    require_between,
    require_draws,
    require_posterior,
    require_rows_known,
)
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.comparison_with_lines import WORST_K, LeftOut, leave_rows_out

LOO_COLUMNS = "mechanism rows elpd se p_loo largest_k influential which verdict".split()


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

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.check_loo(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("check_loo", post)
    worst_k, lines = require_between("worst_k", worst_k, 0, np.inf), []
    for name, each in leave_out("check_loo", post, draws, key).items():
        if len(each.rows) < 2:
            lines.append((name, len(each.rows), *[float("nan")] * 4, 0, "", UNKNOWN))
            continue
        bad = each.rows[~(each.pareto_k <= worst_k)]
        numbers = (each.elpd.sum(), each.standard_error, each.size, each.pareto_k.max())
        which = listed(bad, most=5) if len(bad) else ""
        line = (name, len(each.rows), *map(float, numbers), len(bad), which)
        lines.append((*line, judge(not len(bad))))
    table = pd.DataFrame(lines, columns=LOO_COLUMNS).set_index("mechanism")
    return Check("leave one out", table, _tell_left_out(table), _advise_on_rows(table))


def leave_out(who: str, post: Posterior, draws: int, key: jax.Array | int) -> dict[str, LeftOut]:
    """Leave every row out of every mechanism, where the posterior allows it."""
    if post.rows < 2:
        raise DataError(f"leaving rows out needs at least 2 of them, got {post.rows}")
    require_draws(who, draws, post)
    require_rows_known(who, post)
    return leave_rows_out(post, draws, key)


def _tell_left_out(table: pd.DataFrame) -> str:
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


def _advise_on_rows(table: pd.DataFrame) -> str:
    if FAILED not in set(table["verdict"]):
        return ""
    return (
        "Look at these rows: an error in the data, or a part of the domain where the mechanism is "
        "another."
    )
