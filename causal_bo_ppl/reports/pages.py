"""How is a result written as one page that can be read without this package?

The page is a single HTML file: no scripts, and nothing is loaded from elsewhere. Every text from
outside (names, messages, tables) goes through the autoescape of the template. Pictures are SVG
inside the page; one that cannot be drawn is replaced by the reason. The same result gives the same
bytes.
"""

import base64
import html
import os
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from causal_bo_ppl import kernels, plots
from causal_bo_ppl.checks import FAILED, PASSED
from causal_bo_ppl.effect_estimates import effects
from causal_bo_ppl.errors import ArgumentError, CausalBOError, StoreError
from causal_bo_ppl.graph.layout import draw_svg
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.optimization import Run, Study
from causal_bo_ppl.optimization.state import CHOICE_WARNING
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.interventions import set_label, show, split_by_set
from causal_bo_ppl.problem.problem import NODE_COLOURS
from causal_bo_ppl.responses import response
from causal_bo_ppl.serialization import find_versions
from causal_bo_ppl.theory.constants import design
from causal_bo_ppl.validation import Card, Validation
from causal_bo_ppl.validation.cards import CARD_VERDICTS, SECTIONS

if TYPE_CHECKING:
    import xarray as xr

MOST_SHOWN_ROWS = 40  # of a table
MOST_SHOWN_EFFECTS = 12  # sets, the best first
MOST_SHOWN_ESTIMANDS = 60
MOST_COUPLED_SETS = 30  # in a picture of the kernel
DIGITS = "{:.4g}".format
SUM = re.compile(r"sum_\{([^{}]*)\}")


class Figure(NamedTuple):
    """A picture as a data address, with an alternative text; or why there is none."""

    title: str
    alternative: str
    address: str = ""
    fault: str = ""


class Grid(NamedTuple):
    """A table as texts: its columns, rows, and how many rows are not shown."""

    columns: list[str]
    rows: list[list[str]]
    omitted: int = 0


class Page(NamedTuple):
    """What the template shows; what is empty is left out."""

    title: str
    verdict: str = ""
    summary: str = ""
    paragraph: str = ""
    facts: Mapping[str, str] = {}
    variables: Grid | None = None
    graph: Figure | None = None
    effects: Grid | None = None
    note: str = ""
    cards: list[tuple[Card, Grid | None]] = []
    robustness: Grid | None = None
    figures: Mapping[str, list[Figure]] = {}
    estimands: list[tuple[str, Markup]] = []
    outcomes: Grid | None = None
    kernel: Grid | None = None
    code: str = ""
    versions: str = ""


def report(
    thing: "Validation | Posterior | Study | Run | xr.Dataset", path: str | os.PathLike[str]
) -> Path:
    """Write a result as one HTML file that a colleague can open.

    The file loads nothing from elsewhere and has no scripts. It shows what was asked, the graph,
    the recommendation, effects with intervals, the cards of a validation (failed ones first),
    estimands, the kernel, experiments and their outcomes, and how to compute all of it again.

    Parameters
    ----------
    thing:
        What `cb.validate`, `cb.fit`, `cb.optimize` or `cb.compare_kernels` returned, or a study.
    path:
        The file to write; one that exists is replaced.

    Returns
    -------
    Path
        The path of the file.

    Raises
    ------
    ArgumentError
        If there is no report of such a thing.
    StoreError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(50, 0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cb.report(post, f"{folder}/report.html").read_text()[:15]
    '<!doctype html>'
    """
    text, target = render(thing), Path(path)
    try:
        target.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise StoreError(
            f"the report cannot be written to {target}: {error.strerror or error}; name a file in "
            "a folder that exists"
        ) from None
    return target


