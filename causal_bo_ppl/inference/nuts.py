"""Draws by NUTS: chains in parallel, one program for all, with the data as its argument.

A chain advances in blocks; between blocks the progress bar moves and an interrupt is noticed. New
data of the same shape compile nothing. Draws of the NumPyro program that an analyst made by another
sampler become the same kind of distribution.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.hmc import hmc
from numpyro.infer.util import potential_energy
from tqdm import tqdm

from causal_bo_ppl.errors import ArgumentError, CausalBOWarning, PosteriorError, listed
from causal_bo_ppl.inference.draws import SampledDistribution
from causal_bo_ppl.inference.potentials import find_starts, potential
from causal_bo_ppl.inputs import PROGRESS_DELAY, read_count
from causal_bo_ppl.mechanisms.base import Mechanisms, Model, Task
from causal_bo_ppl.mechanisms.numpyro_models import coordinates_at, parameter_shapes, program_of

# psi, (chains, draws, k), and statistics of each draw, {name: (chains, draws)}
Chains = tuple[np.ndarray, dict[str, np.ndarray]]
TRANSITIONS_PER_BLOCK = 250  # between two movements of the progress bar
SHORT_CHAIN = 500  # steps of warm-up, and draws, of a chain that is one of many fits
FIELDS = {  # statistics of a draw: ArviZ's names, and NumPyro's
    "lp": "potential_energy",
    "energy": "energy",
    "n_steps": "num_steps",
    "acceptance_rate": "accept_prob",
    "diverging": "diverging",
}
VALUES_IN_A_MINUTE = 5e8  # that a sampler visits, see `describe_effort`
FEWEST_DRAWS = 4  # of a chain, for which convergence is computed
POSITIVE = ("sd[", "trend[", "amplitude[", "lengthscale[")  # sites of positive parameters
SAME_POTENTIAL = 1e-6  # relative difference of potential energies that count as the same


@dataclass(frozen=True)
class NUTS:
    """Draws of the whole model by the No-U-Turn sampler, for any mechanisms.

    Parameters
    ----------
    chains:
        How many chains; they run in parallel.
    warmup, draws:
        Steps of each chain before draws are kept, and draws kept of each.
    target_accept:
        Acceptance that the step size aims at; nearer to 1 means smaller steps.
    depth:
        Most doublings of a trajectory.
    progress:
        Whether a progress bar is shown when sampling takes more than a few seconds.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.NUTS(chains=2, draws=500).target_accept
    0.8
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
            raise ArgumentError(
                f"target_accept must lie between 0.4 and 1, got {self.target_accept!r}"
            )

    def infer(self, task: Task, mechanisms: Mechanisms, key: Any) -> SampledDistribution:
        """Return the draws of all chains; key: a JAX key, which `fit` requires of `needs_key`."""
        return sample(mechanisms.bind(task), self, key)

    def resume(
        self,
        model: Model,
        psi: np.ndarray,
        stats: dict[str, np.ndarray],
        key: jax.Array,
        sizes: Sequence[int],
    ) -> SampledDistribution:
        """Return the distribution of draws that this method made before, as `infer` returned it.

        Parameters
        ----------
        model:
            With all observations.
        psi, stats:
            The draws of all chains, (chains, draws, k), and {name: (chains, draws)}.
        key:
            That of the first fit.
        sizes:
            How many observations there were at the first fit and after each update.
        """
        names = {*FIELDS, "tree_depth"}
        if psi.shape != (self.chains, self.draws, len(model.coordinates)) or set(stats) != names:
            raise PosteriorError(
                f"draws by {self} need the shape "
                f"({self.chains}, {self.draws}, {len(model.coordinates)}) and the statistics "
                f"{listed(sorted(names))}; got {psi.shape} and {listed(sorted(stats))}"
            )
        for size in sizes[1:]:
            key = jax.random.fold_in(key, size)
        return _distribution(model, self, key, (psi, stats))

    def shortened(self) -> "NUTS":
        """Return shorter chains without a progress bar, for many fits."""
        return replace(self, warmup=SHORT_CHAIN, draws=SHORT_CHAIN, progress=False)


