"""The NumPyro program of every family, against the densities that are fitted and against NumPyro.

Internals: the density of a model is compared with the program's at the same parameters, for which
draws of the sites are mapped to the model's coordinates.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers import custom_cases as custom
from helpers.fitted_cases import random_problem, simulate
from numpyro.infer import Predictive
from numpyro.infer.inspect import get_model_relations
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
    positive += ("scale[", "df[")
    for name, shape in program.parameters.items():
        value = 0.5 * draws.normal(size=(count, *shape))
        sites[name] = np.exp(value) if name.startswith(positive) else value
        sites[name] += 2 * name.startswith("df[")
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


FRONT_DOOR = cb.Problem(
    cb.CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", domains={"X": (-2, 2), "Z": (-3, 3)}
)


def front_door(count):
    u, a, b, c = np.random.default_rng(0).normal(size=(4, count))
    x = u + 0.7 * a
    z = np.tanh(x) + 0.6 * b
    values = np.column_stack([x, z, np.sin(z) + u + 0.5 * c])
    return cb.Data(("X", "Z", "Y"), "Y", values, np.zeros(values.shape, bool))


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


SLOW = (
    "mixed",
    "heavy tails",
    "linear, no intercepts",
    "latent, fixed prior",
    "regressions",
    "fixed hyperparameters",
)
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
    "regressions": lambda _: bind(FRONT_DOOR, front_door(50), cb.GP(functions=4)),
    "fixed hyperparameters": lambda joined: gp_case(joined).given_hyperparameters(),
    "custom": lambda _: bind(
        custom.PROBLEM,
        custom.observe(30, 0).join(custom.simulate(custom.PROBLEM.sobol(8), 1)),
        {"Z": custom.saturate, "Y": custom.decay},
    ),
    "mixed": lambda _: bind(
        custom.PROBLEM, custom.observe(30, 0), {"Z": custom.saturate, "Y": cb.GP(functions=5)}
    ),
    "products": lambda joined: bind(*joined, {"Y": cb.Linear(interactions="all")}),
    "varying noise": lambda joined: bind(
        *joined,
        {"C": cb.GP(functions=5, noise="varying"), "Y": cb.Linear([("A", "B")], noise="varying")},
    ),
    "heavy tails": lambda joined: bind(
        *joined, {"A": cb.Linear(noise="student"), "Y": cb.GP(functions=4, noise="student")}
    ),
    "whole": lambda _: bind(
        custom.PROBLEM,
        custom.observe(30, 0).join(custom.simulate(custom.PROBLEM.sobol(8), 1)),
        custom.whole,
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES]
)
def test_density_of_the_program_is_that_which_is_fitted(case, joined):
    model = CASES[case](joined)
    gaps, logs = gaps_between_densities(model)
    assert np.isfinite(logs).all() and np.ptp(logs[:, 0]) > 1
    assert np.ptp(gaps) < 1e-8 * max(1.0, np.abs(logs).max())


def drawn(program, draws, rows, seed=0):
    """New rows by NumPyro's Predictive, one table for each draw of the parameters."""
    return Predictive(program, draws, parallel=True)(jax.random.key(seed), rows=rows)


def repeated(sites, count):
    """Every draw of the parameters again: one value, many times."""
    return {
        name: np.repeat(np.asarray(value)[None], count, axis=0) for name, value in sites.items()
    }


def within(values, expected, errors=5.0):
    """Whether the mean of independent values is the expected one, within standard errors."""
    values = np.ravel(values)
    return abs(values.mean() - expected) < errors * values.std() / np.sqrt(len(values))


CHAIN_TRUTH = {"a[X]": 0.0, "sd[X]": 1.0, "a[Z]": 0.0, "b[X->Z]": 0.8, "sd[Z]": 1.0}
CHAIN_TRUTH |= {"a[Y]": 0.0, "b[Z->Y]": -1.3, "sd[Y]": 1.0}


def test_new_rows_at_the_true_parameters_have_the_moments_of_experiments(chain):
    model = cb.numpyro_model(chain.problem, chain.observe(20, 0))
    at_truth = repeated(CHAIN_TRUTH, 4)
    for intervention in ({}, {"X": 1.5}, {"Z": -2.0}):
        found = drawn(model.do(intervention) if intervention else model, at_truth, 5_000)
        once = chain.problem.queries([intervention]) if intervention else chain.problem.baseline()
        queries = once.repeat(20_000)
        expected = chain.experiment(queries, 1).to_frame()
        for name in ("X", "Z", "Y"):
            if name in intervention:  # NumPyro keeps what it would have been
                continue
            values = expected[name].to_numpy()
            error = np.hypot(values.std(), found[name].std()) / np.sqrt(20_000)
            assert abs(found[name].mean() - values.mean()) < 5 * error
            assert abs(found[name].std() / values.std() - 1) < 5 * np.sqrt(1 / 20_000)
        if "X" not in intervention and "Z" not in intervention:
            ours = np.cov([np.ravel(found[name]) for name in ("X", "Z", "Y")])
            np.testing.assert_allclose(ours, np.cov(expected[["X", "Z", "Y"]].T), atol=0.2)


