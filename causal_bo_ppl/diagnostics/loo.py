"""How well does a mechanism predict held-out observations, and is it better than a linear one?

Observations are held out one by one: in closed form for independent linear equations and for
Gaussian processes given hyperparameters, otherwise by Pareto-smoothed importance sampling
(PSIS-LOO). In closed form k is the order 1 / k up to which importance weights would have moments:
the leverage of the observation plus its share of the residual sum of squares. Every
mechanism of a posterior is compared with a linear one that learned from the same observations, by
the log density of those held out, so that the standard error of their difference is that of n
paired differences:

    difference = sum_i d_i,    standard error = sqrt(n) sd(d_i).

`check_basis` tests whether the basis of a nonlinear mechanism is fine enough.
"""

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, judge
from causal_bo_ppl.errors import DataError, PosteriorError, listed
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.posterior import (
    require_draws,
    require_observations_known,
    require_posterior,
)
from causal_bo_ppl.inputs import read_share, require_between
from causal_bo_ppl.mechanisms.base import HeldOut, RegressionModel
from causal_bo_ppl.mechanisms.selection import (
    WORST_PARETO_K,
    advise_on_comparison,
    compare_with_linear,
    describe_comparison,
    hold_out_each,
)

LOO_COLUMNS = "mechanism observations elpd se p_loo largest_k influential which verdict".split()


