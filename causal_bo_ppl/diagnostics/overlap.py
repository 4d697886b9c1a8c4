"""Do interventions stay where there are data, and do the variables vary by themselves?

Every set is judged by two numbers: how far the corners of its box lie from the observations
(Mahalanobis distance, in units of the 99 % quantile of the observations), and how much of a member
is explained by what would confound its effect (adjusted R^2).

An intervention moves everything downstream of it. Where an input of a mechanism lies outside the
range in which it was observed, the effect depends on how the mechanism is extrapolated: so single
interventions are judged by the share of their paths that leave the data.

Where a latent cause joins a cause c and its effect v, the coefficient of c -> v can be learned from
an instrument: a variable that is related to c and, once the arrow c -> v is removed, not to v. The
estimate divides by the strength of the first relation. Its F statistic in the regression of c
measures that strength: below 10 estimates are biased towards the confounded regression, and their
distribution is far from Gaussian (Staiger and Stock 1997).
"""

from collections.abc import Sequence
from functools import cache, partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import Rows, regress, scale_values
from causal_bo_ppl.errors import ArgumentError, DataError, PosteriorError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.parameters import reduce_effects
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_inputs, require_posterior
from causal_bo_ppl.inputs import read_share, require_between
from causal_bo_ppl.linalg import (
    between,
    first_largest,
)
from causal_bo_ppl.mechanisms.base import AveragedMap, Extrapolation
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import default_design, lattice, sobol
from causal_bo_ppl.problem.interventions import labels
from causal_bo_ppl.responses import response

MOST_VARIABLES_NAMED = 3  # in the text; the table has all sets
HIGH_CORRELATION = 0.9  # correlation of two members that the text mentions
INNER_SHARE = 0.99  # of the observations, which lie inside the ellipsoid that counts as covered
SOBOL_POINTS = 512  # a share of them is known to about 0.02
# So many members have all their 2^12 corners tried; of more, two for every principal direction are.
MOST_MEMBERS_WITH_ALL_CORNERS = 12
ORDER_OF_VERDICTS = {FAILED: 0, PASSED: 1, UNKNOWN: 2}
DESIGN_QUERIES = 64  # vertices, and as many points inside the boxes, where no query is named
MOST_QUERIES_NAMED = 3  # in the text; the table has all
WEAKEST_F = 10.0  # of an instrument


class SetOverlap(NamedTuple):
    """The overlap of one set with the data.

    acting: members that still affect the target when all are set. reach: how far the farthest
    corner of their box lies from the observations. covered: the share of the box that the
    observations surround. corner: the farthest corner. explained: for each member R^2 on `by`; NaN
    where observations are too few or it is constant. reason: why nothing could be assessed.
    """

    acting: tuple[str, ...]
    reach: float = np.nan
    covered: float = np.nan
    corner: tuple[float, ...] = ()
    explained: tuple[float, ...] = ()
    by: tuple[tuple[str, ...], ...] = ()
    reason: str = ""

    def verdict(self, reach: float, most_explained: float) -> str:
        """Return "failed" if one of the two numbers is too large, "passed" if both are known."""
        if self.reach > reach or any(share > most_explained for share in self.explained):
            return FAILED
        return UNKNOWN if self.reason else PASSED


class Faults(NamedTuple):
    """The faults that failed sets have in common.

    entangled: {variable: (R^2, by what)} of those nearly explained. outside: variables whose own
    domain is too wide. far: the set with the farthest corner, or None where none lies too far.
    """

    entangled: dict[str, tuple[float, tuple[str, ...]]]
    outside: list[str]
    far: SetOverlap | None


def _describe(problem: Problem, data: Data, table: pd.DataFrame, faults: Faults) -> str:
    """Return the findings as text, with names and numbers."""
    counts = table["verdict"].value_counts().reindex([PASSED, FAILED, UNKNOWN], fill_value=0)
    parts = [
        f"Intervention sets checked, with {len(data)} observations: {len(table)}",
        f"without overlap: {counts[FAILED]}",
    ]
    if counts[UNKNOWN]:
        parts.append(f"not assessed: {counts[UNKNOWN]} (such as: {table['reason'].iloc[-1]})")
    sentences = [*_describe_entangled(data, faults), *_describe_outside(problem, data, faults)]
    if counts[PASSED] and not counts[FAILED]:
        known = table[table["verdict"] == PASSED]
        sentences = [
            f"The farthest corner of a box lies {known['reach'].max():.1f} times as far out as "
            f"99 % of the observations; at most {known['explained'].max():.0%} of a variable's "
            "variance is explained by what would confound it."
        ]
    return " ".join(["; ".join(parts) + ".", *sentences])


