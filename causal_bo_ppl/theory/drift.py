"""What changes while theta is learned: its uncertainty, the kernel, and the sum of variances?

With a regular design, l_min(X'X) growing like N, |Sigma| = O(1/N): tr Sigma falls like N^-1 and
eps_param like N^-1/2. Where l_min(X'X)/N is near 0, a combination of an equation's coefficients
stays unknown however many observations there are; it is weakly identified.

Adaptive kernels k_t = J_t Sigma_t J_t' have no fixed gamma_T. The theory assumes that they drift
slowly and that sum_t (sigma_{t-1}^(t)(z_t))^2 <= C sup_t gamma_T(k_t). This module measures both.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import solve_triangular

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import scale_values
from causal_bo_ppl.errors import ArgumentError, DataError, listed, unknown
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.draws import InferenceMethod, trait
from causal_bo_ppl.inference.posterior import read_method, require_posterior, require_trusted
from causal_bo_ppl.inputs import read_count, read_number, read_size
from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.linalg import largest_gap
from causal_bo_ppl.mechanisms.base import Prior
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import set_label
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.constants import design, lipschitz, parameter_error
from causal_bo_ppl.theory.information_gains import greedy_gain, require_queries

MINOR_WEIGHT = 0.1  # of the largest one: a parent with a smaller weight is not named
STRENGTH_COLUMNS = ["observations", "lambda_min", "standardized", "weakest"]
FEWEST_OBSERVATIONS = 25  # of the first fit of `concentration`
DRIFT_COLUMNS = ["theta", "sigma", "jacobian", "kernel", "rho_schematic"]


def design_strength(post: Posterior) -> pd.DataFrame:
    """Tabulate how well the data determine the coefficients of each learned equation.

    Where latent causes join a variable to others, its regressors are those of its factor in the
    observational density: the earlier variables so joined, and all their parents. Where mechanisms
    are not linear, the table still shows how well the data separate the influences of the causes.

    Parameters
    ----------
    post:
        A posterior by any method.

    Returns
    -------
    pd.DataFrame
        A row for each equation. observations: the number N of those in which the variable was not
        set. lambda_min: the smallest eigenvalue of X'X/N, where X holds the parents with unknown
        coefficients and, with intercepts, the constant 1, over those observations; it depends on
        units. standardized: the same for the parents' correlations, 1 where they are uncorrelated
        and 0 where collinear, in any units (without intercepts: about 0, not about the means).
        weakest: the parents whose combination has that eigenvalue.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> design_strength(cb.fit(system.problem, system.observe(200, 0))).round(2).loc["Y"].to_dict()
    {'observations': 200, 'lambda_min': 1.0, 'standardized': 1.0, 'weakest': 'Z'}
    """
    require_posterior("design_strength", post)
    lines = {node: _strength_line(post, node) for node in _learned(post)}
    table = pd.DataFrame.from_dict(lines, orient="index", columns=STRENGTH_COLUMNS)
    return table.rename_axis("equation")


def _learned(post: Posterior) -> list[str]:
    """Return the variables that some effect leaves free and whose equations have unknowns.

    An unknown is an intercept or the coefficient of a parent.
    """
    graph = post.problem.graph.ancestral(post.problem.target)
    parameters = _linear_parameters(post)
    if parameters is None:
        return list(compress(graph.nodes, post.distribution.learned))
    reductions = parameters.explored.reductions
    opened = graph.require({name for reduction in reductions for name in reduction.open})
    return [node for node in opened if parameters.intercepts or _parents(post, node)]


def _linear_parameters(post: Posterior) -> Parameters | None:
    """Return the coordinates of linear mechanisms; None for other mechanisms."""
    found = getattr(post.distribution.response, "parameters", None)
    return found if isinstance(found, Parameters) else None


def _parents(post: Posterior, node: str) -> tuple[str, ...]:
    """Return the regressors of a variable whose coefficients are unknown, in causal order."""
    graph = post.problem.graph.ancestral(post.problem.target)
    joined = [name for name in graph.district(node) if graph.index(name) < graph.index(node)]
    if not joined:
        known = post.problem.known
        return tuple(cause for cause in graph.parents(node) if (cause, node) not in known)
    causes = {cause for name in (node, *joined) for cause in graph.parents(name)}
    together = causes.union(joined) - {node}
    return tuple(name for name in graph.nodes if name in together)


def _strength_line(post: Posterior, node: str) -> tuple[int, float, float, str]:
    """Return a row of `design_strength`, in the order of STRENGTH_COLUMNS."""
    data, names, parameters = post.data, _parents(post, node), _linear_parameters(post)
    intercepts = parameters is None or parameters.intercepts
    used = ~data.intervened[:, data.nodes.index(node)]
    values = data.values[used][:, [data.nodes.index(name) for name in names]]
    raw, _ = _smallest(np.column_stack([np.ones(len(values)), values]) if intercepts else values)
    if not names:
        return len(values), raw, np.nan, ""
    relative, direction = _smallest(_standardize(values, intercepts))
    weights = np.abs(direction)
    together = compress(names, weights >= MINOR_WEIGHT * weights.max())
    return len(values), raw, relative, set_label(tuple(together))


def _standardize(values: np.ndarray, centred: bool) -> np.ndarray:
    """Return the columns with mean square 1; a constant column, or one of zeros, becomes zeros."""
    if centred and len(values):
        return scale_values(values).scaled
    shares = values / np.maximum(np.abs(values).max(axis=0, initial=0.0), np.finfo(float).tiny)
    sizes = np.sqrt((shares**2).sum(axis=0) / max(len(values), 1))
    return np.asarray(shares / np.where(shares.any(axis=0), sizes, 1))


def _smallest(columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the smallest eigenvalue of X'X/N, by singular values, and its direction.

    It is 0 where there are fewer observations than columns.
    """
    count, width = columns.shape
    root = np.linalg.qr(columns, mode="r")
    _, sizes, directions = np.linalg.svd(np.vstack([root, np.zeros((width - len(root), width))]))
    return float(sizes[-1] ** 2 / max(count, 1)), directions[-1]


