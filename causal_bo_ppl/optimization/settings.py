"""How is the next experiment chosen, and when is it enough? One record, checked once."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from numbers import Real
from typing import Any

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference.fitting import METHODS, read_method, trait
from causal_bo_ppl.inputs import MOST, as_float, read_count
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.interfaces import offered, read_record
from causal_bo_ppl.mechanisms.serialization import (
    read_prior,
    read_written_mechanisms,
    write_mechanisms,
    write_prior,
)
from causal_bo_ppl.optimization.acquisition import Acquisition, read_acquisition
from causal_bo_ppl.surrogates import CoupledMaker, SurrogateMaker

FORMAT = 1
MOST_ROUNDS = 10**9  # of anything that is counted: more would never end
PRESETS: dict[str, dict[str, object]] = {"gc-cbo": {}, "gc-cbo-fixed": {"kernel": "fixed"}}
SURROGATES: dict[str, SurrogateMaker] = {"coupled": CoupledMaker()}
CHOICES: dict[str, tuple[object, ...]] = {
    "method": tuple(PRESETS),
    "kernel": ("adaptive", "fixed"),
    "outcomes": ("noisy", "exact"),
    "update": ("target", "full"),
    "report": ("mean", "observed", "model"),
    "coupling": (True,),
    "residual": (False,),
}


@dataclass(frozen=True)
class Settings:
    """What an optimization is told; `optimize`'s keywords build one, see there for their meaning.

    A method's name is a preset: "gc-cbo-fixed" is "gc-cbo" with kernel="fixed". Settings that
    contradict each other are refused. `mechanisms` and `prior` are those of `fit`: a name, a
    dictionary by variable or `cb.GP(...)`, and a prior of that family.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> settings = cb.Settings(rounds=20, inference=cb.NUTS(chains=2))
    >>> cb.Settings.from_json(settings.to_json()) == settings
    True
    >>> chosen = cb.Settings(rounds=20, mechanisms={"Y": cb.GP(kernel="matern52")})
    >>> cb.Settings.from_json(chosen.to_json()).mechanisms["Y"].kernel
    'matern52'
    """

    method: str = "gc-cbo"
    mechanisms: Any = "linear"
    outcomes: str = "noisy"
    noise: float | None = None
    acquisition: Any = "ucb"
    beta: float = 2.0
    kernel: str | None = None
    coupling: bool = True
    residual: bool = False
    update: str = "target"
    report: str = "mean"
    observations: int = 100
    rounds: int | None = None
    budget: float | None = None
    batch: int = 1
    inference: Any = None
    prior: Any = None
    surrogate: Any = "coupled"
    accept: str | None = None

    def __post_init__(self) -> None:
        preset = PRESETS.get(self.method, {}) if isinstance(self.method, str) else {}
        kernel = preset.get("kernel", "adaptive") if self.kernel is None else self.kernel
        object.__setattr__(self, "kernel", kernel)
        for name, choices in CHOICES.items():
            _require_one_of(name, getattr(self, name), choices)
        for name, value in preset.items():
            if getattr(self, name) != value:
                raise ModelError(
                    f"{name} must be one of {value!r} for method={self.method!r}; got "
                    f"{getattr(self, name)!r}"
                )
        read_mechanisms(self.mechanisms)
        read_acquisition(self.acquisition, self._number("beta", self.beta))
        read_surrogate(self.surrogate)
        if self.inference is not None:
            read_method(self.inference)
        for name, least in (("observations", 0), ("batch", 1), ("rounds", 1)):
            if getattr(self, name) is not None or name != "rounds":
                object.__setattr__(self, name, _whole(name, getattr(self, name), least))
        for name in ("noise", "budget"):
            if getattr(self, name) is not None:
                self._number(name, getattr(self, name))
        if self.accept is not None and not (isinstance(self.accept, str) and self.accept.strip()):
            raise ModelError(f"accept says in words why a posterior is used; got {self.accept!r}")
        if self.prior is not None and offered(self.prior, "canonical") is None:
            raise ModelError(f"prior must be a prior such as cb.FixedPrior(), got {self.prior!r}")
        if self.acquisition != "ucb" and self.beta != Settings.beta:
            raise ModelError("beta belongs to acquisition='ucb'; your own acquisition has its own")
        self._require_consistent()

    def _number(self, name: str, value: object) -> float:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        number = as_float(value) if is_number else math.nan  # type: ignore[arg-type]
        if not 0 <= number <= MOST:
            limit = f"at most {MOST:g}" if number > MOST else "at least 0"
            raise ModelError(f"{name} must be a finite number, {limit}; got {value!r}")
        object.__setattr__(self, name, number)
        return number

    def _require_consistent(self) -> None:
        if self.outcomes == "exact" and (self.noise or self.update == "full"):
            raise ModelError(
                'outcomes="exact" have no noise and no rows; leave out `noise`, and take '
                'update="target"'
            )
        if self.update != "full":
            return
        if self.noise is not None:
            raise ModelError('update="full" learns the noise from whole rows; leave `noise` out')
        if self.kernel == "fixed":
            raise ModelError(
                'update="full" moves the posterior, so its kernel cannot be fixed; take '
                'update="target"'
            )
        method = None if self.inference is None else read_method(self.inference)
        if method is not None and not trait(method, "takes_experiments"):
            raise ModelError(
                f'{method.name} learns from observational rows only; take update="target"'
            )

    @property
    def known_noise(self) -> float | None:
        """Variance of an outcome; None where the model implies it."""
        return 0.0 if self.outcomes == "exact" else self.noise

    @property
    def rule(self) -> Acquisition:
        """The acquisition as a record."""
        return read_acquisition(self.acquisition, self.beta)

    @property
    def maker(self) -> SurrogateMaker:
        """The surrogate as a record that makes it."""
        return read_surrogate(self.surrogate)

    def to_json(self) -> str:
        """Return a JSON text without code, which `from_json` reads back.

        Records of your own (families of mechanisms, methods, surrogates, acquisitions) are written
        by their names, and must be given to `from_json` again.
        """
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        record["prior"] = None if self.prior is None else write_prior(self.prior)
        record["inference"] = _write_method(self.inference)
        record["mechanisms"] = write_mechanisms(self.mechanisms)
        for name in ("acquisition", "surrogate"):
            if not isinstance(record[name], str):
                record[name] = {"name": record[name].name}
        return json.dumps({"format": FORMAT, **record}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, functions: Mapping[str, object] | None = None) -> "Settings":
        """Read what `to_json` wrote; functions: {name: record} of records of your own."""
        try:
            record = json.loads(text)
        except (TypeError, ValueError) as error:
            raise ModelError(f"settings are read from a JSON text: {error}") from None
        if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
            raise ModelError(f"this is no text of settings in format {FORMAT}; write it again")
        known = {each.name for each in fields(cls)}
        if set(record) != known:
            missing, extra = sorted(known - set(record)), sorted(set(record) - known)
            raise ModelError(
                f"the settings lack {listed(missing)} and have the unknown {listed(extra)}; write "
                "them again"
            )
        given = dict(functions or {})
        for name in ("mechanisms", "acquisition", "surrogate"):
            if isinstance(record[name], dict) and (name != "mechanisms" or "name" in record[name]):
                record[name] = _find(record[name].get("name"), given, name)
        record["mechanisms"] = read_written_mechanisms(record["mechanisms"])
        record["inference"] = _read_method_record(record["inference"], given)
        if record["prior"] is not None:
            record["prior"] = read_prior(record["prior"])
        return cls(**record)


def read_surrogate(given: object) -> SurrogateMaker:
    """Return the maker of a surrogate, given by its name or as a record of one's own."""
    maker: SurrogateMaker = read_record("surrogate", given, SURROGATES, "begin")
    return maker