def check_loo(
    post: Posterior,
    *,
    draws: int = 2_000,
    worst_k: float = WORST_PARETO_K,
    key: jax.Array | int = 0,
) -> Check:
    """Hold out every observation of every mechanism, in closed form or by importance sampling.

    A mechanism is the density of a variable given its causes (and the noise of its district before
    it).

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, from at least 2 observations.
    draws:
        About how many draws are used where there is no closed form.
    worst_k:
        A row fails where the Pareto k of an observation exceeds this: then that observation has
        great influence, or the mechanism does not fit it.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every mechanism: `elpd`, its expected log density for a new observation, summed
        over the observations, with the standard error `se`; `p_loo`, the effective number of
        parameters; the `largest_k`; and how many observations are `influential`, and `which`.

    Raises
    ------
    DataError
        If there are fewer than 2 observations.
    PosteriorError
        If the draws are of theta alone, or too few.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.check_loo(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("check_loo", post)
    worst_k, rows = require_between("worst_k", worst_k, 0, np.inf), []
    for name, held in hold_out("check_loo", post, draws, key).items():
        size, bad = len(held.observations), held.observations[~(held.pareto_k <= worst_k)]
        if size < 2:
            rows.append((name, size, *[float("nan")] * 4, 0, "", UNKNOWN))
            continue
        numbers = (held.elpd.sum(), held.standard_error, held.size, held.pareto_k.max())
        which = listed(bad, most=5) if len(bad) else ""
        rows.append((name, size, *map(float, numbers), len(bad), which, judge(not len(bad))))
    table = pd.DataFrame(rows, columns=LOO_COLUMNS).set_index("mechanism")
    failed = table[table["verdict"] == FAILED]
    advice = (
        "Look at these observations: an error in the data, or a part of the domain where the "
        "mechanism is another."
    )
    return Check("leave one out", table, _describe(table, failed), advice if len(failed) else "")


def hold_out(who: str, post: Posterior, draws: int, key: jax.Array | int) -> dict[str, HeldOut]:
    """Hold out every observation of every mechanism, where the posterior allows it."""
    if post.n_observations < 2:
        raise DataError(f"{who} needs at least 2 observations, got {post.n_observations}")
    require_draws(who, draws, post)
    require_observations_known(who, post)
    return hold_out_each(post, draws, key)


def _describe(table: pd.DataFrame, failed: pd.DataFrame) -> str:
    total = (
        f"Expected log density of new observations: {table['elpd'].sum():.1f} over {len(table)} "
        "mechanisms."
    )
    if not len(failed):
        return f"{total} No observation has undue influence."
    named = [
        f"{name} (observations {row['which']}, k up to {row['largest_k']:.2f})"
        for name, row in failed.iterrows()
    ]
    return f"{total} Single observations decide {listed(named, most=5)}."


def check_linearity(
    post: Posterior,
    *,
    margin: float = 4.0,
    least: float = 1.0,
    draws: int = 2_000,
    key: jax.Array | int = 0,
) -> Check:
    """Compare every mechanism with a linear one on held-out observations.

    Linear mechanisms are fitted to the same problem and data in closed form. Outcomes of the target
    alone, if the posterior learned from any, are not used for them.

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, such as one of `mechanisms="gp"`.
    margin:
        By how much, in log density summed over the observations, a nonlinear mechanism may at most
        be better where a linear one is sufficient. Differences below 4 are commonly held to be
        small.
    least:
        By how much it must be better where it is called nonlinear.
    draws:
        About how many draws of either posterior are used.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every mechanism with causes: the `difference` of expected log densities of new
        observations, the posterior's minus the linear one's, summed over the observations; its
        standard error `se`; the largest Pareto k of the posterior, `largest_k`, and of the linear
        one, `linear_k`. Where k exceeds 0.7 the log density of that observation is too high, more
        often than not. So the `finding` is "nonlinear" where the difference exceeds `least` and two
        standard errors on the observations that the posterior's k allows to judge, at least nine
        tenths of all, each of which counts 5 at most; else "linear is enough" where difference plus
        two standard errors stay below `margin` and no k of the linear mechanism is too large; else
        "undecided". The verdict of a row is "passed" where there is a finding and "not assessed"
        where there is none: neither finding is a fault of mechanisms that may be nonlinear. No row
        fails.

    Raises
    ------
    PosteriorError
        If the mechanisms of the posterior are linear.

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
        raise PosteriorError(
            f"these {post.mechanisms} mechanisms are linear, so that there is nothing to compare; "
            'fit with mechanisms="gp" first'
        )
    margin = require_between("margin", margin, 0, np.inf)
    least = require_between("least", least, 0, np.inf)
    linear = fit(post.problem, post.data, mechanisms="linear", method="conjugate")
    ours, theirs = (hold_out("check_linearity", each, draws, key) for each in (post, linear))
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
        A row for every process: how many basis `functions` it has, its `amplitude` and shortest
        `lengthscale` at the mode of the hyperparameters, the lengthscale that is `resolved` by the
        rule of thumb for a squared exponential, and the `error`, the largest difference between the
        kernel of the basis and the exact one within the box of data and domain, apart from
        constants and linear functions, which level and trend hold.

    Raises
    ------
    PosteriorError
        If the mechanisms have no basis.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> post = cb.fit(system.problem, system.observe(100, 0), mechanisms="gp")
    >>> cb.diagnostics.check_basis(post).verdict
    'passed'
    """
    require_posterior("check_basis", post)
    model = post.distribution.model
    if not isinstance(model, RegressionModel):
        raise PosteriorError(f"{post.mechanisms} mechanisms have no basis that could be too coarse")
    table = model.basis()
    most = read_share("most", most)
    if not len(table):
        raise PosteriorError("no mechanism is a Gaussian process; there is no basis to check")
    table["verdict"] = [judge(bool(error <= most)) for error in table["error"]]
    failed = table[table["verdict"] == FAILED]
    worst = table.loc[int(np.argmax(table["error"].to_numpy()))]
    text = (
        f"The kernels of {len(table)} processes are approximated within {worst['error']:.2g} of "
        f"their variance, the worst being {worst['variable']} from {worst['causes']}."
    )
    if not len(failed):
        return Check("basis", table, text)
    names = listed((failed["variable"] + " from " + failed["causes"]).tolist(), most=5)
    advice = (
        f"Give {names} more basis functions, such as cb.GP(functions=64), or narrow the domains."
    )
    return Check("basis", table, text, advice)
