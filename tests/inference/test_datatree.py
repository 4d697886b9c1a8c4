"""Trees of posteriors; what `Posterior.save` writes, `Posterior.load` restores or refuses.

Internals: writes of files are interrupted and raced.
"""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from helpers.saved_posteriors import edit, refused
from scipy.stats import multivariate_normal

import causal_bo_ppl as cb
from causal_bo_ppl.inference import datatree

pytestmark = pytest.mark.heavy
SHORT = cb.NUTS(chains=2, draws=300, progress=False)
QUERIES = [{"X": 1.0}, {"Z": -2.0}]


@pytest.fixture(scope="module")
def data(chain):
    experiments = chain.experiment(chain.problem.queries([{"Z": 1.0}, {"Z": -2.0}]), 1)
    return chain.observe(30, 0).join(experiments)


@pytest.fixture(scope="module")
def trees(chain, data):
    observed = data.select(data.is_observational)
    found = [
        cb.fit(chain.problem, data, method=method, prior=cb.priors.FixedPrior(slope_sd=2), key=0)
        for method in ("conjugate", "laplace", SHORT)
    ] + [cb.fit(chain.problem, observed, method="wishart")]
    return {post.method: (post, post.to_datatree(draws=200, observations=True)) for post in found}


@pytest.mark.parametrize("method", ["conjugate", "laplace", "nuts", "wishart"])
def test_tree_has_named_groups_and_coordinates(trees, method):
    post, tree = trees[method]
    groups = {"posterior", "log_prior", "log_likelihood", "posterior_predictive", "observed_data"}
    groups |= {"constant_data", "prior", "prior_predictive"}
    groups |= {"sample_stats"} if method == "nuts" else set()
    assert set(tree.children) == groups
    theta = tree["posterior"]["theta"]
    assert (
        theta.dims == ("chain", "draw", "coordinate")
        and tuple(theta["coordinate"].values) == post.names
    )
    assert (
        tree.attrs["problem"] == post.problem.fingerprint and tree.attrs["verdict"] == post.verdict
    )
    if method == "nuts":
        assert theta.sizes["chain"] == 2 and {"diverging", "energy", "tree_depth"} <= set(
            tree["sample_stats"].data_vars
        )
    else:
        assert np.abs(
            theta.mean(("chain", "draw")).values - post.mean
        ).max() < 5 * post.sd.max() / np.sqrt(200)


def test_log_likelihood_of_each_observation_is_that_of_the_model(trees):
    """Observations in which Z was set count for Y alone."""
    post, tree = trees["nuts"]
    likelihood, theta = tree["log_likelihood"], tree["posterior"]["theta"]
    assert (
        likelihood["Z"].sizes["observation[Z]"] == 30
        and likelihood["Y"].sizes["observation[Y]"] == 32
        and "X" not in likelihood
    )
    sd = tree["posterior"]["sd"].sel(node="Y").values[1, 3]
    a, b = (float(theta.sel(coordinate=name)[1, 3]) for name in ("a[Y]", "b[Z->Y]"))
    z, y = post.data.column("Z"), post.data.column("Y")
    expected = multivariate_normal(0, sd**2).logpdf(y - a - b * z)
    assert np.allclose(likelihood["Y"].values[1, 3], expected)
    assert (tree["observed_data"]["Z"].values == z[:30]).all()


def test_predictions_have_the_spread_of_new_observations(trees):
    post, tree = trees["conjugate"]
    drawn = tree["posterior_predictive"]["Z"].stack(sample=("chain", "draw")).values
    theta, sd = tree["posterior"]["theta"], tree["posterior"]["sd"]
    mean = (
        theta.sel(coordinate="a[Z]").values[..., None]
        + theta.sel(coordinate="b[X->Z]").values[..., None] * post.data.column("X")[:30]
    )
    assert drawn.mean() == pytest.approx(mean.mean(), abs=0.05)
    assert drawn.std(axis=1).mean() == pytest.approx(float(sd.sel(node="Z").mean()), rel=0.1)


