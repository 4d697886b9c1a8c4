"""Did the computation of a posterior work?"""

import pandas as pd

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, judge, sentence
from causal_bo_ppl.diagnostics.inputs import require_posterior
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.inference.convergence import overall
from causal_bo_ppl.inference.nuts import Sampled

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
    if not isinstance(limits, Limits):
        raise ModelError(f"limits must be cb.Limits(r_hat=..., ess=..., bfmi=...), got {limits!r}")
    lines = post.belief.lines(limits)
    if not isinstance(post.belief, Sampled):
        todo = "" if post.verdict in ("exact", PASSED) else 'Use method="nuts", or add rows.'
        return Check(
            "posterior", lines, _describe(post, lines), todo, post.to_frame()[["mean", "sd"]]
        )
    summary = post.belief.summary
    good = (summary["r_hat"] <= limits.r_hat) & (
        summary[["ess_bulk", "ess_tail"]] >= limits.ess
    ).all(axis=1)
    alone = post.belief.sampling.chains < 2
    details = summary.assign(verdict=[UNKNOWN if alone else judge(bool(each)) for each in good])
    failed = [str(name) for name in lines.index[lines["verdict"] == FAILED]]
    advice = list(dict.fromkeys(REMEDIES[name] for name in failed))
    if alone:
        advice = [
            "run at least two chains: agreement between them cannot be assessed otherwise",
            *advice,
        ]
    return Check(
        "posterior",
        lines,
        _tell(post.belief, lines, failed),
        sentence(advice),
        details,
        overall(lines),
    )


def _describe(post: Posterior, lines: pd.DataFrame) -> str:
    if post.verdict == "exact":
        return f"{post.method} is a closed form: nothing was sampled and nothing can have failed."
    value = lines["value"].to_dict()
    found = f"The mode was found and its curvature is positive definite, condition number {value['condition number']:.3g}."
    return f"{found} Its sds are about {value['width']:.0%} of the exact ones."


def _tell(belief: Sampled, lines: pd.DataFrame, failed: list[str]) -> str:
    sampling, worst = belief.sampling, lines["value"]
    size = f"{sampling.chains} chains of {sampling.draws} draws after {sampling.warmup} of warm-up"
    known = f"up to {worst['r_hat']:.4f}" if sampling.chains > 1 else "unknown"
    numbers = (
        f"R-hat {known}, at least {worst['ess_bulk']:.0f} effective draws "
        f"({worst['ess_tail']:.0f} in the tails), {worst['divergences']:.0f} divergences, E-BFMI {worst['bfmi']:.2f}"
    )
    return f"{size}: {numbers}." + (f" Not good enough: {listed(failed)}." if failed else "")