class CompiledSampler(NamedTuple):
    """The sampler of models of one structure.

    begin(key, start, density) gives a state; advance(state, steps, density) a state and its draws.
    """

    begin: Callable[..., Any]
    advance: Callable[..., Any]


@lru_cache(maxsize=32)
def program(
    structure: Any, is_correlated: bool, warmup: int, target_accept: float, depth: int
) -> CompiledSampler:
    """Return the sampler for densities of one pytree structure, compiled when first used."""

    def make_potential(density: Any) -> Callable[[dict[str, jax.Array]], jax.Array]:
        return lambda sites: potential(density, sites["psi"])

    initialize, step = hmc(potential_fn_gen=make_potential, algo="NUTS")
    options = {"target_accept_prob": target_accept, "max_tree_depth": depth}
    options |= {"dense_mass": is_correlated}

    @jax.jit
    def begin(key: jax.Array, start: jax.Array, density: Any) -> Any:
        return initialize({"psi": start}, warmup, model_args=(density,), rng_key=key, **options)

    def record(state: Any) -> dict[str, jax.Array]:
        stats = {name: jnp.asarray(getattr(state, field)) for name, field in FIELDS.items()}
        return {"psi": state.z["psi"]} | stats

    @jax.jit
    def advance(state: Any, steps: jax.Array, density: Any) -> Any:
        def visit(index: jax.Array, carried: tuple[Any, Any]) -> tuple[Any, Any]:
            state, block = carried
            state = step(state, (density,))
            put = jax.tree.map(lambda part, new: part.at[index].set(new), block, record(state))
            return state, put

        def blank(value: jax.Array) -> jax.Array:
            return jnp.zeros((TRANSITIONS_PER_BLOCK, *value.shape), value.dtype)

        return jax.lax.fori_loop(0, steps, visit, (state, jax.tree.map(blank, record(state))))

    return CompiledSampler(begin, advance)


def run_chains(model: Model, method: NUTS, key: jax.Array) -> Chains:
    """Run all chains, as many at a time as there are cores, and return psi and statistics."""
    density = jax.tree.map(jnp.asarray, model.density)
    is_correlated = bool(getattr(model, "is_correlated", False))
    options = method.warmup, method.target_accept, method.depth
    sampler = program(jax.tree.structure(density), is_correlated, *options)
    for_starts, *keys = jax.random.split(key, 1 + method.chains)
    starts = find_starts(model, method.chains, for_starts)
    pairs = zip(keys, starts, strict=True)
    states = [sampler.begin(chain_key, jnp.asarray(start), density) for chain_key, start in pairs]
    sampler.advance(states[0], 0, density)  # no step: compiled once, before threads ask for it
    total = method.chains * (method.warmup + method.draws)
    shown = {"desc": "nuts", "unit": "step", "delay": PROGRESS_DELAY, "leave": False}
    stop = Event()
    with (
        tqdm(total=total, disable=not method.progress, **shown) as bar,
        ThreadPoolExecutor(min(method.chains, os.cpu_count() or 1)) as pool,
    ):
        work = partial(_run_chain, sampler, density, method, bar, stop)
        running = [pool.submit(work, state) for state in states]
        try:
            for future in wait(running, return_when=FIRST_EXCEPTION).done:
                future.result()
            chains = [future.result() for future in running]
        except BaseException:  # an interrupt, or a failed chain: the others stop after their block
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    stacked = {name: np.stack([chain[name] for chain in chains]) for name in chains[0]}
    stats = {name: stacked[name] for name in FIELDS} | {"lp": -stacked["lp"]}
    stats["tree_depth"] = np.ceil(np.log2(stacked["n_steps"] + 1)).astype(int)
    return stacked["psi"], stats


