"""What is a unit of a comparison, what does it compute, and where is its result stored?

A unit is one method on one system with one seed. It holds everything that its numbers depend on, so
that it may run in any process, on any machine and in any order. Units with the same seed share
observations and noise: methods are compared in pairs.

The result of a unit is a netCDF file in the folder `units`, named by what the unit computes. A file
is written whole or not at all and ends with a checksum. A unit whose file cannot be read, or was
changed, is computed again.
"""

import functools
import hashlib
import io
import json
import os
import time
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import xarray as xr

from causal_bo_ppl import models
from causal_bo_ppl.errors import ArgumentError, CausalBOWarning, StoreError
from causal_bo_ppl.inference.datatree import checksum_line, replace_file, require_checksum
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.linalg import sign_of
from causal_bo_ppl.optimization import Settings, Study, optimize
from causal_bo_ppl.problem.designs import fill_points
from causal_bo_ppl.serialization import find_versions
from causal_bo_ppl.systems import CausalSystem

UNIT_FORMAT = 2  # raise it when units compute something else than before
PROBED_OBSERVATIONS = 16  # by which a user-defined system is recognized
OPTIMUM_TOLERANCE = 1e-6  # of its size, by which no effect may be better than the optimum
ADDITIONAL_KEY = 7_919  # what the key of additional observations is folded with
TRACE_COLUMNS = {
    "cost": "total_cost",
    "outcome": "outcome",
    "effect": "effect",
    "recommended_effect": "best_effect",
}
CODE_SETTINGS = ("mechanisms", "acquisition", "surrogate", "inference", "prior")
ENGINE: Literal["h5netcdf"] = "h5netcdf"
PACKAGE = "causal_bo_ppl"
CODE_TYPES = (types.FunctionType, property, staticmethod, classmethod)
PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes)


@dataclass(frozen=True)
class Loaded:
    """A system by the name and the options that `cb.models.load` takes."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> CausalSystem:
        """Return the system; the same object for the same options, so that programs are reused."""
        return _load(self.name, json.dumps(dict(self.options), sort_keys=True))

    def describe(self) -> dict[str, object]:
        """Return what the system depends on."""
        return {"name": self.name, **self.options}


@functools.lru_cache(maxsize=8)
def _load(name: str, options: str) -> CausalSystem:
    return models.load(name, **json.loads(options))


@dataclass(frozen=True, eq=False)
class UserSystem:
    """A user-defined system, which is sent with the unit."""

    system: CausalSystem
    digest: str

    def load(self) -> CausalSystem:
        """Return the system; one object in a process, so that programs are reused."""
        return _USER_SYSTEMS.setdefault(self.digest, self.system)

    def describe(self) -> dict[str, object]:
        """Return what the system is recognized by."""
        return {"digest": self.digest}


_USER_SYSTEMS: dict[str, CausalSystem] = {}


def refer_to(system: CausalSystem) -> UserSystem:
    """Return a user-defined system as units refer to it.

    It is recognized by its problem, by observations with and without interventions, and by its
    exact effects.
    """
    points = fill_points(system.problem, system.problem.sets, PROBED_OBSERVATIONS)
    parts = (
        system.observe(PROBED_OBSERVATIONS, 0).values,
        system.experiment(points, 0).values,
        system.effect(points)[:, None],
    )
    texts = [system.name, system.problem.fingerprint, str(system.is_affine)]
    texts += [_digest_rounded(np.asarray(part)) for part in parts]
    return UserSystem(system, _digest("\n".join(texts)))


def _digest_rounded(values: np.ndarray) -> str:
    """Return a hash of numbers, rounded by the size of their columns, so that processors agree."""
    sizes = np.abs(values).max(axis=0, initial=0.0)
    shares = np.round(values / np.where(sizes > 0, sizes, 1.0), 6) + 0.0
    return " ".join(f"{size:.5e}" for size in sizes) + hashlib.sha256(shares.tobytes()).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Unit:
    """One method on one system with one seed.

    case, method: how tables name the system and the method; no number depends on these names.
    """

    case: str
    method: str
    seed: int
    system: Loaded | UserSystem

    def describe(self) -> dict[str, object]:
        """Return everything that the numbers depend on: all but the names in tables."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["case"], values["method"]
        return {"kind": type(self).__name__} | {
            name: value.describe() if name == "system" else value for name, value in values.items()
        }

    @functools.cached_property
    def identity(self) -> str:
        """A hash of what is computed: the same for the same numbers."""
        version = dict(find_versions())["causal_bo_ppl"]
        stamp = {"format": UNIT_FORMAT, "version": version, **self.describe()}
        return _digest(json.dumps(stamp, sort_keys=True, default=str))[:40]

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
        if not len(run):
            return _trace_without_experiment(system, run.best.intervention, run.stopped)
        columns = {name: run.trace[column].to_numpy() for name, column in TRACE_COLUMNS.items()}
        columns |= {"recommended": run.regret(), "tried": run.regret("tried")}
        columns["set"] = run.trace["set"].to_numpy().astype(str)
        _warn_of_better(system, columns["effect"])
        return _as_trace(columns, system, run.stopped)


