"""Do posterior intervals have the coverage that they state?

Simulation-based calibration over effects (Talts et al. 2018): models are drawn from a proper prior,
observations from each model, and each data set is fitted. The rank of the true effect among the
posterior's draws is then uniform, if prior, likelihood and computation agree. Three tests follow
for s data sets: the largest distance of their scaled ranks u from uniformity is Kolmogorov's, which
is sensitive to shifts; the sum of squares of normal scores is chi-square with s degrees of freedom,
which is sensitive to posteriors that are too narrow or too wide; and the number of 90 % intervals
that hold the truth is binomial. All three are exact for any number of draws, since ties are broken
at random.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import binom, chi2, ks_1samp, norm, uniform
from tqdm import tqdm

from causal_bo_ppl.checks import FAILED, Check, holm, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import read_outcomes
from causal_bo_ppl.errors import ArgumentError, MechanismError, NumericalError, PosteriorError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.draws import (
    Drawn,
    InferenceMethod,
    ObservationModel,
    drawn_before,
    trait,
)
from causal_bo_ppl.inference.posterior import read_method, require_posterior
from causal_bo_ppl.inputs import (
    PROGRESS_DELAY,
    as_key,
    host_generator,
    offered,
    read_count,
    read_share,
)
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Mechanisms, Prior, ResponseMap, Task
from causal_bo_ppl.mechanisms.linear_equations import ScaledPrior
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import default_vertices
from causal_bo_ppl.problem.interventions import labels
from causal_bo_ppl.responses import response

LEAST_UNDERCOVERAGE = 0.03  # lack of coverage by which intervals are called too narrow
INTERVAL_LEVEL = 0.9  # of the intervals whose coverage is counted
MOST_EFFECTS = 16  # that are checked where none are named
MOST_REFUSED = 0.05  # share of the data sets that a method may refuse

Fitting = Callable[[Data, jax.Array], Posterior]


class SimulatedModels(NamedTuple):
    """The effects (s, M) of s simulated models, and observations (s, n, p) drawn from them.

    The observations are of the p variables of the target's ancestral graph.
    """

    effects: np.ndarray
    observations: np.ndarray


def calibrate(
    problem: Problem,
    *,
    method: str | InferenceMethod = "conjugate",
    mechanisms: str | Mechanisms = "linear",
    prior: Prior | None = None,
    observations: int = 100,
    simulations: int = 200,
    queries: Queries | None = None,
    posterior_draws: int = 200,
    intercepts: bool = True,
    coverage_tolerance: float = 0.05,
    alpha: float = 0.01,
    fitting: Fitting | None = None,
    progress: bool = True,
    key: jax.Array | int,
) -> Check:
    """Fit many simulated data sets and compare the true effects with their posteriors.

    Parameters
    ----------
    problem:
        The problem whose effects are checked.
    method, mechanisms, prior, intercepts:
        As in `fit`; "nuts" means `cb.NUTS(warmup=500, draws=500)` here. The prior must be proper: a
        `FixedPrior` (the default), a `MomentPrior` for wishart, or a `GPPrior` whose centres,
        scales and ranges are given.
    observations, simulations:
        The number of observations of each data set, and the number of data sets.
    queries:
        Effects to check; by default up to 16 vertices.
    posterior_draws:
        The number of draws of each posterior among which the true effect is ranked.
    coverage_tolerance:
        Laplace is an approximation, and so is "conjugate" for mechanisms with hyperparameters: they
        are judged by the coverage of their 90 % intervals alone, which may be off by this. Exact
        methods are judged by the distance of ranks from uniformity, by their spread and by the
        coverage together.
    alpha:
        How often a calibrated posterior may fail at all, over all effects and tests: p-values are
        corrected for their number (Bonferroni for the three tests of an effect, Holm for the
        effects). Of 200 simulations posterior sds that are 0.71 times the right ones are found
        practically always.
    fitting:
        A function of data and key that returns a `Posterior`, to calibrate a user-defined method
        under this prior.
    progress:
        Whether a progress bar is shown when the fits take more than a few seconds.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every effect: the `distance` of its ranks from uniformity; the `spread` of their
        normal scores, which is 1 for right posteriors and more for those that are too narrow; the
        `coverage` of 90 % intervals; a p-value of each; and one for all that is judged, raw and
        corrected. `details` has the scaled rank of every true effect (simulations x effects),
        between 0 and 1. Data sets that the method refuses by a NumericalError are left out and
        counted in the text; with more than 5 % of them the error is raised.

    Raises
    ------
    ArgumentError
        If a number is too small, or the prior is not proper.
    MechanismError
        If no models can be drawn from the prior of these mechanisms.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> problem = cb.models.load("chain").problem
    >>> check = cb.diagnostics.calibrate(
    ...     problem, observations=20, simulations=20, progress=False, key=0
    ... )
    >>> check.details.shape
    (20, 4)
    """
    counts = {
        "observations": observations,
        "simulations": simulations,
        "posterior_draws": posterior_draws,
    }
    observations, simulations, posterior_draws = (
        read_count(*count, 20) for count in counts.items()
    )
    alpha, key = read_share("alpha", alpha), as_key(key)
    chosen, family = read_method(method), read_mechanisms(mechanisms)
    shortened = offered(chosen, "shortened")
    if isinstance(method, str) and shortened is not None:
        chosen = shortened()  # as many fits need it
    if trait(chosen, "learns_moments") and not intercepts:
        raise ArgumentError(f"{chosen.name} always learns means; calibrate it with intercepts=True")
    proper = offered(chosen, "proper_prior") or offered(family, "proper_prior")
    if prior is None and proper is not None:
        prior = proper(problem)
    if isinstance(prior, ScaledPrior):
        raise ArgumentError(
            f"calibration draws models from the prior, which must be proper; got {prior!r}"
        )
    simulation_key, fit_key = jax.random.split(key)
    before = _bind_without_data(problem, chosen, family, prior, intercepts)
    asked = default_vertices(problem, before.sets, queries, MOST_EFFECTS)
    simulated = _simulate(before, asked, (simulations, observations), simulation_key)

    def learn(data: Data, key: jax.Array) -> Posterior:
        options = {"mechanisms": family, "prior": prior, "intercepts": intercepts}
        return fit(problem, data, method=chosen, key=key, **options)  # type: ignore[arg-type]

    ranks, untrusted, is_approximate = _rank(
        problem, fitting or learn, simulated, asked, posterior_draws, fit_key, progress
    )
    is_exact = fitting is not None or not (is_approximate or trait(chosen, "is_approximate"))
    tolerance = None if is_exact else coverage_tolerance
    table = _judge(ranks, labels(problem, asked), tolerance, alpha)
    details = pd.DataFrame(ranks, columns=table.index)
    text = _describe(table, simulations, len(ranks), untrusted)
    return Check("calibration", table, text, _advise(table), details)


class PriorPredictive(NamedTuple):
    """A model without data: models can be drawn from its prior, with effects and observations."""

    sets: tuple[tuple[str, ...], ...]
    model: ObservationModel
    draw: Callable[[int, jax.Array], Drawn | None]
    response: ResponseMap
    problem: Problem


def _bind_without_data(
    problem: Problem,
    method: InferenceMethod,
    family: Mechanisms,
    prior: Prior | None,
    intercepts: bool,
) -> PriorPredictive:
    """Bind the mechanisms, or the moments of the variables, to no observations at all."""
    empty = np.zeros((0, len(problem.graph.nodes)))
    data = Data(problem.graph.nodes, problem.target, empty, empty.astype(bool))
    if trait(method, "learns_moments"):
        known = fit(problem, data, method=method, prior=prior).distribution
        if known.model is None:
            raise PosteriorError(f"{method.name} predicts no observations without data")
        sets = known.response.sets
        return PriorPredictive(sets, known.model, known.draw_prior, known.response, problem)
    task = Task(problem, data, read_outcomes(problem, None), prior, None, intercepts)
    model = family.bind(task)
    draw = partial(drawn_before, model)
    return PriorPredictive(model.response.sets, model, draw, model.response, problem)


def _simulate(
    before: PriorPredictive, queries: Queries, counts: tuple[int, int], key: jax.Array
) -> SimulatedModels:
    """Draw models from the prior, their effects, and observations of each."""
    (simulations, size), (model_key, data_key) = counts, jax.random.split(key)
    drawn = before.draw(simulations, model_key)
    if drawn is None:
        raise MechanismError(
            "calibration draws models from the prior, and these mechanisms cannot; their model "
            "must offer draw_prior(n, key)"
        )
    theta = drawn.theta[:simulations]
    models = jax.tree.map(lambda part: part[:simulations], drawn.models)
    given = Posterior.from_draws(before.problem, theta, mechanisms=before.response)
    effects = np.asarray(response(given)(theta, queries))
    unset = np.zeros((size, len(before.model.nodes)))
    values = before.model.replicate(models, Queries(unset.astype(bool), unset), data_key)
    return SimulatedModels(effects, values)


def _as_data(problem: Problem, values: np.ndarray) -> Data:
    """Return observations (n, k) of the ancestral graph as data; other variables are 0."""
    nodes = problem.graph.ancestral(problem.target).nodes
    whole = np.zeros((len(values), len(problem.graph.nodes)))
    whole[:, [problem.graph.index(name) for name in nodes]] = values
    return Data(problem.graph.nodes, problem.target, whole, np.zeros(whole.shape, bool))


def _rank(
    problem: Problem,
    learn: Fitting,
    simulated: SimulatedModels,
    queries: Queries,
    draws: int,
    key: jax.Array,
    progress: bool,
) -> tuple[np.ndarray, int, bool]:
    """Fit every data set, and rank the true effects among the posterior's draws.

    Returns the scaled ranks (s, M) without data sets that the method refused by a NumericalError,
    how many posteriors did not pass their own check, and whether they were approximations: neither
    sampled nor exact.
    """
    ranks, untrusted, is_approximate = np.empty(simulated.effects.shape), 0, False
    ties = host_generator(key).uniform(size=ranks.shape)
    keys = jax.random.split(key, len(ranks))
    bar = tqdm(
        keys, "calibrate", unit="fit", delay=PROGRESS_DELAY, leave=False, disable=not progress
    )
    for index, subkey in enumerate(bar):
        fit_key, draw_key = jax.random.split(subkey)
        try:
            post = learn(_as_data(problem, simulated.observations[index]), fit_key)
        except NumericalError:
            ranks[index] = np.nan
            if np.isnan(ranks[: index + 1, 0]).sum() > MOST_REFUSED * len(ranks):
                raise
            continue
        require_posterior("calibrate", post)
        untrusted += post.verdict not in ("exact", "passed")
        is_approximate |= post.verdict != "exact" and post.distribution.chains is None
        effects = np.asarray(response(post)(post.draws(draws, draw_key), queries))
        smaller = (effects < simulated.effects[index]).sum(axis=0)
        ranks[index] = (smaller + ties[index]) / (draws + 1)
    return ranks[~np.isnan(ranks).any(axis=1)], untrusted, is_approximate


def _judge(
    ranks: np.ndarray, names: list[str], tolerance: float | None, alpha: float
) -> pd.DataFrame:
    """Return a row for each effect, from its scaled ranks (s,) in every simulation.

    tolerance: how far the coverage may be off where only that is judged; None where all is.
    """
    count, low, high = len(ranks), (1 - INTERVAL_LEVEL) / 2, (1 + INTERVAL_LEVEL) / 2
    inside = ((ranks >= low) & (ranks <= high)).sum(axis=0)
    squares, uniformity = norm.ppf(ranks) ** 2, ks_1samp(ranks, uniform.cdf, method="exact")
    total, null = squares.sum(axis=0), chi2(count)
    table = pd.DataFrame(
        {
            "distance": uniformity.statistic,
            "spread": np.sqrt(squares.mean(axis=0)),
            "coverage": inside / count,
            "p_ranks": uniformity.pvalue,
            "p_spread": np.minimum(2 * np.minimum(null.sf(total), null.cdf(total)), 1.0),
            "p_coverage": _coverage_p_values(inside, count, tolerance or 0.0),
        },
        index=pd.Index(names, name="effect"),
    )
    judged = ["p_ranks", "p_spread", "p_coverage"] if tolerance is None else ["p_coverage"]
    table["p_value"] = np.minimum(len(judged) * table[judged].min(axis=1), 1.0)
    table["p_corrected"] = holm(table["p_value"].to_numpy())
    table["verdict"] = [judge(bool(holds)) for holds in table["p_corrected"] >= alpha]
    return table


def _coverage_p_values(inside: np.ndarray, count: int, tolerance: float) -> np.ndarray:
    """Return exact p-values (M,) of a coverage within `tolerance` of the level.

    inside: (M,) how many of `count` intervals hold the truth.
    """
    low, high = np.clip([INTERVAL_LEVEL - tolerance, INTERVAL_LEVEL + tolerance], 0.0, 1.0)
    few, many = binom.cdf(inside, count, low), binom.sf(inside - 1, count, high)
    return np.asarray(np.minimum(2 * np.minimum(few, many), 1.0))


def _describe(table: pd.DataFrame, simulations: int, fitted: int, untrusted: int) -> str:
    low, high = table["coverage"].min(), table["coverage"].max()
    failed = f" {untrusted} of these posteriors did not pass their own check." if untrusted else ""
    if refused := simulations - fitted:
        failed += f" The method refused {refused} more of {simulations} data sets."
    return (
        f"In {fitted} simulated data sets the 90 % intervals of {len(table)} effects hold the "
        f"truth in {low:.0%} to {high:.0%}; the smallest corrected p-value is "
        f"{table['p_corrected'].min():.2g}.{failed}"
    )


def _advise(table: pd.DataFrame) -> str:
    if FAILED not in set(table["verdict"]):
        return ""
    coverage = table.loc[table["verdict"] == FAILED, "coverage"].mean()
    if coverage < INTERVAL_LEVEL - LEAST_UNDERCOVERAGE:
        return "The posterior is over-confident: its intervals are too narrow to act upon."
    return (
        "The posterior is shifted or too wide: look at whether the ranks in `details` pile up at "
        "one end or in the middle."
    )
