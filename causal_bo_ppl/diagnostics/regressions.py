"""Do the regressions that a model was fitted by miss something, such as an interaction?

The statistics and their null distributions are those of `mechanisms.regression_tests`. Where latent
causes join variables, the regressions are those that effects are averaged over.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_observations_known, require_posterior
from causal_bo_ppl.inputs import as_key, read_share
from causal_bo_ppl.mechanisms.base import NoiseModel, RegressionModel
from causal_bo_ppl.mechanisms.gp_priors import (
    CONSTANT_NOISE,
    GP,
    MOST_CAUSES_IN_A_GROUP,
    Linear,
    MechanismChoice,
)
from causal_bo_ppl.mechanisms.regression_tests import (
    FEWEST_OBSERVATIONS,
    ObservedRegression,
    PairTest,
    find_interactions,
)
from causal_bo_ppl.mechanisms.scm import SCM

MOST_OBSERVATIONS = 10_000  # of more, evenly spaced ones are tested: they show all that matters
NOISE_DRAWS = 50  # of models whose noise is tested, where it has no closed form


def joined_before(graph: CausalGraph, name: str) -> tuple[str, ...]:
    """Return the variables before this one that latent arcs join to it, also through others."""
    last = graph.index(name)
    arcs = [arc for arc in graph.bidirected if max(map(graph.index, arc)) <= last]
    members: set[str] = set()
    more = {name}
    while more:
        members |= more
        more = {end for arc in arcs if members & {*arc} for end in arc} - members
    return tuple(sorted(members - {name}, key=graph.index))


def regressors_given_district(graph: CausalGraph, name: str) -> tuple[str, ...]:
    """Return the causes of a variable, and under latent causes its district before it with causes.

    Given these, the noise of Gaussian linear mechanisms is independent of all before it.
    """
    joined = joined_before(graph, name)
    causes = {*graph.parents(name), *joined}
    return graph.ordered(causes.union(*(graph.parents(member) for member in joined)))


def find_regressions(
    who: str, post: Posterior, key: jax.Array | int = 0
) -> list[ObservedRegression]:
    """Return the regressions of a posterior with their observations, in causal order.

    Raises
    ------
    PosteriorError
        If the draws are of theta alone.
    DataError
        If there are fewer than 8 observations.
    """
    require_posterior(who, post)
    model = require_observations_known(who, post)
    if post.n_observations < FEWEST_OBSERVATIONS:
        raise DataError(
            f"{post.n_observations} observations are too few to see what is wrong with a model; "
            f"at least {FEWEST_OBSERVATIONS} are needed"
        )
    graph = post.problem.graph.ancestral(post.problem.target)
    values, free = post.learned_observations
    if isinstance(model, RegressionModel):
        usable = np.zeros(free.shape, bool)
        for column, chosen in enumerate(free.T):
            usable[spaced(chosen), column] = True
        if (known := model.regressions(usable)) is not None:
            return [ObservedRegression(*each) for each in known]
    is_linear = post.distribution.response.is_affine
    noise = model.disturbances if isinstance(model, NoiseModel) else None
    if not is_linear and noise is None:
        return []
    models, found = None, []
    if not is_linear:
        models = post.distribution.drawn(NOISE_DRAWS, as_key(key)).thinned(NOISE_DRAWS).models
    for position, name in enumerate(graph.nodes):
        regressors, joined = regressors_given_district(graph, name), joined_before(graph, name)
        is_free = np.asarray(free[:, [position, *map(graph.index, joined)]].all(axis=1))
        given = values[spaced(is_free)]
        inputs = given[:, list(map(graph.index, regressors))]
        regression = ObservedRegression(
            name, regressors, inputs, given[:, position], np.zeros((len(given), 0))
        )
        if noise is not None and models is not None and regression.is_testable:
            regression = regression._replace(noise=noise(models, given[None], position))
        found.append(regression)
    return found


def spaced(chosen: np.ndarray) -> np.ndarray:
    """Return the positions of chosen observations, of too many evenly spaced ones."""
    positions = np.flatnonzero(chosen)
    if len(positions) <= MOST_OBSERVATIONS:
        return positions
    evenly = np.linspace(0, len(positions) - 1, MOST_OBSERVATIONS).round().astype(int)
    return np.asarray(positions[evenly])


SMALLEST_CORRELATION = 0.1  # with products, beyond what chance explains: less is harmless
SMALLEST_EFFECT = 1e-3  # of an interaction, in sds: ten noise floors of user-defined mechanisms
MOST_PAIRS_NAMED = 3  # in a text; the table has all
NOT_TESTED = (np.nan,) * 4  # observed, gap, tolerance and effect
PAIR_COLUMNS = "mechanism first second observed gap tolerance effect where p_value".split()


def check_interactions(post: Posterior, *, alpha: float = 0.01, key: jax.Array | int = 0) -> Check:
    """Test every two causes of a mechanism for interaction beyond what the fitted mechanism has.

    Products of the two (of higher powers too, where observations are many) are added to the fitted
    regression, together with squares and cubes of all causes, so that curvature is not mistaken for
    an interaction. For linear mechanisms this is the F-test of added regressors. For Gaussian
    processes the smoothing at the mode of the hyperparameters is part of the null distribution;
    pairs that share a group are tested beyond it. Where latent causes join variables, the
    regressions are those that effects are averaged over: at the front door that of Y on Z and X.
    Where the noise of a mechanism has no closed form, twice the average of the p-values over draws
    of models is taken.

    Noise that varies in size looks like an interaction; a pair fails only where a statistic that
    allows for it is significant too. That costs power where there is such noise.

    Parameters
    ----------
    post:
        A posterior of whole models, from at least 8 observations.
    alpha:
        How often a true model may fail at all: in at most this share of data sets. p-values are
        corrected for the number of pairs (Holm).
    key:
        A JAX key or an int seed, for user-defined mechanisms, whose noise is drawn.

    Returns
    -------
    Check
        A row for every pair of every mechanism with two causes or more: the partial correlation
        `observed` with the products, and the `gap`, the same beyond what chance explains. A row
        fails where it is significant, the gap larger than the `tolerance`, and the `effect` more
        than 0.001. `effect` is by how much the mean of the variable differs from an additive one,
        in sds of the variable, at the values `where` it differs most, within the central 90 % of
        the observations of either cause.
        Mechanisms with fewer than 8 observations beyond the causes, and pairs whose products are
        functions of powers, are not assessed.

    Raises
    ------
    DataError
        If there are fewer than 8 observations.
    PosteriorError
        If the draws are of theta alone.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> import numpy as np, pandas as pd
    >>> graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    >>> problem = cb.Problem(graph, target="Y", domains={"A": (-2, 2), "B": (-2, 2)})
    >>> a, b, e = np.random.default_rng(0).normal(size=(3, 100))
    >>> table = pd.DataFrame({"A": a, "B": b, "Y": a * b + 0.5 * a + e})
    >>> check = cb.diagnostics.check_interactions(cb.fit(problem, table))
    >>> check.verdict, check.advice.split(": ", 1)[1]
    ('failed', 'fit with mechanisms={"Y": cb.GP(groups=[("A", "B")])}.')
    """
    alpha, lines = read_share("alpha", alpha), list[tuple[object, ...]]()
    regressions = find_regressions("check_interactions", post, key)
    for regression in regressions:
        tests = find_interactions(regression) if regression.is_testable else []
        lines += [_line(regression.variable, test) for test in tests]
        if not tests and len(regression.regressors) > 1:
            few = f"fewer than {FEWEST_OBSERVATIONS} observations beyond its causes"
            lines.append(
                (regression.variable, *regression.regressors[:2], *NOT_TESTED, few, np.nan)
            )
    table = pd.DataFrame(lines, columns=PAIR_COLUMNS).set_index(PAIR_COLUMNS[:3])
    numbers = table[["gap", "tolerance", "p_value"]].to_numpy(float).T
    table["p_corrected"] = holm(numbers[2])
    bad = (numbers[0] > numbers[1]) & (table["p_corrected"].to_numpy() < alpha)
    bad &= table["effect"].abs().to_numpy() > SMALLEST_EFFECT
    is_known = np.isfinite(numbers[2])
    table["verdict"] = np.where(is_known, np.where(bad, FAILED, PASSED), UNKNOWN)
    failed = table[bad].sort_values("p_value", kind="stable")
    advice = _advise(post, failed, {each.variable for each in regressions if each.regressors})
    return Check("interactions", table, _describe(table, failed), advice)


def _line(variable: str, test: PairTest) -> tuple[object, ...]:
    one, other = test.pair
    where = f"{one} = {test.at[0]:.3g}, {other} = {test.at[1]:.3g}"
    numbers = test.observed, test.gap, SMALLEST_CORRELATION, test.effect, where, test.p_value
    return variable, one, other, *numbers


def _describe(table: pd.DataFrame, failed: pd.DataFrame) -> str:
    if not len(table):
        return "No mechanism has two causes that could interact."
    unknown = table.index[table["verdict"] == UNKNOWN]
    assessed, rest = len(table) - len(unknown), ""
    if len(unknown):
        names = listed([f"{one} and {other} in {name}" for name, one, other in unknown], most=5)
        rest = f" Not assessed (too few observations, or products that are powers): {names}."
    if not len(failed):
        return f"None of {assessed} pairs of causes visibly interacts.{rest}"
    parts = [
        f"{row['first']} and {row['second']} in the mechanism of {row['mechanism']}, whose mean at "
        f"{row['where']} differs by {row['effect']:+.2g} sds from a sum of their influences "
        f"(p = {row['p_corrected']:.1g})"
        for _, row in failed.head(MOST_PAIRS_NAMED).reset_index().iterrows()
    ]
    verb = "interacts" if len(failed) == 1 else "interact"
    return f"{len(failed)} of {assessed} pairs of causes {verb}: {'; '.join(parts)}.{rest}"


def _advise(post: Posterior, failed: pd.DataFrame, dependent: set[str]) -> str:
    """Return the advice: mechanisms that hold the interactions, to be pasted.

    dependent: the variables that have regressors.
    """
    if not len(failed):
        return ""
    model, wrong = post.distribution.model, "Effects that depend on these mechanisms are wrong"
    is_additive = isinstance(model, SCM) and not model.blocks
    if not is_additive and not post.distribution.response.is_affine:
        names = listed(dict.fromkeys(name for name, _, _ in failed.index))
        return f"{wrong}: let the functions of {names} hold the products."
    former: Mapping[str, MechanismChoice] = getattr(model, "choices", {})
    chosen = {name: choice for name, choice in former.items() if choice and name in dependent}
    for name, one, other in failed.index:
        before = chosen.get(name, GP())
        nonlinear = before if isinstance(before, GP) else GP(noise=before.noise)
        groups = _join(nonlinear.groups, (one, other))
        chosen[name] = replace(nonlinear, groups=groups, functions=None)
    written = ", ".join(f'"{name}": {_write(choice)}' for name, choice in chosen.items())
    return f"{wrong}: fit with mechanisms={{{written}}}."


def _join(groups: Sequence[Sequence[str]], pair: tuple[str, str]) -> list[tuple[str, ...]]:
    """Return groups that hold the pair too; as they are where a group would be too large."""
    joined = tuple(name for group in groups if {*group} & {*pair} for name in group)
    whole = tuple(dict.fromkeys((*joined, *pair)))
    if len(whole) > MOST_CAUSES_IN_A_GROUP:
        return [tuple(group) for group in groups]
    return [*(tuple(group) for group in groups if not {*group} & {*pair}), whole]


def _write(choice: GP | Linear) -> str:
    """Return the text that makes a choice."""
    if choice == GP():
        return '"gp"'
    noise = "" if choice.noise == CONSTANT_NOISE else f"noise={_quote(choice.noise)}"
    if isinstance(choice, Linear):
        pairs = choice.interactions
        if not isinstance(pairs, str):
            pairs = f"[{', '.join(f'({_quote(a)}, {_quote(b)})' for a, b in pairs)}]"
        options = [f"interactions={pairs}" if choice.interactions else "", noise]
        return f"cb.Linear({', '.join(filter(None, options))})"
    groups = ", ".join(f"({', '.join(map(_quote, group))})" for group in choice.groups)
    parts = [f"groups=[{groups}]"] if choice.groups else []
    parts += [f"kernel={_quote(choice.kernel)}"] if choice.kernel != GP().kernel else []
    parts += [f"functions={choice.functions}"] if choice.functions is not None else []
    parts += [noise] if noise else []
    return f"cb.GP({', '.join(parts)})"


def _quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
