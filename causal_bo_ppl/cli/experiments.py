"""The commands of a study: what to try next, what came back, and what is best so far."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causal_bo_ppl.cli.terminal import (
    DEFAULT_PROBLEM,
    AsJson,
    Key,
    ProblemPath,
    StudyPath,
    assignments,
    command,
    say,
    show,
    show_json,
    show_table,
)
from causal_bo_ppl.errors import ArgumentError

if TYPE_CHECKING:
    from causal_bo_ppl.cli.workspace import Asked, Workspace
    from causal_bo_ppl.optimization import Study

Wait = Annotated[
    float,
    typer.Option("--wait", help="Seconds to wait for another process that changes the study."),
]
WAIT_SECONDS = 30.0
LEVEL_SHOWN = 0.9  # of all intervals that are printed


@command('causal-bo ask -n 3 --fix "water=1"')
def ask(
    n: Annotated[int, typer.Option("-n", help="How many experiments.")] = 1,
    fix: Annotated[
        list[str] | None, typer.Option("--fix", help="A value to hold, such as water=1.")
    ] = None,
    more: Annotated[
        bool, typer.Option("--more", help="Suggest others, besides those that are open.")
    ] = False,
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    wait: Wait = WAIT_SECONDS,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Suggest the next experiments, and remember them in the study file.

    The same question has the same answer until an outcome is recorded. Suggestions without an
    outcome are taken to be under way; `tell NUMBER --cancel` removes one.
    """
    from causal_bo_ppl.cli.workspace import Asked, Workspace, hold_lock, read_assignments

    work = Workspace.open(problem, study, key)
    fixed = {k: v for text in fix or () for k, v in read_assignments(text).items()}
    with hold_lock(work.study_path, wait):
        known, begun = work.study, work.open_suggestions
        records = len(known.observations), int(known.observations.is_observed.sum())
        request = json.dumps([n, sorted(fixed.items()), *records])
        chosen = [each for each in begun if each.request == request]
        if more or not chosen:
            pending = [each.suggestion for each in begun]
            found = known.ask(n, pending=pending, fixed=fixed or None)
            if more:
                request = json.dumps([request, len(work.asked)])
            used = max((each.suggestion.number for each in work.asked), default=0)
            first = max(found[0].number, used + 1)
            chosen = [
                Asked(replace(each, number=number), str(each.why), request)
                for number, each in enumerate(found, first)
            ]
            work.write(known, (*work.asked, *chosen))
            if begun:
                say(f"Under way: {_numbers(begun)}.")
    if as_json:
        show_json(suggestions=[_describe(each) for each in chosen])
        return
    _show_suggestions(work, chosen)
    first = chosen[0].suggestion.number
    say(f"Record an outcome with: causal-bo tell {first} OUTCOME")


def _numbers(asked: "tuple[Asked, ...]") -> str:
    return ", ".join(f"{each.suggestion.number}: {each.suggestion.label}" for each in asked)


def _describe(asked: "Asked") -> dict[str, Any]:
    given = asked.suggestion
    lower, upper = given.interval(LEVEL_SHOWN)
    return {
        "number": given.number,
        "intervention": given.intervention,
        "mean": given.mean,
        "sd": given.sd,
        "lower": lower,
        "upper": upper,
        "level": LEVEL_SHOWN,
        "cost": given.cost,
        "why": asked.why,
    }


def _show_suggestions(work: "Workspace", chosen: "list[Asked]") -> None:
    import pandas as pd

    rows = [
        {
            "number": line["number"],
            "intervention": assignments(work.problem, line["intervention"])
            if line["intervention"]
            else each.suggestion.label,
            "expected": line["mean"],
            "lower": line["lower"],
            "upper": line["upper"],
            "cost": line["cost"],
        }
        for each in chosen
        for line in [_describe(each)]
    ]
    target = work.problem.label(work.problem.target)
    show_table(pd.DataFrame(rows), f"Next experiments: {work.problem.objective} {target}")
    for each in chosen:
        show(f"{each.suggestion.number}. {each.why}")