def _run_chain(
    sampler: CompiledSampler, density: Any, method: NUTS, bar: Any, stop: Event, state: Any
) -> dict[str, np.ndarray]:
    """Warm up, then draw; the draws of the warm-up are discarded."""
    blocks = []
    for wanted, is_kept in ((method.warmup, False), (method.draws, True)):
        for start in range(0, wanted, TRANSITIONS_PER_BLOCK):
            if stop.is_set():
                return {}
            steps = min(TRANSITIONS_PER_BLOCK, wanted - start)
            state, block = sampler.advance(state, steps, density)
            state.i.block_until_ready()
            bar.update(steps)
            if is_kept:
                blocks.append({name: np.asarray(part)[:steps] for name, part in block.items()})
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def sample(model: Model, method: NUTS, key: jax.Array) -> SampledDistribution:
    """Return the posterior of a model by NUTS; every update has a key of its own."""
    return _distribution(model, method, key, run_chains(model, method, key))


def _distribution(
    model: Model, method: NUTS, key: jax.Array, chains: Chains
) -> SampledDistribution:
    """Return the distribution of draws that were made with a key."""
    size = f"{method.chains} chains of {method.draws} draws after {method.warmup} of warm-up"
    kept = (method.chains, method.warmup, method.draws, method.target_accept)
    settings = f"{kept} {method.depth} {np.asarray(jax.random.key_data(key)).tolist()}"

    def again(longer: Model) -> SampledDistribution:
        return sample(longer, method, jax.random.fold_in(key, len(longer.data)))

    return SampledDistribution(model, *chains, "NUTS", size, settings, again)


@dataclass(frozen=True)
class OwnSampler:
    """The method of draws that an analyst's own sampler made; see `Posterior.from_numpyro`.

    changed: whether they are of another prior or likelihood than the program's.
    """

    changed: bool = False

    name = "numpyro"
    needs_key = False

    def infer(self, task: Task, mechanisms: Mechanisms, key: Any) -> SampledDistribution:
        """Raise PosteriorError: it draws nothing itself."""
        raise PosteriorError(
            "draws of your own sampler cannot be made again; give all of them to "
            "cb.Posterior.from_numpyro"
        )

    def resume(
        self,
        model: Model,
        psi: np.ndarray,
        stats: dict[str, np.ndarray],
        key: jax.Array | None,
        sizes: Sequence[int],
    ) -> SampledDistribution:
        """Return the distribution of draws psi (chains, n, k) with statistics of the sampler."""
        size = f"{psi.shape[0]} chains of {psi.shape[1]} draws of your own"
        settings = hashlib.sha256(np.ascontiguousarray(psi).tobytes()).hexdigest()

        def again(longer: Model) -> SampledDistribution:
            raise PosteriorError(
                "draws of your own sampler cannot be updated; sample cb.numpyro_model(problem, "
                "data) with all observations, or use cb.fit"
            )

        options = "your own sampler", size, settings, again, self.changed
        return SampledDistribution(model, psi, stats, *options)


class OwnDraws(NamedTuple):
    """Draws of a program: psi (chains, n, k), {name: (chains, n)}, and whether it was changed."""

    psi: np.ndarray
    stats: dict[str, np.ndarray]
    changed: bool