def test_correlated_likelihood_is_the_joint_density_of_the_district():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2), "Z": (-2, 2)})
    u, *e = np.random.default_rng(0).normal(size=(4, 120))
    x = u + e[0]
    z = 0.8 * x + e[1]
    values = np.column_stack([x, z, 2 * u - z + e[2]])
    data = cb.Data(problem.graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post = cb.fit(
        problem,
        data,
        method="laplace",
        prior=cb.priors.FixedPrior(slope_sd=2),
        parameters="total_effect",
    )
    drawn = post.distribution.drawn(4, jax.random.key(0))
    values, free = post.learned_observations
    found = post.distribution.model.log_densities(drawn.models, values, free).sum(axis=2)
    assert (np.abs(drawn.models.noises[:, 0, 2]) > 0.1).all()
    for matrix, noise, each in zip(*drawn.models, found, strict=True):
        inverse = np.linalg.inv(np.eye(len(noise)) - matrix[:-1].T)
        joint = multivariate_normal(inverse @ matrix[-1], inverse @ noise @ inverse.T)
        assert free.all() and np.allclose(each, joint.logpdf(values), atol=1e-8)


def test_large_groups_are_thinned_not_refused(chain, data, monkeypatch):
    post = cb.fit(chain.problem, data, method=SHORT, key=0)
    assert post.to_datatree(observations=True)["posterior"].sizes["draw"] == 300
    monkeypatch.setattr(
        datatree, "MOST_NUMBERS", 96 * 60
    )  # 32 observations of 3 variables, 60 draws
    assert post.to_datatree()["posterior"].sizes["draw"] == 300
    tree = post.to_datatree(observations=True)
    assert (
        tree["posterior"].sizes["draw"]
        == tree["log_likelihood"].sizes["draw"]
        == tree["sample_stats"].sizes["draw"]
        == 30
    )


@pytest.mark.parametrize(
    "names", [("prior", "energy", "theta"), ("theta", "sd", "prior"), ("coordinate", "sd", "lp")]
)
def test_variables_may_be_called_as_parameters_are(names):
    graph = cb.CausalGraph.from_edges([(names[0], names[1]), (names[1], names[2])])
    problem = cb.Problem(graph, names[2], domains={names[0]: (-1, 1)})
    values = np.random.default_rng(0).normal(size=(4 + 2, 3))
    data = cb.Data(graph.nodes, names[2], values, np.zeros(values.shape, bool))
    for method in ("conjugate", SHORT):
        post = cb.fit(problem, data, method=method, prior=cb.priors.FixedPrior(slope_sd=2), key=0)
        tree = post.to_datatree(draws=20, observations=True)
        assert tree["posterior"]["theta"].dims == ("chain", "draw", "coordinate")
        assert set(tree["observed_data"].data_vars) == set(names[1:])


@pytest.mark.parametrize("draws", [0, -3, 2.5, "a"])
def test_an_invalid_number_of_draws_is_refused(trees, draws):
    with pytest.raises(cb.errors.ArgumentError, match="draws must be a whole number, at least 4"):
        trees["conjugate"][0].to_datatree(draws=draws)


# Saving and loading.


def saturate(X):
    most = numpyro.sample("most", dist.Normal(1.0, 1.0))
    return most * jnp.tanh(X)


def oscillate(X):
    most = numpyro.sample("most", dist.Normal(1.0, 1.0))
    return most * jnp.sin(X)


@pytest.fixture(scope="module")
def posts(chain):
    """A posterior by its name, fitted when it is first used."""
    problem, data = chain.problem, chain.observe(30, 0)
    more = chain.experiment(problem.queries([{"Z": 1.0}, {"Z": -2.0}]), 1)
    outcomes = (problem.queries([{"X": 1.0}] * 3), np.zeros(3))
    draws = np.random.default_rng(0).normal(size=(2, 300, 4))
    made = {
        "conjugate": lambda: cb.fit(problem, data, prior=cb.priors.FixedPrior(slope_sd=2)).update(
            more
        ),
        "total_effect": lambda: cb.fit(problem, data, intercepts=False, parameters="total_effect"),
        "estimand": lambda: cb.fit(problem, data, parameters="estimand"),
        "minimal": lambda: cb.fit(problem, data, parameters="minimal"),
        "laplace": lambda: cb.fit(problem, data.join(more), method="laplace", outcomes=outcomes),
        "wishart": lambda: cb.fit(problem, data, method="wishart").update(chain.observe(9, 3)),
        "nuts": lambda: cb.fit(problem, data, method=SHORT, key=5).update(more).accept("short"),
        "gp": lambda: cb.fit(problem, data, mechanisms={"Y": cb.GP(functions=8)}),
        "auto": lambda: cb.fit(problem, data, mechanisms="auto"),
        "functions": lambda: cb.fit(problem, data, mechanisms={"Z": saturate}, method="laplace"),
        "given": lambda: cb.Posterior.from_draws(problem, draws).accept("a trial"),
    }
    return lru_cache(lambda name: made[name]())


NAMES = ["conjugate", "total_effect", "estimand", "minimal", "laplace", "wishart", "nuts", "given"]
NAMES += [pytest.param(name, marks=pytest.mark.slow) for name in ("gp", "auto", "functions")]


@pytest.mark.filterwarnings("ignore:intercepts=False takes the means")
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_posterior_equals_the_saved_one(posts, chain, tmp_path, name):
    post, problem = posts(name), chain.problem
    user = {"mechanisms": {"Z": saturate}} if name == "functions" else {}
    count = 200 if name in ("conjugate", "gp") else None
    path = post.save(tmp_path / "post.nc", draws=count, observations=name == "laplace")
    again = cb.Posterior.load(path, problem, **user)
    path.unlink()  # nothing is read later
    assert repr(again) == repr(post) and again.fingerprint == post.fingerprint
    assert again.accepted == post.accepted and again.method == post.method
    for field in ("mean", "covariance"):
        assert np.array_equal(getattr(again, field), getattr(post, field))
    assert np.array_equal(again.draws(50, 0), post.draws(50, 0))
    closed = ("conjugate", "total_effect", "estimand", "minimal")
    key = None if name in (*closed, "nuts", "given") else 3
    tables = [cb.effects(each, QUERIES, key=key) for each in (post, again)]
    assert tables[0].equals(tables[1])
    queries = problem.queries(QUERIES)
    if name != "given":
        assert np.array_equal(again.outcome_variances(queries), post.outcome_variances(queries))
        assert np.array_equal(again.data.values, post.data.values)
        assert [len(part) for part in again.parts] == [len(part) for part in post.parts]
    assert (again.chosen is None) == (post.chosen is None) == (name != "auto")
    predicted = [cb.surrogates.couple(each).predict(queries) for each in (post, again)]
    assert np.array_equal(predicted[0].mean, predicted[1].mean)
    assert np.array_equal(predicted[0].sd, predicted[1].sd)


@pytest.mark.parametrize("name", ["conjugate", "nuts", "laplace"])
def test_a_loaded_posterior_learns_from_more_observations_as_the_saved_one(posts, chain, name):
    post = posts(name)
    tree = post.to_datatree(draws=200 if name == "conjugate" else None)
    again = cb.Posterior.load(tree, chain.problem)
    more = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"Z": 3.0}]), 7)
    assert np.array_equal(again.update(more).mean, post.update(more).mean)
    assert again.update(more).fingerprint == post.update(more).fingerprint
    assert again.to_datatree(draws=20).identical(post.to_datatree(draws=20))