@command('causal-bo tell 3 6.4   or   causal-bo tell "feed=25, water=1.5" "nitrogen=118, crop=5.6"')
def tell(
    what: Annotated[
        str | None,
        typer.Argument(help="The number of a suggestion, or what was set: feed=25, water=1.5."),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Argument(
            help="A number, replicates 6.4,6.6, or all variables: nitrogen=118, crop=5.6."
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows", help="A CSV of whole observations, with columns do(X) of what was set."
        ),
    ] = None,
    failed: Annotated[str | None, typer.Option("--failed", help="Why there is no outcome.")] = None,
    actual: Annotated[
        str | None,
        typer.Option("--actual", help="What was really set, where it differs: feed=38."),
    ] = None,
    variance: Annotated[
        float | None,
        typer.Option("--variance", help="The variance of the outcome, if it is known."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="It is another measurement of what was recorded before.")
    ] = False,
    sure: Annotated[
        bool, typer.Option("--sure", help="It is right, though far from what was expected.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="The suggestion will not be run; nothing is recorded.")
    ] = False,
    who: Annotated[str, typer.Option("--who", help="Who reports it.")] = "",
    when: Annotated[
        str, typer.Option("--when", help="When it was measured, as you write it.")
    ] = "",
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    wait: Wait = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Record what came back from an experiment."""
    from causal_bo_ppl.cli.workspace import Workspace, hold_lock, read_assignments, read_table
    from causal_bo_ppl.problem.problem_file import DataFile

    if (what is None) == (rows is None):
        raise ArgumentError(
            "report a suggestion by its number, or what was set, or a table: causal-bo tell 3 6.4, "
            'causal-bo tell "feed=25" 6.4, causal-bo tell --rows new.csv'
        )
    if what is not None and sum((outcome is not None, failed is not None, cancel)) != 1:
        raise ArgumentError(
            'give either an outcome, or why there is none: causal-bo tell 3 6.4, or --failed "why"'
        )
    work = Workspace.open(problem, study)
    with hold_lock(work.study_path, wait):
        before = work.study
        if cancel:
            cancelled = work.find(_number_of(what))
            asked = [
                replace(each, is_cancelled=True) if each is cancelled else each
                for each in work.asked
            ]
            work.write(before, tuple(asked))
            _answer(work, before, before, as_json, f"Cancelled: suggestion {what}.")
            return
        signed: dict[str, Any] = {"again": again, "sure": sure, "who": who, "when": when}
        if rows is not None:
            source = _with_path(work.file.data or DataFile(rows), rows)
            table, _ = read_table(source, work.problem.graph.nodes)
            after = before.tell(table, **signed)
        else:
            is_number = what is not None and what.strip().isdigit()
            given: Any = work.find(_number_of(what)).suggestion if is_number else None
            given = read_assignments(str(what)) if given is None else given
            options: dict[str, Any] = {"failed": failed, "variance": variance, **signed}
            if actual is not None:
                options["actual"] = read_assignments(actual)
            after = before.tell(given, _read_outcome(outcome), **options)
        work.write(after, work.asked)
    new = len(after.observations) - len(before.observations)
    _answer(work, before, after, as_json, f"Recorded: {new} {'row' if new == 1 else 'rows'}.")


def _with_path(source: Any, path: Path) -> Any:
    """Return how a table is written, for another file that must have no gaps."""
    return source._replace(path=path, missing="refuse")


def _number_of(what: str | None) -> int:
    if what is None or not what.strip().isdigit():
        raise ArgumentError(f"--cancel needs the number of a suggestion, got {what!r}")
    return int(what)


def _read_outcome(text: str | None) -> Any:
    """Return a number, a list of replicates, or the values of all variables."""
    from causal_bo_ppl.cli.workspace import read_assignments

    if text is None:
        return None
    if "=" in text or text.strip().startswith("{"):
        return read_assignments(text)
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"cannot read the outcome {text!r}; write a number, 6.4,6.6 for replicates, or "
            "variable=value for all variables"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _answer(work: "Workspace", before: "Study", after: "Study", as_json: bool, text: str) -> None:
    """Say what was recorded, and what is best now."""
    if as_json:
        new = after.to_frame().iloc[len(before.observations) :]
        show_json(recorded=new, best=_best(after))
        return
    say(text)
    _show_best(work, after)


def _best(study: "Study") -> dict[str, Any]:
    best = study.best
    lower, upper = best.interval(LEVEL_SHOWN)
    return {
        "intervention": best.intervention,
        "mean": best.mean,
        "sd": best.sd,
        "lower": lower,
        "upper": upper,
        "level": LEVEL_SHOWN,
        "by": best.by,
        "outcomes": best.outcomes,
        "best_tried": None if best.tried is None else best.tried.intervention,
    }


def _show_best(work: "Workspace", study: "Study") -> None:
    best = _best(study)
    by = {"outcomes": "of those tried", "model": "by the model", "nothing": "is to set nothing"}
    target, what = work.problem.label(work.problem.target), best["intervention"]
    where = f"{assignments(work.problem, what)}, " if what else ""
    show(
        f"Best {by[best['by']]}: {where}{target} {best['mean']:.4g}, "
        f"{LEVEL_SHOWN * 100:.0f} % in [{best['lower']:.4g}, {best['upper']:.4g}]"
    )
    if best["best_tried"] is not None and best["best_tried"] != what:
        show(f"Best of those tried: {assignments(work.problem, best['best_tried'])}")


@command('causal-bo retract 2 "typing error"')
def retract(
    record: Annotated[int, typer.Argument(help="The number of the record, see causal-bo history.")],
    why: Annotated[str, typer.Argument(help="The reason, which is recorded.")],
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    wait: Wait = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take one record back; it stays in the history as retracted."""
    from causal_bo_ppl.cli.workspace import Workspace, hold_lock

    work = Workspace.open(problem, study)
    with hold_lock(work.study_path, wait):
        before = work.study
        after = before.retract(record, why)
        work.write(after, work.asked)
    _answer(work, before, after, as_json, f"Retracted: record {record}.")


@command("causal-bo best --json")
def best(
    problem: ProblemPath = DEFAULT_PROBLEM,
    study: StudyPath = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show the recommended intervention."""
    from causal_bo_ppl.cli.workspace import Workspace
    from causal_bo_ppl.optimization.state import CHOICE_WARNING

    work = Workspace.open(problem, study, key)
    if as_json:
        show_json(
            best=_best(work.study),
            surprise=work.study.surprise.message,
            warnings=work.study.warnings,
        )
        return
    _show_best(work, work.study)
    for text in (CHOICE_WARNING, f"Surprise: {work.study.surprise.message}", *work.study.warnings):
        say(text)


@command("causal-bo history")
def history(
    problem: ProblemPath = DEFAULT_PROBLEM, study: StudyPath = None, as_json: AsJson = False
) -> None:
    """List everything that was recorded, and the suggestions that are open."""
    from causal_bo_ppl.cli.workspace import Workspace

    work = Workspace.open(problem, study)
    table, waiting = work.study.to_frame(), work.open_suggestions
    table.index.name = "record"
    if as_json:
        show_json(records=table, open=[_describe(each) for each in waiting])
        return
    if len(table):
        hidden = ["set", "z", "variance", "whole_row"]
        hidden += [name for name in ("failed", "note") if not table[name].any()]
        show_table(table.drop(columns=hidden))
    else:
        say("Nothing is recorded yet.")
    if waiting:
        say(f"Open: {_numbers(waiting)}.")
