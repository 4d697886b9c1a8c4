"""Would another prior have changed the answer?

Prior and likelihood are raised to powers near 1, one after the other, and the posterior is
reweighted (power scaling, Kallioinen et al. 2024).
"""

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, Check, judge, sentence
from causal_bo_ppl.diagnostics.gaussian import find_relevance
from causal_bo_ppl.errors import DataError, PosteriorError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import Drawn
from causal_bo_ppl.inference.posterior import (
    require_draws,
    require_observations_known,
    require_posterior,
)
from causal_bo_ppl.inputs import as_key, require_between
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import default_design, default_vertices
from causal_bo_ppl.problem.interventions import labels
from causal_bo_ppl.responses import response_to_draws

# Distance per doubling of the prior's weight, as the authors of the method propose.
LARGEST_SENSITIVITY = 0.05
MOST_EFFECTS = 32  # that are checked where none are named
POWERS_OF_DENSITY = (0.99, 1.01)
MOST_DENSITIES = 20_000_000  # that are computed at once


def prior_sensitivity(
    post: Posterior,
    queries: Queries | None = None,
    *,
    draws: int = 4_000,
    limit: float = LARGEST_SENSITIVITY,
    key: jax.Array | int = 0,
) -> Check:
    """Measure how much theta and effects move when prior or likelihood is raised to a power near 1.

    Parameters
    ----------
    post:
        A posterior whose draws come with their log prior.
    queries:
        Effects to check; by default up to 32 vertices, or half as many and points inside.
    draws:
        How many draws are used.
    limit:
        The sensitivity to the prior beyond which a row fails.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A row for every coordinate of theta and every effect, with its sensitivities to `prior` and
        `likelihood`. Where theta has coordinates that move no effect, as that of nonlinear
        mechanisms has, there are rows for effects alone, by default also inside the boxes: the
        prior of such coefficients is meant to act. `diagnosis` is the reason why a row failed: the
        prior disagrees with the data (then the likelihood matters too), or the data are weak (then
        it does not).

    Raises
    ------
    DataError
        If the posterior has no observations.
    PosteriorError
        If its draws come without their log prior, or are too few.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.prior_sensitivity(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("prior_sensitivity", post)
    if not post.n_observations:
        raise DataError("without observations the posterior is the prior; add some")
    require_draws("prior_sensitivity", draws, post)
    limit = require_between("limit", limit, 0, np.inf)
    drawn = post.distribution.drawn(draws, as_key(key))
    asked = default_vertices(post.problem, post.sets, queries, most=MOST_EFFECTS)
    is_whole = find_relevance(post, asked).is_whole
    if not is_whole:
        asked = default_design(post.problem, post.sets, queries, MOST_EFFECTS // 2)
    quantities = np.asarray(response_to_draws(post)(drawn.theta, asked))
    names = labels(post.problem, asked)
    if is_whole:
        quantities = np.concatenate([drawn.theta, quantities], axis=1)
        names = [*post.names, *names]
    if drawn.log_prior is None:
        raise PosteriorError("these draws come without their prior; its influence is not known")
    parts = {"prior": drawn.log_prior, "likelihood": _log_likelihood(post, drawn)}
    table = pd.DataFrame(
        {name: _sensitivities(quantities, part, drawn.chains) for name, part in parts.items()},
        index=pd.Index(names, name="quantity"),
    )
    table["limit"] = limit
    strong = ~(table["prior"] <= limit)
    table["diagnosis"] = [
        "" if not fails else "prior and data disagree" if informative else "the data are weak"
        for fails, informative in zip(strong, table["likelihood"] > limit, strict=True)
    ]
    table["verdict"] = [judge(not fails) for fails in strong]
    return Check("prior sensitivity", table, _describe(table), _advise(table))


def _log_likelihood(post: Posterior, drawn: Drawn) -> np.ndarray:
    """Return the log likelihood of all observations and outcomes under each draw, (n,)."""
    model = require_observations_known("prior_sensitivity", post)
    values, free = post.learned_observations
    outcomes = drawn.outcome_log_densities
    total = np.zeros(len(drawn.theta)) if outcomes is None else outcomes.sum(axis=1)
    step = max(1, MOST_DENSITIES // max(values.size, 1))
    for start in range(0, len(total), step):
        part = slice(start, start + step)
        models = jax.tree.map(lambda array, part=part: array[part], drawn.models)
        total[part] += model.log_densities(models, values, free).sum((1, 2))
    return total


def _sensitivities(quantities: np.ndarray, component: np.ndarray, chains: int) -> np.ndarray:
    """Return the sensitivities (k,) of quantities (n, k) to a component of the log density.

    They are computed by ArviZ. A quantity that does not vary has the sensitivity 0.
    """
    from arviz_stats.base import array_stats

    powers = POWERS_OF_DENSITY
    logs = [array_stats.power_scale_lw(component, alpha=alpha) for alpha in powers]
    weights = [np.exp(part - part.max()).reshape(chains, -1) for part in logs]
    weights = [part / part.sum() for part in weights]
    sensitivities = np.zeros(quantities.shape[1])
    for index in np.flatnonzero(np.ptp(quantities, axis=0) != 0):
        values = quantities[:, index].reshape(chains, -1)
        sensitivities[index] = array_stats.power_scale_sense(values, *weights, *powers)
    return sensitivities


def _describe(table: pd.DataFrame) -> str:
    failed = table[table["verdict"] == FAILED].sort_values("prior", ascending=False, kind="stable")
    most = f"Sensitivity to the prior is at most {table['prior'].max(skipna=False):.3f}"
    if not len(failed):
        return f"{most}: another reasonable prior would give the same answers."
    named = [f"{name} ({row['diagnosis']})" for name, row in failed.iterrows()]
    share = f"{len(failed)} of {len(table)} quantities"
    return f"{most}; the prior shapes {share}: {listed(named, most=4)}."


def _advise(table: pd.DataFrame) -> str:
    diagnoses = set(table["diagnosis"])
    advice = []
    if "prior and data disagree" in diagnoses:
        advice.append("check the prior's units and centres against the data: they disagree")
    if "the data are weak" in diagnoses:
        advice.append(
            "add observations or experiments, or justify the prior: it decides these effects"
        )
    return sentence(advice)
