"""How often does `cb.validate` notice a broken assumption, and how often does it alarm falsely?

    .venv/bin/python tests/benchmarks/validation_of_broken_systems.py --seeds 20

The twelve systems are those of tests/helpers/broken_assumptions.py, each broken and unbroken. Every
validation is written to results/validation.csv when it is done, so that a call that was interrupted
continues when it is repeated. The table is printed in the end.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.broken_assumptions import CASES  # noqa: E402

import causal_bo_ppl as cb  # noqa: E402

RESULTS = Path("results") / "validation.csv"
FIRST_SEED = 60_000  # none that a threshold was chosen with


def assess(name: str, broken: bool, seed: int) -> dict[str, object]:
    """Return what one validation found."""
    case, start = CASES[name], time.perf_counter()
    given, options = case.make(seed, broken)
    found = cb.validate(*given, **options, key=seed, progress=False)
    verdicts = [found[name].verdict for name in case.card.split(", ")]
    worst = next((each for each in verdicts if each != "passed"), "passed")
    bad = {verdict: [card.name for card in found.of(verdict)] for verdict in ("failed", "warning")}
    lost = [f"{card.name}: {card.text}" for card in found.of("could not be computed")]
    return {
        "system": name,
        "broken": broken,
        "seed": seed,
        "verdict": found.verdict,
        "card": worst,
        "failed": ", ".join(bad["failed"]),
        "warning": ", ".join(bad["warning"]),
        "not computed": "; ".join(lost),
        "seconds": round(time.perf_counter() - start, 2),
    }


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Return how often the card did not pass, broken, and the verdicts, unbroken."""
    rows = []
    for name, each in runs.groupby("system", sort=False):
        broken, sound = each[each["broken"]], each[~each["broken"]]
        rows.append(
            {
                "system": name,
                "card": CASES[str(name)].card,
                "observations": CASES[str(name)].observations,
                "noticed": f"{(broken['card'] != 'passed').sum()} of {len(broken)}",
                "do not use, unbroken": (sound["verdict"] == "do not use").sum(),
                "with care, unbroken": (sound["verdict"] == "use with care").sum(),
                "card, unbroken": (sound["card"] != "passed").sum(),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Assess what is not assessed yet, and print the table."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--seeds", type=int, default=5, help="data sets of each system")
    reader.add_argument("--first", type=int, default=FIRST_SEED)
    reader.add_argument("--only", help="a part of a system's name")
    given = reader.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    rows = (
        pd.read_csv(RESULTS, keep_default_na=False).to_dict("records") if RESULTS.is_file() else []
    )
    known = {(row["system"], row["broken"], row["seed"]) for row in rows}
    warnings.simplefilter("ignore", cb.CausalBOWarning)
    for seed in range(given.first, given.first + given.seeds):
        for name in CASES:
            if given.only and given.only not in name:
                continue
            for broken in (True, False):
                if (name, broken, seed) not in known:
                    rows.append(assess(name, broken, seed))
                    pd.DataFrame(rows).to_csv(RESULTS, index=False)
    sys.stdout.write(summarize(pd.DataFrame(rows)).to_string(index=False) + "\n")


if __name__ == "__main__":
    main()
