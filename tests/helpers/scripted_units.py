"""Units that do what their names state, for tests of the workers that compute them.

Internals: the workers are tested with units that need no optimization.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import threadpoolctl
import xarray as xr

from causal_bo_ppl.experiments.units import Loaded, Unit


@dataclass(frozen=True, eq=False)
class Scripted(Unit):
    """A unit whose method is the name of one of the functions below."""

    path: object = ""

    def describe(self):
        return super().describe() | {"method": self.method, "path": str(self.path)}

    def measure(self):
        values = ACTIONS[self.method](self)
        return xr.Dataset({"value": ("index", values)}, attrs={"pid": os.getpid()})


def scripted(method, seed=0, path=""):
    return Scripted("scripted", method, seed, Loaded("chain"), path)


def draw(unit):
    """Return numbers that depend on the seed alone; also in how long they take."""
    time.sleep(0.01 * (unit.seed % 3))
    return np.random.default_rng(unit.seed).normal(size=4)


def soon(claim, seconds=60.0):
    """Wait until a claim holds."""
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.02)


def wait_for(path):
    soon(Path(path).exists)


def note(path):
    """Add this process to a list in a file."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def noted(path):
    return [int(line) for line in Path(path).read_text().split()]


def draw_slowly(unit):
    time.sleep(0.3)
    return draw(unit)


def wait(unit):
    wait_for(unit.path)
    return [0.0]


def wait_for_second(unit):
    """Finish after the unit beside it was begun a second time."""
    note(f"{unit.path}/long")
    wait_for(f"{unit.path}/second")
    return [0.0]


def die_once(unit):
    """Be killed at the first try, while the unit beside it runs."""
    note(f"{unit.path}/dying")
    wait_for(f"{unit.path}/long")
    if len(noted(f"{unit.path}/dying")) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    Path(f"{unit.path}/second").touch()
    return [0.0]


def die(unit):
    note(unit.path)
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_first(unit):
    """Be killed at the first try."""
    note(unit.path)
    return die(unit) if len(noted(unit.path)) == 1 else [0.0]


def give_up(unit):
    note(unit.path)
    sys.exit("the unit gave up")


class UnpicklableError(Exception):
    """An exception that holds what cannot be pickled."""

    def __init__(self, message, file):
        super().__init__(message, file)

    def __str__(self):
        return self.args[0]


def fail(unit):
    note(unit.path)
    raise UnpicklableError("nothing there", open(os.devnull))  # noqa: SIM115


def sleep_long(unit):
    note(unit.path)
    time.sleep(300)


def describe_process(unit):
    """Return the threads for linear algebra, the busy threads of XLA, and the size of a float."""
    Path(unit.path).write_text(os.environ["JAX_COMPILATION_CACHE_DIR"])
    np.ones((3, 3)) @ np.ones((3, 3))
    pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    product = jax.jit(lambda matrix: matrix @ matrix)
    matrix = jax.numpy.ones((1000, 1000))
    product(matrix).block_until_ready()
    before = _ticks()
    for _ in range(10):
        product(matrix).block_until_ready()
    busy = sorted(ticks - before.get(thread, 0) for thread, ticks in _ticks().items())
    return [max(pools), busy[-1], sum(busy[:-1]), product(matrix).dtype.itemsize]


def _ticks():
    """Return hundredths of a second of every thread of this process (Linux)."""
    ticks = {}
    for folder in Path("/proc/self/task").iterdir():
        fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        ticks[folder.name] = int(fields[11]) + int(fields[12])
    return ticks


def nest(unit):
    """Try to start workers within a worker."""
    from causal_bo_ppl.experiments.execution import UnitRunner

    with UnitRunner(workers=1) as runner:
        list(runner.run([scripted("draw")]))
    return [0.0]


ACTIONS = {
    function.__name__: function
    for function in (
        describe_process,
        die,
        die_at_first,
        die_once,
        draw,
        draw_slowly,
        fail,
        give_up,
        nest,
        sleep_long,
        wait,
        wait_for_second,
    )
}
