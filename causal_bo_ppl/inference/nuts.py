"""What is the negative log posterior of the linear model, as NumPyro computes it from its program?

Where do chains start? Around the equations' own posteriors, where the density is finite.

How are draws made by NUTS? Chains side by side, one program for all, data as its argument.

A chain advances in blocks; between blocks the progress bar moves and an interrupt is heard. New rows of the same shape
compile nothing.

What do draws by NUTS say about theta_Y?
"""

import os
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpyro.infer.hmc import hmc
from numpyro.infer.util import potential_energy
from tqdm import tqdm

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference.convergence import Limits, judge_chains, overall, summarise
from causal_bo_ppl.inference.draws import Drawn, Models
from causal_bo_ppl.inference.linear_model import LinearModel, Sites, split
from causal_bo_ppl.inference.noise import outcome_variances
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.linear.density import Shape, linear_density
from causal_bo_ppl.mechanisms.linear.priors import Prior
from causal_bo_ppl.mechanisms.simulation import HANDLER_LOCK
from causal_bo_ppl.numerics import factor_draws
from causal_bo_ppl.problem import Queries


def potential(shape: Shape, arguments: tuple[Any, ...], sites: Sites) -> jax.Array:
    """At given sites, up to a constant; arguments: chart, prior and rows."""
    with HANDLER_LOCK:  # while this is traced; what is compiled runs without handlers
        found: jax.Array = potential_energy(partial(linear_density, shape), arguments, {}, sites)
    return found


def flat_potential(shape: Shape, arguments: tuple[Any, ...], flat: jax.Array) -> jax.Array:
    """At coordinates (k,)."""
    return potential(shape, arguments, split(shape, flat))


SPREAD = 2.0  # posterior standard deviations, as Stan starts
TRIES = 8  # each nearer to the centre


