"""How are many units computed, and each kept as soon as it is finished?"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import xarray as xr
from tqdm import tqdm

from causal_bo_ppl.experiments.store import Store
from causal_bo_ppl.experiments.units import Unit, run_unit
from causal_bo_ppl.experiments.workers import Failed, Workers, count_cores, run_units
from causal_bo_ppl.inputs import PATIENCE, read_count

LOST = ["system", "method", "seed", "error", "traceback"]


class Where(NamedTuple):
    """Where units are computed and kept.

    folder: where finished units are kept, so that a sweep that was cut off goes on; None keeps them
    in memory. workers: processes on this machine, by default one for every core. scheduler: address
    of a Dask cluster, which is used instead. pool: processes that are kept between computations.
    """

    folder: str | Path | None = None
    workers: int | None = None
    scheduler: str | None = None
    progress: bool = True
    pool: Workers | None = None


@contextmanager
def keep_workers(where: Where) -> Iterator[Where]:
    """Give the same place with processes that are kept until the end of the block."""
    if where.scheduler is not None or where.pool is not None:
        yield where
        return
    count = None if where.workers is None else read_count("workers", where.workers, 1)
    with Workers(count) as pool:
        yield where._replace(pool=pool)


class Computed(NamedTuple):
    """The results of units in their order, those that failed, and the seconds that passed."""

    results: tuple[xr.Dataset, ...]
    failed: pd.DataFrame
    wall: float
    workers: int


def compute(units: Sequence[Unit], where: Where, store: Store | None = None) -> Computed:
    """Compute the units that are not finished yet, and return the results of all."""
    store = Store(where.folder) if store is None else store
    missing = store.missing(units)
    lost: dict[str, Failed] = {}
    fresh: set[str] = set()
    begun = time.perf_counter()
    with tqdm(
        total=len({unit.identity for unit in units}),
        initial=len({unit.identity for unit in units}) - len(missing),
        desc="units",
        unit="unit",
        delay=PATIENCE,
        disable=not where.progress,
    ) as bar:
        options = where if missing else Where()  # nothing to do: no cluster is asked
        with closing(
            run_units(
                run_unit,
                missing,
                workers=options.workers,
                scheduler=options.scheduler,
                pool=options.pool,
            )
        ) as running:
            for position, result in running:
                unit = missing[position]
                if isinstance(result, Failed):
                    lost[unit.identity] = result
                else:
                    store.keep(unit, result)
                    fresh.add(unit.identity)
                bar.set_postfix_str(f"{unit.case}, {unit.method}", refresh=False)
                bar.update()
    wall = time.perf_counter() - begun if missing else 0.0
    results = []
    for unit in units:
        if (kept := store.find(unit)) is not None:
            results.append(kept.assign_attrs(is_new=int(unit.identity in fresh)))
    rows = [
        (unit.case, unit.method, unit.seed, result.error, result.traceback)
        for unit, result in ((unit, lost.get(unit.identity)) for unit in units)
        if result is not None
    ]
    workers = 0
    if where.scheduler is None:
        workers = min(where.workers or count_cores(), len(missing))
    return Computed(tuple(results), pd.DataFrame(rows, columns=LOST), wall, workers)
