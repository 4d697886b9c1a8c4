"""Where are units of work computed, and what becomes of a unit whose process dies?

Every worker is a fresh process with a pipe of its own, and holds one unit at a time. The processes
are spawned, since a forked one waits for ever once JAX has run. A process that dies therefore loses
one unit, which is given to another process, while all other units go on undisturbed; the pools of
the standard library lose every unit of the pool instead.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from causal_bo_ppl.errors import ModelError, WorkerError
from causal_bo_ppl.experiments.serialized_calls import Failed as Failed
from causal_bo_ppl.experiments.serialized_calls import compute, pack, unpack

T = TypeVar("T")
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
READY = b"ready"
GRACE = 5.0  # seconds that a worker without work has to leave Python in good order
_STARTING = threading.Lock()  # the environment belongs to the whole process


def run_units(
    task: Callable[[Any], T],
    units: Sequence[Any],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    tries: int = 3,
) -> Generator[tuple[int, T | Failed], None, None]:
    """Run a task on every unit in other processes and give the results in the order they end.

    A result depends on its unit alone: not on the number of workers, on the order in which units
    end, or on the units beside it, provided that the task itself takes its random keys from the
    unit. Functions and classes of a script or a notebook are sent by value, and the script itself
    is not imported by the workers: it needs no `if __name__ == "__main__"`.

    Parameters
    ----------
    task
        What is called with each unit. An exception that it raises becomes a `Failed` at once, since
        it would only be raised again.
    units
        What the task is called with, one after the other. Each is pickled when its turn comes.
    workers
        How many processes of this machine compute at the same time; by default one for every core
        that this process may use, and never more than there are units. Each has one thread for
        linear algebra and for XLA, ignores Ctrl-C, and ends when this process ends. All share the
        compiled programs in `JAX_COMPILATION_CACHE_DIR`, or in a temporary directory.
    scheduler
        Address of a running Dask cluster, such as "tcp://10.0.0.5:8786", that computes instead of
        this machine. It is not shut down at the end. The number of threads of its processes is up
        to its owner: start `dask worker --nthreads 1` with the variables OPENBLAS_NUM_THREADS,
        OMP_NUM_THREADS and NPROC set to 1. A process with several threads computes one unit at a
        time all the same.
    tries
        How often a unit is begun at most when the process that runs it dies (a signal, too little
        memory, a crash of a library). On a cluster its setting
        `distributed.scheduler.allowed-failures` decides instead.

    Returns
    -------
    generator of tuple
        (place in `units`, result or `Failed`). Closing it ends the workers at once, also in the
        middle of their units; units that run on a cluster go on to their end there. An exception in
        the loop that reads it closes it only when Python drops the loop's variables: write
        `with contextlib.closing(run_units(...)) as results:` to be sure.

    Raises
    ------
    ModelError
        If an argument is not usable.
    WorkerError
        If the task cannot be pickled, if no worker process comes up, or if the cluster does not
        answer, has no workers or runs another version of this package.

    Examples
    --------
    >>> from causal_bo_ppl.experiments.workers import run_units
    >>> sorted(run_units(abs, [-3, 2, -1], workers=1))
    [(0, 3), (1, 2), (2, 1)]
    """
    from causal_bo_ppl.inputs import read_count  # loads JAX, which the workers need not wait for

    tries = read_count("tries", tries, 1)
    if workers is not None:
        workers = read_count("workers", workers, 1)
    packed = pack(task)
    if isinstance(packed, Failed):
        raise WorkerError(
            f"the task cannot be sent to other processes ({packed.error}); "
            "leave open files, locks and connections out of what it refers to"
        )
    if scheduler is None:
        if multiprocessing.current_process().daemon:
            raise WorkerError(
                "a worker process cannot start workers of its own; compute the units one after "
                "the other within the task, or run the tasks from the main process"
            )
        return _run_here(packed, units, min(workers or count_cores(), len(units)), tries)
    if workers is not None:
        raise ModelError(
            f"workers = {workers} is for this machine, but scheduler = {scheduler!r} names a "
            "cluster, which has its own number of workers; give one of both"
        )
    from causal_bo_ppl.experiments.cluster import run_on_cluster

    return run_on_cluster(scheduler, packed, units)


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker(NamedTuple):
    process: SpawnProcess
    pipe: Connection


def _run_here(
    task: bytes, units: Sequence[Any], workers: int, tries: int
) -> Generator[tuple[int, Any], None, None]:
    """Run the units in processes of this machine; see `run_units`."""
    with _worker_environment() as environment:
        pool = _Pool(task, units, workers, tries, environment)
        try:
            yield from pool.run()
        finally:
            pool.end()


class _Pool:
    """The worker processes of one call, the unit that each computes, and the units that wait."""

    def __init__(
        self,
        task: bytes,
        units: Sequence[Any],
        workers: int,
        tries: int,
        environment: Mapping[str, str],
    ) -> None:
        self.task, self.units, self.workers, self.tries = task, units, workers, tries
        self.environment = environment
        self.waiting = deque(range(len(units)))
        self.crashes: Counter[int] = Counter()  # by unit
        self.failed_starts = 0  # processes that died before they were ready, one after the other
        self.started: list[_Worker] = []  # all whose end is still to be seen to
        self.holding: dict[_Worker, int | None] = {}  # None while Python starts there

    def run(self) -> Iterator[tuple[int, Any]]:
        """Give (place, result) until every unit has one; a worker goes on before it is given."""
        while self.unfinished():
            while len(self.holding) < min(self.workers, self.unfinished()):
                self.start()
            for worker in _heard(self.holding):
                message = _receive(worker)
                yield from (
                    self.retry_or_fail(worker) if message is None else self.go_on(worker, message)
                )
        for worker in self.started:
            if worker not in self.holding:  # it was told to leave
                worker.process.join(GRACE)

    def unfinished(self) -> int:
        """Return how many units have no result yet."""
        return len(self.waiting) + sum(place is not None for place in self.holding.values())

    def start(self) -> None:
        """Start one more process, which says when it is ready."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        worker = _Worker(context.Process(target=_serve, args=(there,), daemon=True), here)
        self.started.append(worker)
        self.holding[worker] = None
        try:
            with _STARTING, _set(self.environment), _without_main(), _interrupts_blocked():
                worker.process.start()
        except OSError as error:
            raise WorkerError(
                f"this machine starts no further process ({error}); ask for fewer workers than "
                f"{self.workers}, or end other programs"
            ) from error
        finally:
            there.close()

    def go_on(self, worker: _Worker, message: bytes) -> list[tuple[int, Any]]:
        """Give a worker that is ready, or has sent a result, its next unit; return what is done."""
        done: list[tuple[int, Any]] = []
        place = self.holding.pop(worker)
        if place is None:
            self.failed_starts = 0
            _send(worker, self.task)
        else:
            done.append((place, _count(unpack(message), self.crashes[place] + 1)))
        while self.waiting:
            following = self.waiting.popleft()
            packed = pack(self.units[following])
            if not isinstance(packed, Failed):
                self.holding[worker] = following
                _send(worker, packed)
                return done
            done.append((following, packed))
        worker.pipe.close()  # nothing is left: it leaves by itself
        return done

    def retry_or_fail(self, worker: _Worker) -> list[tuple[int, Any]]:
        """Have the unit of a dead worker tried again, or return it as failed."""
        place = self.holding.pop(worker)
        how = _finish(worker)
        self.started.remove(worker)
        if place is None:
            self.failed_starts += 1
            if self.failed_starts >= self.tries:
                raise WorkerError(
                    f"no worker process came up: {self.failed_starts} in turn ended ({how}) before "
                    "they were ready; what they printed as standard error says why. A new process "
                    "of this Python must be able to import causal_bo_ppl and needs some 500 MB"
                )
            return []
        self.crashes[place] += 1
        if self.crashes[place] < self.tries:
            self.waiting.append(place)  # at the end, when others may have left more memory
            return []
        times = "once" if self.tries == 1 else f"{self.tries} times"
        error = f"the process that computed this unit died {times}, at last with {how}"
        return [(place, Failed(error, "", True, self.tries))]

    def end(self) -> None:
        """End all processes at once, whatever they do."""
        for worker in self.started:
            if worker.process.pid is not None:
                worker.process.kill()
        for worker in self.started:
            _finish(worker)


