"""How are units of work computed by a Dask cluster that is already running?

Dask runs a unit again whose process died, up to its setting `allowed-failures`. It blames every
unit that was given to such a process, also those that only waited there; so the units that it has
given up are tried once more, each alone, before they count as failed.
"""

import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import causal_bo_ppl
from causal_bo_ppl.errors import ModelError, WorkerError
from causal_bo_ppl.experiments.serialized_calls import Failed, compute, describe, pack, unpack

ANSWER = 20.0  # seconds until a scheduler must have answered
ARRIVAL = 120.0  # seconds until a cluster must have a worker; it may be starting its first one
_ONE_AT_A_TIME = threading.Lock()  # a process with several threads computes one unit at a time


def run_on_cluster(
    address: str, task: bytes, units: Sequence[Any]
) -> Generator[tuple[int, Any], None, None]:
    """Run a packed task on every unit on the cluster at `address`; see `run_units`."""
    if not isinstance(address, str):
        raise ModelError(
            f'scheduler must be the address of a Dask cluster, such as "tcp://10.0.0.5:8786"; '
            f"got {address!r}"
        )
    try:
        import distributed
    except ImportError as error:
        raise WorkerError(
            f"a Dask cluster needs packages that are not installed here ({error}); "
            "install causal_bo_ppl[scale]"
        ) from error
    return _run(distributed, address, task, units)


def compute_alone(task: bytes, unit: bytes) -> bytes:
    """Return what `compute` returns, while no other thread of this process computes a unit."""
    with _ONE_AT_A_TIME:
        return compute(task, unit)


def _run(
    distributed: ModuleType, address: str, task: bytes, units: Sequence[Any]
) -> Generator[tuple[int, Any], None, None]:
    client, positions = _connect(distributed, address), {}
    try:
        _require_package(distributed, client, address)
        refused: list[tuple[int, Any]] = []
        for position, unit in enumerate(units):
            packed = pack(unit)
            if isinstance(packed, Failed):
                refused.append((position, packed))
            else:
                positions[client.submit(compute_alone, task, packed, pure=False)] = position
        yield from refused
        suspects = []
        for position, result in _collect(distributed, client, address, positions):
            if isinstance(result, distributed.KilledWorker):
                suspects.append(position)
            else:
                yield position, result
        for position in suspects:
            positions[client.submit(compute_alone, task, pack(units[position]), pure=False)] = (
                position
            )
            for _, result in _collect(distributed, client, address, positions):
                killed = isinstance(result, distributed.KilledWorker)
                yield position, _describe_death(result) if killed else result
    finally:
        with suppress(OSError):  # the cluster may be gone
            client.cancel(list(positions))
        client.close()


def _collect(
    distributed: ModuleType, client: Any, address: str, positions: dict[Any, int]
) -> Iterator[tuple[int, Any]]:
    """Give (place, result) as futures end, and take them out of `positions`.

    A unit that Dask has given up has the exception KilledWorker as its result.
    """
    while positions:
        try:
            for future in distributed.as_completed(
                list(positions), loop=client.loop, timeout=ARRIVAL
            ):
                if future.status == "cancelled":
                    raise WorkerError(_gone(address, len(positions), "it has dropped them"))
                if future.status in ("finished", "error"):
                    result = _read(distributed, future)
                    yield positions.pop(future), result
                # else its result was lost with a worker meanwhile, and Dask computes it again
        except distributed.TimeoutError:
            _require_workers(client, address, len(positions))


def _read(distributed: ModuleType, future: Any) -> Any:
    """Return the result of a future that has ended; an exception here is Dask's, not the task's."""
    if future.status == "finished":
        return unpack(future.result())
    error = future.exception()
    return error if isinstance(error, distributed.KilledWorker) else describe(error)


def _describe_death(error: Any) -> Failed:
    """Return a unit that Dask has given up as failed."""
    tried = int(error.allowed_failures) + 1
    return Failed(f"every process that computed this unit died: {error}", "", True, tried)


def _connect(distributed: ModuleType, address: str) -> Any:
    """Return a client of the cluster, which does not become the default one of this process."""
    try:
        distributed.comm.resolve_address(address)  # a client with a wrong one waits at its end
        return distributed.Client(address, timeout=ANSWER, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerError(
            f"no Dask scheduler answers at {address} ({error}); start one with `dask scheduler`, "
            "or give the address that it printed"
        ) from error


def _require_package(distributed: ModuleType, client: Any, address: str) -> None:
    """Refuse a cluster without workers, or whose workers would not compute what we compute."""
    begun = client.submit(int, pure=False)  # a cluster that grows on demand starts a worker
    try:
        begun.result(timeout=ARRIVAL)
    except distributed.TimeoutError:
        raise WorkerError(
            f"the Dask cluster at {address} has begun nothing within {ARRIVAL:g} s; start workers "
            f"with `dask worker {address}`, or wait until they have time"
        ) from None
    ours = (causal_bo_ppl.__version__, sys.version_info[:2])
    versions = client.get_versions(packages=["causal_bo_ppl"])["workers"]
    for worker, found in sorted(versions.items()):
        package = found["packages"].get("causal_bo_ppl")
        python = tuple(int(part) for part in found["host"]["python"].split(".")[:2])
        if (package, python) != ours:
            there = f"causal_bo_ppl {package}" if package else "no causal_bo_ppl"
            raise WorkerError(
                f"the worker {worker} has {there} on Python {_dotted(python)}, but here is "
                f"causal_bo_ppl {ours[0]} on Python {_dotted(ours[1])}; install the same version "
                "where the cluster runs"
            )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _require_workers(client: Any, address: str, left: int) -> None:
    """Refuse to wait for a cluster that is gone or has lost all its workers."""
    try:
        alive = len(client.nthreads())
    except OSError as error:
        raise WorkerError(_gone(address, left, str(error))) from error
    if not alive:
        raise WorkerError(_gone(address, left, "it has no workers any more"))


def _gone(address: str, left: int, why: str) -> str:
    return (
        f"the Dask cluster at {address} went away while {left} units were left ({why}); "
        "start it again and run what is left"
    )