def test_chains_of_which_some_draws_were_saved_are_sampled_again(chain, tmp_path):
    post = cb.fit(chain.problem, chain.observe(30, 0), method=SHORT, key=5)
    again = cb.Posterior.load(post.save(tmp_path / "some.nc", draws=40), chain.problem)
    assert np.array_equal(again.distribution.chains, post.distribution.chains)


def test_a_posterior_without_observations_is_restored(chain):
    data = chain.observe(30, 0).select(np.zeros(30, bool))
    post = cb.fit(chain.problem, data, prior=cb.priors.FixedPrior(slope_sd=2))
    tree = post.to_datatree(draws=200)
    assert "constant_data" not in tree.children
    assert np.array_equal(cb.Posterior.load(tree, chain.problem).mean, post.mean)


def test_a_posterior_that_needs_linearity_is_restored(tmp_path):
    graph = cb.CausalGraph.parse("Z -> X -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2)}, sets=[("X",)])
    values = np.random.default_rng(0).normal(size=(200, 3)) @ np.triu(np.ones((3, 3)))
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post = cb.fit(problem, data, method="laplace", linear=True)
    again = cb.Posterior.load(post.save(tmp_path / "post.nc", draws=16), problem)
    assert np.array_equal(again.mean, post.mean)


def test_any_names_of_variables_survive(tmp_path):
    graph = cb.CausalGraph.from_edges([("a b", "β-(x)"), ("β-(x)", "y, {z}")])
    problem = cb.Problem(graph, "y, {z}", domains={"a b": (-1, 1)})
    values = np.random.default_rng(0).normal(size=(20, 3))
    post = cb.fit(problem, cb.Data(graph.nodes, "y, {z}", values, np.zeros((20, 3), bool)))
    again = cb.Posterior.load(post.save(tmp_path / "odd.nc", draws=20, observations=True), problem)
    assert np.array_equal(again.mean, post.mean) and again.names == post.names


@pytest.mark.slow
def test_functions_must_be_given_and_only_these(posts, chain):
    tree = posts("functions").to_datatree(draws=40)
    refused(tree, chain.problem, "was fitted with user-defined mechanisms, 'custom'")
    other = {"Z": oscillate}
    refused(tree, chain.problem, "gives another posterior .* functions", mechanisms=other)


def test_a_user_defined_method_must_be_given(posts, chain):
    class Mine:
        name = "mine"

        def infer(self, task, mechanisms, key):
            return cb.Conjugate().infer(task, mechanisms, key)

    post = cb.fit(chain.problem, chain.observe(30, 0), method=Mine())
    tree = post.to_datatree(draws=40)
    refused(tree, chain.problem, r"user-defined method, 'mine', .*load\(..., method=...\)")
    again = cb.Posterior.load(tree, chain.problem, method=Mine())
    assert np.array_equal(again.mean, post.mean) and again.method == "mine"
    tree = posts("conjugate").to_datatree(draws=200)
    refused(tree, chain.problem, "holds its mechanisms, 'linear'; leave out", mechanisms="gp")


# What is refused: files.


@pytest.fixture(scope="module")
def small(chain):
    return cb.fit(chain.problem, chain.observe(8, 0), prior=cb.priors.FixedPrior())


@pytest.fixture
def file(small, tmp_path):
    return small.save(tmp_path / "post.nc", draws=16, observations=True)


def test_a_changed_byte_is_refused_wherever_it_is(file, chain, small):
    whole, draws = file.read_bytes(), np.random.default_rng(0)
    positions = [
        *draws.integers(len(whole), size=600).tolist(),
        *range(len(whole) - 90, len(whole)),
    ]
    for position in positions:
        changed = bytearray(whole)
        changed[position] ^= int(draws.integers(1, 256))
        file.write_bytes(changed)
        refused(file, chain.problem, "does not match the checksum")
    file.write_bytes(whole)
    assert np.array_equal(cb.Posterior.load(file, chain.problem).mean, small.mean)


def test_a_file_that_was_cut_or_made_longer_is_refused(file, chain):
    whole, draws = file.read_bytes(), np.random.default_rng(1)
    for length in draws.integers(8, len(whole), size=100).tolist():
        file.write_bytes(whole[:length])
        refused(file, chain.problem, "does not match the checksum at its end")
    for more in (b"\0", b"\n", whole):
        file.write_bytes(whole + more)
        refused(file, chain.problem, "does not match the checksum at its end")


def test_a_file_that_another_program_edited_is_refused(file, chain):
    with h5py.File(file, "a") as opened:
        opened.attrs["verdict"] = "passed"
    refused(file, chain.problem, "edited, or another program wrote it; .* post.save")


def test_damage_under_a_matching_checksum_raises_no_error_of_another_library(file, chain):
    """A checksum is no signature."""
    whole, draws, outcomes = file.read_bytes(), np.random.default_rng(2), []
    body = whole[: whole.index(datatree.CHECKSUM_LABEL)]
    for position in draws.integers(8, len(body), size=40).tolist():
        changed = bytearray(body)
        changed[position] ^= int(draws.integers(1, 256))
        file.write_bytes(bytes(changed) + datatree.checksum_line(changed))
        try:
            outcomes.append(cb.Posterior.load(file, chain.problem) is None)
        except cb.errors.StoreError:
            outcomes.append(True)
    assert len(outcomes) == 40 and 5 < sum(outcomes) < 40


def test_a_file_of_another_problem_is_refused(file, chain):
    other = cb.Problem(chain.problem.graph, "Y", domains={"X": (-1, 1)})
    refused(file, other, "is of another problem")
    refused(file, chain, "needs a Problem to be loaded for, got CausalSystem")


def test_what_is_no_netcdf_file_is_refused(chain, tmp_path):
    for name, data in {"garbage": b"no netCDF at all", "empty": b""}.items():
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, chain.problem, "does not match the checksum")
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", ""):
        refused(tmp_path / name, chain.problem, "is no file")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "6", "was written by version 0.* in format 6; .* upgrade the older"),
        ("format", "4", "in format 4; .* which reads format 5: .* fit and save it again"),
        ("format", None, "in format None"),
        ("causal_bo_ppl", "99.1.0", "was written by version 99.1.0 of .* upgrade the older"),
        ("causal_bo_ppl", "x", "was written by version x of .* upgrade the older"),
        ("problem", np.arange(3), "is of another problem"),
        ("posterior", "0", "gives another posterior than the one that was saved"),
        ("verdict", "passed", "gives another posterior than .* verdict"),
        ("verdict", None, "gives another posterior than .* verdict"),
        ("recipe", None, "cannot be restored, KeyError"),
        ("recipe", "{", "cannot be restored, JSONDecodeError"),
    ],
)
def test_an_attribute_that_was_changed_is_refused(file, chain, name, value, message):
    def change(opened):
        del opened.attrs[name]
        if value is not None:
            opened.attrs[name] = value

    edit(file, change)
    refused(file, chain.problem, message)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("external link", "holds a link at 'leak'"),
        ("soft link", "holds a link at 'leak'"),
        ("virtual", "keeps '/posterior/leak' in another file"),
        ("external data", "keeps '/posterior/leak' in another file"),
        ("compound", "has 'leak' in 'posterior' over"),
        ("group", "has the group 'strange', which no saved posterior has"),
        ("nested", "holds a Group at 'leak'"),
        ("twice", "holds a Group at 'leak'"),
        ("empty", "post.nc' "),
        ("without names", "post.nc' "),
        ("root", "holds a Dataset at 'leak'"),
        ("no draws", "holds no draws of theta"),
        ("large", "declares 8,0.* bytes, more than"),
    ],
)
def test_what_no_saved_posterior_holds_is_refused_before_it_is_loaded(
    file, chain, tmp_path, kind, message
):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as other:
        other["x"] = np.arange(3.0)

    def change(opened):
        posterior = opened["posterior"]
        if kind == "external link":
            posterior["leak"] = h5py.ExternalLink(str(secret), "/x")
        elif kind == "soft link":
            posterior["leak"] = h5py.SoftLink("/posterior/theta")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape=(3,), dtype=float)
            layout[:] = h5py.VirtualSource(str(secret), "x", shape=(3,))
            posterior.create_virtual_dataset("leak", layout)
        elif kind == "external data":
            outside = [(str(tmp_path / "raw"), 0, 24)]
            posterior.create_dataset("leak", (3,), float, external=outside)
        elif kind == "compound":
            posterior["leak"] = np.zeros(2, dtype=[("a", float), ("b", int)])
        elif kind == "group":
            opened.create_group("strange")
        elif kind == "nested":
            posterior.create_group("leak")
        elif kind == "twice":
            opened["prior/leak"] = posterior
        elif kind == "empty":
            posterior["leak"] = h5py.Empty("f")
        elif kind == "without names":
            del posterior["coordinate"]
        elif kind == "root":
            opened["leak"] = np.arange(3.0)
        elif kind == "no draws":
            del opened["posterior"]
        else:
            posterior.create_dataset("leak", (10**9,), float, chunks=(10**6,))

    edit(file, change)
    assert file.stat().st_size < 10**6
    refused(file, chain.problem, message)


