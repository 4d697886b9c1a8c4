"""Did the computation work? R-hat, effective sample sizes, divergences and energy, with limits."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN
from causal_bo_ppl.errors import listed


class Limits(NamedTuple):
    """What a sampled posterior must keep.

    Attributes
    ----------
    r_hat:
        The largest R-hat of a parameter.
    ess:
        The smallest effective sample size, bulk and tail, of all chains together.
    bfmi:
        The smallest estimated Bayesian fraction of missing information of a chain.
    """

    r_hat: float = 1.01
    ess: float = 400.0
    bfmi: float = 0.3


def summarise(draws: np.ndarray, names: tuple[str, ...]) -> pd.DataFrame:
    """Return a table of draws (chains, n, d) with a row for each of d names, by ArviZ.

    It has mean and sd, their Monte-Carlo errors, effective sample sizes and R-hat.
    """
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
    """Return how many independent draws the means of draws (chains, n, d) are worth, of shape (d,).

    They are computed by ArviZ and at most all; where there are too few to tell, one for each chain.
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
    """Judge draws by a line for each thing that can go wrong: value, limit, verdict. NaN fails.

    table: as `summarise` makes it. stats: of the sampler, (chains, draws) each; divergences and
    energy are judged where the sampler has them. R-hat of one chain is not assessed.
    """
    rows = [
        ("r_hat", table["r_hat"].max(skipna=False), f"<= {limits.r_hat:g}", *_r_hat(table, limits))
    ]
    for name in ("ess_bulk", "ess_tail"):
        passed = bool((table[name] >= limits.ess).all())
        worst = str(table[name].idxmin())
        rows.append(
            (name, table[name].min(skipna=False), f">= {limits.ess:g}", _judge(passed), worst)
        )
    if "diverging" in stats:
        count = float(stats["diverging"].sum())
        rows.append(("divergences", count, "= 0", _judge(not stats["diverging"].any()), ""))
    if "energy" in stats:
        from arviz_stats.base import array_stats

        bfmi = np.asarray(array_stats.bfmi(stats["energy"]))
        passed = bool((bfmi >= limits.bfmi).all())
        rows.append(("bfmi", float(bfmi.min()), f">= {limits.bfmi:g}", _judge(passed), ""))
    return pd.DataFrame(rows, columns=["line", "value", "limit", "verdict", "worst"]).set_index(
        "line"
    )


def _judge(passed: bool) -> str:
    return PASSED if passed else FAILED


def _r_hat(table: pd.DataFrame, limits: Limits) -> tuple[str, str]:
    """Return the verdict on R-hat and the worst parameter; one chain has no R-hat at all."""
    if table["r_hat"].isna().all():
        return UNKNOWN, ""
    worst = str(table["r_hat"].idxmax()) if table["r_hat"].notna().all() else ""
    return _judge(bool((table["r_hat"] <= limits.r_hat).all())), worst


def describe_chains(size: str, lines: pd.DataFrame) -> str:
    """Say in words how good draws are; size: how many there are, in words."""
    value, verdict = lines["value"], lines["verdict"]
    known = f"up to {value['r_hat']:.4f}" if verdict["r_hat"] != UNKNOWN else "unknown"
    numbers = (
        f"R-hat {known}, at least {value['ess_bulk']:.0f} effective draws "
        f"({value['ess_tail']:.0f} in the tails)"
    )
    if "divergences" in lines.index:
        numbers += f", {value['divergences']:.0f} divergences"
    if "bfmi" in lines.index:
        numbers += f", E-BFMI {value['bfmi']:.2f}"
    failed = [str(name) for name in lines.index[verdict == FAILED]]
    return f"{size}: {numbers}." + (f" Not good enough: {listed(failed)}." if failed else "")


def overall(lines: pd.DataFrame) -> str:
    """Return failed if a line failed, "not assessed" if one could not be assessed, else passed."""
    found = set(lines["verdict"])
    return FAILED if FAILED in found else UNKNOWN if UNKNOWN in found else PASSED


def exact_lines(how: str) -> pd.DataFrame:
    """Return the one line of a closed form."""
    return pd.DataFrame(
        {"value": [0.0], "limit": ["= 0"], "verdict": [PASSED]},
        index=pd.Index([f"closed form: {how}"], name="line"),
    )
