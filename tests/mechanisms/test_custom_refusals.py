"""User-defined mechanisms: errors, serialization and use in optimization."""

import json

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.custom_cases import CHAIN, DOMAINS, PROBLEM, decay, observe, saturate, simulate, whole
from helpers.runs import optimize

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy
S, N = numpyro.sample, dist.Normal


@pytest.fixture(scope="module")
def data():
    return observe(40, 0)


def slope(prior=None):
    return S("a", N(0.0, 1.0) if prior is None else prior)


def discrete_normal(X):
    return dist.Poisson(jnp.exp(slope()) + 0 * X)


def two_groups(X):
    equal = dist.Categorical(probs=jnp.full((len(X), 2), 0.5))
    return dist.MixtureGeneral(equal, [N(slope() * X, 1.0), N(-X, 1.0)])


REFUSED = {
    "an argument that is no cause": (
        {"Z": lambda X, W: X},
        "mechanism of 'Z' takes W, which are no causes of it in the graph \\(X\\)",
    ),
    "a cause that is lacking": (
        {"Z": lambda: 0.0},
        "mechanism of 'Z' does not take X, which are among its causes",
    ),
    "a misspelt cause": ({"Y": lambda z: z}, "mechanism of 'Y' takes z, which are no causes"),
    "nothing returned": ({"Z": lambda X: None}, "returns NoneType; return its mean, or its dist"),
    "a pair returned": ({"Z": lambda X: (X, 1.0)}, "returns tuple; return its mean"),
    "a wrong shape": ({"Z": lambda X: X[:2]}, "array of shape \\(2,\\) .* for 3 observations"),
    "complex numbers": ({"Z": lambda X: X * 1j}, "returns complex numbers"),
    "a vector for each observation": (
        {"Z": lambda X: N(jnp.stack([X, X], -1), 1.0).to_event(1)},
        "batch shape \\(3,\\) and event shape \\(2,\\) .* one number for each",
    ),
    "the variable itself drawn": ({"Z": lambda X: S("Z", N(X, 1.0))}, "'Z', which is a variable"),
    "an observed site": ({"Z": lambda X: S("q", N(X, 1.0), obs=X)}, "site 'q' .* is observed"),
    "two sites of one name": ({"Z": lambda X: slope() + slope() * X}, "two sites named 'a'"),
    "a discrete parameter": (
        {"Z": lambda X: slope(dist.Bernoulli(0.5)) * X},
        "parameter 'a' .* is discrete; neither laplace nor nuts",
    ),
    "a parameter for each observation": (
        {"Z": lambda X: slope(N(jnp.zeros(X.shape), 1.0)) * X},
        "'a' .* shape \\(3,\\) for 3 observations and \\(5,\\) for 5",
    ),
    "another kind of site": ({"Z": lambda X: numpyro.param("a", 1.0) * X}, "of the kind 'param'"),
    "numpy": ({"Z": lambda X: np.log(X)}, "'Z' failed with Tracer.* compute with jax.numpy"),
    "a prior that depends on the data": (
        {"Z": lambda X: slope(N(X.mean(), 1.0)) * X},
        "a prior in the mechanism of 'Z' depends on the values of 'X'",
    ),
    "an observation that depends on others": (
        {"Z": lambda X: slope() * (X - X.mean())},
        "'Z' makes an observation depend on others, as sums or means",
    ),
    "a discrete cause": ({"Z": discrete_normal}, "'Z' is discrete and upstream of the target"),
    "a target without a mean": (
        {"Y": lambda Z: dist.Cauchy(slope() * Z, 1.0)},
        "target 'Y' has no finite mean",
    ),
    "values that are not differentiable": (
        {"Z": two_groups},
        "distribution of 'Z' has no values that are differentiable in its parameters",
    ),
    "a formula with parameters": (
        {"Z": lambda X: dist.Delta(slope() * X)},
        "'Z' has no noise but depends on parameters, .* return its mean instead",
    ),
    "a formula that contradicts the data": (
        {"Z": lambda X: dist.Delta(X)},
        "'Z' has no noise, but its formula is .* off in observation",
    ),
    "a target without noise": ({"Y": lambda Z: dist.Delta(Z)}, "target 'Y' has no noise"),
    "data outside of the support": (
        {"Z": lambda X: dist.Uniform(0.0, jnp.exp(-20 + 0.1 * slope()) + 0 * X)},
        "log density of Z .* not finite for any parameters",
    ),
    "no parameters at all": (
        {"Z": lambda X: N(X, 1.0), "Y": lambda Z: N(Z, 1.0)},
        "these mechanisms have no parameters that can be learned",
    ),
    "an unknown variable": ({"Q": lambda: 0.0}, "unknown variable 'Q'"),
    "a class": ({"Z": dict}, "function of its causes, got the class dict"),
    "an unknown word beside it": ({"Z": "spline", "Y": decay}, '\'Z\' must be "linear", "gp"'),
    "a program with arguments": (lambda n: None, "a whole program takes no arguments"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_mechanism_is_refused_by_name(data, case):
    mechanisms, words = REFUSED[case]
    with pytest.raises(cb.errors.MechanismError, match=words):
        cb.fit(PROBLEM, data, mechanisms=mechanisms, method="laplace")


def misspelt():
    X = S("X", N(0.0, 1.0))
    Z = S("z", N(X, 1.0))
    S("Y", N(Z, 1.0))


def with_shortcut():
    X, a = S("X", N(0.0, 1.0)), slope()
    Z = S("Z", N(a * X, 1.0))
    S("Y", N(Z + 0.1 * a * X, 1.0))


def reversed_arrow():
    Z = S("Z", N(slope(), 1.0))
    S("X", N(Z, 1.0))
    S("Y", N(Z, 1.0))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (misspelt, "no site for Z; name .* after every variable .* taken for parameters: z"),
        (with_shortcut, "'Y' depends on 'X', which is no cause of it in the graph \\(Z\\); add"),
        (
            reversed_arrow,
            "'X' depends on 'Z', which is no cause of it in the graph \\(none\\)",
        ),
    ],
)
def test_a_program_must_keep_to_the_graph(data, program, words):
    for use in (
        lambda: cb.fit(PROBLEM, data, mechanisms=program, method="laplace"),
        lambda: cb.testing.check_mechanisms(program, PROBLEM, data),
    ):
        with pytest.raises(cb.errors.MechanismError, match=words):
            use()


