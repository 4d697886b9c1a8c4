"""Record the cases on the code as it is: `python tests/golden/record.py [--overwrite]`.

The results go into `recorded.json`, beside this file, with which `make golden` compares later code.
"""

import json
import sys
import time
from pathlib import Path

FILE = Path(__file__).with_name("recorded.json")
KEPT = ("kind", "value", "standard_error")


def main(arguments: list[str]) -> int:
    """Write the file; refuse to overwrite it unless recorded to."""
    if set(arguments) - {"--overwrite"}:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    if FILE.exists() and "--overwrite" not in arguments:
        sys.stderr.write(f"{FILE.name} exists; to record it again, add --overwrite\n")
        return 1
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from golden.cases import CASES

    recorded = {}
    for name, find in CASES.items():
        start = time.perf_counter()
        recorded[name] = find()
        sys.stderr.write(f"{time.perf_counter() - start:6.1f} s  {name}\n")
    FILE.write_text(write(recorded))
    return 0


def write(recorded: dict[str, dict[str, dict[str, object]]]) -> str:
    """Return the JSON text, a line for every entry; tolerances stay with the cases."""
    cases = []
    for name, entries in recorded.items():
        kept = {
            entry: {part: found[part] for part in KEPT if part in found}
            for entry, found in entries.items()
        }
        lines = [f"  {json.dumps(entry)}: {json.dumps(found)}" for entry, found in kept.items()]
        cases.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(cases) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
