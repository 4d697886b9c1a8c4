"""Where are units of work computed, and what becomes of a unit whose process dies?

Every worker is a fresh process with a pipe of its own, and holds one unit at a time. The processes
are spawned, since a forked one waits for ever once JAX has run. A process that dies therefore loses
one unit, which is given to another process, while all other units go on undisturbed; the pools of
the standard library lose every unit of the pool instead. `Workers` keeps processes between calls,
since each takes seconds to come up.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, TypeVar

from causal_bo_ppl.errors import ModelError, WorkerError
from causal_bo_ppl.experiments.serialized_calls import Failed as Failed
from causal_bo_ppl.experiments.serialized_calls import compute, pack, unpack
from causal_bo_ppl.experiments.worker_environment import (
    interrupts_blocked,
    set_variables,
    without_main,
    worker_environment,
)

T = TypeVar("T")
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
    pool: "Workers | None" = None,
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
    pool
        Processes that are kept between calls, which compute instead of new ones; their number is
        decided there. Closing the generator early ends them too, and the next call starts others.

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
        return _run_here(packed, units, workers, tries, pool)
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
    task: bytes, units: Sequence[Any], workers: int | None, tries: int, pool: "Workers | None"
) -> Generator[tuple[int, Any], None, None]:
    """Run the units in processes of this machine; see `run_units`."""
    with ExitStack() as stack:
        kept = stack.enter_context(Workers(workers)) if pool is None else pool
        running = _Running(task, units, tries, kept)
        is_finished = False
        try:
            yield from running.run()
            is_finished = True
        finally:
            if not is_finished:
                kept.end()


class Workers:
    """Worker processes of this machine that are kept between calls of `run_units`.

    Used as a context manager, at whose end all processes end. They are started when they are first
    needed. Compiled programs stay in the processes, so that later calls find them.

    Parameters
    ----------
    count
        How many there are at most; by default one for every core that this process may use.

    Examples
    --------
    >>> from causal_bo_ppl.experiments.workers import Workers, run_units
    >>> with Workers(1) as pool:
    ...     sorted(run_units(abs, [-3, 2], pool=pool)) + sorted(run_units(len, ["ab"], pool=pool))
    [(0, 3), (1, 2), (0, 2)]
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or count_cores()
        self.started: list[_Worker] = []  # all whose end is still to be seen to
        self.idle: list[_Worker] = []  # those that have no unit
        self.ready: set[_Worker] = set()  # those that have come up
        self._stack = ExitStack()
        self._environment: dict[str, str] | None = None

    def __enter__(self) -> "Workers":
        self._environment = self._stack.enter_context(worker_environment())
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.release()
            self.end()
        finally:
            self._stack.close()

    def start(self) -> _Worker:
        """Start one more process, which says when it is ready."""
        if self._environment is None:
            raise WorkerError("these workers are not open; use `with Workers(...) as pool:`")
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        worker = _Worker(context.Process(target=_serve, args=(there,), daemon=True), here)
        self.started.append(worker)
        try:
            with _STARTING, set_variables(self._environment), without_main(), interrupts_blocked():
                worker.process.start()
        except OSError as error:
            raise WorkerError(
                f"this machine starts no further process ({error}); ask for fewer workers than "
                f"{self.count}, or end other programs"
            ) from error
        finally:
            there.close()
        return worker

    def drop(self, worker: _Worker) -> str:
        """See to the end of a process, and say how it ended."""
        self.started.remove(worker)
        return _finish(worker)

    def release(self) -> None:
        """Have the processes that have come up and have no unit leave Python in good order."""
        leaving = [worker for worker in self.idle if worker in self.ready]
        for worker in leaving:
            worker.pipe.close()
        for worker in leaving:
            worker.process.join(GRACE)

    def end(self) -> None:
        """End all processes at once, whatever they do."""
        for worker in self.started:
            if worker.process.pid is not None:
                worker.process.kill()
        for worker in self.started:
            _finish(worker)
        self.started, self.idle, self.ready = [], [], set()


class _Running:
    """The units of one call: which process computes which, and which units wait."""

    def __init__(self, task: bytes, units: Sequence[Any], tries: int, pool: Workers) -> None:
        self.task, self.units, self.tries, self.pool = task, units, tries, pool
        self.waiting = deque(range(len(units)))
        self.crashes: Counter[int] = Counter()  # by unit
        self.failed_starts = 0  # processes that died before they were ready, one after the other
        self.holding: dict[_Worker, int | None] = {}  # None while Python starts there

    def run(self) -> Iterator[tuple[int, Any]]:
        """Give (place, result) until every unit has one; a worker goes on before it is given."""
        while self.unfinished():
            while len(self.holding) < min(self.pool.count, self.unfinished()):
                if self.pool.idle and self.waiting:
                    yield from self.give_next(self.pool.idle.pop())
                else:
                    self.holding[self.pool.start()] = None
            for worker in _heard(self.holding):
                message = _receive(worker)
                yield from (
                    self.retry_or_fail(worker) if message is None else self.go_on(worker, message)
                )
        self.pool.idle += self.holding  # they came up when nothing was left

    def unfinished(self) -> int:
        """Return how many units have no result yet."""
        return len(self.waiting) + sum(position is not None for position in self.holding.values())

    def go_on(self, worker: _Worker, message: bytes) -> list[tuple[int, Any]]:
        """Take what a worker has sent, and give it its next unit; return what is done."""
        position = self.holding.pop(worker)
        if message == READY:
            self.failed_starts = 0
            self.pool.ready.add(worker)
            if position is None:
                return self.give_next(worker)
            self.holding[worker] = (
                position  # an earlier call started it, and this one gave it a unit
            )
            return []
        assert position is not None  # noqa: S101  (it sends results of units only)
        done = (position, _count(unpack(message), self.crashes[position] + 1))
        return [done, *self.give_next(worker)]

    def give_next(self, worker: _Worker) -> list[tuple[int, Any]]:
        """Give a worker the next unit that can be sent; return those that cannot."""
        done: list[tuple[int, Any]] = []
        while self.waiting:
            following = self.waiting.popleft()
            packed = pack(self.units[following])
            if not isinstance(packed, Failed):
                self.holding[worker] = following
                _send(worker, self.task)
                _send(worker, packed)
                return done
            done.append((following, packed))
        self.pool.idle.append(worker)
        return done

    def retry_or_fail(self, worker: _Worker) -> list[tuple[int, Any]]:
        """Have the unit of a dead worker tried again, or return it as failed."""
        position = self.holding.pop(worker)
        how = self.pool.drop(worker)
        if position is None:
            self.failed_starts += 1
            if self.failed_starts >= self.tries:
                raise WorkerError(
                    f"no worker process came up: {self.failed_starts} in turn ended ({how}) before "
                    "they were ready; what they printed as standard error says why. A new process "
                    "of this Python must be able to import causal_bo_ppl and needs some 500 MB"
                )
            return []
        self.crashes[position] += 1
        if self.crashes[position] < self.tries:
            self.waiting.append(position)  # at the end, when others may have left more memory
            return []
        times = "once" if self.tries == 1 else f"{self.tries} times"
        error = f"the process that computed this unit died {times}, at last with {how}"
        return [(position, Failed(error, "", True, self.tries))]


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
        while True:
            task, unit = pipe.recv_bytes(), pipe.recv_bytes()
            pipe.send_bytes(compute(task, unit))
    except (EOFError, OSError):  # nobody is there any more
        return


def _end_with_parent() -> None:
    """End this process when its parent has ended, also in the middle of a unit."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
