"""What does the analyst see on the command line?"""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from causal_bo_ppl import models
from causal_bo_ppl.errors import CausalBOError
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.system import CausalSystem

app = typer.Typer(help="Graph-coupled causal Bayesian optimization.", no_args_is_help=True, add_completion=False)
console = Console()
MOST_SETS = 8


@app.command()
def systems() -> None:
    """List the systems whose truth is known."""
    for name in models.names():
        console.print(name)


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help="A system, see `causal-bo systems`.")] = "ecoli70",
    variant: Annotated[str | None, typer.Option(help="A variant of the system.")] = None,
    target: Annotated[str | None, typer.Option(help="The gene to lower (ecoli70; default b1583).")] = None,
    max_size: Annotated[int | None, typer.Option(help="Explore all sets up to this size.")] = None,
    parents: Annotated[bool, typer.Option(help="May the target's parents be set? (ecoli70)")] = False,
) -> None:
    """Load a system; show its graph, its intervention sets and its exact optimum."""
    try:
        if name == "ecoli70":
            size = 5 if max_size is None else max_size
            system = models.load(name, variant=variant, target=target or "b1583", parents=parents, max_size=size)
        else:
            system = models.load(name, variant=variant, target=target, max_size=max_size)
        show(system)
    except CausalBOError as error:
        console.print(f"[bold red]error:[/] {error}", markup=True, highlight=False)
        raise typer.Exit(1) from None


def show(system: CausalSystem) -> None:
    """Print what is known of a system."""
    problem = system.problem
    console.rule(f"{system.name}: {system.source}")
    console.print(f"Graph ({len(problem.graph.nodes)} variables): {problem.graph}\n", highlight=False, markup=False)
    console.print(_variables(problem))
    console.print(_sets(system))
    optimum = system.optimum
    best = ", ".join(f"{problem.label(name)} = {value:.6g}" for name, value in optimum.intervention.items())
    baseline = float(system.effect(problem.baseline())[0])
    goal = f"{problem.objective} E[{problem.label(problem.target)}]"
    console.print(f"\nExact optimum ({goal}): {optimum.value:.6f} at do({best})", highlight=False, markup=False)
    console.print(f"Doing nothing: {baseline:.6f}. How: {optimum.how}.", highlight=False, markup=False)


def _variables(problem: Problem) -> Table:
    table = Table("variable", "unit", "low", "high", title="May be set")
    for name, row in problem.variables().iterrows():
        table.add_row(str(name), row["unit"], f"{row['low']:.4g}", f"{row['high']:.4g}")
    return table


def _sets(system: CausalSystem) -> Table:
    problem = system.problem
    table = Table("size", "sets", "for example", title=f"{len(problem.sets)} intervention sets")
    for size in sorted({len(members) for members in problem.sets}):
        found = [members for members in problem.sets if len(members) == size]
        shown = "  ".join("{" + ", ".join(members) + "}" for members in found[:MOST_SETS])
        table.add_row(str(size), str(len(found)), shown + (" ..." if len(found) > MOST_SETS else ""))
    return table


if __name__ == "__main__":
    app()
