"""Which effects were linearized before? Offsets and features, kept by centre and query.

A round asks for the same queries again and again: the candidates of a search with one bound and
with a wider one, what was found, what was tried. Offsets and features depend on the centre and on
the query alone, not on outcomes nor on the acquisition, so that each is computed once.

Effects as linear functions of weights: theta's, and those of what linearization leaves out.

theta = theta_0 + F w with w ~ N(0, I), F F' the posterior covariance. Linearized at a centre c,
with J the derivatives there,

    f(z) = g(theta_c, z) + J(z) F (w - c) + rho(z)'v,   v ~ N(0, I).

Where effects bend in theta and in the values, what linearization leaves out is large and smooth:
the remainders of neighbours are nearly equal, so that an outcome of one teaches about the other.
Every set has weights v of its own. Its rho(z) are the remainders at theta_0 of S draws of theta,
divided by sqrt(S), along the few directions in which they vary most, so that their covariance is
that of the remainders. Between sets it would be known from these draws too roughly. Remainders are
computed at points that fill the box of each set, and interpolated between them by splines: a search
over values needs no averages over draws. Where effects do not bend, and for other sets, there is no
v, and what is left out counts as noise of the outcomes. So does what varies along the first twelve
directions of a set where many sets leave room for fewer; beyond them little is left.

What do the rows alone say about effects, before any outcome? Means and sds, over theta.

The mean and sd of E[Y | do(z)] under the posterior of theta: the causal prior of independent
surrogates. It is in closed form where it can be; elsewhere it is an average over a fixed set of
draws, the same for every query, so that it is as smooth in the values as effects are.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax
import numpy as np
from scipy.interpolate import RBFInterpolator

from causal_bo_ppl.errors import NumericalError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.kernels.exact import independent_coefficients, left_out_variances, remainders
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.feasibility import for_measured
from causal_bo_ppl.problem.interventions import default_vertices, sobol, split_by_set
from causal_bo_ppl.responses import Response, response

CENTRES = 3  # besides 0, at which outcomes are weighed in every round
MOST = 4_096  # queries of one centre
Linearized = tuple[np.ndarray, np.ndarray]
Row = tuple[float, np.ndarray]


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Offsets and features of the queries at each of a few centres."""

    _centres: dict[bytes, dict[bytes, Row]] = field(default_factory=dict, repr=False)

    def at(
        self, centre: np.ndarray, queries: Queries, compute: Callable[[Queries], Linearized]
    ) -> Linearized:
        """Return offsets (M,) and features (M, r) of a batch, of which only new rows are computed.

        Parameters
        ----------
        centre:
            Weights at which the response is linearized.
        queries:
            M interventions.
        compute:
            Function of queries that returns their offsets and features at this centre.
        """
        keys, known = _row_keys(queries), self._of_centre(centre)
        new: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if key not in known:
                new.setdefault(key, row)
        if len(new) == len(keys):
            offsets, features = compute(queries)
            self._keep(known, keys, offsets, features)
            return offsets, features
        fresh: dict[bytes, Row] = {}
        if new:
            offsets, features = compute(queries[np.array(list(new.values()))])
            self._keep(known, list(new), offsets, features)
            fresh.update(zip(new, zip(offsets.tolist(), features, strict=True), strict=True))
        rows = [fresh[key] if key in fresh else known[key] for key in keys]
        return np.array([row[0] for row in rows]), np.stack([row[1] for row in rows])

    def _of_centre(self, centre: np.ndarray) -> dict[bytes, Row]:
        """Return what is kept of a centre; the oldest ones are forgotten, but for 0."""
        name = (np.asarray(centre, float) + 0.0).tobytes()
        if name not in self._centres:
            others = [each for each in list(self._centres) if any(each)]
            for oldest in others[: max(len(others) - CENTRES + 1, 0)]:
                self._centres.pop(oldest, None)
        return self._centres.setdefault(name, {})

    def _keep(
        self, known: dict[bytes, Row], keys: list[bytes], offsets: np.ndarray, features: np.ndarray
    ) -> None:
        if len(known) + len(keys) <= MOST:
            known.update(zip(keys, zip(offsets.tolist(), features, strict=True), strict=True))