def _heard(workers: Iterable[_Worker]) -> list[_Worker]:
    """Wait until at least one worker has sent something or has died; return all that have."""
    sources: dict[object, _Worker] = {}
    for worker in workers:
        sources[worker.pipe] = sources[worker.process.sentinel] = worker
    ready = connection.wait(list(sources))  # type: ignore[arg-type]
    return list(dict.fromkeys(sources[source] for source in ready))


def _receive(worker: _Worker) -> bytes | None:
    """Return what a worker has sent; None where it has died instead."""
    try:
        return worker.pipe.recv_bytes() if worker.pipe.poll() else None
    except (EOFError, OSError):
        return None


def _send(worker: _Worker, message: bytes) -> None:
    """Send bytes to a worker; one that is dead is noticed when its next message is awaited."""
    with suppress(OSError):
        worker.pipe.send_bytes(message)


def _count(result: Any, tried: int) -> Any:
    return result._replace(tried=tried) if isinstance(result, Failed) else result


def _finish(worker: _Worker) -> str:
    """Close the pipe of a worker, kill it where it still runs, and say how it ended."""
    worker.pipe.close()
    if worker.process.pid is None:
        return "never started"
    worker.process.join(GRACE if worker.process.exitcode is None else 0)
    if worker.process.exitcode is None:
        worker.process.kill()
        worker.process.join()
    code = worker.process.exitcode or 0
    names = {each.value: each.name for each in signal.Signals}
    return f"signal {names.get(-code, -code)}" if code < 0 else f"exit code {code}"


def _serve(pipe: Connection) -> None:
    """Compute one unit after the other in this process, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        pipe.send_bytes(READY)
        task = pipe.recv_bytes()
        while True:
            pipe.send_bytes(compute(task, pipe.recv_bytes()))
    except (EOFError, OSError):  # nobody is there any more
        return


def _end_with_parent() -> None:
    """End this process when its parent has ended, also in the middle of a unit."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _worker_environment() -> Iterator[dict[str, str]]:
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
def _set(variables: Mapping[str, str]) -> Iterator[None]:
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
def _without_main() -> Iterator[None]:
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
def _interrupts_blocked() -> Iterator[None]:
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
