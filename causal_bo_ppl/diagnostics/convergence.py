"""Did the computation of a posterior work?"""

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, judge, sentence
from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.inference.draws import overall
from causal_bo_ppl.inference.posterior import require_posterior

REMEDIES = {
    "divergences": (
        "raise target_accept towards 0.99, or give a stronger prior such as "
        "cb.priors.FixedPrior(...), as for a weak instrument: divergences mean regions that were "
        "never visited"
    ),
    "r_hat": (
        "draw longer (warmup, draws); where chains do not mix the data do not identify parameters"
    ),
    "ess_bulk": "draw longer",
    "ess_tail": "draw longer",
    "bfmi": "warm up longer, or give a stronger prior: the energy is explored too slowly",
}


def check_posterior(post: Posterior, *, limits: Limits | None = None) -> Check:
    """Judge whether the computation of a posterior worked.

    A sampled posterior is judged by R-hat, effective sample sizes, divergences and energy, a
    Laplace approximation by its mode and curvature. One chain cannot be assessed, and NaN fails.

    Parameters
    ----------
    post:
        A posterior by any method.
    limits:
        The limits for a sampled posterior; by default `cb.diagnostics.Limits()`.

    Returns
    -------
    Check
        The table judges the whole; `details` has mean and sd of every parameter, and for draws
        their Monte-Carlo errors, effective sample sizes and R-hat.

    Raises
    ------
    ArgumentError
        If there is no posterior, or the limits are no `Limits`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.check_posterior(cb.fit(system.problem, system.observe(200, 0)))
    posterior: passed. conjugate is a closed form: nothing was sampled and nothing can have failed.
    """
    require_posterior("check_posterior", post)
    limits = Limits() if limits is None else limits
    if not isinstance(limits, Limits):
        raise ArgumentError(
            f"limits must be cb.diagnostics.Limits(r_hat=..., ess=..., bfmi=...), got {limits!r}"
        )
    lines, summary = post.distribution.lines(limits), post.distribution.summary
    text = post.distribution.describe(lines)
    if summary is None:
        is_good = post.verdict in ("exact", PASSED)
        advice = "" if is_good else 'Use method="nuts", or add observations.'
        return Check("posterior", lines, text, advice, post.to_frame()[["mean", "sd"]])
    enough = (summary[["ess_bulk", "ess_tail"]] >= limits.ess).all(axis=1)
    good, alone = (summary["r_hat"] <= limits.r_hat) & enough, bool(summary["r_hat"].isna().all())
    details = summary.assign(verdict=[UNKNOWN if alone else judge(bool(holds)) for holds in good])
    failed = [str(name) for name in lines.index[lines["verdict"] == FAILED]]
    remedies = list(dict.fromkeys(REMEDIES[name] for name in failed))
    if alone:
        remedies.insert(0, "run at least two chains: agreement cannot be assessed otherwise")
    return Check("posterior", lines, text, sentence(remedies), details, overall(lines))
