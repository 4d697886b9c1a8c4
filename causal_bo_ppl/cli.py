"""What does the analyst see on the command line?

What computes is imported where it is used: a list of names must not wait for JAX.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import causal_bo_ppl
from causal_bo_ppl import models
from causal_bo_ppl.errors import CausalBOError, ModelError

if TYPE_CHECKING:
    from causal_bo_ppl.experiments import Reproduction
    from causal_bo_ppl.optimization import Run
    from causal_bo_ppl.problem import Problem, Queries
    from causal_bo_ppl.systems import CausalSystem

app = typer.Typer(
    help="Graph-coupled causal Bayesian optimization.", no_args_is_help=True, add_completion=False
)
console = Console(highlight=False)
MOST_SETS = 4


def _say_version(wanted: bool) -> None:
    if wanted:
        console.print(causal_bo_ppl.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True),
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
        int, typer.Option(help="Rows to observe before the first experiment.")
    ] = 100,
    rounds: Annotated[int, typer.Option(help="Experiments.")] = 10,
    key: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
) -> None:
    """Show a system and, if it is linear, look for its best intervention.

    The effects are identified, then learned from observations and from experiments.

    Without a name: ecoli70, the gene b1583 without its parents, sets of up to five genes.
    """
    try:
        given = (variant, target, max_size, parents, seed) != (None, None, None, True, 0)
        if name is None and given:
            raise ModelError(
                "options need the name of a system, for example: "
                "causal-bo demo ecoli70 --max-size 2"
            )
        if name is None:
            system = models.load("ecoli70", target="b1583", parents=False, max_size=5)
        else:
            system = models.load(
                name, variant=variant, target=target, parents=parents, max_size=max_size, seed=seed
            )
        show(system)
        if system.is_affine:
            optimize_aloud(system, observations, rounds, key)
        else:
            console.print(
                "\nNot linear: nothing is learned here, for the closed forms are for linear "
                "mechanisms."
            )
        say_optimum(system)
    except CausalBOError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from None


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
    from causal_bo_ppl.experiments.reproduction import read_names, reproduce_each

    lost = 0
    try:
        names = read_names(name)
        with UnitRunner(folder, workers=workers, scheduler=scheduler) as runner:
            for found in reproduce_each(names, runner, folder, seeds=seeds, quick=quick):
                lost += len(found.failed)
                _print_reproduction(found, folder)
    except CausalBOError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print(
            escape(f"Interrupted. Finished units are in {folder}; the same command resumes.")
        )
        raise typer.Exit(130) from None
    if lost:
        raise typer.Exit(2)


def _print_reproduction(found: "Reproduction", folder: Path) -> None:
    console.rule(escape(found.name))
    console.print(_figures(found))
    for _, unit in found.failed.iterrows():
        failed = f"{unit['method']} on {unit['system']}, seed {unit['seed']}: {unit['error']}"
        console.print(escape(f"Failed: {failed}"), soft_wrap=True)
    if found.origin:
        console.print(escape(found.origin), soft_wrap=True)
    written = ", ".join(path.name for path in found.files)
    console.print(escape(f"{found.pace}.\nWritten to {folder}: {written}"), soft_wrap=True)


def _figures(found: "Reproduction") -> Table:
    """Return the table of a reproduction with the columns that a screen has room for."""
    from causal_bo_ppl.experiments.tables import for_screen

    title, shown = for_screen(found.table)
    table = Table(*map(str, shown.columns), title=title)
    for row in shown.itertuples(index=False, name=None):
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def show(system: "CausalSystem") -> None:
    """Print the graph of a system, its domains and its intervention sets."""
    problem = system.problem
    console.rule(escape(f"{system.name}: {system.source}"))
    causes = problem.graph.ancestral(problem.target)
    left_out = len(problem.graph.nodes) - len(causes.nodes)
    note = (
        f" ({left_out} variables that cannot affect {problem.target} are left out)"
        if left_out
        else ""
    )
    console.print(escape(f"Graph{note}:\n{causes}\n"))
    console.print(_variables(problem))
    say_limits(problem)
    console.print(_sets(problem))


def optimize_aloud(system: "CausalSystem", observations: int, rounds: int, key: int) -> None:
    """Identify, learn and experiment, saying what comes of each step."""
    from causal_bo_ppl.identification import identify
    from causal_bo_ppl.optimization import optimize
    from causal_bo_ppl.optimization.run import CHOSEN, UNADJUSTED
    from causal_bo_ppl.problem.interventions import vertices
    from causal_bo_ppl.surrogates import couple
    from causal_bo_ppl.theory import causal_rank

    problem = system.problem
    console.print(escape(f"\n1  Identified: {identify(problem)!r}"), soft_wrap=True)
    run = optimize(system, rounds=rounds, observations=observations, key=key)
    post = run.surrogate.post if run.base is None else run.base
    console.print(escape(f"2  Learned: {post!r}; moments by {post.moments_by}"), soft_wrap=True)
    corners = vertices(problem, post.sets)
    before, after = (
        each.predict(corners).sd for each in (couple(post), couple(post).fantasize(*_first(run)))
    )
    share = (after < 0.99 * before).mean()
    taught = f"the first experiment lowers the sd of {share:.0%} of their effects by over 1 %"
    seen = f"{len(corners):,} vertices see {causal_rank(post, corners)} directions of theta"
    console.print(f"3  Kernel: {seen}; {taught}", soft_wrap=True)
    console.print(_rounds(run))
    console.print(escape(f"\nHow to read what follows: {CHOSEN}"), soft_wrap=True)
    best = ", ".join(
        f"{problem.label(name)} = {value:.6g}" for name, value in run.best.intervention.items()
    )
    low, high = run.best.interval(0.9)
    believed = f"{run.best.mean:.3f}, 90 % in [{low:.3f}, {high:.3f}] ({UNADJUSTED})"
    found = f"{believed}, at do({best})"
    effect = f"its true effect: {float(run.trace['best_effect'][-1]):.6f}"
    console.print(
        escape(f"\nBest after {len(run.steps)} experiments: {found}; {effect}"), soft_wrap=True
    )


def _first(run: "Run") -> "tuple[Queries, float]":
    return run.steps[0].suggestion.query, run.steps[0].noise


def _rounds(run: "Run") -> Table:
    table = Table("round", "set", "predicted", "outcome", "best so far", title="4  Experiments")
    for label, step in zip(run.trace["set"].to_numpy(), run.steps, strict=True):
        predicted = f"{step.suggestion.mean:.2f} +- {step.suggestion.sd:.2f}"
        best = f"{step.best_mean:.2f} +- {step.best_sd:.2f}"
        table.add_row(str(step.round), escape(str(label)), predicted, f"{step.outcome:.2f}", best)
    return table


def say_optimum(system: "CausalSystem") -> None:
    """Print the exact optimum of a system and the effect of doing nothing."""
    problem, optimum = system.problem, system.optimum
    best = ", ".join(
        f"{problem.label(name)} = {value:.6g}" for name, value in optimum.intervention.items()
    )
    baseline = float(system.effect(problem.baseline())[0])
    goal = f"{problem.objective} E[{problem.label(problem.target)}]"
    console.print(
        escape(f"Exact optimum ({goal}): {optimum.value:.6f} at do({best})"), soft_wrap=True
    )
    console.print(escape(f"Doing nothing: {baseline:.6f}. How: {optimum.how}."), soft_wrap=True)


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


def say_limits(problem: "Problem") -> None:
    """Print the linear constraints and the function that restrict interventions, if there are."""
    from causal_bo_ppl.problem.feasibility import rule_name

    for constraint in problem.constraints:
        when = "whenever one of them is set" if constraint.when == "any" else "where all are set"
        console.print(escape(f"Constraint: {constraint}, {when}"), soft_wrap=True)
    if problem.feasible_rule is not None:
        console.print(escape(f"Only where {rule_name(problem.feasible_rule)}(queries) is true"))


def _sets(problem: "Problem") -> Table:
    table = Table("size", "sets", "for example", title=f"{len(problem.sets)} intervention sets")
    for size in sorted({len(members) for members in problem.sets}):
        found = [members for members in problem.sets if len(members) == size]
        shown = "  ".join("{" + ", ".join(members) + "}" for members in found[:MOST_SETS])
        table.add_row(
            str(size), str(len(found)), escape(shown) + (" ..." if len(found) > MOST_SETS else "")
        )
    return table


if __name__ == "__main__":
    app()
