"""The commands about systems whose truth is known: systems, demo, bench and reproduce."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from causal_bo_ppl import models
from causal_bo_ppl.cli.terminal import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    AsJson,
    assignments,
    command,
    console,
    say,
    show,
    show_json,
    show_table,
)
from causal_bo_ppl.errors import ArgumentError

if TYPE_CHECKING:
    from causal_bo_ppl.experiments import Reproduction
    from causal_bo_ppl.optimization import Run
    from causal_bo_ppl.problem import Problem
    from causal_bo_ppl.systems import CausalSystem

MOST_SETS_SHOWN = 4  # of one size
POINTS_OF_A_SET = 16  # at which a demonstration looks where effects are nonlinear
DEMO_REPORT = Path("demo-report.html")


@command("causal-bo systems")
def systems(as_json: AsJson = False) -> None:
    """List the systems whose truth is known."""
    if as_json:
        show_json(systems=models.names())
        return
    for name in models.names():
        show(name)


@command("causal-bo demo toy --rounds 5")
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
    key: Annotated[int, typer.Option("--key", help="Seed of everything that is drawn.")] = 0,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Validate the run, and write a report to this file."),
    ] = None,
) -> None:
    """Show a system and optimize it, with linear mechanisms where it is linear, else with GPs.

    The effects are identified, then learned from observations and from experiments.

    Without a name: ecoli70, the gene b1583 without its parents, sets of up to five genes; the
    report is then demo-report.html.
    """
    given = (variant, target, max_size, parents, seed) != (None, None, None, True, 0)
    if name is None and given:
        raise ArgumentError(
            "options need the name of a system, for example: causal-bo demo ecoli70 --max-size 2"
        )
    if name is None:
        name, target, parents, max_size = "ecoli70", "b1583", False, 5
        report = report or DEMO_REPORT
    system = models.load(
        name, variant=variant, target=target, parents=parents, max_size=max_size, seed=seed
    )
    show_system(system)
    run = show_optimization(system, observations, rounds, key)
    _show_optimum(system)
    if report is not None:
        _write_report(run, report, key)


@command("causal-bo bench toy --methods gc-cbo,bo --seeds 5")
def bench(
    name: Annotated[str, typer.Argument(help="A system, see `causal-bo systems`.")],
    methods: Annotated[str, typer.Option(help="Names of presets.")] = "gc-cbo,cbo,bo",
    seeds: Annotated[int, typer.Option(help="How many, from 0.")] = 5,
    rounds: Annotated[int, typer.Option(help="Experiments of each run.")] = 10,
    observations: Annotated[int, typer.Option(help="Observations of each run.")] = 100,
    mechanisms: Annotated[
        str | None, typer.Option(help="linear or gp; by default what the system is.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where finished runs are stored, and found again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on a system whose truth is known: gaps to the optimum over seeds."""
    import causal_bo_ppl as cb

    chosen = mechanisms or ("linear" if models.load(name).is_affine else "gp")
    comparison = cb.experiments.sweep(
        name,
        [each.strip() for each in methods.split(",")],
        settings={"rounds": rounds, "observations": observations, "mechanisms": chosen},
        seeds=seeds,
        workers=workers,
        folder=folder,
    )
    table = comparison.table()
    if as_json:
        show_json(system=name, mechanisms=chosen, methods=table, failed=comparison.failed)
    else:
        show_table(table, f"{name}, {chosen} mechanisms, {seeds} seeds")
    if len(comparison.failed):
        say(f"{len(comparison.failed)} runs failed.")
        raise typer.Exit(EXIT_ERROR)


