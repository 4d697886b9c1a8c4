"""Record the golden numbers, or compare with them: `python tests/golden/record.py [--compare]`."""

import os
import sys
from pathlib import Path

if "--compare" not in sys.argv:  # recorded with one instruction set of BLAS, whatever the machine
    os.environ["OPENBLAS_CORETYPE"] = "Haswell"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden import comparing, quantities  # noqa: E402


def record():
    """Measure everything and write it."""
    if unfinished := quantities.unfinished_modes():
        sys.exit(f"laplace stopped too far from the mode of {unfinished}; choose other rows")
    found = {pair: quantities.measure(*pair) for pair in quantities.PAIRS}
    comparing.write(found)
    numbers, words, size = comparing.count()
    sys.stdout.write(
        f"{numbers} numbers and {words} texts of {len(found)} tables, {size / 1e3:.0f} kB\n"
    )


def compare():
    """Print a line for every quantity; 1 where something differs."""
    failed = 0
    for system, kind in quantities.PAIRS:
        for line in comparing.judge(system, kind):
            failed += not line.passed
            sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{failed} quantities differ\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(compare() if "--compare" in sys.argv else record())
