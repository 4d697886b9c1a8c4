"""The NumPyro program of every family, against the densities that are fitted and against NumPyro.

Internals: the density of a model is compared with the program's at the same parameters, for which
draws of the sites are mapped to the model's coordinates.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import custom_cases as custom
from helpers.fitted_cases import random_problem, simulate
from numpyro.infer.util import log_density

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import no_outcomes
from causal_bo_ppl.inference.potentials import potential
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.numpyro_models import (
    coordinate_map,
    coordinates_at,
    parameter_shapes,
    program_of,
)

FIXED = cb.priors.FixedPrior(
    slope_sd=0.8, noise_observations=6.0, centres={"V0": 1.0}, scales={"V1": 2.0}, latent_sd=0.7
)


@pytest.fixture(autouse=True)
def numpyro_may_broadcast():
    with jax.numpy_rank_promotion("allow"):
        yield


def bind(problem, data, mechanisms="linear", prior=None, **options):
    none = no_outcomes(len(problem.graph.nodes))
    task = Task(problem, data, none, prior, **options)
    return read_mechanisms(mechanisms).bind(task)


def random_sites(program, count, seed):
    """Parameters that are not drawn from the prior: positive where their names say so."""
    draws, sites = np.random.default_rng(seed), {}
    positive = ("sd[", "trend[", "amplitude[", "lengthscale[", "most", "half", "first", "second")
    for name, shape in program.parameters.items():
        value = 0.5 * draws.normal(size=(count, *shape))
        sites[name] = np.exp(value) if name.startswith(positive) else value
    return sites


def gaps_between_densities(model, count=100):
    """Log density of the program, less that of the model with the volume, at many parameters.

    Parameters that no effect depends on keep one value.
    """
    program, shapes = program_of(model), parameter_shapes(model)
    sites = random_sites(program, count, 1)
    assert {name: shape for name, shape in program.parameters.items() if name in shapes} == shapes
    held = {name: value[0] for name, value in sites.items() if name not in shapes}
    drawn = {name: sites[name] for name in shapes}
    psi = coordinates_at(model, drawn)
    density, names = jax.tree.map(jnp.asarray, model.density), list(shapes)
    sizes = [int(np.prod(shapes[name])) for name in names]
    assert sum(sizes) == psi.shape[1] == len(model.coordinates)

    def unflatten(flat):
        parts = jnp.split(flat, np.cumsum(sizes)[:-1])
        return {n: jnp.reshape(part, shapes[n]) for n, part in zip(names, parts, strict=True)}

    to_psi = coordinate_map(model)

    @jax.jit
    def gap(pair):
        flat, psi = pair
        on_paper = log_density(program, (), {}, unflatten(flat) | held)[0]
        volume = jnp.linalg.slogdet(jax.jacfwd(to_psi)(flat))[1]
        return on_paper, -potential(density, psi) + volume

    flat = np.concatenate([drawn[n].reshape(count, -1) for n in names], axis=1)
    found = [np.array(gap(pair), float) for pair in zip(flat, psi, strict=True)]
    return np.array([one - other for one, other in found]), np.array(found)


def linear_case(prior=None, known=0, confounded=False, seed=3, **options):
    problem, truth = random_problem(
        seed, size=5, known=known, confounded=confounded, identifiable_only=confounded
    )
    data = simulate(problem, truth, 40, 0, interventional=True)
    if not options.get("intercepts", True):
        data = simulate(problem, truth, 40, 0, lift=0.0)
    return bind(problem, data, "linear", prior, **options)


def gp_case(joined):
    choices = {"C": cb.GP(kernel="matern52", functions=6), "A": "linear", "B": "linear"}
    choices["Y"] = cb.GP(groups=[("A", "B")], functions=4)
    return bind(*joined, choices)


CASES = {
    "linear": lambda _: linear_case(),
    "linear, known coefficients": lambda _: linear_case(known=3),
    "linear, strong prior": lambda _: linear_case(cb.priors.ScaledPrior(20.0)),
    "linear, fixed prior": lambda _: linear_case(FIXED),
    "linear, known variances": lambda _: linear_case(
        cb.priors.FixedPrior(noise_observations=np.inf)
    ),
    "linear, no intercepts": lambda _: linear_case(intercepts=False),
    "latent": lambda _: linear_case(confounded=True),
    "latent, fixed prior": lambda _: linear_case(FIXED, confounded=True),
    "gp": gp_case,
    "custom": lambda _: bind(
        custom.PROBLEM,
        custom.observe(30, 0).join(custom.simulate(custom.PROBLEM.sobol(8), 1)),
        {"Z": custom.saturate, "Y": custom.decay},
    ),
    "mixed": lambda _: bind(
        custom.PROBLEM, custom.observe(30, 0), {"Z": custom.saturate, "Y": cb.GP(functions=5)}
    ),
    "whole": lambda _: bind(
        custom.PROBLEM,
        custom.observe(30, 0).join(custom.simulate(custom.PROBLEM.sobol(8), 1)),
        custom.whole,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_density_of_the_program_is_that_which_is_fitted(case, joined):
    model = CASES[case](joined)
    gaps, logs = gaps_between_densities(model)
    assert np.isfinite(logs).all() and np.ptp(logs[:, 0]) > 1
    assert np.ptp(gaps) < 1e-8 * max(1.0, np.abs(logs).max())
