"""A posterior that comes back from a file goes on as if nothing had happened."""

import json
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from stored_cases import edit

import causal_bo_ppl as cb
from causal_bo_ppl.data import Data

pytestmark = pytest.mark.heavy
SHORT = cb.NUTS(chains=2, draws=300, progress=False)
QUERIES = [{"X": 1.0}, {"Z": -2.0}]


def bend(X):
    most = numpyro.sample("most", dist.Normal(1.0, 1.0))
    return most * jnp.tanh(X)


def bend_otherwise(X):
    most = numpyro.sample("most", dist.Normal(1.0, 1.0))
    return most * jnp.sin(X)


@pytest.fixture(scope="module")
def rows(chain):
    return chain.observe(30, 0)


@pytest.fixture(scope="module")
def tried(chain):
    return chain.experiment(chain.problem.queries([{"Z": 1.0}, {"Z": -2.0}]), 1)


@pytest.fixture(scope="module")
def posts(chain, rows, tried):
    """A posterior by its name, made when it is first asked for."""
    problem, told = chain.problem, (chain.problem.queries([{"X": 1.0}] * 3), np.zeros(3))
    draws = np.random.default_rng(0).normal(size=(2, 300, 4))
    made = {
        "conjugate": lambda: cb.fit(problem, rows, prior=cb.FixedPrior(slope_sd=2)).update(tried),
        "plain": lambda: cb.fit(problem, rows, intercepts=False, parameters="total_effect"),
        "laplace": lambda: cb.fit(problem, rows.join(tried), method="laplace", outcomes=told),
        "wishart": lambda: cb.fit(problem, rows, method="wishart").update(chain.observe(9, 3)),
        "nuts": lambda: cb.fit(problem, rows, method=SHORT, key=5).update(tried).accept("short"),
        "gp": lambda: cb.fit(problem, rows, mechanisms={"Y": cb.GP(functions=8)}),
        "auto": lambda: cb.fit(problem, rows, mechanisms="auto"),
        "own": lambda: cb.fit(problem, rows, mechanisms={"Z": bend}, method="laplace"),
        "given": lambda: cb.Posterior.from_draws(problem, draws).accept("a trial"),
    }
    return lru_cache(lambda name: made[name]())


LONG = ["gp", "auto", "own"]
NAMES = ["conjugate", "plain", "laplace", "wishart", "nuts", "given"]
NAMES += [pytest.param(name, marks=pytest.mark.slow) for name in LONG]


@pytest.mark.filterwarnings("ignore:intercepts=False takes the means")
@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_believed_comes_back(posts, chain, tmp_path, name):
    post, problem = posts(name), chain.problem
    given = {"mechanisms": {"Z": bend}} if name == "own" else {}
    count = 200 if name == "conjugate" else None
    again = cb.read_datatree(post.to_netcdf(tmp_path / "post.nc", draws=count), problem, **given)
    assert repr(again) == repr(post) and again.fingerprint == post.fingerprint
    assert again.accepted == post.accepted and again.method == post.method
    for field in ("mean", "covariance"):
        assert np.array_equal(getattr(again, field), getattr(post, field))
    assert np.array_equal(again.draws(50, 0), post.draws(50, 0))
    key = None if name in ("conjugate", "plain", "nuts", "given") else 3
    told = [cb.effects(each, QUERIES, key=key) for each in (post, again)]
    assert told[0].equals(told[1])
    if name != "given":
        queries = problem.queries(QUERIES)
        assert np.array_equal(again.outcome_variances(queries), post.outcome_variances(queries))
        assert np.array_equal(again.data.values, post.data.values)
        assert [len(part) for part in again.parts] == [len(part) for part in post.parts]
    assert (again.chosen is None) == (post.chosen is None) == (name != "auto")
    believed = [cb.couple(each).predict(problem.queries(QUERIES)) for each in (post, again)]
    assert np.array_equal(believed[0].mean, believed[1].mean)
    assert np.array_equal(believed[0].sd, believed[1].sd)


@pytest.mark.parametrize("name", ["conjugate", "nuts", "laplace"])
def test_it_learns_from_more_rows_as_the_first_would(posts, chain, name):
    post = posts(name)
    again = cb.read_datatree(
        post.to_datatree(draws=200 if name == "conjugate" else None), chain.problem
    )
    more = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"Z": 3.0}]), 7)
    assert np.array_equal(again.update(more).mean, post.update(more).mean)
    assert again.update(more).fingerprint == post.update(more).fingerprint


def test_an_optimization_goes_on_with_its_rows(posts, chain):
    post = posts("conjugate")
    again = cb.read_datatree(post.to_datatree(draws=200), chain.problem)
    runs = [
        cb.optimize(
            chain.problem,
            data=each.data,
            experiment=lambda queries: chain.experiment(queries, 4),
            rounds=2,
            key=0,
        )
        for each in (post, again)
    ]
    assert runs[0].best == runs[1].best and len(runs[1].steps) == 2


