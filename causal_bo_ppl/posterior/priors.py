"""What is believed about an equation, or about the moments, before any row?

An equation V_j = a_j + sum_i W_ij V_i + e has a normal-inverse-gamma prior: s2 = Var e ~ IG(shape, rate), and given s2
its coefficients are N(centre, s2 precision^-1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real

import numpy as np

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.graph import CausalGraph, Edge


@dataclass(frozen=True)
class ScaledPrior:
    """The default: scaled to the data, worth `rows` of their n rows. It moves a posterior by rows / n, in any units.

    Equations: Zellner's g-prior. Given s2 the slopes are N(0, s2 (n / rows) (Xc'Xc)^-1), Xc the centred parents; the
    mean of V_j at its parents' means is N(its sample mean, s2 / rows); s2 is IG(rows / 2, rows / 2 times the variance
    of V_j). Moments (`wishart`): kappa_0 = rows, nu_0 = rows - 1, centred at the sample mean, Psi_0 = rows times the
    diagonal of the sample covariance; as rows go to 0, Jeffreys' independent prior of mean and covariance.
    """

    rows: float = 0.01

    def __post_init__(self) -> None:
        _require_positive("rows", self.rows)


@dataclass(frozen=True)
class FixedPrior:
    """Proper and independent of the data: few rows, or none, are enough.

    Given s2, the slope of i in the equation of j is N(0, s2 (slope_sd / scale_i)^2), the mean of V_j at its parents'
    centres is N(centre_j, s2 intercept_sd^2), and s2 is IG(noise_rows / 2, noise_rows / 2 times (noise_sd scale_j)^2):
    a guess of the disturbance's sd that is worth `noise_rows` rows.

    Parameters
    ----------
    slope_sd, intercept_sd, noise_sd:
        Without units: what has units is in `scales` and `centres`.
    noise_rows:
        More than 2, or s2 has no mean a priori; `math.inf` means that the disturbances' variances are known.
    scales, centres:
        {variable: typical spread} and {variable: typical value}; 1 and 0 for variables that are not named.
    slopes:
        {(cause, effect): (mean, sd)} where more is known about a coefficient; sd at the guessed s2.
    """

    slope_sd: float = 1.0
    intercept_sd: float = 1.0
    noise_sd: float = 1.0
    noise_rows: float = 4.0
    scales: Mapping[str, float] = field(default_factory=dict)
    centres: Mapping[str, float] = field(default_factory=dict)
    slopes: Mapping[Edge, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("slope_sd", "intercept_sd", "noise_sd"):
            _require_positive(name, getattr(self, name))
        if not self.noise_rows > 2:
            raise ModelError(f"noise_rows must be more than 2 (math.inf: known variances), got {self.noise_rows!r}")
        for name, scale in self.scales.items():
            _require_positive(f"the scale of {name!r}", scale)
        for name, centre in self.centres.items():
            if not math.isfinite(centre):
                raise ModelError(f"the centre of {name!r} must be finite, got {centre!r}")
        for edge, (mean, sd) in self.slopes.items():
            _require_positive(f"the prior sd of the slope {edge!r}", sd)
            if not math.isfinite(mean):
                raise ModelError(f"the prior mean of the slope {edge!r} must be finite, got {mean!r}")

    def require_names(self, graph: CausalGraph, known: Mapping[Edge, float]) -> None:
        """Refuse names that the graph does not have, and a prior for a coefficient that is known."""
        for name in (*self.scales, *self.centres):
            if name not in graph.nodes:
                raise ModelError(f"the prior names an {unknown('variable', name, graph.nodes)}")
        for edge in self.slopes:
            if edge not in graph.directed:
                raise ModelError(f"the prior has a slope for {edge!r}, which is no edge of the graph")
            if edge in known:
                raise ModelError(f"the coefficient of {' -> '.join(edge)} is known; it has no prior")

    def noise_guess(self, node: str) -> float:
        """The guessed variance of a disturbance."""
        return (self.noise_sd * self.scales.get(node, 1.0)) ** 2

    def pseudo_rows(self, node: str, parents: tuple[str, ...], offset: float, intercept: bool) -> np.ndarray:
        """Rows (regressors, response) that say the same as the prior: their squares sum to its quadratic form.

        offset: what known coefficients contribute at the centres.
        """
        rows = np.zeros((len(parents) + intercept, len(parents) + intercept + 1))
        if intercept:
            rows[0] = [1.0, *(self.centres.get(name, 0.0) for name in parents), self.centres.get(node, 0.0) - offset]
            rows[0] /= self.intercept_sd
        for place, parent in enumerate(parents, start=int(intercept)):
            mean, sd = self.slopes.get((parent, node), (0.0, None))
            ratio = self.scales.get(parent, 1.0) / self.slope_sd if sd is None else self.noise_guess(node) ** 0.5 / sd
            rows[place, place], rows[place, -1] = ratio, ratio * mean
        return rows


@dataclass(frozen=True)
class MomentPrior:
    """Normal-inverse-Wishart prior of `wishart`: covariance ~ IW(nu, scale), mean ~ N(centre, covariance / kappa).

    scale (k, k) and centre (k,) are over the target and its causes, in the graph's order; nu > k + 1.
    """

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    def __post_init__(self) -> None:
        centre, scale = np.array(self.centre, float), np.array(self.scale, float)
        size = len(centre)
        if centre.ndim != 1 or scale.shape != (size, size):
            raise ModelError(f"a moment prior needs centre (k,) and scale (k, k), got {centre.shape} and {scale.shape}")
        _require_positive("kappa", self.kappa)
        if not (math.isfinite(self.nu) and self.nu > size + 1):
            raise ModelError(f"nu must be finite and more than k + 1 = {size + 1}, got {self.nu!r}")
        if not (np.isfinite(centre).all() and np.allclose(scale, scale.T) and (np.linalg.eigvalsh(scale) > 0).all()):
            raise ModelError("centre must be finite, scale symmetric and positive definite")
        object.__setattr__(self, "centre", centre)
        object.__setattr__(self, "scale", scale)


Prior = ScaledPrior | FixedPrior | MomentPrior


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ModelError(f"{name} must be a positive number, got {value!r}")
