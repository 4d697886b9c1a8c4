"""X -> Z -> Y, linear: the smallest system in which one experiment is informative about another.

    Z = 0.8 X + e,  Y = -1.3 Z + e,  all noise N(0, 1).

Source: the linear-Gaussian theory example of graph-coupled causal Bayesian optimization. It gives
no domains; those here are ours. f_X(x) = -1.04 x and f_Z(z) = -1.3 z share the coefficient -1.3.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.mechanisms.linear_equations import LinearSEM, mutilated_means
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

GRAPH = CausalGraph.parse("X -> Z -> Y")
DOMAINS = {"X": (-5.0, 5.0), "Z": (-5.0, 5.0)}
A, B = 0.8, -1.3


def model() -> None:
    """Draw one observation of the true system, a site for each variable."""
    x = numpyro.sample("X", dist.Normal(0, 1))
    z = numpyro.sample("Z", dist.Normal(A * x, 1))
    numpyro.sample("Y", dist.Normal(B * z, 1))


def response(queries: Queries) -> jax.Array:
    """Return the exact effects: f_Z(z) = B z, and f_X(x) = A B x while Z is free."""
    sem = LinearSEM(jnp.array([[0, A, 0], [0, 0, B], [0, 0, 0]]), jnp.zeros(3), jnp.eye(3))
    means: jax.Array = mutilated_means(sem, queries)
    return means[:, GRAPH.index("Y")]


def chain(max_size: int | None = None) -> CausalSystem:
    """Build the linear chain."""
    problem = Problem(GRAPH, "Y", domains=DOMAINS, sets="mis" if max_size is None else max_size)
    source = "linear-Gaussian theory example of the paper; domains ours"
    return CausalSystem("chain", problem, model, response, True, source)