def test_draws_that_are_not_all_there_are_made_again_with_the_same_key(chain, rows, tmp_path):
    post = cb.fit(chain.problem, rows, method=SHORT, key=5)
    again = cb.read_datatree(post.to_netcdf(tmp_path / "some.nc", draws=40), chain.problem)
    assert np.array_equal(again.distribution.chains, post.distribution.chains)


def test_a_posterior_without_any_row_comes_back(chain, rows):
    post = cb.fit(chain.problem, rows.select(np.zeros(30, bool)), prior=cb.FixedPrior(slope_sd=2))
    tree = post.to_datatree(draws=200)
    assert "constant_data" not in tree.children
    assert np.array_equal(cb.read_datatree(tree, chain.problem).mean, post.mean)


def test_functions_must_be_given_back_and_only_these(posts, chain):
    tree = posts("own").to_datatree(draws=40)
    with pytest.raises(cb.StoreError, match="the tree was fitted with mechanisms of one's own"):
        cb.read_datatree(tree, chain.problem)
    with pytest.raises(cb.StoreError, match="gives another posterior .* functions"):
        cb.read_datatree(tree, chain.problem, mechanisms={"Z": bend_otherwise})
    with pytest.raises(cb.StoreError, match="holds its own mechanisms, 'linear'; leave out"):
        cb.read_datatree(posts("conjugate").to_datatree(draws=200), chain.problem, mechanisms="gp")


def test_a_method_of_ones_own_must_be_given_back(chain, rows):
    class Mine:
        name = "mine"

        def infer(self, task, mechanisms, key):
            return cb.Conjugate().infer(task, mechanisms, key)

    post = cb.fit(chain.problem, rows, method=Mine())
    tree = post.to_datatree(draws=40)
    with pytest.raises(cb.StoreError, match="method of one's own, 'mine'"):
        cb.read_datatree(tree, chain.problem)
    again = cb.read_datatree(tree, chain.problem, method=Mine())
    assert np.array_equal(again.mean, post.mean) and again.method == "mine"


def test_a_tree_of_another_posterior_is_refused(posts, chain):
    def use(name, change, message):
        tree = posts(name).to_datatree(draws=200 if name == "conjugate" else None).copy(deep=True)
        change(tree)
        with pytest.raises(cb.StoreError, match=message):
            cb.read_datatree(tree, chain.problem)

    def move(group, variable):
        def change(tree):
            values = tree[group][variable].values.copy()
            values[0, 0] += 1.0
            tree[group][variable].values = values

        return change

    def forget(tree):
        tree.attrs["recipe"] = ""

    def divide(tree):
        record = json.loads(tree.attrs["recipe"]) | {"parts": [5, 6]}
        tree.attrs["recipe"] = json.dumps(record)

    use("conjugate", move("constant_data", "values"), "gives another posterior than the one")
    use("nuts", move("unconstrained_posterior", "psi"), "not those of its chains")
    use("nuts", move("posterior", "theta"), "not those of its chains")
    use("conjugate", forget, "does not say how the posterior was fitted")
    use("conjugate", divide, r"has 32 rows in parts of \[5, 6\]")
    with pytest.raises(cb.StoreError, match="from a file's path or a DataTree, got Posterior"):
        cb.read_datatree(posts("conjugate"), chain.problem)
    with pytest.raises(cb.StoreError, match="a file is read for a Problem, got CausalSystem"):
        cb.read_datatree(posts("conjugate").to_datatree(draws=200), chain)


def test_rows_that_cannot_be_are_refused_in_a_file(posts, chain, tmp_path):
    tree = posts("conjugate").to_datatree(draws=200)
    for change, message in (
        (lambda group: group.drop_vars("was_set"), "has values in constant_data, not values"),
        (lambda group: group.astype(float), "of type float64; expected bool"),
        (lambda group: group.assign_coords(node=["Z", "X", "Y"]), "has rows of other variables"),
    ):
        spoiled = tree.copy()
        spoiled["constant_data"] = change(tree["constant_data"].to_dataset())
        path = cb.write_datatree(spoiled, tmp_path / "post.nc")
        with pytest.raises(cb.StoreError, match=message):
            cb.open_datatree(path, chain.problem)


def test_a_file_that_another_program_edited_gives_no_posterior(posts, chain, tmp_path):
    path = posts("conjugate").to_netcdf(tmp_path / "post.nc", draws=200)

    def change(opened):
        opened["constant_data/values"][0, 0] = 9.0

    edit(path, change)
    with pytest.raises(cb.StoreError, match="gives another posterior than the one") as caught:
        cb.read_datatree(path, chain.problem)
    assert str(path) in str(caught.value)


def test_names_of_variables_survive(tmp_path):
    graph = cb.CausalGraph.from_edges([("a b", "β-(x)"), ("β-(x)", "y, z")])
    problem = cb.Problem(graph, "y, z", domains={"a b": (-1, 1)})
    values = np.random.default_rng(0).normal(size=(20, 3))
    post = cb.fit(problem, Data(graph.nodes, "y, z", values, np.zeros((20, 3), bool)))
    again = cb.read_datatree(post.to_netcdf(tmp_path / "odd.nc", draws=20), problem)
    assert np.array_equal(again.mean, post.mean)
