"""Are posteriors right as often as they say?

Simulation-based calibration over effects (Talts et al. 2018): models are drawn from a proper prior,
rows from each model, and each data set is fitted. The true effect's place among the posterior's
draws is then uniform, if prior, likelihood and computation agree. Three things follow for s data
sets: the largest distance of their places u from uniformity is Kolmogorov's, which sees shifts;
the sum of squares of normal scores is chi-square with s degrees of freedom, which sees posteriors
that are too narrow or too wide; and the number of 90 % intervals that hold the truth is binomial.
All three are exact for any number of draws, since ties are broken at random.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import binom, chi2, kstwo, norm
from tqdm import tqdm

from causal_bo_ppl.checks import FAILED, Check, holm, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import read_outcomes
from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.base import Method, ObservationModel
from causal_bo_ppl.inference.draws import Drawn, drawn_before
from causal_bo_ppl.inference.methods import read_method, trait
from causal_bo_ppl.inputs import PATIENCE, as_key, host_generator, read_count, read_share
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Mechanisms, Prior, ResponseMap, Task, offered
from causal_bo_ppl.mechanisms.linear.priors import ScaledPrior
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import default_vertices, labels
from causal_bo_ppl.responses import response

CLEARLY = 0.03  # lack of coverage by which intervals are called too narrow
LEVEL = 0.9  # level of the intervals whose coverage is counted
EFFECTS = 16  # effects that are looked at where none are named

Fitting = Callable[[Data, jax.Array], Posterior]


class Truths(NamedTuple):
    """What s simulated models say: their effects (s, M), and rows (s, n, p) drawn from them.

    The rows are of the p variables of the target's ancestral graph.
    """

    effects: np.ndarray
    rows: np.ndarray


def calibrate(
    problem: Problem,
    *,
    method: str | Method = "conjugate",
    mechanisms: str | Mechanisms = "linear",
    prior: Prior | None = None,
    rows: int = 100,
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
    """Fit many simulated data sets and look where the true effects fall.

    Parameters
    ----------
    problem:
        The problem whose effects are looked at.
    method, mechanisms, prior, intercepts:
        As in `fit`; "nuts" means `cb.NUTS(warmup=500, draws=500)` here. The prior must be proper: a
        `FixedPrior` (the default), a `MomentPrior` for wishart, or a `GPPrior` whose centres,
        scales and ranges are given.
    rows, simulations:
        Rows of each data set, and how many data sets.
    queries:
        Effects to look at; by default up to 16 vertices.
    posterior_draws:
        Among how many draws of each posterior the true effect is placed.
    coverage_tolerance:
        Laplace is an approximation, and so is "conjugate" for mechanisms with hyperparameters: they
        are judged by the coverage of their 90 % intervals alone, which may be off by this. Exact
        methods are judged by the distance of places from uniformity, by their spread and by the
        coverage together.
    alpha:
        How often a calibrated posterior may fail at all, over all effects and tests: p-values are
        corrected for their number (Bonferroni for the three tests of an effect, Holm for the
        effects). Of 200 simulations posterior sds that are 0.71 times the right ones are found
        practically always.
    fitting:
        From rows and key to a `Posterior`, to calibrate a posterior of your own under this prior.
    progress:
        Whether a progress bar is shown when the fits take more than a few seconds.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for every effect: the `distance` of its places from uniformity; the `spread` of their
        normal scores, which is 1 for right posteriors and more for those that are too narrow; the
        `coverage` of 90 % intervals; a p-value of each; and one for all that is judged, raw and
        corrected. `details` has the place of every true effect (simulations x effects), between 0
        and 1.
    """
    counts = {"rows": rows, "simulations": simulations, "posterior_draws": posterior_draws}
    rows, simulations, posterior_draws = (read_count(*each, 20) for each in counts.items())
    alpha, key = read_share("alpha", alpha), as_key(key)
    chosen, family = _shortened(method), read_mechanisms(mechanisms)
    if trait(chosen, "learns_moments") and not intercepts:
        raise ModelError(f"{chosen.name} always learns means; calibrate it with intercepts=True")
    prior = _proper_prior(problem, chosen, family) if prior is None else prior
    if isinstance(prior, ScaledPrior):
        raise ModelError(
            f"calibration draws models from the prior, which must be proper; got {prior!r}"
        )
    for_truth, for_fits = jax.random.split(key)
    before = _before(problem, chosen, family, prior, intercepts)
    asked = default_vertices(problem, before.sets, queries, EFFECTS)
    truths = _simulate(before, asked, (simulations, rows), for_truth)

    def learn(data: Data, each: jax.Array) -> Posterior:
        options = {"mechanisms": family, "prior": prior, "intercepts": intercepts}
        return fit(problem, data, method=chosen, key=each, **options)  # type: ignore[arg-type]

    positions, untrusted, is_approximate = _position(
        problem, fitting or learn, truths, asked, posterior_draws, for_fits, progress
    )
    is_exact = fitting is not None or not (is_approximate or trait(chosen, "is_approximate"))
    tolerance = None if is_exact else coverage_tolerance
    table = _judge(positions, labels(problem, asked), tolerance, alpha)
    details = pd.DataFrame(positions, columns=table.index)
    text = _tell(table, simulations, untrusted)
    return Check("calibration", table, text, _advise(table), details)


def _shortened(method: str | Method) -> Method:
    """Return the method; one that is given by its name is as short as many fits need."""
    chosen = read_method(method)
    shortened = offered(chosen, "shortened") if isinstance(method, str) else None
    return chosen if shortened is None else shortened()


def _proper_prior(problem: Problem, method: Method, family: Mechanisms) -> Prior | None:
    """Return a prior that can be drawn from, the method's or else the family's."""
    proper = offered(method, "proper_prior") or offered(family, "proper_prior")
    return None if proper is None else proper(problem)


class Before(NamedTuple):
    """What is believed before any row: models that can be drawn, their effects and their rows."""

    sets: tuple[tuple[str, ...], ...]
    model: ObservationModel
    draw: Callable[[int, jax.Array], Drawn | None]
    response: ResponseMap
    problem: Problem


def _before(
    problem: Problem, method: Method, family: Mechanisms, prior: Prior | None, intercepts: bool
) -> Before:
    """Bind the mechanisms, or the moments of the variables, to no rows at all."""
    nothing = np.zeros((0, len(problem.graph.nodes)))
    data = Data(problem.graph.nodes, problem.target, nothing, nothing.astype(bool))
    if trait(method, "learns_moments"):
        distribution = fit(problem, data, method=method, prior=prior).distribution
        if distribution.model is None:
            raise ModelError(f"{method.name} knows no rows before any are seen")
        return Before(
            distribution.response.sets,
            distribution.model,
            distribution.draw_prior,
            distribution.response,
            problem,
        )
    task = Task(problem, data, read_outcomes(problem, None), prior, None, intercepts)
    model = family.bind(task)
    draw = partial(drawn_before, model)
    return Before(model.response.sets, model, draw, model.response, problem)


def _simulate(before: Before, queries: Queries, counts: tuple[int, int], key: jax.Array) -> Truths:
    """Draw models from the prior, their effects, and rows of each."""
    (simulations, rows), (for_models, for_rows) = counts, jax.random.split(key)
    drawn = before.draw(simulations, for_models)
    if drawn is None:
        raise ModelError(
            "calibration draws models from the prior, and these mechanisms cannot; their model "
            "must offer draw_prior(n, key)"
        )
    theta = drawn.theta[:simulations]
    models = jax.tree.map(lambda part: part[:simulations], drawn.models)
    given = Posterior.from_draws(before.problem, theta, mechanisms=before.response)
    effects = np.asarray(response(given)(theta, queries))
    blank = np.zeros((rows, len(before.model.nodes)))
    values = before.model.replicate(models, Queries(blank.astype(bool), blank), for_rows)
    return Truths(effects, values)


def _table(problem: Problem, graph: CausalGraph, values: np.ndarray) -> Data:
    """Return rows (n, k) of the ancestral graph as data of the problem; other variables are 0."""
    whole = np.zeros((len(values), len(problem.graph.nodes)))
    whole[:, [problem.graph.index(name) for name in graph.nodes]] = values
    return Data(problem.graph.nodes, problem.target, whole, np.zeros(whole.shape, bool))


def _position(
    problem: Problem,
    learn: Fitting,
    truths: Truths,
    queries: Queries,
    draws: int,
    key: jax.Array,
    progress: bool,
) -> tuple[np.ndarray, int, bool]:
    """Fit every data set, and place the true effects among the posterior's draws.

    Returns the places (s, M), how many posteriors did not pass their own check, and whether they
    were approximations: neither sampled nor exact.
    """
    graph = problem.graph.ancestral(problem.target)
    positions, untrusted, is_approximate = np.empty(truths.effects.shape), 0, False
    ties = host_generator(key).uniform(size=positions.shape)
    pairs = zip(truths.rows, truths.effects, jax.random.split(key, len(positions)), strict=True)
    bar = tqdm(
        pairs,
        total=len(positions),
        desc="calibrate",
        unit="fit",
        delay=PATIENCE,
        leave=False,
        disable=not progress,
    )
    for at, (values, true, each) in enumerate(bar):
        for_fit, for_draws = jax.random.split(each)
        post = learn(_table(problem, graph, values), for_fit)
        require_posterior("calibrate", post)
        untrusted += post.verdict not in ("exact", "passed")
        is_approximate |= post.verdict != "exact" and post.distribution.chains is None
        effects = np.asarray(response(post)(post.draws(draws, for_draws), queries))
        positions[at] = ((effects < true).sum(axis=0) + ties[at]) / (draws + 1)
    return positions, untrusted, is_approximate


def _judge(
    positions: np.ndarray, names: list[str], tolerance: float | None, alpha: float
) -> pd.DataFrame:
    """Return a line for each effect, from its places (s,) in every simulation.

    tolerance: how far the coverage may be off where only that is judged; None where all is.
    """
    inside = ((positions >= (1 - LEVEL) / 2) & (positions <= (1 + LEVEL) / 2)).sum(axis=0)
    scores = norm.ppf(positions)
    table = pd.DataFrame(
        {
            "distance": _distances(positions),
            "spread": np.sqrt((scores**2).mean(axis=0)),
            "coverage": inside / len(positions),
        },
        index=pd.Index(names, name="effect"),
    )
    ours = {
        "p_ranks": kstwo.sf(table["distance"], len(positions)),
        "p_spread": _two_sided(chi2(len(positions)), (scores**2).sum(axis=0)),
        "p_coverage": _coverage_p_values(inside, len(positions), tolerance or 0.0),
    }
    judged = list(ours) if tolerance is None else ["p_coverage"]
    table = table.assign(**ours)
    table["p_value"] = np.minimum(len(judged) * table[judged].min(axis=1), 1.0)
    table["p_corrected"] = holm(table["p_value"].to_numpy())
    table["verdict"] = [judge(bool(each)) for each in table["p_corrected"] >= alpha]
    return table


def _distances(positions: np.ndarray) -> np.ndarray:
    """Return the largest distances (M,) between the distributions of places (s, M) and uniform."""
    count = len(positions)
    steps, ordered = np.arange(count + 1)[:, None] / count, np.sort(positions, axis=0)
    gaps = np.maximum(np.abs(ordered - steps[:-1]), np.abs(ordered - steps[1:]))
    return np.asarray(gaps.max(axis=0))


def _two_sided(null: Any, values: np.ndarray) -> np.ndarray:
    return np.asarray(np.minimum(2 * np.minimum(null.sf(values), null.cdf(values)), 1.0))


def _coverage_p_values(inside: np.ndarray, count: int, tolerance: float) -> np.ndarray:
    """Return exact p-values (M,) of a coverage within `tolerance` of the level.

    inside: (M,) how many of `count` intervals hold the truth.
    """
    low, high = np.clip([LEVEL - tolerance, LEVEL + tolerance], 0.0, 1.0)
    few, many = binom.cdf(inside, count, low), binom.sf(inside - 1, count, high)
    return np.asarray(np.minimum(2 * np.minimum(few, many), 1.0))


def _tell(table: pd.DataFrame, simulations: int, untrusted: int) -> str:
    low, high = table["coverage"].min(), table["coverage"].max()
    text = (
        f"In {simulations} simulated data sets the 90 % intervals of {len(table)} effects hold the "
        f"truth in {low:.0%} to {high:.0%}; the smallest corrected p-value is "
        f"{table['p_corrected'].min():.2g}."
    )
    return text + (
        f" {untrusted} of these posteriors did not pass their own check." if untrusted else ""
    )


def _advise(table: pd.DataFrame) -> str:
    if FAILED not in set(table["verdict"]):
        return ""
    failed = table[table["verdict"] == FAILED]
    narrow = failed["coverage"].mean() < LEVEL - CLEARLY
    return (
        "The posterior is over-confident: its intervals are too narrow to act upon."
        if narrow
        else "The posterior is shifted or too wide: look at where `details` pile up, at one end or "
        "in the middle."
    )