@dataclass(frozen=True, eq=False)
class NoExperiment(Optimization):
    """The recommendation by the posterior mean, without any experiment.

    additional: how many more observations are made first, instead of experiments.
    """

    additional: int = 0

    def measure(self) -> xr.Dataset:
        """Fit the observations, and recommend the best intervention by the posterior mean."""
        system = self.system.load()
        key = jax.random.split(as_key(self.seed))[0]  # that of `optimize`: the same observations
        data = system.observe(self.settings.observations, key)
        if self.additional:
            more = system.observe(self.additional, jax.random.fold_in(key, ADDITIONAL_KEY))
            data = data.join(more)
        best = Study(system.problem, data, self.settings, key=key).best
        return _trace_without_experiment(system, best.intervention, "no experiment")


def _trace_without_experiment(
    system: CausalSystem, best: dict[str, float], stopped: str
) -> xr.Dataset:
    """Return the trace of a method that recommends without any experiment."""
    effect = system.effect([best])
    _warn_of_better(system, effect)
    gap = sign_of(system.problem.objective) * (system.optimum.value - effect)
    columns = {name: np.full(1, np.nan) for name in ("tried", "outcome", "effect")} | {
        "cost": np.zeros(1),
        "recommended": np.maximum(gap, 0.0),
        "recommended_effect": effect,
        "set": np.array([""]),
    }
    return _as_trace(columns, system, stopped)


def _warn_of_better(system: CausalSystem, effects: np.ndarray) -> None:
    """Warn where an effect is better than what is taken for the optimum: gaps are too small."""
    best = system.optimum.value
    lead = (sign_of(system.problem.objective) * (effects - best)).max()
    if lead > OPTIMUM_TOLERANCE * max(abs(best), 1.0):
        warnings.warn(
            f"an effect of {system.name} is better than its optimum {best:.9g} by {lead:.3g}; that "
            f"optimum was found by {system.optimum.how}, and gaps to it are too small",
            CausalBOWarning,
            stacklevel=2,
        )


def _as_trace(columns: dict[str, np.ndarray], system: CausalSystem, stopped: str) -> xr.Dataset:
    attributes = {"optimum": system.optimum.value, "objective": system.problem.objective}
    return xr.Dataset(
        {name: ("experiment", values) for name, values in columns.items()},
        coords={"experiment": np.arange(1, len(columns["cost"]) + 1)},
        attrs=attributes | {"stopped": stopped},
    )


