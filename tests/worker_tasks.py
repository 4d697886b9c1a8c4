"""Tasks that worker processes import by name: without JAX, so that they start fast."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import threadpoolctl


def draw(seed):
    """Return numbers that depend on the seed alone; also in how long they take."""
    time.sleep(0.01 * (seed % 3))
    return np.random.default_rng(seed).normal(size=4) @ np.ones((4, 2))


def wait_for(path, seconds=60.0):
    """Wait until a file exists, at most a minute."""
    end = time.monotonic() + seconds
    while not Path(path).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} was never written")
        time.sleep(0.01)


def note(path):
    """Add this process to a list in a file."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def noted(path):
    return [int(line) for line in Path(path).read_text().split()]


def meet(unit):
    """Do what the unit says: write a file, or wait for it."""
    what, path = unit
    if what == "write":
        Path(path).touch()
    else:
        wait_for(path)
    return what


def long_or_dying(unit):
    """Be killed at the first try of "dying" while "long" runs, which ends after the second try."""
    what, folder = unit
    note(f"{folder}/{what}")
    if what == "long":
        wait_for(f"{folder}/second")
    else:
        wait_for(f"{folder}/long")
        if len(noted(f"{folder}/dying")) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        Path(f"{folder}/second").touch()
    return what, os.getpid()


def die(unit):
    """Note every try; die by signal or exit code, raise, or return, as the unit says."""
    what, path = unit
    note(path)
    if what == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "code":
        os._exit(3)
    if what == "exit":
        sys.exit("the task gave up")
    if what == "raise":
        raise OddError("nothing there", open(os.devnull))  # noqa: SIM115
    return what


class OddError(Exception):
    """An exception that holds what cannot be pickled."""

    def __init__(self, message, file):
        super().__init__(message, file)
        self.file = file

    def __str__(self):
        return self.args[0]


def never_ready(pipe):
    """Stand in for the loop of a worker and end before it begins."""
    os._exit(7)


def unpicklable(unit):
    return (each for each in range(unit))


class ReadNowhere:
    """Raises where it is unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def unreadable(unit):
    return ReadNowhere()


def surroundings(unit):
    """Return this process, its threads for linear algebra and some variables."""
    np.ones((3, 3)) @ np.ones((3, 3))
    pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    cache = os.environ["JAX_COMPILATION_CACHE_DIR"]
    return os.getpid(), pools, os.environ["NPROC"], cache, Path(cache).is_dir()


def sleep_long(path):
    note(path)
    time.sleep(300)


def busy_threads(size):
    """Return which threads computed a product of matrices with JAX, and of which type it is."""
    import jax

    import causal_bo_ppl  # noqa: F401

    product = jax.jit(lambda matrix: matrix @ matrix)
    matrix = jax.numpy.ones((size, size))
    product(matrix).block_until_ready()
    before = _ticks()
    for _ in range(10):
        product(matrix).block_until_ready()
    after = _ticks()
    busy = [after[thread] - before.get(thread, 0) for thread in after]
    return sorted(busy, reverse=True), str(product(matrix).dtype)


def _ticks():
    """Return hundredths of a second of every thread of this process (Linux)."""
    ticks = {}
    for folder in Path("/proc/self/task").iterdir():
        fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        ticks[folder.name] = int(fields[11]) + int(fields[12])
    return ticks


def nested(unit):
    """Try to run units within a unit."""
    from causal_bo_ppl.experiments.workers import run_units

    return list(run_units(draw, [unit]))


def slow_draw(seed):
    time.sleep(0.3)
    return draw(seed), os.getpid()
