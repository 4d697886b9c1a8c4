"""What ArviZ sees of a posterior, and that a file keeps it as it is."""

import jax
import numpy as np
import pytest
import xarray as xr
from scipy.stats import multivariate_normal

import causal_bo_ppl as cb
from causal_bo_ppl.data import Data

pytestmark = pytest.mark.heavy
SHORT = cb.NUTS(chains=2, draws=300, progress=False)


@pytest.fixture(scope="module")
def rows(chain):
    set_apart = chain.experiment(chain.problem.queries([{"Z": 1.0}, {"Z": -2.0}]), 1)
    return chain.observe(30, 0).join(set_apart)


@pytest.fixture(scope="module")
def trees(chain, rows):
    observed = rows.select(rows.is_observational)
    found = [
        cb.fit(chain.problem, rows, method=method, prior=cb.FixedPrior(slope_sd=2), key=0)
        for method in ("conjugate", "laplace", SHORT)
    ] + [cb.fit(chain.problem, observed, method="wishart")]
    return {post.method: (post, post.to_datatree(draws=200, rows=True)) for post in found}


@pytest.mark.parametrize("method", ["conjugate", "laplace", "nuts", "wishart"])
def test_tree_has_named_groups_and_coordinates(trees, method):
    post, tree = trees[method]
    groups = {"posterior", "log_prior", "log_likelihood", "posterior_predictive", "observed_data"}
    groups |= {"constant_data"}
    groups |= {"sample_stats"} if method == "nuts" else set()
    groups |= {"prior"} if method != "wishart" else set()
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


def test_log_likelihood_of_each_row_is_that_of_the_model(trees):
    """Z and Y of a row together are Gaussian given X; rows in which Z was set count for Y alone."""
    post, tree = trees["nuts"]
    likelihood, theta = tree["log_likelihood"], tree["posterior"]["theta"]
    assert (
        likelihood["Z"].sizes["row[Z]"] == 30
        and likelihood["Y"].sizes["row[Y]"] == 32
        and "X" not in likelihood
    )
    sd = tree["posterior"]["sd"].sel(node="Y").values[1, 3]
    a, b = (float(theta.sel(coordinate=name)[1, 3]) for name in ("a[Y]", "b[Z->Y]"))
    z, y = post.data.column("Z"), post.data.column("Y")
    expected = multivariate_normal(0, sd**2).logpdf(y - a - b * z)
    assert np.allclose(likelihood["Y"].values[1, 3], expected)
    assert (tree["observed_data"]["Z"].values == z[:30]).all()


def test_predictions_have_the_spread_of_new_rows(trees):
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
    data = Data(problem.graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post = cb.fit(
        problem, data, method="laplace", prior=cb.FixedPrior(slope_sd=2), parameters="total_effect"
    )
    drawn = post.distribution.drawn(4, jax.random.key(0))
    from causal_bo_ppl.mechanisms.linear.sem import log_densities

    values, free = post.learned_observations
    found = log_densities(drawn.models, values, free).sum(axis=2)
    assert (np.abs(drawn.models.noises[:, 0, 2]) > 0.1).all()
    for matrix, noise, each in zip(*drawn.models, found, strict=True):
        inverse = np.linalg.inv(np.eye(len(noise)) - matrix[:-1].T)
        joint = multivariate_normal(inverse @ matrix[-1], inverse @ noise @ inverse.T)
        assert free.all() and np.allclose(each, joint.logpdf(values), atol=1e-8)


def test_large_groups_are_thinned_not_refused(chain, rows, monkeypatch):
    from causal_bo_ppl.inference import datatree as room

    post = cb.fit(chain.problem, rows, method=SHORT, key=0)
    assert post.to_datatree(rows=True)["posterior"].sizes["draw"] == 300
    monkeypatch.setattr(room, "MOST", 96 * 60)  # 32 rows of 3 variables, 60 draws
    assert post.to_datatree()["posterior"].sizes["draw"] == 300
    tree = post.to_datatree(rows=True)
    assert (
        tree["posterior"].sizes["draw"]
        == tree["log_likelihood"].sizes["draw"]
        == tree["sample_stats"].sizes["draw"]
        == 30
    )


@pytest.mark.parametrize("method", ["conjugate", "laplace", "nuts", "wishart"])
def test_what_is_written_is_read_back(trees, chain, tmp_path, method):
    """All of it is in memory then, also the variable `prior`, which is called as a group is."""
    _, tree = trees[method]
    file = cb.write_datatree(tree, tmp_path / "post.nc")
    again = cb.open_datatree(file, chain.problem)
    file.unlink()
    assert set(again.children) == set(tree.children) and again.attrs == tree.attrs | {"format": "2"}
    for group, found in tree.children.items():
        xr.testing.assert_identical(again[group].to_dataset(), found.to_dataset())
        for name, variable in found.variables.items():
            assert again[group].variables[name].dtype == variable.dtype
    cb.write_datatree(again, file)
    assert cb.open_datatree(file, chain.problem).identical(again)


def test_odd_names_survive_a_file(tmp_path):
    graph = cb.CausalGraph.from_edges([("a b", "β-(x)"), ("β-(x)", "y, z")])
    problem = cb.Problem(graph, "y, z", domains={"a b": (-1, 1)})
    values = np.random.default_rng(0).normal(size=(20, 3))
    post = cb.fit(problem, Data(graph.nodes, "y, z", values, np.zeros((20, 3), bool)))
    tree = cb.open_datatree(post.to_netcdf(tmp_path / "odd.nc", draws=20, rows=True), problem)
    assert tuple(tree["posterior"]["coordinate"].values) == post.names
    assert set(tree["observed_data"].data_vars) == {"β-(x)", "y, z"}


@pytest.mark.parametrize(
    "names", [("prior", "energy", "theta"), ("theta", "sd", "prior"), ("coordinate", "sd", "lp")]
)
def test_variables_may_be_called_as_parameters_are(names):
    graph = cb.CausalGraph.from_edges([(names[0], names[1]), (names[1], names[2])])
    problem = cb.Problem(graph, names[2], domains={names[0]: (-1, 1)})
    values = np.random.default_rng(0).normal(size=(4 + 2, 3))
    data = Data(graph.nodes, names[2], values, np.zeros(values.shape, bool))
    for method in ("conjugate", SHORT):
        post = cb.fit(problem, data, method=method, prior=cb.FixedPrior(slope_sd=2), key=0)
        tree = post.to_datatree(draws=20, rows=True)
        assert tree["posterior"]["theta"].dims == ("chain", "draw", "coordinate")
        assert set(tree["observed_data"].data_vars) == set(names[1:])


@pytest.mark.parametrize("draws", [0, -3, 2.5, "a"])
def test_a_number_of_draws_that_is_none_is_refused(trees, draws):
    with pytest.raises(cb.ModelError, match="draws must be a whole number, at least 4"):
        trees["conjugate"][0].to_datatree(draws=draws)
