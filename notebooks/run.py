"""Run the notebooks: in full and keep their outputs, or with small budgets and keep nothing.

In the cell tagged `parameters` a line `observations = 2000  # small: 200` gives both budgets.
"""

import argparse
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
BUDGET = re.compile(r"^(\w+) = .*?# small: (.+)$", re.MULTILINE)


def run(path: Path, *, small: bool) -> None:
    """Execute one notebook from a fresh kernel; a failing cell is an error."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        sys.exit(f"{path.name} needs exactly one cell tagged parameters, it has {len(cells)}")
    if small:
        cells[0].source = BUDGET.sub(r"\1 = \2", cells[0].source)
    NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": HERE}}
    ).execute()
    if not small:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(HERE.glob("*.ipynb")))
    parser.add_argument("--small", action="store_true", help="small budgets; nothing is written")
    arguments = parser.parse_args()
    for path in arguments.notebooks:
        sys.stdout.write(f"{path.name}\n")
        run(path, small=arguments.small)