@partial(jax.jit, static_argnames="shape")
def value_and_gradient(
    shape: Shape, arguments: object, flat: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of the potential, at coordinates (k,)."""
    found: tuple[jax.Array, jax.Array] = jax.value_and_grad(flat_potential, argnums=2)(
        shape, arguments, flat
    )
    return found


def find_starts(model: LinearModel, count: int, key: jax.Array) -> np.ndarray:
    """(count, k) coordinates with a finite density and gradient."""
    drawn = np.asarray(
        jax.random.uniform(key, (count, model.dimension), minval=-SPREAD, maxval=SPREAD)
    )
    return np.stack([_nearest_usable(model, start) for start in drawn])


def _nearest_usable(model: LinearModel, start: np.ndarray) -> np.ndarray:
    for attempt in range(TRIES):
        nearer = start * 0.5**attempt
        value, gradient = value_and_gradient(model.shape, model.arguments, nearer)
        if np.isfinite(value) and np.isfinite(gradient).all():
            return nearer
    raise ModelError(explain(model))


def explain(model: LinearModel) -> str:
    """Which node's likelihood is not finite where the chains should start."""
    values = model.data.values[:, [model.data.nodes.index(name) for name in model.graph.nodes]]
    posterior = model.equations.posterior
    for place in model.shape.equations:
        node = model.graph.nodes[place]
        parts = (
            posterior.mean[place],
            posterior.rate[place],
            posterior.variance[place],
            values[:, place] ** 2,
        )
        if not all(np.isfinite(part).all() for part in parts) or not posterior.variance[place] > 0:
            largest = np.abs(values[:, place]).max(initial=0.0)
            return (
                f"the likelihood of {node!r} is not finite where the chains should start (its largest value is "
                f"{largest:.3g}, its residual variance {posterior.variance[place]:.3g}); rescale {node!r}, or look for "
                "values that cannot be"
            )
    return "the model's density is not finite where the chains should start; rescale the data, or give a FixedPrior"


BLOCK = 250  # transitions between two movements of the bar
PATIENCE = 3.0  # seconds without a progress bar
FIELDS = {  # ArviZ's names of what the sampler says about a draw
    "lp": "potential_energy",
    "energy": "energy",
    "n_steps": "num_steps",
    "acceptance_rate": "accept_prob",
    "diverging": "diverging",
}


@dataclass(frozen=True)
class Sampling:
    """How many chains, and how long."""

    chains: int = 4
    warmup: int = 1_000
    draws: int = 1_000
    target_accept: float = 0.8
    depth: int = 10
    progress: bool = True

    def __post_init__(self) -> None:
        for name, least in (("chains", 1), ("warmup", 10), ("draws", 4), ("depth", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ModelError(f"{name} must be a whole number, at least {least}; got {value!r}")
            object.__setattr__(self, name, int(value))
        if not isinstance(self.target_accept, float) or not 0.4 <= self.target_accept < 1:
            raise ModelError(
                f"target_accept must lie between 0.4 and 1, got {self.target_accept!r}"
            )


class Chains(NamedTuple):
    """flat: (chains, draws, k) coordinates. stats: {name: (chains, draws)}, what the sampler says of each draw."""

    flat: np.ndarray
    stats: dict[str, np.ndarray]


class Program(NamedTuple):
    """begin(key, start, arguments) -> state; advance(state, steps, arguments) -> state, draws of a block."""

    begin: Callable[..., Any]
    advance: Callable[..., Any]


@lru_cache(maxsize=32)
def program(shape: Shape, warmup: int, target_accept: float, depth: int) -> Program:
    """The sampler for models of one shape, compiled when first used and kept."""
    names = tuple(shape.sites)
    initialize, step = hmc(
        potential_fn_gen=lambda *arguments: partial(potential, shape, arguments), algo="NUTS"
    )

    @jax.jit
    def begin(key: jax.Array, start: Sites, arguments: tuple[Any, ...]) -> Any:
        options = {
            "dense_mass": bool(shape.arcs),
            "target_accept_prob": target_accept,
            "max_tree_depth": depth,
        }
        return initialize(start, warmup, model_args=arguments, rng_key=key, **options)

    def keep(state: Any) -> dict[str, jax.Array]:
        flat = jnp.concatenate([state.z[name] for name in names])
        return {"flat": flat} | {
            name: jnp.asarray(getattr(state, field)) for name, field in FIELDS.items()
        }

    @jax.jit
    def advance(state: Any, steps: jax.Array, arguments: tuple[Any, ...]) -> Any:
        def visit(at: jax.Array, carried: tuple[Any, Any]) -> tuple[Any, Any]:
            state, kept = carried
            state = step(state, arguments)
            return state, jax.tree.map(
                lambda block, value: block.at[at].set(value), kept, keep(state)
            )

        blank = jax.tree.map(
            lambda value: jnp.zeros((BLOCK, *value.shape), value.dtype), keep(state)
        )
        return jax.lax.fori_loop(0, steps, visit, (state, blank))

    return Program(begin, advance)


def run_chains(model: LinearModel, sampling: Sampling, key: jax.Array) -> Chains:
    """All chains, as many at a time as there are cores."""
    made = program(model.shape, sampling.warmup, sampling.target_accept, sampling.depth)
    for_starts, *keys = jax.random.split(key, 1 + sampling.chains)
    starts = find_starts(model, sampling.chains, for_starts)
    arguments = jax.tree.map(jnp.asarray, model.arguments)
    states = [
        made.begin(each, split(model.shape, start), arguments)
        for each, start in zip(keys, starts, strict=True)
    ]
    made.advance(states[0], 0, arguments)  # no step: compiled once, before threads ask for it
    total = sampling.chains * (sampling.warmup + sampling.draws)
    stop = Event()
    with (
        tqdm(
            total=total,
            desc="nuts",
            unit="step",
            delay=PATIENCE,
            leave=False,
            disable=not sampling.progress,
        ) as bar,
        ThreadPoolExecutor(min(sampling.chains, os.cpu_count() or 1)) as pool,
    ):
        work = partial(_run_chain, made, arguments, sampling, bar, stop)
        running = [pool.submit(work, state) for state in states]
        try:
            for each in wait(running, return_when=FIRST_EXCEPTION).done:
                each.result()
            found = [each.result() for each in running]
        except (
            BaseException
        ):  # an interrupt, or a chain that failed: the others stop after their block
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    stacked = {name: np.stack([chain[name] for chain in found]) for name in found[0]}
    stats = {name: stacked[name] for name in FIELDS} | {"lp": -stacked["lp"]}
    stats["tree_depth"] = np.ceil(np.log2(stacked["n_steps"] + 1)).astype(int)
    return Chains(stacked["flat"], stats)


def _run_chain(
    made: Program, arguments: Any, sampling: Sampling, bar: Any, stop: Event, state: Any
) -> dict[str, np.ndarray]:
    """Warm up, then draw; what was kept of the warm-up is thrown away."""
    blocks = []
    for wanted, is_kept in ((sampling.warmup, False), (sampling.draws, True)):
        for start in range(0, wanted, BLOCK):
            if stop.is_set():
                return {}
            steps = min(BLOCK, wanted - start)
            state, block = made.advance(state, steps, arguments)
            state.i.block_until_ready()
            bar.update(steps)
            if is_kept:
                blocks.append({name: np.asarray(part)[:steps] for name, part in block.items()})
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws of the linear model. key: what they were drawn with."""

    model: LinearModel
    sampling: Sampling
    key: jax.Array
    chains: Chains

    @property
    def prior(self) -> Prior:
        """What was believed before."""
        return self.model.prior

    @property
    def learned(self) -> np.ndarray:
        """(k,) of which variables the density is known."""
        return self.model.equations.needed

    @property
    def settings(self) -> str:
        """All that the draws depend on besides the rows."""
        kept = (
            self.sampling.chains,
            self.sampling.warmup,
            self.sampling.draws,
            self.sampling.target_accept,
        )
        return f"{kept} {self.sampling.depth} {np.asarray(jax.random.key_data(self.key)).tolist()}"

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found."""
        return f"{self.sampling.chains} x {self.sampling.draws} draws by NUTS"

    @cached_property
    def models(self) -> Models:
        """All draws of the model, chain after chain."""
        return self.model.models(self.chains.flat.reshape(-1, self.model.dimension))

    @cached_property
    def theta(self) -> np.ndarray:
        """(chains, draws, d) draws of theta_Y."""
        found = self.model.readout.read(self.models.matrices)
        return found.reshape(*self.chains.flat.shape[:2], -1)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) of theta_Y, and a factor (d, r) of its covariance."""
        flat = self.theta.reshape(-1, self.theta.shape[-1])
        return flat.mean(axis=0), factor_draws(flat)

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """(n, d) of the draws at random: each at most once, as long as there are enough."""
        flat = self.theta.reshape(-1, self.theta.shape[-1])
        return np.asarray(flat[_choose(len(flat), n, key)])

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """All draws, or every so-many-th of each chain so that about n remain."""
        return self._all.thinned(n)

    @cached_property
    def _all(self) -> Drawn:
        log_prior, _ = self.model.log_parts(self.chains.flat.reshape(-1, self.model.dimension))
        theta, told = self.theta.reshape(-1, self.theta.shape[-1]), self.model.told(self.models)
        return Drawn(len(self.theta), theta, self.models, log_prior, self.chains.stats, told)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Convergence of every coordinate of theta_Y, and of the log posterior."""
        lp = self.chains.stats["lp"][..., None]
        names = (*self.model.readout.parameters.names, "log posterior")
        return summarise(np.concatenate([self.theta, lp], axis=-1), names)

    def lines(self, limits: Limits) -> pd.DataFrame:
        """What the computation's success is judged by."""
        return judge_chains(self.summary, self.chains.stats, limits)

    @cached_property
    def verdict(self) -> str:
        """Did the chains agree, and explore?"""
        return overall(self.lines(Limits()))

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """(M,) variance of one outcome at the posterior means."""
        return outcome_variances(
            self.models.matrices.mean(axis=0),
            self.models.noises.mean(axis=0),
            self.learned,
            queries,
        )

    def update(self, rows: Data) -> "Sampled":
        """After more rows: drawn anew, with a key of its own."""
        model = self.model.with_rows(rows)
        return sample(model, self.sampling, jax.random.fold_in(self.key, len(model.data)))


def _choose(available: int, n: int, key: jax.Array) -> np.ndarray:
    order = host_generator(key).permutation(available)
    return np.resize(order, n) if n > available else order[:n]


def sample(model: LinearModel, sampling: Sampling, key: jax.Array) -> Sampled:
    """The posterior by NUTS."""
    model = replace(model, follows=True)
    return Sampled(model, sampling, key, run_chains(model, sampling, key))
