"""Did the computation of a posterior work?"""

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, judge, sentence
from causal_bo_ppl.diagnostics.inputs import require_posterior
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.inference.convergence import overall

REMEDIES = {
    "divergences": (
        "raise target_accept towards 0.99, or give a stronger prior: divergences mean places never "
        "visited"
    ),
    "r_hat": (
        "draw longer (warmup, draws); where chains keep apart the data do not tell parameters apart"
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
        What a sampled posterior must keep; by default `cb.Limits()`.

    Returns
    -------
    Check
        The table judges the whole; `details` has mean and sd of every parameter, and for draws
        their Monte-Carlo errors, effective sample sizes and R-hat.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.check_posterior(cb.fit(system.problem, system.observe(200, 0)))
    posterior: passed. conjugate is a closed form: nothing was sampled and nothing can have failed.
    """
    require_posterior("check_posterior", post)
    limits = Limits() if limits is None else limits
    if not isinstance(limits, Limits):
        raise ModelError(f"limits must be cb.Limits(r_hat=..., ess=..., bfmi=...), got {limits!r}")
    lines, summary = post.belief.lines(limits), post.belief.summary
    text = post.belief.describe(lines)
    if summary is None:
        todo = "" if post.verdict in ("exact", PASSED) else 'Use method="nuts", or add rows.'
        return Check("posterior", lines, text, todo, post.to_frame()[["mean", "sd"]])
    enough = (summary[["ess_bulk", "ess_tail"]] >= limits.ess).all(axis=1)
    good, alone = (summary["r_hat"] <= limits.r_hat) & enough, bool(summary["r_hat"].isna().all())
    details = summary.assign(verdict=[UNKNOWN if alone else judge(bool(each)) for each in good])
    failed = [str(name) for name in lines.index[lines["verdict"] == FAILED]]
    advice = list(dict.fromkeys(REMEDIES[name] for name in failed))
    if alone:
        chains = "run at least two chains: agreement between them cannot be assessed otherwise"
        advice = [chains, *advice]
    return Check("posterior", lines, text, sentence(advice), details, overall(lines))
