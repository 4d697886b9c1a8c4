"""How much of an answer lies beyond the data?

An intervention moves everything downstream of it. Where an input of a mechanism comes to lie
outside the range in which rows have shown it, the answer rests on how the mechanism was assumed to
go on.
"""

import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, Check, judge
from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.mechanisms.base import Extrapolation, offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import default_design, labels
from causal_bo_ppl.responses import response

QUERIES = 64  # vertices, and as many points inside the boxes, where no query is named
SHOWN = 3  # queries that the text names; the table has all


def check_extrapolation(
    post: Posterior, queries: Queries | None = None, *, most: float = 0.05
) -> Check:
    """Look for interventions whose effects rest on what mechanisms do beyond the data.

    Inside the data bands may be too narrow too, where rows are sparse and a mechanism bends more
    than elsewhere; `cb.diagnostics.check_predictive` looks for that.

    Parameters
    ----------
    post:
        A posterior of mechanisms that know the range of their data, as those of
        `mechanisms="gp"` do.
    queries:
        Interventions to look at; by default up to 64 vertices of the sets, and as many points of a
        Sobol sequence inside their boxes.
    most:
        The share of paths from an intervention to the target that may leave the data. Paths are
        those over which an effect is averaged, at the posterior mean of theta.

    Returns
    -------
    Check
        A line for every query. `outside` is the share of the paths on which an input of some
        mechanism lies outside the range of its data. The worst input is that of the `mechanism` of
        a variable from its `cause`: the `share` of paths on which it lies outside, and how far, in
        `ranges` of the data on average. An input that is set is outside as soon as it leaves the
        range, one that varies by itself when it does so by a tenth of the range or more.
        `variance_share` is the share of the effect's variance, linearized at the mean, that comes
        from coefficients which act outside the data only. A line fails where `outside` exceeds
        `most`: the answer there is a guess, with the width that the prior gives it.

    Raises
    ------
    ModelError
        If the mechanisms do not say where their data lie; `cb.diagnostics.check_overlap` compares domains with
        the rows of any problem.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> post = cb.fit(system.problem, system.observe(50, 0), mechanisms=cb.GP(functions=8))
    >>> far = post.problem.queries([{"Z": 1.0}, {"Z": 20.0}])
    >>> cb.diagnostics.check_extrapolation(post, far).table["verdict"].to_dict()
    {'do(Z = 1)': 'passed', 'do(Z = 20)': 'failed'}
    """
    require_posterior("check_extrapolation", post)
    most = read_share("most", most)
    find = offered(post.distribution.response, "extrapolation")
    if find is None:
        raise ModelError(
            f"{post.mechanisms} mechanisms do not say where their data end; "
            "cb.diagnostics.check_overlap(post) compares the domains with the rows"
        )
    asked = default_design(post.problem, post.sets, queries, QUERIES)
    if not len(asked):
        raise ModelError("there is no intervention to look at: give at least one query")
    found: Extrapolation = find(post.mean, asked)
    table = _tabulate(post, asked, found, most)
    return Check("extrapolation", table, _tell(table, most), _advise(table))


def _tabulate(post: Posterior, queries: Queries, found: Extrapolation, most: float) -> pd.DataFrame:
    jacobian = np.asarray(response(post).jacobian(post.mean, queries))
    variance = ((jacobian @ post.factor) ** 2).sum(axis=1)
    beyond = ((jacobian[:, found.beyond] @ post.factor[found.beyond]) ** 2).sum(axis=1)
    share = np.clip(beyond / np.where(variance > 0, variance, 1.0), 0.0, 1.0)
    rows = np.arange(len(queries))
    leaves = found.shares * found.distances  # the mean distance over all paths
    worst = leaves.argmax(axis=1) if found.inputs else np.zeros(len(queries), int)
    names = [
        found.inputs[at] if found.inputs and leaves[row, at] > 0 else ("", "")
        for row, at in enumerate(worst)
    ]
    parts = (found.shares, found.distances) if found.inputs else [np.zeros((len(queries), 1))] * 2
    return pd.DataFrame(
        {
            "outside": found.outside,
            "mechanism": [variable for variable, _ in names],
            "cause": [cause for _, cause in names],
            "share": parts[0][rows, worst],
            "ranges": parts[1][rows, worst],
            "variance_share": share,
            "verdict": [judge(bool(each <= most)) for each in found.outside],
        },
        index=pd.Index(labels(post.problem, queries), name="query"),
    )


def _tell(table: pd.DataFrame, most: float) -> str:
    failed = table[table["verdict"] == FAILED]
    if not len(failed):
        return (
            f"Of {len(table)} interventions none sends more than {most:.0%} of its paths beyond "
            "the data."
        )
    weight = failed["outside"] * (failed["ranges"] + failed["variance_share"])
    order = weight.sort_values(ascending=False, kind="stable").index
    words = [
        f"{query}: {line['share']:.0%} of the answer rests on {line['mechanism']}'s mechanism "
        f"beyond the data of {line['cause']} (by {line['ranges']:.2g} ranges)"
        for query, line in failed.loc[order].head(SHOWN).iterrows()
    ]
    more = f"; {len(failed) - SHOWN} more likewise" if len(failed) > SHOWN else ""
    count = f"{len(failed)} of {len(table)} interventions lead beyond the data"
    return f"{count}. {'; '.join(words)}{more}."


def _advise(table: pd.DataFrame) -> str:
    failed = table[table["verdict"] == FAILED]
    if not len(failed):
        return ""
    causes = ", ".join(dict.fromkeys(failed["cause"]))
    return (
        f"Run experiments that bring {causes} there, narrow the domains to what was seen, or take "
        "these effects for guesses: their width is the prior's (`variance_share`)."
    )
