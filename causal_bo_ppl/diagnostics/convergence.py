"""Did the computation of a posterior work?"""

import pandas as pd

from causal_bo_ppl.diagnostics.checks import FAILED, Check, judge, sentence
from causal_bo_ppl.diagnostics.inputs import require_posterior
from causal_bo_ppl.errors import listed
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.posterior.sampled import Sampled
from causal_bo_ppl.posterior.verdict import Limits

REMEDIES = {
    "divergences": "raise target_accept towards 0.99, or give a stronger prior: divergences mean places never visited",
    "r_hat": "draw longer (warmup, draws); where chains keep apart the data do not tell parameters apart",
    "ess_bulk": "draw longer",
    "ess_tail": "draw longer",
    "bfmi": "warm up longer, or give a stronger prior: the energy is explored too slowly",
}


def check_posterior(post: Posterior, *, limits: Limits | None = None) -> Check:
    """R-hat, effective sample sizes, divergences and energy of a sampled posterior; mode and curvature of a Laplace.

    The table judges the whole; `details` has Monte-Carlo error, effective sample size and R-hat of every parameter.
    One chain cannot be assessed. NaN fails.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.check_posterior(cb.fit(system.problem, system.observe(200, 0)))
    posterior: passed. conjugate is a closed form: nothing was sampled and nothing can have failed.
    """
    require_posterior("check_posterior", post)
    limits = Limits() if limits is None else limits
    lines = post.belief.lines(limits)
    if not isinstance(post.belief, Sampled):
        return Check("posterior", lines, _describe(post, lines), details=post.to_frame()[["mean", "sd"]])
    summary = post.belief.summary
    good = (summary["r_hat"] <= limits.r_hat) & (summary[["ess_bulk", "ess_tail"]] >= limits.ess).all(axis=1)
    details = summary.assign(verdict=[judge(bool(each)) for each in good])
    failed = [str(name) for name in lines.index[lines["verdict"] == FAILED]]
    advice = [REMEDIES[name] for name in failed]
    if post.belief.sampling.chains < 2:
        advice = ["run at least two chains: agreement between them cannot be assessed otherwise", *advice]
    return Check("posterior", lines, _tell(post.belief, lines, failed), sentence(advice), details)


def _describe(post: Posterior, lines: pd.DataFrame) -> str:
    if post.verdict == "exact":
        return f"{post.method} is a closed form: nothing was sampled and nothing can have failed."
    condition = lines["value"].to_dict()["condition number"]
    return f"The mode was found and its curvature is positive definite, condition number {condition:.3g}."


def _tell(belief: Sampled, lines: pd.DataFrame, failed: list[str]) -> str:
    sampling, worst = belief.sampling, lines["value"]
    size = f"{sampling.chains} chains of {sampling.draws} draws after {sampling.warmup} of warm-up"
    numbers = (
        f"R-hat up to {worst['r_hat']:.4f}, at least {worst['ess_bulk']:.0f} effective draws "
        f"({worst['ess_tail']:.0f} in the tails), {worst['divergences']:.0f} divergences, E-BFMI {worst['bfmi']:.2f}"
    )
    return f"{size}: {numbers}." + (f" Not good enough: {listed(failed)}." if failed else "")
