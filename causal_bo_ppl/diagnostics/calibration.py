"""Are posteriors right as often as they say? Simulation-based calibration over effects (Talts et al. 2018).

Models are drawn from a proper prior, rows from each model, and each data set is fitted. The true effect's place among
the posterior's draws is then uniform, if prior, likelihood and computation agree.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import kstwo
from tqdm import tqdm

from causal_bo_ppl.checks import FAILED, Check, holm, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics.inputs import require_between, require_posterior
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import identify
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.prior_draws import draw_models
from causal_bo_ppl.inputs import as_key, host_generator
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior
from causal_bo_ppl.mechanisms.linear.sem import means, replicate
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.default_queries import default_vertices
from causal_bo_ppl.problem.queries import labels
from causal_bo_ppl.responses import response

CLEARLY = 0.03  # of coverage
LEVEL = 0.9  # of the intervals whose coverage is counted
SURE = 3.3  # standard errors: 1 in 1,000
PATIENCE = 3.0  # seconds without a progress bar
EFFECTS = 16  # looked at, where none are named
SHORT = {"chains": 4, "warmup": 500, "draws": 500, "progress": False}  # of nuts, by default

Fitting = Callable[[Data, jax.Array], Posterior]


class Truths(NamedTuple):
    """effects: (s, M), and rows: (s, n, p) of the target's ancestral graph, of s models."""

    effects: np.ndarray
    rows: np.ndarray


def calibrate(
    problem: Problem,
    *,
    method: str = "conjugate",
    prior: FixedPrior | MomentPrior | None = None,
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
    **options: object,
) -> Check:
    """Fit many simulated data sets and look where the true effects fall.

    Parameters
    ----------
    method, prior, intercepts, options:
        Of `fit`. The prior must be proper: a `FixedPrior` (the default), or a `MomentPrior` for wishart.
    rows, simulations:
        Rows of each data set, and how many data sets.
    queries:
        Effects to look at; by default up to 16 vertices.
    posterior_draws:
        Among how many draws of each posterior the true effect is placed.
    coverage_tolerance:
        Laplace is an approximation: it is judged by the coverage of its 90 % intervals alone, which may be off by this.
        Exact methods are judged by the uniformity of all places.
    fitting:
        From rows and key to a `Posterior`, to calibrate a posterior of your own under this prior.

    `details` has the place of every true effect (simulations x effects), between 0 and 1.
    """
    _require_counts(rows=rows, simulations=simulations, posterior_draws=posterior_draws)
    alpha = require_between("alpha", alpha, 0, 1)
    if method == "wishart" and not intercepts:
        raise ModelError("wishart always learns means; calibrate it with intercepts=True")
    prior = _default_prior(problem, method) if prior is None else prior
    if not isinstance(prior, FixedPrior | MomentPrior):
        raise ModelError(
            f"calibration draws models from the prior, which must be proper; got {prior!r}"
        )
    for_truth, for_fits = jax.random.split(as_key(key))
    asked = default_vertices(problem, identify(problem).require_usable(), queries, EFFECTS)
    truths = _simulate(problem, prior, intercepts, asked, (simulations, rows), for_truth)
    settings: dict[str, Any] = (SHORT if method == "nuts" else {}) | options

    def learn(data: Data, each: jax.Array) -> Posterior:
        return fit(
            problem, data, method=method, prior=prior, intercepts=intercepts, key=each, **settings
        )

    places, untrusted = _place(
        problem, fitting or learn, truths, asked, posterior_draws, for_fits, progress
    )
    table = _judge(
        places,
        labels(problem, asked),
        None if fitting or method != "laplace" else coverage_tolerance,
        alpha,
    )
    details = pd.DataFrame(places, columns=table.index)
    return Check(
        "calibration", table, _tell(table, method, simulations, untrusted), _advise(table), details
    )


def _require_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 20:
            raise ModelError(f"{name} must be a whole number, at least 20; got {value!r}")


def _default_prior(problem: Problem, method: str) -> FixedPrior | MomentPrior:
    if method != "wishart":
        return FixedPrior()
    size = len(problem.graph.ancestral(problem.target).nodes)
    return MomentPrior(
        np.zeros(size), 1.0, 4.0 * np.eye(size), size + 5.0
    )  # mean covariance: the identity