def test_the_size_of_a_file_and_of_its_texts_counts(file, chain):
    refused(file, chain.problem, "declares .* bytes, more than .*1,000$", largest=1_000)

    def change(opened):
        texts = ["x" * 10_000] * 200
        opened["posterior"].create_dataset("long", data=texts, dtype=h5py.string_dtype())

    edit(file, change)
    refused(file, chain.problem, "declares .* bytes, more than .*1,000,000", largest=1_000_000)


def test_an_attribute_that_scales_numbers_is_not_applied(file, chain, small):
    edit(file, lambda opened: opened["constant_data/values"].attrs.__setitem__("scale_factor", 2.0))
    assert np.array_equal(cb.Posterior.load(file, chain.problem).mean, small.mean)


# What is refused: trees; those of files go through the same checks.


def replaced(values, index, number):
    values = values.copy()
    values[index] = number
    return values


@pytest.fixture
def changed(small):
    """Return a copy of the tree with another value at an index of a variable."""

    def make(group, variable, index, number):
        tree = small.to_datatree(draws=16, observations=True).copy(deep=True)
        found = tree[group][variable]
        found.values = replaced(found.values, index, number)
        return tree

    return make


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_draws_of_theta_that_are_not_finite_are_refused(changed, chain, number):
    tree = changed("posterior", "theta", (1, 2, 1), number)
    refused(tree, chain.problem, "has draws of theta that are not finite; fit and")