def read_own_draws(model: Model, given: Any, changed: bool) -> OwnDraws:
    """Return draws of the sites of the program of a model, from an MCMC object or by site.

    Raises ArgumentError for what is missing, of a wrong shape or not finite; warns of sites that
    the program does not have.
    """
    shapes, stats, program = parameter_shapes(model), {}, program_of(model)
    if callable(getattr(given, "get_extra_fields", None)):
        if given.last_state is None:
            raise ArgumentError("the MCMC object holds no draws; call its method `run` first")
        fields = given.get_extra_fields(group_by_chain=True)
        stats = {ours: np.asarray(fields[name]) for ours, name in FIELDS.items() if name in fields}
        stats |= {"lp": -stats["lp"]} if "lp" in stats else {}
        if "n_steps" in stats:
            stats["tree_depth"] = np.ceil(np.log2(stats["n_steps"] + 1)).astype(int)
        changed = changed or not _is_unchanged(program, given)
        given = given.get_samples(group_by_chain=True)
    if not isinstance(given, Mapping):
        raise ArgumentError(
            "draws are a numpyro.infer.MCMC object after `run`, or {site: array}; got "
            f"{type(given).__name__}"
        )
    if missing := [name for name in shapes if name not in given]:
        raise ArgumentError(
            f"the draws lack the sites {listed(missing)}; the program has {listed(shapes)}"
        )
    arrays = {name: np.asarray(given[name]) for name in shapes}
    leading = {name: _leading(name, arrays[name], shape) for name, shape in shapes.items()}
    first = next(iter(shapes))
    for name, sizes in leading.items():
        if sizes != leading[first]:
            raise ArgumentError(
                f"the draws of {name!r} have the shape {arrays[name].shape} and those of {first!r} "
                f"{arrays[first].shape}; give each site as many draws"
            )
        if not np.isfinite(arrays[name]).all():
            raise ArgumentError(f"the draws of {name!r} are not all finite")
    chains, count = leading[first] if len(leading[first]) == 2 else (1, *leading[first])
    if count < FEWEST_DRAWS:
        raise ArgumentError(f"a chain needs at least {FEWEST_DRAWS} draws, got {count}")
    known = {*program.parameters, *program.nodes, *(f"e[{name}]" for name in program.nodes)}
    if others := [str(name) for name in given if str(name) not in known]:
        warnings.warn(
            f"the draws hold {listed(others)}, which the program does not have; they are ignored",
            CausalBOWarning,
            stacklevel=4,
        )
    flat = {name: each.reshape(chains * count, *shapes[name]) for name, each in arrays.items()}
    psi = coordinates_at(model, flat)
    if not np.isfinite(psi).all():
        wrong = [
            name for name in shapes if name.startswith(POSITIVE) and not (flat[name] > 0).all()
        ]
        raise ArgumentError(
            f"some draws of {listed(wrong or shapes)} are not possible: they lie outside the "
            "support of the prior"
        )
    return OwnDraws(psi.reshape(chains, count, -1), stats, changed)


def _leading(name: str, draws: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return (n,) or (chains, n) of the draws of a site with this shape."""
    sizes = draws.shape[: draws.ndim - len(shape)]
    is_fit = draws.shape[len(sizes) :] == shape and len(sizes) in (1, 2)
    if not is_fit or draws.dtype.kind not in "iuf":
        inner = "".join(f", {size}" for size in shape)
        raise ArgumentError(
            f"the draws of {name!r} need the shape (n{inner}) or (chains, n{inner}), got "
            f"{draws.dtype} of shape {draws.shape}"
        )
    return sizes


def _is_unchanged(program: Any, mcmc: Any) -> bool:
    """Return whether the last state of a sampler has the density of a program."""
    state: Any = mcmc.last_state
    values: Any = getattr(state, "z", None)
    potential: Any = getattr(state, "potential_energy", None)
    is_known = isinstance(values, Mapping) and potential is not None
    if not is_known or set(values) != set(program.parameters):
        return False
    if np.ndim(potential):
        values, potential = jax.tree.map(lambda part: part[0], (dict(values), potential))
    ours = float(potential_energy(program, (), {}, dict(values)))
    return bool(abs(ours - float(potential)) <= SAME_POTENTIAL * max(1.0, abs(ours)))


def describe_effort(method: Any, observations: int, variables: int) -> str:
    """Return that a fit by some method is expected to take minutes; "" where it is not.

    What is counted are the values that a sampler visits: steps of all chains, times observations,
    times variables. On two processors about 10 million are visited in a second.
    """
    chains, *lengths = (getattr(method, name, 0) for name in ("chains", "warmup", "draws"))
    steps = chains * sum(lengths)
    if steps * observations * variables < VALUES_IN_A_MINUTE:
        return ""
    return (
        f"{method.name} makes {steps:,} steps through {observations:,} observations of "
        f"{variables} variables, which is expected to take minutes"
    )