def _write_method(method: Any) -> object:
    if method is None or isinstance(method, str):
        return method
    if type(method) is type(METHODS.get(method.name)) and is_dataclass(method):
        return {"name": method.name, "options": asdict(method)}
    return {"name": method.name}


def _read_method_record(record: Any, functions: Mapping[str, object]) -> Any:
    if not isinstance(record, dict):
        return record
    name = record.get("name")
    if "options" not in record:
        return _find(name, functions, "inference")
    options = record["options"]
    if name not in METHODS or not isinstance(options, dict):
        raise ModelError(f"inference must be one of {listed(METHODS)}; got {record!r}")
    try:
        return type(METHODS[name])(**options)
    except TypeError as error:
        raise ModelError(f"the options of {name} cannot be read: {error}") from None


def _find(name: object, functions: Mapping[str, object], what: str) -> object:
    if not isinstance(name, str) or name not in functions:
        raise ModelError(
            f"{what} is the record {name!r}, which a text cannot hold; give it back with "
            f"from_json(text, functions={{{name!r}: ...}})"
        )
    return functions[name]


def _whole(name: str, value: object, least: int) -> int:
    number = read_count(name, value, least)
    if number > MOST_ROUNDS:
        raise ModelError(f"{name} must be a whole number, at most {MOST_ROUNDS:g}; got {value!r}")
    return number


def _require_one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if not any(
        value is choice or (isinstance(value, str) and value == choice) for choice in choices
    ):
        raise ModelError(f"{name} must be one of {listed(map(repr, choices))}; got {value!r}")
