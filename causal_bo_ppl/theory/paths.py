"""How large are errors of effects due to errors of mechanisms? The bound along directed paths.

Let g be the true and h the fitted mechanisms, and let both systems have the same standardized
noise. Then |V'_b - V_b| <= sum_a L_ab |V'_a - V_a| + |h_b(V) - g_b(V)| + |s'_b - s_b| |u_b|,
where L_ab is the largest slope of h_b in a and s are the sds. In causal order, under do(s), the
error of an effect is at most sum_i L_{i->y}^(s) eps_i: L_{i->y} sums products of slopes over paths,
and eps_i is the error of the mechanism of i, at worst or on average over true values.
"""

from collections.abc import Iterable, Mapping
from math import pi, sqrt

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.errors import ArgumentError, DataError, PosteriorError, listed, unknown
from causal_bo_ppl.graph import Edge
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, read_count, read_size
from causal_bo_ppl.linalg import (
    adjoint_sweep,
    between,
)
from causal_bo_ppl.mechanisms.base import MechanismMap
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import lattice, sobol
from causal_bo_ppl.problem.interventions import set_label, split_sets
from causal_bo_ppl.responses import response
from causal_bo_ppl.systems import CausalSystem
from causal_bo_ppl.theory.constants import design
from causal_bo_ppl.theory.information_gains import require_queries

MOST_BOX_POINTS, FEWEST_TICKS = 16_384, 8  # of a box, and per cause, where errors are evaluated
MOST_SAMPLES_AT_ONCE = 65_536  # held in memory
MEAN_ABSOLUTE_NORMAL = sqrt(2 / pi)


def path_sensitivities(problem: Problem, slopes: Mapping[Edge, float]) -> pd.DataFrame:
    """Compute L_{i->y}^(s) for every set s (rows) and variable i (columns).

    It is the sum, over directed paths from i to the target without arrows into s, of the products
    of L_ab along the path: 1 for the target itself, and 0 for members of s, whose equations are
    replaced, so that their errors play no part. One sweep against the causal order serves all sets;
    no path is listed.

    Parameters
    ----------
    problem:
        The problem, with its graph and its intervention sets.
    slopes:
        {(cause, effect): L_ab >= 0} for every edge between the target and its causes, where
        |g_b(u) - g_b(u')| <= sum_a L_ab |u_a - u'_a| for the mechanism g_b of b.

    Returns
    -------
    pd.DataFrame
        A row for each set and a column for each variable.

    Raises
    ------
    ArgumentError
        If a slope is missing, negative, or of an edge that the graph does not have.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> problem = cb.models.load("chain").problem
    >>> path_sensitivities(problem, {("X", "Z"): 0.8, ("Z", "Y"): 1.3}).loc["X"].to_dict()
    {'X': 0.0, 'Z': 1.3, 'Y': 1.0}
    """
    graph, matrix = problem.graph, _slope_matrix(problem, slopes)
    masks = np.array([np.isin(graph.nodes, members) for members in problem.sets])
    loads = adjoint_sweep(matrix, masks.T, graph.index(problem.target)).T
    index = pd.Index(map(set_label, problem.sets), name="set")
    return pd.DataFrame(loads, index=index, columns=list(graph.nodes))


def path_lipschitz_bound(
    problem: Problem, slopes: Mapping[Edge, float], errors: Mapping[str, float]
) -> pd.Series:
    """Bound the error of the effects of every set by sum_i L_{i->y}^(s) eps_i, at any values.

    The mechanisms may be of any shape.

    Parameters
    ----------
    problem, slopes:
        As for `path_sensitivities`.
    errors:
        {variable: eps_i >= 0}, the largest error of each mechanism over all that its parents may
        be, for every variable that some set leaves free on its way to the target; for a root, the
        error of its mean.

    Returns
    -------
    pd.Series
        The bound of each set.

    Raises
    ------
    ArgumentError
        If a slope or an error is missing or negative, or of no edge or variable of the graph.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> problem, slopes = cb.models.load("chain").problem, {("X", "Z"): 0.8, ("Z", "Y"): 1.3}
    >>> bound = cb.theory.path_lipschitz_bound(problem, slopes, {"Z": 0.1, "Y": 0.1})
    >>> bound.round(3).to_dict()
    {'X': 0.23, 'Z': 0.1}
    """
    loads = path_sensitivities(problem, slopes)
    _require_no_other("variable", errors, problem.graph.nodes)
    needed = [name for name in loads.columns if loads[name].any()]
    if missing := [name for name in needed if name not in errors]:
        raise ArgumentError(
            f"errors lack the mechanisms of {listed(missing)}; "
            "give a bound for each, 0 where it is known"
        )
    sizes = [read_size(f"the error of {name!r}", errors[name], positive=False) for name in needed]
    return pd.Series(loads[needed].to_numpy() @ np.array(sizes), index=loads.index, name="bound")


