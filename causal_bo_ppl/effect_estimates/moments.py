"""Which mean and sd has an effect under the posterior of theta, and how does it depend on theta?

Effects are linear functions of weights: those of theta, and those of the linearization error.

theta = theta_0 + F w with w ~ N(0, I), F F' the posterior covariance. Linearized at a centre c,
with J the derivatives there,

    f(z) = g(theta_c, z) + J(z) F (w - c) + rho(z)'v,   v ~ N(0, I).

Where effects are nonlinear in theta and in the values, the linearization error is large and smooth:
the remainders of neighbours are nearly equal, so that an outcome of one informs the other. Every
set has separate weights v. Its rho(z) are the remainders at theta_0 of S draws of theta, divided by
sqrt(S), along the few directions in which they vary most, so that their covariance is that of the
remainders. Between sets it would be known from these draws too roughly. Remainders are computed at
points that fill the box of each set, and interpolated between them by splines: a search over values
needs no averages over draws. Where effects are linear, and for other sets, there is no v, and the
linearization error counts as noise of the outcomes. So does what varies along the first twelve
directions of a set where many sets leave room for fewer; beyond them little is left.

Offsets and features depend on the centre and on the query alone, not on outcomes nor on the
acquisition, and a round asks for those of the same queries again and again. So they are cached.

The mean and sd of E[Y | do(z)] under the posterior of theta are the causal prior of independent
surrogates. They are in closed form where they can be; elsewhere they are averages over a fixed set
of draws, the same for every query, so that they are as smooth in the values as effects are.

The other linear function of weights needs no derivatives and has no linearization error: with S
draws theta_s,

    f(z) = m(z) + phi(z)'w,   phi_s(z) = (g(theta_s, z) - m(z)) / sqrt(S - 1),   w ~ N(0, I),

m(z) the mean over the draws, so that the covariance of effects is that of the draws.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax
import numpy as np
from scipy.interpolate import RBFInterpolator

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import effects_of_draws
from causal_bo_ppl.inputs import as_key, write_key
from causal_bo_ppl.mechanisms.base import AveragedMap
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import default_vertices, sobol
from causal_bo_ppl.problem.interventions import for_measured, split_by_set
from causal_bo_ppl.responses import (
    Prediction,
    Response,
    draw_theta,
    independent_coefficients,
    remainder_variances,
    remainders,
    require_finite_effects,
    response,
    response_to_draws,
)

MOST_CENTRES_CACHED = 3  # besides 0, at which outcomes are weighed in every round
MOST_QUERIES_CACHED = 4_096  # of one centre
REMAINDER_DRAWS = 64  # of theta, by which remainders are known
MOST_DIRECTIONS_OF_A_SET, MOST_DIRECTIONS = 12, 256  # weights of remainders: of a set, and in all
POINTS_PER_VARIABLE, MOST_POINTS = 32, 128  # at which remainders of a set are computed
MOST_VARIABLES_WITH_VERTICES = 5  # of a set whose vertices are added to these points
MOMENT_DRAWS = 256  # of theta: the mean is off by about a sixteenth of its sd, for all alike
MOST_BATCHES_CACHED = 16  # whose moments are cached with a posterior: candidates recur every round
DOMAIN_ADVICE = "narrow the domains, or look at cb.diagnostics.check_posterior(post)"

OffsetsAndFeatures = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class LinearizationCache:
    """Offsets and features of the queries at each of a few centres."""

    _centres: dict[bytes, dict[bytes, tuple[float, np.ndarray]]] = field(
        default_factory=dict, repr=False
    )

    def at(
        self, centre: np.ndarray, queries: Queries, compute: Callable[[Queries], OffsetsAndFeatures]
    ) -> OffsetsAndFeatures:
        """Return offsets (M,) and features (M, r) of a batch; only new queries are computed.

        Parameters
        ----------
        centre:
            Weights at which the response is linearized.
        queries:
            M interventions.
        compute:
            Function of queries that returns their offsets and features at this centre.
        """
        keys, known = _query_keys(queries), self._of_centre(centre)
        new: dict[bytes, int] = {}
        for index, key in enumerate(keys):
            if key not in known:
                new.setdefault(key, index)
        computed = {}
        if new or not keys:
            offsets, features = compute(queries[np.array(list(new.values()), int)])
            computed = dict(zip(new, zip(offsets.tolist(), features, strict=True), strict=True))
            if len(known) + len(new) <= MOST_QUERIES_CACHED:
                known.update(computed)
            if len(new) == len(keys):
                return offsets, features
        pairs = [computed[key] if key in computed else known[key] for key in keys]
        cached_offsets, cached_features = zip(*pairs, strict=True)
        return np.array(cached_offsets), np.stack(cached_features)

    def _of_centre(self, centre: np.ndarray) -> dict[bytes, tuple[float, np.ndarray]]:
        """Return what is cached of a centre; the oldest centres are dropped, except 0."""
        name = (np.asarray(centre, float) + 0.0).tobytes()
        if name not in self._centres:
            others = [other for other in self._centres if any(other)]
            for oldest in others[: max(len(others) - MOST_CENTRES_CACHED + 1, 0)]:
                self._centres.pop(oldest, None)
        return self._centres.setdefault(name, {})


def _query_keys(queries: Queries) -> list[bytes]:
    """Return one text of bytes for each query, equal where set variables and values are."""
    mask = np.ascontiguousarray(queries.mask, bool)
    value = np.where(mask, np.asarray(queries.value, float), 0.0) + 0.0
    whole = np.concatenate([mask.view(np.uint8), value.view(np.uint8)], axis=1)
    text, width = whole.tobytes(), whole.shape[1]
    return [text[start : start + width] for start in range(0, len(text), width)]


@dataclass(frozen=True, eq=False)
class DrawnResponse:
    """Effects as linear functions of weights by draws of theta; made by `by_draws`.

    thetas: (S, d) draws. All S weights are theta's: theta is the mean of the draws plus F w, F the
    centred draws / sqrt(S - 1).
    """

    response: Response
    thetas: np.ndarray
    _cache: LinearizationCache = field(default_factory=LinearizationCache, repr=False)

    @property
    def post(self) -> Posterior:
        """The posterior of theta."""
        return self.response.post

    @property
    def is_nonlinear(self) -> bool:
        """Whether effects are nonlinear in theta and in the values."""
        return not (self.response.map.is_affine or self.response.map.is_linear)

    @cached_property
    def factor(self) -> np.ndarray:
        """The factor F (d, S) of the covariance of the draws."""
        centred = self.thetas - self.thetas.mean(axis=0)
        return np.asarray(centred.T / np.sqrt(len(self.thetas) - 1))

    @property
    def own(self) -> int:
        """The number of weights."""
        return len(self.thetas)

    @property
    def size(self) -> int:
        """The number of weights, all of which are theta's."""
        return self.own

    def theta(self, weights: np.ndarray) -> np.ndarray:
        """Return the parameters (d,) with these weights, by linear regression on the effects."""
        return np.asarray(self.thetas.mean(axis=0) + self.factor @ weights)

    def at(self, centre: np.ndarray, queries: Queries) -> OffsetsAndFeatures:
        """Return offsets (M,) and features (M, S): effects are offset + phi'w, whatever `centre`.

        Those of the last queries are cached.
        """
        return self._cache.at(np.zeros(0), queries, self._compute)

    def _compute(self, queries: Queries) -> OffsetsAndFeatures:
        effects = np.array(effects_of_draws(self.response.map, self.thetas, queries))
        require_finite_effects(self.post, queries, effects, DOMAIN_ADVICE)
        first = effects[0].copy()
        effects -= first  # a known effect becomes 0, not rounding
        mean = effects.mean(axis=0)
        features = np.ascontiguousarray((effects - mean).T) / np.sqrt(self.own - 1)
        return first + mean, features

    def noises(self, queries: Queries) -> np.ndarray:
        """Return zeros (M,): there is no linearization error."""
        return np.zeros(len(queries))


