"""How do several methods compare on several systems? Units are planned, computed and compared.

Every system, method and seed is a unit. Methods are `cb.Settings`, or the keywords of one; two more
show the value of experiments: "no experiment" recommends by the posterior mean of the observations,
and "more observations" does so after as many more observations as there were experiments.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from causal_bo_ppl import models
from causal_bo_ppl.errors import ArgumentError, SettingsError, listed, unknown
from causal_bo_ppl.experiments.comparison import Comparison, require_results
from causal_bo_ppl.experiments.execution import UnitRunner
from causal_bo_ppl.experiments.units import (
    Loaded,
    NoExperiment,
    Optimization,
    Unit,
    UserSystem,
    read_seeds,
    refer_to,
)
from causal_bo_ppl.optimization import Settings
from causal_bo_ppl.optimization.settings import PRESETS
from causal_bo_ppl.systems import CausalSystem

OPTIMIZE, NO_EXPERIMENT, MORE = "optimize", "no experiment", "more observations"
SETTING_NAMES = tuple(each.name for each in fields(Settings))
LEARNING_SETTINGS = "mechanisms inference prior accept noise observations".split()
DEFAULT_ROUNDS = 10  # of a sweep that gives neither rounds nor a budget
System = CausalSystem | str | Loaded
SystemReference = Loaded | UserSystem


@dataclass(frozen=True, eq=False)
class Case:
    """A system with the settings that belong to it.

    Parameters
    ----------
    system:
        A `CausalSystem`, such as `cb.models.gaussian_network(path, target=...)`, or the name of one
        that `cb.models.load` knows.
    settings:
        Keywords of `cb.Settings` that hold for every method on this system.
    by_method:
        {method: keywords} that hold for one method only.
    methods:
        The methods that are run on this system; None for all.
    """

    system: System
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    methods: tuple[str, ...] | None = None


class SweepMethod(NamedTuple):
    """A method by its name in tables, with the keywords of its settings.

    kind: "optimize", "no experiment" or "more observations". base, group: the name without that of
    the settings it is combined with, and the name of the latter.
    """

    name: str
    keywords: dict[str, Any]
    kind: str = OPTIMIZE
    base: str = ""
    group: str = ""


def sweep(
    systems: System | Case | Iterable[System] | Mapping[str, System | Case],
    methods: Iterable[str] | Mapping[str, Any] = ("gc-cbo", "cbo", "bo"),
    *,
    settings: Mapping[str, Any] | None = None,
    seeds: int | Iterable[int] = 20,
    folder: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Comparison:
    """Run methods on systems with known truth, over many seeds, and compare their gaps.

    Units with the same seed share observations and noise. What a unit computes does not depend on
    where or in which order it runs.

    Parameters
    ----------
    systems:
        A system, several, or {label: system}. A system is a `CausalSystem`, the name of one for
        `cb.models.load`, or a `cb.experiments.Case`, which has further settings.
    methods:
        Names of `optimize`'s methods, or {label: keywords of `cb.Settings`}. "no experiment" and
        "more observations" recommend by the posterior mean of the observations, the second after
        as many more observations as the first method ran experiments.
    settings:
        Keywords of `cb.Settings` for all methods, such as {"budget": 40, "mechanisms": "gp"}; or
        {label: keywords} of several, each of which is combined with every method.
    seeds:
        How many, or which.
    folder:
        Where every unit is stored as soon as it is finished. A sweep with the same folder resumes
        one that was interrupted, and repeats nothing. By default results are kept in memory only.
    workers:
        The number of Dask workers, which are processes of this machine; by default one for every
        core.
    scheduler:
        The address of a running Dask cluster, which computes instead.
    progress:
        Whether a progress bar is shown when it takes more than a few seconds.

    Returns
    -------
    Comparison
        `table()`, `curves()` and `differences(against)` over seeds, and every trace in `traces`.

    Raises
    ------
    ArgumentError
        If a system, a method or another argument is unknown; before anything is computed.
    SettingsError
        If a setting is unknown or contradicts another; before anything is computed.
    DataError
        If no unit at all could be computed. Units that failed are in `failed` otherwise.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> comparison = cb.experiments.sweep(
    ...     "chain", ["gc-cbo", "no experiment"], settings={"rounds": 3}, seeds=2, workers=1
    ... )
    >>> comparison.table()[["system", "method", "seeds", "recommended_mean"]]
      system         method  seeds  recommended_mean
    0  chain         gc-cbo      2               0.0
    1  chain  no experiment      2               0.0
    """
    cases, named = read_cases(systems), read_methods(methods)
    require_known(cases, named)
    chosen, read = cross(named, settings), read_seeds(seeds)
    with UnitRunner(folder, workers=workers, scheduler=scheduler, progress=progress) as runner:
        return compare(cases, chosen, read, runner)


def compare(
    cases: Mapping[str, Case],
    methods: Sequence[SweepMethod],
    seeds: Sequence[int],
    runner: UnitRunner,
) -> Comparison:
    """Plan the units, compute them, and join their results."""
    systems = {label: _refer(case) for label, case in cases.items()}
    plan = [
        (label, method)
        for label, case in cases.items()
        for method in methods
        if case.methods is None or method.base in case.methods
    ]
    if not plan:
        raise ArgumentError("no case has one of the methods; see `methods` of the cases")
    units = [
        _unit(label, cases[label], systems[label], method, seed)
        for label, method in plan
        if method.kind != MORE
        for seed in seeds
    ]
    parts = [runner.compute(units)]
    parts.append(runner.compute(_observe_more(plan, cases, systems, parts[0].results)))
    order = {(label, method.name): index for index, (label, method) in enumerate(plan)}
    results = sorted(
        (result for part in parts for result in part.results),
        key=lambda result: order[result.attrs["case"], result.attrs["method"]],
    )
    failed = pd.concat([part.failed for part in parts], ignore_index=True)
    require_results(results, failed)
    wall = sum(part.wall for part in parts)
    return Comparison(tuple(results), failed, wall, max(part.workers for part in parts))


def _refer(case: Case) -> SystemReference:
    system = case.system
    if isinstance(system, CausalSystem):
        return refer_to(system)
    return Loaded(system) if isinstance(system, str) else system


def _unit(label: str, case: Case, system: SystemReference, method: SweepMethod, seed: int) -> Unit:
    made = _settings(case, method)
    if method.kind == NO_EXPERIMENT:
        return NoExperiment(label, method.name, seed, system, _for_learning(made))
    return Optimization(label, method.name, seed, system, made)


def _settings(case: Case, method: SweepMethod) -> Settings:
    """Return the settings of a method on a system: its own, then those of the case."""
    own = case.by_method.get(method.base, {})
    return make_settings(method.name, {**method.keywords, **case.settings, **own})


def _for_learning(settings: Settings) -> Settings:
    """Return the settings that matter without experiments: how a model is fitted."""
    return Settings(**{name: getattr(settings, name) for name in LEARNING_SETTINGS})


def _observe_more(
    plan: Sequence[tuple[str, SweepMethod]],
    cases: Mapping[str, Case],
    systems: Mapping[str, SystemReference],
    results: Sequence[xr.Dataset],
) -> list[Unit]:
    """Return the units with as many more observations as the first method ran experiments."""
    first: dict[tuple[str, str], str] = {}
    for label, method in plan:
        if method.kind == OPTIMIZE:
            first.setdefault((label, method.group), method.name)
    return [
        NoExperiment(
            label,
            method.name,
            int(result.attrs["seed"]),
            systems[label],
            _for_learning(_settings(cases[label], method)),
            int(result["tried"].notnull().sum()),
        )
        for label, method in plan
        if method.kind == MORE
        for result in results
        if result.attrs["case"] == label
        and result.attrs["method"] == first.get((label, method.group))
    ]


def read_cases(systems: Any) -> dict[str, Case]:
    """Return systems with their labels; each is loaded once, so that mistakes are found early."""
    if isinstance(systems, CausalSystem | str | Loaded | Case):
        systems = [systems]
    if not isinstance(systems, Iterable):
        raise ArgumentError(
            "sweep needs a CausalSystem, the name of one, several, or {label: system}; got "
            f"{type(systems).__name__}"
        )
    named = systems.items() if isinstance(systems, Mapping) else ((_label(s), s) for s in systems)
    cases: dict[str, Case] = {}
    for label, given in named:
        case = given if isinstance(given, Case) else Case(given)
        if not isinstance(case.system, CausalSystem | str | Loaded):
            raise ArgumentError(
                f"the system {label!r} must be a CausalSystem, the name of one or a Case; got "
                f"{type(case.system).__name__}"
            )
        for name in ("settings", "by_method"):
            if not isinstance(getattr(case, name), Mapping):
                raise ArgumentError(
                    f"{name} of the system {label!r} must be a dictionary of keywords"
                )
        if str(label) in cases:
            raise ArgumentError(f"two systems are called {label!r}; give {{label: system}}")
        if isinstance(case.system, str):
            models.load(case.system)
        cases[str(label)] = case
    if not cases:
        raise ArgumentError("there is no system to compare methods on; give at least one")
    return cases


def _label(given: object) -> str:
    system = given.system if isinstance(given, Case) else given
    return system if isinstance(system, str) else str(getattr(system, "name", system))


def read_methods(methods: Any) -> list[SweepMethod]:
    """Return methods by name, with the keywords of their settings."""
    if isinstance(methods, str):
        methods = [methods]
    if isinstance(methods, Mapping):
        read = [_read_method(str(name), given) for name, given in methods.items()]
    elif isinstance(methods, Iterable):
        read = [_read_method(name, {}) for name in methods]
    else:
        raise ArgumentError(
            f"methods are names, or {{label: keywords of cb.Settings}}; got {methods!r}"
        )
    names = [method.name for method in read]
    if not read or len(set(names)) < len(names):
        raise ArgumentError(f"methods must be at least one and all different; got {names}")
    return read


def _read_method(name: object, given: object) -> SweepMethod:
    if isinstance(given, Settings):
        usual = Settings()
        own = {key: getattr(given, key) for key in SETTING_NAMES}
        given = {key: value for key, value in own.items() if value != getattr(usual, key)}
        given["preset"] = "gc-cbo"
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"the method {name!r} needs keywords of cb.Settings as a dictionary, or cb.Settings; "
            f"got {given!r}"
        )
    keywords, label = dict(given), str(name)
    if label in (NO_EXPERIMENT, MORE):
        return SweepMethod(label, keywords, label, label)
    if not keywords and label not in PRESETS:
        raise ArgumentError(unknown("method", name, [*PRESETS, NO_EXPERIMENT, MORE]))
    if label in PRESETS:
        keywords.setdefault("preset", label)
    return SweepMethod(label, keywords, OPTIMIZE, label)


def require_known(cases: Mapping[str, Case], methods: Sequence[SweepMethod]) -> None:
    """Refuse cases that name a method which is not run: it would be ignored silently."""
    names = [method.base for method in methods]
    for label, case in cases.items():
        for name in (*(case.methods or ()), *case.by_method):
            if name not in names:
                raise ArgumentError(f"the system {label!r}: {unknown('method', name, names)}")


def cross(methods: Sequence[SweepMethod], settings: Mapping[str, Any] | None) -> list[SweepMethod]:
    """Return every method with every one of several settings."""
    given = {} if settings is None else settings
    if not isinstance(given, Mapping):
        raise ArgumentError(f"settings are keywords of cb.Settings as a dictionary; got {given!r}")
    several = bool(given) and all(isinstance(each, Mapping) for each in given.values())
    groups = dict(given) if several else {"": given}
    crossed = []
    for (label, common), method in product(groups.items(), methods):
        name = f"{method.name}, {label}" if label else method.name
        made = SweepMethod(name, {**common, **method.keywords}, method.kind, method.base, label)
        make_settings(name, made.keywords)
        crossed.append(made)
    return crossed


def make_settings(name: str, keywords: Mapping[str, Any]) -> Settings:
    """Return the settings of a method; ten rounds where neither rounds nor a budget are given."""
    if extra := sorted(set(keywords) - {"preset", *SETTING_NAMES}):
        raise SettingsError(
            f"the method {name!r} has the unknown settings {listed(extra)}; known are preset and "
            f"{listed(SETTING_NAMES)}"
        )
    changes = {key: value for key, value in keywords.items() if key != "preset"}
    made = Settings.preset(keywords.get("preset", "gc-cbo"), **changes)
    if made.rounds is None and made.budget is None:
        made = replace(made, rounds=DEFAULT_ROUNDS)
    return made
