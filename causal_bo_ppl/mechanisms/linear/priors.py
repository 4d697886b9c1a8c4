"""What is believed about an equation, or about the moments, before any row?

An equation V_j = a_j + sum_i W_ij V_i + e has a normal-inverse-gamma prior: s2 = Var e ~ IG(shape,
rate), and given s2 its coefficients are N(centre, s2 precision^-1).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import (
    LARGEST_MAGNITUDE,
    LARGEST_SLOPE,
    SMALLEST_MAGNITUDE,
    as_float,
    size_fault,
)


@dataclass(frozen=True)
class ScaledPrior:
    """The default prior, which is scaled to the data and worth `rows` of their n rows.

    It moves a posterior by rows / n, in any units.

    For equations it is Zellner's g-prior. Given s2 the slopes are N(0, s2 (n / rows) (Xc'Xc)^-1),
    with Xc the centred parents; the mean of V_j at its parents' means is N(its sample mean,
    s2 / rows); s2 has the density of an inverse gamma with shape (rows - d) / 2 and rate rows / 2
    times the variance of V_j, with d the number of coefficients. As rows go to 0 the posterior is
    the classical one, Student's t with n - d degrees of freedom.

    The strength t of a latent cause (`laplace`, `nuts`) is N(0, 1 / rows); see
    `density.correlation_factor`.

    For moments (`wishart`), kappa_0 = rows and nu_0 = rows - 1, centred at the sample mean, and
    Psi_0 is rows times the diagonal of the sample covariance. As rows go to 0 this is Jeffreys'
    independent prior of mean and covariance. Under it a regression on all k - 1 other variables has
    n - 1 degrees of freedom, not n - k: intervals are too narrow unless n >> k.

    Parameters
    ----------
    rows:
        How many rows the prior is worth, a positive number.
    """

    rows: float = 0.01

    def __post_init__(self) -> None:
        _read_positive("rows", self.rows)

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""
        return _canonical(self)

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps(prior_to_record(self))

    @staticmethod
    def from_json(text: str) -> "Prior":
        """Return the prior of a JSON text that `to_json` wrote."""
        return read_prior_json(text)


@dataclass(frozen=True, eq=False)
class FixedPrior:
    """A prior that is proper and independent of the data, so that few rows, or none, are enough.

    Given s2, the slope of i in the equation of j is N(0, s2 (slope_sd / scale_i)^2), the mean of
    V_j at its parents' centres is N(centre_j, s2 intercept_sd^2), and s2 is IG(noise_rows / 2,
    noise_rows / 2 times (noise_sd scale_j)^2): a guess of the disturbance's sd that is worth
    `noise_rows` rows.

    Parameters
    ----------
    slope_sd, intercept_sd, noise_sd:
        Without units: what has units is in `scales` and `centres`.
    noise_rows:
        More than 2, or s2 has no mean a priori; `math.inf` means that the disturbances' variances
        are known.
    scales, centres:
        {variable: typical spread} and {variable: typical value}; 1 and 0 for variables that are not
        named.
    slopes:
        {(cause, effect): (mean, sd)} where more is known about a coefficient; sd at the guessed s2.
    latent_sd:
        Sd of the strength t of a latent cause, for `laplace` and `nuts`. In a district of two the
        correlation is t / sqrt(1 + t^2); for larger ones see `density.correlation_factor`.
    """

    slope_sd: float = 1.0
    intercept_sd: float = 1.0
    noise_sd: float = 1.0
    noise_rows: float = 4.0
    scales: Mapping[str, float] = field(default_factory=dict)
    centres: Mapping[str, float] = field(default_factory=dict)
    slopes: Mapping[Edge, tuple[float, float]] = field(default_factory=dict)
    latent_sd: float = 1.0

    def __post_init__(self) -> None:
        for name in ("slope_sd", "intercept_sd", "noise_sd", "latent_sd"):
            object.__setattr__(self, name, _read_positive(name, getattr(self, name)))
        if not (
            2 < _number("noise_rows", self.noise_rows) <= LARGEST_MAGNITUDE
            or self.noise_rows == math.inf
        ):
            raise ModelError(
                "noise_rows must be more than 2 and at most 1e50 (math.inf: known variances), got "
                f"{self.noise_rows!r}"
            )
        object.__setattr__(self, "noise_rows", float(self.noise_rows))
        read = {
            "scales": lambda name, scale: _read_positive(f"the scale of {name!r}", scale),
            "centres": lambda name, centre: _read_finite(f"the centre of {name!r}", centre),
            "slopes": _read_slope,
        }
        for field_name, reader in read.items():
            given = _require_mapping(field_name, getattr(self, field_name))
            object.__setattr__(
                self, field_name, {name: reader(name, value) for name, value in given.items()}
            )

    def require_names(self, graph: CausalGraph) -> None:
        """Refuse names that the graph does not have."""
        for name in (*self.scales, *self.centres):
            if name not in graph.nodes:
                raise ModelError(f"the prior names an {unknown('variable', name, graph.nodes)}")
        for edge in self.slopes:
            if edge not in graph.directed:
                raise ModelError(
                    f"the prior has a slope for {edge!r}, which is no edge of the graph"
                )

    def require_no_known(self, known: Mapping[Edge, float]) -> None:
        """Refuse a prior for a coefficient that is known."""
        for edge in self.slopes:
            if edge in known:
                raise ModelError(
                    f"the coefficient of {' -> '.join(edge)} is known; it has no prior"
                )

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""
        return _canonical(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps(prior_to_record(self))

    @staticmethod
    def from_json(text: str) -> "Prior":
        """Return the prior of a JSON text that `to_json` wrote."""
        return read_prior_json(text)

    def noise_guess(self, node: str) -> float:
        """Return the guessed variance of a disturbance."""
        return (self.noise_sd * self.scales.get(node, 1.0)) ** 2

    def pseudo_rows(
        self, node: str, parents: tuple[str, ...], offset: float, intercept: bool
    ) -> np.ndarray:
        """Return rows (regressors, response) that say the same as the prior.

        Their squares sum to its quadratic form. offset: what known coefficients contribute at the
        centres.
        """
        rows = np.zeros((len(parents) + intercept, len(parents) + intercept + 1))
        if intercept:
            rows[0] = [
                1.0,
                *(self.centres.get(name, 0.0) for name in parents),
                self.centres.get(node, 0.0) - offset,
            ]
            rows[0] /= self.intercept_sd
        for position, parent in enumerate(parents, start=int(intercept)):
            mean, sd = self.slopes.get((parent, node), (0.0, None))
            ratio = (
                self.scales.get(parent, 1.0) / self.slope_sd
                if sd is None
                else self.noise_guess(node) ** 0.5 / sd
            )
            rows[position, position], rows[position, -1] = ratio, ratio * mean
        return rows


@dataclass(frozen=True, eq=False)
class MomentPrior:
    """The normal-inverse-Wishart prior of the observed moments, for `wishart`.

    The covariance is IW(nu, scale) and, given it, the mean is N(centre, covariance / kappa).

    Parameters
    ----------
    centre, scale:
        Arrays of shape (k,) and (k, k) over the target and its causes, in the graph's order.
    kappa:
        How many rows the centre is worth, a positive number.
    nu:
        Degrees of freedom, more than k + 1.
    """

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    def __post_init__(self) -> None:
        centre, scale = (_array(name, getattr(self, name)) for name in ("centre", "scale"))
        if centre.ndim != 1 or scale.shape != (len(centre), len(centre)):
            raise ModelError(
                f"a moment prior needs centre (k,) and scale (k, k), got {centre.shape} and "
                f"{scale.shape}"
            )
        _read_positive("kappa", self.kappa)
        if not len(centre) + 1 < _number("nu", self.nu) <= LARGEST_MAGNITUDE:
            raise ModelError(
                f"nu must be finite and more than k + 1 = {len(centre) + 1}, got {self.nu!r}"
            )
        sd = np.sqrt(np.abs(np.diagonal(scale)))
        is_symmetric = (np.abs(scale - scale.T) <= 1e-9 * np.outer(sd, sd)).all()  # NaN fails
        if not (np.isfinite(centre).all() and is_symmetric):
            raise ModelError("centre must be finite, scale symmetric and positive definite")
        for position, (middle, size) in enumerate(
            zip(np.abs(centre).tolist(), sd.tolist(), strict=True)
        ):
            _require_size(f"centre[{position}]", middle, least=0.0)
            _require_size(f"the root of scale[{position}, {position}]", size)
        if not (np.linalg.eigvalsh(scale / np.outer(sd, sd)) > 0).all():
            raise ModelError("centre must be finite, scale symmetric and positive definite")
        for name, array in (("centre", centre), ("scale", (scale + scale.T) / 2)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""
        return _canonical(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps(prior_to_record(self))

    @staticmethod
    def from_json(text: str) -> "Prior":
        """Return the prior of a JSON text that `to_json` wrote."""
        return read_prior_json(text)


Prior = ScaledPrior | FixedPrior | MomentPrior


def _canonical(prior: Prior) -> str:
    def write(value: object) -> object:
        if isinstance(value, np.ndarray):
            return value.tobytes().hex()
        if isinstance(value, Mapping):
            return sorted((str(key), write(each)) for key, each in value.items())
        if isinstance(value, Sequence):
            return [write(each) for each in value]
        return float(value).hex()  # type: ignore[arg-type]

    return f"{type(prior).__name__} {[write(getattr(prior, each.name)) for each in fields(prior)]}"


def _require_mapping(name: str, given: object) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise ModelError(f"{name} must be a mapping such as {{'X': 1.0}}, got {given!r}")
    return given


def _read_slope(edge: object, distribution: object) -> tuple[float, float]:
    if (
        isinstance(distribution, str | bytes)
        or not isinstance(distribution, Sequence)
        or len(distribution) != 2
    ):
        raise ModelError(
            f"the prior of the slope {edge!r} is a pair (mean, sd), got {distribution!r}"
        )
    mean = _read_finite(f"the prior mean of the slope {edge!r}", distribution[0], LARGEST_SLOPE)
    return mean, _read_positive(
        f"the prior sd of the slope {edge!r}", distribution[1], 1 / LARGEST_SLOPE, LARGEST_SLOPE
    )


def _array(name: str, given: object) -> np.ndarray:
    try:
        return np.array(given, float)
    except (TypeError, ValueError):
        raise ModelError(f"{name} must be an array of numbers, got {given!r}") from None


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ModelError(f"{name} must be a number, got {value!r}")
    return as_float(value)


def _read_finite(name: str, value: object, most: float = LARGEST_MAGNITUDE) -> float:
    number = _number(name, value)
    if not math.isfinite(number):
        raise ModelError(f"{name} must be finite, got {value!r}")
    _require_size(name, abs(number), 0.0, most)
    return number


def _read_positive(
    name: str, value: object, least: float = SMALLEST_MAGNITUDE, most: float = LARGEST_MAGNITUDE
) -> float:
    number = _number(name, value)
    if not 0 < number < math.inf:
        raise ModelError(f"{name} must be a positive number, got {value!r}")
    _require_size(name, number, least, most)
    return number


def _require_size(
    name: str, size: float, least: float = SMALLEST_MAGNITUDE, most: float = LARGEST_MAGNITUDE
) -> None:
    """Refuse a size whose squares, in ratios with those of other columns, overflow or underflow."""
    fault = size_fault(size, least, most)
    if fault:
        raise ModelError(f"{name} has the size {fault}")


def prior_to_record(prior: Prior) -> dict[str, object]:
    """Return a prior as a dictionary that JSON can hold; infinity is written as a text."""
    if not isinstance(prior, ScaledPrior | FixedPrior | MomentPrior):
        raise ModelError(f"a prior of one's own cannot be written as JSON; got {prior!r}")

    def write(value: Any) -> object:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, Mapping):
            pairs = (
                (list(key) if isinstance(key, tuple) else key, each) for key, each in value.items()
            )
            return [[key, write(each)] for key, each in pairs]
        if isinstance(value, tuple):
            return [write(each) for each in value]
        return "inf" if value == math.inf else value

    parts = {each.name: write(getattr(prior, each.name)) for each in fields(prior)}
    return {"prior": type(prior).__name__, **parts}


def prior_from_record(record: object) -> Prior:
    """Return the prior of such a dictionary; raises ModelError where it is none."""
    kinds = {kind.__name__: kind for kind in (ScaledPrior, FixedPrior, MomentPrior)}
    if not isinstance(record, dict) or record.get("prior") not in kinds:
        raise ModelError(f"a prior is one of {', '.join(kinds)}; got {record!r}")
    kind, parts = kinds[record["prior"]], {k: v for k, v in record.items() if k != "prior"}

    def read(value: Any) -> Any:
        if isinstance(value, list) and all(
            isinstance(each, list) and len(each) == 2 for each in value
        ):
            pairs = ((tuple(key) if isinstance(key, list) else key, each) for key, each in value)
            return {key: tuple(each) if isinstance(each, list) else each for key, each in pairs}
        return math.inf if value == "inf" else value

    maps = {"scales", "centres", "slopes"}
    try:
        return kind(
            **{
                name: read(each) if name in maps or each == "inf" else each
                for name, each in parts.items()
            }
        )
    except TypeError as error:
        raise ModelError(f"the parts of a {kind.__name__} cannot be read: {error}") from None


def read_prior_json(text: str) -> Prior:
    """Return the prior of a JSON text that `prior.to_json()` wrote."""
    try:
        record = json.loads(text)
    except (TypeError, ValueError) as error:
        raise ModelError(f"a prior is read from a JSON text: {error}") from None
    return prior_from_record(record)
