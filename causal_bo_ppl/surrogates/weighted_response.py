"""Effects as linear functions of weights: theta's, and those of what linearization leaves out.

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
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import jax
import numpy as np
from scipy.interpolate import RBFInterpolator

from causal_bo_ppl.errors import NumericalError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.kernels.exact import remainders
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.feasibility import for_measured
from causal_bo_ppl.problem.queries import rows_of_sets, sobol
from causal_bo_ppl.responses import Response, response
from causal_bo_ppl.surrogates.kept_rows import KeptRows

DRAWS = 64  # of theta, by which remainders are known
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
        for key, rows in rows_of_sets(queries):
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
        for key, rows in rows_of_sets(queries):
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
            for key, rows in rows_of_sets(queries):
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
    effect = response(post.problem, post)
    blocks: dict[bytes, int] = {}
    if not (effect.map.is_affine or effect.map.is_linear) and len(post.sets) <= ALL:
        names = post.problem.graph.nodes
        masks = np.array([[name in members for name in names] for members in post.sets])
        empty = Queries(masks, np.zeros(masks.shape))
        blocks = {key: at for at, (key, _) in enumerate(rows_of_sets(empty))}
        effect = replace(effect, is_lean=True)
    thetas = post.draws(DRAWS, jax.random.key(0)) if blocks else np.zeros((0, len(post.mean)))
    made: WeightedResponse = post.__dict__.setdefault(
        "_weighted_response", WeightedResponse(effect, thetas, blocks)
    )
    return made
