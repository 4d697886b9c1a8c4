"""The ablation without coupling: the same beliefs, block-diagonal over sets.

Every set has a surrogate of its own, the coupled one by default, which is told the outcomes of that
set alone: within a set nothing differs, and between sets nothing is learned. Its covariance is

    k(z, z') of the coupled surrogate where z and z' set the same variables, 0 otherwise,

so that the difference to the coupled surrogate is what coupling alone is worth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import rows_of_sets
from causal_bo_ppl.surrogates.coupled import CoupledMaker
from causal_bo_ppl.surrogates.interface import Prediction, Surrogate, SurrogateMaker


@dataclass(frozen=True, eq=False)
class Uncoupled:
    """A surrogate for every set; made by `UncoupledMaker`; see `interface.Surrogate`.

    before: what is believed about each set that has no outcomes. sets: the surrogates of the sets
    that have outcomes, each told of its own only.
    """

    before: Surrogate
    sets: Mapping[bytes, Surrogate] = field(default_factory=dict)

    @property
    def post(self) -> Posterior:
        """The posterior that was believed before the outcomes."""
        return self.before.post

    @property
    def is_affine(self) -> bool:
        """Whether means are affine and sds convex in the values, so that a vertex is optimal.

        It is what the surrogates of the sets say of themselves, or else whether effects are affine.
        """
        default = self.post.belief.response.is_affine
        parts = (self.before, *self.sets.values())
        return all(bool(getattr(each, "is_affine", default)) for each in parts)

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch.

        Sets without outcomes are predicted together, the others one by one.
        """
        queries = self.post.problem.require(queries)
        mean, sd = np.empty(len(queries)), np.empty(len(queries))
        for surrogate, rows in self._told_apart(queries):
            mean[rows], sd[rows] = surrogate.predict(queries[rows])
        return Prediction(mean, sd)

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M); 0 between sets."""
        queries = self.post.problem.require(queries)
        joint = np.zeros((len(queries), len(queries)))
        for key, rows in rows_of_sets(queries):
            joint[np.ix_(rows, rows)] = self._of(key).covariance(queries[rows])
        return joint

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M); sets are drawn independently."""
        queries = self.post.problem.require(queries)
        draws = np.empty((read_count("n", n, 1), len(queries)))
        sets = list(rows_of_sets(queries))
        keys = jax.random.split(as_key(key), max(len(sets), 1))
        for (name, rows), own in zip(sets, keys, strict=False):
            draws[:, rows] = self._of(name).sample(queries[rows], n, own)
        return draws

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Uncoupled":
        """Return the surrogate after outcomes (M,) of M queries; see `interface.Surrogate`."""
        queries = self.post.problem.require(queries)
        values = np.ravel(np.asarray(outcomes, object))
        count = 1 if noise is None else np.size(noise)
        if len(values) != len(queries) or count not in (1, len(queries)) or not len(queries):
            raise DataError(
                f"tell one outcome of each intervention; got {len(values)} outcomes and {count} "
                f"variances of {queries!r}"
            )
        variances = None if noise is None else np.broadcast_to(np.ravel(noise), len(queries))
        after = dict(self.sets)
        for key, rows in rows_of_sets(queries):
            own = None if variances is None else variances[rows]
            after[key] = self._of(key).tell(queries[rows], values[rows], own)
        return replace(self, sets=after)

    def imagine(self, query: Queries, noise: float) -> "Uncoupled":
        """Return the surrogate as if one query had come out as predicted."""
        key = self._one(query)
        return replace(self, sets={**self.sets, key: self._of(key).imagine(query, noise)})

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all that was told."""
        return self._of(self._one(query)).log_density(query, outcome, noise)

    def recentre(self) -> "Uncoupled":
        """Return the same beliefs with every set's approximations made anew at its own outcomes."""
        moved = {}
        for key, surrogate in self.sets.items():
            recentre = offered(surrogate, "recentre")
            moved[key] = surrogate if recentre is None else recentre()
        return replace(self, sets=moved)

    def _of(self, key: bytes) -> Surrogate:
        return self.sets.get(key, self.before)

    def _one(self, query: Queries) -> bytes:
        query = self.post.problem.require(query)
        if len(query) != 1:
            raise DataError(f"this is about one intervention; got {query!r}")
        return next(rows_of_sets(query))[0]

    def _told_apart(self, queries: Queries) -> Iterator[tuple[Surrogate, np.ndarray]]:
        """Yield each surrogate with its rows; that of sets without outcomes comes last, once."""
        rest = [np.zeros(0, int)]
        for key, rows in rows_of_sets(queries):
            if key in self.sets:
                yield self.sets[key], rows
            else:
                rest.append(rows)
        if len(rest) > 1:
            yield self.before, np.concatenate(rest)

    def __repr__(self) -> str:
        return f"Uncoupled({len(self.sets)} sets with outcomes; {self.post!r})"


@dataclass(frozen=True)
class UncoupledMaker:
    """Makes a surrogate for every set on its own; see `interface.SurrogateMaker`.

    Parameters
    ----------
    of:
        What makes the surrogate of one set: the coupled one, unless another is given.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> alone = UncoupledMaker().begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> told = alone.tell(system.problem.queries([{"Z": 2.0}]), -2.6, 0.1)
    >>> same, other = system.problem.queries([{"Z": 1.0}, {"X": 1.0}])
    >>> bool(told.predict(same).sd < alone.predict(same).sd)
    True
    >>> bool(told.predict(other).sd < alone.predict(other).sd)
    False
    """

    of: SurrogateMaker = field(default_factory=CoupledMaker)

    name = "uncoupled"

    def begin(self, post: Posterior) -> Uncoupled:
        """Return the surrogate before any outcome."""
        return Uncoupled(self.of.begin(post))