def _describe_entangled(data: Data, faults: Faults) -> list[str]:
    """Return sentences about variables that are nearly functions of others."""
    if not faults.entangled:
        return []
    parts = [
        f"{name} is nearly a function of {listed(by, most=6)} (R^2 {share:.3f}: its independent "
        f"variation equals {len(data) * (1 - share):.2g} of {len(data)} observations)"
        for name, (share, by) in faults.entangled.items()
    ]
    names = listed(faults.entangled, most=6)
    return [
        f"{_first(parts)}.",
        *_describe_correlation(data, list(faults.entangled)),
        f"The data hardly inform effects of setting {names} apart from these; estimates there "
        "depend on the form of the model.",
    ]


def _describe_correlation(data: Data, names: Sequence[str]) -> list[str]:
    """Return a sentence about the two variables that are most closely correlated."""
    if len(names) < 2:
        return []
    together = np.corrcoef([data.column(name) / np.abs(data.column(name)).max() for name in names])
    pairs = list(combinations(range(len(names)), 2))
    one, other = pairs[first_largest(np.array([abs(together[pair]) for pair in pairs]))]
    if not abs(together[one, other]) > HIGH_CORRELATION:
        return []
    return [f"The correlation of {names[one]} and {names[other]} is {together[one, other]:.3f}."]


def _describe_outside(problem: Problem, data: Data, faults: Faults) -> list[str]:
    """Return sentences about domains beyond the data, and about the farthest intervention."""
    if faults.far is None:
        return []
    parts = [
        f"{name} may be set in [{low:.4g}, {high:.4g}], but was observed in "
        f"[{column.min():.4g}, {column.max():.4g}] only"
        for name in faults.outside
        for (low, high), column in [(problem.domains[name], data.column(name))]
    ]
    values = zip(faults.far.acting, faults.far.corner, strict=True)
    corner = ", ".join(f"{name} = {value:.4g}" for name, value in values)
    far = f"{faults.far.reach:.2g} times as far out as 99 % of the observations"
    if not np.isfinite(faults.far.reach):
        far = "in a direction in which the observations do not vary"
    sentences = [f"{_first(parts)}."] if parts else []
    return [*sentences, f"do({corner}) lies {far}; its effect is extrapolated."]


def _first(parts: Sequence[str]) -> str:
    more = len(parts) - MOST_VARIABLES_NAMED
    rest = [f"{more} more variables likewise"] if more > 0 else []
    return "; ".join([*parts[:MOST_VARIABLES_NAMED], *rest])


def _advise(faults: Faults) -> str:
    names = dict.fromkeys([*faults.entangled, *faults.outside]) or (
        faults.far.acting if faults.far else ()
    )
    if not names:
        return ""
    return (
        f"Run experiments that set {listed(names, most=6)} independently, narrow the domains to "
        "what was observed, or widen the priors, so that intervals there are wide enough."
    )


