"""Does a mechanism bend, or would a straight line predict as well?

Every mechanism of a posterior is compared with a linear one that learned from the same rows, by the
log density of rows that were left out (PSIS-LOO). The two see the same rows, so that the standard
error of their difference is that of n paired differences:

    difference = sum_i d_i,    standard error = sqrt(n) sd(d_i).
"""

import jax
import numpy as np

from causal_bo_ppl.checks import Check
from causal_bo_ppl.diagnostics.convergence import require_between, require_posterior
from causal_bo_ppl.diagnostics.leave_one_out import leave_out
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.comparison_with_lines import advise, compare_with_lines, tell


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
    >>> cb.check_linearity(post).table.loc["Z", "finding"]
    'bends'
    """
    require_posterior("check_linearity", post)
    if post.belief.response.is_affine:
        raise ModelError(
            f"these {post.mechanisms} mechanisms cannot bend, so that there is nothing to compare; "
            'fit with mechanisms="gp" first'
        )
    margin = require_between("margin", margin, 0, np.inf)
    least = require_between("least", least, 0, np.inf)
    ours = leave_out("check_linearity", post, draws, key)
    straight = fit(post.problem, post.data, mechanisms="linear", method="conjugate")
    theirs = leave_out("check_linearity", straight, draws, key)
    table = compare_with_lines(post.problem, ours, theirs, margin=margin, least=least)
    return Check("linearity", table, tell(table), advise(table))
