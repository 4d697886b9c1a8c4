"""May an analyst's function be a mechanism of this variable, and what are its parameters?"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.mechanisms.custom.blocks import FunctionBlock, ProgramBlock
from causal_bo_ppl.mechanisms.custom.sites import Discovery, Site, perform, traced

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