def check_overlap(
    problem: Problem | Posterior,
    data: Data | None = None,
    *,
    reach: float = 4.0,
    most_explained: float = 0.99,
) -> Check:
    """Find intervention sets whose effects depend on the form of the model more than on the data.

    Members that do nothing once the others are set are omitted. All observations count: one that
    sets a variable shows it at that value, and varies it independently.

    Parameters
    ----------
    problem, data:
        Sets and domains, and observations of its variables, with or without interventions; or a
        posterior, which has both.
    reach:
        How far a corner of a set's box may lie from the mean, in units of the distance within which
        99 % of the observations lie; beyond, an effect is extrapolation. 4 is about ten standard
        deviations of a normal variable that is set alone.
    most_explained:
        How much of a member's variance may be explained by the other members and by those of their
        parents that are related to the target by another path. At 0.99 the standard error of its
        slope is ten times what it could be.

    Returns
    -------
    Check
        A row for every set, failed ones first: `reach`; `covered`, the share of the box that 99 %
        of the observations surround; `explained`, the largest share, of which `member`, `by` what;
        `effective_observations`, the equivalent number of observations with unconfounded variation.

    Raises
    ------
    DataError
        If there are no observations.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.check_overlap(system.problem, system.observe(100, 0)).passed
    True
    """
    problem, data = require_inputs("check_overlap", problem, data)
    limits = (
        require_between("reach", reach, 0, np.inf),
        read_share("most_explained", most_explained),
    )
    if not len(data):
        raise DataError("there are no observations; observe some, then check where they lie")
    rows = scale_values(data.values)
    look = cache(partial(_look, problem, rows))
    upstream = problem.graph.ancestral(problem.target)
    reductions = reduce_effects(upstream, problem.target, problem.sets)
    views = [look(reduction.effective) for reduction in reductions]
    lines = [
        _line(members, view, limits, len(data))
        for members, view in zip(problem.sets, views, strict=True)
    ]
    table = pd.DataFrame(lines).sort_values(
        "verdict", key=lambda verdicts: verdicts.map(ORDER_OF_VERDICTS), kind="stable"
    )
    table = table.reset_index(drop=True)
    faults = _find_faults(problem, rows, views, limits)
    return Check("overlap", table, _describe(problem, data, table, faults), _advise(faults))


def _look(problem: Problem, rows: Rows, acting: tuple[str, ...]) -> SetOverlap:
    """Compute the overlap of one set with the data."""
    count, fewest = len(rows.scaled), len(acting) + 2
    if count < fewest:
        few = f"{count} observations are too few; at least {fewest} are needed"
        return SetOverlap(acting, reason=few)
    beside = {*acting, *_confounders(problem, acting)}
    by = tuple(problem.graph.ordered(beside - {name}) for name in acting)
    shares = tuple(
        _explained(problem.graph, rows, name, others)
        for name, others in zip(acting, by, strict=True)
    )
    unclear = [name for name, share in zip(acting, shares, strict=True) if np.isnan(share)]
    reason = ""
    if unclear:
        others = listed(problem.graph.ordered(beside))
        reason = f"{count} observations are too few to separate {listed(unclear)} from {others}"
    return SetOverlap(acting, *_distance(problem, rows, acting), shares, by, reason)


def _confounders(problem: Problem, acting: tuple[str, ...]) -> list[str]:
    """Return the parents of the set that are related to the target by another path.

    The others need not be held fixed.
    """
    upstream = problem.graph.ancestral(problem.target)
    parents = [name for name in upstream.with_parents(acting) if name not in acting]
    if not parents:
        return []
    after = upstream.do(acting)
    return [
        name
        for name in parents
        if not after.m_separated(
            name, problem.target, [*acting, *(other for other in parents if other != name)]
        )
    ]


def _explained(graph: CausalGraph, rows: Rows, name: str, by: tuple[str, ...]) -> float:
    """Return the adjusted R^2 of one variable on others.

    It is NaN if the variable is constant or the observations are too few.
    """
    column, spare = graph.index(name), len(rows.scaled) - 1
    fit = regress(rows, column, [graph.index(other) for other in by])
    if rows.is_constant[column] or spare - fit.rank < 1:
        return np.nan
    left = 0.0 if fit.is_exact else float(fit.residual @ fit.residual) / len(rows.scaled)
    return max(0.0, 1 - left * spare / (spare - fit.rank)) if by else 0.0


