"""What does the analyst see on the command line?"""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from causal_bo_ppl import models
from causal_bo_ppl.errors import CausalBOError, ModelError
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.system import CausalSystem

app = typer.Typer(help="Graph-coupled causal Bayesian optimization.", no_args_is_help=True, add_completion=False)
console = Console(highlight=False)
MOST_SETS = 4


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
    parents: Annotated[bool, typer.Option(help="May the target's parents be set? (ecoli70)")] = True,
    seed: Annotated[int, typer.Option(help="Which coefficients are drawn (funnel).")] = 0,
) -> None:
    """Load a system; show its graph, its intervention sets and its exact optimum.

    Without a name: ecoli70, the gene b1583 without its parents, sets of up to five genes.
    """
    try:
        given = (variant, target, max_size, parents, seed) != (None, None, None, True, 0)
        if name is None and given:
            raise ModelError("options need the name of a system, for example: causal-bo demo ecoli70 --max-size 2")
        if name is None:
            system = models.load("ecoli70", target="b1583", parents=False, max_size=5)
        else:
            system = models.load(name, variant=variant, target=target, parents=parents, max_size=max_size, seed=seed)
        show(system)
    except CausalBOError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from None


def show(system: CausalSystem) -> None:
    """Print what is known of a system."""
    problem = system.problem
    console.rule(escape(f"{system.name}: {system.source}"))
    causes = problem.graph.ancestral(problem.target)
    left_out = len(problem.graph.nodes) - len(causes.nodes)
    note = f" ({left_out} variables that cannot affect {problem.target} are left out)" if left_out else ""
    console.print(escape(f"Graph{note}:\n{causes}\n"))
    console.print(_variables(problem))
    console.print(_sets(problem))
    optimum = system.optimum
    best = ", ".join(f"{problem.label(name)} = {value:.6g}" for name, value in optimum.intervention.items())
    baseline = float(system.effect(problem.baseline())[0])
    goal = f"{problem.objective} E[{problem.label(problem.target)}]"
    console.print(escape(f"\nExact optimum ({goal}): {optimum.value:.6f} at do({best})"), soft_wrap=True)
    console.print(escape(f"Doing nothing: {baseline:.6f}. How: {optimum.how}."), soft_wrap=True)


def _variables(problem: Problem) -> Table:
    table = Table("variable", "unit", "low", "high", title="May be set")
    for name, row in problem.variables().iterrows():
        table.add_row(escape(str(name)), escape(row["unit"]), f"{row['low']:.4g}", f"{row['high']:.4g}")
    return table


def _sets(problem: Problem) -> Table:
    table = Table("size", "sets", "for example", title=f"{len(problem.sets)} intervention sets")
    for size in sorted({len(members) for members in problem.sets}):
        found = [members for members in problem.sets if len(members) == size]
        shown = "  ".join("{" + ", ".join(members) + "}" for members in found[:MOST_SETS])
        table.add_row(str(size), str(len(found)), escape(shown) + (" ..." if len(found) > MOST_SETS else ""))
    return table


if __name__ == "__main__":
    app()
