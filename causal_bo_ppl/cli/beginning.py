"""How does a problem begin? `causal-bo init` writes a commented file from a table and a graph."""

import csv
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from causal_bo_ppl.cli.terminal import DEFAULT_PROBLEM, command, say
from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOError,
    DataError,
    GraphError,
    listed,
    unknown,
)

if TYPE_CHECKING:
    import pandas as pd

    from causal_bo_ppl.graph import CausalGraph
    from causal_bo_ppl.graph.dot_language import GraphText

SEPARATORS = ",;\t|"
SNIFFED_LINES = 50
FEW_VALUES = 4  # of a column: these are then proposed as levels
UNIT = re.compile(r"(.*\S)\s*[(\[]\s*([^()\[\]]+?)\s*[)\]]")
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
ENCODINGS = ("utf-8-sig", "cp1252")


class Column(NamedTuple):
    """A column of the table, and the variable that it holds."""

    header: str
    name: str
    unit: str
    values: "pd.Series[Any]"


@command("causal-bo init data.csv --graph graph.txt --objective max")
def init(
    data: Annotated[Path, typer.Argument(help="A table: CSV or Parquet, one column per variable.")],
    graph: Annotated[
        Path | None,
        typer.Option("--graph", help="The graph: dagitty, DOT, GML, lavaan, JSON or X -> Y."),
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="The variable to improve.")] = None,
    objective: Annotated[str | None, typer.Option("--objective", help="max or min.")] = None,
    settable: Annotated[
        list[str] | None, typer.Option("--set", help="A variable that can be set; repeat it.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The problem file to write.")
    ] = DEFAULT_PROBLEM,
) -> None:
    """Write a commented problem file from the columns of a table; nothing is overwritten."""
    from causal_bo_ppl.graph.admg import build_graph, read_graph_text
    from causal_bo_ppl.graph.formats import read_text_file

    if output.exists():
        raise ArgumentError(f"{output} exists; remove it, or name another with -o FILE")
    if objective not in (None, "max", "min"):
        raise ArgumentError(f"--objective is max or min, got {objective!r}")
    marks = _sniff(data)
    given = None if graph is None else _read(graph, read_graph_text, read_text_file)
    columns = _match(_read_columns(data, marks), given)
    names = {each.name for each in columns}
    latent: list[str] = []
    whole = None
    if given is not None:
        observed = [name for name in given.nodes if name not in given.latent]
        latent = [name for name in observed if name not in names]
        if len(latent) == len(observed):
            raise GraphError(
                f"no variable of {graph} is a column of {data.name}: {listed(observed)} against "
                f"{listed(each.header for each in columns)}"
            )
        marked = [name for name in (*given.outcomes, *given.exposures) if name in latent]
        if marked:
            headers = listed(each.header for each in columns)
            raise GraphError(
                f"{graph} marks {listed(marked)} as outcome or exposure, and no column of "
                f"{data.name} has that name; rename a column ({headers}) or the variable"
            )
        whole = build_graph(given, latent)
        columns = [each for each in columns if each.name in whole.positions]
    known = list(whole.nodes) if whole else [each.name for each in columns]
    target = _choose("target", target, _default_target(given, whole), known)
    objective = objective or _prompt(f"Should {target or 'the target'} be max or min?")
    if objective not in ("", "max", "min"):
        raise ArgumentError(f"the objective is max or min, got {objective!r}")
    for name in settable or ():
        if name not in known:
            raise ArgumentError(unknown("variable", name, known))
    chosen = list(settable or [])
    if not chosen and given is not None:
        chosen = [name for name in given.exposures if name in known]
    text = _write(data, output, marks, graph, latent, whole, columns, target, objective, chosen)
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ArgumentError(f"{output} cannot be written: {error.strerror}") from None
    say(f"Wrote {output}: {len(columns)} variables.")
    if latent:
        say(f"Without a column, so taken to be unobserved: {listed(latent)}.")
    missing = [number for number, line in enumerate(text.split("\n"), 1) if "FILL IN" in line]
    if missing:
        say(f"Fill in line {listed(missing)} of {output}, then run: causal-bo check")
    else:
        say("Next: causal-bo check")


def _read(path: Path, read_graph_text: Any, read_text_file: Any) -> "GraphText":
    try:
        found: GraphText = read_graph_text(read_text_file(path))
    except GraphError as error:
        raise GraphError(f"{path.name}: {error}") from None
    return found


