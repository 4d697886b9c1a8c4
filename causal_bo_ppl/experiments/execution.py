"""How are units computed by Dask workers, and each stored as soon as it is finished?

Units run on a `LocalCluster` of this machine, or on a running cluster given by its address; the
code is the same. Dask runs a unit again whose worker process died, up to its setting
`distributed.scheduler.allowed-failures`. It suspects every unit that was assigned to such a
process, also those that only waited there, so the units that Dask has given up are run once more,
one at a time, before they count as failed. A result stays in its worker until it is fetched, and a
worker begins no other unit before: a process that dies loses only the unit that it computes.
"""

import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pandas as pd
import xarray as xr
from tqdm import tqdm

import causal_bo_ppl
from causal_bo_ppl.errors import ArgumentError, WorkerError
from causal_bo_ppl.experiments.units import Unit, UnitStore, run_unit
from causal_bo_ppl.inputs import PROGRESS_DELAY, read_count

ANSWER_SECONDS = 20.0  # until a scheduler must have answered
WORKER_SECONDS = 120.0  # until a cluster must have a worker; it may be starting its first one
CLOSE_SECONDS = 0.5  # for a worker to finish by itself before it is killed
FAILED_COLUMNS = ["system", "method", "seed", "error", "traceback"]
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
CACHE = "JAX_COMPILATION_CACHE_DIR"
# NPROC is what XLA reads as the number of processors: its pool then has no second thread. The flag
# --xla_cpu_multi_thread_eigen=false leaves the pool as it is (tried with jax 0.10).
JAX_VARIABLES = {
    "NPROC": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # programs of any size are cached
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
CONFIGURATION = {
    "distributed.scheduler.worker-saturation": 1.0,  # a worker that dies holds one unit only
    "distributed.scheduler.worker-ttl": None,  # a busy worker need not answer; its end is noticed
    # By default a worker that is not back 15 s after its process died is dropped for ever: on a
    # busy machine it takes longer to start, and a unit may kill it again at that very moment.
    "distributed.deploy.lost-worker-timeout": "365 days",
}
FETCH_SECONDS = 60.0  # that a worker waits for its last result to be fetched; its client may hang
_ONE_UNIT = threading.Lock()  # a worker with several threads computes one unit at a time
_finished_task = ""  # the last one of this worker process


class Failed(NamedTuple):
    """Why a unit has no result: the exception as text, and its traceback where there is one."""

    error: str
    traceback: str


class Computed(NamedTuple):
    """The results of units in their order, those that failed, and how long it took.

    wall: seconds until all units were finished. workers: the number of worker processes on this
    machine, 0 on another cluster.
    """

    results: tuple[xr.Dataset, ...]
    failed: pd.DataFrame
    wall: float
    workers: int


class UnitRunner:
    """Computes units on Dask workers, and stores each result as soon as it is finished.

    A context manager. Workers are started, or the cluster is connected to, when the first unit is
    computed; they are kept until the end of the block, since each takes seconds to start, and
    compiled programs stay in them. A result depends on its unit alone: not on the number of
    workers or on the order in which units finish.

    Functions and classes of a script or a notebook are sent by value, and the workers do not
    import the script: it needs no `if __name__ == "__main__"`. Each worker has one thread for
    linear algebra and for XLA, ignores Ctrl-C, and ends when this process ends. All workers share
    the compiled programs in `JAX_COMPILATION_CACHE_DIR`, or in a temporary directory.

    Parameters
    ----------
    folder
        Where finished units are stored, so that a computation that was interrupted is resumed;
        None keeps them in memory.
    workers
        The number of worker processes on this machine; by default one for every core.
    scheduler
        The address of a running Dask cluster, such as "tcp://10.0.0.5:8786", which computes
        instead and is not shut down. Its owner sets the number of threads: start
        `dask worker --nthreads 1` with the variables OPENBLAS_NUM_THREADS, OMP_NUM_THREADS and
        NPROC set to 1.
    progress
        Whether a progress bar is shown when a computation takes more than a few seconds.

    Raises
    ------
    ArgumentError
        If `workers` is not a positive number, or is given together with `scheduler`.

    Examples
    --------
    >>> from causal_bo_ppl.experiments.execution import UnitRunner
    >>> from causal_bo_ppl.experiments.paper_checks import TheoryCheck
    >>> from causal_bo_ppl.experiments.units import Loaded
    >>> units = [TheoryCheck("chain", "theory", seed, Loaded("chain")) for seed in (0, 1)]
    >>> with UnitRunner(workers=1) as runner:
    ...     computed = runner.compute(units)
    >>> [int(result.attrs["seed"]) for result in computed.results]
    [0, 1]
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        workers: int | None = None,
        scheduler: str | None = None,
        progress: bool = True,
    ) -> None:
        self._count = None if workers is None else read_count("workers", workers, 1)
        if scheduler is not None and workers is not None:
            raise ArgumentError(
                f"workers = {workers} is for this machine, but scheduler = {scheduler!r} names a "
                "cluster, which has its own number of workers; give one of both"
            )
        self.store, self._scheduler, self._progress = UnitStore(folder), scheduler, progress
        self._stack = ExitStack()
        self._client: Any = None

    def __enter__(self) -> "UnitRunner":
        return self

    def __exit__(self, *error: object) -> None:
        self._client = None
        self._stack.close()

    def compute(self, units: Sequence[Unit]) -> Computed:
        """Compute the units that have no stored result, and return the results of all.

        Raises
        ------
        WorkerError
            If no worker process starts, or if the cluster does not answer, has no workers or runs
            another version of this package.
        """
        missing, total = self.store.missing(units), len({unit.identity for unit in units})
        failed: dict[str, Failed] = {}
        begun = time.perf_counter()
        options = {"unit": "unit", "delay": PROGRESS_DELAY, "disable": not self._progress}
        bar = tqdm(desc="units", total=total, initial=total - len(missing), **options)
        with bar, closing(self.run(missing)) as running:
            for unit, result in running:
                if isinstance(result, Failed):
                    failed[unit.identity] = result
                else:
                    self.store.keep(unit, result)
                bar.set_postfix_str(f"{unit.case}, {unit.method}", refresh=False)
                bar.update()
        wall, new = time.perf_counter() - begun, {unit.identity for unit in missing}
        results = tuple(
            stored.assign_attrs(is_new=int(unit.identity in new))
            for unit in units
            if (stored := self.store.find(unit)) is not None
        )
        lost = [
            (unit.case, unit.method, unit.seed, *failed[unit.identity])
            for unit in units
            if unit.identity in failed
        ]
        table = pd.DataFrame(lost, columns=FAILED_COLUMNS)
        workers = self._number_of_workers(len(missing))
        return Computed(results, table, wall if missing else 0.0, workers)

    def run(self, units: Sequence[Unit]) -> Generator[tuple[Unit, xr.Dataset | Failed], None, None]:
        """Yield every unit with its result, or why it has none, in the order they finish."""
        if not units:
            return
        client, suspects = self._connect(len(units)), []
        for unit, result in _run_on(client, units):
            if result is None:
                suspects.append(unit)
            else:
                yield unit, result
        for suspect in suspects:
            for unit, result in _run_on(client, [suspect]):
                died = Failed("every process that computed this unit died", "")
                yield unit, died if result is None else result

    def _number_of_workers(self, units: int) -> int:
        from dask.system import CPU_COUNT

        return 0 if self._scheduler else min(self._count or CPU_COUNT, units)

    def _connect(self, units: int) -> Any:
        """Return a client with enough workers for so many units."""
        if self._client is None and self._scheduler is not None:
            self._client = _connect_to(self._stack, self._scheduler)
        count = self._number_of_workers(units)
        if self._client is None:
            self._client = _start_workers(self._stack, count)
        if self._scheduler is None and len(self._client.cluster.workers) < count:
            self._client.cluster.scale(count)
        return self._client


def _run_on(client: Any, units: Sequence[Unit]) -> Iterator[tuple[Unit, Any]]:
    """Yield units with their results in the order they finish; None where its workers died."""
    import distributed

    futures: dict[Any, Unit] = {}
    try:
        for unit in units:
            packed = _pack(unit)
            if isinstance(packed, Failed):
                yield unit, packed
            else:
                futures[client.submit(compute_packed, packed, pure=False)] = unit
        while futures:
            try:
                for future in distributed.as_completed(
                    list(futures), loop=client.loop, timeout=WORKER_SECONDS
                ):
                    if future.status == "cancelled":
                        raise OSError("it has dropped them")
                    if future.status in ("finished", "error"):
                        result = _result_of(future)
                        unit = futures.pop(future)
                        future.release()  # the worker waits for it, see `compute_packed`
                        yield unit, result
                    # otherwise the result was lost with its worker, and Dask computes it again
            except distributed.TimeoutError:
                if not client.nthreads():
                    raise OSError("it has no workers any more") from None
    except OSError as error:
        raise WorkerError(
            f"the Dask cluster at {client.scheduler.address} went away while {len(futures)} units "
            f"were left ({error}); start it again and run what is left"
        ) from error
    finally:
        with suppress(OSError):  # the cluster may be gone
            client.cancel(list(futures))


def _result_of(future: Any) -> Any:
    """Return the result of a future that has finished; its own exceptions are those of Dask."""
    import distributed

    if future.status == "finished":
        return future.result()
    error = future.exception()
    return None if isinstance(error, distributed.KilledWorker) else _describe(error)


def _pack(unit: Unit) -> bytes | Failed:
    """Return a unit as bytes, which the scheduler need not read, or why it cannot be pickled."""
    from distributed.protocol.pickle import dumps

    try:
        return bytes(dumps(unit))
    except Exception as error:  # pickling runs code of user-defined classes
        return _describe(error, "the unit cannot be pickled: ")


def compute_packed(packed: bytes) -> xr.Dataset | Failed:
    """Compute a unit in a worker, after the result of the unit before has been fetched.

    An exception becomes a `Failed` with its text: it may hold what cannot be pickled.
    """
    import distributed
    from distributed.protocol.pickle import loads

    global _finished_task
    with _ONE_UNIT:
        worker, end = distributed.get_worker(), time.monotonic() + FETCH_SECONDS
        while _finished_task in worker.data and time.monotonic() < end:
            time.sleep(0.005)
        try:
            return run_unit(loads(packed))
        except (Exception, SystemExit) as error:  # units run user-defined code
            return _describe(error)
        finally:
            _finished_task = worker.get_current_task()


def _describe(error: BaseException, during: str = "") -> Failed:
    text = "".join(traceback.format_exception_only(error)).strip()
    return Failed(during + text, "".join(traceback.format_exception(error)))


def _start_workers(stack: ExitStack, count: int) -> Any:
    """Return a client of a new `LocalCluster`, which ends with the stack."""
    import dask
    import distributed

    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="causal_bo_", ignore_cleanup_errors=True)
    )
    stack.enter_context(_one_blas_thread())
    stack.enter_context(_script_not_imported())
    # Dask reads some of these when a worker is lost, so that they hold until the end
    stack.enter_context(dask.config.set(CONFIGURATION | {"temporary-directory": folder}))
    try:
        with _interrupts_blocked():
            cluster = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=None,
                    dashboard_address="127.0.0.1:0",  # any free port, and no other interface
                    scheduler_kwargs={"dashboard": False},
                    silence_logs=logging.CRITICAL,
                    local_directory=folder,
                    env=_jax_variables(folder),
                )
            )
    except (OSError, RuntimeError) as error:
        raise WorkerError(
            f"no worker process started ({error}); see what it printed as standard error. A "
            "new process of this Python must be able to import causal_bo_ppl and needs some 500 MB"
        ) from error
    stack.callback(cluster.sync, _end_workers, cluster)
    return stack.enter_context(distributed.Client(cluster, set_as_default=False))


async def _end_workers(cluster: Any) -> None:
    """End workers that still compute; without this Dask waits some seconds for each.

    On a busy machine a worker may end later than that; all results are there already.
    """
    for worker in list(cluster.workers.values()):
        with suppress(TimeoutError):
            await worker.close(timeout=CLOSE_SECONDS)


def _jax_variables(folder: str) -> dict[str, str]:
    """Return variables for the workers; the user's cache of programs is used if there is one."""
    chosen = jax.config.jax_compilation_cache_dir or folder  # type: ignore[attr-defined]
    return JAX_VARIABLES | {CACHE: str(os.environ.get(CACHE) or chosen)}


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Have new processes use one thread for linear algebra; they read it when NumPy is imported.

    Dask leaves some variables for its workers in this process, which are removed here too.
    """
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(BLAS_THREADS, "1"))
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _script_not_imported() -> Iterator[None]:
    """Keep workers, also those started later, from importing the script that runs.

    A spawned process imports the main module by its name or file. A script without
    `if __name__ == "__main__"` would then begin again in each worker; and what a script or a
    notebook defines is sent by value anyway.
    """
    prepare = spawn.get_preparation_data

    def without_main(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        ours = name.startswith("Dask Worker")
        return {key: data[key] for key in data if not (ours and key.startswith("init_main"))}

    spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        spawn.get_preparation_data = prepare


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start threads and processes that ignore Ctrl-C; it reaches this thread afterwards."""
    resource_tracker.ensure_running()  # its own start would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _connect_to(stack: ExitStack, address: str) -> Any:
    """Return a client of a running cluster whose workers compute what this process computes."""
    import distributed

    try:
        distributed.comm.resolve_address(address)  # a client with a wrong one waits at its end
        client = stack.enter_context(
            distributed.Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
        )
    except (OSError, TypeError, ValueError) as error:
        raise WorkerError(
            f"no Dask scheduler answers at {address} ({error}); start one with `dask scheduler`, "
            "or give the address that it printed"
        ) from error
    try:  # a cluster that grows on demand starts a worker
        client.submit(int, pure=False).result(timeout=WORKER_SECONDS)
    except distributed.TimeoutError:
        raise WorkerError(
            f"the Dask cluster at {address} has begun nothing within {WORKER_SECONDS:g} s; start "
            f"workers with `dask worker {address}`, or wait until they have time"
        ) from None
    python = ".".join(map(str, sys.version_info[:2]))
    ours = f"causal_bo_ppl {causal_bo_ppl.__version__} on Python {python}"
    versions = client.get_versions(packages=["causal_bo_ppl"])["workers"]
    for worker, found in sorted(versions.items()):
        python = ".".join(found["host"]["python"].split(".")[:2])
        theirs = f"causal_bo_ppl {found['packages'].get('causal_bo_ppl')} on Python {python}"
        if theirs != ours:
            raise WorkerError(
                f"the worker {worker} has {theirs}, but here is {ours}; install the same version "
                "where the cluster runs"
            )
    return client
