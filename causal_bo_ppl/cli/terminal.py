"""What do all commands of `causal-bo` have in common?

Answers go to stdout, as tables or with `--json` as JSON; messages, warnings and progress go to
stderr. Exit codes: 0 fine, 1 an error of the package, 2 wrong usage, 3 a check failed, 4 another
process is busy with the study. An error takes one line; `--debug` shows its traceback. Colours are
used in a terminal only, and never where NO_COLOR is set.
"""

import functools
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import causal_bo_ppl
from causal_bo_ppl.errors import BusyError, CausalBOError, CausalBOWarning

if TYPE_CHECKING:
    import pandas as pd

    from causal_bo_ppl.problem import Problem

JSON_FORMAT = 1  # of what --json prints
EXIT_ERROR, EXIT_CHECK_FAILED, EXIT_BUSY, EXIT_INTERRUPTED = 1, 3, 4, 130
WIDTH_OF_FILES = 160  # of tables that do not go to a terminal
DIGITS_SHOWN = 5
IN_SHELL = {
    "sure=True": "--sure",
    "again=True": "--again",
    'failed="why"': "--failed WHY",
    "actual={...}": '--actual "X=1"',
    "study.retract(record, why)": "causal-bo retract RECORD WHY",
    "study.to_frame()": "causal-bo history",
    "identifiable_only=True": "identifiable_only = true in the problem file",
}

ProblemPath = Annotated[
    Path, typer.Option("--problem", "-p", help="The problem file.", show_default=True)
]
StudyPath = Annotated[
    Path | None,
    typer.Option("--study", help="The study file; by default study.json beside the problem."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Key = Annotated[
    int | None,
    typer.Option("--key", help="Seed of all that is drawn; by default the problem's key, or 0."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DEFAULT_PROBLEM = Path("problem.toml")

app = typer.Typer(
    epilog="Begin with: causal-bo init data.csv --graph graph.txt",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        show(causal_bo_ppl.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Causal Bayesian optimization: from a CSV and a causal graph to the next experiment."""


def console(*, stderr: bool = False) -> Console:
    """Return where answers are printed, or messages."""
    stream = sys.stderr if stderr else sys.stdout
    is_wide = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, highlight=False, width=WIDTH_OF_FILES if is_wide else None)


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command: with an example, `--debug`, and errors in one line."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        option = inspect.Parameter(
            "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug
        )

        @functools.wraps(function)
        def run(*, debug: bool = False, **given: Any) -> None:
            with _reported(debug):
                function(**given)

        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), option]
        )
        name = function.__name__.removesuffix("_command").replace("_", "-")
        settings = {"ignore_unknown_options": True} if name == "tell" else {}  # for -6.4
        app.command(name, epilog=f"Example: {example}", context_settings=settings)(run)
        return function

    return register


@contextmanager
def _reported(debug: bool) -> Iterator[None]:
    """Print errors and warnings in one line each, and exit with the code of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", CausalBOWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            say("Interrupted.")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except CausalBOError as error:
            if debug:
                raise
            _show_error(str(error))
            raise typer.Exit(EXIT_BUSY if isinstance(error, BusyError) else EXIT_ERROR) from None
        except Exception as error:
            if debug:
                raise
            _show_error(
                f"{type(error).__name__}: {error}; this should not happen: please report it with "
                "the traceback that --debug shows"
            )
            raise typer.Exit(EXIT_ERROR) from None


def _in_words_of_the_shell(text: str) -> str:
    """Return a message in one line, with options and commands instead of Python."""
    for python, shell in IN_SHELL.items():
        text = text.replace(python, shell)
    return " ".join(text.split())


def _show_error(text: str) -> None:
    line = _in_words_of_the_shell(text)
    console(stderr=True).print(f"[bold red]error:[/] {escape(line)}", soft_wrap=True)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    line = _in_words_of_the_shell(str(message))
    console(stderr=True).print(f"[yellow]warning:[/] {escape(line)}", soft_wrap=True)


def say(text: str) -> None:
    """Print a message to stderr."""
    console(stderr=True).print(escape(text), soft_wrap=True)


def show(text: str) -> None:
    """Print a part of an answer to stdout."""
    console().print(escape(text), soft_wrap=True)


def show_json(**content: object) -> None:
    """Print an answer as JSON; numbers that are not finite are null."""
    document = {"format_version": JSON_FORMAT, **content}
    sys.stdout.write(json.dumps(_plain(document), ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "to_dict"):  # a table
        return [_plain(each) for each in value.reset_index().to_dict("records")]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) or value is None else str(value)


def show_table(frame: "pd.DataFrame", title: str | None = None) -> None:
    """Print a table; its index is the first column where it has a name."""
    shown = frame.reset_index() if frame.index.name else frame
    table = Table(*(escape(str(name)) for name in shown.columns), title=title and escape(title))
    for row in shown.itertuples(index=False, name=None):
        table.add_row(*(escape(_cell(value)) for value in row))
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{DIGITS_SHOWN}g}"
    return "" if value is None or str(value) == "<NA>" else str(value)


def assignments(problem: "Problem", intervention: Mapping[str, float]) -> str:
    """Return what an intervention sets, with units: `do(feed [mL] = 40)`."""
    values = (f"{problem.label(name)} = {value:.6g}" for name, value in intervention.items())
    return f"do({', '.join(values)})"
