"""What is one piece of a comparison, and what does it compute?

A unit is one method on one system with one seed. It holds everything that its numbers depend on, so
that it may run in any process, on any machine and in any order. Units with the same seed share rows
and noise: methods are compared in pairs.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np
import xarray as xr

from causal_bo_ppl import models
from causal_bo_ppl.errors import CausalBOWarning, ModelError
from causal_bo_ppl.experiments.own_code import digest_code, digest_package, holds_own_code
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.optimization import Settings, Study, optimize
from causal_bo_ppl.optimization.analytic import sign_of
from causal_bo_ppl.optimization.initial_state import find_versions
from causal_bo_ppl.problem.interventions import fill_points
from causal_bo_ppl.systems import CausalSystem

FORMAT = 1  # raise it when units compute something else than before
PROBE = 16  # rows by which a system of one's own is recognized
BEYOND = 1e-6  # of its size, by which no effect may be better than the optimum
MORE_ROWS = 7_919  # what the key of additional rows is folded with


@dataclass(frozen=True)
class Loaded:
    """A system by the name and the options that `cb.models.load` takes."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> CausalSystem:
        """Return the system; the same object for the same words, so that programs are reused."""
        return _load(self.name, json.dumps(dict(self.options), sort_keys=True))

    def describe(self) -> dict[str, object]:
        """Return what the system depends on."""
        return {"name": self.name, **self.options}


@lru_cache(maxsize=8)
def _load(name: str, options: str) -> CausalSystem:
    return models.load(name, **json.loads(options))


@dataclass(frozen=True, eq=False)
class Given:
    """A system of one's own, which travels with the unit."""

    system: CausalSystem
    digest: str

    def load(self) -> CausalSystem:
        """Return the system; one object in a process, so that programs are reused."""
        return _GIVEN.setdefault(self.digest, self.system)

    def describe(self) -> dict[str, object]:
        """Return what the system is recognized by."""
        return {"digest": self.digest}


_GIVEN: dict[str, CausalSystem] = {}


def give(system: CausalSystem) -> Given:
    """Wrap a system of one's own.

    It is recognized by its problem, by rows that it makes with and without interventions, and by
    its exact effects.
    """
    points = fill_points(system.problem, system.problem.sets, PROBE)
    parts = (
        system.observe(PROBE, 0).values,
        system.experiment(points, 0).values,
        system.effect(points)[:, None],
    )
    words = [system.name, system.problem.fingerprint, str(system.is_affine)]
    words += [_rounded(np.asarray(part)) for part in parts]
    return Given(system, _digest_bytes("\n".join(words).encode()))


def _rounded(values: np.ndarray) -> str:
    """Return a hash of numbers, rounded by the size of their columns, so that processors agree."""
    sizes = np.abs(values).max(axis=0, initial=0.0)
    shares = np.round(values / np.where(sizes > 0, sizes, 1.0), 6) + 0.0
    return " ".join(f"{size:.5e}" for size in sizes) + _digest_bytes(shares.tobytes())


