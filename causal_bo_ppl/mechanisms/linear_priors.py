"""Which priors do linear equations, and the observed moments, have?

An equation V_j = a_j + sum_i W_ij V_i + e has a normal-inverse-gamma prior: s2 = Var e ~ IG(shape,
rate), and given s2 its coefficients are N(centre, s2 precision^-1).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from typing import Any

import numpy as np

from causal_bo_ppl.errors import MechanismError, listed, unknown
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import (
    LARGEST_MAGNITUDE,
    LARGEST_SLOPE,
    SMALLEST_MAGNITUDE,
    as_float,
    size_fault,
)


class LinearPrior:
    """Equality, hashing and JSON of the priors of linear mechanisms, which are dataclasses."""

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""

        def write(value: object) -> object:
            if isinstance(value, np.ndarray):
                return value.tobytes().hex()
            if isinstance(value, Mapping):
                return sorted((str(key), write(each)) for key, each in value.items())
            if isinstance(value, Sequence):
                return [write(each) for each in value]
            return float(value).hex()  # type: ignore[arg-type]

        values = [write(getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]
        return f"{type(self).__name__} {values}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LinearPrior) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps(prior_to_record(self))

    @staticmethod
    def from_json(text: str) -> "LinearPrior":
        """Return the prior of a JSON text that `to_json` wrote."""
        try:
            record = json.loads(text)
        except (TypeError, ValueError) as error:
            raise MechanismError(f"a prior is read from a JSON text: {error}") from None
        return prior_from_record(record)


@dataclass(frozen=True, eq=False)
class ScaledPrior(LinearPrior):
    """The default prior, scaled to the n observations, with the weight of m = `observations`.

    It moves a posterior by m / n, in any units.

    Where it is drawn from (`prior` and `prior_predictive` of `post.to_datatree()`,
    `cb.diagnostics.check_prior_predictive`, `cb.plots.draw_prior`), coefficients given s2 and the
    strengths of latent causes have the distributions below. The density of s2 is improper where m
    <= d and has no mean where m <= d + 2, so that 0.01 never suffices; s2 is then drawn from an
    inverse gamma with shape 2 and rate 2 times the variance of V_j, a guess of that variance with
    the weight of 4 observations, the default of `FixedPrior`. In the same way the covariance of
    moments is drawn from IW(k + 3, 4 times the diagonal of the sample covariance) where its prior
    has no mean. Posteriors are computed from the prior itself, never from what replaces it here.

    For equations it is Zellner's g-prior. Given s2 the slopes are N(0, s2 (n / m) (Xc'Xc)^-1), with
    Xc the centred parents; the mean of V_j at its parents' means is N(its sample mean, s2 / m); s2
    has the density of an inverse gamma with shape (m - d) / 2 and rate m / 2 times the variance of
    V_j, with d the number of coefficients. As m goes to 0 the posterior is the classical one,
    Student's t with n - d degrees of freedom.

    The strength t of a latent cause (`laplace`, `nuts`) is N(0, 1 / m); see
    `linear.correlation_factor`.

    For moments (`wishart`), kappa_0 = m and nu_0 = m - 1, centred at the sample mean, and Psi_0 is
    m times the diagonal of the sample covariance. As m goes to 0 this is Jeffreys' independent
    prior of mean and covariance. Under it a regression on all k - 1 other variables has n - 1
    degrees of freedom, not n - k: intervals are too narrow unless n >> k.

    Parameters
    ----------
    observations:
        The number of observations that have the weight of the prior, a positive number.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> data = system.observe(50, 0)
    >>> weak, strong = (
    ...     cb.fit(system.problem, data, prior=cb.priors.ScaledPrior(m)) for m in (0.01, 50)
    ... )
    >>> bool((abs(strong.mean[:1]) < abs(weak.mean[:1])).all())
    True
    """

    observations: float = 0.01

    def __post_init__(self) -> None:
        _read_size("observations", self.observations)


@dataclass(frozen=True, eq=False)
class FixedPrior(LinearPrior):
    """A proper prior that does not depend on the data: few observations, or none, are enough.

    Given s2, the slope of i in the equation of j is N(0, s2 (slope_sd / scale_i)^2), the mean of
    V_j at its parents' centres is N(centre_j, s2 intercept_sd^2), and s2 is IG(m / 2, m / 2 times
    (noise_sd scale_j)^2) with m = noise_observations: a guess of the sd of the noise with
    the weight of m observations.

    Parameters
    ----------
    slope_sd, intercept_sd, noise_sd:
        Without units: what has units is in `scales` and `centres`.
    noise_observations:
        More than 2, or s2 has no mean a priori; `math.inf` means that s2 is known.
    scales, centres:
        {variable: typical spread} and {variable: typical value}; 1 and 0 for variables that are not
        named.
    slopes:
        {(cause, effect): (mean, sd)} where more is known about a coefficient; sd at the guessed s2.
    latent_sd:
        Sd of the strength t of a latent cause, for `laplace` and `nuts`. In a district of two the
        correlation is t / sqrt(1 + t^2); for larger ones see `linear.correlation_factor`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> prior = cb.priors.FixedPrior(slopes={("X", "Z"): (0.8, 0.01)})
    >>> post = cb.fit(system.problem, system.observe(5, 0), prior=prior)
    >>> post.mean.round(1).tolist()[0]
    0.8
    """

    slope_sd: float = 1.0
    intercept_sd: float = 1.0
    noise_sd: float = 1.0
    noise_observations: float = 4.0
    scales: Mapping[str, float] = field(default_factory=dict)
    centres: Mapping[str, float] = field(default_factory=dict)
    slopes: Mapping[Edge, tuple[float, float]] = field(default_factory=dict)
    latent_sd: float = 1.0

    def __post_init__(self) -> None:
        for name in ("slope_sd", "intercept_sd", "noise_sd", "latent_sd"):
            object.__setattr__(self, name, _read_size(name, getattr(self, name)))
        if not (
            2 < _number("noise_observations", self.noise_observations) <= LARGEST_MAGNITUDE
            or self.noise_observations == math.inf
        ):
            raise MechanismError(
                "noise_observations must be more than 2 and at most 1e50 (math.inf: known "
                f"variances), got "
                f"{self.noise_observations!r}"
            )
        object.__setattr__(self, "noise_observations", float(self.noise_observations))
        read = {
            "scales": lambda name, scale: _read_size(f"the scale of {name!r}", scale),
            "centres": lambda name, centre: _read_size(f"the centre of {name!r}", centre, 0.0),
            "slopes": _read_slope,
        }
        for field_name, reader in read.items():
            given = getattr(self, field_name)
            if not isinstance(given, Mapping):
                raise MechanismError(
                    f"{field_name} must be a mapping such as {{'X': 1.0}}, got {given!r}"
                )
            values = {name: reader(name, value) for name, value in given.items()}
            object.__setattr__(self, field_name, values)

    def require_fit(self, graph: CausalGraph, known: Mapping[Edge, float]) -> None:
        """Refuse names that the graph does not have, and slopes that are known."""
        for name in (*self.scales, *self.centres):
            if name not in graph.positions:
                raise MechanismError(f"the prior names an {unknown('variable', name, graph.nodes)}")
        for edge in self.slopes:
            if edge not in graph.directed:
                raise MechanismError(
                    f"the prior has a slope for {edge!r}, which is no edge of the graph"
                )
            if edge in known:
                raise MechanismError(
                    f"the coefficient of {' -> '.join(edge)} is known; it has no prior"
                )

    def noise_guess(self, node: str) -> float:
        """Return the guessed variance of the noise of a variable."""
        return (self.noise_sd * self.scales.get(node, 1.0)) ** 2

    def pseudo_observations(
        self, node: str, parents: tuple[str, ...], offset: float, intercept: bool
    ) -> np.ndarray:
        """Return pseudo-observations (regressors, response) that are equivalent to the prior.

        The sum of their squares is its quadratic form. offset: the contribution of known
        coefficients at the centres.
        """
        size = len(parents) + intercept
        vectors = np.zeros((size, size + 1))
        if intercept:
            centres = [self.centres.get(name, 0.0) for name in (*parents, node)]
            vectors[0] = [1.0, *centres[:-1], centres[-1] - offset]
            vectors[0] /= self.intercept_sd
        for position, parent in enumerate(parents, start=int(intercept)):
            mean, sd = self.slopes.get((parent, node), (0.0, None))
            if sd is None:
                ratio = self.scales.get(parent, 1.0) / self.slope_sd
            else:
                ratio = self.noise_guess(node) ** 0.5 / sd
            vectors[position, [position, -1]] = ratio, ratio * mean
        return vectors


@dataclass(frozen=True, eq=False)
class MomentPrior(LinearPrior):
    """The normal-inverse-Wishart prior of the observed moments, for `wishart`.

    The covariance is IW(nu, scale) and, given it, the mean is N(centre, covariance / kappa).

    Parameters
    ----------
    centre, scale:
        Arrays of shape (k,) and (k, k) over the target and its causes, in the graph's order.
    kappa:
        The number of observations that have the weight of the centre, a positive number.
    nu:
        Degrees of freedom, more than k + 1.

    Examples
    --------
    >>> import numpy as np
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> prior = cb.priors.MomentPrior(centre=np.zeros(3), kappa=1.0, scale=np.eye(3), nu=6.0)
    >>> cb.fit(system.problem, system.observe(50, 0), method="wishart", prior=prior).verdict
    'exact'
    """

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    def __post_init__(self) -> None:
        try:
            centre, scale = np.array(self.centre, float), np.array(self.scale, float)
        except (TypeError, ValueError):
            raise MechanismError("centre and scale must be arrays of numbers") from None
        if centre.ndim != 1 or scale.shape != (len(centre), len(centre)):
            raise MechanismError(
                f"a moment prior needs centre (k,) and scale (k, k), got {centre.shape} and "
                f"{scale.shape}"
            )
        _read_size("kappa", self.kappa)
        if not len(centre) + 1 < _number("nu", self.nu) <= LARGEST_MAGNITUDE:
            raise MechanismError(
                f"nu must be finite and more than k + 1 = {len(centre) + 1}, got {self.nu!r}"
            )
        sd = np.sqrt(np.abs(np.diagonal(scale)))
        for k, (middle, size) in enumerate(zip(centre.tolist(), sd.tolist(), strict=True)):
            _read_size(f"centre[{k}]", middle, 0.0)
            _read_size(f"the root of scale[{k}, {k}]", size)
        is_symmetric = (np.abs(scale - scale.T) <= 1e-9 * np.outer(sd, sd)).all()  # NaN fails
        if not (is_symmetric and (np.linalg.eigvalsh(scale / np.outer(sd, sd)) > 0).all()):
            raise MechanismError("scale must be symmetric and positive definite")
        for name, array in (("centre", centre), ("scale", (scale + scale.T) / 2)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)


DRAWN_WEIGHT = 4.0  # observations behind a variance that is drawn for one without a prior mean


def replaced_note(prior: ScaledPrior, names: Sequence[str]) -> str:
    """Return how draws differ from the prior where the variances of `names` have no prior mean.

    It is an empty text where no variance was replaced.
    """
    if not names:
        return ""
    return (
        f"under {type(prior).__name__}(observations={prior.observations:g}) the variances of the "
        f"noise of {listed(names)} have no mean, or are improper: they are drawn as if guessed "
        f"from the data with the weight of {DRAWN_WEIGHT:g} observations; all else is drawn from "
        "the prior itself"
    )


PRIORS = {kind.__name__: kind for kind in (ScaledPrior, FixedPrior, MomentPrior)}


def _read_slope(edge: object, distribution: Any) -> tuple[float, float]:
    try:
        mean, sd = distribution
    except (TypeError, ValueError):
        raise MechanismError(
            f"the prior of the slope {edge!r} is a pair (mean, sd), got {distribution!r}"
        ) from None
    mean = _read_size(f"the prior mean of the slope {edge!r}", mean, 0.0, LARGEST_SLOPE)
    return mean, _read_size(
        f"the prior sd of the slope {edge!r}", sd, 1 / LARGEST_SLOPE, LARGEST_SLOPE
    )


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise MechanismError(f"{name} must be a number, got {value!r}")
    return as_float(value)


def _read_size(
    name: str, value: object, least: float = SMALLEST_MAGNITUDE, most: float = LARGEST_MAGNITUDE
) -> float:
    """Return a finite number of a size whose squares neither overflow nor underflow.

    It must be positive unless `least` is 0.
    """
    number = _number(name, value)
    if not math.isfinite(number) or (least > 0 and number <= 0):
        wanted = "a positive number" if least > 0 else "finite"
        raise MechanismError(f"{name} must be {wanted}, got {value!r}")
    fault = size_fault(abs(number), least, most)
    if fault:
        raise MechanismError(f"{name} has the size {fault}")
    return number


def prior_to_record(prior: object) -> dict[str, object]:
    """Return a prior as a dictionary that JSON can hold.

    Infinity is written as a text, and a mapping as a list of pairs.
    """
    if not isinstance(prior, LinearPrior):
        raise MechanismError(f"a user-defined prior cannot be written as JSON; got {prior!r}")

    def write(value: Any) -> object:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, Mapping):
            return [list(pair) for pair in value.items()]
        return "inf" if value == math.inf else value

    parts = asdict(prior)  # type: ignore[call-overload]
    return {"prior": type(prior).__name__} | {name: write(part) for name, part in parts.items()}


def prior_from_record(record: object) -> LinearPrior:
    """Return the prior of such a dictionary; raises MechanismError for anything else."""
    if not isinstance(record, dict) or record.get("prior") not in PRIORS:
        raise MechanismError(f"a prior is one of {', '.join(PRIORS)}; got {record!r}")
    kind: type[LinearPrior] = PRIORS[record["prior"]]
    parts = {name: part for name, part in record.items() if name != "prior"}
    try:
        for name in {"scales", "centres", "slopes"} & set(parts):
            pairs = [(tuple(key) if isinstance(key, list) else key, v) for key, v in parts[name]]
            parts[name] = {key: tuple(v) if isinstance(v, list) else v for key, v in pairs}
        parts |= {name: math.inf for name, part in parts.items() if part == "inf"}
        return kind(**parts)
    except (TypeError, ValueError) as error:
        if isinstance(error, MechanismError):
            raise
        raise MechanismError(f"the parts of a {kind.__name__} cannot be read: {error}") from None
