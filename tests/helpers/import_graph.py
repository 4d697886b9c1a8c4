"""Which module of the package imports which? Run as a script, it prints the counts of the package.

    python tests/helpers/import_graph.py [--list]

Imports inside functions count; those for type checkers only do not.
"""

import ast
import io
import re
import sys
import tokenize
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "causal_bo_ppl"
NAME = "causal_bo_ppl"
SMALL = 150  # lines below which a module with one importer needs a reason to be its own


def module_files(package: Path = PACKAGE) -> dict[str, Path]:
    """Return {dotted name: file} of all modules but the worked systems."""
    return {
        dotted(path, package): path
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] != "models"
    }


def dotted(path: Path, package: Path = PACKAGE) -> str:
    """Return the dotted name under which a file is imported."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join((NAME, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_names(path: Path, *, types_too: bool = True) -> list[str]:
    """Return the full dotted names that a file imports, also inside functions."""
    found: list[str] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if not types_too and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def import_graph(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return {module: modules of the package that it imports}.

    A name taken from a package's `__init__` counts as an import of the module that defines it.
    """
    files = module_files(package)
    homes = {
        f"{name}.{alias.asname or alias.name}": f"{node.module}.{alias.name}"
        for name, path in files.items()
        if path.name == "__init__.py" and name != NAME
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def home(full: str) -> str | None:
        for _ in range(len(homes)):
            if full not in homes:
                break
            full = homes[full]
        if full in files:
            return full
        module = full.rpartition(".")[0]
        return module if module in files else None

    graph = {}
    for name, path in files.items():
        found = {home(full) for full in imported_names(path, types_too=False)}
        graph[name] = {each for each in found if each is not None} - {name}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle."""
    reach = {start: _reachable(graph, start) for start in graph}
    groups = {
        frozenset(other for other in graph if other in reach[name] and name in reach[other])
        for name in graph
        if name in reach[name]
    }
    return sorted(sorted(group) for group in groups)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of modules of which each imports the next; cycles must be absent."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(each) for each in sorted(graph[name])), key=len, default=()))

    return list(max((chain(name) for name in sorted(graph)), key=len))


def single_importer(graph: dict[str, set[str]]) -> dict[str, str]:
    """Return {module: its only importer} of the modules, `__init__` files apart, that have one."""
    files = module_files()
    plain = [name for name in graph if files[name].name != "__init__.py"]
    importers = {
        name: [other for other in graph if name in graph[other] and other in plain]
        for name in plain
    }
    return {name: found[0] for name, found in importers.items() if len(found) == 1}


def code_lines(path: Path) -> int:
    """Return the lines of a file that hold code: no blank lines, comments or docstrings.

    Lines that only close brackets do not count.
    """
    text = path.read_text()
    lines: set[int] = set()
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    closing = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.fullmatch(r"\s*[\])}]+,?", line)
    }
    return len(lines - closing)


def main() -> None:
    """Print the counts; with --list the modules behind them."""
    files, graph = module_files(), import_graph()
    only = single_importer(graph)
    short = {
        name: by for name, by in only.items() if len(files[name].read_text().splitlines()) < SMALL
    }
    circles = cycles(graph)
    print(f"modules                       {len(files)}")  # noqa: T201
    print(f"lines of code                 {sum(map(code_lines, files.values()))}")  # noqa: T201
    print(f"modules with one importer     {len(only)}, of which under {SMALL} lines {len(short)}")  # noqa: T201
    print(f"cycles                        {circles or 'none'}")  # noqa: T201
    if not circles:
        print(f"longest chain of imports      {len(longest_chain(graph))}")  # noqa: T201
    if "--list" in sys.argv:
        for name, by in only.items():
            print(f"  {len(files[name].read_text().splitlines()):4d}  {name} <- {by}")  # noqa: T201
        if not circles:
            print("\n  ".join(["longest chain:", *longest_chain(graph)]))  # noqa: T201


if __name__ == "__main__":
    main()
