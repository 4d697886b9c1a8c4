"""Is the basis of every mechanism that bends fine enough for what was learned about it?"""

import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, Check, judge
from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.mechanisms.interfaces import offered


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
    >>> cb.check_basis(post).verdict
    'passed'
    """
    require_posterior("check_basis", post)
    basis = offered(post.belief.model, "basis")
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