def _sniff(path: Path) -> dict[str, str]:
    """Return how a CSV is written where that is not the usual: separator, decimal, encoding."""
    if path.suffix == ".parquet":
        return {}
    for encoding in ENCODINGS:
        try:
            with path.open(newline="", encoding=encoding) as file:
                lines = [line for line, _ in zip(file, range(SNIFFED_LINES), strict=False)]
                for _ in file:  # the rest must be readable too
                    pass
            break
        except UnicodeDecodeError:
            continue
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; check the path") from None
    else:
        raise DataError(f"{path} is no text in UTF-8 or cp1252; save it as CSV in UTF-8")

    def width(separator: str) -> int:
        counts = {len(row) for row in csv.reader(lines, delimiter=separator) if row}
        return counts.pop() if len(counts) == 1 else 0

    separator = max(SEPARATORS, key=width)
    cells = [cell for row in csv.reader(lines[1:], delimiter=separator) for cell in row]
    found = {} if separator == "," else {"separator": separator}
    if separator != "," and any(DECIMAL_COMMA.fullmatch(cell) for cell in cells):
        found["decimal"] = ","
    if encoding != ENCODINGS[0]:
        found["encoding"] = encoding
    return found


def _read_columns(path: Path, marks: dict[str, str]) -> list[Column]:
    """Return the columns; a unit in brackets at the end of a header is cut off."""
    from causal_bo_ppl.data.data import read_csv, read_parquet

    frame = read_parquet(path) if path.suffix == ".parquet" else read_csv(path, **marks)
    headers = [str(each) for each in frame.columns]
    cut = {header: UNIT.fullmatch(header) for header in headers if not header.startswith("do(")}
    names = {header: found[1] if found else header.strip() for header, found in cut.items()}
    columns = []
    for header, name in names.items():
        is_single = list(names.values()).count(name) == 1
        found = cut[header] if is_single else None
        columns.append(
            Column(header, name if is_single else header, found[2] if found else "", frame[header])
        )
    return columns


def _match(columns: list[Column], given: "GraphText | None") -> list[Column]:
    """Give columns the names of the graph, where only case, spaces or signs differ.

    A column "yield kg" is that of the variable "yield", with the unit kg, where it is the only one
    that begins so.
    """
    from causal_bo_ppl.inputs import require_name

    def plain(name: str) -> str:
        return re.sub(r"[\W_]+", "", name.casefold())

    found = list[Column]()
    nodes = () if given is None else given.nodes
    for column in columns:
        same = [node for node in nodes if node in (column.header, column.name)]
        alike = same or [node for node in nodes if plain(node) == plain(column.name)]
        is_alone = sum(plain(each.name) == plain(column.name) for each in columns) == 1
        name = alike[0] if len(alike) == 1 and (same or is_alone) else column.name
        first, _, rest = column.name.partition(" ")
        if name not in nodes and rest and not column.unit:
            begun = [node for node in nodes if plain(node) == plain(first)]
            others = [plain(each.name.partition(" ")[0]) for each in columns]
            if len(begun) == 1 and others.count(plain(first)) == 1:
                name, column = begun[0], column._replace(unit=rest.strip())
        try:
            require_name(name)
        except CausalBOError as error:
            say(f"Left out: {error}.")
            continue
        found.append(column._replace(name=name))
    return found


def _default_target(given: "GraphText | None", whole: "CausalGraph | None") -> str | None:
    """Return the outcome that the graph's file marks, or the only variable without effects."""
    if whole is None or given is None:
        return None
    marked = [name for name in given.outcomes if name in whole.positions]
    last = [name for name in whole.nodes if not whole.children(name) and whole.parents(name)]
    return next((each[0] for each in (marked, last) if len(each) == 1), None)


def _choose(what: str, chosen: str | None, default: str | None, known: list[str]) -> str:
    if chosen is None:
        chosen = default or _prompt(f"Which variable is the {what}? ({listed(known)})")
    if chosen and chosen not in known:
        raise ArgumentError(unknown(what, chosen, known))
    return chosen