def _simulate(
    problem: Problem,
    prior: FixedPrior | MomentPrior,
    intercepts: bool,
    queries: Queries,
    counts: tuple[int, int],
    key: jax.Array,
) -> Truths:
    """Models from the prior, their effects, and rows of each."""
    graph, (simulations, rows) = problem.graph.ancestral(problem.target), counts
    for_models, for_rows = jax.random.split(key)
    columns = [problem.graph.index(name) for name in graph.nodes]
    upstream = Queries(np.asarray(queries.mask)[:, columns], np.asarray(queries.value)[:, columns])
    if isinstance(prior, FixedPrior):
        models = draw_models(graph, prior, problem.known, intercepts, simulations, for_models)
        effects = means(models.matrices, upstream)[:, :, -1]
    else:
        before = fit(
            problem,
            _table(problem, graph, np.zeros((0, len(columns)))),
            method="wishart",
            prior=prior,
        )
        drawn = before.belief.drawn(simulations, for_models)
        models, theta = drawn.models, drawn.theta[:simulations]
        effects = np.asarray(response(problem, before)(theta, queries))
    nothing = Queries(np.zeros((rows, len(columns)), bool), np.zeros((rows, len(columns))))
    drawn_rows = replicate(
        models.matrices[:simulations], models.noises[:simulations], nothing, for_rows
    )
    return Truths(effects, drawn_rows)


def _table(problem: Problem, graph: CausalGraph, values: np.ndarray) -> Data:
    """Rows (n, k) of the ancestral graph as data of the problem; what is not upstream is 0."""
    whole = np.zeros((len(values), len(problem.graph.nodes)))
    whole[:, [problem.graph.index(name) for name in graph.nodes]] = values
    return Data(problem.graph.nodes, problem.target, whole, np.zeros(whole.shape, bool))


def _place(
    problem: Problem,
    learn: Fitting,
    truths: Truths,
    queries: Queries,
    draws: int,
    key: jax.Array,
    progress: bool,
) -> tuple[np.ndarray, int]:
    """(s, M) places of the true effects among the draws, and how many posteriors did not pass their own check."""
    graph, places, untrusted = (
        problem.graph.ancestral(problem.target),
        np.empty(truths.effects.shape),
        0,
    )
    ties = host_generator(key).uniform(size=places.shape)
    pairs = zip(truths.rows, truths.effects, jax.random.split(key, len(places)), strict=True)
    bar = tqdm(
        pairs,
        total=len(places),
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
        found = np.asarray(response(problem, post)(post.draws(draws, for_draws), queries))
        places[at] = ((found < true).sum(axis=0) + ties[at]) / (draws + 1)
    return places, untrusted


def _judge(
    places: np.ndarray, names: list[str], tolerance: float | None, alpha: float
) -> pd.DataFrame:
    """A line for each effect; tolerance: of the coverage, where only that is judged."""
    count = len(places)
    steps, ordered = np.arange(count + 1)[:, None] / count, np.sort(places, axis=0)
    distance = np.maximum(np.abs(ordered - steps[:-1]), np.abs(ordered - steps[1:])).max(axis=0)
    coverage = ((places >= (1 - LEVEL) / 2) & (places <= (1 + LEVEL) / 2)).mean(axis=0)
    table = pd.DataFrame(
        {"distance": distance, "coverage": coverage}, index=pd.Index(names, name="effect")
    )
    table["p_value"] = kstwo.sf(distance, count)
    table["p_corrected"] = holm(table["p_value"].to_numpy())
    good = table["p_corrected"] >= alpha
    if tolerance is not None:
        good = np.abs(coverage - LEVEL) <= tolerance + SURE * np.sqrt(LEVEL * (1 - LEVEL) / count)
    table["verdict"] = [judge(bool(each)) for each in good]
    return table


def _tell(table: pd.DataFrame, method: str, simulations: int, untrusted: int) -> str:
    low, high = table["coverage"].min(), table["coverage"].max()
    found = (
        f"In {simulations} simulated data sets the 90 % intervals of {len(table)} effects hold the truth in {low:.0%} "
        f"to {high:.0%}; the smallest corrected p-value of uniformity is {table['p_corrected'].min():.2g}."
    )
    return found + (
        f" {untrusted} of these posteriors did not pass their own check." if untrusted else ""
    )


def _advise(table: pd.DataFrame) -> str:
    if FAILED not in set(table["verdict"]):
        return ""
    narrow = table.loc[table["verdict"] == FAILED, "coverage"].mean() < LEVEL - CLEARLY
    return (
        "The posterior is over-confident: its intervals are too narrow to act upon."
        if narrow
        else "The posterior is shifted or too wide: look at where `details` pile up, at one end or in the middle."
    )
