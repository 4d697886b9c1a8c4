"""The commands that look at a problem: check, identify, effects, kernels, plot and report."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causal_bo_ppl.cli.terminal import (
    DEFAULT_PROBLEM,
    EXIT_CHECK_FAILED,
    AsJson,
    Key,
    ProblemPath,
    StudyPath,
    command,
    say,
    show,
    show_json,
    show_table,
)
from causal_bo_ppl.errors import ArgumentError, unknown

if TYPE_CHECKING:
    from causal_bo_ppl.cli.workspace import Workspace

PLOTS = (
    "coupling", "experiments", "learning", "mechanisms", "posterior", "problem", "progress",
    "response", "surprise",
)  # fmt: skip
POINTS_OF_KERNELS = 8  # per set, where effects are not affine in the values
MOST_POINTS_OF_KERNELS = 1_000  # vertices: of more, points of every set are compared instead
DPI = 150


def _open(problem: Path, study: Path | None, key: int | None) -> "Workspace":
    from causal_bo_ppl.cli.workspace import Workspace

    return Workspace.open(problem, study, key)


@command("causal-bo check --report report.html")
def check(
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a report with all of it to this file.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Add calibration and refits, which take minutes.")
    ] = False,
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Check every assumption on these data; the exit code is 3 where they do not hold."""
    import causal_bo_ppl as cb

    work = _open(problem, study, key)
    budget = "full" if full else "quick"
    if work.is_begun:
        validation = cb.validate(work.study, budget=budget, key=work.key)
    else:
        say(repr(work.data))
        settings = work.settings
        validation = cb.validate(
            work.problem,
            work.data,
            settings.mechanisms,
            method=settings.inference,
            budget=budget,
            key=work.key,
        )
    if as_json:
        show_json(validation=json.loads(validation.to_json()))
    else:
        table = validation.table
        show_table(table[["section", "verdict", "quantity", "figure", "threshold"]])
        for card in table[~table["verdict"].isin(["passed", "not applicable"])].itertuples():
            show(f"{card.Index}: {card.text} {card.meaning} {card.advice}".strip())
        show(f"Verdict: {validation.verdict}.")
    if report is not None:
        cb.report(validation, report)
        say(f"Wrote {report}.")
    if validation.verdict == "do not use":
        raise typer.Exit(EXIT_CHECK_FAILED)


@command("causal-bo identify")
def identify(problem: ProblemPath = DEFAULT_PROBLEM, as_json: AsJson = False) -> None:
    """Show which effects the data can tell, by which formula; the exit code is 3 if not all."""
    import causal_bo_ppl as cb

    posed = _open(problem, None, None).problem
    found = cb.identify(posed.graph, posed.target, posed.sets)
    table = found.to_frame()
    if as_json:
        show_json(target=posed.target, sets=table)
    else:
        for name, row in table.iterrows():
            hedge = f"not identifiable: latent causes join {row['hedge']}"
            show(f"do({name})\n    {row['estimand'] if row['identifiable'] else hedge}")
        show(repr(found))
    if found.unidentified and not posed.identifiable_only:
        raise typer.Exit(EXIT_CHECK_FAILED)


@command('causal-bo effects "feed=40" "water=2" --against "feed=20"')
def effects(
    interventions: Annotated[
        list[str], typer.Argument(help='What is set, such as "feed=40, water=1"; {} sets nothing.')
    ],
    against: Annotated[
        str | None, typer.Option("--against", help="What is subtracted: differences of effects.")
    ] = None,
    level: Annotated[float, typer.Option("--level", help="Probability of the intervals.")] = 0.9,
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the mean of the target under interventions, with intervals."""
    from causal_bo_ppl.cli.workspace import read_assignments

    work = _open(problem, study, key)
    given = [read_assignments(text) for text in interventions]
    base = None if against is None else read_assignments(against)
    table = work.study.effects(given, against=base, level=level)
    if as_json:
        show_json(target=work.problem.target, level=level, effects=table)
        return
    show_table(table, f"{work.problem.label(work.problem.target)}, {100 * level:.4g} % intervals")


@command("causal-bo kernels")
def kernels(
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Compare the kernels over the problem's interventions: is linearization enough here?"""
    import causal_bo_ppl as cb

    work = _open(problem, study, key)
    post = work.study.posterior
    is_affine = post.distribution.response.is_affine
    queries = work.problem.vertices() if is_affine else None
    if queries is None or len(queries) > MOST_POINTS_OF_KERNELS:
        queries = work.problem.sobol(POINTS_OF_KERNELS)
    result = cb.compare_kernels(post, queries, key=work.key)
    errors = [name for name in result.data_vars if result[name].dims == ("comparison",)]
    table = result[errors].to_dataframe()[errors]
    table.columns = [str(name).removeprefix("overall_") for name in table.columns]
    if as_json:
        show_json(interventions=len(queries), reference=result.attrs["reference"], errors=table)
        return
    show_table(table, f"Relative errors of kernels over {len(queries)} interventions")


@command("causal-bo plot response --variable feed -o feed.png")
def plot(
    what: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(PLOTS)}.", autocompletion=lambda: list(PLOTS)),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file: .png, .svg or .pdf.")],
    variable: Annotated[
        str | None, typer.Option("--variable", help="The variable that a response is drawn over.")
    ] = None,
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    key: Key = None,
) -> None:
    """Draw a result into a file."""
    if what not in PLOTS:
        raise ArgumentError(unknown("plot", what, PLOTS))
    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ArgumentError(f"a picture is a .png, .svg or .pdf file, got {output}")
    os.environ.setdefault("MPLBACKEND", "Agg")
    from io import BytesIO

    from causal_bo_ppl.inference.datatree import replace_file

    axes = _draw(what, _open(problem, study, key), variable)
    figure = getattr(axes, "figure", None) or axes.ravel()[0].figure
    picture = BytesIO()
    figure.savefig(picture, format=output.suffix[1:].lower(), dpi=DPI, bbox_inches="tight")
    replace_file(output, picture.getvalue())
    say(f"Wrote {output}.")


def _draw(what: str, work: "Workspace", variable: str | None) -> Any:
    import causal_bo_ppl as cb
    from causal_bo_ppl.surrogates.coupled import Coupled

    if what == "problem":
        return cb.plots.draw_problem(work.problem)
    known = work.study
    post = known.posterior
    if what == "posterior":
        return cb.plots.draw_posterior(post)
    if what == "mechanisms":
        return cb.plots.draw_mechanisms(post, key=work.key)
    if what == "coupling":
        return cb.plots.draw_coupling(cb.kernels.coupling(post))
    if what == "surprise":
        return cb.plots.draw_surprise(known.surprise)
    if what == "response":
        name = work.problem.manipulable[0] if variable is None else variable
        model = known.surrogate if isinstance(known.surrogate, Coupled) else post
        return cb.plots.draw_response(model, name, key=work.key)
    return getattr(cb.plots, f"draw_{what}")(known)


@command("causal-bo report -o report.html")
def report(
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file.")] = Path(
        "report.html"
    ),
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    key: Key = None,
) -> None:
    """Write a report of the study: one file that a colleague can open."""
    import causal_bo_ppl as cb

    cb.report(_open(problem, study, key).study, output)
    say(f"Wrote {output}.")
