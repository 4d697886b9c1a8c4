"""Did the computation work? R-hat, effective sample sizes, divergences and energy, each with its limit."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

PASSED, FAILED, UNKNOWN = "passed", "failed", "not assessed"


class Limits(NamedTuple):
    """What a sampled posterior must keep. ess: bulk and tail, all chains together."""

    r_hat: float = 1.01
    ess: float = 400.0
    bfmi: float = 0.3


def summarise(draws: np.ndarray, names: tuple[str, ...]) -> pd.DataFrame:
    """Mean, sd, Monte-Carlo errors, effective sample sizes and R-hat of draws (chains, n, d), by ArviZ."""
    from arviz_stats.base import array_stats

    by_name = np.moveaxis(draws, -1, 0)
    sd, squares = (
        draws.std(axis=(0, 1), ddof=1),
        (by_name - by_name.mean(axis=(1, 2), keepdims=True)) ** 2,
    )
    columns = {
        "mean": draws.mean(axis=(0, 1)),
        "sd": sd,
        "mcse_mean": array_stats.mcse(by_name, method="mean"),
        "mcse_sd": array_stats.mcse(squares, method="mean")
        / (2 * sd),  # ArviZ's own takes the mean's sample size
        "ess_bulk": array_stats.ess(by_name, method="bulk"),
        "ess_sd": array_stats.ess(squares, method="mean"),
        "ess_tail": array_stats.ess(by_name, method="tail", prob=(0.05, 0.95)),
        "r_hat": array_stats.rhat(by_name) if draws.shape[0] > 1 else np.full(len(names), np.nan),
    }
    return pd.DataFrame(
        {name: np.asarray(value) for name, value in columns.items()}, index=pd.Index(names)
    )


def effective_sizes(draws: np.ndarray) -> np.ndarray:
    """(d,) how many independent draws the means of draws (chains, n, d) are worth, by ArviZ: at most all.

    Where there are too few to tell, one for each chain.
    """
    from arviz_stats.base import array_stats

    chains, length, _ = draws.shape
    found = np.asarray(
        array_stats.ess(np.ascontiguousarray(np.moveaxis(draws, -1, 0)), method="mean"), float
    )
    found = np.where(
        np.ptp(draws, axis=(0, 1)) > 0, np.where(np.isfinite(found), found, chains), np.inf
    )
    return np.asarray(np.clip(found, chains, chains * length))


def judge_chains(table: pd.DataFrame, stats: dict[str, np.ndarray], limits: Limits) -> pd.DataFrame:
    """A line for each thing that can go wrong: value, limit, verdict. NaN fails."""
    from arviz_stats.base import array_stats

    chains, draws = stats["energy"].shape
    worst = (
        {name: str(table[name].idxmin()) for name in ("ess_bulk", "ess_tail")} if len(table) else {}
    )
    lines: dict[str, tuple[float, str, Any]] = {
        "ess_bulk": (
            table["ess_bulk"].min(skipna=False),
            f">= {limits.ess:g}",
            table["ess_bulk"] >= limits.ess,
        ),
        "ess_tail": (
            table["ess_tail"].min(skipna=False),
            f">= {limits.ess:g}",
            table["ess_tail"] >= limits.ess,
        ),
        "divergences": (stats["diverging"].sum(), "= 0", not stats["diverging"].any()),
    }
    bfmi = np.asarray(array_stats.bfmi(stats["energy"]))
    lines["bfmi"] = (bfmi.min(), f">= {limits.bfmi:g}", bfmi >= limits.bfmi)
    rows = [
        (
            "r_hat",
            table["r_hat"].max(skipna=False),
            f"<= {limits.r_hat:g}",
            _r_hat(table, chains, limits),
            "",
        )
    ]
    for name, (value, limit, passed) in lines.items():
        rows.append(
            (
                name,
                float(value),
                limit,
                PASSED if bool(np.all(passed)) else FAILED,
                worst.get(name, ""),
            )
        )
    found = pd.DataFrame(rows, columns=["line", "value", "limit", "verdict", "worst"]).set_index(
        "line"
    )
    if chains > 1 and table["r_hat"].notna().all():
        found.loc["r_hat", "worst"] = str(table["r_hat"].idxmax())
    return found


def _r_hat(table: pd.DataFrame, chains: int, limits: Limits) -> str:
    if chains < 2:
        return UNKNOWN
    return PASSED if bool((table["r_hat"] <= limits.r_hat).all()) else FAILED


def overall(lines: pd.DataFrame) -> str:
    """Failed if a line failed; "not assessed" if one could not be assessed; else passed."""
    found = set(lines["verdict"])
    return FAILED if FAILED in found else UNKNOWN if UNKNOWN in found else PASSED


def exact_lines(how: str) -> pd.DataFrame:
    """Of a closed form."""
    return pd.DataFrame(
        {"value": [0.0], "limit": ["= 0"], "verdict": [PASSED]},
        index=pd.Index([f"closed form: {how}"], name="line"),
    )