def test_only_wishart_may_draw_nan(posts, chain, tmp_path):
    tree = posts("wishart").to_datatree(draws=16)
    theta = tree["posterior"]["theta"]
    theta.values = replaced(theta.values, (0, 0, 0), np.nan)
    cb.Posterior.load(tree, chain.problem)
    theta.values = replaced(theta.values, (0, 0, 0), np.inf)
    refused(tree, chain.problem, "that are not finite")


@pytest.mark.parametrize("group", ["posterior", "prior"])
@pytest.mark.parametrize("number", [-1.0, 0.0, np.nan])
def test_standard_deviations_that_are_not_positive_are_refused(changed, chain, group, number):
    tree = changed(group, "sd", (0, 0, 1), number)
    assert tree[group]["node"].values.tolist() == ["Z", "Y"]  # X is not learned
    refused(tree, chain.problem, f"has sds in '{group}' that are not positive")


@pytest.mark.parametrize("group", ["posterior", "prior"])
@pytest.mark.parametrize("dimension", ["coordinate", "node", "edge"])
def test_other_names_or_another_order_are_refused(small, chain, group, dimension):
    tree = small.to_datatree(draws=16)
    given = tree[group].to_dataset()
    for other in (
        given.assign_coords({dimension: given[dimension].values[::-1]}),
        given.isel({dimension: slice(None, None, -1)}),
        given.assign_coords({dimension: ["b[Q->Y]", *given[dimension].values[1:]]}),
        given.isel({dimension: slice(1, None)}),
        given.drop_vars(dimension),
    ):
        spoiled = tree.copy()
        spoiled[group] = other
        refused(spoiled, chain.problem, f"has the {dimension} names .* in '{group}'; this")


