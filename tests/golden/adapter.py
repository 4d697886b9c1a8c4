"""The only file that uses names of the package beyond the public contract.

The redesign rewrites this file and no other one here.
"""

import jax
import jax.numpy as jnp
import numpy as np

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import read_outcomes
from causal_bo_ppl.kernels.remainders import remainders as kernel_remainders
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.interfaces import Task
from causal_bo_ppl.mechanisms.linear import density

PRIORS = {
    "default": lambda: None,
    "scaled": lambda: cb.ScaledPrior(rows=0.5),
    "fixed": lambda: cb.FixedPrior(slope_sd=0.7, intercept_sd=1.5, noise_sd=0.8, noise_rows=5.0),
    "fixed chain": lambda: cb.FixedPrior(
        slope_sd=0.7,
        noise_sd=0.8,
        centres={"X": 0.5},
        scales={"Z": 2.0},
        slopes={("Z", "Y"): (-1.0, 0.5)},
    ),
    "known noise": lambda: cb.FixedPrior(noise_sd=1.1, noise_rows=np.inf),
    "moments": lambda: cb.MomentPrior(
        np.array([0.2, -0.1, 0.5]), 2.0, np.diag([2.0, 3.0, 4.0]), 7.0
    ),
}


def make_data(problem, rows):
    """Data of columns {name: values} and {name: where it was set}."""
    nodes = problem.graph.nodes
    values, is_set = (np.column_stack([part[name] for name in nodes]) for part in rows)
    return Data(nodes, problem.target, values, is_set)


def fit(problem, data, *, method, prior="default", outcomes=None, chains=None, **options):
    """Fit a posterior; outcomes: (interventions, values); chains: (chains, warmup, draws)."""
    if outcomes is not None:
        options["outcomes"] = _asked(problem, outcomes)
    if chains is not None:
        method = cb.NUTS(
            **dict(zip(("chains", "warmup", "draws"), chains, strict=True)), progress=False
        )
    return cb.fit(problem, data, method=method, prior=PRIORS[prior](), **options)


def _asked(problem, outcomes):
    return problem.queries(outcomes[0]), np.asarray(outcomes[1])


def make_model(problem, data, *, prior="default", intercepts=True, outcomes=None):
    """The model whose density `laplace` and `nuts` explore, without fitting it."""
    told = read_outcomes(problem, None if outcomes is None else _asked(problem, outcomes))
    task = Task(problem, data, told, PRIORS[prior](), "structural", intercepts)
    return read_mechanisms("linear").bind(task)


def hedge(identification):
    """The two districts that forbid an estimand, the larger first; empty where there is one."""
    return identification.hedge


def outcome_variances(post, queries):
    """(M,) variance of one outcome under each intervention, as the model implies it."""
    return np.asarray(post.outcome_variances(queries))


def mode_distance(post):
    """How far the mode of a Laplace posterior still is, in posterior sds: sqrt(2 decrement)."""
    return float(np.sqrt(2 * post.belief.decrement))


def chains(post):
    """(chains, draws, d) draws of theta by NUTS."""
    return np.asarray(post.belief.chains)


def density_names(model):
    """Names of the model's natural coordinates, sorted."""
    coefficients, log_sds, strengths = _coordinates(model)
    return sorted([*coefficients, *log_sds, *strengths])


def log_density(model, names, points):
    """Log prior (n,), log likelihood (n,) and their gradients (n, k) at points (n, k).

    Points are in the order of the names. The prior is the density of coefficients b and a given
    s2, of variances s2 (not of log sd), and of strengths t, up to one constant. The likelihood has
    all its constants. Gradients are with respect to the named coordinates, so to log sd.
    """
    shape, chart = model.spec, model.density.chart
    before, seen = model.density.prior, model.density.rows
    coefficients, log_sds, strengths = (
        [names.index(name) for name in part] for part in _coordinates(model)
    )

    def parts(point):
        table = (
            jnp.zeros(shape.used.shape)
            .at[np.nonzero(shape.used)]
            .set(point[np.array(coefficients)])
        )
        matrix = jnp.asarray(before.fixed).at[shape.places].set(point[np.array(coefficients)])
        log_sd = jnp.asarray(chart.log_sd) if shape.known_noise else point[np.array(log_sds)]
        at = density.Point(table, log_sd, point[np.array(strengths, int)], matrix)
        return jnp.stack(
            [density.log_prior(shape, before, at), density.log_likelihood(shape, seen, at)]
        )

    def both(point):
        values, pull = jax.vjp(parts, point)
        return values, jax.vmap(lambda way: pull(way)[0])(jnp.eye(2))

    values, gradients = map(np.asarray, jax.jit(jax.vmap(both))(jnp.asarray(points)))
    return values[:, 0], values[:, 1], gradients[:, 0], gradients[:, 1]