def _distance(
    problem: Problem, rows: Rows, names: tuple[str, ...]
) -> tuple[float, float, tuple[float, ...]]:
    """Return reach, covered share and farthest corner of a box.

    The reach is infinite where the observations fill no volume.
    """
    columns = [problem.graph.index(name) for name in names]
    low, high = np.array([problem.domains[name] for name in names]).T
    _, sizes, directions = np.linalg.svd(
        rows.root[:, columns] / np.sqrt(len(rows.scaled)), full_matrices=False
    )
    least = np.linalg.norm(rows.rounding[columns]) + np.finfo(float).eps  # where all are constant
    whiten = directions.T / np.maximum(sizes, least)

    def lengths(values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # a domain of 1e200 is infinitely far
            scaled = (values / rows.size[columns] - rows.centre[columns]) / rows.unit[columns]
            norms = np.linalg.norm(scaled @ whiten, axis=1)
        return np.where(np.isnan(norms), np.inf, norms)

    inner = np.quantile(np.linalg.norm(rows.scaled[:, columns] @ whiten, axis=1), INNER_SHARE)
    restricted = np.zeros((0, len(names)))
    if not problem.region.is_plain(names):
        restricted = problem.region.vertices(names)
    # Members that do not act are omitted here, and the others may keep no constraint.
    is_plain = not len(restricted)
    corners = between(low, high, _corners(directions)) if is_plain else restricted
    far = lengths(corners)
    farthest = tuple(corners[first_largest(far)].tolist())
    if not (sizes > least).all():
        return np.inf, 0.0, farthest
    filled = (
        between(low, high, _sobol(len(names)))
        if is_plain
        else problem.region.fill(names, SOBOL_POINTS)
    )
    inside = lengths(filled) <= inner
    return float(far.max() / inner), float(inside.mean()), farthest


def _corners(directions: np.ndarray) -> np.ndarray:
    """Return corners of the unit cube: all, or the farthest either way along each of q directions.

    The best of these is at least 1 / sqrt(q) as far as the farthest of all.
    """
    if directions.shape[1] <= MOST_MEMBERS_WITH_ALL_CORNERS:
        return _all_corners(len(directions))
    return np.vstack([directions > 0, directions <= 0]).astype(float)


# Designs by dimension.
_all_corners = cache(lattice(2))
_sobol = cache(lambda size: sobol(SOBOL_POINTS)(size))


def _line(
    members: tuple[str, ...], view: SetOverlap, limits: tuple[float, float], count: int
) -> dict[str, object]:
    share, member, by = np.nan, "", ""
    if view.explained:
        worst = first_largest(np.nan_to_num(view.explained, nan=-1.0))
        share, member, by = view.explained[worst], view.acting[worst], ", ".join(view.by[worst])
    verdict = view.verdict(*limits)
    return {
        "set": ", ".join(members),
        "reach": view.reach,
        "covered": view.covered,
        "explained": share,
        "member": member,
        "by": by,
        "effective_observations": count * (1 - share),
        "verdict": verdict,
        "reason": view.reason if verdict == UNKNOWN else "",
    }


def _find_faults(
    problem: Problem, rows: Rows, views: Sequence[SetOverlap], limits: tuple[float, float]
) -> Faults:
    """Return the faults of failed sets, each variable by the smallest set in which it fails."""
    entangled: dict[str, tuple[float, tuple[str, ...]]] = {}
    for view in (view for view in views if view.explained):
        for name, share, by in zip(view.acting, view.explained, view.by, strict=True):
            if share > limits[1]:
                entangled.setdefault(name, (share, by))
    far = [view for view in views if view.reach > limits[0]]
    names = problem.graph.ordered(name for view in far for name in view.acting)
    outside = [name for name in names if _distance(problem, rows, (name,))[0] > limits[0]]
    farthest = far[first_largest(np.array([view.reach for view in far]))] if far else None
    return Faults(entangled, outside, farthest)


def check_extrapolation(
    post: Posterior, queries: Queries | None = None, *, most: float = 0.05
) -> Check:
    """Find interventions whose effects depend on mechanisms beyond the range of their data.

    Inside the data bands may be too narrow too, where observations are sparse and a mechanism is
    more nonlinear than elsewhere; `cb.diagnostics.check_predictive` tests that.

    Parameters
    ----------
    post:
        A posterior of mechanisms that know the range of their data, as those of
        `mechanisms="gp"` do.
    queries:
        Interventions to check; by default up to 64 vertices of the sets, and as many points of a
        Sobol sequence inside their boxes.
    most:
        The share of paths from an intervention to the target that may leave the data. Paths are
        those over which an effect is averaged, at the posterior mean of theta.

    Returns
    -------
    Check
        A row for every query. `outside` is the share of the paths on which an input of some
        mechanism lies outside the range of its data. The worst input is that of the `mechanism` of
        a variable from its `cause`: the `share` of paths on which it lies outside, and how far, in
        `ranges` of the data on average. An input that is set is outside as soon as it leaves the
        range, one that varies by itself when it does so by a tenth of the range or more.
        `variance_share` is the share of the effect's variance, linearized at the mean, that comes
        from coefficients which act outside the data only. A row fails where `outside` exceeds
        `most`: the effect there is a guess, with the width that the prior gives it.

    Raises
    ------
    PosteriorError
        If the mechanisms do not know the range of their data; `cb.diagnostics.check_overlap`
        compares domains with the observations of any problem.
    ArgumentError
        If there is no query, or `most` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> post = cb.fit(system.problem, system.observe(50, 0), mechanisms=cb.GP(functions=8))
    >>> far = post.problem.queries([{"Z": 1.0}, {"Z": 20.0}])
    >>> cb.diagnostics.check_extrapolation(post, far).table["verdict"].to_dict()
    {'do(Z = 1)': 'passed', 'do(Z = 20)': 'failed'}
    """
    require_posterior("check_extrapolation", post)
    most = read_share("most", most)
    averaged = post.distribution.response
    if not isinstance(averaged, AveragedMap):
        raise PosteriorError(
            f"{post.mechanisms} mechanisms do not know the range of their data; "
            "cb.diagnostics.check_overlap(post) compares the domains with the observations"
        )
    asked = default_design(post.problem, post.sets, queries, DESIGN_QUERIES)
    if not len(asked):
        raise ArgumentError("there is no intervention to check: give at least one query")
    table = _tabulate(post, asked, averaged.extrapolation(post.mean, asked), most)
    return Check(
        "extrapolation",
        table,
        _describe_extrapolation(table, most),
        _advise_on_extrapolation(table),
    )


def _tabulate(
    post: Posterior, queries: Queries, extrapolation: Extrapolation, most: float
) -> pd.DataFrame:
    jacobian = np.asarray(response(post).linearize(post.mean, queries)[1])
    variance, beyond = ((jacobian @ post.factor) ** 2).sum(axis=1), extrapolation.beyond
    outer = ((jacobian[:, beyond] @ post.factor[beyond]) ** 2).sum(axis=1)
    shares = np.column_stack([np.zeros(len(queries)), extrapolation.shares])
    distances = np.column_stack([np.zeros(len(queries)), extrapolation.distances])
    worst = (shares * distances).argmax(axis=1)  # by the mean distance over all paths
    inputs = [("", ""), *extrapolation.inputs]  # the first where no path leaves the data
    return pd.DataFrame(
        {
            "outside": extrapolation.outside,
            "mechanism": [inputs[position][0] for position in worst],
            "cause": [inputs[position][1] for position in worst],
            "share": np.take_along_axis(shares, worst[:, None], axis=1)[:, 0],
            "ranges": np.take_along_axis(distances, worst[:, None], axis=1)[:, 0],
            "variance_share": np.clip(outer / np.where(variance > 0, variance, 1.0), 0.0, 1.0),
            "verdict": [judge(bool(share <= most)) for share in extrapolation.outside],
        },
        index=pd.Index(labels(post.problem, queries), name="query"),
    )


def _describe_extrapolation(table: pd.DataFrame, most: float) -> str:
    failed = table[table["verdict"] == FAILED]
    if not len(failed):
        return (
            f"Of {len(table)} interventions none sends more than {most:.0%} of its paths beyond "
            "the data."
        )
    weight = failed["outside"] * (failed["ranges"] + failed["variance_share"])
    order = weight.sort_values(ascending=False, kind="stable").index
    parts = [
        f"{query}: {row['share']:.0%} of the paths enter {row['mechanism']}'s mechanism beyond the "
        f"data of {row['cause']} (by {row['ranges']:.2g} ranges)"
        for query, row in failed.loc[order].head(MOST_QUERIES_NAMED).iterrows()
    ]
    if len(failed) > MOST_QUERIES_NAMED:
        parts.append(f"{len(failed) - MOST_QUERIES_NAMED} more likewise")
    count = f"{len(failed)} of {len(table)} interventions lead beyond the data"
    return f"{count}. {'; '.join(parts)}."


def _advise_on_extrapolation(table: pd.DataFrame) -> str:
    failed = table[table["verdict"] == FAILED]
    if not len(failed):
        return ""
    causes = ", ".join(dict.fromkeys(failed["cause"]))
    return (
        f"Run experiments that bring {causes} there, narrow the domains to what was observed, or "
        "regard these effects as guesses: their width is the prior's (`variance_share`)."
    )


def check_instruments(
    problem: Problem | Posterior, data: Data | None = None, *, least: float = WEAKEST_F
) -> Check:
    """Test the strength of every instrument that the graph offers.

    Parameters
    ----------
    problem, data:
        The problem and its data, or a posterior, which has both. Observations with interventions
        are not used.
    least:
        The F statistic below which an instrument is weak.

    Returns
    -------
    Check
        A row for every arrow upstream of the target whose ends a latent cause joins: its
        `instruments`, the `F` statistic of these in the regression of the `cause`, and how many
        observations there are. An arrow without an instrument is not assessed.

    Raises
    ------
    DataError
        If the graph has no such arrow, so that no effect rests on an instrument.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> import numpy as np, pandas as pd
    >>> graph = cb.CausalGraph.parse("Z -> X -> Y; X <-> Y")
    >>> problem = cb.Problem(graph, "Y", domains={"X": (-1, 1)}, identifiable_only=True)
    >>> z, u, e = np.random.default_rng(0).normal(size=(3, 100))
    >>> table = pd.DataFrame({"Z": z, "X": 0.05 * z + u + e, "Y": u})
    >>> cb.diagnostics.check_instruments(problem, cb.Data.from_frame(problem, table)).verdict
    'failed'
    """
    problem, data = require_inputs("check_instruments", problem, data)
    least = require_between("least", least, 0, np.inf)
    graph = problem.graph.ancestral(problem.target)
    arcs = {frozenset(arc) for arc in graph.bidirected}
    joined = [edge for edge in graph.directed if frozenset(edge) in arcs]
    if not joined:
        raise DataError("no latent cause joins a cause to its effect, so no instrument is needed")
    values = data.values[data.is_observational]
    lines = []
    for cause, effect in joined:
        names = find_instruments(graph, cause, effect)
        strength = _first_stage(problem.graph, values, cause, names) if names else np.nan
        verdict = judge(strength >= least) if names and not np.isnan(strength) else UNKNOWN
        lines.append((cause, effect, ", ".join(names), strength, len(values), verdict))
    columns = ["cause", "effect", "instruments", "F", "observations", "verdict"]
    table = pd.DataFrame(lines, columns=columns)
    failed = table[table["verdict"] == FAILED]
    if failed.empty:
        known = table.dropna(subset=["F"])
        text = "No arrow has an instrument."
        if len(known):
            text = f"The weakest of {len(known)} instruments has an F of {known['F'].min():.3g}."
        return Check("instruments", table, text)
    parts = [
        f"{row['instruments']} for {row['cause']} -> {row['effect']} (F = {row['F']:.2g})"
        for _, row in failed.iterrows()
    ]
    text = (
        f"Weak instruments: {listed(parts, MOST_VARIABLES_NAMED)}; F should be at least {least:g}."
    )
    advice = (
        "Estimates lean towards the confounded regression and intervals are unreliable: set the "
        "cause in experiments, observe more, or give a prior of the strength of the latent cause."
    )
    return Check("instruments", table, text, advice)


def find_instruments(graph: CausalGraph, cause: str, effect: str) -> tuple[str, ...]:
    """Return the variables that are related to a cause, and to its effect by their arrow alone."""
    without = CausalGraph.from_edges(
        [edge for edge in graph.directed if edge != (cause, effect)],
        graph.bidirected,
        nodes=graph.nodes,
    )
    later = {*graph.descendants(cause), cause, effect}
    return tuple(
        name
        for name in graph.nodes
        if name not in later
        and without.m_separated(name, effect, [])
        and not graph.m_separated(name, cause, [])
    )


def _first_stage(
    graph: CausalGraph, values: np.ndarray, cause: str, instruments: tuple[str, ...]
) -> float:
    """Return the F statistic of the instruments in the regression of the cause; NaN if unknown."""
    if len(values) < len(instruments) + 3:
        return np.nan
    rows = scale_values(values)
    fit = regress(rows, graph.index(cause), [graph.index(name) for name in instruments])
    freedom = len(values) - 1 - fit.rank
    if rows.is_constant[graph.index(cause)] or not fit.rank or freedom < 1:
        return np.nan
    left = float(fit.residual @ fit.residual) / len(values)
    return float((1 - left) / fit.rank / max(left / freedom, 1e-300))