def test_new_rows_under_an_intervention_have_the_effects_of_the_posterior(chain):
    data = chain.observe(40, 0)
    post = cb.fit(chain.problem, data, method="laplace")
    sites = {"a[X]": np.zeros(4_000), "sd[X]": np.ones(4_000)}
    draws = post.distribution.drawn(4_000, jax.random.key(0))
    sites |= dict(zip(post.names, draws.theta.T, strict=True))
    scales = post.distribution.model.scales(draws.models)
    sites |= {"sd[Z]": scales[:, 1], "sd[Y]": scales[:, 2]}
    for intervention in ({"X": 1.5}, {"Z": -2.0}):
        found = drawn(post.numpyro_model.do(intervention), sites, 5)["Y"].mean(axis=1)
        table = cb.effects(post, [intervention], key=0)
        assert within(found, float(table["mean"][0]))


def test_a_variable_that_is_set_leaves_the_noise_of_its_district_as_it_is():
    """X and Y share a latent cause: do(X) moves Y by its coefficient only, not by the noise."""
    graph = cb.CausalGraph.parse("X -> Y; X <-> Y; W -> X")
    problem = cb.Problem(graph, "Y", domains={"X": (-9, 9)}, sets=[("X",)], identifiable_only=False)
    arcs = {"t[X<->Y]": 1.5, "sd[X]": 2.0, "sd[Y]": 1.0, "a[X]": 0.0, "b[W->X]": 1.0, "a[Y]": 0.5}
    model = cb.numpyro_model(problem, prior=cb.priors.FixedPrior(), linear=True)
    sites = repeated(arcs | {"b[X->Y]": 0.7, "a[W]": 0.0, "sd[W]": 1.0}, 2)
    natural, moved = drawn(model, sites, 20_000), drawn(model.do({"X": 4.0}), sites, 20_000)
    assert within(moved["Y"], 0.5 + 0.7 * 4.0)
    assert abs(moved["Y"].std() - 1.0) < 0.02  # the sd of its noise
    rho = 1.5 / np.hypot(1.0, 1.5)
    noise = natural["X"] - natural["W"], natural["Y"] - 0.5 - 0.7 * natural["X"]
    assert abs(np.corrcoef(*map(np.ravel, noise))[0, 1] - rho) < 0.02
    for name in ("e[X]", "e[Y]", "X"):  # X is what it would have been
        np.testing.assert_array_equal(moved[name], natural[name])


def test_observed_noise_that_others_share_cannot_be_set():
    model = program_of(linear_case(confounded=True))
    changed = model.do({model.arcs.members[0]: 0.5})
    draws = {name: np.ones((2, *shape)) for name, shape in model.parameters.items()}
    with pytest.raises(cb.errors.ModelError, match="which `do` would replace; draw new rows"):
        Predictive(changed, draws)(jax.random.key(0))


def test_rows_drawn_in_place_of_the_data_keep_what_was_set(chain):
    data = chain.observe(30, 0).join(chain.experiment(chain.problem.sobol(16), 1))
    model = numpyro.handlers.uncondition(cb.numpyro_model(chain.problem, data))
    found = Predictive(model, repeated(CHAIN_TRUTH, 500))(jax.random.key(0))
    for position, name in enumerate(data.nodes):
        was_set = data.intervened[:, position]
        assert (np.asarray(found[name])[:, was_set] == data.values[was_set, position]).all()
        assert np.asarray(found[name])[:, ~was_set].std(axis=0).min() > 0.5
    z, y = np.asarray(found["Z"]), np.asarray(found["Y"])
    rows = data.intervened[:, 1]
    assert within((y + 1.3 * z)[:, rows], 0.0) and rows.any()


