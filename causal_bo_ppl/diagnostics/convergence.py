"""Did the computation of a posterior work? Also the checks of arguments that others share."""

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, judge, sentence
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import require_data_of
from causal_bo_ppl.errors import ArgumentError, DataError, PosteriorError
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.inference.draws import ObservationModel, overall
from causal_bo_ppl.inputs import read_count, read_number, require_float64
from causal_bo_ppl.problem import Problem

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


def require_inputs(
    who: str, problem: Problem | Posterior, data: Data | None
) -> tuple[Problem, Data]:
    """Return a problem and its data, or those of a posterior; refuse data of another problem."""
    require_float64()
    if isinstance(problem, Posterior):
        data = problem.data if data is None else data
        problem = problem.problem
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"{who} needs a Problem, got {type(problem).__name__}; of a system take system.problem"
        )
    if not isinstance(data, Data):
        raise DataError(
            f"{who} needs Data, got {type(data).__name__}; read a table with "
            "Data.from_frame(problem, ...)"
        )
    require_data_of(problem, data)
    return problem, data


def require_between(name: str, number: float, low: float, high: float) -> float:
    """Return a threshold if it is a number strictly between two others."""
    threshold = read_number(name, number)
    if not low < threshold < high:
        raise ArgumentError(f"{name} must lie between {low:g} and {high:g}, got {threshold:g}")
    return threshold


def require_posterior(who: str, post: Posterior) -> None:
    """Refuse what is not a posterior."""
    require_float64()
    if not isinstance(post, Posterior):
        raise ArgumentError(
            f"{who} needs a Posterior, got {type(post).__name__}; make one with cb.fit"
        )


def require_draws(who: str, draws: object, post: Posterior, least: int = 100) -> int:
    """Return how many draws are asked for; refuse fewer than `least`, asked for or there."""
    count = read_count("draws", draws, least)
    chains = post.distribution.chains
    if chains is not None and chains[..., 0].size < least:
        raise PosteriorError(
            f"{who} needs at least {least} draws, the posterior has {chains[..., 0].size}; "
            "draw longer"
        )
    return count


def require_observations_known(who: str, post: Posterior) -> ObservationModel:
    """Return the model of observations of a posterior; refuse one of theta alone."""
    if post.distribution.model is None:
        raise PosteriorError(f"{who} needs whole models, and these draws are of theta alone")
    return post.distribution.model


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