@pytest.mark.parametrize(
    ("group", "change", "message"),
    [
        ("posterior", lambda group: group.astype("float32"), "'theta' in 'posterior' over .*32"),
        ("posterior", lambda group: group.transpose(), "'theta' in 'posterior' over"),
        ("posterior", lambda group: group.drop_vars("theta"), "holds no draws of theta"),
        ("posterior", lambda group: group.rename(sd="more"), "'more' in 'posterior' over"),
        ("observed_data", lambda group: group.rename(Y="Q"), "'Q' in 'observed_data' over"),
        ("observed_data", lambda group: group.rename(Y="Z", Z="Y"), "in 'observed_data' over"),
        ("constant_data", lambda group: group.astype(float), "'was_set' .* of type float64"),
        (
            "constant_data",
            lambda group: group.assign_coords(node=["Z", "X", "Y"]),
            "has the node names Z, X, Y in 'constant_data'; this posterior has X, Z, Y",
        ),
        ("constant_data", lambda group: group.drop_vars("was_set"), "cannot be restored"),
        (
            "constant_data",
            lambda group: group.isel(observation=slice(3)),
            "gives another posterior",
        ),
        (
            "constant_data",
            lambda group: group.where(group["observation"] > 3),
            "of type|NaN|not finite",
        ),
        ("posterior/deep", lambda group: group, "has the group 'posterior/deep'"),
        ("strange", lambda group: group, "has the group 'strange'"),
    ],
)
def test_a_tree_that_does_not_follow_the_schema_is_refused(small, chain, group, change, message):
    tree = small.to_datatree(draws=16, observations=True)
    given = tree[group].to_dataset() if group in tree.children else xr.Dataset()
    tree[group] = change(given)
    refused(tree, chain.problem, message)


