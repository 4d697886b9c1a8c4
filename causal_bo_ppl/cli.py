"""Which commands does `causal-bo` have, and what do they print?

Modules that compute are imported where they are used: a list of names must not wait for JAX.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import causal_bo_ppl
from causal_bo_ppl import models
from causal_bo_ppl.errors import ArgumentError, CausalBOError

if TYPE_CHECKING:
    from causal_bo_ppl.experiments import Reproduction
    from causal_bo_ppl.optimization import Run
    from causal_bo_ppl.problem import Problem
    from causal_bo_ppl.systems import CausalSystem

app = typer.Typer(
    help="Graph-coupled causal Bayesian optimization.", no_args_is_help=True, add_completion=False
)
console = Console(highlight=False)
MOST_SETS_SHOWN = 4  # of one size


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(causal_bo_ppl.__version__)
        raise typer.Exit


@contextmanager
def _errors_printed() -> Iterator[None]:
    """Print an error of the package without its traceback, and exit."""
    try:
        yield
    except CausalBOError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from None


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Graph-coupled causal Bayesian optimization."""


@app.command()
def systems() -> None:
    """List the systems whose truth is known."""
    for name in models.names():
        console.print(name)


@app.command()
def demo(
    name: Annotated[str | None, typer.Argument(help="A system, see `causal-bo systems`.")] = None,
    variant: Annotated[str | None, typer.Option(help="A variant of the system.")] = None,
    target: Annotated[str | None, typer.Option(help="The gene to lower (ecoli70).")] = None,
    max_size: Annotated[int | None, typer.Option(help="Explore all sets up to this size.")] = None,
    parents: Annotated[
        bool, typer.Option(help="May the target's parents be set? (ecoli70)")
    ] = True,
    seed: Annotated[int, typer.Option(help="Which coefficients are drawn (funnel).")] = 0,
    observations: Annotated[
        int, typer.Option(help="Observations before the first experiment.")
    ] = 100,
    rounds: Annotated[int, typer.Option(help="Experiments.")] = 10,
    key: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Validate the run, and write a report to this file.")
    ] = None,
) -> None:
    """Show a system and, if it is linear, optimize it.

    The effects are identified, then learned from observations and from experiments.

    Without a name: ecoli70, the gene b1583 without its parents, sets of up to five genes.
    """
    with _errors_printed():
        given = (variant, target, max_size, parents, seed) != (None, None, None, True, 0)
        if name is None and given:
            raise ArgumentError(
                "options need the name of a system, for example: "
                "causal-bo demo ecoli70 --max-size 2"
            )
        if name is None:
            name, target, parents, max_size = "ecoli70", "b1583", False, 5
        system = models.load(
            name, variant=variant, target=target, parents=parents, max_size=max_size, seed=seed
        )
        show(system)
        if system.is_affine:
            run = show_optimization(system, observations, rounds, key)
        else:
            console.print("\nNot linear: this demonstration optimizes linear systems only.")
        _show_optimum(system)
        if report is not None and system.is_affine:
            _write_report(run, report, key)