class Rate(NamedTuple):
    """The exponent of a power law, fitted by least squares to logarithms."""

    exponent: float
    standard_error: float


def concentration(
    problem: Problem,
    data: Data,
    sizes: Iterable[int] | None = None,
    *,
    truth: Mapping[str, float] | None = None,
    method: str | InferenceMethod = "conjugate",
    intercepts: bool = True,
    prior: Prior | None = None,
    parameters: str | None = None,
    mechanisms: Any = "linear",
    delta: float = 0.05,
) -> pd.DataFrame:
    """Fit the first N observations for several N, and tabulate what should fall with N.

    Parameters
    ----------
    problem, data:
        The problem and its data, of which those without intervention are used.
    sizes:
        The values of N, by default 25, 50, 100, ... as far as there are observations.
    truth:
        {coordinate: value} of the true theta.
    method, intercepts, prior, parameters, mechanisms:
        As in `cb.fit`; where theta means something else for other data, as the coefficients of
        bases that are scaled to the data, compare eps_pointwise.
    delta:
        The level of eps_param is 1 - delta.

    Returns
    -------
    pd.DataFrame
        A row for each N. trace, spectral: tr Sigma and |Sigma|. lipschitz: L. eps_param: L times
        the radius. eps_pointwise: sup_z sqrt(q J Sigma J'). design: the smallest l_min(X'X)/N of an
        equation. error: |theta_hat - theta|, where the truth is given.

    Raises
    ------
    DataError
        If there are no observations without intervention.
    ArgumentError
        If a size or the truth cannot be used, or the method draws at random.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.theory.concentration(system.problem, system.observe(100, 0)).index.tolist()
    [25, 50, 100]
    """
    if not isinstance(data, Data):
        raise DataError(
            f"concentration needs Data, got {type(data).__name__}; read it with Data.from_frame"
        )
    if trait(chosen := read_method(method), "needs_key"):
        raise ArgumentError(
            f'{chosen.name} draws at random and for long; take method="laplace", a Gaussian at the '
            "same mode"
        )
    observed = data.select(data.is_observational)
    if not len(observed):
        raise DataError(
            "there are no observational data; observe some, or fit experiments with cb.fit"
        )
    options = {"mechanisms": mechanisms, "intercepts": intercepts, "prior": prior}
    lines = {}
    for count in _read_sizes(sizes, len(observed)):
        part = observed.select(slice(count))
        post = fit(problem, part, method=chosen, parameters=parameters, **options)
        lines[count] = _line(post, delta) | _error_of_mean(post, truth)
    table = pd.DataFrame.from_dict(lines, orient="index").rename_axis("N")
    table.attrs = {"delta": delta, "method": chosen.name, "target": problem.label(problem.target)}
    return table