def test_a_tree_of_another_posterior_is_refused(posts, chain):
    def use(name, group, variable, message):
        tree = posts(name).to_datatree(draws=200 if name == "conjugate" else None).copy(deep=True)
        found = tree[group][variable]
        found.values = replaced(found.values, (0, 0), found.values[0, 0] + 1.0)
        refused(tree, chain.problem, message)

    use("conjugate", "constant_data", "values", "gives another posterior than the one")
    use("nuts", "unconstrained_posterior", "psi", "not those of its chains")
    use("nuts", "posterior", "theta", "not those of its chains")
    use("given", "posterior", "theta", "gives another posterior than the one")
    for bad in (posts("conjugate"), None, 3, "", b"post.nc", "a\0b"):
        with pytest.raises(cb.errors.StoreError, match="a file needs a path, got"):
            cb.Posterior.load(bad, chain.problem)


# Writing.

ROOT = Path(__file__).parents[2]
WRITER = """
import os, resource, signal, sys
from pathlib import Path
import causal_bo_ppl as cb
from causal_bo_ppl.inference.datatree import replace_file
path, step = Path(sys.argv[1]), sys.argv[2]
if step == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
else:
    setattr(os, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
try:
    replace_file(path, b"n" * 400_000, b"ew")
except cb.errors.StoreError as error:
    print(error)
"""


def names(folder):
    return sorted(os.listdir(folder))


def write_elsewhere(path, step):
    """Write 400,002 bytes in another process that is stopped at a step."""
    command = [sys.executable, "-c", WRITER, str(path), step]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("open", errno.EACCES),
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("fsync", errno.EIO),
        ("replace", errno.EPERM),
    ],
)
def test_a_failed_write_leaves_the_old_file(file, small, monkeypatch, step, code):
    before, real, left = file.read_bytes(), getattr(os, step), [2]

    def fail(*given, **more):
        left[0] -= step == "write"
        if left[0] > 0 and step == "write":
            return real(given[0], given[1][:10_000])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(cb.errors.StoreError) as caught:
        small.save(file, draws=16)
    monkeypatch.undo()
    for text in (str(file), os.strerror(code), "choose a path that can be", "Nothing was changed"):
        assert text in str(caught.value)
    assert file.read_bytes() == before and names(file.parent) == ["post.nc"]