@pytest.mark.parametrize(
    ("intervention", "match"),
    [
        ({"x": 1.0}, "unknown variable 'x'"),
        ({"Y": 1.0}, "the target 'Y' cannot be set"),
        ({"X": 100.0}, r"do\(X = 100\) lies outside \[-5, 5\]"),
        ({"X": np.nan}, r"do\(X = nan\) lies outside"),
        ({"X": "a"}, "must be a real number"),
        ("X", "an intervention is {variable: value}"),
    ],
)
def test_an_intervention_that_cannot_be_meant_is_refused(chain, intervention, match):
    model = cb.numpyro_model(chain.problem, chain.observe(20, 0))
    with pytest.raises(cb.errors.DomainError, match=match):
        model.do(intervention)


def test_an_intervention_that_changes_a_regression_is_refused():
    model = cb.numpyro_model(FRONT_DOOR, front_door(50), cb.GP(functions=4))
    assert "Y|X,Z ~" in repr(model) and "sd[Y|X,Z]" in model.parameters
    with pytest.raises(cb.errors.ModelError, match=r"do\(X\) changes that of Y"):
        model.do({"X": 1.0})
    sites = {name: np.ones((2, *shape)) for name, shape in model.parameters.items()}
    assert np.isfinite(drawn(model.do({"Z": 1.0}), sites, 3)["Y"]).all()


def test_what_has_no_program_is_refused(chain):
    data = chain.observe(20, 0)
    with pytest.raises(cb.errors.MechanismError, match="no mechanisms|ObservedMoments"):
        cb.fit(chain.problem, data, method="wishart").numpyro_model  # noqa: B018
    with pytest.raises(cb.errors.DataError, match="only 0 rows"):
        cb.numpyro_model(chain.problem)
    with pytest.raises(cb.errors.ArgumentError, match="rows must be a whole number"):
        drawn(cb.numpyro_model(chain.problem, data), repeated(CHAIN_TRUTH, 2), 0)
    outcomes = (chain.problem.queries([{"X": 1.0}]), [0.5])
    more = chain.observe(60, 0)
    post = cb.fit(chain.problem, more, method="laplace", outcomes=outcomes)
    with pytest.raises(cb.errors.MechanismError, match="outcomes of the target alone"):
        post.numpyro_model  # noqa: B018


def test_the_default_prior_is_drawn_with_a_guess_of_the_variance(chain):
    data = chain.observe(50, 0)
    model = cb.numpyro_model(chain.problem, data)
    found = Predictive(model, num_samples=1_000, parallel=True)(jax.random.key(0), rows=1)
    x, y = data.column("X"), data.column("Z")
    m = 0.01  # observations whose weight the prior has, but for the variance
    # s2 ~ IG(2, 2 Var Z): its inverse has this mean
    assert within(1 / found["sd[Z]"] ** 2, 1 / y.var())
    slopes = found["b[X->Z]"] / found["sd[Z]"]
    assert within(slopes, 0.0) and within(slopes**2, 1 / (m * x.var()))
    middle = found["a[Z]"] + found["b[X->Z]"] * x.mean()
    assert within((middle - y.mean()) ** 2 / found["sd[Z]"] ** 2, 1 / m)
    strong = cb.numpyro_model(chain.problem, data, prior=cb.priors.ScaledPrior(20.0))
    found = Predictive(strong, num_samples=1_000, parallel=True)(jax.random.key(0), rows=1)
    assert within((found["b[X->Z]"] / found["sd[Z]"]) ** 2, 1 / (20 * x.var()))


def test_program_without_data_draws_from_a_fixed_prior():
    problem, _ = random_problem(3, size=5, confounded=True, identifiable_only=True)
    model = cb.numpyro_model(problem, prior=FIXED)
    found = Predictive(model, num_samples=1_000, parallel=True)(jax.random.key(0), rows=1)
    assert found["V0"].shape == (1_000, 1)
    assert within(found["sd[V0]"] ** 2, 6 / 4)  # mean of IG(3, 3)
    strengths = np.ravel(found[model.arcs.names[0]])
    assert within(strengths, 0.0) and within(strengths**2, 0.7**2)