@app.command()
def reproduce(
    name: Annotated[
        str, typer.Argument(help="theory, transfer, benchmarks, sweep, ablation, noise, or all.")
    ],
    seeds: Annotated[
        int | None,
        typer.Option(help="How many; by default 60, of benchmarks and noise 20."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small systems and two seeds.")] = False,
    folder: Annotated[
        Path, typer.Option(help="Where results are written, and finished units are stored.")
    ] = Path("results"),
    workers: Annotated[
        int | None,
        typer.Option(help="Dask workers on this machine; by default one per core."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a running Dask cluster, which computes instead.")
    ] = None,
) -> None:
    """Reproduce the paper's tables and figures, with the published figures beside ours.

    A call that was interrupted is resumed when it is repeated with the same folder.
    """
    from causal_bo_ppl.experiments.execution import UnitRunner
    from causal_bo_ppl.experiments.reproduction import NAMES, reproduce_each, require_known

    lost = 0
    try:
        with _errors_printed():
            if name != "all":
                require_known(name)
            names = NAMES if name == "all" else [name]
            with UnitRunner(folder, workers=workers, scheduler=scheduler) as runner:
                for result in reproduce_each(names, runner, folder, seeds=seeds, quick=quick):
                    lost += len(result.failed)
                    _print_reproduction(result, folder)
    except KeyboardInterrupt:
        console.print(
            escape(f"Interrupted. Finished units are in {folder}; the same command resumes.")
        )
        raise typer.Exit(130) from None
    if lost:
        raise typer.Exit(2)


def _print_reproduction(result: "Reproduction", folder: Path) -> None:
    """Print the table of a reproduction with the columns that fit on a screen, and its files."""
    from causal_bo_ppl.experiments.comparison import for_screen

    console.rule(escape(result.name))
    title, shown = for_screen(result.table)
    table = Table(*map(str, shown.columns), title=title)
    for row in shown.itertuples(index=False, name=None):
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)
    for _, unit in result.failed.iterrows():
        failed = f"{unit['method']} on {unit['system']}, seed {unit['seed']}: {unit['error']}"
        _print_text(f"Failed: {failed}")
    if result.origin:
        _print_text(result.origin)
    written = ", ".join(path.name for path in result.files)
    _print_text(f"{result.pace}.\nWritten to {folder}: {written}")


def _print_text(text: str) -> None:
    console.print(escape(text), soft_wrap=True)


def show(system: "CausalSystem") -> None:
    """Print the graph of a system, its domains and its intervention sets."""
    problem = system.problem
    console.rule(escape(f"{system.name}: {system.source}"))
    causes = problem.graph.ancestral(problem.target)
    omitted = len(problem.graph.nodes) - len(causes.nodes)
    note = f" (without {omitted} variables that cannot affect {problem.target})" if omitted else ""
    console.print(escape(f"Graph{note}:\n{causes}\n"))
    console.print(_variables(problem))
    _show_constraints(problem)
    console.print(_sets(problem))


def _write_report(run: "Run", path: Path, key: int) -> None:
    """Validate a run, write a report about it, and print the verdict and where the report is."""
    validation = causal_bo_ppl.validate(run, key=key)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = causal_bo_ppl.report(validation, path).resolve()
    _print_text(f"\nValidation: {validation.text}\nReport: {written}")


def show_optimization(system: "CausalSystem", observations: int, rounds: int, key: int) -> "Run":
    """Identify, learn and experiment, print the result of every step, and return the run."""
    from causal_bo_ppl.identification import identify
    from causal_bo_ppl.optimization import optimize
    from causal_bo_ppl.optimization.state import CHOICE_NOTE, CHOICE_WARNING
    from causal_bo_ppl.problem.designs import vertices
    from causal_bo_ppl.surrogates import couple
    from causal_bo_ppl.theory import causal_rank

    problem = system.problem
    _print_text(f"\n1  Identified: {identify(problem)!r}")
    run = optimize(system, rounds=rounds, observations=observations, key=key)
    post = run.study.start.post
    _print_text(f"2  Learned: {post!r}; moments by {post.moments_by}")
    corners, prior, first = vertices(problem, post.sets), couple(post), run.asked[0]
    after = prior.fantasize(first.query, first.noise).predict(corners).sd
    share = (after < 0.99 * prior.predict(corners).sd).mean()
    reduced = f"the first experiment lowers the sd of {share:.0%} of their effects by over 1 %"
    rank = f"{len(corners):,} vertices see {causal_rank(post, corners)} directions of theta"
    _print_text(f"3  Kernel: {rank}; {reduced}")
    console.print(_rounds(run))
    _print_text(f"\nHow to read what follows: {CHOICE_WARNING}")
    low, high = run.best.interval(0.9)
    predicted = f"{run.best.mean:.3f}, 90 % in [{low:.3f}, {high:.3f}] ({CHOICE_NOTE})"
    best = f"{predicted}, at do({_assignments(problem, run.best.intervention)})"
    effect = f"its true effect: {float(run.trace['best_effect'][-1]):.6f}"
    _print_text(f"\nBest after {len(run)} experiments: {best}; {effect}")
    return run


def _assignments(problem: "Problem", intervention: dict[str, float]) -> str:
    return ", ".join(f"{problem.label(name)} = {value:.6g}" for name, value in intervention.items())


def _rounds(run: "Run") -> Table:
    table = Table("round", "set", "predicted", "outcome", "best so far", title="4  Experiments")
    for line in run.to_frame().to_dict("records"):
        predicted = f"{line['mean']:.2f} +- {line['sd']:.2f}"
        best = f"{line['best_mean']:.2f} +- {line['best_sd']:.2f}"
        outcome = f"{line['outcome']:.2f}"
        table.add_row(str(line["round"]), escape(str(line["set"])), predicted, outcome, best)
    return table


def _show_optimum(system: "CausalSystem") -> None:
    """Print the exact optimum of a system and the effect of doing nothing."""
    problem, optimum = system.problem, system.optimum
    baseline = float(system.effect(problem.baseline())[0])
    goal = f"{problem.objective} E[{problem.label(problem.target)}]"
    best = _assignments(problem, optimum.intervention)
    _print_text(f"Exact optimum ({goal}): {optimum.value:.6f} at do({best})")
    _print_text(f"Doing nothing: {baseline:.6f}. How: {optimum.how}.")


def _variables(problem: "Problem") -> Table:
    table = Table("variable", "unit", "low", "high", title="May be set")
    shown = problem.variables()
    if "levels" in shown:
        table.add_column("levels")
    for name, row in shown.iterrows():
        ends = (f"{row['low']:.4g}", f"{row['high']:.4g}")
        levels = (escape(row["levels"]),) if "levels" in shown else ()
        table.add_row(escape(str(name)), escape(row["unit"]), *ends, *levels)
    return table


def _show_constraints(problem: "Problem") -> None:
    """Print the linear constraints and the function that restrict interventions, if there are."""
    from causal_bo_ppl.problem.interventions import rule_name

    for constraint in problem.constraints:
        when = "whenever one of them is set" if constraint.when == "any" else "where all are set"
        _print_text(f"Constraint: {constraint}, {when}")
    if problem.feasible_rule is not None:
        _print_text(f"Only where {rule_name(problem.feasible_rule)}(queries) is true")


def _sets(problem: "Problem") -> Table:
    table = Table("size", "sets", "for example", title=f"{len(problem.sets)} intervention sets")
    for size in sorted({len(members) for members in problem.sets}):
        sets = [members for members in problem.sets if len(members) == size]
        shown = "  ".join("{" + ", ".join(members) + "}" for members in sets[:MOST_SETS_SHOWN])
        more = " ..." if len(sets) > MOST_SETS_SHOWN else ""
        table.add_row(str(size), str(len(sets)), escape(shown) + more)
    return table


if __name__ == "__main__":
    app()