@pytest.mark.slow
def test_a_full_disk_is_a_store_error_and_the_process_lives(tmp_path):
    """A real one; writing through HDF5 here ended the process by a signal."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        code = (
            "import sys, causal_bo_ppl as cb\n"
            "system = cb.models.load('chain')\n"
            "post = cb.fit(system.problem, system.observe(10, 0))\n"
            "path = post.save(sys.argv[1], draws=16)\n"
            "before = path.read_bytes()\n"
            "try:\n    post.save(path, draws=4_000, observations=True)\n"
            "except cb.errors.StoreError as error:\n    print(error)\n"
            "assert path.read_bytes() == before\n"
            "cb.Posterior.load(path, system.problem)\n"
        )
        command = [sys.executable, "-c", code, str(disk / "post.nc")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "No space left on device; choose" in done.stdout
        assert names(disk) == ["post.nc"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)  # noqa: S607


def test_a_limit_on_the_size_of_files_is_a_store_error(tmp_path):
    path = tmp_path / "post.nc"
    path.write_bytes(b"old")
    found = write_elsewhere(path, "limit").stdout
    assert "cannot write 400,002 bytes" in found and "File too large; choose" in found
    assert path.read_bytes() == b"old" and names(tmp_path) == ["post.nc"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_killed_writer_leaves_the_old_file_and_another_can_write(file, small, chain, step):
    before = file.read_bytes()
    assert write_elsewhere(file, step).returncode == -signal.SIGKILL
    assert file.read_bytes() == before
    small.save(file, draws=16)
    assert np.array_equal(cb.Posterior.load(file, chain.problem).mean, small.mean)


def test_two_threads_write_the_same_file_and_the_last_one_wins(tmp_path, monkeypatch):
    path, first, go, real = tmp_path / "x", threading.Event(), threading.Event(), os.fsync

    def slow(descriptor):
        if threading.current_thread().name == "slow" and not first.is_set():
            first.set()
            assert go.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    thread = threading.Thread(target=datatree.replace_file, args=(path, b"slow"), name="slow")
    thread.start()
    assert first.wait(30)
    datatree.replace_file(path, b"fast")
    assert path.read_bytes() == b"fast" and len(names(tmp_path)) == 2
    go.set()
    thread.join()
    assert path.read_bytes() == b"slow" and names(tmp_path) == ["x"]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_an_interrupt_leaves_nothing_behind(file, small, monkeypatch, step):
    before = file.read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt, match="^$"):
        small.save(file, draws=16)
    monkeypatch.undo()
    assert file.read_bytes() == before and names(file.parent) == ["post.nc"]


def test_what_is_no_regular_file_is_refused_and_stays(small, tmp_path):
    kinds = ["folder", "loop", "pipe", "port"]
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "port"))  # the length of such a path is limited
    if os.geteuid() == 0:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        kinds.append("null")
    before = {name: os.lstat(tmp_path / name) for name in kinds}
    for name in kinds:
        with pytest.raises(
            cb.errors.StoreError, match=f"{name}': it exists and is no regular file"
        ):
            small.save(tmp_path / name, draws=16)
        after = os.lstat(tmp_path / name)
        for field in ("st_ino", "st_mode", "st_rdev"):
            assert getattr(after, field) == getattr(before[name], field)
    if os.geteuid() != 0:  # root could replace it, if the code were wrong
        with pytest.raises(
            cb.errors.StoreError, match="to '/dev/null': it exists and is no regular"
        ):
            small.save("/dev/null", draws=16)
    assert names(tmp_path) == sorted(kinds)


def test_a_link_is_followed_also_to_a_file_that_does_not_exist_yet(small, chain, tmp_path):
    real, link = tmp_path / "real.nc", tmp_path / "link.nc"
    link.symlink_to(real)
    for _ in range(2):
        assert small.save(link, draws=16) == real and link.is_symlink()
        assert np.array_equal(cb.Posterior.load(link, chain.problem).mean, small.mean)
    (tmp_path / "lost.nc").symlink_to(tmp_path / "none" / "real.nc")
    with pytest.raises(cb.errors.StoreError, match="No such file or directory; choose a path"):
        small.save(tmp_path / "lost.nc", draws=16)
    assert names(tmp_path) == ["link.nc", "lost.nc", "real.nc"]


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(small, tmp_path):
    path = small.save(tmp_path / "post.nc", draws=16)
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.chmod(0o640)
    small.save(path, draws=16)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("bad", ["", None, 3, b"post.nc", "a\0b"])
def test_what_is_no_path_is_refused(small, bad):
    with pytest.raises(cb.errors.StoreError, match="a file needs a path, got"):
        small.save(bad, draws=16)


def test_names_may_be_as_long_as_names_can_be(small, tmp_path):
    small.save(tmp_path / ("β" * 126 + ".nc"), draws=16)
    with pytest.raises(cb.errors.StoreError, match="File name too long; choose a path"):
        small.save(tmp_path / ("β" * 127 + ".nc"), draws=16)
    assert len(names(tmp_path)) == 1