@dataclass(frozen=True, eq=False)
class Unit:
    """One method on one system with one seed.

    case, method: how tables call the system and the method; nothing else depends on these words.
    """

    case: str
    method: str
    seed: int
    system: Loaded | Given

    def describe(self) -> dict[str, object]:
        """Return everything that the numbers depend on."""
        return {"kind": type(self).__name__, "seed": self.seed, "system": self.system.describe()}

    @cached_property
    def identity(self) -> str:
        """A name for what is computed: the same for the same numbers."""
        version = dict(find_versions())["causal_bo_ppl"]
        stamp = {"format": FORMAT, "version": version, **self.describe()}
        text = json.dumps(stamp, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def measure(self) -> xr.Dataset:
        """Compute the result."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Optimization(Unit):
    """A run of `optimize`: the gaps to the true optimum after every experiment."""

    settings: Settings

    def describe(self) -> dict[str, object]:
        """Return everything that the numbers depend on."""
        return super().describe() | {"settings": describe_settings(self.settings)}

    def measure(self) -> xr.Dataset:
        """Run the optimization."""
        system = self.system.load()
        run = optimize(system, settings=self.settings, key=self.seed, progress=False)
        if not run.steps:
            return _untried(system, run.best.intervention, run.stopped)
        trace = run.trace
        _warn_beyond(system, trace["effect"].to_numpy())
        columns = {
            "cost": trace["total_cost"].to_numpy(),
            "recommended": run.regret(),
            "tried": run.regret("tried"),
            "outcome": trace["outcome"].to_numpy(),
            "effect": trace["effect"].to_numpy(),
            "recommended_effect": trace["best_effect"].to_numpy(),
            "set": trace["set"].to_numpy().astype(str),
        }
        return _as_trace(columns, system, run.stopped)


@dataclass(frozen=True, eq=False)
class NoExperiment(Unit):
    """What the posterior mean recommends without any experiment.

    rows: how many more rows are observed first, instead of experiments.
    """

    settings: Settings
    rows: int = 0

    def describe(self) -> dict[str, object]:
        """Return everything that the numbers depend on."""
        own = {"settings": describe_settings(self.settings), "rows": self.rows}
        return super().describe() | own

    def measure(self) -> xr.Dataset:
        """Fit the rows, and take the best intervention by the posterior mean."""
        system = self.system.load()
        for_rows = jax.random.split(as_key(self.seed))[0]  # as `optimize` has it: the same rows
        data = system.observe(self.settings.observations, for_rows)
        if self.rows:
            data = data.join(system.observe(self.rows, jax.random.fold_in(for_rows, MORE_ROWS)))
        best = Study(system.problem, data, self.settings, key=for_rows).best
        return _untried(system, best.intervention, "no experiment")


def _untried(system: CausalSystem, best: dict[str, float], stopped: str) -> xr.Dataset:
    """Return the trace of a method that recommends without having tried anything."""
    effect = system.effect([best])
    _warn_beyond(system, effect)
    gap = sign_of(system.problem.objective) * (system.optimum.value - effect)
    nothing = {name: np.full(1, np.nan) for name in ("tried", "outcome", "effect")}
    columns = {
        "cost": np.zeros(1),
        "recommended": np.maximum(gap, 0.0),
        "recommended_effect": effect,
        "set": np.array([""]),
    }
    return _as_trace(columns | nothing, system, stopped)


def _warn_beyond(system: CausalSystem, effects: np.ndarray) -> None:
    """Say where an effect is better than what was taken for the optimum: gaps are too small."""
    best = system.optimum.value
    lead = sign_of(system.problem.objective) * (effects - best)
    if lead.max() > BEYOND * max(abs(best), 1.0):
        warnings.warn(
            f"an effect of {system.name} is better than its optimum {best:.9g} by "
            f"{lead.max():.3g}; that optimum was found by {system.optimum.how}, and gaps to it "
            "are too small",
            CausalBOWarning,
            stacklevel=2,
        )


def _as_trace(columns: dict[str, np.ndarray], system: CausalSystem, stopped: str) -> xr.Dataset:
    return xr.Dataset(
        {name: ("experiment", values) for name, values in columns.items()},
        coords={"experiment": np.arange(1, len(columns["cost"]) + 1)},
        attrs={"optimum": system.optimum.value, "objective": system.problem.objective}
        | {"stopped": stopped},
    )


def describe_settings(settings: Settings) -> dict[str, object]:
    """Return the settings as texts and numbers; code of one's own is told apart by its content."""
    written: dict[str, object] = json.loads(settings.to_json())
    for name in ("mechanisms", "acquisition", "surrogate", "inference", "prior"):
        record = getattr(settings, name)
        if holds_own_code(record):
            written[name] = [written[name], digest_code(record)]
    return written


def _digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run_unit(unit: Unit) -> xr.Dataset:
    """Compute a unit: its numbers, how long it took, what it warned of, and by which code."""
    begun, worked = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = unit.measure()
    seconds, processor = time.perf_counter() - begun, time.process_time() - worked
    said = sorted({f"{each.category.__name__}: {each.message}" for each in caught})
    versions = ", ".join(f"{name} {version}" for name, version in find_versions())
    return result.assign_attrs(
        {
            "identity": unit.identity,
            "case": unit.case,
            "method": unit.method,
            "seed": unit.seed,
            "seconds": seconds,
            "processor_seconds": processor,
            "warnings": "\n".join(said),
            "versions": versions,
            "code": digest_package(),
            "unit": json.dumps(unit.describe(), sort_keys=True, default=str),
        }
    )


def read_seeds(seeds: object) -> tuple[int, ...]:
    """Return seeds, given as their number or one by one."""
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        return tuple(range(read_count("seeds", seeds, 1)))
    try:
        result = tuple(read_count("a seed", seed, 0) for seed in seeds)  # type: ignore[attr-defined]
    except TypeError:
        raise ModelError(f"seeds are a number of seeds or a list of them; got {seeds!r}") from None
    if not result or len(set(result)) < len(result):
        raise ModelError(f"seeds must be at least one and all different; got {list(result)}")
    return result