def _prompt(question: str) -> str:
    """Ask in a terminal; elsewhere the answer is empty."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return ""
    return str(typer.prompt(question, default="", show_default=False, err=True)).strip()


def _write(
    data: Path,
    output: Path,
    marks: dict[str, str],
    graph: Path | None,
    latent: list[str],
    whole: "CausalGraph | None",
    columns: list[Column],
    target: str,
    objective: str,
    chosen: list[str],
) -> str:
    """Return the text of a problem file."""
    from causal_bo_ppl.problem.problem_file import toml_value, write_key

    folder = output.resolve().parent
    gaps = {
        each.name: int(each.values.isna().sum()) for each in columns if each.values.isna().any()
    }
    table = {"file": _relative(data, folder), **marks} | ({"missing": "refuse"} if gaps else {})
    entries = ", ".join(f"{key} = {toml_value(value)}" for key, value in table.items())
    fill = "  # FILL IN: "
    lines = [
        "# A problem for causal-bo: what is to be improved, what can be set, and what causes what.",
        "# Check it with `causal-bo check`; then `causal-bo ask` suggests an experiment.",
        "",
        "# The variable to improve, and whether more of it (max) or less (min) is better.",
        f"target = {toml_value(target)}"
        + ("" if target else f"{fill}one of {listed(each.name for each in columns)}"),
        f"objective = {toml_value(objective)}" + ("" if objective else f'{fill}"max" or "min"'),
        "",
    ]
    if gaps:
        counts = listed(f"{name}: {count}" for name, count in gaps.items())
        lines += [
            f"# Some values are missing ({counts}).",
            '# missing = "drop" leaves these observations out.',
        ]
    lines += [
        f"data = {{ {entries} }}" if len(table) > 1 else f"data = {toml_value(table['file'])}",
        "",
    ]
    if graph is not None:
        lines += ['# The graph, in a file of another tool; or write graph = """ ... """ here.']
        lines += [f"graph_file = {toml_value(_relative(graph, folder))}"]
        if latent:
            lines += [
                "# Variables of the graph without a column: unobserved.",
                f"latent = {toml_value(latent)}",
            ]
    else:
        lines += [
            "# What causes what. X <-> Y is a latent common cause; a name alone is a variable.",
            f'graph = """{fill}lines such as cause -> effect',
            *(each.name for each in columns),
            '"""',
        ]
    lines += [
        "",
        '# Which sets of variables to set together: "mis", "pomis", the largest size, or lists.',
        'sets = "mis"',
    ]
    causes = set(whole.ancestors(target)) if whole and target else {each.name for each in columns}
    lines += ["", "# A variable with a domain or levels can be set; ranges are those of the data."]
    for column in columns:
        lines += ["", f"[variables.{write_key(column.name)}]"]
        if column.header != column.name:
            lines.append(f"column = {toml_value(column.header)}")
        if column.unit:
            lines.append(f"unit = {toml_value(column.unit)}")
        if column.name == target or column.name not in causes:
            continue
        if (limits := _limits(column)) is None:
            lines.append("# its cells are no numbers, or all the same")
        elif column.name in chosen:
            lines += [limits, "# cost = 1"]
        else:
            note = "" if chosen else "  # remove the first # if it can be set"
            lines.append(f"# {limits}{note}")
    lines += [
        "",
        "# Limits on values that are set together:",
        "# [[constraints]]",
        "# coefficients = { a = 1, b = 2 }",
        "# upper = 10",
        "",
        "# How experiments are chosen and learned from; see cb.Settings. Nonlinear mechanisms:",
        "# [settings]",
        '# mechanisms = "gp"   # or "auto", or { b = "gp" }',
    ]
    return "\n".join(lines) + "\n"


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to the folder of the problem file, where it lies inside."""
    full = path.resolve()
    return full.relative_to(folder).as_posix() if full.is_relative_to(folder) else str(full)


def _limits(column: Column) -> str | None:
    """Return the range of a column as TOML, or its values where they are few."""
    import pandas as pd

    from causal_bo_ppl.problem.problem_file import toml_value

    values = pd.to_numeric(column.values, errors="coerce").dropna().astype(float)
    distinct = sorted({float(each) for each in values if abs(each) != float("inf")})
    if len(distinct) < 2:
        return None
    if len(distinct) <= FEW_VALUES:
        return f"levels = {toml_value(distinct)}"
    return f"domain = {toml_value([distinct[0], distinct[-1]])}"
