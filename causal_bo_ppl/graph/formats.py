"""How is a graph read from a file of another tool, and written for one?

dagitty, DOT and GML are in `dot_language`; here are lavaan, tables of 0 and 1, JSON, and the choice
among all of them by what a text looks like. What cannot be understood is a GraphError with its
line.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from causal_bo_ppl.errors import GraphError, listed
from causal_bo_ppl.graph.dot_language import (
    GraphText,
    Pair,
    read_dagitty,
    read_dot,
    read_gml,
    write_gml,
    write_statements,
)
from causal_bo_ppl.inputs import read_json

if TYPE_CHECKING:
    import pandas as pd

LAVAAN_OPERATOR = re.compile(r"=~|<~|~\*~|~~|~|:=|==|\|(?!\|)|<|>")
LAVAAN_NAME = re.compile(r"[^\W\d][\w.]*|\.[^\W\d][\w.]*")
LAVAAN_TERM = re.compile(r"(?:(?P<factor>[^*]+)\*)?\s*(?P<name>[^*]+)")
LAVAAN_FACTOR = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NA|[^\W\d][\w.]*|(c|start|equal|label)\(.*\)|\"[^\"]*\""
)
LAVAAN_REFUSED = {
    "=~": "a latent variable that is measured by indicators; give the graph of the variables "
    "themselves, with ~~ for a latent common cause",
    "<~": "a composite; give the graph of the variables themselves",
    "|": "a threshold of an ordered variable",
    "~*~": "a scaling factor",
    "==": "a constraint on parameters",
    "<": "a constraint on parameters",
    ">": "a constraint on parameters",
}


def read_lavaan(text: str) -> GraphText:
    """Read formulas of lavaan: `y ~ x` is an arrow x -> y, `x ~~ y` a latent common cause.

    A term with the factor 0 is absent. Variances (`x ~~ x`), intercepts (`y ~ 1`), labels and
    derived parameters (`:=`) do not change a graph. Covariances that lavaan adds by itself, among
    exogenous variables for example, are not in the text, and are not added.
    """
    nodes: dict[str, None] = {}
    directed, arcs = list[Pair](), list[Pair]()
    for line, statement in _lavaan_statements(text):
        operator = LAVAAN_OPERATOR.search(statement)
        if operator is None:
            raise _lavaan_fault(line, f"{statement!r} has no operator; write y ~ x or x ~~ y")
        kind, left, right = operator.group(), *_sides(statement, operator)
        if kind in LAVAAN_REFUSED:
            raise _lavaan_fault(line, f"{statement!r} is {LAVAAN_REFUSED[kind]}")
        if kind == ":=":
            continue
        if LAVAAN_OPERATOR.search(right):
            raise _lavaan_fault(line, f"{statement!r} has two operators; write one a statement")
        left_terms = [_lavaan_term(term, line) for term in left.split("+")]
        if any(factor for factor, _ in left_terms):
            raise _lavaan_fault(line, f"{statement!r} has a factor on its left side")
        effects = [name for _, name in left_terms]
        for factor, cause in (_lavaan_term(term, line) for term in _terms(right)):
            if cause in ("1", "0"):
                if kind == "~" and not (cause == "0" and factor):
                    nodes |= dict.fromkeys(effects)
                    continue
                raise _lavaan_fault(line, f"{statement!r} has the number {cause} as a variable")
            nodes |= dict.fromkeys([*effects, cause])
            pairs = [(cause, effect) for effect in effects if not _is_zero(factor)]
            if kind == "~":
                directed += pairs
            else:
                arcs += [pair for pair in pairs if pair[0] != pair[1]]
    return GraphText(tuple(nodes), tuple(directed), tuple(arcs))


def _lavaan_fault(line: int, what: str) -> GraphError:
    return GraphError(f"line {line} of the lavaan text: {what}")


def _sides(statement: str, operator: "re.Match[str]") -> tuple[str, str]:
    return statement[: operator.start()].strip(), statement[operator.end() :].strip()


def _lavaan_statements(text: str) -> list[tuple[int, str]]:
    """Return statements with the line where each begins; an open one goes on in the next line."""
    found = list[tuple[int, str]]()
    is_open = False
    for number, line in enumerate(text.splitlines(), 1):
        plain = re.split("[#!]", line, maxsplit=1)[0].replace("\t", " ")
        for piece in (part.strip() for part in plain.split(";")):
            if not piece:
                continue
            if found and (is_open or piece.startswith(("+", "*"))):
                found[-1] = (found[-1][0], f"{found[-1][1]} {piece}")
            else:
                found.append((number, piece))
            is_open = piece.endswith(("+", "~", "*", ","))
    if is_open:
        raise _lavaan_fault(found[-1][0], f"{found[-1][1]!r} is not finished")
    return found


def _terms(text: str) -> list[str]:
    """Cut a sum at each plus that is not within brackets or part of a number."""
    depth, terms, start = 0, list[str](), 0
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        is_exponent = (
            re.search(r"\d[eE]$", text[:at]) is not None and text[at + 1 : at + 2].isdigit()
        )
        if character == "+" and not depth and not is_exponent and text[start:at].strip():
            terms.append(text[start:at])
            start = at + 1
    return [*terms, text[start:]]


def _lavaan_term(term: str, line: int) -> tuple[str, str]:
    """Return the factor of a term, empty where it has none, and its variable."""
    found = LAVAAN_TERM.fullmatch(term.strip())
    factor, name = ("", "") if found is None else (found["factor"] or "", found["name"].strip())
    factor = factor.strip()
    is_factor = not factor or LAVAAN_FACTOR.fullmatch(factor)
    if not is_factor or not (LAVAAN_NAME.fullmatch(name) or name in ("0", "1")):
        raise _lavaan_fault(line, f"cannot read the term {term.strip()!r}")
    return factor, name


def _is_zero(factor: str) -> bool:
    try:
        return float(factor) == 0
    except ValueError:
        return False


def write_lavaan(given: GraphText) -> str:
    """Return the formulas of lavaan; a variable without edges is declared by its variance."""
    for name in given.nodes:
        if not LAVAAN_NAME.fullmatch(name):
            raise GraphError(
                f"lavaan has no variable called {name!r}; rename it with letters, digits, . and _"
            )
    joined = {name for pair in (*given.directed, *given.bidirected) for name in pair}
    causes: dict[str, list[str]] = {}
    for cause, effect in given.directed:
        causes.setdefault(effect, []).append(cause)
    lines = [f"{name} ~~ {name}" for name in given.nodes if name not in joined]
    lines += [f"{effect} ~ {' + '.join(many)}" for effect, many in causes.items()]
    lines += [f"{one} ~~ {other}" for one, other in given.bidirected]
    return "\n".join(lines) + "\n"


def read_adjacency(given: "str | pd.DataFrame") -> GraphText:
    """Read a table of 0 and 1 with names on both sides; 1 says that the row causes the column."""
    if isinstance(given, str):
        lines = [line for line in csv.reader(io.StringIO(given, newline="")) if line]
        header, rows = (lines[0][1:], lines[1:]) if lines else ([], [])
        labels, cells = [row[0] for row in rows], [row[1:] for row in rows]
    else:
        import pandas as pd

        if not isinstance(given, pd.DataFrame):
            kind = type(given).__name__
            raise GraphError(f"an adjacency table is a DataFrame or a CSV text, got {kind}")
        header, labels, cells = list(given.columns), list(given.index), given.to_numpy().tolist()
    names = tuple(_stripped(each) for each in header)
    if not names or sorted(map(str, names)) != sorted(str(_stripped(each)) for each in labels):
        raise GraphError(
            "an adjacency table has the same names above its columns and before its rows; got "
            f"{listed(names)} above and {listed(labels)} before"
        )
    directed = list[Pair]()
    for label, row in zip(labels, cells, strict=True):
        if len(row) != len(names):
            raise GraphError(f"the row of {label!r} has {len(row)} entries for {len(names)} names")
        for name, cell in zip(names, row, strict=True):
            text = str(_stripped(cell))
            if text not in ("0", "1", "0.0", "1.0", "False", "True"):
                raise GraphError(
                    f"the entry of {label!r} and {name!r} is {cell!r}; an adjacency table holds 0, "
                    "and 1 where the row causes the column"
                )
            directed += [(_stripped(label), name)] if text in ("1", "1.0", "True") else []
    return GraphText(names, tuple(directed))


def _stripped(cell: object) -> "str":
    return cell.strip() if isinstance(cell, str) else cell  # type: ignore[return-value]


def require_no_arcs(given: GraphText, notation: str) -> None:
    """Refuse latent common causes where a notation cannot hold them."""
    if given.bidirected:
        arcs = listed(f"{one} <-> {other}" for one, other in given.bidirected)
        raise GraphError(
            f"{notation} cannot hold the latent common causes {arcs}; write dagitty, DOT, GML, "
            "lavaan or JSON"
        )


def read_graph_json(text: str) -> GraphText:
    """Read `{"nodes": [...], "directed": [[cause, effect], ...], "bidirected": [...]}`."""
    try:
        parts = read_json(text)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"the text is not JSON, or not all of it: {error}") from None
    keys = ("nodes", "directed", "bidirected", "latent")
    if not isinstance(parts, dict) or "nodes" not in parts or set(parts) - set(keys):
        found = listed(parts) if isinstance(parts, dict) else type(parts).__name__
        raise GraphError(f"a graph in JSON has nodes, directed and bidirected; got {found}")
    for key in keys:
        values = parts.setdefault(key, [])
        is_pair = key in ("directed", "bidirected")
        if not isinstance(values, list) or not all(
            (isinstance(each, list) and len(each) == 2 and all(isinstance(x, str) for x in each))
            if is_pair
            else isinstance(each, str)
            for each in values
        ):
            what = "pairs of names" if is_pair else "names"
            raise GraphError(f"{key!r} of a graph in JSON is a list of {what}")
    return GraphText(
        tuple(parts["nodes"]),
        tuple((one, other) for one, other in parts["directed"]),
        tuple((one, other) for one, other in parts["bidirected"]),
        tuple(parts["latent"]),
    )


def write_graph_json(given: GraphText) -> str:
    """Return a JSON text with nodes, directed and bidirected."""
    parts = {"nodes": given.nodes, "directed": given.directed, "bidirected": given.bidirected}
    return json.dumps(parts, ensure_ascii=False)


READERS: dict[str, Callable[[str], GraphText]] = {
    "dagitty": read_dagitty,
    "dot": read_dot,
    "gml": read_gml,
    "lavaan": read_lavaan,
    "adjacency": read_adjacency,
    "json": read_graph_json,
}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|#[^\n]*", re.DOTALL)


def recognize(text: str) -> str:
    """Return the notation of a text; "arrows" for our own, `X -> Z -> Y; X <-> Y`."""
    bare = COMMENT.sub("", text).lstrip("; \t\r\n\f\v")
    head, brace, _ = bare.partition("{")
    words = re.findall(r"\w+", head.lower())
    first_line = bare.split("\n", 1)[0]
    if re.search(r"\bgraph\s*\[", head, re.IGNORECASE):
        return "gml"
    if brace and not head:
        return "json"
    if brace and words and "->" not in head:
        kind = words[1] if words[0] == "strict" and len(words) > 1 else words[0]
        if kind in ("dag", "mag", "pdag", "pag"):
            return "dagitty"
        if kind in ("graph", "digraph"):
            return "dot"
    if "," in first_line and not re.search("~|->|<-", first_line):
        return "adjacency"
    return "lavaan" if "~" in bare else "arrows"


def write_text(given: GraphText, notation: str) -> str:
    """Return the text of a graph in one of the notations."""
    if notation == "dagitty":
        return write_statements("dag", given, "{} <-> {}", notation)
    if notation == "dot":
        return write_statements("digraph", given, "{} -> {} [dir=both, style=dashed]", "DOT")
    writers = {"gml": write_gml, "lavaan": write_lavaan, "json": write_graph_json}
    return writers[notation](given)


def require_text(text: object, notation: str) -> str:
    """Return a text to be read; refuse anything else."""
    if not isinstance(text, str):
        raise GraphError(f"{notation} is read from a text, got {type(text).__name__}")
    return text


def read_text_file(path: str | Path) -> str:
    """Return the text of a file."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise GraphError(f"{path} cannot be read: {reason}; check the path") from None
    except ValueError as error:
        raise GraphError(f"{path} is not a text in UTF-8: {error}") from None


def rows_of_adjacency(nodes: Sequence[str], directed: Iterable[Pair]) -> list[list[int]]:
    """Return the table of 0 and 1, with 1 where the row causes the column."""
    edges = set(directed)
    return [[int((row, column) in edges) for column in nodes] for row in nodes]