def test_gaussian_process_program_draws_without_data():
    nodes, graph = ("X", "Y"), cb.CausalGraph.parse("X -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2)})
    prior = cb.priors.GPPrior(
        centres=dict.fromkeys(nodes, 0.0),
        scales=dict.fromkeys(nodes, 1.0),
        ranges=dict.fromkeys(nodes, (-2.0, 2.0)),
    )
    model = cb.numpyro_model(problem, mechanisms=cb.GP(functions=6), prior=prior)
    found = Predictive(model.do({"X": 0.5}), num_samples=20)(jax.random.key(0), rows=3)
    assert found["f[X->Y]"].shape == (20, 6) and np.isfinite(found["Y"]).all()


def test_a_variable_that_was_always_set_is_unknown_unless_it_is_set(chain):
    queries = chain.problem.queries([{"X": value} for value in np.linspace(-2, 2, 30)])
    for mechanisms in ("linear", cb.GP(functions=4)):
        model = cb.numpyro_model(chain.problem, chain.experiment(queries, 0), mechanisms)
        assert "X ~ ?" in repr(model) and "sd[X]" not in model.parameters
        sites = {name: np.ones((2, *shape)) for name, shape in model.parameters.items()}
        assert np.isnan(drawn(model, sites, 3)["Y"]).all()
        assert np.isfinite(drawn(model.do({"X": 1.0}), sites, 3)["Y"]).all()


def test_a_formula_of_a_whole_program_can_be_set():
    def program():
        numpyro.sample("X", dist.Normal(0.0, 1.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        z = numpyro.deterministic("Z", jnp.asarray(2.0))
        numpyro.sample("Y", dist.Normal(slope * z, 0.1))

    graph = cb.CausalGraph.parse("X -> Y; Z -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-9, 9), "Z": (-9, 9)}, sets=[("Z",)])
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.normal(size=20), np.full(20, 2.0), rng.normal(size=20)])
    columns = {"X": 0, "Z": 1, "Y": 2}
    ordered = values[:, [columns[name] for name in graph.nodes]]
    data = cb.Data(graph.nodes, "Y", ordered, np.zeros((20, 3), bool))
    model = cb.numpyro_model(problem, data, program)
    found = drawn(model.do({"Z": 5.0}), {"slope": np.full(400, 3.0)}, 2)
    assert within(found["Y"], 15.0) and not within(found["Y"], 6.0)


def test_graph_of_the_program_is_that_of_the_problem(chain):
    relations = get_model_relations(cb.numpyro_model(chain.problem, chain.observe(20, 0)))
    causes = relations["sample_sample"]
    assert {"X", "a[Z]", "b[X->Z]", "sd[Z]"} <= set(causes["Z"]) and "X" not in causes["Y"]
    assert set(relations["observed"]) == {"X", "Z", "Y"}
    assert set(relations["plate_sample"]["observations"]) == {"X", "Z", "Y"}


@pytest.fixture(scope="module")
def program_under_confounding():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-5, 5), "Z": (-5, 5)})
    prior, unset = cb.priors.FixedPrior(noise_observations=10.0), np.zeros((400, 3), bool)

    def program(values):
        data = cb.Data(graph.nodes, "Y", values, unset[: len(values)])
        return cb.numpyro_model(problem, data, prior=prior)

    return program


def test_density_of_replaced_observations_is_that_of_a_program_with_these(
    program_under_confounding,
):
    one, other = np.random.default_rng(0).normal(size=(2, 20, 3))
    first, second = program_under_confounding(one), program_under_confounding(other)
    sites = {name: np.full(shape, 0.7) for name, shape in first.parameters.items()}
    replaced = sites | dict(zip(first.nodes, other.T, strict=True))
    found, _ = log_density(first, (), {}, replaced)
    expected, _ = log_density(second, (), {}, sites)
    assert float(found) == pytest.approx(float(expected), rel=1e-12)
    assert float(found) != pytest.approx(float(log_density(first, (), {}, sites)[0]), rel=1e-3)


def test_observations_that_are_drawn_again_share_their_noise(program_under_confounding):
    program = program_under_confounding(np.zeros((400, 3)))
    sites = {name: np.zeros((50, *shape)) for name, shape in program.parameters.items()}
    sites |= {f"sd[{name}]": np.ones(50) for name in program.nodes}
    sites["t[X<->Y]"] = np.full(50, 1.5)
    again = Predictive(numpyro.handlers.uncondition(program), sites)(jax.random.key(0))
    found = np.corrcoef(np.ravel(again["X"]), np.ravel(again["Y"]))[0, 1]
    assert abs(found - 1.5 / np.hypot(1.0, 1.5)) < 0.02


def test_graph_of_a_program_with_latent_causes_is_that_of_the_problem(program_under_confounding):
    """`render_model` draws these relations, for which it replaces observed values by tracers."""
    relations = get_model_relations(
        program_under_confounding(np.random.default_rng(0).normal(size=(20, 3)))
    )
    causes, kinds = relations["sample_sample"], relations["sample_dist"]
    assert {"X", "Z", "t[X<->Y]", "a[X]", "b[Z->Y]"} <= set(causes["Y"])
    assert {"X", "a[Z]"} <= set(causes["Z"]) and "t[X<->Y]" not in causes["Z"]
    assert {kinds[name] for name in ("X", "Z", "Y")} == {"Normal"}  # nothing was set