def rate(table: pd.DataFrame, column: str) -> Rate:
    """Fit the exponent b of column ~ N^b to a table of `concentration`, with its standard error.

    b is about -1 for "trace" and -1/2 for "eps_param". The fits of one table share data, so the
    standard error is too small.

    Parameters
    ----------
    table:
        The result of `concentration`.
    column:
        The name of one of its columns.

    Returns
    -------
    Rate
        The exponent and its standard error.

    Raises
    ------
    ArgumentError
        If there is no such column, or it has fewer than 3 rows or numbers that are not positive.

    Examples
    --------
    >>> table = pd.DataFrame({"trace": [1.0, 0.5, 0.25]}, index=[25, 50, 100])
    >>> round(rate(table, "trace").exponent, 6)
    -1.0
    """
    if not isinstance(table, pd.DataFrame):
        got = type(table).__name__
        raise ArgumentError(f"rate needs a table of cb.theory.concentration, got {got}")
    if column not in table.columns:
        raise ArgumentError(unknown("column", column, map(str, table.columns)))
    counts, values = np.asarray(table.index, float), np.asarray(table[column], float)
    if len(values) < 3 or not ((values > 0) & (counts > 0)).all():
        raise ArgumentError(
            "an exponent needs 3 rows or more, all positive; "
            f"{column!r} holds {listed(values, most=6)}"
        )
    sizes, logs = np.log(counts) - np.log(counts).mean(), np.log(values) - np.log(values).mean()
    exponent = (sizes @ logs) / (sizes @ sizes)
    residuals = logs - exponent * sizes
    variance = residuals @ residuals / (len(values) - 2) / (sizes @ sizes)
    return Rate(float(exponent), float(np.sqrt(variance)))


def growing_data_sum(T: int, alpha: float, *, scale: float = 1.0) -> np.ndarray:
    """Return the cumulative sums of C t^(-alpha/2), an array of shape (T,), where C is the scale.

    If N_t is t^alpha, this is half of what eps_param adds to the regret: R_T is at most
    C' sqrt(T beta_T gamma_T) + 2 sum_t eps_param(N_t).

    Parameters
    ----------
    T:
        The number of rounds.
    alpha:
        The exponent of the growth of the data, above 0 and at most 1.
    scale:
        The constant C, 0 or more.

    Returns
    -------
    np.ndarray
        The sums after each round, of shape (T,).

    Raises
    ------
    ArgumentError
        If a number is out of its range.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.theory.growing_data_sum(4, 1.0).round(3).tolist()
    [1.0, 1.707, 2.284, 2.784]
    """
    rounds, power = read_count("T", T, 1), _read_alpha(alpha) / 2
    size = read_size("scale", scale, positive=False)
    return np.cumsum(size * np.arange(1.0, rounds + 1) ** -power)


def growing_data_bound(T: int, alpha: float, *, scale: float = 1.0) -> float:
    """Compute C T^(1 - alpha/2) / (1 - alpha/2), where C is the scale.

    It is the integral of C t^(-alpha/2) from 0 to T: of the order of `growing_data_sum` and never
    less.

    Parameters
    ----------
    T:
        The number of rounds.
    alpha:
        The exponent of the growth of the data, above 0 and at most 1.
    scale:
        The constant C, 0 or more.

    Returns
    -------
    float
        The bound.

    Raises
    ------
    ArgumentError
        If a number is out of its range.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.theory.growing_data_bound(4, 1.0)
    4.0
    """
    rounds, power = read_count("T", T, 1), 1 - _read_alpha(alpha) / 2
    return read_size("scale", scale, positive=False) * float(rounds**power) / power


def _line(post: Posterior, delta: float) -> dict[str, float]:
    """Return a row of `concentration`, without the error."""
    error = parameter_error(post, delta=delta)
    return {
        "trace": float(np.trace(post.covariance)),
        "spectral": float(np.linalg.norm(post.factor, 2) ** 2),
        "lipschitz": lipschitz(post).value,
        "eps_param": error.value,
        "eps_pointwise": error.pointwise,
        "design": float(design_strength(post)["lambda_min"].min()),
    }


def _error_of_mean(post: Posterior, truth: Mapping[str, float] | None) -> dict[str, float]:
    """Return the distance of the posterior mean from the truth; an empty dict without a truth."""
    if truth is None:
        return {}
    if wrong := set(truth).symmetric_difference(post.names):
        raise ArgumentError(
            "truth must name every coordinate of theta and no other; "
            f"check {listed(sorted(map(str, wrong)))}"
        )
    theta = np.array([read_number(name, truth[name]) for name in post.names])
    return {"error": float(np.linalg.norm(post.mean - theta))}


