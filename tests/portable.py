"""Run the tests as other processors would: with other OpenBLAS kernels and instructions in JAX.

OpenBLAS chooses its kernels by processor, and each rounds in its own way. `OPENBLAS_CORETYPE` makes
it choose as on another one, as far as this processor has the instructions. Rounding sends chains of
NUTS on other trajectories, so every run has its own (`OTHER_TRAJECTORIES`, see conftest.py).

    python tests/portable.py all [pytest's arguments]
    python tests/portable.py other [pytest's arguments]

The first runs every core type, and JAX limited to fewer instructions; the second one core type that
differs from this processor's own.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE_TYPES = ("Sandybridge", "Haswell", "SkylakeX", "Zen")
PREFERRED = (
    "Haswell",
    "SkylakeX",
    "Sandybridge",
)  # to differ from the processor's own: the commonest first
WORKERS = ("-n", "2", "--dist", "worksteal")
ISAS = ("AVX2", "AVX")  # for JAX: the second where the processor has nothing beyond the first
PROBE = """
import json, numpy as np, scipy.linalg, sys
from threadpoolctl import threadpool_info
x = np.random.default_rng(0).normal(size=(96, 96))
scipy.linalg.cholesky(x @ x.T + np.eye(96)), np.linalg.svd(x)
scipy.linalg.solve(x, x[0]), np.linalg.eigh(x @ x.T)
libraries = [each for each in threadpool_info() if each["internal_api"] == "openblas"]
sys.stdout.write(json.dumps(sorted({each["architecture"] for each in libraries})))
"""


def say(text: str) -> None:
    sys.stdout.write(f"portable: {text}\n")
    sys.stdout.flush()


def kernels(core_type: str | None) -> tuple[list[str], str]:
    """Return the kernels that OpenBLAS takes for a core type, or none and the reason why."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    environment |= {"OPENBLAS_CORETYPE": core_type} if core_type else {}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, env=environment
    )
    if done.returncode == -signal.SIGILL:
        return [], "this processor lacks its instructions"
    if done.returncode:
        return [], f"it fails here: {done.stderr.strip().splitlines()[-1:]}"
    found = json.loads(done.stdout)
    return found, "" if found else "NumPy and SciPy do not use OpenBLAS here"


def has_avx512() -> bool:
    from numpy._core._multiarray_umath import __cpu_features__

    return bool(__cpu_features__.get("AVX512F"))


def run_tests(name: str, arguments: list[str], **environment: str) -> bool:
    """Run pytest with these variables; compiled programs of other instructions are kept apart."""
    say(f"{name}: {' '.join(f'{each}={value}' for each, value in environment.items())}")
    command = [sys.executable, "-m", "pytest", *WORKERS, "-q", "-p", "no:cacheprovider", *arguments]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode
    say(f"{name}: {'passed' if code == 0 else f'FAILED (pytest returned {code})'}")
    return code == 0


def run_all(arguments: list[str]) -> bool:
    """Run every core type whose kernels differ, and JAX with fewer instructions."""
    passed, seen = [], {}
    for core_type in CORE_TYPES:
        found, why = kernels(core_type)
        if not found or str(found) in seen:
            why = (
                why
                or f"OpenBLAS takes the kernels of {', '.join(found)} for it, which "
                f"{seen[str(found)]} ran"
            )
            say(f"{core_type}: SKIPPED: {why}")
            continue
        seen[str(found)] = core_type
        chains = str(1 + len(passed))
        passed.append(
            run_tests(core_type, arguments, OPENBLAS_CORETYPE=core_type, OTHER_TRAJECTORIES=chains)
        )
    isa = ISAS[0] if has_avx512() else ISAS[1]
    if isa != ISAS[0]:
        say(f"JAX: this processor has nothing beyond {ISAS[0]}, so the limit is {isa}")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={isa}".strip()
    kept = str(ROOT / ".jax_cache" / isa)
    passed.append(
        run_tests(
            f"JAX limited to {isa}", arguments, XLA_FLAGS=flags, JAX_COMPILATION_CACHE_DIR=kept
        )
    )
    say(f"{sum(passed)} of {len(passed)} runs passed")
    return all(passed)


def run_other(arguments: list[str]) -> bool:
    """Run one core type whose kernels differ from this processor's own."""
    own, why = kernels(None)
    for core_type in PREFERRED if own else ():
        found, why = kernels(core_type)
        if found and found != own:
            return run_tests(f"{core_type} (this processor's own: {', '.join(own)})", arguments,
                             OPENBLAS_CORETYPE=core_type)  # fmt: skip
    say(f"SKIPPED: no other core type runs here: {why or 'all take the same kernels'}")
    return True


if __name__ == "__main__":
    works = {"all": run_all, "other": run_other}
    if sys.argv[1:2] == [] or sys.argv[1] not in works:
        sys.exit(__doc__)
    sys.exit(0 if works[sys.argv[1]](sys.argv[2:]) else 1)
