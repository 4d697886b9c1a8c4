"""What would be recommended if the graph, the mechanisms, the method or the sample were another?

The recommendation z is kept, and its effect and its regret under each alternative model g are

    g(z)  and  max_z' g(z') - g(z)  (for max; mirrored for min).

Without latent causes the equations of linear mechanisms are regressions, one for each variable, so
that an alternative changes the coefficients of few of them and nothing is fitted again:

- without the arrow a -> b, V_b is regressed on its other causes;
- with a latent cause of i and j, i before j, e_j = c e_i + eta. The causes P of V_j then have
  Cov(P, e_j) = c Cov(P, e_i), so that the coefficients of V_j are

      w(c) = Var(P)^-1 (Cov(P, V_j) - c Cov(P, e_i)),

  and each effect is affine in c. The recommendation z changes where g_z + c g'_z first equals the
  same of another intervention, in closed form. The correlation of the disturbances at that c is
  rho = c sd(e_i) / sd(e_j(c)), the strength that is reported. Where e_i is no combination of P, the
  data know c too: its estimate is the coefficient of e_i in the regression of V_j on P and e_i,
  and the p-value is that of the t-test of the c at which z changes.

Other models, and other mechanisms, are fitted again.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import norm
from scipy.stats import t as student
from tqdm import tqdm

from causal_bo_ppl.checks import UNKNOWN, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics import check_linearity
from causal_bo_ppl.errors import CausalBOError, PosteriorError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.parameters import reduce_effect
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.posterior import TRUSTED_VERDICTS
from causal_bo_ppl.inputs import PROGRESS_DELAY, host_generator
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.mechanisms.linear_equations import ScaledPrior
from causal_bo_ppl.problem import Levels, Problem
from causal_bo_ppl.problem.interventions import show, split_by_set, to_mappings
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.constants import design
from causal_bo_ppl.validation.situation import Situation

SUBSETS, SUBSET_SHARE = 10, 0.8
LARGEST_REGRET = 0.1  # of what the recommendation gains over doing nothing
PLAUSIBLE_P = 1e-3  # of the coefficient that an alternative omits: below, the data exclude it
WEAK_CONFOUNDING = 0.1  # correlation of disturbances that changes the recommendation
MOST_REFITTED_SETS = 12  # in which the best intervention of a model that is fitted again is sought
SMALLEST_NEW_SHARE = 1e-8  # of a disturbance that its variable's causes do not explain
LARGEST_STRENGTH = 0.999  # correlation up to which a latent cause is looked for
TABLE_COLUMNS = "kind recommended effect best regret strength p_value verdict note".split()


class Alternative(NamedTuple):
    """What another model says, a row of the table; see `assess_robustness`."""

    name: str
    kind: str
    recommended: str = ""
    effect: float = np.nan
    best: float = np.nan
    regret: float = np.nan
    strength: float = np.nan
    p_value: float = np.nan
    note: str = ""


class LeastSquares(NamedTuple):
    """The least-squares equation of one variable.

    names: of its coefficients in theta. coefficients, sd: (k,) and their standard errors. columns:
    (n, k) regressors. outcome: (n,). rows: (N,) which observations these are. degrees: of freedom.
    """

    names: tuple[str, ...]
    coefficients: np.ndarray
    sd: np.ndarray
    columns: np.ndarray
    outcome: np.ndarray
    rows: np.ndarray
    degrees: int

    @property
    def residual(self) -> np.ndarray:
        """The residuals, (n,)."""
        return np.asarray(self.outcome - self.columns @ self.coefficients)


def regress_all(
    post: Posterior,
    chosen: np.ndarray | None = None,
    *,
    without: Mapping[str, str] | None = None,
    placebo: np.ndarray | None = None,
) -> dict[str, LeastSquares]:
    """Return the least-squares equations of the target and its causes.

    chosen: (N,) observations that are used. without: {variable: cause} that is omitted. placebo:
    (N,) a further regressor of every equation.
    """
    graph, data = post.problem.graph.ancestral(post.problem.target), post.data
    intercepts, found = post.parameters.intercepts, {}
    for name in graph.nodes:
        rows = ~data.intervened[:, data.nodes.index(name)]
        rows = rows if chosen is None else rows & chosen
        omitted = (without or {}).get(name)
        causes = [cause for cause in graph.parents(name) if cause != omitted]
        columns = [data.column(cause)[rows] for cause in causes]
        names = [f"b[{cause}->{name}]" for cause in causes]
        if intercepts:
            columns.append(np.ones(int(rows.sum())))
            names.append(f"a[{name}]")
        if placebo is not None:
            columns.append(placebo[rows])
        if not columns:
            continue
        regressors, outcome = np.column_stack(columns), data.column(name)[rows]
        weights = np.linalg.lstsq(regressors, outcome, rcond=None)[0]
        degrees = max(len(outcome) - len(weights), 1)
        variance = float(((outcome - regressors @ weights) ** 2).sum()) / degrees
        sd = np.sqrt(variance * np.diagonal(np.linalg.pinv(regressors.T @ regressors)))
        found[name] = LeastSquares(tuple(names), weights, sd, regressors, outcome, rows, degrees)
    return found


def is_regression(post: Posterior) -> bool:
    """Return whether the posterior mean is that of separate regressions on the causes alone."""
    graph, recipe = post.problem.graph.ancestral(post.problem.target), post.recipe
    return (
        recipe is not None
        and post.distribution.response.is_affine
        and post.kind == "structural"
        and not graph.bidirected
        and not post.problem.known
        and not post.problem.known_effects
        and isinstance(post.prior, ScaledPrior)
        and hasattr(post.distribution.response, "parameters")
    )


def assess_robustness(now: Situation, *, progress: bool = True) -> pd.DataFrame:
    """Compare the recommendation with what alternative models say about it.

    Returns
    -------
    pd.DataFrame
        A row for each alternative. kind: "arrow removed", "latent cause added", "arrow added",
        "mechanisms", "method", "subset" or "placebo". recommended: the best intervention of the
        alternative. effect: that of the recommendation under the alternative. best: that of the
        alternative's own. regret: by how much it is better. strength: for a latent cause, the
        smallest correlation of the disturbances at which another intervention becomes best; NaN
        where none does. p_value: of the coefficient that an alternative omits, or of that strength,
        where the data say something about it. verdict: "failed"
        where the regret exceeds 10 % of what the recommendation gains over doing nothing and the
        data do not exclude the alternative (p above 0.001), or a correlation below 0.1 suffices;
        "not assessed" where it could not be computed, as `note` says. Its attributes are the
        `effect` by the present model, the `limit` of the regret and the `recommendation`.
    """
    limit = LARGEST_REGRET * now.gain
    looks = _plan(now)
    options = {"desc": "robustness", "unit": "model", "delay": PROGRESS_DELAY, "leave": False}
    found: list[Alternative] = []
    for name, kind, look in tqdm(looks, disable=not progress, **options):
        try:
            found += look()
        except Exception as error:  # of another model, which nobody asked to be fitted
            note = str(error) if isinstance(error, CausalBOError) else repr(error)
            found.append(Alternative(name, kind, note=note))
    table = pd.DataFrame(found, columns=Alternative._fields).set_index("name")
    table.insert(len(table.columns) - 1, "verdict", [_judge(each, limit) for each in found])
    table.index.name = "alternative"
    table.attrs = {
        "effect": now.best_mean,
        "limit": limit,
        "recommendation": now.label,
        "target": now.problem.label(now.problem.target),
    }
    return table[TABLE_COLUMNS]


def _judge(each: Alternative, limit: float) -> str:
    if each.kind == "latent cause added" and not each.note:
        is_excluded = each.p_value < PLAUSIBLE_P
        return judge(is_excluded or not each.strength < WEAK_CONFOUNDING)
    if np.isnan(each.regret):
        return UNKNOWN
    return judge(each.regret <= limit or each.p_value < PLAUSIBLE_P)


Plan = list[tuple[str, str, Callable[[], list[Alternative]]]]


def _plan(now: Situation) -> Plan:
    """Return the alternatives that the budget allows, with the functions that assess them."""
    post, plan = now.trusted, Plan()
    if is_regression(post):
        plan += [
            ("arrows", "arrow removed", lambda: _without_arrows(now)),
            ("latent causes", "latent cause added", lambda: _with_latent_causes(now)),
            ("subsets", "subset", lambda: _on_subsets(now)),
            ("placebo", "placebo", lambda: _with_placebo(now)),
        ]
    if not now.full or post.recipe is None:
        return plan
    graph = now.problem.graph.ancestral(now.problem.target)
    if not is_regression(post):
        for edge in graph.directed:
            name = f"without {edge[0]} -> {edge[1]}"
            changed = _changed(now.problem, removed=edge)
            plan.append((name, "arrow removed", _refit(now, name, "arrow removed", changed)))
        for number in range(SUBSETS // 2):
            name, rows = f"80 % of the observations, {number + 1}", _some(now, number)
            again = _refit(now, name, "subset", None, data=now.data.select(rows))
            plan.append((name, "subset", again))
        arcs = {frozenset(arc) for arc in graph.bidirected}
        for pair in combinations(graph.nodes, 2):
            if frozenset(pair) not in arcs:
                name = f"a latent cause of {pair[0]} and {pair[1]}"
                changed = _changed(now.problem, arc=pair)
                kind = "latent cause of any strength"
                plan.append((name, kind, _refit(now, name, kind, changed)))
    for left, right in now.contradicted:
        name = f"with {left} -> {right}"
        changed = _changed(now.problem, added=(left, right))
        plan.append((name, "arrow added", _refit(now, name, "arrow added", changed)))
    if post.distribution.response.is_affine:
        again = _refit(now, "gp mechanisms", "mechanisms", None, mechanisms="gp")
        plan.append(("gp mechanisms", "mechanisms", again))
    else:
        plan.append(("linear mechanisms", "mechanisms", lambda: _with_linear_mechanisms(now)))
    for method in ("laplace", "wishart") if post.distribution.response.is_affine else ("laplace",):
        if method != post.method:
            again = _refit(now, f"method {method}", "method", None, method=method)
            plan.append((f"method {method}", "method", again))
    return plan


def _theta(now: Situation, equations: Mapping[str, LeastSquares]) -> np.ndarray:
    """Return theta with the coefficients of some equations; a coefficient they lack is 0."""
    post, values = now.trusted, dict(zip(now.trusted.names, now.trusted.mean.tolist(), strict=True))
    for name, equation in equations.items():
        for each in values:
            if each == f"a[{name}]" or (each.startswith("b[") and each.endswith(f"->{name}]")):
                values[each] = 0.0
        for each, value in zip(equation.names, equation.coefficients.tolist(), strict=False):
            if each in values:
                values[each] = value
    return np.array([values[name] for name in post.names])


def _compare(now: Situation, name: str, kind: str, theta: np.ndarray, **more: Any) -> Alternative:
    """Return what the response at another theta says of the recommendation."""
    effect = response(now.trusted)
    queries = now.candidates.queries
    effects = now.sign * np.asarray(effect.effects(theta, queries))
    ours = now.sign * float(effect.effects(theta, now.best)[0])
    best = first_smallest(effects)
    regret = max(ours - float(effects[best]), 0.0)
    label = now.label if regret <= 1e-9 * (1 + abs(ours)) else now.show(queries[best])
    values = now.sign * ours, now.sign * min(float(effects[best]), ours), regret
    return Alternative(name, kind, label, *values, **more)


def _without_arrows(now: Situation) -> list[Alternative]:
    """Return what is recommended without each of the arrows."""
    found, whole = [], regress_all(now.trusted)
    graph = now.problem.graph.ancestral(now.problem.target)
    for cause, effect in graph.directed:
        without = regress_all(now.trusted, without={effect: cause})
        changed = {effect: without[effect]} if effect in without else {}
        equation = whole[effect]
        position = equation.names.index(f"b[{cause}->{effect}]")
        ratio = abs(float(equation.coefficients[position] / equation.sd[position]))
        p_value = float(2 * student.sf(ratio, equation.degrees))
        theta = _theta(now, changed)
        name = f"without {cause} -> {effect}"
        found.append(_compare(now, name, "arrow removed", theta, p_value=p_value))
    return found


class LatentCause(NamedTuple):
    """The coefficients w(c) = before - c slope of one equation under e_j = c e_i + eta.

    equation: that of V_j. slope: (k,). sd: of e_i. variance: (3,) coefficients of the variance of
    e_j as a polynomial in c, the constant first. estimate, error: of c by the data,
    and its standard error; NaN where these do not know it.
    """

    equation: LeastSquares
    slope: np.ndarray
    sd: float
    variance: tuple[float, float, float]
    estimate: float
    error: float

    def p_value(self, c: float) -> float:
        """Return the p-value of c by the data; NaN where these do not know it."""
        ratio = abs(c - self.estimate) / self.error
        return float(2 * student.sf(ratio, max(self.equation.degrees - 1, 1)))

    def correlation(self, c: np.ndarray | float) -> Any:
        """Return the correlation of e_i and e_j at c."""
        constant, linear, square = self.variance
        left = np.maximum(constant + linear * np.asarray(c) + square * np.asarray(c) ** 2, 1e-300)
        return np.asarray(c) * self.sd / np.sqrt(left)

    def at(self, c: float) -> LeastSquares:
        """Return the equation at c."""
        return self.equation._replace(coefficients=self.equation.coefficients - c * self.slope)


def latent_cause(equations: Mapping[str, LeastSquares], i: str, j: str) -> LatentCause:
    """Return how the equation of V_j depends on the strength c of a latent cause of i and j."""
    one, other = equations[i], equations[j]
    whole = np.zeros(len(one.rows))
    whole[one.rows] = one.residual  # 0 where i was set: its disturbance does not act there
    noise = whole[other.rows]
    gram = other.columns.T @ other.columns
    slope = np.linalg.lstsq(gram, other.columns.T @ noise, rcond=None)[0]
    # e_j(c) = V_j - P w(c) = r + c P slope
    rest, moved = other.residual, other.columns @ slope
    n = len(rest)
    variance = float(rest @ rest) / n, 2 * float(rest @ moved) / n, float(moved @ moved) / n
    apart = noise - moved
    estimate = error = float("nan")
    if apart @ apart > SMALLEST_NEW_SHARE * (noise @ noise):
        estimate = float(apart @ rest / (apart @ apart))
        left = np.asarray(rest - estimate * apart)
        error = float(np.sqrt(left @ left / max(other.degrees - 1, 1) / (apart @ apart)))
    sd = float(np.sqrt((one.residual**2).mean()))
    return LatentCause(other, slope, sd, variance, estimate, error)


def _with_latent_causes(now: Situation) -> list[Alternative]:
    """Return the strength at which each absent latent cause changes the recommendation."""
    equations = regress_all(now.trusted)
    graph = now.problem.graph.ancestral(now.problem.target)
    names = [name for name in graph.nodes if name in equations]
    found = []
    for i, j in combinations(names, 2):
        cause = latent_cause(equations, i, j)
        name = f"a latent cause of {i} and {j}"
        found.append(_strength(now, name, cause, j))
    return found


def _strength(now: Situation, name: str, cause: LatentCause, j: str) -> Alternative:
    """Return the smallest strength at which another intervention is better, in closed form."""
    effect, queries = response(now.trusted), now.candidates.queries
    before, after = (_theta(now, {j: cause.at(c)}) for c in (0.0, 1.0))

    def effects(theta: np.ndarray) -> tuple[np.ndarray, float]:
        whole = now.sign * np.asarray(effect.effects(theta, queries))
        return whole, now.sign * float(effect.effects(theta, now.best)[0])

    (f0, z0), (f1, z1) = effects(before), effects(after)
    lead, change = f0 - z0, (f1 - f0) - (z1 - z0)  # of others over the recommendation; at c = 1
    moves = np.abs(change) > 1e-12 * (np.abs(f1).max() + np.abs(f0).max() + 1e-300)
    crossing = np.where(moves, -lead / np.where(moves, change, 1.0), np.inf)
    crossing = np.where(lead > 1e-9 * (1 + np.abs(z0)), crossing, np.inf)  # ties are no change
    is_crossed = np.isfinite(crossing)
    at_crossing = np.abs(cause.correlation(np.where(is_crossed, crossing, 0.0)))
    rho = np.where(is_crossed, at_crossing, np.inf)
    nearest = first_smallest(np.where(rho < LARGEST_STRENGTH, rho, 1.0))
    kind = "latent cause added"
    if not rho[nearest] < LARGEST_STRENGTH:
        return Alternative(name, kind, now.label, now.sign * z0, now.sign * z0, 0.0)
    c = float(crossing[nearest])
    theta = _theta(now, {j: cause.at(c)})
    at = now.sign * float(effect.effects(theta, now.best)[0])
    values = now.sign * at, now.sign * at, 0.0, float(rho[nearest]), cause.p_value(c)
    return Alternative(name, kind, now.show(queries[nearest]), *values)


def _some(now: Situation, number: int) -> np.ndarray:
    """Return which observations (N,) are in a random subset of 80 %."""
    generator = host_generator(jax.random.fold_in(now.key("subset"), number))
    chosen = np.zeros(len(now.data), bool)
    count = max(1, round(SUBSET_SHARE * len(now.data)))
    chosen[generator.permutation(len(now.data))[:count]] = True
    return chosen


def _on_subsets(now: Situation) -> list[Alternative]:
    """Return what is recommended on random subsets of the observations."""
    found = []
    for number in range(SUBSETS):
        theta = _theta(now, regress_all(now.trusted, _some(now, number)))
        name = f"80 % of the observations, {number + 1}"
        found.append(_compare(now, name, "subset", theta))
    return found


def _with_placebo(now: Situation) -> list[Alternative]:
    """Return what is recommended if a variable of pure noise causes every other one."""
    placebo = host_generator(now.key("placebo")).standard_normal(len(now.data))
    theta = _theta(now, regress_all(now.trusted, placebo=placebo))
    return [_compare(now, "a random variable as a cause of all", "placebo", theta)]


def _changed(
    problem: Problem,
    *,
    removed: tuple[str, str] | None = None,
    added: tuple[str, str] | None = None,
    arc: tuple[str, str] | None = None,
) -> Callable[[Sequence[tuple[str, ...]]], Problem]:
    """Return a function of sets that makes the problem with another graph."""

    def make(sets: Sequence[tuple[str, ...]]) -> Problem:
        graph = problem.graph
        directed = [edge for edge in graph.directed if edge != removed]
        other = CausalGraph.from_edges(
            [*directed, *([added] if added else [])],
            [*graph.bidirected, *([arc] if arc else [])],
            nodes=graph.nodes,
        )
        acting = {*other.ancestors(problem.target)}
        kept = dict.fromkeys(tuple(name for name in each if name in acting) for each in sets)
        domains: dict[str, Any] = {
            name: Levels(problem.levels[name]) if name in problem.levels else bounds
            for name, bounds in problem.domains.items()
            if name in acting
        }
        return Problem(
            other,
            problem.target,
            problem.objective,
            domains=domains,
            sets=[each for each in kept if each],
            identifiable_only=True,
        )

    return make


def _refit(
    now: Situation,
    name: str,
    kind: str,
    changed: Callable[[Sequence[tuple[str, ...]]], Problem] | None,
    *,
    data: Data | None = None,
    mechanisms: Any = None,
    method: Any = None,
) -> Callable[[], list[Alternative]]:
    """Return a function that fits an alternative model, and compares the recommendation."""

    def look() -> list[Alternative]:
        recipe = now.trusted.recipe
        if recipe is None:
            raise PosteriorError("a posterior of given draws cannot be fitted again")
        ours = now.problem.graph.ordered(now.recommendation)
        sets = [ours, *(each for each in _best_sets(now) if each != ours)]
        same = now.problem if len(now.problem.sets) <= MOST_REFITTED_SETS else None
        problem = changed(sets) if changed else same or now.problem.explore(sets)
        chosen = recipe.mechanisms if mechanisms is None else mechanisms
        how = recipe.method if method is None and mechanisms is None else method or "conjugate"
        is_linear = now.trusted.distribution.response.is_affine
        if changed and is_linear and problem.graph.ancestral(problem.target).bidirected:
            how = "wishart"
        prior = recipe.task.prior if mechanisms is None else None
        post = fit(
            problem,
            now.data if data is None else data,
            mechanisms=chosen,
            method=how,
            prior=prior,
            key=now.key(name),
        )
        if post.verdict not in TRUSTED_VERDICTS:
            post = post.accept("as an alternative")
        return [_compare_posterior(now, name, kind, post)]

    return look


def _with_linear_mechanisms(now: Situation) -> list[Alternative]:
    """Return what linear mechanisms recommend, with the p-value by held-out observations."""
    name = "linear mechanisms"
    [found] = _refit(now, name, "mechanisms", None, mechanisms="linear")()
    table = check_linearity(now.trusted, key=now.key(name)).table
    ratio = float((table["difference"] / table["se"]).max())
    return [found._replace(p_value=float(norm.sf(ratio)))]


def _best_sets(now: Situation) -> list[tuple[str, ...]]:
    """Return the sets with the best effects, the best first."""
    found = now.candidates
    nodes = now.problem.graph.nodes
    best = []
    for _, at in split_by_set(found.queries):
        place = at[first_smallest(now.sign * found.mean[at])]
        members = tuple(np.array(nodes, object)[np.asarray(found.queries.mask)[place]])
        best.append((now.sign * float(found.mean[place]), members))
    return [members for _, members in sorted(best, key=lambda each: each[0])][:MOST_REFITTED_SETS]


def _compare_posterior(now: Situation, name: str, kind: str, post: Posterior) -> Alternative:
    """Return what another posterior says of the recommendation."""
    graph = post.problem.graph.ancestral(post.problem.target)
    acting = reduce_effect(graph, post.problem.target, tuple(now.recommendation)).effective
    kept = {name: now.recommendation[name] for name in acting}
    known = post.problem.domains
    whole = {name: value for name, value in now.recommendation.items() if name in known}
    queries, effect = design(post).queries, response(post)
    effects = now.sign * np.asarray(effect.effects(post.mean, queries))
    best = first_smallest(effects)
    for wanted in (whole, kept):
        if post.problem.has_set(tuple(wanted)) and wanted:
            [ours] = np.asarray(effect.effects(post.mean, post.problem.queries([wanted])))
            break
    else:
        raise PosteriorError("the effect of the recommendation is not identifiable in this model")
    ours = now.sign * float(ours)
    regret = max(ours - float(effects[best]), 0.0)
    [found] = to_mappings(queries[best], post.problem.graph.nodes)
    label = now.label if regret <= 1e-9 * (1 + abs(ours)) else show(found, 4)
    values = now.sign * ours, now.sign * min(float(effects[best]), ours), regret
    return Alternative(name, kind, label, *values)
