"""What surrounds a new worker process: its variables, its main module, and signals."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from types import ModuleType

# NPROC is what XLA reads as the number of processors: its pool then has no second thread. The flag
# --xla_cpu_multi_thread_eigen=false leaves the pool as it is (tried with jax 0.10).
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"), "1"
)
CACHE = "JAX_COMPILATION_CACHE_DIR"
CACHE_ALL = {  # programs of any size and compile time are kept
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@contextmanager
def worker_environment() -> Iterator[dict[str, str]]:
    """Give the variables of a worker's environment; a temporary cache lasts as long as this."""
    jax = sys.modules.get("jax")
    chosen = os.environ.get(CACHE) or (jax and jax.config.jax_compilation_cache_dir)
    kept = {name: os.environ.get(name, value) for name, value in CACHE_ALL.items()}
    with ExitStack() as stack:
        if not chosen:
            chosen = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="causal_bo_jax_", ignore_cleanup_errors=True)
            )
        yield {**ONE_THREAD, **kept, CACHE: str(chosen)}


@contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment, which new processes inherit, and then restore them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def without_main() -> Iterator[None]:
    """Keep a new process from importing the script that runs.

    Spawning does that by the name or the file of the main module. A script without
    `if __name__ == "__main__"` would then begin again in each worker; and what a script or a
    notebook defines is sent by value anyway.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start processes that are deaf to Ctrl-C from their first moment; ours comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # its own start would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
