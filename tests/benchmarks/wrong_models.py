"""What does an optimization recommend where the model is wrong, and do its intervals hold?

    .venv/bin/python tests/benchmarks/wrong_models.py
    .venv/bin/python tests/benchmarks/wrong_models.py --seeds 20 --random 60

Systems of tests/helpers/simulated_systems.py, optimized in 15 rounds with the default settings,
with outcomes alone and with whole rows, and by the presets "cbo" and "bo" with the same data; and
random systems, optimized in 8 rounds with the default settings. For each run: the gap of what is
recommended, as a share of the range of all effects, and how far the mean of its own outcomes lies
beyond its interval of 90 %, in true standard errors of that mean. Every run is written to
results/wrong_models.csv when it is done, so that a call that was interrupted continues when it is
repeated. The tables are printed in the end.
"""

import argparse
import sys
import warnings
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.simulated_systems import SYSTEMS, describe, random_system  # noqa: E402

import causal_bo_ppl as cb  # noqa: E402

RESULTS = Path("results") / "wrong_models.csv"
FIRST_SEED = 70_000  # none that a remedy was chosen with
METHODS = {
    "default, outcomes": (None, False),
    "default, rows": (None, True),
    "cbo": ("cbo", False),
    "bo": ("bo", False),
}
RUN = ["system", "method", "seed"]


def assess(system, count, rounds, settings, whole, seed):
    """Return what is recommended after some rounds, against the truth and its own outcomes."""
    problem, data = system.problem, system.observe(count, seed)
    given = cb.Settings() if settings is None else cb.Settings.preset(settings)
    if settings == "bo":  # one process over all variables that can be set
        problem = cb.Problem(
            problem.graph, problem.target, objective=problem.objective, domains=problem.domains,
            sets=[tuple(problem.manipulable)],
        )  # fmt: skip
    options = {"experiment": system.experiment(seed, whole), "progress": False}
    run = cb.optimize(problem, given, data=data, rounds=rounds, key=seed, **options)
    return describe(system, run)


def main() -> None:
    """Run what is not known yet, and print the tables."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--seeds", type=int, default=4, help="runs of each system and method")
    reader.add_argument("--random", type=int, default=20, help="random systems")
    reader.add_argument("--first", type=int, default=FIRST_SEED)
    reader.add_argument("--results", type=Path, default=RESULTS)
    reader.add_argument("--methods", nargs="*", default=list(METHODS))
    given = reader.parse_args()
    given.results.parent.mkdir(exist_ok=True)
    rows = pd.read_csv(given.results).to_dict("records") if given.results.is_file() else []
    known = {tuple(row[name] for name in RUN) for row in rows}
    warnings.simplefilter("ignore")
    seeds = range(given.first, given.first + max(given.seeds, given.random))
    for seed in seeds:
        todo = []
        if seed < given.first + given.random:
            todo += [("random", name, None, 8) for name in METHODS if name.startswith("default")]
        if seed < given.first + given.seeds:
            todo += [(name, method, *SYSTEMS[name], 15) for name in SYSTEMS for method in METHODS]
        for name, method, *made, rounds in todo:
            if (name, method, seed) in known or method not in given.methods:
                continue
            system, count = made if len(made) == 2 else (random_system(seed), 100)
            found = assess(system, count, rounds, *METHODS[method], seed)
            rows.append(dict(zip(RUN, (name, method, seed), strict=True)) | found)
            pd.DataFrame(rows).to_csv(given.results, index=False)
    sys.stdout.write(summarize(pd.DataFrame(rows)).to_string(float_format="{:.3f}".format) + "\n")


def summarize(runs):
    """Return a row for every system and method.

    within: the share of runs in which the mean of its own outcomes lies at most 2 standard errors
    beyond the interval; silent: how many lie 3 beyond and no discrepancy is in use and reported.
    """
    measured = runs["outcomes"] > 0
    silent = measured & (runs["beyond"] > 3) & ~(runs["discrepancy"] & runs["says so"])
    runs = runs.assign(within=(runs["beyond"] <= 2).where(measured), silent=silent)
    table = runs.groupby(["system", "method"], sort=False).agg(
        runs=("seed", "size"), gap=("gap", "mean"), worst=("gap", "max"), holds=("holds", "mean"),
        within=("within", "mean"), silent=("silent", "sum"), repeats=("most repeats", "mean"),
        stubborn=("stubborn", "mean"),
        discrepancy=("discrepancy", "mean"),
    )  # fmt: skip
    return table.reset_index()


if __name__ == "__main__":
    main()
