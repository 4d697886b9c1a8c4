"""How are draws made by NUTS? Chains side by side, one program for all, data as its argument.

A chain advances in blocks; between blocks the progress bar moves and an interrupt is heard. New rows of the same shape
compile nothing.
"""

import os
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.hmc import hmc
from tqdm import tqdm

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.posterior.linear_model import LinearModel, Sites, split
from causal_bo_ppl.posterior.potentials import potential
from causal_bo_ppl.posterior.starts import find_starts
from causal_bo_ppl.sem.linear_density import Shape

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
            raise ModelError(f"target_accept must lie between 0.4 and 1, got {self.target_accept!r}")


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
    initialize, step = hmc(potential_fn_gen=lambda *arguments: partial(potential, shape, arguments), algo="NUTS")

    @jax.jit
    def begin(key: jax.Array, start: Sites, arguments: tuple[Any, ...]) -> Any:
        options = {"dense_mass": bool(shape.arcs), "target_accept_prob": target_accept, "max_tree_depth": depth}
        return initialize(start, warmup, model_args=arguments, rng_key=key, **options)

    def keep(state: Any) -> dict[str, jax.Array]:
        flat = jnp.concatenate([state.z[name] for name in names])
        return {"flat": flat} | {name: jnp.asarray(getattr(state, field)) for name, field in FIELDS.items()}

    @jax.jit
    def advance(state: Any, steps: jax.Array, arguments: tuple[Any, ...]) -> Any:
        def visit(at: jax.Array, carried: tuple[Any, Any]) -> tuple[Any, Any]:
            state, kept = carried
            state = step(state, arguments)
            return state, jax.tree.map(lambda block, value: block.at[at].set(value), kept, keep(state))

        blank = jax.tree.map(lambda value: jnp.zeros((BLOCK, *value.shape), value.dtype), keep(state))
        return jax.lax.fori_loop(0, steps, visit, (state, blank))

    return Program(begin, advance)


def run_chains(model: LinearModel, sampling: Sampling, key: jax.Array) -> Chains:
    """All chains, as many at a time as there are cores."""
    made = program(model.shape, sampling.warmup, sampling.target_accept, sampling.depth)
    for_starts, *keys = jax.random.split(key, 1 + sampling.chains)
    starts = find_starts(model, sampling.chains, for_starts)
    arguments = jax.tree.map(jnp.asarray, model.arguments)
    states = [made.begin(each, split(model.shape, start), arguments) for each, start in zip(keys, starts, strict=True)]
    made.advance(states[0], 0, arguments)  # no step: compiled once, before threads ask for it
    total = sampling.chains * (sampling.warmup + sampling.draws)
    stop = Event()
    with (
        tqdm(total=total, desc="nuts", unit="step", delay=PATIENCE, leave=False, disable=not sampling.progress) as bar,
        ThreadPoolExecutor(min(sampling.chains, os.cpu_count() or 1)) as pool,
    ):
        work = partial(_run_chain, made, arguments, sampling, bar, stop)
        running = [pool.submit(work, state) for state in states]
        try:
            for each in wait(running, return_when=FIRST_EXCEPTION).done:
                each.result()
            found = [each.result() for each in running]
        except BaseException:  # an interrupt, or a chain that failed: the others stop after their block
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
