"""What is believed about mechanisms that bend, before any row, and what the analyst may choose.

Priors are without units; what has units is read off the rows, or given.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inputs import read_count, read_number
from causal_bo_ppl.mechanisms.gp.basis import SMOOTHNESS

MOST_TOGETHER = 3  # causes of one group
MOST_PRODUCTS = 1_000  # basis functions of one group
BINS = 6  # of equally many rows, between whose means the steepest slope is looked for
WITHIN = 3.0  # sds from the mean, beyond which rows do not widen the range of a basis


@dataclass(frozen=True)
class GP:
    """How one variable depends on its causes: a linear trend plus Gaussian processes.

    A process has one lengthscale and one amplitude for all values of a cause. Where a mechanism
    bends much more in one part of the data than in another, as C = exp(-B) does, its bands are too
    narrow where rows are sparse, inside the data too; "uneven curvature" in `cb.check_predictive`
    looks for that.

    Parameters
    ----------
    groups:
        Causes whose influence is not additive, such as `[("D", "E")]`: each group of two or three
        has one process of all of them. Causes that are in no group have a process of their own.
    kernel:
        "squared_exponential", "matern52" or "matern32".
    functions:
        How many basis functions each cause has, at most 256; by default 48, fewer (at least 16)
        where a variable has more than four causes, and 12 or 6 for each cause in a group of two or
        three. `cb.check_basis` says whether they are enough. A group has at most 1,000 products.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.GP(groups=[("D", "E")], kernel="matern52")
    GP(groups=(('D', 'E'),), kernel='matern52', functions=None)
    """

    groups: Sequence[Sequence[str]] = ()
    kernel: str = "squared_exponential"
    functions: int | None = None

    def __post_init__(self) -> None:
        given = self.groups
        nested = isinstance(given, (list, tuple)) and all(
            isinstance(each, (list, tuple)) for each in given
        )
        if not nested:
            raise ModelError(
                f"groups are lists of names, such as [('D', 'E')]; got {self.groups!r}"
            )
        groups = tuple(tuple(map(str, each)) for each in self.groups)
        members = [name for each in groups for name in each]
        for each in groups:
            if not 2 <= len(set(each)) <= MOST_TOGETHER or len(set(each)) != len(each):
                raise ModelError(
                    f"a group holds two or three different causes, got {each!r}; more would need "
                    "more basis functions than rows can tell apart"
                )
        if len(set(members)) != len(members):
            raise ModelError(f"a cause belongs to one group only, got {groups!r}")
        object.__setattr__(self, "groups", groups)
        if not isinstance(self.kernel, str) or self.kernel not in SMOOTHNESS:
            raise ModelError(f"kernel must be one of {listed(SMOOTHNESS)}, got {self.kernel!r}")
        if self.functions is not None:
            functions = read_count("functions", self.functions, 2)
            largest = max((len(each) for each in groups), default=1)
            if functions > 256 or functions**largest > MOST_PRODUCTS and largest > 1:
                raise ModelError(
                    f"functions={functions} gives {functions**largest:,} basis functions for one "
                    f"process; at most 256 for one cause and {MOST_PRODUCTS:,} for a group are "
                    "possible"
                )
            object.__setattr__(self, "functions", functions)


@dataclass(frozen=True, eq=False)
class GPPrior:
    """The prior of mechanisms that bend.

    A hyperparameter is log-normal: given are its median, in the units of the rows named below, and
    the sd of its logarithm, its `spread`. Given the hyperparameters, coefficients are Gaussian.

    Parameters
    ----------
    lengthscale, target_lengthscale, lengthscale_spread:
        Of the Gaussian processes, in sds of the cause; the second is for the target's mechanism.
    amplitude, amplitude_spread:
        The sd of a process, in sds of the variable.
    trend, trend_spread:
        The sd of a slope, in sds of the variable for one sd of the cause.
    hinge:
        The sd by which a slope may change beyond the range of the data, in the steepest slopes that
        the rows show.
    noise, noise_spread:
        The sd of the disturbance, in sds of the variable.
    level:
        The sd of the mean at the causes' means, in sds of the variable.
    scales, centres, ranges:
        {variable: sd}, {variable: mean} and {variable: (low, high)} in place of those of the rows.
        Where all are given the prior does not depend on the rows.
    """

    lengthscale: float = 1.0
    target_lengthscale: float = 1.5
    lengthscale_spread: float = 1.0
    amplitude: float = 1.0
    amplitude_spread: float = 1.0
    trend: float = 1.0
    trend_spread: float = 0.5
    hinge: float = 1.0
    noise: float = 0.5
    noise_spread: float = 1.5
    level: float = 10.0
    scales: Mapping[str, float] = field(default_factory=dict)
    centres: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self)[:11]:
            value = read_number(each.name, getattr(self, each.name))
            if not 1e-6 <= value <= 1e6:
                raise ModelError(f"{each.name} must be positive, 1e-6 to 1e6, got {value!r}")
            object.__setattr__(self, each.name, value)
        readers = {"scales": _read_scale, "centres": _read_centre, "ranges": _read_range}
        for name, read in readers.items():
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise ModelError(f"{name} is {{variable: value}}, got {given!r}")
            object.__setattr__(
                self, name, {str(each): read(str(each), value) for each, value in given.items()}
            )

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""
        record = json.loads(self.to_json())
        return f"GPPrior {json.dumps(record, sort_keys=True)}"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

    @staticmethod
    def from_json(text: str) -> "GPPrior":
        """Return the prior of a JSON text that `to_json` wrote."""
        try:
            record = json.loads(text)
        except (TypeError, ValueError) as error:
            raise ModelError(f"a prior is read from a JSON text: {error}") from None
        known = {each.name for each in fields(GPPrior)}
        if not isinstance(record, dict) or set(record) != known:
            raise ModelError(f"a GPPrior has exactly the fields {listed(sorted(known))}")
        return GPPrior(**record)


def _read_scale(name: str, value: object) -> float:
    scale = read_number(f"the scale of {name!r}", value)
    if not scale > 0:
        raise ModelError(f"the scale of {name!r} must be positive, got {scale!r}")
    return scale


def _read_centre(name: str, value: object) -> float:
    return read_number(f"the centre of {name!r}", value)


def _read_range(name: str, value: Any) -> tuple[float, float]:
    ends = tuple(value) if isinstance(value, Sequence) else ()
    if len(ends) != 2:
        raise ModelError(f"the range of {name!r} is (low, high), got {value!r}")
    low, high = (read_number(f"the range of {name!r}", end) for end in ends)
    if not low < high:
        raise ModelError(f"the range of {name!r} must be (low, high), got {value!r}")
    return low, high


class Spread(NamedTuple):
    """Where the values of one variable lie: their mean, sd, and range."""

    centre: float
    scale: float
    low: float
    high: float

    def draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Draw values of this mean and sd from a Gaussian."""
        return self.centre + self.scale * generator.standard_normal(shape)


