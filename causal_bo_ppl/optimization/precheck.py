"""What can be known to be wrong before the first experiment?

Cheap checks of the rows: whether they contradict an independence that the graph implies, whether a
mechanism bends though it is fitted by a line, and whether interventions reach far beyond the rows.
What fails is said once, with what to do about it.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace

import jax

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check
from causal_bo_ppl.diagnostics import check_graph, check_overlap, check_predictive
from causal_bo_ppl.errors import CausalBOWarning, DataError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key

GRAPH, RARELY = "causal graph", 1e-3  # the share of true graphs that may be doubted
DRAWS = 400  # data sets that the rows are compared with
MOST_FAILED = 0.5  # of the sets may lack overlap without a word
SHOWN = 3  # mechanisms that the text names; the table has all


def precheck(post: Posterior, key: jax.Array | int = 0) -> tuple[Check, ...]:
    """Look once at what would mislead an optimization.

    Parameters
    ----------
    post:
        What is believed before the first experiment.
    key:
        A JAX key or an int seed.

    Returns
    -------
    tuple of Check
        "causal graph": as `cb.check_graph`; a true one fails in one of 1,000 data sets. Only where
        effects cannot bend, as are the next. "mechanisms": a line for every mechanism with causes,
        failed where it bends. "overlap": as `cb.check_overlap`. A check that cannot be made of
        these rows or of this posterior is left out.
    """
    checks = []
    if post.belief.response.is_affine:
        checks.append(_assessed(lambda: _check_graph(post)))
        checks.append(_assessed(lambda: check_bends(post, as_key(key))))
    checks.append(_assessed(lambda: check_overlap(post)))
    return tuple(check for check in checks if check is not None)


def _assessed(look: Callable[[], Check]) -> Check | None:
    """Return a check, or None where these rows or this posterior do not allow it."""
    try:
        return look()
    except (DataError, ModelError):  # too few rows, or no draws of whole models
        return None


def _check_graph(post: Posterior) -> Check:
    """Test the independences that the graph implies; say what a failure means for experiments."""
    found = check_graph(post, alpha=RARELY)
    if found.verdict != FAILED:
        return found
    advice = (
        f'{found.advice} With residual="auto" every set has a residual from the first outcome on.'
    )
    return replace(found, advice=advice)


def contradicts_graph(checks: tuple[Check, ...]) -> bool:
    """Return whether the rows contradict the graph, before any outcome does."""
    return any(check.name == GRAPH and check.verdict == FAILED for check in checks)


def check_bends(post: Posterior, key: jax.Array | int = 0) -> Check:
    """Look for linear mechanisms whose disturbances follow powers of a cause.

    These are the lines "curvature" of `cb.check_predictive`, with p-values corrected for all of its
    lines.
    """
    whole = check_predictive(post, draws=DRAWS, key=key)
    lines = whole.table[whole.table["statistic"] == "curvature"]
    table = lines.drop(columns="statistic").set_index("variable")
    bent = table[table["verdict"] == FAILED].sort_values("p_value", kind="stable")
    if not len(bent):
        text = f"None of {len(table)} mechanisms bends visibly in {post.rows} rows."
        return Check("mechanisms", table, text, whole=None if len(table) else UNKNOWN)
    words = [
        f"what the causes of {name} leave unexplained follows powers of {line['where']} "
        f"(correlation {line['observed']:.2f}, a line predicts {line['low']:.2f} to "
        f"{line['high']:.2f})"
        for name, line in bent.head(SHOWN).iterrows()
    ]
    more = f"; {len(bent) - SHOWN} more likewise" if len(bent) > SHOWN else ""
    chosen = ", ".join(f'"{name}": "gp"' for name in bent.index[:6])
    text = f"{len(bent)} of {len(table)} mechanisms bend: {'; '.join(words)}{more}."
    advice = (
        f"A line misleads experiments far from the rows: optimize with mechanisms={{{chosen}}}, "
        'compare with cb.check_linearity, or keep residual="auto".'
    )
    return Check("mechanisms", table, text, advice)


def to_be_said(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return the failed checks that an analyst should hear of before the first experiment.

    Corners of a few sets nearly always lie far from the rows, and while mechanisms are straight the
    sd of their effects says so. So the overlap is mentioned where a mechanism bends too, or where
    it fails for more than half of the sets: then the domains as a whole do not fit the rows.
    """
    failed = {check.name: check for check in checks if check.verdict == FAILED}
    overlap = failed.get("overlap")
    if overlap is not None and "mechanisms" not in failed:
        if len(overlap.failures) <= MOST_FAILED * len(overlap.table):
            failed.pop("overlap")
    return tuple(failed.values())


def warn_of(checks: tuple[Check, ...], stacklevel: int = 1) -> None:
    """Warn once of every check that should be heard of, with its text and its advice.

    stacklevel: 1 points at the caller of this function, 2 at the caller of that one, and so on.
    """
    for check in to_be_said(checks):
        message = f"before the first experiment: {check.text} {check.advice}".strip()
        warnings.warn(message, CausalBOWarning, stacklevel=stacklevel + 1)
