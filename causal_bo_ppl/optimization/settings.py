"""How is the next experiment chosen, and when is it enough? One record, checked once."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import Any

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference.methods import read_method, read_written_method, trait, write_method
from causal_bo_ppl.inputs import MOST, as_float, read_count, read_share, read_size
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import offered, read_record
from causal_bo_ppl.mechanisms.serialization import (
    read_prior,
    read_written_mechanisms,
    write_mechanisms,
    write_prior,
)
from causal_bo_ppl.optimization.acquisition import (
    Acquisition,
    BetaSchedule,
    PerCost,
    read_acquisition,
    read_written_acquisition,
    write_acquisition,
)
from causal_bo_ppl.optimization.analytic import read_beta
from causal_bo_ppl.surrogates import (
    CoupledMaker,
    IndependentMaker,
    PlainMaker,
    SurrogateMaker,
    UncoupledMaker,
)

FORMAT = 1
MOST_ROUNDS = 10**9  # of anything that is counted: more would never end
PER_COST = PerCost("log-ei")


@dataclass(frozen=True)
class Observe:
    """When a row is observed instead of an experiment.

    Parameters
    ----------
    probability:
        The chance with which a round observes; None decides by the expected gain per unit of cost,
        observing being one of the choices.
    most:
        How many rows are observed in all, at most.
    rows:
        How many at a time.
    cost:
        What one row costs; needed where the gain per cost decides.
    """

    probability: float | None = 0.1
    most: int = 100
    rows: int = 1
    cost: float = 0.0

    def __post_init__(self) -> None:
        if self.probability is not None:
            object.__setattr__(self, "probability", read_share("probability", self.probability))
        for name in ("most", "rows"):
            object.__setattr__(self, name, read_count(name, getattr(self, name), 1))
        object.__setattr__(self, "cost", read_size("cost", self.cost, positive=False))
        if self.probability is None and not self.cost > 0:
            raise ModelError(
                "observing by expected gain per cost needs the cost of a row; give `cost`"
            )


@dataclass(frozen=True)
class Stop:
    """When no experiment is worth its cost.

    Before each round the expected improvement of the recommendation by one more outcome is computed
    for every experiment (the acquisition "look-ahead"). The run ends when the largest, per unit of
    cost, has been below `gain` for `patience` rounds.

    Parameters
    ----------
    gain:
        What a unit of cost must be expected to bring, in units of the target.
    patience:
        In how many rounds, one after another, it must have been less.
    """

    gain: float
    patience: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", read_size("gain", self.gain))
        object.__setattr__(self, "patience", read_count("patience", self.patience, 1))


PRESETS: dict[str, dict[str, object]] = {
    "gc-cbo": {},
    "gc-cbo-ei": {"acquisition": "ei"},
    "gc-cbo-nocoupling": {"coupling": False},
    "gc-cbo-fixed": {"kernel": "fixed"},
    "cbo": {"surrogate": "independent", "acquisition": PER_COST},
    "cbo-noprior": {"surrogate": "independent-noprior", "acquisition": PER_COST},
    "bo": {"surrogate": "plain", "acquisition": PER_COST},
}
USUAL = {"kernel": "adaptive", "acquisition": "ucb", "surrogate": "coupled", "coupling": True}
SURROGATES: dict[str, SurrogateMaker] = {
    "coupled": CoupledMaker(),
    "independent": IndependentMaker(),
    "independent-noprior": IndependentMaker(causal_prior=False),
    "plain": PlainMaker(),
}
CHOICES: dict[str, tuple[object, ...]] = {
    "method": tuple(PRESETS),
    "kernel": ("adaptive", "fixed"),
    "outcomes": ("noisy", "exact"),
    "update": ("auto", "target", "full"),
    "report": ("mean", "observed", "model"),
    "coupling": (True, False),
    "residual": ("auto", True, False),
}


@dataclass(frozen=True)
class Settings:
    """How experiments are chosen and learned from, for `cb.Study` and `cb.optimize`.

    A method's name is a preset: "gc-cbo-fixed" is "gc-cbo" with kernel="fixed", and "cbo" is the
    surrogate "independent" with log expected improvement per unit of cost. Settings that contradict
    each other are refused. `help(cb.optimize)` explains each in more words.

    Parameters
    ----------
    method, surrogate, kernel, coupling, residual:
        How effects are predicted after some outcomes.
    mechanisms, inference, prior, accept:
        How the rows are learned from; see `fit` and `Posterior.accept`.
    outcomes, noise, update:
        What an outcome is, its variance, and whether whole rows teach the mechanisms.
    acquisition, beta, batch, observe:
        What is tried next, how many at a time, and when rows are observed instead.
    report:
        Which intervention is recommended.
    observations, rounds, budget, stop:
        How many rows to begin with, and when to end. A study has its own rows and does not end.

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
    acquisition: Any = None
    beta: Any = None
    kernel: str | None = None
    coupling: bool | None = None
    residual: bool | str = "auto"
    update: str = "auto"
    report: str = "mean"
    observations: int = 100
    rounds: int | None = None
    budget: float | None = None
    batch: int = 1
    inference: Any = None
    prior: Any = None
    surrogate: Any = None
    accept: str | None = None
    observe: Observe | None = None
    stop: Stop | None = None

    def __post_init__(self) -> None:
        preset = PRESETS.get(self.method, {}) if isinstance(self.method, str) else {}
        for name, usual in USUAL.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, preset.get(name, usual))
        for name, choices in CHOICES.items():
            _require_one_of(name, getattr(self, name), choices)
        for name, value in preset.items():
            if getattr(self, name) != value:
                raise ModelError(
                    f"{name} must be one of {value!r} for method={self.method!r}; got "
                    f"{getattr(self, name)!r}"
                )
        read_mechanisms(self.mechanisms)
        object.__setattr__(self, "beta", read_beta(self.beta))
        read_acquisition(self.acquisition, self.beta)
        read_surrogate(self.surrogate)
        if self.inference is not None:
            read_method(self.inference)
        for name, least in (("observations", 0), ("batch", 1), ("rounds", 1)):
            if getattr(self, name) is not None or name != "rounds":
                object.__setattr__(self, name, _whole(name, getattr(self, name), least))
        for name in ("noise", "budget"):
            if getattr(self, name) is not None:
                self._number(name, getattr(self, name))
        for name, kind in (("observe", Observe), ("stop", Stop)):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise ModelError(f"{name} must be cb.{kind.__name__}(...), got {given!r}")
        if self.accept is not None and not (isinstance(self.accept, str) and self.accept.strip()):
            raise ModelError(f"accept says in words why a posterior is used; got {self.accept!r}")
        if self.prior is not None and offered(self.prior, "canonical") is None:
            raise ModelError(
                f"prior must be a prior such as cb.priors.FixedPrior(), got {self.prior!r}"
            )
        is_bound = isinstance(self.acquisition, str) and self.acquisition.startswith("ucb")
        if not is_bound and self.beta != Settings.beta:
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
        if self.surrogate != "coupled":
            for name, refused in (("residual", True), ("update", "full"), ("coupling", False)):
                if getattr(self, name) == refused:
                    raise ModelError(
                        f"{name}={refused!r} belongs to the coupled surrogate, not to "
                        f"{read_surrogate(self.surrogate).name!r}"
                    )
        if self.update != "full":
            return
        if self.residual is True or not self.coupling:
            raise ModelError(
                'update="full" teaches the mechanisms that all sets share; residual=True and '
                'coupling=False need update="target"'
            )
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

    def doubting(self, contradicted: bool) -> "Settings":
        """Return the settings with a residual from the first outcome on, where rows ask for it.

        contradicted: whether the rows contradict the graph before any outcome does.
        """
        is_auto = self.residual == "auto" and self.surrogate == "coupled"
        if contradicted and is_auto and self.update != "full":
            return replace(self, residual=True)
        return self

    @property
    def uses_observations(self) -> bool:
        """Whether whole rows of experiments may teach the mechanisms."""
        return self.update == "full" or (self.update == "auto" and self.informs_mechanisms)

    @property
    def informs_mechanisms(self) -> bool:
        """Whether experiments may teach the mechanisms, instead of the surrogate alone."""
        is_free = self.surrogate == "coupled" and self.coupling and self.residual is not True
        return bool(is_free and self.kernel == "adaptive")

    @property
    def maker(self) -> SurrogateMaker:
        """The surrogate as a record that makes it."""
        if self.surrogate != "coupled":
            return read_surrogate(self.surrogate)
        made = CoupledMaker(self.residual, self.known_noise is None)
        return made if self.coupling else UncoupledMaker(made)

    def to_json(self) -> str:
        """Return a JSON text without code, which `from_json` reads back.

        Records of your own (families of mechanisms, methods, surrogates, acquisitions) are written
        by their names, and must be given to `from_json` again; mechanisms that hold functions are
        given back as a whole, under the name "custom".
        """
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        record["prior"] = None if self.prior is None else write_prior(self.prior)
        record["inference"] = write_method(self.inference)
        record["mechanisms"] = write_mechanisms(self.mechanisms)
        for name in ("acquisition", "surrogate"):
            if not isinstance(record[name], str):
                record[name] = _write_record(record[name])
        for name in ("observe", "stop"):
            record[name] = None if record[name] is None else asdict(record[name])
        if isinstance(self.beta, BetaSchedule):
            record["beta"] = {"delta": self.beta.delta}
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
                record[name] = _read_record_text(record[name], given, name)
            elif name == "mechanisms":
                record[name] = read_written_mechanisms(record[name])
        for name, kind in (("observe", Observe), ("stop", Stop)):
            record[name] = None if record[name] is None else kind(**record[name])
        if isinstance(record["beta"], dict):
            record["beta"] = BetaSchedule(**record["beta"])
        record["inference"] = read_written_method(record["inference"])
        if isinstance(record["inference"], dict):  # a method of one's own
            record["inference"] = _find(record["inference"].get("name"), given, "inference")
        if record["prior"] is not None:
            record["prior"] = read_prior(record["prior"])
        return cls(**record)


def read_surrogate(given: object) -> SurrogateMaker:
    """Return the maker of a surrogate, given by its name or as a record of one's own."""
    maker: SurrogateMaker = read_record("surrogate", given, SURROGATES, "begin")
    return maker


def _write_record(record: Any) -> object:
    return write_acquisition(record) if offered(record, "worth") else {"name": record.name}


def _read_record_text(record: dict[str, Any], given: Mapping[str, object], name: str) -> object:
    known = read_written_acquisition(record) if name == "acquisition" else None
    found = _find(record.get("name"), given, name) if known is None else known
    written = json.loads(json.dumps(write_mechanisms(found))) if name == "mechanisms" else record
    if written != record:
        raise ModelError(f"the settings were made with other mechanisms, {record}, than {written}")
    return found


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