def _slope_matrix(problem: Problem, slopes: Mapping[Edge, float]) -> np.ndarray:
    """Return the slopes of the edges upstream of the target, an array of shape (p, p)."""
    graph, upstream = problem.graph, problem.graph.ancestral(problem.target).directed
    _require_no_other("edge", slopes, graph.directed)
    if missing := [" -> ".join(edge) for edge in upstream if edge not in slopes]:
        raise ArgumentError(
            f"slopes lack {listed(missing)}; give one for every edge upstream of the target"
        )
    matrix = np.zeros((len(graph.nodes), len(graph.nodes)))
    for cause, effect in upstream:
        size = read_size(f"the slope of {cause} -> {effect}", slopes[cause, effect], positive=False)
        matrix[graph.index(cause), graph.index(effect)] = size
    return matrix


def _require_no_other(what: str, given: Iterable[object], known: Iterable[object]) -> None:
    names = list(map(str, known))
    for each in given:
        if str(each) not in names:
            raise ArgumentError(unknown(what, each, names))


def mechanism_slopes(post: Posterior) -> dict[Edge, float]:
    """Return L_ab, the largest slope of every fitted mechanism, at the posterior mean.

    Slopes of nonlinear mechanisms are the largest on a fine grid. Give them to `path_sensitivities`
    and `path_lipschitz_bound`.

    Parameters
    ----------
    post:
        A posterior whose response map knows its mechanisms.

    Returns
    -------
    dict
        {(cause, effect): largest |dg/dcause| over all values of the causes}, for every edge
        upstream of the target; 0 for mechanisms that no effect of the problem depends on.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.
    PosteriorError
        If theta does not hold the mechanisms, or the verdict is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> {edge: round(slope, 2) for edge, slope in mechanism_slopes(post).items()}
    {('X', 'Z'): 0.76, ('Z', 'Y'): 1.29}
    """
    post = require_trusted(post)
    known = post.distribution.response
    found = known.slopes(post.mean) if isinstance(known, MechanismMap) else None
    if found is None:
        raise _not_held(post, "slopes")
    upstream = post.problem.graph.ancestral(post.problem.target).directed
    return {edge: float(found.get(edge, 0.0)) for edge in upstream}


def require_mechanisms(post: Posterior) -> MechanismMap:
    """Return the response map; refuse one whose theta does not determine the mechanisms."""
    known = post.distribution.response
    if not isinstance(known, MechanismMap):
        raise _not_held(post, "values")
    return known


def _not_held(post: Posterior, what: str) -> PosteriorError:
    return PosteriorError(
        f"theta of this posterior ({post.kind} parameters) does not hold the mechanisms, so "
        f"their {what} are not known; fit structural parameters or mechanisms of another family"
    )


