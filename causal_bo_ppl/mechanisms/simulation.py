"""What values does a NumPyro program give its variables, undisturbed or under interventions?

`numpyro.handlers.do` ignores a name that is not a site, sets one set for a whole batch, and leaves
the natural value in the trace. Here surgery is one handler that sets, row by row, what the queries
say; the trace holds the values set, and a program whose sites do not cover the graph is refused.
"""

from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.primitives import Messenger

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inputs import require_float64
from causal_bo_ppl.problem import Queries

# NumPyro's stack of effect handlers belongs to the process: a program that runs in one thread would
# be seeded, traced and conditioned by the handlers of another. Every use of handlers in this
# package holds this lock. A thread may take it again, since a simulated program may itself
# simulate. Code inside a traced function holds it only while it is traced: compiled programs run
# side by side.
HANDLER_LOCK = RLock()
ROWS = "/rows"  # the plate's name; no variable may hold a slash, so it collides with none


class Surgery(Messenger):  # type: ignore[misc]
    """Give a site its intervened value in the rows that set it.

    What is downstream of the site sees that value.
    """

    def __init__(self, nodes: Sequence[str], queries: Queries) -> None:
        super().__init__()
        self.columns = {name: column for column, name in enumerate(nodes)}
        self.mask, self.value = np.asarray(queries.mask), np.asarray(queries.value)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Replace the value after it was drawn, before anything reads it."""
        column = self.columns.get(msg["name"])
        if (
            column is None
            or msg["type"] not in ("sample", "deterministic")
            or not self.mask[:, column].any()
        ):
            return
        natural, value = jnp.asarray(msg["value"]), self.value[:, column]
        if jnp.issubdtype(natural.dtype, jnp.integer) and (value == np.round(value)).all():
            value = value.astype(natural.dtype)  # a category may index a table
        msg["value"] = jnp.where(self.mask[:, column], value, natural)


def simulate(
    model: Callable[[], object], nodes: Sequence[str], queries: Queries, key: jax.Array
) -> jax.Array:
    """Run a NumPyro program once and return a row for each intervention, of shape (M, p).

    Rows that set nothing are observations. The same key gives the same disturbances whatever is
    set.
    """
    require_float64()
    sites = _run(model, nodes, queries, key)
    missing = [name for name in nodes if name not in sites]
    if missing:
        raise ModelError(
            f"the model has no site for {listed(missing)}; name one sample or deterministic site "
            "after every variable "
            f"(sites: {listed(sorted(name for name in sites if name != ROWS))})"
        )
    for name in nodes:
        if jnp.shape(sites[name]["value"]) not in ((), (len(queries),)):
            raise ModelError(
                f"the site {name!r} has shape {jnp.shape(sites[name]['value'])} for "
                f"{len(queries)} rows; the program runs once for a whole batch, so a variable is "
                "one number per row"
            )
    return jnp.stack(
        [
            jnp.broadcast_to(jnp.asarray(sites[name]["value"], float), (len(queries),))
            for name in nodes
        ],
        axis=1,
    )


class Conditionals(NamedTuple):
    """Means and sds (n, p) of every variable given its causes, which are Gaussian."""

    mean: np.ndarray
    sd: np.ndarray


def conditionals(
    model: Callable[[], object], nodes: Sequence[str], values: np.ndarray
) -> Conditionals:
    """Return what a NumPyro program says about every variable given the others' values (n, p).

    Raises ModelError where a variable is not drawn from a Normal.
    """
    require_float64()
    rows = np.asarray(values, float)
    everything = Queries(np.ones(rows.shape, bool), rows)
    sites, columns = _run(model, nodes, everything, jax.random.key(0)), []
    for name in nodes:
        drawn = sites.get(name, {}).get("fn")
        drawn = getattr(drawn, "base_dist", drawn)
        if not isinstance(drawn, numpyro.distributions.Normal):
            raise ModelError(
                f"the mechanism of {name!r} is not known: the program does not draw it from a "
                f"Normal but {'not at all' if drawn is None else type(drawn).__name__}"
            )
        columns.append([np.broadcast_to(part, len(rows)) for part in (drawn.loc, drawn.scale)])
    means, sds = zip(*columns, strict=True)
    return Conditionals(np.stack(means, axis=1), np.stack(sds, axis=1))


def _run(
    model: Callable[[], object], nodes: Sequence[str], queries: Queries, key: jax.Array
) -> dict[str, Any]:
    """Return the sites of one run of the program, which no outer handler sees or changes."""
    inside = numpyro.handlers.seed(rng_seed=key), Surgery(nodes, queries), numpyro.handlers.trace()
    with HANDLER_LOCK, numpyro.handlers.block(), inside[0], inside[1], inside[2] as sites:
        with numpyro.plate(ROWS, len(queries)):
            model()
    return dict(sites)
