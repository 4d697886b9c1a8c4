"""Draws of a posterior: their effects, and whether the computation that made them worked.

Draws are of theta and of the parameters of models. They are judged by R-hat, effective sample
sizes, divergences and energy, with limits.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, judge
from causal_bo_ppl.errors import listed
from causal_bo_ppl.inference.potentials import log_priors
from causal_bo_ppl.mechanisms.base import Model, ResponseMap, ResponseProgram, offered
from causal_bo_ppl.problem import Queries

THETAS_AT_ONCE = 64  # in one compiled program
NOMINAL_CHAINS = 4  # into which independent draws are divided
DEFAULT_DRAWS = 4_000


@jax.jit
def apply_to_many(program: ResponseProgram, theta: jax.Array, batch: Any) -> Any:
    """Return the effects (s, M) of thetas (s, d) on a batch of the response map."""
    many = offered(program, "of_many") or jax.vmap(program.effects, (0, None))
    return many(theta, batch)


def how_many(program: ResponseProgram) -> tuple[int | None, bool]:
    """Return the number of queries of a piece, None for any, and whether threads share pieces."""
    return getattr(program, "together", None), getattr(program, "side_by_side", False)


def effects_of_draws(response: ResponseMap, theta: np.ndarray, queries: Queries) -> np.ndarray:
    """Return effects (s, M) at finite thetas (s, d); few programs are compiled.

    Raises ExplorationError where theta does not determine the effect of a query.
    """
    known = offered(response, "effects_of_many")
    if known is not None:
        return np.asarray(known(theta, queries))
    batch, sizes = response.batch(queries), how_many(response.program)

    def effects_of(block: np.ndarray) -> Any:
        work = partial(apply_to_many, response.program, jnp.asarray(block))
        return in_pieces(work, batch, len(queries), 1, *sizes)

    return np.asarray(in_pieces(effects_of, theta, len(theta), 0, THETAS_AT_ONCE))


def draw_count(n: int | None) -> int:
    """Return about n, DEFAULT_DRAWS by default, as a multiple of NOMINAL_CHAINS."""
    return NOMINAL_CHAINS * -(-(n or DEFAULT_DRAWS) // NOMINAL_CHAINS)


class Drawn(NamedTuple):
    """Draws of a posterior, n in all, in `chains` equal parts one after the other.

    theta: (n, d). models: parameters of n models, as the family returns them; None where only theta
    is known. log_prior: (n,) up to a constant, or None. stats: {name: (chains, n / chains)} of the
    sampler. outcome_log_densities: (n, m) log densities of outcomes, where there are any.
    """

    chains: int
    theta: np.ndarray
    models: Any = None
    log_prior: np.ndarray | None = None
    stats: dict[str, np.ndarray] = {}
    outcome_log_densities: np.ndarray | None = None

    def thinned(self, most: int | None) -> "Drawn":
        """Return every so-many-th draw of each chain, at most about `most` in all."""
        length = len(self.theta) // self.chains
        step = 1 if most is None else max(1, -(-len(self.theta) // most))
        starts = np.arange(self.chains)[:, None] * length
        kept = (starts + np.arange(0, length, step)[None]).ravel()
        models, log_prior, outcome_log_densities = jax.tree.map(
            lambda part: part[kept], (self.models, self.log_prior, self.outcome_log_densities)
        )
        stats = {name: value[:, ::step] for name, value in self.stats.items()}
        return Drawn(self.chains, self.theta[kept], models, log_prior, stats, outcome_log_densities)


def drawn_at(model: Model, psi: np.ndarray, chains: int, stats: dict[str, Any]) -> Drawn:
    """Return draws at coordinates (n, k) with their densities."""
    models = model.draws(psi)
    outcomes = offered(model, "outcome_densities")
    densities = None if outcomes is None else outcomes(models)
    return Drawn(chains, model.theta(models), models, log_priors(model, psi), stats, densities)


def drawn_before(model: Model, n: int, key: jax.Array) -> Drawn | None:
    """Draw about n models from the prior; None where the model cannot."""
    draw_prior = offered(model, "draw_prior")
    models = None if draw_prior is None else draw_prior(draw_count(n), key)
    return None if models is None else Drawn(NOMINAL_CHAINS, model.theta(models), models)


class Limits(NamedTuple):
    """The limits of the diagnostics of a sampled posterior.

    Attributes
    ----------
    r_hat:
        The largest R-hat of a parameter.
    ess:
        The smallest effective sample size, bulk and tail, of all chains together.
    bfmi:
        The smallest estimated Bayesian fraction of missing information of a chain.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.diagnostics.Limits(ess=1_000.0)
    Limits(r_hat=1.01, ess=1000.0, bfmi=0.3)
    """

    r_hat: float = 1.01
    ess: float = 400.0
    bfmi: float = 0.3


def summarise(draws: np.ndarray, names: tuple[str, ...]) -> pd.DataFrame:
    """Return a table of draws (chains, n, d) with a row for each of d names, by ArviZ.

    It has mean and sd, their Monte-Carlo errors, effective sample sizes and R-hat.
    """
    from arviz_stats.base import array_stats

    by_name, sd = np.moveaxis(draws, -1, 0), draws.std(axis=(0, 1), ddof=1)
    squares = (by_name - by_name.mean(axis=(1, 2), keepdims=True)) ** 2
    columns = {
        "mean": draws.mean(axis=(0, 1)),
        "sd": sd,
        "mcse_mean": array_stats.mcse(by_name, method="mean"),
        # ArviZ's "sd" takes the effective sample size of the mean
        "mcse_sd": array_stats.mcse(squares, method="mean") / (2 * sd),
        "ess_bulk": array_stats.ess(by_name, method="bulk"),
        "ess_sd": array_stats.ess(squares, method="mean"),
        "ess_tail": array_stats.ess(by_name, method="tail", prob=(0.05, 0.95)),
        "r_hat": array_stats.rhat(by_name) if draws.shape[0] > 1 else np.full(len(names), np.nan),
    }
    columns = {name: np.asarray(value) for name, value in columns.items()}
    return pd.DataFrame(columns, index=pd.Index(names))


def effective_sizes(draws: np.ndarray) -> np.ndarray:
    """Return the effective sample sizes (d,) of the means of draws (chains, n, d).

    They are computed by ArviZ and at most the number of draws; where ArviZ cannot assess them, the
    number of chains.
    """
    from arviz_stats.base import array_stats

    chains, length, _ = draws.shape
    by_name = np.ascontiguousarray(np.moveaxis(draws, -1, 0))
    sizes = np.asarray(array_stats.ess(by_name, method="mean"), float)
    sizes = np.where(np.isfinite(sizes), sizes, chains)
    sizes = np.where(np.ptp(draws, axis=(0, 1)) > 0, sizes, np.inf)
    return np.asarray(np.clip(sizes, chains, chains * length))


def judge_chains(table: pd.DataFrame, stats: dict[str, np.ndarray], limits: Limits) -> pd.DataFrame:
    """Return a row for each diagnostic of draws: value, limit and verdict. NaN fails.

    table: as `summarise` makes it. stats: of the sampler, (chains, draws) each; divergences and
    energy are judged where the sampler has them. R-hat of one chain is not assessed.
    """
    r_hat = table["r_hat"]
    passed = bool((r_hat <= limits.r_hat).all())
    verdict = UNKNOWN if r_hat.isna().all() else judge(passed)
    worst = str(r_hat.idxmax()) if r_hat.notna().all() else ""
    rows = [("r_hat", r_hat.max(skipna=False), f"<= {limits.r_hat:g}", verdict, worst)]
    for name in ("ess_bulk", "ess_tail"):
        verdict, worst = judge(bool((table[name] >= limits.ess).all())), str(table[name].idxmin())
        rows.append((name, table[name].min(skipna=False), f">= {limits.ess:g}", verdict, worst))
    if "diverging" in stats:
        count = float(stats["diverging"].sum())
        rows.append(("divergences", count, "= 0", judge(not stats["diverging"].any()), ""))
    if "energy" in stats:
        from arviz_stats.base import array_stats

        bfmi = np.asarray(array_stats.bfmi(stats["energy"]))
        passed = bool((bfmi >= limits.bfmi).all())
        rows.append(("bfmi", float(bfmi.min()), f">= {limits.bfmi:g}", judge(passed), ""))
    columns = ["line", "value", "limit", "verdict", "worst"]
    return pd.DataFrame(rows, columns=columns).set_index("line")


def describe_chains(size: str, lines: pd.DataFrame) -> str:
    """Return a sentence on the quality of draws; size: a text on how many there are."""
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
    """Return failed if a row failed, "not assessed" if one could not be assessed, else passed."""
    return next((each for each in (FAILED, UNKNOWN) if each in set(lines["verdict"])), PASSED)


def exact_lines(how: str) -> pd.DataFrame:
    """Return the table of diagnostics of a closed form, which has one row."""
    return pd.DataFrame(
        {"value": [0.0], "limit": ["= 0"], "verdict": [PASSED]},
        index=pd.Index([f"closed form: {how}"], name="line"),
    )
