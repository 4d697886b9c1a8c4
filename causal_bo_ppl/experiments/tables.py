"""How is a reproduction written for people? Markdown tables laid out like the paper's."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd
import xarray as xr

SHOWN = {  # columns of a comparison, and what a reader sees above them
    "system": "experiment",
    "outcomes": "outcomes",
    "method": "method",
    "seeds": "seeds",
    "mean": "mean",
    "sd": "sd",
    "median": "median",
    "cost": "cost",
    "cost_within": "cost to 1 %",
    "optimum": "optimum",
    "recommended_mean": "gap, recommended: mean",
    "recommended_median": "gap, recommended: median",
    "tried_mean": "gap, tried: mean",
    "tried_median": "gap, tried: median",
    "published_mean": "published mean",
    "published_sd": "published sd",
    "published_median": "published median",
    "published_cost": "published cost",
    "published_within": "published cost to eps",
    "published_optimum": "published optimum",
    "published_gap": "published gap",
}
ROUNDING = 1e-12  # what is smaller is written as 0
BRIEFLY = {  # the same for a screen, which has room for fewer
    "system": "experiment",
    "method": "method",
    "cost": "cost",
    "recommended_mean": "recommended",
    "tried_mean": "tried",
    "tried_median": "tried, median",
    "published_gap": "published",
}


def markdown(
    name: str,
    table: pd.DataFrame,
    differences: pd.DataFrame,
    failed: pd.DataFrame,
    words: str,
    command: str,
) -> str:
    """Return a result as a Markdown text, with the command that made it."""
    shown = table
    if "tried_mean" in table:
        shown = table[[each for each in SHOWN if each in table]].rename(columns=SHOWN)
        shown = shown.dropna(axis="columns", how="all")
    parts = [f"# {name}", f"Made by `{command}`.", words, as_markdown(shown)]
    if len(failed):
        lost = failed[["system", "method", "seed", "error"]]
        parts += ["## Units that failed, and are not in the tables", as_markdown(lost)]
    if len(differences):
        level = f"{differences.attrs.get('level', 0.9):.0%}"
        parts += [
            "## Differences of final gaps, in pairs",
            f"Mean over seeds of the method's gap less that of the other, with {level} bootstrap "
            "intervals. Negative: the method is better. Methods may have spent different costs.",
            as_markdown(differences),
        ]
    return "\n\n".join(parts) + "\n"


def briefly(table: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return a title and a table of texts with the columns that a narrow screen has room for."""
    if "tried_mean" in table:
        shown = table[[each for each in BRIEFLY if each in table]].rename(columns=BRIEFLY)
        title = "Mean gaps to the true optimum"
    elif "budget" in table:
        keys = ["system", "rows", "method"]
        shown = table.pivot_table("median", keys, "budget", sort=False).reset_index()
        title = "Median error on sets that were never tried, by the number of outcomes"
    else:
        shown = table[["quantity", "median", "published", "must hold", "holds in"]]
        title = "Quantities of the theory"
    return title, shown.dropna(axis="columns", how="all").map(_cell)


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table in Markdown, numbers with five significant digits."""
    lines = [_line(table.columns), _line(["---"] * table.shape[1])]
    lines += [_line(map(_cell, row)) for row in table.itertuples(index=False, name=None)]
    return "\n".join(lines)


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _cell(value: object) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "-"
        return "0" if abs(value) < ROUNDING else f"{value:.5g}"
    return str(value).replace("|", "\\|")


def origin_words(results: Sequence[xr.Dataset]) -> str:
    """Return a warning where units were computed by different code, or "" where all are of one."""
    states = {(each.attrs.get("versions"), each.attrs.get("code")) for each in results}
    if len(states) < 2:
        return ""
    versions = sorted({str(each.attrs.get("versions")) for each in results})
    apart = "; ".join(versions) if len(versions) > 1 else "the same versions, other source files"
    return (
        f"**These units were computed by {len(states)} different states of the code** ({apart}). "
        "Empty the folder and compute them again if what changed matters to their numbers."
    )


def comparison_words() -> str:
    """Return what a reader of a table of gaps must know."""
    return (
        "mean, sd and median are true effects of the best intervention tried, over seeds, as "
        "published. A gap is what a true effect lacks to the true optimum: of what the method "
        "recommended at the end, which is what a user gets, and of the best that it tried, which "
        "only somebody who knows the truth can name. The published optima of ecoli70 belong to "
        "other domains, and the published values of healthcare are noisy samples: compare gaps. "
        "Outcomes are exact, the effect itself, or noisy, a single draw. "
        "cost is what the interventions cost on average, 1 for every variable that is set."
    )


def transfer_words() -> str:
    """Return what a reader of the transfer table must know."""
    return (
        "Median over seeds (with quartiles) of the error of predicted responses of sets that were "
        "never tried, by the number of outcomes (budget) of four other sets. ratio: over the "
        "median of cbo-noprior at the same budget. own: over the method's own median at budget 0, "
        "what outcomes are worth to it. covered: the share of held-out responses within their 90 % "
        "intervals. The published figures are of a funnel that the paper does not define; ours is "
        "another, and the published cbo is compared with cbo-noprior."
    )


def theory_words() -> str:
    """Return what a reader of the theory table must know."""
    return (
        "Quantities of the linear chain over data sets of 100 rows. The noise is chosen such that "
        "kappa^2 over it is 7.33, as in the published bound; the rest of the published scales is "
        "not known, so that structure is compared, not digits. The control, 'independent gain, "
        "causal', has the causal kernel within every set and none between sets."
    )
