r"""By how much may an experiment beat the best so far? Expected improvement and its logarithm.

For `max` and an effect f ~ N(mu, s^2), E[(f - best)_+] = s h(z), z = (mu - best) / s and
h(z) = phi(z) + z Phi(z); for `min` of best - f. Plain EI is exactly 0 below z = -38, its logarithm
is not. With R(t) = sqrt(pi/2) erfcx(t / sqrt 2) the ratio of tail and density,

    log h(-t) = -t^2/2 - log(2 pi)/2 + log(1 - t R(t)),    1 - t R(t) = t^-2 - 3 t^-4 + 15 t^-6 ...

Where effects are affine in the values x, f(x) = a(x) + b(x)'w with w normal, (f(x) - best)_+ is
convex in x for every w, and so is its mean: expected improvement is largest at a vertex of a box.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inputs import read_number
from causal_bo_ppl.optimization.interface import Context, sign_of
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate

HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
# Beyond t = 50 the sum 1 - t R(t) has lost 2500 units of its last digit, while the series, cut
# after six terms, is off by 135135 / 50^12 = 6e-16.
FAR = 50.0
SERIES = (-10395.0, 945.0, -105.0, 15.0, -3.0, 1.0)  # of t^-2, the highest power first


def standard_improvement(z: np.ndarray) -> np.ndarray:
    """Return h(z) = phi(z) + z Phi(z), the expected positive part of z + N(0, 1)."""
    z = np.asarray(z, float)
    density = np.exp(-0.5 * z * z - HALF_LOG_2PI)
    with np.errstate(over="ignore"):
        middle = density + np.where(np.isneginf(z), 0.0, z) * ndtr(z)
    tail = np.exp(log_standard_improvement(np.minimum(z, -1.0)))
    return np.asarray(np.where(z < -1, tail, middle))


def log_standard_improvement(z: np.ndarray) -> np.ndarray:
    """Return log h(z), finite for z down to -1e150, with slope |z| in the far tail."""
    z = np.asarray(z, float)
    near = np.maximum(z, -1.0)
    # log h = log phi + log(1 + z Phi / phi) from -1 to 1, and log z + log(Phi + phi / z) above
    high = np.maximum(z, 1.0)
    above = np.log(high) + np.log(np.exp(log_ndtr(high)) + _density(high) / high)
    around = np.clip(near, -1.0, 1.0)
    middle = np.log(_density(around) + around * ndtr(around))
    t = np.maximum(-z, 1.0)
    close = np.minimum(t, FAR)
    inner = np.log1p(-close * np.sqrt(np.pi / 2) * erfcx(close / np.sqrt(2)))
    far = np.maximum(t, FAR)
    outer = np.log(np.polyval(SERIES, far**-2.0)) - 2 * np.log(far)
    with np.errstate(over="ignore"):
        below = -0.5 * t * t - HALF_LOG_2PI + np.where(t > FAR, outer, inner)
    return np.asarray(np.where(z > 1, above, np.where(z < -1, below, middle)))


def _density(z: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * z * z - HALF_LOG_2PI))


def expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return E[(gain + sd N(0, 1))_+], (M,); max(gain, 0) where sd is 0."""
    z = _ratio(gain, sd)
    with np.errstate(invalid="ignore"):
        doubtful = np.where(np.isfinite(z), sd * standard_improvement(z), np.maximum(gain, 0.0))
    return np.asarray(np.where(sd > 0, doubtful, np.maximum(gain, 0.0)))


def log_expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return log E[(gain + sd N(0, 1))_+], (M,).

    Where sd is 0 it is log(gain), or -inf where nothing is gained.
    """
    z = _ratio(gain, sd)
    with np.errstate(divide="ignore"):
        certain = np.log(np.maximum(gain, 0.0))
        doubtful = np.log(sd) + log_standard_improvement(np.where(np.isfinite(z), z, 0.0))
    return np.asarray(np.where((sd > 0) & np.isfinite(z), doubtful, certain))


def _ratio(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.asarray(gain / np.where(sd > 0, sd, 1.0))


@dataclass(frozen=True)
class ExpectedImprovement:
    """Expected improvement over the best effect so far, E[(f - best)_+] for "max".

    best: the effect to improve upon; None means the best mean of what can be recommended, which
    `prepare` finds.
    """

    best: float | None = None

    name = "ei"
    at_vertices = True
    uses_costs = False
    is_nonnegative = True

    def __post_init__(self) -> None:
        _read_best(self)

    def prepare(self, context: Context) -> "ExpectedImprovement":
        """Return the acquisition with the effect to improve upon."""
        return self if self.best is not None else replace(self, best=context.incumbent())

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the expected improvements, (M,)."""
        return expected_improvement(*_gains(self.best, surrogate, queries, objective))


@dataclass(frozen=True)
class LogExpectedImprovement:
    """Logarithm of the expected improvement, which tells queries apart where that underflows.

    best: as in `ExpectedImprovement`.
    """

    best: float | None = None

    name = "log-ei"
    at_vertices = True
    uses_costs = False
    is_log = True

    def __post_init__(self) -> None:
        _read_best(self)

    def prepare(self, context: Context) -> "LogExpectedImprovement":
        """Return the acquisition with the effect to improve upon."""
        return self if self.best is not None else replace(self, best=context.incumbent())

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the logarithms of the expected improvements, (M,)."""
        return log_expected_improvement(*_gains(self.best, surrogate, queries, objective))


def _read_best(rule: ExpectedImprovement | LogExpectedImprovement) -> None:
    if rule.best is None:
        return
    best = read_number("best", rule.best)
    if not np.isfinite(best):
        raise ModelError(f"best must be finite, got {best}")
    object.__setattr__(rule, "best", best)


def _gains(
    best: float | None, surrogate: Surrogate, queries: Queries, objective: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much each predicted effect is better than the best, and its sd."""
    if best is None:
        raise ModelError(
            "improvement over what? Call prepare(context) first, or give best=, the effect to "
            "improve upon"
        )
    mean, sd = surrogate.predict(queries)
    return sign_of(objective) * (mean - best), sd