def _coordinates(model):
    """Names of coefficients, log sds and strengths, each in the order of the model's arrays."""
    shape, nodes = model.spec, model.graph.nodes
    pairs = zip(*shape.places, strict=True)
    coefficients = [
        f"a[{nodes[to]}]" if at == shape.size else f"b[{nodes[at]}->{nodes[to]}]"
        for at, to in pairs
    ]
    log_sds = [] if shape.known_noise else [f"log sd[{nodes[place]}]" for place in shape.equations]
    return coefficients, log_sds, [f"t[{nodes[one]}<->{nodes[other]}]" for one, other in shape.arcs]


def remainders(post, queries):
    """(M,) what linearization leaves out of each effect's variance."""
    return np.asarray(kernel_remainders(post, queries))


def features(post, queries):
    """(M, r) features whose products are the Jacobian kernel; any rotation of them will do."""
    return np.asarray(cb.jacobian_features(post, queries))


def greedy_gains(post, queries, noise, rounds):
    """(T,) information after each of T greedy choices, with repetition."""
    return theory.greedy_gain(features(post, queries), noise, rounds).gains


def constants(post):
    """Numbers of the theory by name."""
    error = theory.parameter_error(post)
    return {
        "kappa2": theory.kappa2(post).value,
        "lipschitz": theory.lipschitz(post).value,
        "parameter error": error.value,
        "parameter error, pointwise": error.pointwise,
    }


def effective_rank(gram):
    """How few eigenvalues hold 99 % of the trace."""
    return theory.effective_rank(gram)


def comparison(post, queries, key):
    """What `compare_kernels` says without drawing: arrays by name, and the kinds of bounds."""
    found = cb.compare_kernels(post, queries, draws=200, key=key)
    exact = found.sel(comparison="jacobian - exact")
    arrays = {
        "frobenius": exact["frobenius"], "maximum": exact["maximum"], "spectral": exact["spectral"],
        "overall frobenius": exact["overall_frobenius"], "size": found["size"],
        "overall size": found["overall_size"], "remainder maximum": found["remainder_maximum"],
        "bound": found["bound"],
    }  # fmt: skip
    kinds = {
        "sets": found["left"].values.tolist(),
        "bound kinds": found["bound_kind"].values.tolist(),
    }
    return {name: np.asarray(each.values, float) for name, each in arrays.items()}, kinds


def optimize(problem, **options):
    """A run: sides chosen, sides recommended (a text for each experiment), and numbers by name."""
    run = cb.optimize(problem, **options)
    posed = run.problem
    trace = run.trace
    tried, best = (
        [
            _sides(posed, dict(zip(trace["variable"].values.tolist(), row, strict=True)))
            for row in trace[name].values
        ]
        for name in ("value", "best_value")
    )
    columns = ("mean", "sd", "bound", "outcome", "noise", "best_mean", "best_sd")
    numbers = {name: np.asarray(trace[name].values, float) for name in columns}
    return tried, best, numbers


def _sides(problem, intervention):
    """An intervention at a vertex, such as "X high, Z low"; values set nowhere are NaN."""
    words = []
    for name, value in intervention.items():
        if np.isnan(value):
            continue
        low, high = problem.domains[name]
        side = {True: "high", False: "low"}[bool(value > (low + high) / 2)]
        at_vertex = min(value - low, high - value) <= 1e-9 * (high - low)
        words.append(f"{name} {side}" if at_vertex else f"{name} = {value:.9g}")
    return ", ".join(words)


def experiment_of(problem, simulate):
    """The function that `optimize` calls with a batch of queries.

    simulate: from {name: is set}, {name: value} and the number of the call to rows.
    """
    calls = []

    def run(queries):
        calls.append(len(queries))
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        columns = [dict(zip(problem.graph.nodes, part.T, strict=True)) for part in (mask, value)]
        return make_data(problem, simulate(*columns, len(calls)))

    return run


def rows_of(data):
    """(n, p) values of Data in the order of the graph."""
    return np.asarray(data.values)
