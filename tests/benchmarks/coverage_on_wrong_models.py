"""Do intervals hold the truth where a linear or additive model is wrong, or does a check fail?

    .venv/bin/python tests/benchmarks/coverage_on_wrong_models.py
    .venv/bin/python tests/benchmarks/coverage_on_wrong_models.py --seeds 40 --mechanisms auto gp

The systems are those of tests/helpers/wrong_models.py, with 100 observations each; their effects
are known in closed form. Every data set is written to results/coverage.csv when it is done, so that
a call that was interrupted continues when it is repeated. The table is printed in the end.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.wrong_models import (  # noqa: E402
    EXPONENTIAL_NOISE,
    INTERACTIONS,
    SOUND_NONLINEAR,
    VARYING_NOISE,
)

import causal_bo_ppl as cb  # noqa: E402

CHECKS = ("check_predictive", "check_interactions", "check_noise")
RESULTS = Path("results") / "coverage.csv"
FIRST_SEED = 90_000  # none that a threshold was chosen with
ALONG = [{"X": value} for value in (-2.0, -1.0, 0.0, 1.0, 2.0)]
CORNERS = [{"A": a, "B": b} for a in (-2.0, 0.0, 2.0) for b in (-2.0, 0.0, 2.0)]

# {system: (data by seed, interventions, effect)}; X of all chains is standard normal.
CASES: dict[str, Any] = {
    "smooth chain": (
        SOUND_NONLINEAR["chain"],
        ALONG,
        lambda q: 0.5 * (np.sin(q["X"]) ** 2 + 0.25),
    ),
    "Y = A B + A / 2": (INTERACTIONS["product"], CORNERS, lambda q: q["A"] * (q["B"] + 0.5)),
    "front door, X Z": (INTERACTIONS["front door"], ALONG, lambda q: 0.6 * q["X"]),
    "varying noise, square": (
        VARYING_NOISE["before a square"],
        ALONG,
        lambda q: 0.5 * (q["X"] ** 2 + (0.2 + 0.6 * abs(q["X"])) ** 2),
    ),
    "varying noise, line": (VARYING_NOISE["before a line"], ALONG, lambda q: q["X"]),
    "exponential noise, exp": (
        EXPONENTIAL_NOISE,
        ALONG,
        lambda q: 2 * np.exp(q["X"] / 2 - 0.5),
    ),
}


def assess(system: str, mechanisms: str, seed: int) -> dict[str, Any]:
    """Return the coverage of 90 % intervals in one data set, and which checks fail."""
    make, queries, effect = CASES[system]
    (problem, data), start = make(seed), time.process_time()
    post = cb.fit(problem, data, mechanisms=mechanisms)
    table = cb.effects(post, queries, level=0.9, key=seed)
    truth = np.array([effect(query) for query in queries])
    low, high = table["lower"].to_numpy(), table["upper"].to_numpy()
    inside = (low <= truth) & (truth <= high)
    failed = {each: getattr(cb.diagnostics, each)(post).verdict == "failed" for each in CHECKS}
    found = {"system": system, "mechanisms": mechanisms, "seed": seed, "method": post.method}
    found |= {"coverage": inside.mean(), "least": inside.astype(int).tolist()}
    found |= {"width": (high - low).mean(), "seconds": time.process_time() - start}
    if post.chosen is not None:
        choices = post.chosen.table["choice"]
        found["chosen"] = "; ".join(f"{name}: {choice}" for name, choice in choices.items())
    return found | failed


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the coverage with its standard error, that of the worst intervention, and checks."""
    runs = runs.assign(failed=runs[list(CHECKS)].any(axis=1))
    rows = []
    for (system, mechanisms), part in runs.groupby(["system", "mechanisms"], sort=False):
        inside = np.stack([np.array(read_flags(each)) for each in part["least"]])
        rows.append(
            {
                "system": system,
                "mechanisms": mechanisms,
                "data sets": len(part),
                "coverage": part["coverage"].mean(),
                "se": part["coverage"].std(ddof=1) / np.sqrt(len(part)),
                "worst intervention": inside.mean(axis=0).min(),
                "failed checks": part["failed"].mean(),
                "width": part["width"].median(),
                "CPU seconds": part["seconds"].median(),
            }
        )
    return pd.DataFrame(rows).round(3)


def read_flags(text: object) -> list[int]:
    """Return the list of 0 and 1 that a file holds."""
    return [int(each) for each in str(text).strip("[]").split(",")]


def main() -> None:
    """Assess what is not assessed yet, seed by seed, and print the table."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--seeds", type=int, default=40)
    reader.add_argument("--first", type=int, default=FIRST_SEED)
    reader.add_argument("--mechanisms", nargs="+", default=["auto"])
    reader.add_argument("--results", type=Path, default=RESULTS)
    given = reader.parse_args()
    given.results.parent.mkdir(exist_ok=True)
    rows = pd.read_csv(given.results).to_dict("records") if given.results.is_file() else []
    known = {(row["system"], row["mechanisms"], row["seed"]) for row in rows}
    warnings.simplefilter("ignore", cb.CausalBOWarning)
    for seed in range(given.first, given.first + given.seeds):
        for system in CASES:
            for mechanisms in given.mechanisms:
                if (system, mechanisms, seed) not in known:
                    rows.append(assess(system, mechanisms, seed))
        pd.DataFrame(rows).to_csv(given.results, index=False)
    sys.stdout.write(summarize(pd.DataFrame(rows)).to_string(index=False) + "\n")


if __name__ == "__main__":
    main()