@dataclass(frozen=True, eq=False)
class WeightedResponse:
    """The response of a posterior as a linear function of weights; made by `weigh_response(post)`.

    thetas: (S, d) draws, by which remainders are known; none where they count as noise. blocks: the
    position of every set's weights among those of remainders, by its mask.
    """

    response: Response
    thetas: np.ndarray
    blocks: Mapping[bytes, int] = field(default_factory=dict)
    _splines: dict[bytes, RBFInterpolator] = field(default_factory=dict, repr=False)
    _noises: dict[bytes, float] = field(default_factory=dict, repr=False)
    _cache: LinearizationCache = field(default_factory=LinearizationCache, repr=False)
    _drawn: dict[str, DrawnResponse] = field(default_factory=dict, repr=False)

    @property
    def post(self) -> Posterior:
        """The posterior of theta."""
        return self.response.post

    def by_draws(self, draws: int, key: jax.Array | int) -> DrawnResponse:
        """Return effects as linear functions of the weights of draws of theta; computed once.

        A sampled posterior gives at most the draws that it has.
        """
        name = f"{draws} {write_key(as_key(key))}"
        if name not in self._drawn:
            thetas, _ = draw_theta(self.post, draws, key)
            self._drawn.setdefault(name, DrawnResponse(response_to_draws(self.post), thetas))
        return self._drawn[name]

    @cached_property
    def factor(self) -> np.ndarray:
        """The factor F (d, r) of theta's covariance, without coordinates that have no influence."""
        averaged = self.response.map
        if not isinstance(averaged, AveragedMap) or (acting := averaged.acting).all():
            return self.post.factor
        factor = np.zeros((len(acting), int(acting.sum())))
        factor[acting] = np.asarray(np.linalg.qr(self.post.factor[acting].T, mode="r")).T
        return factor

    @property
    def is_nonlinear(self) -> bool:
        """Whether effects are nonlinear, and their linearization errors have weights."""
        return bool(self.blocks)

    @property
    def own(self) -> int:
        """The number of theta's weights."""
        return int(self.factor.shape[1])

    @property
    def size(self) -> int:
        """The number of all weights: theta's, and those of remainders."""
        return self.own + len(self.blocks) * self.directions

    @property
    def directions(self) -> int:
        """The number of weights of the remainders of a set."""
        return min(MOST_DIRECTIONS_OF_A_SET, MOST_DIRECTIONS // max(len(self.blocks), 1))

    def theta(self, weights: np.ndarray) -> np.ndarray:
        """Return the parameters (d,) with these weights of theta."""
        return np.asarray(self.post.mean + self.factor @ weights)

    def at(self, centre: np.ndarray, queries: Queries) -> OffsetsAndFeatures:
        """Return offsets (M,) and features (M, r): effects are offset + phi'w.

        centre: theta's weights at which the response is linearized. For nonlinear effects they are
        expensive, and those of the last queries are cached.
        """
        if not self.blocks:
            return self._compute(centre, queries)
        return self._cache.at(centre, queries, partial(self._compute, centre))

    def _compute(self, centre: np.ndarray, queries: Queries) -> OffsetsAndFeatures:
        values, jacobian = self.response.linearize(self.theta(centre), queries)
        require_finite_effects(self.post, queries, values, "the linearization diverged")
        features = jacobian @ self.factor
        offsets = values - features @ centre
        if self.blocks:
            features = np.concatenate([features, self.remainder_features(queries)], axis=1)
        return offsets, features

    def remainder_features(self, queries: Queries) -> np.ndarray:
        """Return the features (M, k) of the remainders, 0 for sets without any."""
        width = self.directions
        features = np.zeros((len(queries), len(self.blocks) * width))
        for key, indices in split_by_set(queries):
            if key in self.blocks:
                start = self.blocks[key] * width
                spline = self._spline_values(key, queries[indices])
                features[indices, start : start + width] = spline[:, :width]
        return features

    def moments(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return means (M,) and sds (M,) of effects over the draws, of sets whose remainders vary.

        The difference of an average over draws from the effect at the mean of theta is
        interpolated, and so is the logarithm of the sd.
        """
        mean, sd = np.array(self.response(self.post.mean, queries)), np.zeros(len(queries))
        for key, indices in split_by_set(queries):
            spline = self._spline_values(key, queries[indices])
            more, log_sd, _ = spline[:, self.directions :].T
            mean[indices], sd[indices] = mean[indices] + more, np.exp(log_sd)
        require_finite_effects(self.post, queries, mean + sd, DOMAIN_ADVICE)
        return mean, sd

    def _spline_values(self, key: bytes, queries: Queries) -> np.ndarray:
        """Return the values of the spline of one set, (M, k + 3).

        They are the remainders by direction; the mean change of effects over the draws, and the
        logarithm of their sd; and the sd of the remainders along directions without weights.
        """
        problem, mask = self.post.problem, np.asarray(queries.mask)[0]
        columns = np.flatnonzero(mask)
        names = [problem.graph.nodes[column] for column in columns]
        low, high = np.array([problem.domains[name] for name in names]).T
        shares = (np.asarray(queries.value)[:, columns] - low) / (high - low)
        if key not in self._splines:
            self._splines[key] = self._interpolate(mask, low, high)
        return np.asarray(self._splines[key](np.clip(shares, 0.0, 1.0)))

    def _interpolate(self, mask: np.ndarray, low: np.ndarray, high: np.ndarray) -> RBFInterpolator:
        """Return a spline through the remainders at points that fill the box of one set."""
        size = len(low)
        shares = sobol(min(POINTS_PER_VARIABLE * size, MOST_POINTS) + 1)(size)[1:]
        if size <= MOST_VARIABLES_WITH_VERTICES:
            ends = np.meshgrid(*[[0.0, 1.0]] * size, indexing="ij")
            shares = np.concatenate([np.stack([end.ravel() for end in ends], axis=1), shares])
        value = np.zeros((len(shares), len(mask)))
        value[:, mask] = low + shares * (high - low)
        changes, missed = self._changes(Queries(np.tile(mask, (len(shares), 1)), value))
        turned = missed @ np.linalg.svd(missed, full_matrices=False)[2].T
        used = turned[:, : self.directions]
        dropped = turned[:, self.directions : MOST_DIRECTIONS_OF_A_SET]
        sds = changes.std(axis=1, ddof=1)
        log_sds = np.log(np.maximum(sds, 1e-9 * sds.max() + np.finfo(float).tiny))
        more = np.sqrt(len(self.thetas)) * missed.mean(axis=1)
        columns = np.column_stack([used, more, log_sds, np.linalg.norm(dropped, axis=1)])
        return RBFInterpolator(shares, columns, kernel="cubic")

    def _changes(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return the changes (M, S) of effects from the mean of theta to all draws, and remainders.

        The remainders (M, S) are in units of which v is standard normal.
        """
        values, jacobian = self._anywhere.linearize(self.post.mean, queries)
        changes = (self._anywhere(self.thetas, queries) - values).T
        linear = jacobian @ (self.thetas - self.post.mean).T
        return changes, (changes - linear) / np.sqrt(len(self.thetas))

    @cached_property
    def _anywhere(self) -> Response:
        """The same response, also for interventions that may not be proposed.

        Remainders are estimates from a few draws, so that rough averages suffice for them.
        """
        post = replace(self.post, problem=for_measured(self.post.problem))
        return Response(post, is_rough=True, is_lean=True)

    def noises(self, queries: Queries) -> np.ndarray:
        """Return what counts as noise of each effect, (M,); computed once for each query.

        It is the variance of the linearization error, except for what has weights.
        """
        if self.blocks:
            noises = np.zeros(len(queries))
            for key, indices in split_by_set(queries):
                own = queries[indices]
                if key in self.blocks:
                    noises[indices] = self._spline_values(key, own)[:, -1] ** 2
                else:
                    noises[indices] = (self._changes(own)[1] ** 2).sum(axis=1)
            return noises
        keys = _query_keys(queries)
        new = [index for index, key in enumerate(keys) if key not in self._noises]
        if new:
            found = remainders(self.post, queries[np.array(new)])
            self._noises.update(zip((keys[index] for index in new), found.tolist(), strict=True))
        return np.array([self._noises[key] for key in keys])


def weigh_response(post: Posterior) -> WeightedResponse:
    """Return the response of a posterior as a linear function of weights; cached with it."""
    return post.cached("weighted response", lambda: _weigh(post))


def _weigh(post: Posterior) -> WeightedResponse:
    effect, thetas = response(post), np.zeros((0, len(post.mean)))
    blocks: dict[bytes, int] = {}
    if not (effect.map.is_affine or effect.map.is_linear) and len(post.sets) <= MOST_DIRECTIONS:
        names = post.problem.graph.nodes
        masks = np.array([[name in members for name in names] for members in post.sets])
        empty = Queries(masks, np.zeros(masks.shape))
        blocks = {key: position for position, (key, _) in enumerate(split_by_set(empty))}
        effect = replace(effect, is_lean=True)
        thetas = post.draws(REMAINDER_DRAWS, jax.random.key(0))
    return WeightedResponse(effect, thetas, blocks)


class TargetMoments(NamedTuple):
    """Mean and sd of the target."""

    mean: float
    sd: float


def effect_moments(post: Posterior, queries: Queries) -> Prediction:
    """Return means (M,) and sds (M,) of effects under the posterior of theta.

    Where equations are linear and independent given the data, the mean of an effect is the effect
    at the mean of theta, since each path multiplies different equations, and its variance is that
    of the exact kernel. Where effects are linear in theta both follow from theta's. Elsewhere they
    are those of 256 draws.

    Raises
    ------
    NumericalError
        If an effect is not finite; the intervention is named.
    """
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    key = hashlib.blake2b(mask.tobytes() + value.tobytes()).digest()
    cached = post.cached("effect moments", dict[bytes, Prediction])
    if key not in cached:
        moments = _compute(post, queries)
        while len(cached) >= MOST_BATCHES_CACHED:
            cached.pop(next(iter(cached)), None)
        cached[key] = moments
    return cached[key]


def smooth_moments(post: Posterior, queries: Queries) -> Prediction:
    """Return means (M,) and sds (M,) of effects as a search over values needs them.

    Where averages over draws are expensive they are those of fewer draws, at points that fill the
    box of each set, interpolated between them; elsewhere they are those of `effect_moments`.
    """
    weighted = weigh_response(post)
    if len(queries) and all(key in weighted.blocks for key, _ in split_by_set(queries)):
        return Prediction(*weighted.moments(queries))
    return effect_moments(post, queries)


def _compute(post: Posterior, queries: Queries) -> Prediction:
    effect, coefficients = response(post), independent_coefficients(post)
    if coefficients is None and not effect.map.is_linear:
        drawn = response_to_draws(post).effects(
            post.draws(MOMENT_DRAWS, jax.random.key(0)), queries
        )
        require_finite_effects(post, queries, drawn, DOMAIN_ADVICE)
        return Prediction(drawn.mean(axis=0), drawn.std(axis=0, ddof=1))
    values, jacobian = effect.linearize(post.mean, queries)
    variances = ((jacobian @ post.factor) ** 2).sum(axis=1)
    if coefficients is not None:
        variances = variances + remainder_variances(coefficients, effect.learned_upstream(queries))
    require_finite_effects(post, queries, values + variances, DOMAIN_ADVICE)
    return Prediction(values, np.sqrt(variances))


def target_moments(post: Posterior) -> TargetMoments:
    """Return mean and sd of the target in the observations without intervention.

    Where there are no two of them, or they are all equal, they are those of effects under the
    posterior.
    """
    values = post.data.outcomes[post.data.is_observational]
    if len(values) > 1 and np.ptp(values) > 0:
        return TargetMoments(float(values.mean()), float(values.std(ddof=1)))
    mean, sd = effect_moments(post, default_vertices(post.problem, post.sets, None))
    spread = float(np.sqrt(mean.var() + (sd**2).mean()))
    return TargetMoments(float(mean.mean()), spread if spread > 0 else 1.0)