def _read_sizes(sizes: Iterable[int] | None, most: int) -> list[int]:
    """Return the distinct values of N in increasing order, by default 25, 50, 100, ..."""
    if sizes is None:
        doubled = [FEWEST_OBSERVATIONS * 2**power for power in range(60)]
        sizes = [size for size in doubled if size <= most] or [most]
    counts = [read_count("sizes", count, 1) for count in sizes]
    if not counts or max(counts) > most:
        raise ArgumentError(
            f"sizes must be counts up to {most}, the number of observations without "
            f"intervention; got {listed(counts)}"
        )
    return sorted(set(counts))


def _read_alpha(alpha: float) -> float:
    """Return alpha if it lies in (0, 1]; raise ArgumentError otherwise."""
    power = read_number("alpha", alpha)
    if not 0 < power <= 1:
        raise ArgumentError(
            f"alpha must lie in (0, 1], got {power:g}: data grow no faster than rounds pass"
        )
    return power


class Linearized(NamedTuple):
    """A kernel k = J Sigma J' over M queries, and what it is made of.

    theta: where the response is linearized, an array of shape (d,). factor: of Sigma, an array of
    shape (d, r). jacobian: an array of shape (M, d).
    """

    theta: np.ndarray
    factor: np.ndarray
    jacobian: np.ndarray

    @property
    def features(self) -> np.ndarray:
        """Features whose products are the kernel, an array of shape (M, r)."""
        return np.asarray(self.jacobian @ self.factor)


def linearized(post: Posterior, queries: Queries) -> Linearized:
    """Return the kernel of a posterior over these queries, linearized at its mean."""
    jacobian = np.asarray(response(post).jacobian(post.mean, queries))
    return Linearized(post.mean, post.factor, jacobian)


def kernel_drift(posts: Sequence[Posterior], queries: Queries) -> pd.DataFrame:
    """Tabulate the changes from each posterior to the next.

    Parameters
    ----------
    posts:
        Two posteriors or more, of one problem.
    queries:
        The interventions over which suprema are taken.

    Returns
    -------
    pd.DataFrame
        A row for each step. theta: |theta_t - theta_{t-1}|. sigma: |Sigma_t - Sigma_{t-1}|.
        jacobian: sup_z |J_t(z) - J_{t-1}(z)|. kernel: sup_{z, z'} |k_t - k_{t-1}|. rho_schematic:
        the theory's schematic drift term, jacobian |Sigma_t| + sigma. It omits constants and mixes
        units, so it shows what shrinks and is no bound.

    Raises
    ------
    ArgumentError
        If there are fewer than two posteriors, or they are of different problems.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> posts = [cb.fit(system.problem, system.observe(n, 0)) for n in (50, 100, 200)]
    >>> len(cb.theory.kernel_drift(posts, system.problem.vertices()))
    2
    """
    posts = _read_posts(posts, 2)
    queries = require_queries(posts[0].problem, queries)
    kernels = (linearized(post, queries) for post in posts)
    lines = [drift_step(before, after) for before, after in pairwise(kernels)]
    return pd.DataFrame(
        lines, columns=DRIFT_COLUMNS, index=pd.RangeIndex(1, len(posts), name="step")
    )


def worst_gain(posts: Sequence[Posterior], queries: Queries, noise: Any, rounds: int) -> float:
    """Compute sup_t gamma_T(k_t) by greedy choices among the queries.

    The true supremum is at most 1/(1 - 1/e) times it. noise: a variance, or one for every query.
    """
    distinct = {id(post): post for post in _read_posts(posts, 1)}
    return max(
        float(greedy_gain(jacobian_features(post, queries), noise, rounds).gains[-1])
        for post in distinct.values()
    )


