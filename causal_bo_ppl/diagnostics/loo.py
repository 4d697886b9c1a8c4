"""How well does a mechanism predict rows that it has not seen, and does a single row decide it?

Rows are left out one by one by Pareto-smoothed importance sampling (PSIS-LOO).

Does a mechanism bend, or would a straight line predict as well?

Every mechanism of a posterior is compared with a linear one that learned from the same rows, by the
log density of rows that were left out (PSIS-LOO). The two see the same rows, so that the standard
error of their difference is that of n paired differences:

    difference = sum_i d_i,    standard error = sqrt(n) sd(d_i).

Is the basis of every mechanism that bends fine enough for what was learned about it?
"""

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, judge
from causal_bo_ppl.diagnostics.convergence import (
    require_between,
    require_draws,
    require_observations_known,
    require_posterior,
)
from causal_bo_ppl.errors import DataError, ModelError, listed
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.mechanisms.selection import (
    WORST_PARETO_K,
    HeldOut,
    advise_on_comparison,
    compare_with_linear,
    describe_comparison,
    hold_out_each,
)

LOO_COLUMNS = "mechanism rows elpd se p_loo largest_k influential which verdict".split()


def check_loo(
    post: Posterior,
    *,
    draws: int = 2_000,
    worst_k: float = WORST_PARETO_K,
    key: jax.Array | int = 0,
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
    >>> cb.diagnostics.check_loo(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("check_loo", post)
    worst_k, lines = require_between("worst_k", worst_k, 0, np.inf), []
    for name, each in leave_out("check_loo", post, draws, key).items():
        if len(each.observations) < 2:
            lines.append((name, len(each.observations), *[float("nan")] * 4, 0, "", UNKNOWN))
            continue
        bad = each.observations[~(each.pareto_k <= worst_k)]
        numbers = (each.elpd.sum(), each.standard_error, each.size, each.pareto_k.max())
        which = listed(bad, most=5) if len(bad) else ""
        line = (name, len(each.observations), *map(float, numbers), len(bad), which)
        lines.append((*line, judge(not len(bad))))
    table = pd.DataFrame(lines, columns=LOO_COLUMNS).set_index("mechanism")
    return Check("leave one out", table, _tell_left_out(table), _advise_on_rows(table))


def leave_out(who: str, post: Posterior, draws: int, key: jax.Array | int) -> dict[str, HeldOut]:
    """Leave every row out of every mechanism, where the posterior allows it."""
    if post.n_observations < 2:
        raise DataError(f"leaving rows out needs at least 2 of them, got {post.n_observations}")
    require_draws(who, draws, post)
    require_observations_known(who, post)
    return hold_out_each(post, draws, key)


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


def check_linearity(
    post: Posterior,
    *,
    margin: float = 4.0,
    least: float = 1.0,
    draws: int = 2_000,
    key: jax.Array | int = 0,
) -> Check:
    """Compare every mechanism with a linear one on rows that were left out.

    Linear mechanisms are fitted to the same problem and rows in closed form. Outcomes of the target
    alone, if the posterior learned from any, are not used for them.

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, such as one of `mechanisms="gp"`.
    margin:
        By how much, in log density summed over the rows, a bent mechanism may at most be better
        where a linear one is called enough. Differences below 4 are commonly held to be small.
    least:
        By how much it must be better where it is said to bend.
    draws:
        About how many draws of either posterior are used.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for every mechanism with causes: the `difference` of expected log densities of new
        rows, the posterior's minus the linear one's, summed over the rows; its standard error `se`;
        the largest Pareto k of the posterior's rows, `largest_k`, and of the linear one's,
        `linear_k`. Where k exceeds 0.7 the log density of that row is too high, more often than
        not. So the `finding` is "bends" where the difference exceeds `least` and two standard
        errors on the rows that the posterior's k allows to judge, at least nine tenths of all;
        else "linear is enough" where difference plus two standard errors stay below `margin` and
        no k of the linear mechanism is too large; else "cannot tell". The verdict of a line is
        "passed" where there is a finding and "not assessed" where there is none: a bend is no fault
        of mechanisms that may bend, and neither is a straight line. No line fails.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> post = cb.fit(system.problem, system.observe(100, 0), mechanisms=cb.GP(functions=8))
    >>> cb.diagnostics.check_linearity(post).table.loc["Z", "finding"]
    'nonlinear'
    """
    require_posterior("check_linearity", post)
    if post.distribution.response.is_affine:
        raise ModelError(
            f"these {post.mechanisms} mechanisms cannot bend, so that there is nothing to compare; "
            'fit with mechanisms="gp" first'
        )
    margin = require_between("margin", margin, 0, np.inf)
    least = require_between("least", least, 0, np.inf)
    ours = leave_out("check_linearity", post, draws, key)
    straight = fit(post.problem, post.data, mechanisms="linear", method="conjugate")
    theirs = leave_out("check_linearity", straight, draws, key)
    table = compare_with_linear(post.problem, ours, theirs, margin=margin, least=least)
    return Check("linearity", table, describe_comparison(table), advise_on_comparison(table))


def check_basis(post: Posterior, *, most: float = 0.05) -> Check:
    """Compare the finite basis of every Gaussian process with the exact process.

    Parameters
    ----------
    post:
        A posterior of mechanisms that have a basis, as those of `mechanisms="gp"` do.
    most:
        The largest difference of the two kernels that passes, for processes of amplitude 1.

    Returns
    -------
    Check
        A line for every process: how many basis `functions` it has, its `amplitude` and shortest
        `lengthscale` at the mode of the hyperparameters, the lengthscale that is `resolved` by the
        rule of thumb for a squared exponential, and the `error`, the largest difference between the
        kernel of the basis and the exact one within the box of data and domain, apart from
        constants and linear functions, which level and trend hold.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> post = cb.fit(system.problem, system.observe(100, 0), mechanisms="gp")
    >>> cb.diagnostics.check_basis(post).verdict
    'passed'
    """
    require_posterior("check_basis", post)
    basis = offered(post.distribution.model, "basis")
    if basis is None:
        raise ModelError(f"{post.mechanisms} mechanisms have no basis that could be too coarse")
    table: pd.DataFrame = basis()
    most = read_share("most", most)
    if not len(table):
        raise ModelError("all of these mechanisms are linear; there is no basis to check")
    table["verdict"] = [judge(bool(error <= most)) for error in table["error"]]
    failed = table[table["verdict"] == FAILED]
    worst = table.loc[int(np.argmax(table["error"].to_numpy()))]
    text = (
        f"The kernels of {len(table)} processes are met within {worst['error']:.2g} of their "
        f"variance, the worst being {worst['variable']} from {worst['causes']}."
    )
    names = listed(
        [f"{line['variable']} from {line['causes']}" for _, line in failed.iterrows()], most=5
    )
    advice = (
        f"Give {names} more basis functions, such as cb.GP(functions=64), or narrow the domains."
        if len(failed)
        else ""
    )
    return Check("basis", table, text, advice)