def render(thing: Any) -> str:
    """Return the report of a result as an HTML text."""
    page = _page_of(thing)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("causal_bo_ppl.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(page=page, sections=SECTIONS)


def _page_of(thing: Any) -> Page:
    if isinstance(thing, Validation):
        return _of_validation(thing)
    if isinstance(thing, Posterior | Study | Run):
        return _of_subject(thing, _recommended(thing))
    if getattr(thing, "data_vars", None) is not None and "frobenius" in thing.data_vars:
        return _of_comparison(thing)
    raise ArgumentError(
        "a report is of a validation, a posterior, a study, a run or the result of "
        f"cb.compare_kernels; got {type(thing).__name__}"
    )


def _of_validation(found: Validation) -> Page:
    """Return the page of a validation, with that of what was validated around it."""
    cards = sorted(found.cards, key=lambda card: CARD_VERDICTS.index(card.verdict))
    subject = found.subject
    if isinstance(subject, Problem):
        page = _of_problem(subject)
    else:
        page = _of_subject(subject, dict(found.recommendation))
    figures = dict(page.figures)
    table = found.robustness
    if table is not None:
        alternative = "What the recommendation loses under other models, a bar for each."
        drawn = partial(plots.draw_robustness, table)
        figures["robustness"] = [_figure("Robustness", alternative, drawn)]
    code = _code(subject, found.facts)
    return page._replace(
        verdict=found.verdict,
        summary=found.text,
        facts={**page.facts, **found.facts},
        cards=[(card, _grid_of_card(card)) for card in cards],
        robustness=None if table is None else _grid(table.reset_index()),
        figures=figures,
        code=code,
    )


def _grid_of_card(card: Card) -> Grid | None:
    """Return the table behind a card, failed rows first."""
    if card.check is None or card.check.table.empty:
        return None
    table = card.check.table
    order = np.argsort([verdict != FAILED for verdict in table["verdict"]], kind="stable")
    is_named = not isinstance(table.index, pd.RangeIndex)
    return _grid(table.iloc[order].reset_index() if is_named else table.iloc[order], 12)


def _of_problem(problem: Problem) -> Page:
    goal = f"{problem.objective} E[{problem.label(problem.target)}]"
    facts = {
        "goal": goal,
        "sets": f"{len(problem.sets)} intervention sets ({problem.sets_rule or 'as listed'})",
    }
    for number, constraint in enumerate(problem.constraints, 1):
        facts[f"constraint {number}"] = str(constraint)
    return Page(
        title=f"Report: {goal}",
        facts=facts,
        variables=_grid(problem.variables().reset_index()),
        graph=_draw_graph(problem),
        versions=", ".join(f"{name} {version}" for name, version in find_versions()),
    )


def _of_subject(thing: Any, recommendation: Mapping[str, float]) -> Page:
    """Return the page of a posterior, a study or a run."""
    problem, page = thing.problem, _of_problem(thing.problem)
    post = thing if isinstance(thing, Posterior) else _study(thing).posterior
    facts = {**page.facts, "posterior": repr(post), "data": repr(post.data)}
    facts["data digest"] = post.data.fingerprint
    table = _effects(thing, post, recommendation)
    figures = {"kernel": _draw_kernel(post)}
    outcomes = None
    if not isinstance(thing, Posterior):
        study = _study(thing)
        facts["settings"] = study.settings.name
        log = study.to_frame()
        outcomes = _grid(log.reset_index()) if len(log) else None
        alternative = "Outcomes and the recommended effect after each experiment."
        drawn = partial(plots.draw_run, thing)
        figures["outcomes"] = [_figure("Experiments", alternative, drawn)] if len(log) else []
    return page._replace(
        facts=facts,
        paragraph=_paragraph(thing, problem, table),
        effects=None if table is None else _grid(table),
        note=CHOICE_WARNING,
        figures=figures,
        estimands=_estimands(problem),
        outcomes=outcomes,
        code=_code(thing, {}),
    )


def _study(thing: Any) -> Study:
    return thing.study if isinstance(thing, Run) else thing


def _recommended(thing: Any) -> dict[str, float]:
    """Return the intervention that a posterior, a study or a run recommends."""
    if not isinstance(thing, Posterior):
        return dict(thing.best.intervention)
    queries = design(_accepted(thing)).queries
    return thing.problem.interventions(queries[_best_position(thing, queries)])[0]


def _best_position(post: Posterior, queries: Any) -> int:
    sign = 1.0 if post.problem.objective == "min" else -1.0
    return first_smallest(sign * np.asarray(response(post).effects(post.mean, queries)))


def _accepted(post: Posterior) -> Posterior:
    is_trusted = post.verdict in ("exact", PASSED) or post.accepted
    return post if is_trusted else post.accept("to be reported")


def _effects(
    thing: Any, post: Posterior, recommendation: Mapping[str, float]
) -> pd.DataFrame | None:
    """Return the effects of the recommendation, the best of other sets, and of setting nothing."""
    if not recommendation:
        return None
    post, problem = _accepted(post), thing.problem
    queries = design(post).queries
    sign = 1.0 if problem.objective == "min" else -1.0
    means = sign * np.asarray(response(post).effects(post.mean, queries))
    best = [at[first_smallest(means[at])] for _, at in split_by_set(queries)]
    best = sorted(best, key=lambda position: float(means[position]))[:MOST_SHOWN_EFFECTS]
    others = problem.interventions(queries[np.array(best)])
    asked = [dict(recommendation), *(each for each in others if each != dict(recommendation)), {}]
    of = post if isinstance(thing, Posterior) else thing
    for wanted in (asked, asked[:-1]):  # the mean without intervention may not be known
        for key in (None, 0):
            try:
                return effects(of, wanted, level=0.9, key=key)
            except CausalBOError:
                continue
    return None


def _paragraph(thing: Any, problem: Problem, table: pd.DataFrame | None) -> str:
    """Return the recommendation in words, for a reader who decides."""
    if table is None:
        by = getattr(getattr(thing, "best", None), "by", "")
        nothing = "No intervention is expected to be better than doing nothing."
        return nothing if by == "nothing" else "No intervention can be recommended."
    first, unit = table.iloc[0], problem.units.get(problem.target, "")
    unit = f" {unit}" if unit else ""
    action = {"min": "lowest", "max": "highest"}[problem.objective]
    text = (
        f"Recommended: {first['intervention']}. {problem.target} is then expected at "
        f"{first['mean']:.4g}{unit} on average, with 90 % probability between {first['lower']:.4g} "
        f"and {first['upper']:.4g}, the {action} expected value among the "
        f"{len(problem.sets)} sets of variables that may be set."
    )
    last = table.iloc[-1]
    if last["intervention"] == "nothing set":
        gain = float(first["mean"] - last["mean"])
        text += (
            f" Without any intervention it is {last['mean']:.4g}{unit}: a change by {gain:+.4g}."
        )
    if not isinstance(thing, Posterior):
        best = thing.best
        text += f" It has {best.outcomes} outcome{'' if best.outcomes == 1 else 's'}."
        if best.tried is not None and best.tried is not best:
            text += f" The best of those tried is {show(best.tried.intervention, 4)}."
    return text


def _estimands(problem: Problem) -> list[tuple[str, Markup]]:
    """Return every set with its estimand as a readable formula, or why it has none."""
    ids = problem.identification
    found = []
    for members in [each for each in ids if each][:MOST_SHOWN_ESTIMANDS]:
        each = ids[members]
        text = f"{each.query} = {each.text}" if each.identifiable else repr(each)
        found.append((set_label(members), formula(text)))
    return found


def formula(text: str) -> Markup:
    """Return an estimand as HTML: sums with their variables below, everything else escaped."""
    escaped = html.escape(text)
    marked = SUM.sub(lambda match: f"<b>&sum;</b><sub>{match[1]}</sub>", escaped)
    return Markup(marked)  # noqa: S704  (escaped above)


def _draw_graph(problem: Problem) -> Figure:
    causes = problem.graph.ancestral(problem.target)
    fills = dict.fromkeys(problem.manipulable, NODE_COLOURS["manipulable"])
    arrows = "; ".join(f"{cause} -> {effect}" for cause, effect in causes.directed)
    arcs = "; ".join(f"{one} <-> {other}" for one, other in causes.bidirected)
    alternative = f"Causal graph: {'; '.join(filter(None, (arrows, arcs)))}."

    def svg() -> str:
        return draw_svg(
            causes.nodes,
            causes.directed,
            causes.bidirected,
            fills | {problem.target: NODE_COLOURS["target"]},
        )

    title = "Red: the target. Blue: may be set. Dashed: latent common causes."
    return _figure(title, alternative, svg)


def _draw_kernel(post: Posterior) -> list[Figure]:
    """Return the picture of how the effects of sets are coupled."""
    if len(post.sets) < 2 or len(post.sets) > MOST_COUPLED_SETS:
        return []
    alternative = "Correlations between the effects of intervention sets under the posterior."
    title = "Coupling of effects: how much an experiment on one set says about another"

    def draw() -> Any:
        return plots.draw_coupling(kernels.coupling(_accepted(post)))

    return [_figure(title, alternative, draw)]


def _of_comparison(result: Any) -> Page:
    """Return the page of a comparison of kernels."""
    figures = [
        _figure(
            "Errors of the kernels by pair of sets",
            "Relative error of one kernel against another, for every pair of sets.",
            partial(plots.draw_kernel_errors, result),
        ),
        _figure(
            "Terms of the covariance",
            "Sizes of the linear term, the mixed terms and the remainder.",
            partial(plots.draw_terms, result),
        ),
    ]
    table = result[[name for name in result.data_vars if result[name].ndim <= 2]]
    frame = table.to_dataframe().reset_index()
    return Page(
        title="Report: comparison of kernels",
        facts={str(name): str(value) for name, value in result.attrs.items()},
        kernel=_grid(frame),
        figures={"kernel": figures},
        versions=", ".join(f"{name} {version}" for name, version in find_versions()),
    )


def _figure(title: str, alternative: str, draw: Callable[[], Any]) -> Figure:
    """Return a picture, an SVG text or Axes; the reason where it fails."""
    try:
        with warnings.catch_warnings():  # of labels that are too long for their picture
            warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)
            drawn = draw()
            svg = drawn if isinstance(drawn, str) else plots.to_svg(drawn)
    except Exception as error:  # a page with a hole is better than none, and says why
        return Figure(title, alternative, fault=f"{type(error).__name__}: {error}")
    code = base64.b64encode(svg.encode()).decode()
    return Figure(title, alternative, f"data:image/svg+xml;base64,{code}")


