"""A file is believed only if it is what was written, and what its problem can have."""

import h5py
import numpy as np
import pytest
import xarray as xr
from stored_cases import edit, refused

import causal_bo_ppl as cb
from causal_bo_ppl.data import Data
from causal_bo_ppl.inference.netcdf import LABEL, seal

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def tree(chain):
    post = cb.fit(chain.problem, chain.observe(8, 0), prior=cb.FixedPrior())
    return post.to_datatree(draws=16, rows=True)


@pytest.fixture(scope="module")
def small(tree):
    """Parameters only, which are written and read in a third of the time."""
    kept = xr.DataTree.from_dict({name: tree[name].to_dataset() for name in ("posterior", "prior")})
    kept.attrs.update(tree.attrs)
    return kept


@pytest.fixture
def file(tree, tmp_path):
    return cb.write_datatree(tree, tmp_path / "post.nc")


def test_a_file_with_a_flipped_byte_is_refused_wherever_it_is(file, chain):
    whole, draws = file.read_bytes(), np.random.default_rng(0)
    positions = [
        *draws.integers(len(whole), size=600).tolist(),
        *range(len(whole) - 90, len(whole)),
    ]
    for position in positions:
        spoiled = bytearray(whole)
        spoiled[position] ^= int(draws.integers(1, 256))
        file.write_bytes(spoiled)
        refused(file, chain.problem, "does not match its checksum|has no checksum|is not a netCDF")
    file.write_bytes(whole)
    assert cb.open_datatree(file, chain.problem).attrs["verdict"] == "exact"


def test_a_file_that_was_cut_or_made_longer_is_refused(file, chain):
    whole, draws = file.read_bytes(), np.random.default_rng(1)
    for length in draws.integers(8, len(whole), size=100).tolist():
        file.write_bytes(whole[:length])
        refused(file, chain.problem, "has no checksum at its end")
    for more in (b"\0", b"\n", whole):
        file.write_bytes(whole + more)
        refused(file, chain.problem, "has no checksum at its end|does not match its checksum")


def test_damage_under_a_right_checksum_is_a_store_error_or_read(file, chain):
    """A checksum is no signature; whatever HDF5 makes of the bytes, no foreign error comes out."""
    whole, draws, outcomes = file.read_bytes(), np.random.default_rng(2), []
    body = whole[: whole.index(LABEL)]
    for position in draws.integers(8, len(body), size=40).tolist():
        spoiled = bytearray(body)
        spoiled[position] ^= int(draws.integers(1, 256))
        file.write_bytes(bytes(spoiled) + seal(spoiled))
        try:
            outcomes.append(cb.open_datatree(file, chain.problem) is None)
        except cb.StoreError:
            outcomes.append(True)
    assert len(outcomes) == 40 and 5 < sum(outcomes) < 40


def test_a_file_that_another_program_edited_is_refused(file, chain):
    with h5py.File(file, "a") as opened:
        opened.attrs["verdict"] = "passed"
    refused(file, chain.problem, "has no checksum at its end: an older version .* wrote it, ")


def test_a_file_of_another_problem_is_refused(file, chain):
    other = cb.Problem(chain.problem.graph, "Y", domains={"X": (-1, 1)})
    refused(file, other, "is of another problem")
    with pytest.raises(cb.StoreError, match="a file is read for a Problem, got CausalSystem"):
        cb.open_datatree(file, chain)