def mechanism_errors(post: Posterior, system: CausalSystem) -> pd.DataFrame:
    """Compare every fitted mechanism, at the posterior mean, with the true one.

    Parameters
    ----------
    post:
        A posterior whose response map knows its mechanisms.
    system:
        The truth, without latent causes upstream of the target.

    Returns
    -------
    pd.DataFrame
        A row for each variable whose mechanism was learned. mean: the largest |h - g| over the box
        of its causes, each in its domain and the range of its data, on a grid of up to 16,384
        points. noise: E|s' u - s u|, the mean difference of the fitted noise; 0 for the target,
        whose noise does not change its mean, and where effects do not depend on sds. error: their
        sum, eps_i of `path_lipschitz_bound`.

    Raises
    ------
    ArgumentError
        If the system is not the truth of the posterior's problem.
    PosteriorError
        If theta does not hold the mechanisms.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0))
    >>> table = cb.theory.mechanism_errors(post, system)
    >>> table.index.tolist(), table.columns.tolist()
    (['Z', 'Y'], ['mean', 'noise', 'error'])
    """
    post, graph = _require_truth(post, system), post.problem.graph
    lines = {}
    for variable in learned_variables(post):
        values = mechanism_box(post, graph.parents(variable))
        errors, noise = _mechanism_gaps(post, system, variable, values)
        largest = float(errors.max()), float(noise.max())
        lines[variable] = (*largest, sum(largest))
    columns = ["mean", "noise", "error"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("variable")


def path_errors(
    post: Posterior,
    system: CausalSystem,
    queries: Queries | None = None,
    *,
    samples: int = 256,
    key: jax.Array | int,
) -> pd.DataFrame:
    """Put the path-Lipschitz bound of the fitted mechanisms beside the true error of the effects.

    Parameters
    ----------
    post:
        A posterior whose response map knows its mechanisms; they are taken at its mean.
    system:
        The truth, without latent causes upstream of the target.
    queries:
        Interventions that are evaluated; by default all vertices, or points that fill the domains
        where effects are not affine in the values.
    samples:
        The number of samples of the truth under each of them.
    key:
        A JAX key or an int, for these samples.

    Returns
    -------
    pd.DataFrame
        A row for each set. error: the largest true error of an effect. expected: the largest bound
        sum_i L_{i->y} E|h_i(V) - g_i(V)| over the same interventions, with the errors of mechanisms
        averaged over samples; standard_error: its Monte-Carlo error. bound: the theory's, with
        the largest errors over the boxes of the causes, as in `mechanism_errors`. outside: the
        share of samples in which a cause of a free variable leaves its box, where the errors may be
        larger still. `attrs` holds the slopes.

    Raises
    ------
    ArgumentError
        If the system is not the truth of the posterior's problem, or there are too few samples.
    PosteriorError
        If theta does not hold the mechanisms.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> table = cb.theory.path_errors(cb.fit(system.problem, system.observe(200, 0)), system, key=0)
    >>> bool((table["error"] <= table["bound"]).all())
    True
    """
    post, count = _require_truth(post, system), read_count("samples", samples, 2)
    asked = design(post).queries if queries is None else require_queries(post.problem, queries)
    slopes = mechanism_slopes(post)
    table = mechanism_errors(post, system)
    largest = {str(name): float(table.loc[name, "error"]) for name in table.index}
    worst = path_lipschitz_bound(post.problem, slopes, largest)
    parts, step = [], max(1, MOST_SAMPLES_AT_ONCE // count)
    for start in range(0, len(asked), step):
        piece, fresh = asked[start : start + step], jax.random.fold_in(as_key(key), start)
        parts.append(_pointwise(post, system, piece, slopes, count, fresh))
    bounds, errors, outside = np.concatenate(parts, axis=1)
    truth = np.abs(response(post)(post.mean, asked) - system.effect(asked))
    lines = {}
    sets = split_sets(post.problem, asked)
    for label, own in zip(sets.labels, sets.indices, strict=True):
        widest = own[bounds[own].argmax()]
        expected = bounds[widest], errors[widest]
        lines[label] = (truth[own].max(), *expected, worst[label], outside[own].mean())
    columns = ["error", "expected", "standard_error", "bound", "outside"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("set")
    table.attrs = {"slopes": {" -> ".join(edge): slope for edge, slope in slopes.items()}}
    return table


def _pointwise(
    post: Posterior,
    system: CausalSystem,
    queries: Queries,
    slopes: Mapping[Edge, float],
    count: int,
    key: jax.Array,
) -> np.ndarray:
    """Return averages over samples of the truth for each query, (3, M).

    They are the bound by errors averaged over these samples, its Monte-Carlo error, and the share
    of samples in which a cause leaves its box.
    """
    values = np.asarray(system.experiment(queries.repeat(count), key).values)
    graph, mask = post.problem.graph, np.asarray(queries.mask)
    matrix = _slope_matrix(post.problem, slopes)
    loads = adjoint_sweep(matrix, mask.T, graph.index(post.problem.target)).T
    total = np.zeros((len(mask), count))
    for variable in learned_variables(post):
        errors, noise = _mechanism_gaps(post, system, variable, values)
        total += loads[:, [graph.index(variable)]] * (errors + noise).reshape(total.shape)
    outside = _outside(post, queries, values)
    return np.stack([total.mean(axis=1), total.std(axis=1, ddof=1) / sqrt(count), outside])


def _mechanism_gaps(
    post: Posterior, system: CausalSystem, variable: str, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the error (n,) of a mechanism at values (n, p), and that of its noise (n,)."""
    position, truth = post.problem.graph.index(variable), system.mechanisms(values)
    known = require_mechanisms(post)
    fitted = known.mechanism(post.mean[None], variable, values)[0]
    gaps, sds = np.abs(fitted - truth.mean[:, position]), known.scales(post.mean)
    if variable == post.problem.target or sds is None:
        return gaps, np.zeros(len(values))
    return gaps, MEAN_ABSOLUTE_NORMAL * np.abs(sds[variable] - truth.sd[:, position])


def learned_variables(post: Posterior) -> list[str]:
    """Return the variables whose mechanisms some effect depends on, in causal order."""
    after = [post.problem.graph.do(members) for members in post.sets]
    target = post.problem.target
    free = [
        {*graph.ancestors(target), target} - set(members)
        for graph, members in zip(after, post.sets, strict=True)
    ]
    return [name for name in post.problem.graph.nodes if any(name in each for each in free)]


def _ends(post: Posterior, causes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the box of some variables: the domain of each and the range of its data."""
    boxes = []
    for name in causes:
        seen = [*post.problem.domains.get(name, ()), *post.data.column(name).tolist()]
        if not seen:
            raise DataError(
                f"{name!r} has no domain and no data, so its box is not known; give data to cb.fit"
            )
        boxes.append((min(seen), max(seen)))
    low, high = np.array(boxes).T
    return low, high


def mechanism_box(post: Posterior, causes: tuple[str, ...]) -> np.ndarray:
    """Return values (n, p) that fill the box of some variables; others are 0."""
    values = np.zeros((1, len(post.problem.graph.nodes)))
    if not causes:
        return values
    ticks = int(MOST_BOX_POINTS ** (1 / len(causes)) + 1e-9)
    unit = lattice(ticks) if ticks >= FEWEST_TICKS else sobol(MOST_BOX_POINTS)
    cube = unit(len(causes))
    values = np.repeat(values, len(cube), axis=0)
    positions = [post.problem.graph.index(name) for name in causes]
    values[:, positions] = between(*_ends(post, causes), cube)
    return values


def _outside(post: Posterior, queries: Queries, values: np.ndarray) -> np.ndarray:
    """Return the share (M,) of samples in which a cause of a free variable leaves its box."""
    graph, mask = post.problem.graph, np.asarray(queries.mask)
    left = np.zeros((len(mask), len(values) // len(mask)), bool)
    for variable in learned_variables(post):
        causes = graph.parents(variable)
        if causes:
            low, high = _ends(post, causes)
            own = values[:, [graph.index(name) for name in causes]]
            gone = ((own < low) | (own > high)).any(axis=1).reshape(left.shape)
            left |= gone & ~mask[:, [graph.index(variable)]]
    return np.asarray(left.mean(axis=1))


def _require_truth(post: Posterior, system: CausalSystem) -> Posterior:
    """Return the posterior if the system is the truth of its problem; refuse any other."""
    post = require_trusted(post)
    if not isinstance(system, CausalSystem):
        raise ArgumentError(
            f"the truth must be a CausalSystem, got {type(system).__name__}; without one, bound "
            "the errors yourself and call path_lipschitz_bound"
        )
    if system.problem.graph != post.problem.graph:
        raise ArgumentError("the system has another graph than the posterior's problem")
    graph = post.problem.graph.ancestral(post.problem.target)
    if graph.bidirected:
        one, other = graph.bidirected[0]
        raise ArgumentError(
            f"a latent cause joins {one!r} and {other!r}, upstream of the target: their mechanisms "
            "are not functions of observed causes alone"
        )
    return post
