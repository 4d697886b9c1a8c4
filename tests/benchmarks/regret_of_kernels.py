"""Which kernel recommends better interventions, "jacobian" or "monte_carlo", and at what cost?

    .venv/bin/python tests/benchmarks/regret_of_kernels.py            # all systems, 20 seeds
    .venv/bin/python tests/benchmarks/regret_of_kernels.py chain toy --seeds 5

Both kernels begin with the same key and the same observations, by turns in one process. Every run
is written to results/kernels.csv when it ends; a call that was interrupted is resumed when it is
repeated. The table is printed in the end. It takes about an hour, nearly all of it for the funnel.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import causal_bo_ppl as cb

KERNELS = ("jacobian", "monte_carlo")
RESULTS = Path("results") / "kernels.csv"


class Case(NamedTuple):
    """A system by seed, its mechanisms, and how many rounds it is optimized."""

    load: Callable[[int], Any]
    mechanisms: str
    rounds: int


CASES = {
    "chain": Case(lambda _: cb.models.load("chain"), "linear", 15),
    "b1583": Case(
        lambda _: cb.models.load("ecoli70", target="b1583", parents=False, max_size=5),
        "linear",
        15,
    ),
    "toy": Case(lambda _: cb.models.load("toy"), "gp", 15),
    "funnel": Case(lambda seed: cb.models.load("funnel", variant="nonlinear", seed=seed), "gp", 6),
}


def measure(name: str, seed: int, kernel: str) -> dict[str, Any]:
    """Return the regret of one run, in the end and on average, and its processor time.

    The time until the end of the first round includes the fit and, in the first run of a process,
    compilation. A round costs more where interventions are compared that were not met before, so
    that the time of the others is a mean.
    """
    case, ends = CASES[name], []
    system, start = case.load(seed), process_time()
    settings = cb.Settings(kernel=kernel, rounds=case.rounds, mechanisms=case.mechanisms)
    run = cb.optimize(
        system,
        settings,
        callback=lambda _: ends.append(process_time()),
        progress=False,
        key=seed,
    )
    regret = run.regret()
    return {
        "system": name,
        "rounds": case.rounds,
        "seed": seed,
        "kernel": kernel,
        "final": float(regret[-1]),
        "over_rounds": float(regret.mean()),
        "first": ends[0] - start,
        "later": float(np.mean(np.diff(ends))),
    }


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a line for every system and kernel; differences are monte_carlo minus jacobian.

    After +- stands the standard error of the mean difference; times are medians over the seeds.
    """
    lines = []
    for name in dict.fromkeys(runs["system"]):
        of = runs[runs["system"] == name].pivot(index="seed", columns="kernel")
        of = of.dropna()
        for kernel in KERNELS:
            line = {
                "system": name,
                "kernel": kernel,
                "seeds": len(of),
                "rounds": int(of["rounds"][kernel].iloc[0]),
                "final regret: mean": of["final"][kernel].mean(),
                "median": of["final"][kernel].median(),
                "regret over rounds: mean": of["over_rounds"][kernel].mean(),
            }
            for column, words in (("final", "final"), ("over_rounds", "over rounds")):
                gaps = of[column]["monte_carlo"] - of[column]["jacobian"]
                error = gaps.std(ddof=1) / np.sqrt(len(gaps))
                shown = f"{gaps.mean():.2g} +- {error:.2g}" if kernel == "monte_carlo" else ""
                line[f"difference, {words}"] = shown
            line["seconds, fit and first round"] = of["first"][kernel].median()
            line["seconds, each later round"] = of["later"][kernel].median()
            lines.append(line)
    return pd.DataFrame(lines)


def as_markdown(table: pd.DataFrame) -> str:
    """Return the table in Markdown, numbers with three significant digits."""
    rows = [table.columns, ["---"] * table.shape[1], *table.itertuples(index=False, name=None)]
    cells = (
        [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def main() -> None:
    """Measure what is not measured yet, and print the table."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("systems", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    reader.add_argument("--seeds", type=int, default=20)
    given = reader.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    runs = pd.read_csv(RESULTS) if RESULTS.is_file() else pd.DataFrame()
    known = (
        set()
        if runs.empty
        else set(zip(*(runs[each] for each in ("system", "seed", "kernel")), strict=True))
    )
    warnings.simplefilter("ignore", cb.CausalBOWarning)
    for name in given.systems or CASES:
        for seed in range(given.seeds):
            for kernel in KERNELS:
                if (name, seed, kernel) not in known:
                    new = pd.DataFrame([measure(name, seed, kernel)])
                    runs = pd.concat([runs, new], ignore_index=True)
                    runs.to_csv(RESULTS, index=False)
    sys.stdout.write(f"{as_markdown(summarize(runs))}\n")


if __name__ == "__main__":
    main()
