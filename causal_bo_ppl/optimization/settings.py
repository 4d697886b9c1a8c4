"""How is the next experiment chosen, and when is it enough? Checked once, kept with the run."""

import math
from dataclasses import dataclass
from numbers import Integral, Real

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inputs import MOST, as_float

MOST_ROUNDS = 10**9  # of anything that is counted: more would never end

KERNELS = {
    "gc-cbo": ("adaptive", "fixed"),
    "gc-cbo-fixed": ("fixed",),
}  # of each method, the default first
CHOICES = {
    "outcomes": ("noisy", "exact"),
    "acquisition": ("ucb",),
    "update": ("target", "full"),
    "report": ("mean", "observed", "model"),
    "inference": (None, "conjugate", "wishart", "laplace", "nuts"),
    "coupling": (True,),
    "residual": (False,),
}


@dataclass(frozen=True)
class Settings:
    """What `optimize` was told; see there."""

    method: str
    outcomes: str
    noise: float | None
    acquisition: str
    beta: float
    kernel: str | None
    coupling: bool
    residual: bool
    update: str
    report: str
    observations: int
    rounds: int | None
    budget: float | None
    batch: int
    inference: str | None
    accept: str | None

    def __post_init__(self) -> None:
        _require_one_of("method", self.method, tuple(KERNELS))
        object.__setattr__(
            self, "kernel", KERNELS[self.method][0] if self.kernel is None else self.kernel
        )
        _require_one_of("kernel", self.kernel, KERNELS[self.method])
        for name, choices in CHOICES.items():
            _require_one_of(name, getattr(self, name), choices)
        _require_number("beta", self.beta, least=0.0)
        _require_number("observations", self.observations, least=0, whole=True)
        _require_number("batch", self.batch, least=1, whole=True)
        if self.noise is not None:
            _require_number("noise", self.noise, least=0.0)
        if self.rounds is not None:
            _require_number("rounds", self.rounds, least=1, whole=True)
        if self.budget is not None:
            _require_number("budget", self.budget, least=0.0)
        if self.rounds is None and self.budget is None:
            raise ModelError("when to stop? Give rounds, budget, or both")
        if self.outcomes == "exact" and (self.noise or self.update == "full"):
            raise ModelError(
                'outcomes="exact" have no noise and no rows; leave out `noise`, and take update="target"'
            )
        if self.update == "full" and self.noise is not None:
            raise ModelError('update="full" learns the noise from whole rows; leave `noise` out')
        if self.update == "full" and self.kernel == "fixed":
            raise ModelError(
                'update="full" moves the posterior, so its kernel cannot be fixed; take update="target"'
            )
        if self.update == "full" and self.inference == "wishart":
            raise ModelError('wishart learns from observational rows only; take update="target"')

    @property
    def known_noise(self) -> float | None:
        """Variance of an outcome; None where the model implies it."""
        return 0.0 if self.outcomes == "exact" else self.noise


def _require_one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if not any(
        value is choice or (isinstance(value, str) and value == choice) for choice in choices
    ):
        raise ModelError(f"{name} must be one of {listed(map(repr, choices))}; got {value!r}")


def _require_number(name: str, value: object, least: float, whole: bool = False) -> None:
    kind, most = (Integral, MOST_ROUNDS) if whole else (Real, MOST)
    number = math.nan if isinstance(value, bool) or not isinstance(value, kind) else as_float(value)
    if not least <= number <= most:
        what = "a whole number" if whole else "a finite number"
        limit = f"at most {most:g}" if number > most else f"at least {least:g}"
        raise ModelError(f"{name} must be {what}, {limit}; got {value!r}")