def run_unit(unit: Unit) -> xr.Dataset:
    """Compute a unit: its numbers, its duration, its warnings, and the code that computed it."""
    begun, worked = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = unit.measure()
    seconds, processor = time.perf_counter() - begun, time.process_time() - worked
    return result.assign_attrs(
        {
            "identity": unit.identity,
            "case": unit.case,
            "method": unit.method,
            "seed": unit.seed,
            "seconds": seconds,
            "processor_seconds": processor,
            "warnings": "\n".join(
                sorted({f"{each.category.__name__}: {each.message}" for each in caught})
            ),
            "versions": ", ".join(f"{name} {version}" for name, version in find_versions()),
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
        raise ArgumentError(f"seeds are a number or a list of seeds; got {seeds!r}") from None
    if not result or len(set(result)) < len(result):
        raise ArgumentError(f"seeds must be at least one and all different; got {list(result)}")
    return result


class UnitStore:
    """The finished units of a folder; without a folder, those of this process."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else make_folder(folder, "units")
        self._results: dict[str, xr.Dataset] = {}

    def find(self, unit: Unit) -> xr.Dataset | None:
        """Return the result of a unit, or None where it has not been computed."""
        path, result = self._path(unit), self._results.get(unit.identity)
        if result is None and path is not None and path.is_file():
            result = _read(path, unit)
        if result is None:
            return None
        self._results[unit.identity] = result
        # the same numbers may be wanted under other names
        return result.assign_attrs(case=unit.case, method=unit.method)

    def missing(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units that have not been computed, each once."""
        wanted = {unit.identity: unit for unit in units}
        return [unit for unit in wanted.values() if self.find(unit) is None]

    def keep(self, unit: Unit, result: xr.Dataset) -> None:
        """Keep the result of a unit."""
        path = self._path(unit)
        if path is not None:
            data = encode(result)
            replace_file(path, data, checksum_line(data))
        self._results[unit.identity] = result

    def _path(self, unit: Unit) -> Path | None:
        return None if self.folder is None else self.folder / "units" / f"{unit.identity}.nc"


def make_folder(folder: str | Path, inside: str = "") -> Path:
    """Return a folder, made where it does not exist, together with one inside of it."""
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise StoreError(f"a folder needs a path, got {folder!r}")
    path = Path(os.path.realpath(folder))
    try:
        (path / inside).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the folder {str(path / inside)!r}: {error.strerror}; name one that can "
            "be written"
        ) from None
    return path


def _read(path: Path, unit: Unit) -> xr.Dataset | None:
    """Return what a file holds; None, with a warning, where it is not what the unit computes."""
    try:
        data = path.read_bytes()
        require_checksum(data)
        with xr.open_dataset(io.BytesIO(data), engine=ENGINE) as opened:
            result = opened.load()
        if result.attrs.get("identity") == unit.identity:
            return result
        why = "it holds another unit"
    except Exception as error:  # a damaged file can fail anywhere in three libraries
        why = str(error)
    warnings.warn(
        f"{str(path)!r} cannot be used: {why}; its unit is computed again",
        CausalBOWarning,
        stacklevel=4,
    )
    return None


def encode(dataset: xr.Dataset) -> bytes:
    """Return a Dataset as the bytes of a netCDF file."""
    plain = dataset.drop_encoding()
    plain.attrs = {
        name: value
        if isinstance(value, str | int | float | np.number)
        else json.dumps(value, default=str)
        for name, value in plain.attrs.items()
    }
    with plain.to_netcdf(engine=ENGINE) as view:  # Python 3.13 complains of an open view
        return bytes(view)


def describe_settings(settings: Settings) -> dict[str, object]:
    """Return the settings as text and numbers, with a hash of user-defined code among them."""
    code = digest_code([getattr(settings, name) for name in CODE_SETTINGS])
    described: dict[str, object] = json.loads(settings.to_json())
    return described | {"code": code}


@functools.cache
def digest_package() -> str:
    """Return a hash of the source files of this package, as they are when it is first asked for."""
    import causal_bo_ppl

    digest = hashlib.sha256()
    for module in (causal_bo_ppl, models):
        folder = Path(str(module.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()[:12]


def digest_code(value: object) -> str:
    """Return a hash of what a value computes, the same in every process.

    A name is not enough: a function may have been changed since. A pickle is too much: it holds
    line numbers, names of files and random numbers, which change although the code does not. So a
    user-defined function is described by its instructions, constants, defaults and closure, with
    the functions and constants of its own module that it uses, and an object by its class and its
    attributes. Functions and classes of this package count by their names.
    """
    return _digest("\n".join(_parts(value, frozenset())))


def _parts(value: Any, outer: frozenset[int]) -> Iterator[str]:
    """Yield texts that describe a value; outer: the values that contain it, against cycles."""
    if isinstance(value, PLAIN_TYPES):
        yield f"{type(value).__name__} {value!r}"
    elif id(value) in outer:
        yield "again"
    elif isinstance(value, type | types.FunctionType) and _is_ours(value):
        yield f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, np.ndarray) or (
        hasattr(value, "__array__") and not isinstance(value, type)
    ):
        array = np.asarray(value)
        yield f"array {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    else:
        contained = _content(value)
        yield f"{type(value).__name__} of {len(contained)}"
        for part in contained:
            yield from _parts(part, outer | {id(value)})


def _is_ours(value: Any) -> bool:
    return str(value.__module__).split(".")[0] in (PACKAGE, "builtins")


def _content(value: Any) -> list[Any]:
    """Return what a value consists of, in an order that is the same in every process."""
    if isinstance(value, Mapping):
        return [part for name in sorted(value, key=repr) for part in (repr(name), value[name])]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, types.CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars)
        return [value.co_code, *map(str, names), value.co_consts]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells, _uses(value)]
    if isinstance(value, type):
        members = {
            name: getattr(member, "fget", None) or getattr(member, "__func__", member)
            for name, member in vars(value).items()
            if isinstance(member, CODE_TYPES)
        }
        return [value.__qualname__, members]
    if is_dataclass(value):  # a cached property is no part of it
        return [type(value), {each.name: getattr(value, each.name) for each in fields(value)}]
    state, kind = getattr(value, "__dict__", {}), type(value)
    kept = {
        name for name in state if isinstance(getattr(kind, name, None), functools.cached_property)
    }
    return [kind, {name: part for name, part in state.items() if name not in kept}]


def _uses(function: types.FunctionType) -> dict[str, object]:
    """Return the constants and functions of its own module that a function uses, by name."""
    used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {
        name: value
        for name, value in used.items()
        if isinstance(value, (*PLAIN_TYPES, tuple))
        or (isinstance(value, types.FunctionType) and value.__module__ == function.__module__)
    }
