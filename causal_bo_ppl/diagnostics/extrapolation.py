"""Which effects are extrapolated beyond the data?

An intervention moves everything downstream of it. Where an input of a mechanism lies outside the
range in which it was observed, the effect depends on how the mechanism is extrapolated.
"""

import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, Check, judge
from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ArgumentError, PosteriorError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.mechanisms.base import Extrapolation, offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import default_design
from causal_bo_ppl.problem.interventions import labels
from causal_bo_ppl.responses import response

DESIGN_QUERIES = 64  # vertices, and as many points inside the boxes, where no query is named
MOST_QUERIES_NAMED = 3  # in the text; the table has all


def check_extrapolation(
    post: Posterior, queries: Queries | None = None, *, most: float = 0.05
) -> Check:
    """Find interventions whose effects depend on mechanisms beyond the range of their data.

    Inside the data bands may be too narrow too, where observations are sparse and a mechanism is
    more nonlinear than elsewhere; `cb.diagnostics.check_predictive` tests that.

    Parameters
    ----------
    post:
        A posterior of mechanisms that know the range of their data, as those of
        `mechanisms="gp"` do.
    queries:
        Interventions to check; by default up to 64 vertices of the sets, and as many points of a
        Sobol sequence inside their boxes.
    most:
        The share of paths from an intervention to the target that may leave the data. Paths are
        those over which an effect is averaged, at the posterior mean of theta.

    Returns
    -------
    Check
        A row for every query. `outside` is the share of the paths on which an input of some
        mechanism lies outside the range of its data. The worst input is that of the `mechanism` of
        a variable from its `cause`: the `share` of paths on which it lies outside, and how far, in
        `ranges` of the data on average. An input that is set is outside as soon as it leaves the
        range, one that varies by itself when it does so by a tenth of the range or more.
        `variance_share` is the share of the effect's variance, linearized at the mean, that comes
        from coefficients which act outside the data only. A row fails where `outside` exceeds
        `most`: the effect there is a guess, with the width that the prior gives it.

    Raises
    ------
    PosteriorError
        If the mechanisms do not know the range of their data; `cb.diagnostics.check_overlap`
        compares domains with the observations of any problem.
    ArgumentError
        If there is no query, or `most` is not between 0 and 1.

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
        raise PosteriorError(
            f"{post.mechanisms} mechanisms do not know the range of their data; "
            "cb.diagnostics.check_overlap(post) compares the domains with the observations"
        )
    asked = default_design(post.problem, post.sets, queries, DESIGN_QUERIES)
    if not len(asked):
        raise ArgumentError("there is no intervention to check: give at least one query")
    table = _tabulate(post, asked, find(post.mean, asked), most)
    return Check("extrapolation", table, _describe(table, most), _advise(table))


def _tabulate(
    post: Posterior, queries: Queries, extrapolation: Extrapolation, most: float
) -> pd.DataFrame:
    jacobian = np.asarray(response(post).jacobian(post.mean, queries))
    variance, beyond = ((jacobian @ post.factor) ** 2).sum(axis=1), extrapolation.beyond
    outer = ((jacobian[:, beyond] @ post.factor[beyond]) ** 2).sum(axis=1)
    shares = np.column_stack([np.zeros(len(queries)), extrapolation.shares])
    distances = np.column_stack([np.zeros(len(queries)), extrapolation.distances])
    worst = (shares * distances).argmax(axis=1)  # by the mean distance over all paths
    inputs = [("", ""), *extrapolation.inputs]  # the first where no path leaves the data
    return pd.DataFrame(
        {
            "outside": extrapolation.outside,
            "mechanism": [inputs[position][0] for position in worst],
            "cause": [inputs[position][1] for position in worst],
            "share": np.take_along_axis(shares, worst[:, None], axis=1)[:, 0],
            "ranges": np.take_along_axis(distances, worst[:, None], axis=1)[:, 0],
            "variance_share": np.clip(outer / np.where(variance > 0, variance, 1.0), 0.0, 1.0),
            "verdict": [judge(bool(share <= most)) for share in extrapolation.outside],
        },
        index=pd.Index(labels(post.problem, queries), name="query"),
    )


def _describe(table: pd.DataFrame, most: float) -> str:
    failed = table[table["verdict"] == FAILED]
    if not len(failed):
        return (
            f"Of {len(table)} interventions none sends more than {most:.0%} of its paths beyond "
            "the data."
        )
    weight = failed["outside"] * (failed["ranges"] + failed["variance_share"])
    order = weight.sort_values(ascending=False, kind="stable").index
    parts = [
        f"{query}: {row['share']:.0%} of the paths enter {row['mechanism']}'s mechanism beyond the "
        f"data of {row['cause']} (by {row['ranges']:.2g} ranges)"
        for query, row in failed.loc[order].head(MOST_QUERIES_NAMED).iterrows()
    ]
    if len(failed) > MOST_QUERIES_NAMED:
        parts.append(f"{len(failed) - MOST_QUERIES_NAMED} more likewise")
    count = f"{len(failed)} of {len(table)} interventions lead beyond the data"
    return f"{count}. {'; '.join(parts)}."


def _advise(table: pd.DataFrame) -> str:
    failed = table[table["verdict"] == FAILED]
    if not len(failed):
        return ""
    causes = ", ".join(dict.fromkeys(failed["cause"]))
    return (
        f"Run experiments that bring {causes} there, narrow the domains to what was observed, or "
        "regard these effects as guesses: their width is the prior's (`variance_share`)."
    )