def test_what_the_problem_or_the_options_forbid_is_refused(data):
    def fit(problem=PROBLEM, **options):
        given = {"mechanisms": {"Z": saturate}, "method": "laplace"} | options
        return cb.fit(problem, data, **given)

    known = cb.Problem(CHAIN, "Y", domains=DOMAINS, known={("X", "Z"): 0.5})
    with pytest.raises(
        cb.errors.MechanismError, match="coefficient of 'X' in 'Z' is known to the problem"
    ):
        fit(known)
    joined = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    latent = cb.Problem(joined, "Y", domains=DOMAINS)
    with pytest.raises(
        cb.errors.MechanismError, match="a latent cause joins 'X' and 'Y', upstream"
    ):
        fit(latent)
    with pytest.raises(
        cb.errors.MechanismError, match="functions contain their priors, .* cb.priors.GPPrior"
    ):
        fit(prior=cb.priors.FixedPrior())
    with pytest.raises(cb.errors.ArgumentError, match="intercepts=False is for linear mechanisms"):
        fit(intercepts=False)
    with pytest.raises(
        cb.errors.ArgumentError, match="parameters='structural' is for linear mechanisms"
    ):
        fit(parameters="structural")
    with pytest.raises(
        cb.errors.MechanismError, match="custom mechanisms have no posterior in closed form"
    ):
        fit(method="conjugate")


