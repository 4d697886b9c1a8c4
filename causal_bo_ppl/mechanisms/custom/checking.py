"""Do an analyst's mechanisms keep to the graph and to what can be learned? Tried on some rows.

Every distribution is evaluated at a few parameters, on rows and on rows in which one variable was
moved. What must not depend on a variable, on other rows or on parameters stays the same.

May an analyst's function be a mechanism of this variable, and what are its parameters?
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.mechanisms.custom.propagation import has_mean, is_exact, quantiles
from causal_bo_ppl.mechanisms.custom.sites import (
    Block,
    Discovery,
    FunctionBlock,
    Noise,
    ProgramBlock,
    Site,
    log_probability,
    perform,
    traced,
)

ROWS = 16  # on which distributions are compared
THETAS = 3  # parameters that are tried
ROUNDING = 1e-9  # relative difference of numbers that count as the same
UNIT = Noise(0.0, 1.0, 1.0)  # of disturbances that are added to means
EXACT = 1e-6  # of a variable's sd: how far a row may lie from a formula without disturbance


class Kinds(NamedTuple):
    """What was found out about the analyst's variables.

    exact: those without a disturbance. is_drawn: whether the target's distribution does not know
    its mean, so that its values are averaged.
    """

    exact: tuple[str, ...]
    is_drawn: bool


class Trial(NamedTuple):
    """A block, the names of all variables, and some of their rows (n, p)."""

    block: Block
    nodes: tuple[str, ...]
    rows: np.ndarray

    def columns(self, rows: Any) -> dict[str, Any]:
        """Return the columns of rows by name."""
        return {name: rows[:, position] for position, name in enumerate(self.nodes)}

    def made(self, theta: Any, rows: Any) -> dict[str, Any]:
        """Return the distribution of every variable of the block."""
        found = self.block.run(theta, UNIT, self.columns(rows))[1]
        return {name: found[name] for name in self.block.variables}

    def thetas(self) -> np.ndarray:
        """Return a few parameters that are nowhere 0."""
        return 0.5 * np.random.default_rng(0).standard_normal((THETAS, self.block.size))


def some_rows(values: np.ndarray) -> np.ndarray:
    """Return a few rows (n, p), which are made up where there are none."""
    if not len(values):
        return np.random.default_rng(1).standard_normal((ROWS, values.shape[1]))
    positions = np.unique(np.linspace(0, len(values) - 1, ROWS).round().astype(int))
    return np.asarray(values[positions])


def require_mechanisms(
    block: Block,
    nodes: tuple[str, ...],
    values: np.ndarray,
    free: np.ndarray,
    parents: Mapping[str, Sequence[str]],
    target: str,
) -> Kinds:
    """Refuse a block that cannot be fitted or averaged; return what its variables are.

    values, free: rows (n, p), and where each variable was not set. parents: of the block's
    variables, by the graph.
    """
    trial = Trial(block, nodes, some_rows(values))
    kept: dict[str, Any] = {}
    traced(
        block.owner, lambda theta, rows: kept.update(_kinds(trial, theta, rows)), *_example(trial)
    )
    for name, (is_discrete, exact, known, fault) in kept.items():
        _require_kind(name, name == target, is_discrete, exact, known, fault)
    if isinstance(block, ProgramBlock):
        _require_arrows(trial._replace(block=block._replace(variables=nodes)), parents)
    else:
        _require_prior(trial, block)
    _require_rows_apart(trial)
    found = tuple(name for name, (_, exact, _, _) in kept.items() if exact)
    require_formulas(block, nodes, values, free, found)
    is_drawn = target in kept and not kept[target][2]
    if target in kept and not is_drawn:
        _require_mean(trial, target)
    return Kinds(found, is_drawn)


def require_formulas(
    block: Block, nodes: tuple[str, ...], values: np.ndarray, free: np.ndarray, exact: Sequence[str]
) -> None:
    """Refuse formulas without disturbance that have parameters, or contradict the rows.

    exact: the variables without disturbance, of which only those of the block count.
    """
    for name in exact:
        if name in block.variables:
            _require_formula(Trial(block, nodes, some_rows(values)), name, values, free)


def _example(trial: Trial) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros(trial.block.size), jnp.asarray(trial.rows)


def _kinds(trial: Trial, theta: Any, rows: Any) -> dict[str, tuple[bool, bool, bool, str]]:
    """Return whether each variable is discrete, exact, knows its mean, and why not averaged."""
    found = {}
    for name, made in trial.made(theta, rows).items():
        log_probability(made, rows[:, trial.nodes.index(name)])  # refused here where it fails
        found[name] = (bool(made.is_discrete), is_exact(made), has_mean(made), _fault(trial, name))
    return found


def _fault(trial: Trial, name: str) -> str:
    """Say why values of a variable cannot follow its parameters; empty where they can."""

    def total(theta: Any, rows: Any) -> Any:
        half = jnp.full(len(trial.rows), 0.5)
        made = trial.made(theta, rows)[name]
        drawn = quantiles(made, half, half, half, jax.random.key(0))
        return jnp.sum(drawn * jnp.ones(len(trial.rows)))

    try:
        jax.eval_shape(jax.grad(total), *_example(trial))
    except Exception as error:  # whatever a distribution says about its derivatives
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ""


def _require_kind(
    name: str, is_target: bool, is_discrete: bool, exact: bool, known: bool, fault: str
) -> None:
    if is_discrete and not is_target:
        raise ModelError(
            f"{name!r} is discrete and upstream of the target: effects through it have no "
            "derivatives in its parameters; give it a continuous distribution, or let its sets "
            "include it so that its mechanism is not needed"
        )
    if exact and is_target:
        raise ModelError(
            f"the target {name!r} has no disturbance; return its mean instead, to which a Gaussian "
            "disturbance is added"
        )
    if fault and not (is_target and known):
        what = "neither a mean nor" if is_target else "no"
        raise ModelError(
            f"the distribution of {name!r} has {what} values that follow its parameters, so that "
            f"effects cannot be averaged ({fault}); take one with an inverse distribution function "
            "(icdf), or with reparameterized draws"
        )


@partial(jax.jit, static_argnums=(0, 1))
def _leaves(
    block: Block, nodes: tuple[str, ...], theta: jax.Array, rows: jax.Array
) -> tuple[Any, dict[str, list[Any]]]:
    """Return the log prior, and all numbers in the distribution of each variable.

    With them goes the log density of each row, where it is a number.
    """
    trial = Trial(block, nodes, np.zeros((0, 0)))
    columns = trial.columns(rows)
    log_prior, made = block.run(theta, UNIT, columns)
    found = {}
    for name in block.variables:
        each = made[name]
        rounded = columns[name].astype(int) if each.is_discrete else columns[name]
        logs = [] if is_exact(each) else [each.log_prob(rounded)]
        found[name] = [*jax.tree.leaves(each), *logs]
    return log_prior, found


def _same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(a, b, rtol=ROUNDING, atol=ROUNDING**2, equal_nan=True) for a, b in pairs)


def _moved(rows: np.ndarray, position: int) -> np.ndarray:
    """Return rows in which one variable has other values, some of them its own."""
    found = rows.copy()
    width = np.ptp(rows[:, position]) or 1.0
    found[:, position] = np.roll(rows[:, position], 1) + 0.1 * width
    return found


def _require_arrows(trial: Trial, parents: Mapping[str, Sequence[str]]) -> None:
    """Refuse a program in which a variable depends on one that is no parent of it in the graph."""
    look = partial(_leaves, trial.block, trial.nodes)
    for theta in trial.thetas():
        before = look(theta, trial.rows)
        for position, cause in enumerate(trial.nodes):
            after = look(theta, _moved(trial.rows, position))
            if not _same(before[0], after[0]):
                raise ModelError(f"a prior of the program depends on {cause!r}; priors are fixed")
            for name in trial.block.variables:
                own = parents[name]
                if cause in (*own, name) or _same(before[1][name], after[1][name]):
                    continue
                raise ModelError(
                    f"in the program {name!r} depends on {cause!r}, which is no cause of it in the "
                    f"graph ({listed(own)}); add the arrow {cause} -> {name}, or "
                    "change the program"
                )


def _require_prior(trial: Trial, block: FunctionBlock) -> None:
    """Refuse a function whose priors depend on the causes."""
    look = partial(_leaves, trial.block, trial.nodes)
    for theta in trial.thetas()[:1]:
        before = look(theta, trial.rows)[0]
        for cause in block.causes:
            after = look(theta, _moved(trial.rows, trial.nodes.index(cause)))[0]
            if not _same(before, after):
                raise ModelError(
                    f"a prior in {block.owner} depends on the values of {cause!r}; priors "
                    "are the same for all rows"
                )


def _require_rows_apart(trial: Trial) -> None:
    """Refuse a mechanism by which a row depends on other rows, such as on their mean."""
    look, count = partial(_leaves, trial.block, trial.nodes), len(trial.rows)
    if count < 2:
        return
    moved = trial.rows.copy()
    moved[0] = moved[1] + 0.1 * (np.ptp(trial.rows, axis=0) + 1.0)
    theta = trial.thetas()[0]
    before, after = look(theta, trial.rows)[1], look(theta, moved)[1]
    for name in trial.block.variables:
        one, other = (
            [each[1:] if np.shape(each)[:1] == (count,) else each for each in part[name]]
            for part in (before, after)
        )
        if not _same(one, other):
            raise ModelError(
                f"the mechanism of {name!r} makes a row depend on other rows, as sums or means "
                "over rows do; put numbers such as a centre into the function"
            )


def _require_formula(trial: Trial, name: str, values: np.ndarray, free: np.ndarray) -> None:
    """Refuse a formula without disturbance that has parameters, or contradicts the rows."""
    formula = jax.jit(lambda theta, rows: trial.made(theta, rows)[name].v)
    one, other = (formula(theta, trial.rows) for theta in trial.thetas()[:2])
    advice = "return its mean instead, to which a Gaussian disturbance with a learned sd is added"
    if not _same(one, other):
        raise ModelError(
            f"{name!r} has no disturbance but depends on parameters, which rows without noise "
            f"cannot teach; {advice}"
        )
    position = trial.nodes.index(name)
    if not free[:, position].any():
        return
    found = np.asarray(formula(np.zeros(trial.block.size), values))
    gaps = np.abs(np.broadcast_to(found, len(values)) - values[:, position])
    gaps = np.where(free[:, position], gaps, 0.0)
    scale = max(float(values[free[:, position], position].std()), 1e-300)
    if not gaps.max() <= EXACT * scale:
        raise ModelError(
            f"{name!r} has no disturbance, but its formula is {gaps.max():.3g} off in row "
            f"{int(gaps.argmax())}; {advice}"
        )


def _require_mean(trial: Trial, target: str) -> None:
    """Refuse a target whose mean is not finite for any parameters that are tried."""
    mean = jax.jit(lambda theta: trial.made(theta, jnp.asarray(trial.rows))[target].mean)
    found = [np.isfinite(np.asarray(mean(theta))).all() for theta in trial.thetas()]
    if not any(found):
        raise ModelError(
            f"the distribution of the target {target!r} has no finite mean for any parameters that "
            "were tried; effects are means: take another distribution"
        )


WHOLE = "causes"  # the name of a single parameter that takes all causes as a mapping
LENGTHS = (3, 5)  # rows of two trials: shapes of parameters must not follow them
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
MANY = inspect.Parameter.VAR_KEYWORD


def read_function(
    function: Callable[..., Any], variable: str, causes: Sequence[str], nodes: Sequence[str]
) -> FunctionBlock:
    """Return a function of the causes as a mechanism, with its parameters.

    Parameters
    ----------
    function:
        What the analyst gave for the variable.
    variable, causes:
        The variable and its parents in the graph.
    nodes:
        All variables, whose names no parameter may have.
    """
    owner = f"the mechanism of {variable!r}"
    by_mapping = _takes_mapping(function, owner, causes)
    block = FunctionBlock(function, by_mapping, variable, tuple(causes), (), False)
    found, kinds = [], []
    for length in LENGTHS:
        sites, returned = _trial(owner, block.call, {}, causes, length)
        found.append(sites)
        kinds.append(_require_outcome(owner, returned, length))
    _require_sites(owner, found, nodes)
    return block._replace(sites=found[0], adds_noise=not kinds[0])


def read_program(
    program: Callable[[], Any], nodes: Sequence[str], learned: Sequence[str]
) -> ProgramBlock:
    """Return a whole program as mechanisms; refuse one whose sites are not the graph's variables.

    nodes: all variables of the graph. learned: those whose mechanisms are needed.
    """
    owner, found = "the program", []
    try:
        needs = [
            name
            for name, each in inspect.signature(program).parameters.items()
            if each.default is each.empty and each.kind in (*NAMED, each.POSITIONAL_ONLY)
        ]
    except (TypeError, ValueError):
        needs = []
    if needs:
        raise ModelError(
            f"{owner} takes {listed(needs)}; a whole program takes no arguments, and a function of "
            "the causes is given by variable: mechanisms={variable: function}"
        )
    for length in LENGTHS:
        discovery = _discover(owner, program, nodes, length)
        missing = [name for name in nodes if name not in discovery.made]
        if missing:
            others = listed([site.name for site in discovery.sites])
            raise ModelError(
                f"{owner} has no site for {listed(missing)}; name one sample site after every "
                f"variable of the graph (its other sites, taken for parameters: {others})"
            )
        for name in nodes:
            _require_outcome(f"the site {name!r} of {owner}", discovery.made[name], length)
        found.append(tuple(discovery.sites))
    _require_sites(owner, found, ())
    return ProgramBlock(program, tuple(learned), tuple(nodes), found[0])


def _takes_mapping(function: Callable[..., Any], owner: str, causes: Sequence[str]) -> bool:
    """Return whether all causes are passed as one mapping; refuse a function that lacks one."""
    try:
        hash(function)
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ModelError(f"{owner} cannot be called by keywords: {error}") from None
    if list(parameters) == [WHOLE] and WHOLE not in causes:
        return True
    single = f"a function whose only parameter is {WHOLE!r} is given them as one mapping"
    if strange := [name for name in causes if not name.isidentifier()]:
        if not any(each.kind is MANY for each in parameters.values()):
            raise ModelError(
                f"{owner} cannot take {listed(strange)} as keywords, which are no identifiers; "
                f"{single}: def mechanism({WHOLE}): ... {WHOLE}[{strange[0]!r}] ..."
            )
    extra = [
        name
        for name, each in parameters.items()
        if name not in causes and each.default is each.empty and each.kind is not MANY
    ]
    own = listed(causes)
    if extra:
        raise ModelError(
            f"{owner} takes {listed(extra)}, which are no causes of it in the graph ({own}); "
            f"causes are passed as keywords under their names, and {single}"
        )
    takes = {name for name, each in parameters.items() if each.kind in NAMED}
    lacking = [name for name in causes if name not in takes]
    if lacking and not any(each.kind is MANY for each in parameters.values()):
        raise ModelError(
            f"{owner} does not take {listed(lacking)}, which are among its causes in the graph "
            f"({own}); add them as parameters (they may go unused), or drop the arrows"
        )
    return False


def _trial(
    owner: str,
    call: Callable[..., Any],
    given: dict[str, Any],
    causes: Sequence[str],
    length: int,
) -> tuple[tuple[Site, ...], Any]:
    """Return the parameters of a function, and what it returns for so many rows."""
    discovery, kept = Discovery(owner, given), []

    def run(columns: dict[str, Any]) -> None:
        kept.append(perform(partial(call, columns), discovery))

    traced(owner, run, {name: jnp.zeros(length) for name in causes})
    return tuple(discovery.sites), kept[0]


def _discover(
    owner: str, program: Callable[[], Any], nodes: Sequence[str], length: int
) -> Discovery:
    """Return what one run of a program says, for so many rows."""
    kept: list[Discovery] = []

    def run(columns: dict[str, Any]) -> None:
        kept.append(Discovery(owner, columns))
        perform(program, kept[0])

    traced(owner, run, {name: jnp.zeros(length) for name in nodes})
    return kept[0]


def _require_outcome(owner: str, returned: Any, length: int) -> bool:
    """Refuse what is neither a mean nor a distribution of one number for each row.

    Returns whether it is a distribution.
    """
    if isinstance(returned, dist.Distribution):
        shape, event = returned.batch_shape, returned.event_shape
        if event != () or shape not in ((), (length,)):
            raise ModelError(
                f"{owner} returns a {type(returned).__name__} with batch shape {shape} and event "
                f"shape {event} for {length} rows; a variable is one number for each row"
            )
        return True
    if not hasattr(returned, "shape") and not isinstance(returned, (int, float, np.number)):
        raise ModelError(
            f"{owner} returns {type(returned).__name__}; return its mean, or its distribution "
            "given the causes, such as numpyro.distributions.Normal(mean, sd)"
        )
    shape, kind = jnp.shape(returned), jnp.result_type(returned)
    if shape not in ((), (length,)) or not jnp.issubdtype(kind, jnp.number):
        raise ModelError(
            f"{owner} returns an array of shape {shape} and type {kind} for {length} rows; a mean "
            "is one number for each row"
        )
    if jnp.issubdtype(kind, jnp.complexfloating):
        raise ModelError(f"{owner} returns complex numbers; a mean is real")
    return False


def _require_sites(owner: str, found: Sequence[tuple[Site, ...]], nodes: Sequence[str]) -> None:
    """Refuse parameters with names of variables, or whose shapes follow the number of rows."""
    for site in (*found[0], *found[1]):
        if site.name in nodes:
            raise ModelError(
                f"{owner} has a site named {site.name!r}, which is a variable; do not draw the "
                "variable, return its distribution, and give parameters other names"
            )
    for one, other in zip(*found, strict=False):
        if one != other:
            raise ModelError(
                f"the parameter {one.name!r} of {owner} has coordinates of shape {one.shape} for "
                f"{LENGTHS[0]} rows and {other.shape} for {LENGTHS[1]}; a parameter is the same "
                "for all rows: draw it outside of plates over rows"
            )
    if len(found[0]) != len(found[1]):
        raise ModelError(f"{owner} has other parameters for {LENGTHS[1]} rows than {LENGTHS[0]}")
