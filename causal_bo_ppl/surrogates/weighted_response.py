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
v, and what is left out counts as noise of the outcomes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

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

    @property
    def post(self) -> Posterior:
        """The posterior of theta."""
        return self.response.post

    @property
    def own(self) -> int:
        """How many weights theta has."""
        return int(self.post.factor.shape[1])

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
        return np.asarray(self.post.mean + self.post.factor @ weights)

    def at(self, centre: np.ndarray, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets (M,) and features (M, r): effects are offset + phi'w.

        centre: theta's weights at which the response is linearized.
        """
        values, jacobian = self.response.linearize(self.theta(centre), queries)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            [intervention] = self.post.problem.interventions(queries[row])
            raise NumericalError(
                f"the effect of {intervention} is {values[row]}; theta has run away"
            )
        features = jacobian @ self.post.factor
        offsets = values - features @ centre
        if self.blocks:
            features = np.concatenate([features, self.remainders(queries)], axis=1)
        return offsets, features

    def remainders(self, queries: Queries) -> np.ndarray:
        """Return the features (M, k) of what linearization leaves out, 0 for sets without any."""
        width = self.directions
        found = np.zeros((len(queries), len(self.blocks) * width))
        domains, nodes = self.post.problem.domains, self.post.problem.graph.nodes
        for key, rows in rows_of_sets(queries):
            if key not in self.blocks:
                continue
            mask = np.asarray(queries.mask)[rows[0]]
            columns = np.flatnonzero(mask)
            low, high = np.array([domains[nodes[column]] for column in columns]).T
            shares = (np.asarray(queries.value)[np.ix_(rows, columns)] - low) / (high - low)
            if key not in self._splines:
                self._splines[key] = self._interpolate(mask, low, high)
            start = self.blocks[key] * width
            found[rows, start : start + width] = self._splines[key](np.clip(shares, 0.0, 1.0))
        return found

    def _interpolate(self, mask: np.ndarray, low: np.ndarray, high: np.ndarray) -> RBFInterpolator:
        """Return a spline through the remainders at points that fill the box of one set."""
        size = len(low)
        shares = sobol(min(POINTS * size, MOST_POINTS) + 1)(size)[1:]
        if size <= LARGEST:
            ends = np.meshgrid(*[[0.0, 1.0]] * size, indexing="ij")
            shares = np.concatenate([np.stack([end.ravel() for end in ends], axis=1), shares])
        value = np.zeros((len(shares), len(mask)))
        value[:, mask] = low + shares * (high - low)
        missed = self._missed(Queries(np.tile(mask, (len(shares), 1)), value))
        leading = np.linalg.svd(missed, full_matrices=False)[2][: self.directions]
        return RBFInterpolator(shares, missed @ leading.T, kernel="cubic")

    def _missed(self, queries: Queries) -> np.ndarray:
        """Return the remainders (M, S) of all draws, in units of which v is standard normal."""
        values, jacobian = self._anywhere.linearize(self.post.mean, queries)
        missed = self._anywhere(self.thetas, queries) - values
        missed -= (self.thetas - self.post.mean) @ jacobian.T
        return np.asarray(missed.T / np.sqrt(len(self.thetas)))

    @cached_property
    def _anywhere(self) -> Response:
        """The same response, also where an intervention may not be proposed."""
        return Response(replace(self.post, problem=for_measured(self.post.problem)))

    def noises(self, queries: Queries) -> np.ndarray:
        """Return what counts as noise of each effect, (M,); computed once for each query.

        It is what linearization leaves out of the effect's variance, and 0 where that has weights.
        """
        if self.blocks:
            found = np.zeros(len(queries))
            for key, rows in rows_of_sets(queries):
                if key not in self.blocks:
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
    thetas = post.draws(DRAWS, jax.random.key(0)) if blocks else np.zeros((0, len(post.mean)))
    made: WeightedResponse = post.__dict__.setdefault(
        "_weighted_response", WeightedResponse(effect, thetas, blocks)
    )
    return made
