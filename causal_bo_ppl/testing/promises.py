"""How is a list of promises checked, each by a function that raises or says what is wrong?"""

from collections.abc import Callable, Mapping

import pandas as pd

from causal_bo_ppl.checks import FAILED, PASSED, Check


def run_lines(name: str, lines: Mapping[str, Callable[[], object]], advice: str) -> Check:
    """Run every promise of a contract and return a check with a line for each.

    lines: {promise: function}, which returns "" or None, says what is wrong, or raises.
    """
    rows = []
    for promise, work in lines.items():
        try:
            fault = work() or ""
        except Exception as error:  # the code under test is somebody else's
            fault = str(error) or type(error).__name__
        rows.append((promise, FAILED if fault else PASSED, str(fault)))
    table = pd.DataFrame(rows, columns=["promise", "verdict", "fault"]).set_index("promise")
    broken = table[table["verdict"] == FAILED]
    if broken.empty:
        return Check(name, table, f"All {len(table)} promises are kept.")
    first = f"{broken.index[0]}: {broken['fault'].iloc[0]}"
    text = f"{len(broken)} of {len(table)} promises are broken; the first: {first}."
    return Check(name, table, text, advice)
