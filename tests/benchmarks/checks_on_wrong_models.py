"""How often do the checks of a fitted model fail, where it is right and where it is wrong?

    .venv/bin/python tests/benchmarks/checks_on_wrong_models.py
    .venv/bin/python tests/benchmarks/checks_on_wrong_models.py --seeds 40 --sound 125

The systems are those of tests/helpers/wrong_models.py, with 100 observations each. Sound ones are
additive with constant Gaussian noise; they are fitted with the mechanisms that they have, so that a
failed check is a false alarm. The others are wrong in one way. Every data set is written to
results/checks.csv when it is done, so that a call that was interrupted continues when it is
repeated. The table is printed in the end.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.wrong_models import (  # noqa: E402
    EXPONENTIAL_NOISE,
    FRONT,
    INTERACTIONS,
    SOUND_LINEAR,
    SOUND_NONLINEAR,
    VARYING_NOISE,
)

import causal_bo_ppl as cb  # noqa: E402

CHECKS = ("check_predictive", "check_interactions", "check_noise")
RESULTS = Path("results") / "checks.csv"
FIRST_SEED = 50_000  # none that a threshold was chosen with

CASES = {
    **{("sound", name, "linear"): make for name, make in SOUND_LINEAR.items()},
    **{("sound", name, "gp"): make for name, make in SOUND_NONLINEAR.items()},
    **{
        ("interaction", name, mechanisms): make
        for name, make in INTERACTIONS.items()
        for mechanisms in ("linear", "gp")
    },
    **{
        ("varying noise", name, mechanisms): make
        for name, make in VARYING_NOISE.items()
        for mechanisms in ("linear", "gp")
    },
    ("exponential noise", "before exp", "linear"): EXPONENTIAL_NOISE,
    ("exponential noise", "before exp", "gp"): EXPONENTIAL_NOISE,
}


def assess(case: tuple[str, str, str], seed: int) -> dict[str, Any]:
    """Return which checks fail for one data set."""
    kind, name, mechanisms = case
    problem, data = CASES[case](seed)
    method = "laplace" if problem is FRONT and mechanisms == "linear" else "conjugate"
    post = cb.fit(problem, data, mechanisms=mechanisms, method=method)
    found = {each: getattr(cb.diagnostics, each)(post).verdict == "failed" for each in CHECKS}
    return {"kind": kind, "system": name, "mechanisms": mechanisms, "seed": seed} | found


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of data sets in which each check fails, and in which any does."""
    columns = ["kind", "system", "mechanisms"]
    runs = runs.assign(any=runs[list(CHECKS)].any(axis=1))
    groups = runs.groupby(columns, sort=False)
    table = groups[[*CHECKS, "any"]].mean()
    table.insert(0, "data sets", groups.size())
    return table.reset_index()


def main() -> None:
    """Assess what is not assessed yet, and print the table."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--seeds", type=int, default=100, help="data sets of each wrong system")
    reader.add_argument("--sound", type=int, help="data sets of each sound system; as many")
    reader.add_argument("--first", type=int, default=FIRST_SEED)
    given = reader.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    rows = pd.read_csv(RESULTS).to_dict("records") if RESULTS.is_file() else []
    known = {(row["kind"], row["system"], row["mechanisms"], row["seed"]) for row in rows}
    warnings.simplefilter("ignore", cb.CausalBOWarning)
    for case in CASES:
        count = given.sound if case[0] == "sound" and given.sound else given.seeds
        for seed in range(given.first, given.first + count):
            if (*case, seed) not in known:
                rows.append(assess(case, seed))
        pd.DataFrame(rows).to_csv(RESULTS, index=False)
    sys.stdout.write(summarize(pd.DataFrame(rows)).to_string(index=False) + "\n")


if __name__ == "__main__":
    main()
