"""Draws by NUTS: chains side by side, one program for all, with the rows as its argument.

A chain advances in blocks; between blocks the progress bar moves and an interrupt is heard. New
rows of the same shape compile nothing.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.hmc import hmc
from tqdm import tqdm

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference.potentials import find_starts, potential
from causal_bo_ppl.inference.sampled import SampledDistribution
from causal_bo_ppl.inputs import PROGRESS_DELAY, read_count
from causal_bo_ppl.mechanisms.base import Mechanisms, Model, Task

BLOCK = 250  # transitions between two movements of the bar
SHORT = 500  # steps of warm-up, and draws, of a chain that is one of many fits
FIELDS = {  # ArviZ's names of what the sampler says about a draw
    "lp": "potential_energy",
    "energy": "energy",
    "n_steps": "num_steps",
    "acceptance_rate": "accept_prob",
    "diverging": "diverging",
}


@dataclass(frozen=True)
class NUTS:
    """Draws of the whole model by the No-U-Turn sampler, for any mechanisms.

    Parameters
    ----------
    chains:
        How many chains; they run side by side.
    warmup, draws:
        Steps of each chain before draws are kept, and draws kept of each.
    target_accept:
        Acceptance that the step size aims at; nearer to 1 means smaller steps.
    depth:
        Most doublings of a trajectory.
    progress:
        Whether a progress bar is shown when sampling takes more than a few seconds.
    """

    chains: int = 4
    warmup: int = 1_000
    draws: int = 1_000
    target_accept: float = 0.8
    depth: int = 10
    progress: bool = field(default=True, compare=False)

    name = "nuts"
    needs_key = True

    def __post_init__(self) -> None:
        for name, least in (("chains", 1), ("warmup", 10), ("draws", 4), ("depth", 1)):
            object.__setattr__(self, name, read_count(name, getattr(self, name), least))
        if not isinstance(self.target_accept, float) or not 0.4 <= self.target_accept < 1:
            raise ModelError(
                f"target_accept must lie between 0.4 and 1, got {self.target_accept!r}"
            )

    def infer(
        self, task: Task, mechanisms: Mechanisms, key: jax.Array | None
    ) -> SampledDistribution:
        """Return the draws of all chains."""
        if key is None:
            raise ModelError("nuts draws at random: give a key, such as key=0")
        return sample(mechanisms.bind(task), self, key)

    def resume(
        self,
        model: Model,
        psi: np.ndarray,
        stats: dict[str, np.ndarray],
        key: jax.Array,
        sizes: Sequence[int],
    ) -> SampledDistribution:
        """Return the belief of draws that this method made before, as `infer` returned it.

        Parameters
        ----------
        model:
            With all rows.
        psi, stats:
            The draws of all chains, (chains, draws, k), and {name: (chains, draws)}.
        key:
            That of the first fit.
        sizes:
            How many rows there were at the first fit and after each update.
        """
        names = {*FIELDS, "tree_depth"}
        if psi.shape != (self.chains, self.draws, len(model.coordinates)) or set(stats) != names:
            raise ModelError(
                f"draws by {self} need the shape "
                f"({self.chains}, {self.draws}, {len(model.coordinates)}) and the statistics "
                f"{listed(sorted(names))}; got {psi.shape} and {listed(sorted(stats))}"
            )
        for size in sizes[1:]:
            key = jax.random.fold_in(key, size)
        return _distribution(model, self, key, Chains(psi, stats))

    def shortened(self) -> "NUTS":
        """Return shorter chains without a progress bar, for many fits."""
        return replace(self, warmup=SHORT, draws=SHORT, progress=False)


class Chains(NamedTuple):
    """The draws of all chains.

    psi: (chains, draws, k) coordinates. stats: {name: (chains, draws)} of each draw.
    """

    psi: np.ndarray
    stats: dict[str, np.ndarray]


class Program(NamedTuple):
    """The sampler of models of one structure.

    begin(key, start, density) gives a state; advance(state, steps, density) a state and its draws.
    """

    begin: Callable[..., Any]
    advance: Callable[..., Any]


@lru_cache(maxsize=32)
def program(
    structure: Any, is_correlated: bool, warmup: int, target_accept: float, depth: int
) -> Program:
    """Return the sampler for densities of one pytree structure, compiled when first used."""

    def make_potential(density: Any) -> Callable[[dict[str, jax.Array]], jax.Array]:
        return lambda sites: potential(density, sites["psi"])

    initialize, step = hmc(potential_fn_gen=make_potential, algo="NUTS")
    options = {
        "dense_mass": is_correlated,
        "target_accept_prob": target_accept,
        "max_tree_depth": depth,
    }

    @jax.jit
    def begin(key: jax.Array, start: jax.Array, density: Any) -> Any:
        return initialize({"psi": start}, warmup, model_args=(density,), rng_key=key, **options)

    def keep(state: Any) -> dict[str, jax.Array]:
        stats = {name: jnp.asarray(getattr(state, each)) for name, each in FIELDS.items()}
        return {"psi": state.z["psi"]} | stats

    @jax.jit
    def advance(state: Any, steps: jax.Array, density: Any) -> Any:
        def visit(at: jax.Array, carried: tuple[Any, Any]) -> tuple[Any, Any]:
            state, kept = carried
            state = step(state, (density,))
            put = jax.tree.map(lambda block, value: block.at[at].set(value), kept, keep(state))
            return state, put

        blank = jax.tree.map(
            lambda value: jnp.zeros((BLOCK, *value.shape), value.dtype), keep(state)
        )
        return jax.lax.fori_loop(0, steps, visit, (state, blank))

    return Program(begin, advance)


def run_chains(model: Model, method: NUTS, key: jax.Array) -> Chains:
    """Run all chains, as many at a time as there are cores."""
    density = jax.tree.map(jnp.asarray, model.density)
    is_correlated = bool(getattr(model, "is_correlated", False))
    made = program(
        jax.tree.structure(density),
        is_correlated,
        method.warmup,
        method.target_accept,
        method.depth,
    )
    for_starts, *keys = jax.random.split(key, 1 + method.chains)
    starts = find_starts(model, method.chains, for_starts)
    pairs = zip(keys, starts, strict=True)
    states = [made.begin(each, jnp.asarray(start), density) for each, start in pairs]
    made.advance(states[0], 0, density)  # no step: compiled once, before threads ask for it
    total = method.chains * (method.warmup + method.draws)
    options = {"desc": "nuts", "unit": "step", "delay": PROGRESS_DELAY, "leave": False}
    stop = Event()
    with (
        tqdm(total=total, disable=not method.progress, **options) as bar,
        ThreadPoolExecutor(min(method.chains, os.cpu_count() or 1)) as pool,
    ):
        work = partial(_run_chain, made, density, method, bar, stop)
        running = [pool.submit(work, state) for state in states]
        try:
            for each in wait(running, return_when=FIRST_EXCEPTION).done:
                each.result()
            found = [each.result() for each in running]
        except BaseException:  # an interrupt, or a failed chain: the others stop after their block
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    stacked = {name: np.stack([chain[name] for chain in found]) for name in found[0]}
    stats = {name: stacked[name] for name in FIELDS} | {"lp": -stacked["lp"]}
    stats["tree_depth"] = np.ceil(np.log2(stacked["n_steps"] + 1)).astype(int)
    return Chains(stacked["psi"], stats)


def _run_chain(
    made: Program, density: Any, method: NUTS, bar: Any, stop: Event, state: Any
) -> dict[str, np.ndarray]:
    """Warm up, then draw; what was kept of the warm-up is thrown away."""
    blocks = []
    for wanted, is_kept in ((method.warmup, False), (method.draws, True)):
        for start in range(0, wanted, BLOCK):
            if stop.is_set():
                return {}
            steps = min(BLOCK, wanted - start)
            state, block = made.advance(state, steps, density)
            state.i.block_until_ready()
            bar.update(steps)
            if is_kept:
                blocks.append({name: np.asarray(part)[:steps] for name, part in block.items()})
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def sample(model: Model, method: NUTS, key: jax.Array) -> SampledDistribution:
    """Return the posterior of a model by NUTS; more rows are drawn with a key of their own."""
    return _distribution(model, method, key, run_chains(model, method, key))


def _distribution(
    model: Model, method: NUTS, key: jax.Array, chains: Chains
) -> SampledDistribution:
    """Return draws that were made with a key as the belief of a posterior."""
    size = f"{method.chains} chains of {method.draws} draws after {method.warmup} of warm-up"
    kept = (method.chains, method.warmup, method.draws, method.target_accept)
    settings = f"{kept} {method.depth} {np.asarray(jax.random.key_data(key)).tolist()}"

    def again(longer: Model) -> SampledDistribution:
        return sample(longer, method, jax.random.fold_in(key, len(longer.data)))

    return SampledDistribution(model, chains.psi, chains.stats, "NUTS", size, settings, again)
