"""How are experiments chosen, and when does an optimization end? One checked configuration."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from causal_bo_ppl.errors import SettingsError, listed
from causal_bo_ppl.inference.draws import trait
from causal_bo_ppl.inference.posterior import read_method, read_written_method, write_method
from causal_bo_ppl.inputs import (
    offered,
    read_amount,
    read_component,
    read_count,
    read_share,
    read_size,
    require_one_of,
)
from causal_bo_ppl.mechanisms import (
    read_mechanisms,
    read_prior,
    read_written_mechanisms,
    write_mechanisms,
    write_prior,
)
from causal_bo_ppl.optimization.acquisition import (
    Acquisition,
    PerCost,
    read_acquisition,
    read_written_acquisition,
    write_acquisition,
)
from causal_bo_ppl.surrogates import CoupledMaker, IndependentMaker, SurrogateMaker, UncoupledMaker
from causal_bo_ppl.surrogates.coupled import KERNELS

SETTINGS_FORMAT = 2
MOST_ROUNDS = 10**9  # of anything that is counted: more would never end


@dataclass(frozen=True)
class Observe:
    """When a round observes the system instead of running an experiment.

    Parameters
    ----------
    probability:
        The probability with which a round observes. None decides by the expected gain per unit of
        cost, with observing as one of the choices.
    most:
        The largest number of observations in all.
    batch:
        The number of observations of such a round.
    cost:
        The cost of one observation; needed where the gain per cost decides.

    Raises
    ------
    SettingsError
        If the gain per cost is to decide and no cost is given.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.Settings(observe=cb.optimization.Observe(0.2, most=50, batch=10)).observe.batch
    10
    """

    probability: float | None = 0.1
    most: int = 100
    batch: int = 1
    cost: float = 0.0

    def __post_init__(self) -> None:
        if self.probability is not None:
            object.__setattr__(self, "probability", read_share("probability", self.probability))
        for name in ("most", "batch"):
            object.__setattr__(self, name, read_count(name, getattr(self, name), 1))
        object.__setattr__(self, "cost", read_size("cost", self.cost, positive=False))
        if self.probability is None and not self.cost > 0:
            raise SettingsError(
                "observing by expected gain per cost needs the cost of an observation; give `cost`"
            )


@dataclass(frozen=True)
class Stop:
    """When an optimization ends since no experiment is expected to gain its cost.

    The run ends when the largest expected improvement of the recommendation by one more outcome
    (the acquisition "look-ahead"), per unit of cost, was below `gain` for `patience` rounds.

    Parameters
    ----------
    gain:
        The least expected improvement per unit of cost, in units of the target.
    patience:
        The number of successive rounds in which it must have been less.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.Settings(stop=cb.optimization.Stop(0.01)).stop.patience
    2
    """

    gain: float
    patience: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", read_size("gain", self.gain))
        object.__setattr__(self, "patience", read_count("patience", self.patience, 1))


PRESETS: dict[str, dict[str, Any]] = {
    "gc-cbo": {},
    "gc-cbo-ei": {"acquisition": "ei"},
    "gc-cbo-nocoupling": {"surrogate": "uncoupled"},
    "gc-cbo-fixed": {"relinearize": False},
    "cbo": {"surrogate": "independent", "acquisition": PerCost("log-ei")},
    "cbo-noprior": {"surrogate": "independent-noprior", "acquisition": PerCost("log-ei")},
    "bo": {"surrogate": "plain", "acquisition": PerCost("log-ei")},
}
CAUSAL_SURROGATES = ("coupled", "uncoupled")  # the surrogates whose prior covariance is the kernel
SURROGATES: dict[str, SurrogateMaker] = {
    "coupled": CoupledMaker(),
    "uncoupled": UncoupledMaker(),
    "independent": IndependentMaker(),
    "independent-noprior": IndependentMaker(causal_prior=False),
    "plain": IndependentMaker(kernel="matern52", is_plain=True),
}
CHOICES: dict[str, tuple[object, ...]] = {
    "kernel": KERNELS,
    "relinearize": (True, False),
    "discrepancy": ("auto", True, False),
    "learn_from": ("auto", "target", "rows"),
    "report": ("best", "mean", "observed", "model"),
}


@dataclass(frozen=True)
class Settings:
    """How experiments are chosen and learned from; `Settings.preset` names those of a method.

    Parameters
    ----------
    mechanisms, prior:
        As in `fit`: "linear", "gp", "auto", `cb.GP(...)`, `cb.Linear(...)`, a dictionary by
        variable of these and of NumPyro functions, a NumPyro program, or a user-defined family,
        with a prior of that family.
    inference:
        The method of `fit`, a name or a configuration such as `cb.NUTS(chains=2)`. By default
        "conjugate", "wishart" where latent causes join causes of the target, and "laplace" for
        mechanisms without a closed form.
    accept:
        Why a posterior whose verdict failed is used nevertheless, as in `post.accept(why)`.
    surrogate:
        "coupled" (one outcome informs the effects of all sets), "uncoupled" (those of its own set),
        "independent" (a Gaussian process for every set, with the effect that the observations imply
        as its prior mean), "independent-noprior" (without that mean), "plain" (one process over all
        manipulable variables), or a user-defined `surrogates.SurrogateMaker`.
    kernel:
        The prior covariance of "coupled" and "uncoupled": "jacobian", linearized in the parameters,
        or "monte_carlo", that of the effects of 512 draws of the parameters, with a fixed seed.
    relinearize:
        Whether the response is linearized again after each round.
    discrepancy:
        Whether a smooth function of all values of a set is added to the effect that the mechanisms
        imply. "auto": as soon as the outcomes favour it by a Bayes factor above 20, or the mean
        outcome of an intervention lies more than 3 standard errors from its effect (more where
        several were tried), and from the first outcome on where the observations contradict the
        graph, the form of a mechanism, or that its causes do not interact. From then on all
        outcomes inform the surrogate.
    learn_from:
        "target": the outcome alone. "rows": the whole observation updates the posterior of every
        equation that was not intervened on. "auto": whole observations where the experiment returns
        them and the inference can use them. A noisy outcome of an intervention on all causes of the
        target is an observation of its mechanism in any case. With mechanisms="gp" whole
        observations change hyperparameters too; outcomes alone change coefficients only.
    noise:
        The variance of an outcome. None: what the model implies for each set. 0.0: outcomes are
        exact. A simulated system with a given noise returns its exact effect plus that noise.
    acquisition:
        "ucb", the confidence bound mean +- sqrt(beta) sd, with beta 2, or 9 where effects are
        nonlinear and outcomes noisy; "ucb-regret-safe", "ucb-pointwise", "ei", "log-ei",
        "thompson", "look-ahead"; or a record of `cb.acquisition`, also a user-defined one. With
        exact outcomes beta grows where no bound is better than the best of them, and where effects
        are nonlinear, in every second round, until some bound is better by 2 % of their range.
    report:
        Which intervention is recommended. "best": the best of those tried by the posterior mean,
        unless doing nothing is better, or the best of all by the model is so decisively. Of those
        tried alone the best by posterior "mean" or as "observed"; or the best of all by the
        "model".
    batch:
        The number of experiments per round.
    observations:
        The number of observations of a system before the first experiment, where no data are given.
    rounds, budget:
        When to stop; the budget is in units of the problem's costs. `optimize` needs at least one.
        Where effects are affine in the values, a budget pays for vertices of the sets' boxes only.
    observe:
        `cb.optimization.Observe(...)`: when a round observes instead of running an experiment.
    stop:
        `cb.optimization.Stop(gain)`: when no experiment is expected to gain its cost.

    Raises
    ------
    SettingsError
        If a value is not allowed, or contradicts another one.

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

    mechanisms: Any = "linear"
    inference: Any = None
    prior: Any = None
    accept: str | None = None
    surrogate: Any = "coupled"
    kernel: str = "jacobian"
    relinearize: bool = True
    discrepancy: bool | str = "auto"
    learn_from: str = "auto"
    noise: float | None = None
    acquisition: Any = "ucb"
    report: str = "best"
    batch: int = 1
    observations: int = 100
    rounds: int | None = None
    budget: float | None = None
    observe: Observe | None = None
    stop: Stop | None = None

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "Settings":
        """Return the settings of a named method, with changes.

        Parameters
        ----------
        name:
            "gc-cbo", the coupled surrogate with a confidence bound. Its variants are "gc-cbo-ei"
            (expected improvement), "gc-cbo-nocoupling" (surrogate="uncoupled") and "gc-cbo-fixed"
            (relinearize=False). The baselines are "cbo" (surrogate="independent"), "cbo-noprior"
            ("independent-noprior") and "bo" ("plain"), each with log expected improvement per unit
            of cost. All have report="mean", by which methods are compared.
        changes:
            Fields of the settings that differ.

        Returns
        -------
        Settings

        Raises
        ------
        SettingsError
            If there is no such preset.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> cb.Settings.preset("cbo", mechanisms="gp").surrogate
        'independent'
        """
        require_one_of("the name of a preset", name, tuple(PRESETS), SettingsError)
        return cls(**{"report": "mean"} | PRESETS[name] | changes)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            require_one_of(name, getattr(self, name), choices, SettingsError)
        read_mechanisms(self.mechanisms)
        self.rule  # noqa: B018  (an acquisition that cannot be used is refused here)
        read_surrogate(self.surrogate)
        if self.inference is not None:
            read_method(self.inference)
        for name, least in (("observations", 0), ("batch", 1), ("rounds", 1)):
            value = getattr(self, name)
            if value is not None or name != "rounds":
                object.__setattr__(
                    self, name, read_count(name, value, least, SettingsError, MOST_ROUNDS)
                )
        for name in ("noise", "budget"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, read_amount(name, value, SettingsError))
        for name, kind in (("observe", Observe), ("stop", Stop)):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise SettingsError(
                    f"{name} must be cb.optimization.{kind.__name__}(...), got {given!r}"
                )
        if self.accept is not None and not (isinstance(self.accept, str) and self.accept.strip()):
            raise SettingsError(f"accept is a text why a posterior is used; got {self.accept!r}")
        if self.prior is not None and offered(self.prior, "canonical") is None:
            raise SettingsError(
                f"prior must be a prior such as cb.priors.FixedPrior(), got {self.prior!r}"
            )
        self._require_consistent()

    def _require_consistent(self) -> None:
        is_coupled, rows = self.surrogate in CAUSAL_SURROGATES, 'learn_from="rows"'
        if not is_coupled and (self.discrepancy is True or self.learn_from == "rows"):
            raise SettingsError(
                f"discrepancy=True and {rows} belong to the coupled surrogate, not to "
                f"{read_surrogate(self.surrogate).name!r}"
            )
        if self.learn_from != "rows":
            return
        if self.discrepancy is True or self.surrogate == "uncoupled":
            raise SettingsError(
                f"{rows} updates the mechanisms that all sets share; discrepancy=True and "
                'surrogate="uncoupled" need learn_from="target"'
            )
        if self.noise is not None:
            raise SettingsError(f"{rows} learns the noise from whole observations; omit `noise`")
        if not self.relinearize:
            raise SettingsError(f"{rows} changes the posterior: it needs relinearize=True")
        method = None if self.inference is None else read_method(self.inference)
        if method is not None and not trait(method, "takes_experiments"):
            raise SettingsError(
                f'{method.name} learns from observational data only; take learn_from="target"'
            )

    @property
    def name(self) -> str:
        """The preset with the same surrogate and acquisition, otherwise the names of both."""
        for name, changes in PRESETS.items():
            both = (self, Settings(**changes))
            one, other = ((of.surrogate, of.relinearize, of.rule.name) for of in both)
            if one == other:
                return name if self.kernel == "jacobian" else f"{name}, {self.kernel}"
        return f"{read_surrogate(self.surrogate).name}, {self.rule.name}"

    @cached_property
    def rule(self) -> Acquisition:
        """The acquisition, also where it was given by its name."""
        return read_acquisition(self.acquisition)

    def with_discrepancy(self, contradicted: bool) -> "Settings":
        """Return the settings with a discrepancy, where observations contradicted the model."""
        is_auto = self.discrepancy == "auto" and self.surrogate in CAUSAL_SURROGATES
        if contradicted and is_auto and self.learn_from != "rows":
            return replace(self, discrepancy=True)
        return self

    @cached_property
    def uses_observations(self) -> bool:
        """Whether whole observations of experiments may update the mechanisms."""
        return self.learn_from == "rows" or (self.learn_from == "auto" and self.informs_mechanisms)

    @cached_property
    def informs_mechanisms(self) -> bool:
        """Whether experiments may update the mechanisms, instead of the surrogate alone."""
        is_shared = self.surrogate == "coupled" and self.discrepancy is not True
        return bool(is_shared and self.relinearize)

    @cached_property
    def maker(self) -> SurrogateMaker:
        """The object that makes the surrogate."""
        if self.surrogate not in CAUSAL_SURROGATES:
            return read_surrogate(self.surrogate)
        coupled = CoupledMaker(self.discrepancy, self.noise is None, self.kernel)
        return coupled if self.surrogate == "coupled" else UncoupledMaker(coupled)

    def to_json(self) -> str:
        """Return a JSON text without code, which `from_json` reads back.

        User-defined objects are written by their names, and must be given to `from_json` again;
        mechanisms that hold functions are given as a whole, under the name "custom".
        """
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        record["prior"] = None if self.prior is None else write_prior(self.prior)
        record["inference"] = write_method(self.inference)
        record["mechanisms"] = write_mechanisms(self.mechanisms)
        if not isinstance(self.acquisition, str):
            record["acquisition"] = write_acquisition(self.acquisition)
        if not isinstance(self.surrogate, str):
            record["surrogate"] = {"name": self.surrogate.name}
        for name in ("observe", "stop"):
            record[name] = None if record[name] is None else asdict(record[name])
        return json.dumps({"format": SETTINGS_FORMAT, **record}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, functions: Mapping[str, object] | None = None) -> "Settings":
        """Read what `to_json` wrote.

        Parameters
        ----------
        text:
            The JSON text.
        functions:
            {name: object} of the user-defined objects that the text names.

        Returns
        -------
        Settings

        Raises
        ------
        SettingsError
            If the text has another format, or names an object that is not given.
        """
        try:
            record = json.loads(text)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"settings are read from a JSON text: {error}") from None
        version = record.pop("format", None) if isinstance(record, dict) else None
        if version != SETTINGS_FORMAT:
            raise SettingsError(
                f"these settings were written in format {version}, and this version reads format "
                f"{SETTINGS_FORMAT}; make them again with cb.Settings(...)"
            )
        known = {each.name for each in fields(cls)}
        if set(record) != known:
            missing, extra = sorted(known - set(record)), sorted(set(record) - known)
            raise SettingsError(
                f"the settings lack {listed(missing)} and have the unknown {listed(extra)}; write "
                "them again"
            )
        given = functions or {}
        if isinstance(rule := record["acquisition"], dict):
            record["acquisition"] = read_written_acquisition(rule) or rule
        record["inference"] = read_written_method(record["inference"])
        record["mechanisms"] = _read_mechanisms_text(record["mechanisms"], given)
        for name in ("surrogate", "acquisition", "inference"):
            if isinstance(record[name], dict):  # it is user-defined
                record[name] = _find(record[name], given, name)
        for name, read in (("observe", Observe), ("stop", Stop)):
            record[name] = None if record[name] is None else read(**record[name])
        if record["prior"] is not None:
            record["prior"] = read_prior(record["prior"])
        return cls(**record)