def read_spread(prior: GPPrior, name: str, values: np.ndarray) -> Spread:
    """Return where a variable lies, as the prior says or, where it does not, as the rows do.

    Rows more than three sds away do not widen the range: a basis for all of it would be coarse.
    """
    named = (name in prior.centres, name in prior.scales, name in prior.ranges)
    if not all(named) and not len(values):
        raise ModelError(
            f"{name!r} was set in every row, so that its mechanism cannot be learned; add rows in "
            f"which it was not set, or give `centres`, `scales` and `ranges` of {name!r} in "
            "cb.GPPrior to rest on the prior"
        )
    if not all(named) and (len(values) < 2 or not np.ptp(values) > 0):
        raise ModelError(
            f"the rows of {name!r} do not vary, so that its scale is not known; give `centres`, "
            f"`scales` and `ranges` of {name!r} in cb.GPPrior"
        )
    centre = prior.centres[name] if named[0] else float(values.mean())
    scale = prior.scales[name] if named[1] else float(values.std())
    if named[2]:
        return Spread(centre, scale, *prior.ranges[name])
    reach = max(WITHIN * scale, abs(float(values.mean()) - centre))
    low, high = max(float(values.min()), centre - reach), min(float(values.max()), centre + reach)
    return Spread(centre, scale, low, high)


def steepest_slope(cause: np.ndarray, effect: np.ndarray) -> float:
    """Return the steepest slope between means of neighbouring parts of the rows, by the cause.

    Four squared standard errors are taken off each squared slope, so that few rows with much noise
    show no slopes of their own. The noise is what a line within each part leaves.
    """
    order = np.argsort(cause, kind="stable")
    bins = min(BINS, len(cause) // 5)
    if bins < 2:
        return 0.0
    parts = np.array_split(order, bins)
    x, y = (np.array([values[part].mean() for part in parts]) for values in (cause, effect))
    left = sum(_left_by_line(cause[part], effect[part]) for part in parts)
    noise = left / (len(cause) - 2 * bins)
    sizes = np.array([len(part) for part in parts])
    apart = np.diff(x) > 1e-3 * math.fabs(float(np.ptp(cause)))
    slopes = np.diff(y)[apart] / np.diff(x)[apart]
    errors = noise * (1 / sizes[1:] + 1 / sizes[:-1])[apart] / np.diff(x)[apart] ** 2
    return float(np.sqrt(np.maximum(slopes**2 - 4 * errors, 0.0)).max(initial=0.0))


def _left_by_line(cause: np.ndarray, effect: np.ndarray) -> float:
    """Return the sum of squares that a line of the cause leaves of the effect."""
    x, y = cause - cause.mean(), effect - effect.mean()
    size = float(x @ x)
    along = float(x @ y) ** 2 / size if size > 0 else 0.0
    return max(float(y @ y) - along, 0.0)