@command("causal-bo reproduce theory --quick")
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
    if name != "all":
        require_known(name)
    names = NAMES if name == "all" else [name]
    try:
        with UnitRunner(folder, workers=workers, scheduler=scheduler) as runner:
            for result in reproduce_each(names, runner, folder, seeds=seeds, quick=quick):
                lost += len(result.failed)
                _print_reproduction(result, folder)
    except KeyboardInterrupt:
        say(f"Interrupted. Finished units are in {folder}; the same command resumes.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if lost:
        raise typer.Exit(EXIT_ERROR)


def _print_reproduction(result: "Reproduction", folder: Path) -> None:
    """Print the table of a reproduction with the columns that fit on a screen, and its files."""
    from causal_bo_ppl.experiments.comparison import for_screen

    console().rule(escape(result.name))
    title, shown = for_screen(result.table)
    table = Table(*map(str, shown.columns), title=title)
    for row in shown.itertuples(index=False, name=None):
        table.add_row(*(escape(str(cell)) for cell in row))
    console().print(table)
    for _, unit in result.failed.iterrows():
        failed = f"{unit['method']} on {unit['system']}, seed {unit['seed']}: {unit['error']}"
        show(f"Failed: {failed}")
    if result.origin:
        show(result.origin)
    written = ", ".join(path.name for path in result.files)
    show(f"{result.pace}.\nWritten to {folder}: {written}")


def show_system(system: "CausalSystem") -> None:
    """Print the graph of a system, its domains and its intervention sets."""
    problem = system.problem
    console().rule(escape(f"{system.name}: {system.source}"))
    causes = problem.graph.ancestral(problem.target)
    omitted = len(problem.graph.nodes) - len(causes.nodes)
    note = f" (without {omitted} variables that cannot affect {problem.target})" if omitted else ""
    console().print(escape(f"Graph{note}:\n{causes}\n"))
    console().print(_variables(problem))
    _show_constraints(problem)
    console().print(_sets(problem))


def _write_report(run: "Run", path: Path, key: int) -> None:
    """Validate a run, write a report about it, and say the verdict and where the report is."""
    import causal_bo_ppl as cb

    validation = cb.validate(run, key=key)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = cb.report(validation, path).resolve()
    say(f"Validation: {validation.text}\nReport: {written}")


def show_optimization(system: "CausalSystem", observations: int, rounds: int, key: int) -> "Run":
    """Identify, learn and experiment, and print the result of every step."""
    from causal_bo_ppl.identification import identify
    from causal_bo_ppl.optimization import Settings, optimize
    from causal_bo_ppl.optimization.state import CHOICE_NOTE, CHOICE_WARNING
    from causal_bo_ppl.problem.designs import fill_points, vertices
    from causal_bo_ppl.surrogates import couple
    from causal_bo_ppl.theory import causal_rank

    problem = system.problem
    show(f"\n1  Identified: {identify(problem)!r}")
    settings = Settings(mechanisms="linear" if system.is_affine else "gp")
    run = optimize(system, settings, rounds=rounds, observations=observations, key=key)
    post = run.study.start.post
    show(f"2  Learned: {post!r}; moments by {post.moments_by}")
    if system.is_affine:
        points = vertices(problem, post.sets)
        rank = f"{len(points):,} vertices see {causal_rank(post, points)} directions of theta"
    else:
        points = fill_points(problem, post.sets, POINTS_OF_A_SET)
        rank = f"{len(points):,} interventions"
    prior, first = couple(post), run.asked[0]
    after = prior.fantasize(first.query, first.noise).predict(points).sd
    share = (after < 0.99 * prior.predict(points).sd).mean()
    reduced = f"the first experiment lowers the sd of {share:.0%} of their effects by over 1 %"
    show(f"3  Kernel: {rank}; {reduced}")
    console().print(_rounds(run))
    show(f"\nHow to read what follows: {CHOICE_WARNING}")
    low, high = run.best.interval(0.9)
    predicted = f"{run.best.mean:.3f}, 90 % in [{low:.3f}, {high:.3f}] ({CHOICE_NOTE})"
    best = f"{predicted}, at {assignments(problem, run.best.intervention)}"
    effect = f"its true effect: {float(run.trace['best_effect'][-1]):.6f}"
    show(f"\nBest after {len(run)} experiments: {best}; {effect}")
    return run


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
    best = assignments(problem, optimum.intervention)
    show(f"Exact optimum ({goal}): {optimum.value:.6f} at {best}")
    show(f"Doing nothing: {baseline:.6f}. How: {optimum.how}.")


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
        show(f"Constraint: {constraint}, {when}")
    if problem.feasible_rule is not None:
        show(f"Only where {rule_name(problem.feasible_rule)}(queries) is true")


def _sets(problem: "Problem") -> Table:
    table = Table("size", "sets", "for example", title=f"{len(problem.sets)} intervention sets")
    for size in sorted({len(members) for members in problem.sets}):
        sets = [members for members in problem.sets if len(members) == size]
        shown = "  ".join("{" + ", ".join(members) + "}" for members in sets[:MOST_SETS_SHOWN])
        more = " ..." if len(sets) > MOST_SETS_SHOWN else ""
        table.add_row(str(size), str(len(sets)), escape(shown) + more)
    return table