def read_settings(given: object, **changes: object) -> Settings:
    """Return settings, given as such or by the name of a preset, with changes other than None.

    None are the default ones.
    """
    given = Settings() if given is None else given
    settings = Settings.preset(given) if isinstance(given, str) else given
    if not isinstance(settings, Settings):
        raise SettingsError(
            f"settings must be cb.Settings(...) or the name of a preset, got {given!r}"
        )
    changed: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return replace(settings, **changed) if changed else settings


def read_surrogate(given: object) -> SurrogateMaker:
    """Return the maker of a surrogate, given by its name or user-defined."""
    maker: SurrogateMaker = read_component("surrogate", given, SURROGATES, "begin")
    return maker


def _read_mechanisms_text(written: Any, given: Mapping[str, object]) -> object:
    if not isinstance(written, dict) or "name" not in written:
        return read_written_mechanisms(written)
    mechanisms = _find(written, given, "mechanisms")
    other = json.loads(json.dumps(write_mechanisms(mechanisms)))
    if other != written:
        raise SettingsError(
            f"the settings were made with other mechanisms, {written}, than {other}"
        )
    return mechanisms


def _find(written: Mapping[str, Any], functions: Mapping[str, object], what: str) -> object:
    name = written.get("name")
    if not isinstance(name, str) or name not in functions:
        raise SettingsError(
            f"{what} is the user-defined {name!r}, which a text cannot hold; give it to "
            f"from_json(text, functions={{{name!r}: ...}})"
        )
    return functions[name]