def variance_sum_ratio(
    posts: Sequence[Posterior], queries: Queries, noise: float, *, candidates: Queries | None = None
) -> float:
    """Compute sum_t (sigma_{t-1}^(t)(z_t))^2 / sup_t gamma_T(k_t).

    This is the C that the adaptive theory assumes to be bounded; it is 0 if all effects are known.
    sigma_{t-1}^(t) is the standard deviation under kernel k_t after outcomes at the queries before.
    Compare it with `variance_sum_ceiling`, which holds for a kernel that does not change.

    Parameters
    ----------
    posts:
        The posteriors of one problem; posts[t] is in use at round t.
    queries:
        The interventions, of which query t is tried at round t.
    noise:
        The variance of one outcome.
    candidates:
        The queries among which gamma_T is sought; by default all vertices, or points that fill the
        domains where effects are not affine in the values.

    Returns
    -------
    float
        The ratio.

    Raises
    ------
    ArgumentError
        If there is no posterior, they are of different problems, there are not as many queries, or
        the noise is not positive.
    PosteriorError
        If the verdict of a posterior is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> queries = system.problem.queries([{"X": 2.0}, {"Z": 2.0}])
    >>> ratio = cb.theory.variance_sum_ratio([post, post], queries, noise=1.0)
    >>> ratio <= cb.theory.variance_sum_ceiling(cb.theory.kappa2(post).value, noise=1.0)
    True
    """
    posts, variance = _read_posts(posts, 1), read_size("noise", noise)
    if len(posts) != len(queries):
        raise ArgumentError(
            f"there are {len(posts)} posteriors and {len(queries)} queries; "
            "give one of each per round"
        )
    total = sum(_last_variance(post, queries[: t + 1], variance) for t, post in enumerate(posts))
    candidates = design(posts[0]).queries if candidates is None else candidates
    gain = worst_gain(posts, candidates, variance, len(posts))
    return total / gain if gain > 0 else 0.0


def variance_sum_ceiling(kappa2: float, noise: float) -> float:
    """Compute C = 2 kappa^2 / log(1 + kappa^2/s2).

    For one fixed kernel sum_t sigma_{t-1}^2(z_t) <= C gamma_T: sigma^2 <= kappa^2 and
    s / log(1 + s) grows with s, so sigma^2 <= C/2 log(1 + sigma^2/s2) at every round, and half of
    the logarithms sum to the information of the path, at most gamma_T. A greedy gain may be as
    small as 1 - 1/e of gamma_T.

    Parameters
    ----------
    kappa2:
        The largest k(z, z).
    noise:
        The variance s2 of the outcomes' noise.

    Returns
    -------
    float
        The constant C, which is 2 s2 where kappa^2 is 0.

    Raises
    ------
    ArgumentError
        If kappa^2 is negative, or the noise is not positive.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> round(cb.theory.variance_sum_ceiling(3.0, noise=1.0), 3)
    4.328
    """
    largest, noise = read_size("kappa2", kappa2, positive=False), read_size("noise", noise)
    ratio = largest / noise
    return float(2 * noise * (ratio / np.log1p(ratio) if ratio > 0 else 1.0))


def drift_step(before: Linearized, after: Linearized) -> tuple[float, ...]:
    """Return how far two kernels lie apart, a row of `kernel_drift`."""
    covariances = [each.factor @ each.factor.T for each in (before, after)]
    theta = float(np.linalg.norm(after.theta - before.theta))
    sigma = float(np.linalg.norm(covariances[1] - covariances[0], 2))
    jacobian = float(np.linalg.norm(after.jacobian - before.jacobian, axis=1).max())
    roots = before.features, after.features
    kernel = largest_gap((roots[1], roots[1]), (roots[0], roots[0]))
    schematic = jacobian * float(np.linalg.norm(covariances[1], 2)) + sigma
    return theta, sigma, jacobian, kernel, schematic


def _last_variance(post: Posterior, queries: Queries, noise: float) -> float:
    """Return the variance of the last effect after outcomes at all queries before it.

    It is w' (I + F'F/s2)^-1 w, with w the features of the last query and F those of the others.
    """
    features = jacobian_features(post, queries)
    known = np.vstack([np.eye(features.shape[1]), features[:-1] / np.sqrt(noise)])
    seen = solve_triangular(np.linalg.qr(known, mode="r"), features[-1], trans="T")
    return float(seen @ seen)


def _read_posts(posts: Sequence[Posterior], least: int) -> list[Posterior]:
    """Return the posteriors as a list: at least `least`, all trusted and of one problem."""
    if isinstance(posts, Posterior):
        raise ArgumentError("give a sequence of posteriors, one for each round; got one Posterior")
    trusted = [require_trusted(post) for post in posts]
    if len(trusted) < least:
        raise ArgumentError(f"at least {least} posteriors are needed, got {len(trusted)}")
    for post in trusted:
        if (post.problem, post.names) != (trusted[0].problem, trusted[0].names):
            raise ArgumentError(
                "the posteriors are of different problems or parameters; give those of one problem"
            )
    return trusted
