"""Can a user-defined function be a mechanism of this variable, and what are its parameters?

A function is traced with observations of two lengths to find its parameters. Then every
distribution is evaluated at a few parameters, on observations and on observations in which one
variable was changed: what must not depend on a variable, on other observations or on parameters has
to be the same.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import MechanismError, listed
from causal_bo_ppl.mechanisms.custom_sites import (
    Block,
    FunctionBlock,
    Noise,
    ParameterDiscovery,
    ProgramBlock,
    Site,
    first_line,
    has_mean,
    is_exact,
    log_probability,
    perform,
    quantiles,
    traced,
)
from causal_bo_ppl.problem import Problem

CHECKED_OBSERVATIONS = 16  # on which distributions are compared
CHECKED_THETAS = 3  # parameters at which distributions are compared
SAME_NUMBER = 1e-9  # relative difference of numbers that count as the same
FORMULA_ERROR = 1e-6  # largest residual of a formula without noise, in sds of the variable
UNIT_NOISE: Any = Noise(0.0, 1.0, 1.0)  # of noise that is added to means
MAPPING_PARAMETER = "causes"  # name of a single parameter that takes all causes as a mapping
TRACED_LENGTHS = (3, 5)  # observations of two traces: shapes of parameters must not depend on them
KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
MEAN_ADVICE = "return its mean instead, to which Gaussian noise with a learned sd is added"


class Kinds(NamedTuple):
    """Kinds of the variables with user-defined mechanisms.

    exact: those without noise. is_drawn: whether the mean of the target's distribution is not
    available, so that its values are averaged.
    """

    exact: tuple[str, ...]
    is_drawn: bool


class CheckedBlock(NamedTuple):
    """A block, the names of all variables, and some observations (n, p)."""

    block: Block
    nodes: tuple[str, ...]
    values: np.ndarray

    def distributions(self, theta: Any, values: Any) -> dict[str, Any]:
        """Return the distribution of every variable of the block."""
        columns = dict(zip(self.nodes, values.T, strict=True))
        every = self.block.run(theta, UNIT_NOISE, columns)[1]
        return {name: every[name] for name in self.block.variables}

    def thetas(self) -> np.ndarray:
        """Return a few parameters that are nowhere 0."""
        return 0.5 * np.random.default_rng(0).standard_normal((CHECKED_THETAS, self.block.size))


def _check_values(values: np.ndarray) -> np.ndarray:
    """Return a few observations (n, p); random numbers where there are none."""
    if not len(values):
        return np.random.default_rng(1).standard_normal((CHECKED_OBSERVATIONS, values.shape[1]))
    positions = np.linspace(0, len(values) - 1, CHECKED_OBSERVATIONS).round().astype(int)
    return np.asarray(values[np.unique(positions)])


def require_mechanisms(blocks: Sequence[Block], problem: Problem, data: Data) -> Kinds:
    """Refuse blocks that cannot be fitted or averaged; return the kinds of their variables."""
    kinds = [_require_block(block, problem, data) for block in blocks]
    exact = tuple(name for each in kinds for name in each.exact)
    return Kinds(exact, any(each.is_drawn for each in kinds))


def _require_block(block: Block, problem: Problem, data: Data) -> Kinds:
    nodes, target = problem.graph.nodes, problem.target
    checked = CheckedBlock(block, nodes, _check_values(data.values))
    kinds: dict[str, Any] = {}
    traced(
        block.owner,
        lambda theta, values: kinds.update(_kinds(checked, theta, values)),
        *_example(checked),
    )
    for name, kind in kinds.items():
        _require_kind(name, name == target, *kind)
    parents = {name: problem.graph.parents(name) for name in nodes}
    if isinstance(block, ProgramBlock):
        whole = checked._replace(block=block._replace(variables=nodes))
        _require_arrows(whole, parents, nodes)
    else:
        _require_arrows(checked, parents, block.causes)
    _require_independence(checked)
    exact = tuple(name for name, (_, is_formula, *_) in kinds.items() if is_formula)
    require_formulas([block], data, exact)
    is_drawn = target in kinds and not kinds[target][2]
    if target in kinds and not is_drawn:
        _require_mean(checked, target)
    return Kinds(exact, is_drawn)


def require_formulas(blocks: Sequence[Block], data: Data, exact: Sequence[str]) -> None:
    """Refuse formulas without noise that have parameters, or contradict the data.

    exact: the variables without noise.
    """
    for block in blocks:
        checked = CheckedBlock(block, data.nodes, _check_values(data.values))
        for name in exact:
            if name in block.variables:
                _require_formula(checked, name, data.values, ~data.intervened)


def _example(checked: CheckedBlock) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros(checked.block.size), jnp.asarray(checked.values)


def _kinds(
    checked: CheckedBlock, theta: Any, values: Any
) -> dict[str, tuple[bool, bool, bool, str]]:
    """Return whether each variable is discrete, exact, has a mean, and why it is not averaged."""
    kinds = {}
    for name, each in checked.distributions(theta, values).items():
        log_probability(each, values[:, checked.nodes.index(name)])  # an error is reported
        fault = _fault(checked, name)
        kinds[name] = (bool(each.is_discrete), is_exact(each), has_mean(each), fault)
    return kinds


def _fault(checked: CheckedBlock, name: str) -> str:
    """Return why quantiles are not differentiable in the parameters; empty where they are."""
    half = jnp.full(len(checked.values), 0.5)

    def total(theta: Any, values: Any) -> Any:
        distribution = checked.distributions(theta, values)[name]
        drawn = quantiles(distribution, half, half, half, jax.random.key(0))
        return jnp.sum(drawn * jnp.ones(len(checked.values)))

    try:
        jax.eval_shape(jax.grad(total), *_example(checked))
    except Exception as error:  # user-defined distributions may raise anything
        return first_line(error) or type(error).__name__
    return ""


def _require_kind(
    name: str, is_target: bool, is_discrete: bool, exact: bool, mean_known: bool, fault: str
) -> None:
    if is_discrete and not is_target:
        raise MechanismError(
            f"{name!r} is discrete and upstream of the target: effects through it have no "
            "derivatives in its parameters; give it a continuous distribution, or include it in "
            "all intervention sets so that its mechanism is not needed"
        )
    if exact and is_target:
        raise MechanismError(
            f"the target {name!r} has no noise; return its mean instead, to which Gaussian noise "
            "is added"
        )
    if fault and not (is_target and mean_known):
        what = "neither a mean nor" if is_target else "no"
        raise MechanismError(
            f"the distribution of {name!r} has {what} values that are differentiable in its "
            f"parameters, so that effects cannot be averaged ({fault}); use one with an inverse "
            "distribution function (icdf), or with reparameterized draws"
        )


@partial(jax.jit, static_argnums=(0, 1))
def _numbers(
    block: Block, nodes: tuple[str, ...], theta: jax.Array, values: jax.Array
) -> tuple[Any, dict[str, list[Any]]]:
    """Return the log prior, and all numbers in the distribution of each variable.

    The numbers include the log density of each observation, where it is defined.
    """
    columns = dict(zip(nodes, values.T, strict=True))
    log_prior, distributions = block.run(theta, UNIT_NOISE, columns)
    numbers = {}
    for name in block.variables:
        each = distributions[name]
        rounded = columns[name].astype(int) if each.is_discrete else columns[name]
        logs = [] if is_exact(each) else [each.log_prob(rounded)]
        numbers[name] = [*jax.tree.leaves(each), *logs]
    return log_prior, numbers


def _same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(
        np.allclose(a, b, rtol=SAME_NUMBER, atol=SAME_NUMBER**2, equal_nan=True) for a, b in pairs
    )


def _with_other_values(values: np.ndarray, position: int) -> np.ndarray:
    """Return observations in which the values of one variable are shuffled and shifted."""
    other = values.copy()
    width = np.ptp(values[:, position]) or 1.0
    other[:, position] = np.roll(values[:, position], 1) + 0.1 * width
    return other


def _require_arrows(
    checked: CheckedBlock, parents: Mapping[str, Sequence[str]], causes: Sequence[str]
) -> None:
    """Refuse priors that depend on variables, and dependences that are no arrows of the graph.

    causes: the variables that are changed.
    """
    for theta in checked.thetas():
        before = _numbers(*checked[:2], theta, checked.values)
        for cause in causes:
            moved = _with_other_values(checked.values, checked.nodes.index(cause))
            after = _numbers(*checked[:2], theta, moved)
            if not _same(before[0], after[0]):
                raise MechanismError(
                    f"a prior in {checked.block.owner} depends on the values of {cause!r}; priors "
                    "are the same for all observations"
                )
            for name in checked.block.variables:
                if cause not in (*parents[name], name) and not _same(
                    before[1][name], after[1][name]
                ):
                    raise MechanismError(
                        f"in the program {name!r} depends on {cause!r}, which is no cause of it in "
                        f"the graph ({listed(parents[name])}); add the arrow {cause} -> {name}, or "
                        "change the program"
                    )


def _require_independence(checked: CheckedBlock) -> None:
    """Refuse a mechanism in which an observation depends on others, such as on their mean."""
    count, theta = len(checked.values), checked.thetas()[0]
    if count < 2:
        return
    moved = checked.values.copy()
    moved[0] = moved[1] + 0.1 * (np.ptp(checked.values, axis=0) + 1.0)
    before, after = (_numbers(*checked[:2], theta, values)[1] for values in (checked.values, moved))
    for name in checked.block.variables:
        one, other = (
            [each[1:] if np.shape(each)[:1] == (count,) else each for each in numbers[name]]
            for numbers in (before, after)
        )
        if not _same(one, other):
            raise MechanismError(
                f"the mechanism of {name!r} makes an observation depend on others, as sums or "
                "means over observations do; put numbers such as a centre into the function"
            )


def _require_formula(
    checked: CheckedBlock, name: str, values: np.ndarray, free: np.ndarray
) -> None:
    """Refuse a formula without noise that has parameters, or contradicts the data."""
    formula = jax.jit(lambda theta, values: checked.distributions(theta, values)[name].v)
    one, other = (formula(theta, checked.values) for theta in checked.thetas()[:2])
    if not _same(one, other):
        raise MechanismError(
            f"{name!r} has no noise but depends on parameters, which cannot be learned without "
            f"noise; {MEAN_ADVICE}"
        )
    position = checked.nodes.index(name)
    if not free[:, position].any():
        return
    computed = np.asarray(formula(np.zeros(checked.block.size), values))
    residuals = np.abs(np.broadcast_to(computed, len(values)) - values[:, position])
    residuals = np.where(free[:, position], residuals, 0.0)
    scale = max(float(values[free[:, position], position].std()), 1e-300)
    if not residuals.max() <= FORMULA_ERROR * scale:
        raise MechanismError(
            f"{name!r} has no noise, but its formula is {residuals.max():.3g} off in observation "
            f"{int(residuals.argmax())}; {MEAN_ADVICE}"
        )


def _require_mean(checked: CheckedBlock, target: str) -> None:
    """Refuse a target whose mean is not finite at any of the parameters."""
    values = jnp.asarray(checked.values)
    mean = jax.jit(lambda theta: checked.distributions(theta, values)[target].mean)
    if not any(np.isfinite(np.asarray(mean(theta))).all() for theta in checked.thetas()):
        raise MechanismError(
            f"the distribution of the target {target!r} has no finite mean for any parameters that "
            "were tried; effects are means: use another distribution"
        )


def read_function(
    function: Callable[..., Any], variable: str, causes: Sequence[str], nodes: Sequence[str]
) -> FunctionBlock:
    """Return a function of the causes as a mechanism, with its parameters.

    Parameters
    ----------
    function:
        The user-defined function of the variable.
    variable, causes:
        The variable and its parents in the graph.
    nodes:
        All variables, whose names no parameter may have.
    """
    owner = f"the mechanism of {variable!r}"
    by_mapping = _takes_mapping(function, owner, causes)
    block = FunctionBlock(function, by_mapping, variable, tuple(causes), (), False)
    sites, is_distribution = [], False
    for length in TRACED_LENGTHS:
        columns = {name: jnp.zeros(length) for name in causes}
        discovery, returned = _discover(owner, block.call, columns, is_program=False)
        sites.append(tuple(discovery.sites))
        is_distribution = _require_returned(owner, returned, length)
    _require_sites(owner, sites, nodes)
    return block._replace(sites=sites[0], adds_noise=not is_distribution)


def read_program(
    program: Callable[[], Any], nodes: Sequence[str], learned: Sequence[str]
) -> ProgramBlock:
    """Return a whole program as mechanisms; refuse one whose sites are not the graph's variables.

    nodes: all variables of the graph. learned: those whose mechanisms are needed.
    """
    owner, sites = "the program", []
    needs = [
        name
        for name, each in _parameters(program, owner).items()
        if each.default is each.empty and each.kind in (*KEYWORD_KINDS, each.POSITIONAL_ONLY)
    ]
    if needs:
        raise MechanismError(
            f"{owner} takes {listed(needs)}; a whole program takes no arguments, and a function of "
            "the causes is given by variable: mechanisms={variable: function}"
        )
    for length in TRACED_LENGTHS:
        columns = {name: jnp.zeros(length) for name in nodes}
        discovery, _ = _discover(owner, lambda _: program(), columns, is_program=True)
        missing = [name for name in nodes if name not in discovery.distributions]
        if missing:
            others = listed([site.name for site in discovery.sites])
            raise MechanismError(
                f"{owner} has no site for {listed(missing)}; name one sample site after every "
                f"variable of the graph (its other sites, taken for parameters: {others})"
            )
        for name in nodes:
            site = f"the site {name!r} of {owner}"
            _require_returned(site, discovery.distributions[name], length)
        sites.append(tuple(discovery.sites))
    _require_sites(owner, sites, ())
    return ProgramBlock(program, tuple(learned), tuple(nodes), sites[0])


def _parameters(function: Callable[..., Any], owner: str) -> Mapping[str, inspect.Parameter]:
    try:
        hash(function)
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise MechanismError(f"{owner} cannot be called by keywords: {error}") from None


def _takes_mapping(function: Callable[..., Any], owner: str, causes: Sequence[str]) -> bool:
    """Return whether all causes are passed as one mapping; refuse a function that lacks one."""
    parameters = _parameters(function, owner)
    if list(parameters) == [MAPPING_PARAMETER] and MAPPING_PARAMETER not in causes:
        return True
    has_keywords = any(each.kind is VAR_KEYWORD for each in parameters.values())
    single = f"a function whose only parameter is {MAPPING_PARAMETER!r} is given them as a mapping"
    strange = [name for name in causes if not name.isidentifier()]
    if strange and not has_keywords:
        raise MechanismError(
            f"{owner} cannot take {listed(strange)} as keywords, which are no identifiers; "
            f"{single}: def mechanism({MAPPING_PARAMETER}): ... "
            f"{MAPPING_PARAMETER}[{strange[0]!r}] ..."
        )
    extra = [
        name
        for name, each in parameters.items()
        if name not in causes and each.default is each.empty and each.kind is not VAR_KEYWORD
    ]
    if extra:
        raise MechanismError(
            f"{owner} takes {listed(extra)}, which are no causes of it in the graph "
            f"({listed(causes)}); causes are passed as keywords under their names, and {single}"
        )
    taken = {name for name, each in parameters.items() if each.kind in KEYWORD_KINDS}
    lacking = [name for name in causes if name not in taken]
    if lacking and not has_keywords:
        raise MechanismError(
            f"{owner} does not take {listed(lacking)}, which are among its causes in the graph "
            f"({listed(causes)}); add them as parameters (they may be unused), or remove the arrows"
        )
    return False


def _discover(
    owner: str, call: Callable[..., Any], columns: dict[str, Any], *, is_program: bool
) -> tuple[ParameterDiscovery, Any]:
    """Return the sites of a function or program, and the value that it returns."""
    results: list[tuple[ParameterDiscovery, Any]] = []

    def run(columns: dict[str, Any]) -> None:
        discovery = ParameterDiscovery(owner, columns if is_program else {})
        results.append((discovery, perform(partial(call, columns), discovery)))

    traced(owner, run, columns)
    return results[0]


def _require_returned(owner: str, returned: Any, length: int) -> bool:
    """Refuse a value that is neither a mean nor a distribution of one number per observation.

    Returns whether it is a distribution.
    """
    if isinstance(returned, dist.Distribution):
        shape, event = returned.batch_shape, returned.event_shape
        if event != () or shape not in ((), (length,)):
            raise MechanismError(
                f"{owner} returns a {type(returned).__name__} with batch shape {shape} and event "
                f"shape {event} for {length} observations; a variable is one number for each"
            )
        return True
    if not hasattr(returned, "shape") and not isinstance(returned, (int, float, np.number)):
        raise MechanismError(
            f"{owner} returns {type(returned).__name__}; return its mean, or its distribution "
            "given the causes, such as numpyro.distributions.Normal(mean, sd)"
        )
    shape, kind = jnp.shape(returned), jnp.result_type(returned)
    if shape not in ((), (length,)) or not jnp.issubdtype(kind, jnp.number):
        raise MechanismError(
            f"{owner} returns an array of shape {shape} and type {kind} for {length} observations; "
            "a mean is one number for each"
        )
    if jnp.issubdtype(kind, jnp.complexfloating):
        raise MechanismError(f"{owner} returns complex numbers; a mean is real")
    return False


def _require_sites(owner: str, traces: Sequence[tuple[Site, ...]], nodes: Sequence[str]) -> None:
    """Refuse parameters named like variables, or whose shapes depend on the number of data."""
    for site in (*traces[0], *traces[1]):
        if site.name in nodes:
            raise MechanismError(
                f"{owner} has a site named {site.name!r}, which is a variable; do not draw the "
                "variable, return its distribution, and give parameters other names"
            )
    few, many = TRACED_LENGTHS
    for one, other in zip(*traces, strict=False):
        if one != other:
            raise MechanismError(
                f"the parameter {one.name!r} of {owner} has coordinates of shape {one.shape} for "
                f"{few} observations and {other.shape} for {many}; a parameter is the same for all "
                "observations: draw it outside of plates over observations"
            )
    if len(traces[0]) != len(traces[1]):
        raise MechanismError(f"{owner} has other parameters for {many} observations than for {few}")