def test_what_is_no_netcdf_file_is_refused(chain, tmp_path):
    for name, data in {"garbage": b"no netCDF at all", "empty": b""}.items():
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, chain.problem, "is not a netCDF file, or its beginning is damaged")
    refused(tmp_path / "missing", chain.problem, "there is no file")
    refused(tmp_path, chain.problem, "there is no file")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "3", "was written by version 0.* in format 3; .* upgrade causal_bo_ppl"),
        ("format", "1", "in format 1; .* which reads format 2: write it again"),
        ("format", np.arange(3), "in format .0 1 2.; .* upgrade causal_bo_ppl"),
        ("causal_bo_ppl", "99.1.0", "was written by version 99.1.0 of .* upgrade causal_bo_ppl"),
        ("causal_bo_ppl", "x", "was written by version x of .* upgrade causal_bo_ppl"),
        ("problem", np.arange(3), "is of another problem"),
        ("verdict", "not assessed", "has the verdict 'not assessed', not one of: exact, passed"),
        ("verdict", "fine", "has the verdict 'fine', not one of: exact"),
        ("method", "nuts", "has the verdict 'exact', not one of: passed, failed, not assessed"),
        ("method", np.arange(2), "has the method array"),
        ("parameters", "other", "has the parameters 'other', not one of: structural"),
        ("parameters", "estimand", "has the coordinate names .* this problem has est"),
        ("intercepts", "no", "has the coordinate names .* this problem has b"),
        ("intercepts", "1", "has the intercepts '1', not one of: yes, no"),
        ("linear", "perhaps", "has the linear 'perhaps', not one of: yes, no"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused(file, chain, name, value, message):
    edit(file, lambda opened: opened.attrs.__setitem__(name, value))
    refused(file, chain.problem, message)


def test_a_posterior_by_a_method_of_ones_own_is_read(file, chain):
    edit(file, lambda opened: opened.attrs.__setitem__("method", "magic"))
    assert cb.open_datatree(file, chain.problem).attrs["method"] == "magic"


@pytest.mark.parametrize("name", ["format", "causal_bo_ppl", "verdict", "method", "linear"])
def test_a_missing_attribute_is_refused(file, chain, name):
    edit(file, lambda opened: opened.attrs.__delitem__(name))
    refused(file, chain.problem, f"was written by version .*None|has the {name} None")


def spoil(values, at, number):
    values = values.copy()
    values[at] = number
    return values


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_draws_of_theta_that_are_not_finite_are_refused(small, chain, tmp_path, number):
    spoiled = small.copy(deep=True)
    theta = spoiled["posterior"]["theta"]
    theta.values = spoil(theta.values, (1, 2, 1), number)
    file = cb.write_datatree(spoiled, tmp_path / "post.nc")
    refused(file, chain.problem, r"has draws of b\[Z->Y\] that are not finite; fit and")


def test_only_wishart_may_draw_no_value(chain, tmp_path):
    tree = cb.fit(chain.problem, chain.observe(30, 0), method="wishart").to_datatree(draws=16)
    theta = tree["posterior"]["theta"]
    theta.values = spoil(theta.values, (0, 0, 0), np.nan)
    file = cb.write_datatree(tree, tmp_path / "post.nc")
    assert np.isnan(cb.open_datatree(file, chain.problem)["posterior"]["theta"].values[0, 0, 0])
    theta.values = spoil(theta.values, (0, 0, 0), np.inf)
    refused(cb.write_datatree(tree, file), chain.problem, "that are not finite")


@pytest.mark.parametrize("group", ["posterior", "prior"])
@pytest.mark.parametrize("case", [("Y", -1.0), ("Z", 0.0), ("Y", np.nan)])
def test_standard_deviations_that_cannot_be_are_refused(small, chain, tmp_path, group, case):
    """X is no effect of anything that is learned: its disturbance is not there."""
    variable, number = case
    spoiled = small.copy(deep=True)
    sd = spoiled[group]["sd"]
    assert sd["node"].values.tolist() == ["Z", "Y"]
    sd.values = spoil(sd.values, (0, 0, list(sd["node"].values).index(variable)), number)
    file = cb.write_datatree(spoiled, tmp_path / "post.nc")
    refused(file, chain.problem, f"has standard deviations of '{variable}' in {group} that are not")


@pytest.mark.parametrize("group", ["posterior", "prior"])
@pytest.mark.parametrize("dimension", ["coordinate", "node"])
def test_names_in_another_order_are_refused(small, chain, tmp_path, group, dimension):
    turned = small[group].to_dataset()
    for spoiled in (
        turned.assign_coords({dimension: turned[dimension].values[::-1]}),
        turned.isel({dimension: slice(None, None, -1)}),
        turned.assign_coords({dimension: ["b[Q->Y]", *turned[dimension].values[1:]]}),
        turned.isel({dimension: slice(1, None)}),
        turned.drop_vars(dimension),
    ):
        changed = small.copy()
        changed[group] = spoiled
        file = cb.write_datatree(changed, tmp_path / "post.nc")
        refused(file, chain.problem, f"has the {dimension} names .* in {group}; this problem has")


@pytest.mark.slow
def test_groups_that_do_not_belong_together_are_refused(tree, chain, tmp_path):
    def use(name, change, message):
        changed = tree.copy()
        changed[name] = change(tree[name].to_dataset())
        refused(cb.write_datatree(changed, tmp_path / "post.nc"), chain.problem, message)

    use("log_prior", lambda group: group.isel(draw=slice(2)), "'prior' in log_prior with sizes")
    use("log_likelihood", lambda group: group.isel(chain=slice(1)), "in log_likelihood with sizes")
    use("posterior", lambda group: group.isel(draw=slice(0)), "every group needs at least one")
    use("posterior", lambda group: group.astype("float32"), "theta in posterior with dimensions")
    use("posterior", lambda group: group.transpose(), "theta in posterior with dimensions")
    use("posterior", lambda group: group.drop_vars("sd"), "has sd in posterior with none")
    use("posterior", lambda group: group.drop_vars("theta"), "holds no posterior of theta")
    use("observed_data", lambda group: group.rename(Y="Q"), "that the graph does not: Q")
    use("observed_data", lambda group: group.rename(Y="Z", Z="Y"), "not one number for every row")


@pytest.mark.parametrize("kind", ["structural", "total_effect", "estimand"])
@pytest.mark.parametrize("intercepts", [True, False])
@pytest.mark.filterwarnings("ignore:intercepts=False takes the means")
def test_posteriors_of_all_parameters_are_read_back(chain, tmp_path, kind, intercepts):
    options = {"parameters": kind, "intercepts": intercepts}
    post = cb.fit(chain.problem, chain.observe(20, 0), **options)
    again = cb.open_datatree(post.to_netcdf(tmp_path / "post.nc", draws=16), chain.problem)
    assert tuple(again["posterior"]["coordinate"].values) == post.names
    assert again.attrs["intercepts"] == ("yes" if intercepts else "no")


def test_a_posterior_that_needs_linearity_is_read_back(tmp_path):
    graph = cb.CausalGraph.parse("Z -> X -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2)}, sets=[("X",)])
    values = np.random.default_rng(0).normal(size=(200, 3)) @ np.triu(np.ones((3, 3)))
    data = Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post = cb.fit(problem, data, method="laplace", linear=True)
    file = post.to_netcdf(tmp_path / "post.nc", draws=16)
    assert cb.open_datatree(file, problem).attrs["linear"] == "yes"
    edit(file, lambda opened: opened.attrs.__setitem__("linear", "no"))
    refused(file, problem, "cannot be read: .* cannot be learned from observational data")


def test_a_posterior_of_outcomes_is_read_back(chain, tmp_path):
    queries = chain.problem.queries([{"X": 1.0}] * 3)
    told = (queries, np.zeros(3))
    post = cb.fit(chain.problem, chain.observe(100, 0), method="laplace", outcomes=told)
    again = cb.open_datatree(
        post.to_netcdf(tmp_path / "post.nc", draws=16, rows=True), chain.problem
    )
    assert again["log_likelihood"]["do(Y)"].shape == (4, 4, 3)


def test_a_tree_that_a_file_cannot_keep_is_refused(file, tree):
    before = file.read_bytes()
    when = np.datetime64("2020-01-01")
    for value in (object(), None, {"a": 1}, {1, 2}, [1.0, "a"], [3], True, when):
        for position in ("/", "posterior"):
            spoiled = tree.copy()
            spoiled[position].attrs["note"] = value
            with pytest.raises(cb.StoreError, match="the tree cannot be written"):
                cb.write_datatree(spoiled, file)
    more = xr.Dataset({"z": ("row", np.arange(3))})
    messages = {"strange": "has the group 'strange'", "posterior/deep": "has groups within"}
    for key, message in messages.items():
        spoiled = tree.copy()
        spoiled[key] = more
        with pytest.raises(cb.StoreError, match=message):
            cb.write_datatree(spoiled, file)
    spoiled = tree.copy()
    spoiled["here"] = xr.DataArray(1.0)
    with pytest.raises(cb.StoreError, match="has variables outside its groups"):
        cb.write_datatree(spoiled, file)
    with pytest.raises(cb.StoreError, match="only a DataTree can be written, got Dataset"):
        cb.write_datatree(more, file)
    assert file.read_bytes() == before


def test_an_encoding_changes_no_number(tree, chain, tmp_path):
    packed = tree.copy(deep=True)
    packed["posterior"]["theta"].encoding = {"dtype": "int16", "scale_factor": 0.1}
    again = cb.open_datatree(cb.write_datatree(packed, tmp_path / "post.nc"), chain.problem)
    assert (again["posterior"]["theta"].values == tree["posterior"]["theta"].values).all()