def test_names_that_are_no_identifiers_are_passed_in_one_mapping():
    graph = cb.CausalGraph.from_edges([("heart rate", "Y")])
    problem = cb.Problem(graph, "Y", domains={"heart rate": (-2.0, 2.0)})
    x = np.linspace(-2.0, 2.0, 20)
    values = np.column_stack([x, 1 + 2 * x + 0.1 * np.sin(9 * x)])
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))

    def fit(function):
        return cb.fit(problem, data, mechanisms={"Y": function}, method="laplace")

    post = fit(lambda causes: S("a", N(0.0, 9.0)) + S("b", N(0.0, 9.0)) * causes["heart rate"])
    assert post.names == ("a[Y]", "b[Y]", "log_sd[Y]")
    assert post.mean[:2] == pytest.approx([1.0, 2.0], abs=0.05)
    with pytest.raises(
        cb.errors.MechanismError, match="cannot take heart rate as keywords, .* causes\\["
    ):
        fit(lambda rate: rate)


def test_functions_are_written_by_name_and_given_back():
    mechanisms = {"Z": saturate, "Y": cb.GP(functions=8)}
    settings = cb.Settings(rounds=3, mechanisms=mechanisms)
    text = settings.to_json()
    assert json.loads(text)["mechanisms"]["variables"]["Z"] == {"function": "saturate"}
    with pytest.raises(cb.errors.SettingsError, match="'custom', .* functions="):
        cb.Settings.from_json(text)
    with pytest.raises(cb.errors.SettingsError, match="made with other mechanisms"):
        cb.Settings.from_json(text, functions={"custom": {"Z": decay, "Y": "gp"}})
    again = cb.Settings.from_json(text, functions={"custom": mechanisms})
    assert again.mechanisms is mechanisms
    program = cb.Settings(rounds=3, mechanisms=whole)
    assert json.loads(program.to_json())["mechanisms"] == {"name": "custom", "program": "whole"}


@pytest.mark.filterwarnings("ignore:before the first experiment")
def test_optimization_and_studies_use_the_user_defined_curve(data):
    """Y = 1 + 2 exp(-Z) is least where Z is largest; X reaches about 2.5 only."""
    mechanisms = {"Z": saturate, "Y": decay}
    run = optimize(
        PROBLEM,
        experiment=lambda queries: simulate(queries, 5),
        data=data,
        mechanisms=mechanisms,
        rounds=3,
        key=0,
        progress=False,
    )
    assert run.best.intervention == {"Z": pytest.approx(4.0)}
    assert run.surrogate.post.n_observations == 43
    study = cb.Study(PROBLEM, data, cb.Settings(rounds=3, mechanisms=mechanisms), key=0)
    study = study.tell(study.ask(), 1.05)
    again = cb.Study.from_json(study.to_json(), data, functions={"custom": mechanisms})
    assert again.ask().intervention == study.ask().intervention


def test_trees_hold_draws_and_names_of_functions(data):
    post = cb.fit(PROBLEM, data, mechanisms={"Z": saturate, "Y": decay}, method="laplace")
    tree = post.to_datatree(draws=40)
    assert tuple(tree["posterior"]["theta"].coords["coordinate"].values) == post.names
    assert "decay" in tree.attrs["functions"]
    draws = tree["posterior"]["theta"].values.reshape(-1, len(post.names))
    with pytest.raises(cb.errors.MechanismError, match="custom mechanisms offer no response map"):
        cb.Posterior.from_draws(PROBLEM, draws, mechanisms={"Z": saturate, "Y": decay})
    given = cb.Posterior.from_draws(PROBLEM, draws, mechanisms=post.distribution.response)
    queries = PROBLEM.queries([{"X": 1.0}])
    one, other = (cb.response(each)(draws[0], queries) for each in (given, post))
    assert one == pytest.approx(other)
