"""Would another prior have changed the answer?

Prior and likelihood are raised to powers near 1, one after the other, and the posterior is
reweighted (power scaling, Kallioinen et al. 2024).
"""

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, Check, judge, sentence
from causal_bo_ppl.diagnostics.convergence import (
    require_between,
    require_draws,
    require_observations_known,
    require_posterior,
)
from causal_bo_ppl.diagnostics.gaussian import find_relevance
from causal_bo_ppl.errors import DataError, ModelError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import Drawn
from causal_bo_ppl.inputs import as_key
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import default_design, default_vertices, labels
from causal_bo_ppl.responses import response

LIMIT = 0.05  # distance per doubling of the prior's weight, as the authors of the method propose
MOST = 32  # effects that are looked at where none are named
ALPHAS = (0.99, 1.01)


def prior_sensitivity(
    post: Posterior,
    queries: Queries | None = None,
    *,
    draws: int = 4_000,
    limit: float = LIMIT,
    key: jax.Array | int = 0,
) -> Check:
    """Measure how much theta and effects move when prior or likelihood is raised to a power near 1.

    Parameters
    ----------
    post:
        A posterior whose draws come with their log prior.
    queries:
        Effects to look at; by default up to 32 vertices, or half as many and points inside.
    draws:
        How many draws are used.
    limit:
        The sensitivity to the prior beyond which a line fails.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for every coordinate of theta and every effect, with its sensitivities to `prior` and
        `likelihood`. Where theta has coordinates that move no effect, as those of mechanisms that
        bend have, there are lines for effects alone, by default also inside the boxes: the prior of
        such coefficients is meant to act. `diagnosis` says why a line failed: the prior disagrees
        with the data (then the likelihood matters too), or the data say little (then it does not).

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.prior_sensitivity(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("prior_sensitivity", post)
    if not post.n_observations:
        raise DataError("without rows the posterior is the prior; give some")
    require_draws("prior_sensitivity", draws, post)
    limit = require_between("limit", limit, 0, np.inf)
    drawn = post.distribution.drawn(draws, as_key(key))
    asked = default_vertices(post.problem, post.sets, queries, most=MOST)
    is_whole = find_relevance(post, asked).is_whole
    if not is_whole:
        asked = default_design(post.problem, post.sets, queries, MOST // 2)
    watched = np.asarray(response(post)(drawn.theta, asked))
    names = labels(post.problem, asked)
    if is_whole:
        watched = np.concatenate([drawn.theta, watched], axis=1)
        names = [*post.names, *names]
    if drawn.log_prior is None:
        raise ModelError("these draws come without their prior; its influence cannot be judged")
    components = {"prior": drawn.log_prior, "likelihood": _log_likelihood(post, drawn)}
    table = pd.DataFrame(
        {name: _sensitivities(watched, part, drawn.chains) for name, part in components.items()},
        index=pd.Index(names, name="quantity"),
    )
    table["limit"] = limit
    strong = ~(table["prior"] <= limit)
    table["diagnosis"] = [
        "" if not each else "prior and data disagree" if much else "the data say little"
        for each, much in zip(strong, table["likelihood"] > limit, strict=True)
    ]
    table["verdict"] = [judge(not each) for each in strong]
    return Check("prior sensitivity", table, _tell(table), _advise(table))


def _log_likelihood(post: Posterior, drawn: Drawn) -> np.ndarray:
    """Return the log likelihood of all rows and outcomes under each draw, of shape (n,)."""
    (values, free), model = (
        post.learned_observations,
        require_observations_known("prior_sensitivity", post),
    )
    total = np.zeros(len(drawn.theta)) if drawn.told is None else drawn.told.sum(axis=1)
    step = max(1, 20_000_000 // max(values.size, 1))
    for start in range(0, len(total), step):
        part = slice(start, start + step)
        models = jax.tree.map(lambda each, rows=part: each[rows], drawn.models)
        total[part] += model.log_densities(models, values, free).sum((1, 2))
    return total


def _sensitivities(watched: np.ndarray, component: np.ndarray, chains: int) -> np.ndarray:
    """Return the sensitivities (k,) of quantities (n, k) to a component of the log density.

    They are computed by ArviZ. A quantity that does not vary has the sensitivity 0.
    """
    from arviz_stats.base import array_stats

    lower, upper = (array_stats.power_scale_lw(component, alpha=alpha) for alpha in ALPHAS)
    weights = [np.exp(each - each.max()).reshape(chains, -1) for each in (lower, upper)]
    weights = [each / each.sum() for each in weights]
    values = watched.T.reshape(watched.shape[1], chains, -1)
    return np.array(
        [
            float(array_stats.power_scale_sense(each, *weights, *ALPHAS))
            if np.ptp(each) != 0
            else 0.0
            for each in values
        ]
    )


def _tell(table: pd.DataFrame) -> str:
    failed = table[table["verdict"] == FAILED].sort_values("prior", ascending=False, kind="stable")
    most = f"Sensitivity to the prior is at most {table['prior'].max(skipna=False):.3f}"
    if not len(failed):
        return f"{most}: another reasonable prior would give the same answers."
    words = [f"{name} ({line['diagnosis']})" for name, line in failed.iterrows()]
    share = f"{len(failed)} of {len(table)} quantities"
    return f"{most}; the prior shapes {share}: {listed(words, most=4)}."


def _advise(table: pd.DataFrame) -> str:
    why = set(table["diagnosis"])
    advice = []
    if "prior and data disagree" in why:
        advice.append(
            "check the prior's units and centres against the data: it pulls where the data say "
            "otherwise"
        )
    if "the data say little" in why:
        advice.append("add rows or experiments, or defend the prior: it decides these answers")
    return sentence(advice)
