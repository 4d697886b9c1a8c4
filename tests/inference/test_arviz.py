"""ArviZ's own summaries and plots take what `to_datatree` makes, on both of its generations."""

import warnings
from contextlib import contextmanager

import arviz_plots
import arviz_stats
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy
SHORT = cb.NUTS(chains=2, draws=300, progress=False)
METHODS = ["conjugate", "laplace", "nuts", "wishart"]
QUERIES = [{"X": 1.0}, {"Z": -2.0}]


@pytest.fixture(scope="module")
def posts(chain):
    tried = chain.experiment(chain.problem.queries([{"Z": 1.0}, {"Z": -2.0}]), 1)
    data, options = chain.observe(30, 0), {"prior": cb.priors.FixedPrior(slope_sd=2), "key": 0}
    found = [
        cb.fit(chain.problem, data.join(tried), method=method, **options)
        for method in ("conjugate", "laplace", SHORT)
    ] + [cb.fit(chain.problem, data, method="wishart")]
    return {post.method: post for post in found}


@pytest.fixture(scope="module")
def trees(posts):
    count = {name: None if name == "nuts" else 2_000 for name in posts}  # all that NUTS has
    return {
        name: post.to_datatree(draws=count[name], observations=True, effects=QUERIES)
        for name, post in posts.items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_summary_has_a_row_for_every_coordinate_sd_and_effect(posts, trees, method):
    post = posts[method]
    table = arviz_stats.summary(trees[method], ci_prob=0.9, ci_kind="eti", round_to="none")
    sds = ["X", "Z", "Y"] if method == "wishart" else ["Z", "Y"]
    names = [f"theta[{name}]" for name in post.names] + [f"sd[{name}]" for name in sds]
    names += [] if method == "wishart" else post.names  # b over edges and a over nodes
    assert set(table.index) == {*names, "effect[do(X = 1)]", "effect[do(Z = -2)]"}
    means = table.loc[[f"theta[{name}]" for name in post.names], "mean"].to_numpy(float)
    assert (np.abs(means - post.mean) < 5 * post.sd / np.sqrt(300)).all()
    assert np.isfinite(table.select_dtypes("number").to_numpy(float)).all()


@pytest.mark.parametrize("method", ["conjugate", "nuts"])
@pytest.mark.parametrize("name", ["plot_rank", "plot_trace", "plot_forest"])
def test_plots_of_arviz_take_the_default_tree(posts, method, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ's own
        getattr(arviz_plots, name)(posts[method].to_datatree(draws=200))
    assert plt.gcf().axes
    plt.close("all")


@pytest.mark.parametrize("method", METHODS)
def test_sensitivity_and_loo_run_on_pointwise_groups(trees, method):
    tree = trees[method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few observations
        table = arviz_stats.psense_summary(tree)
        each = arviz_stats.loo(tree, var_name="Y", pointwise=True)
    assert {"theta[b[Z->Y]]", "effect[do(X = 1)]"} <= set(table.index) or method == "wishart"
    assert len(np.ravel(each.elpd_i)) == (30 if method == "wishart" else 32)
    assert np.isfinite(each.elpd)


@contextmanager
def only_our_warnings():
    """Raise every warning but those by which ArviZ 0.8 uses what pandas and xarray deprecate."""
    with warnings.catch_warnings():
        if arviz_stats.__version__.startswith("0."):
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize("method", METHODS)
def test_prior_and_posterior_predictions_are_drawn_by_arviz(posts, trees, method):
    with only_our_warnings():
        for tree in (trees[method], posts[method].to_datatree()):
            for group in ("prior_predictive", "posterior_predictive"):
                drawn = arviz_plots.plot_ppc_dist(tree, group=group, backend="matplotlib")
                assert set(tree["observed_data"].data_vars) <= set(drawn.viz["plot"].data_vars)
        arviz_plots.plot_forest(trees[method], group="prior", backend="matplotlib")
        arviz_plots.plot_prior_posterior(trees[method], backend="matplotlib")
    plt.close("all")


def test_compare_prefers_the_mechanisms_that_made_the_data():
    """Z is a sine of X, and Y is linear in Z: "gp" is better for Z, and not for Y."""
    problem = cb.Problem(cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-3, 3)})
    x, *e = np.random.default_rng(0).normal(size=(3, 60))
    z = np.sin(2 * x) + 0.3 * e[0]
    frame = pd.DataFrame({"X": x, "Z": z, "Y": z + 0.3 * e[1]})
    data = cb.Data.from_frame(problem, frame)
    fits = {
        name: cb.fit(problem, data, mechanisms=kind, key=0).to_datatree(observations=True)
        for name, kind in {"linear": "linear", "gp": "gp"}.items()
    }
    with only_our_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a few observations carry much weight
        tables = {name: arviz_stats.compare(fits, var_name=name) for name in ("Z", "Y")}
    assert tables["Z"].index[0] == "gp"
    column = "elpd_diff"
    assert abs(tables["Z"].loc["linear", column]) > 10 > abs(tables["Y"][column]).max()


def test_loo_density_is_that_of_fits_without_the_observation(chain, posts, trees):
    """Exact: 32 fits, each without one observation, whose predictive density is averaged."""
    each = arviz_stats.loo(trees["conjugate"], var_name="Y", pointwise=True)
    data, exact = posts["conjugate"].data, []
    for row in range(len(data)):
        kept = np.arange(len(data)) != row
        post = cb.fit(chain.problem, data.select(kept), prior=cb.priors.FixedPrior(slope_sd=2))
        tree = post.to_datatree(draws=2_000, key=row)["posterior"]
        a, b = (tree["theta"].sel(coordinate=name).values for name in ("a[Y]", "b[Z->Y]"))
        sd, z = tree["sd"].sel(node="Y").values, data.column("Z")[row]
        gap = (data.column("Y")[row] - a - b * z) / sd
        exact.append(np.log(np.mean(np.exp(-0.5 * gap**2) / (sd * np.sqrt(2 * np.pi)))))
    assert np.abs(np.ravel(each.elpd_i) - exact).max() < 0.15


@pytest.mark.parametrize("method", METHODS)
def test_no_dimension_bears_a_name_that_xarray_uses_itself(posts, method):
    tree = posts[method].to_datatree(draws=200, effects=QUERIES)
    for name, group in tree.children.items():
        assert "variable" not in group.dims
        if name != "constant_data":
            group.to_dataset().to_dataarray()  # joins all variables along `variable`


def test_effects_are_those_of_every_draw(posts, trees, chain):
    queries = chain.problem.queries(QUERIES)
    for method, tree in trees.items():
        found = tree["posterior"]["effect"]
        assert found.dims == ("chain", "draw", "intervention")
        theta = tree["posterior"]["theta"].values
        effect = cb.response(posts[method])
        each = np.stack([effect(chain_draws, queries) for chain_draws in theta])
        assert np.allclose(found.values, each, rtol=1e-12, atol=1e-12)
    a, b = (trees["conjugate"]["posterior"]["theta"].sel(coordinate=n) for n in ("a[Y]", "b[Z->Y]"))
    by_hand = trees["conjugate"]["posterior"]["effect"].sel(intervention="do(Z = -2)")
    assert np.allclose(by_hand.values, (a - 2 * b).values)


def test_invalid_effects_are_refused_before_anything_is_drawn(posts):
    post = posts["conjugate"]
    with pytest.raises(cb.errors.DomainError, match="outside"):
        post.to_datatree(effects=[{"X": 1e6}])
    with pytest.raises(cb.errors.ArgumentError, match="names no intervention"):
        post.to_datatree(effects=[])
    for observations in ("posterior", ["log_likelihood", 3], 1.5):
        with pytest.raises(
            cb.errors.ArgumentError, match="observations must be True, False, None or"
        ):
            post.to_datatree(observations=observations)


def test_log_likelihoods_are_made_on_request_only():
    """442 observations of six variables: under 10 MB by default, with predictions of 200 draws."""
    nodes = list("ABCDEF")
    graph = cb.CausalGraph.from_edges([(one, "F") for one in nodes[:-1]] + [("A", "B")])
    problem = cb.Problem(graph, "F", domains={"A": (-1, 1)}, sets=[("A",)])
    values = np.random.default_rng(0).normal(size=(442, 6))
    post = cb.fit(problem, cb.Data(graph.nodes, "F", values, np.zeros(values.shape, bool)))
    tree, whole = post.to_datatree(), post.to_datatree(observations="log_likelihood")
    predicted = {"prior_predictive", "posterior_predictive", "observed_data"}
    assert predicted == set(tree.children) - set(whole.children)
    assert {"log_likelihood"} == set(whole.children) - set(tree.children)
    bare = set(post.to_datatree(observations=False).children)
    assert bare == set(tree.children) & set(whole.children)
    assert tree["prior_predictive"]["F"].shape == (4, 50, 442)
    assert tree["posterior_predictive"]["draw"].values.tolist() == list(range(0, 1_000, 20))
    assert tree.nbytes < 1e7 < 442 * 4_000 * 8 < whole.nbytes
    assert whole["log_likelihood"]["F"].shape == (4, 1_000, 442)


def test_the_older_container_of_arviz_takes_a_tree(trees):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        if not arviz.__version__.startswith("0."):
            pytest.skip("this ArviZ knows DataTree only")
        old = arviz.InferenceData.from_datatree(trees["nuts"])
        table = arviz.summary(old, var_names=["theta", "effect"])
        assert "effect[do(X = 1)]" in table.index and np.isfinite(
            arviz.loo(old, var_name="Y").elpd_loo
        )
