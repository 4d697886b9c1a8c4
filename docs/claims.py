"""Write the tables of docs/claims.md from the results of `causal-bo reproduce`.

    .venv/bin/python docs/claims.py results

From the CSV file of each reproduction a small summary goes to docs/summaries, with the command that
made it, and into the page, between the marks <!-- NAME --> and <!-- end -->.
"""

import re
import shutil
import sys
from pathlib import Path

import pandas as pd

from causal_bo_ppl.experiments.comparison import as_markdown

HERE = Path(__file__).parent
PAGE, SUMMARIES = HERE / "claims.md", HERE / "summaries"
GAPS = {
    "system": "experiment",
    "method": "method",
    "seeds": "seeds",
    "cost": "cost",
    "recommended_mean": "gap, recommended: mean",
    "recommended_median": "median",
    "tried_mean": "gap, tried: mean",
    "tried_median": "median ",
    "share_optimal": "optimum tried",
    "published_cost": "published cost",
    "published_gap": "published gap",
}
THEORY = {name: name for name in ("quantity", "median", "least", "most", "published", "holds in")}
FIGURES = {"benchmarks": "-recommended", "sweep": "-sizes", "ablation": "-differences"} | {
    "theory": "",
    "transfer": "",
    "noise": "-recommended",
}
DIGITS = 4


def summarize(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """Return what the page shows of a table."""
    if name == "theory":
        shown = table[list(THEORY)]
    elif name == "transfer":
        keys = ["system", "observations", "method", "seeds"]
        shown = table.pivot_table("median", keys, "budget", sort=False).reset_index()
        last = table[table["budget"] == 48].set_index(["system", "observations", "method"])
        positions = list(zip(shown["system"], shown["observations"], shown["method"], strict=True))
        first = table[table["budget"] == 0].set_index(["system", "observations", "method"])
        shown["covered at 0"] = [first["covered"][position] for position in positions]
        for column in ("ratio", "ratio_of_means", "own", "published"):
            words = column.replace("_", " ")
            shown[f"{words} at 48"] = [last[column][position] for position in positions]
    else:
        shown = table[[each for each in GAPS if each in table]].rename(columns=GAPS)
    shown = shown.dropna(axis="columns", how="all")
    return shown.map(lambda cell: float(f"{cell:.{DIGITS}g}") if isinstance(cell, float) else cell)


def read_summary(name: str) -> pd.DataFrame:
    """Return the summary of a reproduction as it is kept."""
    return pd.read_csv(SUMMARIES / f"{name}.csv", comment="#")


def block(name: str) -> str:
    """Return the table of the page between its marks."""
    table = read_summary(name)
    return f"<!-- {name} -->\n{as_markdown(table)}\n<!-- end -->"


def main(results: Path) -> None:
    """Write all summaries for which there are results, their figures, and the page's tables."""
    SUMMARIES.mkdir(exist_ok=True)
    page = PAGE.read_text()
    for name, end in FIGURES.items():
        source = results / f"{name}.csv"
        if not source.is_file():
            continue
        command = re.search(r"Made by `(.*?)`", (results / f"{name}.md").read_text())
        made = f"# {command[1] if command else ''}\n"
        text = summarize(name, pd.read_csv(source)).to_csv(index=False)
        (SUMMARIES / f"{name}.csv").write_text(made + text)
        shutil.copy(results / f"{name}{end}.png", SUMMARIES / f"{name}.png")
        pattern = rf"<!-- {name} -->.*?<!-- end -->"
        page = re.sub(pattern, lambda _, name=name: block(name), page, flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