def _row_keys(queries: Queries) -> list[bytes]:
    """Return one text of bytes for each query, equal where set variables and values are."""
    mask = np.ascontiguousarray(queries.mask, bool)
    value = np.where(mask, np.asarray(queries.value, float), 0.0) + 0.0
    whole = np.concatenate([mask.view(np.uint8), value.view(np.uint8)], axis=1)
    text, width = whole.tobytes(), whole.shape[1]
    return [text[start : start + width] for start in range(0, len(text), width)]


REMAINDER_DRAWS = 64  # of theta, by which remainders are known
DIRECTIONS, ALL = 12, 256  # weights of remainders: of a set, and of all sets together
POINTS, MOST_POINTS = 32, 128  # at which they are computed: for each variable of a set, and in all
LARGEST = 5  # variables of a set whose vertices are added to these points


@dataclass(frozen=True, eq=False)
class WeightedResponse:
    """The response of a posterior as a linear function of weights; made by `weigh_response(post)`.

    thetas: (S, d) draws, by which remainders are known; none where they count as noise. blocks: the
    place of every set's weights among those of remainders, by its mask.
    """

    response: Response
    thetas: np.ndarray
    blocks: Mapping[bytes, int] = field(default_factory=dict)
    _splines: dict[bytes, RBFInterpolator] = field(default_factory=dict, repr=False)
    _noises: dict[bytes, float] = field(default_factory=dict, repr=False)
    _rows: KeptRows = field(default_factory=KeptRows, repr=False)

    @property
    def post(self) -> Posterior:
        """The posterior of theta."""
        return self.response.post

    @cached_property
    def factor(self) -> np.ndarray:
        """The factor F (d, r) of theta's covariance, without coordinates that have no influence."""
        acting = getattr(self.response.map, "acting", None)
        if acting is None or acting.all():
            return self.post.factor
        found = np.zeros((len(acting), int(acting.sum())))
        found[acting] = np.asarray(np.linalg.qr(self.post.factor[acting].T, mode="r")).T
        return found

    @property
    def own(self) -> int:
        """How many weights theta has."""
        return int(self.factor.shape[1])

    @property
    def size(self) -> int:
        """How many weights there are: theta's, and those of remainders."""
        return self.own + len(self.blocks) * self.directions

    @property
    def directions(self) -> int:
        """How many weights the remainders of a set have."""
        return min(DIRECTIONS, ALL // max(len(self.blocks), 1))

    def theta(self, weights: np.ndarray) -> np.ndarray:
        """Return the parameters (d,) with these weights of theta."""
        return np.asarray(self.post.mean + self.factor @ weights)

    def at(self, centre: np.ndarray, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets (M,) and features (M, r): effects are offset + phi'w.

        centre: theta's weights at which the response is linearized. Where effects bend they are
        dear, and those of the last queries are kept.
        """
        if not self.blocks:
            return self._compute(centre, queries)
        return self._rows.at(centre, queries, partial(self._compute, centre))

    def _compute(self, centre: np.ndarray, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        values, jacobian = self.response.linearize(self.theta(centre), queries)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            [intervention] = self.post.problem.interventions(queries[row])
            raise NumericalError(
                f"the effect of {intervention} is {values[row]}; theta has run away"
            )
        features = jacobian @ self.factor
        offsets = values - features @ centre
        if self.blocks:
            features = np.concatenate([features, self.remainders(queries)], axis=1)
        return offsets, features

    def remainders(self, queries: Queries) -> np.ndarray:
        """Return the features (M, k) of what linearization leaves out, 0 for sets without any."""
        width = self.directions
        found = np.zeros((len(queries), len(self.blocks) * width))
        for key, rows in split_by_set(queries):
            if key in self.blocks:
                start = self.blocks[key] * width
                found[rows, start : start + width] = self._of_set(key, queries[rows])[:, :width]
        return found

    def moments(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return means (M,) and sds (M,) of effects over the draws, of sets whose remainders vary.

        What an average over draws differs by from the effect at the mean of theta is interpolated,
        and so is the logarithm of the sd.
        """
        mean, sd = np.array(self.response(self.post.mean, queries)), np.zeros(len(queries))
        for key, rows in split_by_set(queries):
            more, log_sd, _ = self._of_set(key, queries[rows])[:, self.directions :].T
            mean[rows], sd[rows] = mean[rows] + more, np.exp(log_sd)
        return mean, sd

    def _of_set(self, key: bytes, queries: Queries) -> np.ndarray:
        """Return what the spline of one set says, (M, k + 3).

        Remainders by direction; then by how much effects move on average over the draws, and the
        logarithm of their sd; then the sd of the remainders along directions for
        which there was no room.
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
        shares = sobol(min(POINTS * size, MOST_POINTS) + 1)(size)[1:]
        if size <= LARGEST:
            ends = np.meshgrid(*[[0.0, 1.0]] * size, indexing="ij")
            shares = np.concatenate([np.stack([end.ravel() for end in ends], axis=1), shares])
        value = np.zeros((len(shares), len(mask)))
        value[:, mask] = low + shares * (high - low)
        moved, straight = self._moved(Queries(np.tile(mask, (len(shares), 1)), value))
        missed = (moved - straight) / np.sqrt(len(self.thetas))
        turned = missed @ np.linalg.svd(missed, full_matrices=False)[2].T
        kept, cut = turned[:, : self.directions], turned[:, self.directions : DIRECTIONS]
        sds = moved.std(axis=1, ddof=1)
        log_sds = np.log(np.maximum(sds, 1e-9 * sds.max() + np.finfo(float).tiny))
        more = np.sqrt(len(self.thetas)) * missed.mean(axis=1)
        columns = np.column_stack([kept, more, log_sds, np.linalg.norm(cut, axis=1)])
        return RBFInterpolator(shares, columns, kernel="cubic")

    def _moved(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return how far all draws move effects (M, S), and how far they would if linearized."""
        values, jacobian = self._anywhere.linearize(self.post.mean, queries)
        moved = (self._anywhere(self.thetas, queries) - values).T
        return moved, jacobian @ (self.thetas - self.post.mean).T

    def _missed(self, queries: Queries) -> np.ndarray:
        """Return the remainders (M, S) of all draws, in units of which v is standard normal."""
        moved, straight = self._moved(queries)
        return np.asarray((moved - straight) / np.sqrt(len(self.thetas)))

    @cached_property
    def _anywhere(self) -> Response:
        """The same response, also where an intervention may not be proposed.

        Remainders of a few draws are no exact numbers, so that rough averages do for them.
        """
        post = replace(self.post, problem=for_measured(self.post.problem))
        return Response(post, is_rough=True, is_lean=True)

    def noises(self, queries: Queries) -> np.ndarray:
        """Return what counts as noise of each effect, (M,); computed once for each query.

        It is what linearization leaves out of the effect's variance, but for what has weights.
        """
        if self.blocks:
            found = np.zeros(len(queries))
            for key, rows in split_by_set(queries):
                if key in self.blocks:
                    found[rows] = self._of_set(key, queries[rows])[:, -1] ** 2
                else:
                    found[rows] = (self._missed(queries[rows]) ** 2).sum(axis=1)
            return found
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        keys = [kind.tobytes() + at.tobytes() for kind, at in zip(mask, value, strict=True)]
        new = [row for row, key in enumerate(keys) if key not in self._noises]
        if new:
            found = remainders(self.post, queries[np.array(new)])
            self._noises.update(zip((keys[row] for row in new), found.tolist(), strict=True))
        return np.array([self._noises[key] for key in keys])


def weigh_response(post: Posterior) -> WeightedResponse:
    """Return the response of a posterior as a linear function of weights; it is kept with it."""
    kept = post.__dict__.get("_weighted_response")
    if isinstance(kept, WeightedResponse):
        return kept
    effect = response(post)
    blocks: dict[bytes, int] = {}
    if not (effect.map.is_affine or effect.map.is_linear) and len(post.sets) <= ALL:
        names = post.problem.graph.nodes
        masks = np.array([[name in members for name in names] for members in post.sets])
        empty = Queries(masks, np.zeros(masks.shape))
        blocks = {key: at for at, (key, _) in enumerate(split_by_set(empty))}
        effect = replace(effect, is_lean=True)
    thetas = (
        post.draws(REMAINDER_DRAWS, jax.random.key(0)) if blocks else np.zeros((0, len(post.mean)))
    )
    made: WeightedResponse = post.__dict__.setdefault(
        "_weighted_response", WeightedResponse(effect, thetas, blocks)
    )
    return made


MOMENT_DRAWS = (
    256  # of theta: the mean is off by at most a sixteenth of its sd or so, everywhere alike
)
BATCHES = 16  # whose moments are kept with a posterior: candidates are asked about every round


class Prediction(NamedTuple):
    """Mean (M,) and standard deviation (M,) of effects."""

    mean: np.ndarray
    sd: np.ndarray


class TargetMoments(NamedTuple):
    """Mean and sd of the target."""

    mean: float
    sd: float


def effect_moments(post: Posterior, queries: Queries) -> Prediction:
    """Return means (M,) and sds (M,) of effects under the posterior of theta.

    Where equations are linear and independent given the rows, the mean of an effect is the effect
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
    kept: dict[bytes, Prediction] = post.__dict__.setdefault("_effect_moments", {})
    if key not in kept:
        found = _compute(post, queries)
        _require_finite(post, queries, found)
        while len(kept) >= BATCHES:
            kept.pop(next(iter(kept)), None)
        kept[key] = found
    return kept[key]


def smooth_moments(post: Posterior, queries: Queries) -> Prediction:
    """Return means (M,) and sds (M,) of effects as a search over values needs them.

    Where averages over draws are dear they are those of fewer draws, at points that fill the box of
    each set, interpolated between them; elsewhere they are those of `effect_moments`.
    """
    weighted = weigh_response(post)
    if len(queries) and all(key in weighted.blocks for key, _ in split_by_set(queries)):
        found = Prediction(*weighted.moments(queries))
        _require_finite(post, queries, found)
        return found
    return effect_moments(post, queries)


def _compute(post: Posterior, queries: Queries) -> Prediction:
    effect, coefficients = response(post), independent_coefficients(post)
    if coefficients is None and not effect.map.is_linear:
        drawn = effect(post.draws(MOMENT_DRAWS, jax.random.key(0)), queries)
        return Prediction(drawn.mean(axis=0), drawn.std(axis=0, ddof=1))
    values, jacobian = effect.linearize(post.mean, queries)
    variances = ((jacobian @ post.factor) ** 2).sum(axis=1)
    if coefficients is not None:
        variances = variances + left_out_variances(coefficients, effect.require(queries))
    return Prediction(values, np.sqrt(variances))


def _require_finite(post: Posterior, queries: Queries, found: Prediction) -> None:
    bad = ~(np.isfinite(found.mean) & np.isfinite(found.sd))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        [intervention] = post.problem.interventions(queries[row])
        raise NumericalError(
            f"the effect of {intervention} has the mean {found.mean[row]} and the sd "
            f"{found.sd[row]} under the posterior; narrow the domains, or look at "
            "cb.diagnostics.check_posterior(post)"
        )


def target_moments(post: Posterior) -> TargetMoments:
    """Return mean and sd of the target in the rows without intervention.

    Where there are no two such rows, or they are all equal, they are those of effects under the
    posterior.
    """
    data = post.data
    rows = data.outcomes[~data.intervened.any(axis=1)]
    if len(rows) > 1 and np.ptp(rows) > 0:
        return TargetMoments(float(rows.mean()), float(rows.std(ddof=1)))
    mean, sd = effect_moments(post, default_vertices(post.problem, post.sets, None))
    spread = float(np.sqrt(mean.var() + (sd**2).mean()))
    return TargetMoments(float(mean.mean()), spread if spread > 0 else 1.0)