def _grid(table: pd.DataFrame, most: int = MOST_SHOWN_ROWS) -> Grid:
    """Return a table as texts, numbers with four digits."""
    rows = [[_text(value) for value in row] for row in table.head(most).to_numpy(object).tolist()]
    return Grid([str(name) for name in table.columns], rows, max(0, len(table) - most))


def _text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else DIGITS(value)
    return "" if value is None or value is pd.NA else str(value)


def _code(subject: Any, facts: Mapping[str, str]) -> str:
    """Return the Python code that computes the page again, given the observations."""
    problem = subject if isinstance(subject, Problem) else subject.problem
    options = facts.get("call", "key=0")
    lines = ["import jax"] if "jax." in options else []
    lines += ["import pandas as pd", "", "import causal_bo_ppl as cb", ""]
    lines += [f"problem = cb.Problem.from_json({problem.to_json()!r})"]
    lines += ['frame = pd.read_csv("observations.csv")  # with the digest that the page states']
    thing = "problem, frame"
    if isinstance(subject, Study | Run):
        lines += [f"study = cb.Study.from_json({_study(subject).to_json()!r}, frame)"]
        thing = "study"
    elif isinstance(subject, Posterior):
        given = f"mechanisms={subject.mechanisms!r}, method={subject.method!r}, key=0"
        if subject.recipe is None:
            lines += ["# The posterior was made of given draws; cb.fit makes another one."]
        else:
            written = subject.recipe.mechanisms
            shown = written if isinstance(written, str) else subject.mechanisms
            given = f"mechanisms={shown!r}, method={subject.method!r}, "
            given += f"prior={subject.recipe.task.prior!r}, key=0"
        lines += [f"post = cb.fit(problem, frame, {given})"]
        thing = "post"
    lines += [f"validation = cb.validate({thing}, {options})"]
    lines += ['cb.report(validation, "report.html")']
    return "\n".join(lines)
