"""The statements of the notebooks about numbers that they do not compute themselves."""

import numpy as np
import pytest

import causal_bo_ppl as cb


def linearization_error(edges, observations, key, **options):
    """Relative error of the Jacobian gram on a chain as notebook 02 makes it."""
    names = ["X", *(f"M{position}" for position in range(1, edges)), "Y"]
    problem = cb.Problem(
        cb.CausalGraph.parse(" -> ".join(names)), "Y", domains={"X": (-3, 3)}, sets=[("X",)]
    )
    values = np.random.default_rng(key).normal(size=(observations, edges + 1))
    for column in range(1, edges + 1):
        values[:, column] += 0.8 * values[:, column - 1]
    data = cb.Data(problem.graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post, queries = cb.fit(problem, data, **options), problem.grid(5)
    exact = cb.exact_gram(post, queries).gram
    gap = np.linalg.norm(cb.jacobian_gram(post, queries).gram - exact)
    return gap / np.linalg.norm(exact), post, queries


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:intercepts=False takes the means")
def test_notebook_02_eight_edges_have_the_error_of_four_with_intercepts_and_more_without():
    whole = {k: [linearization_error(k, 60, key)[0] for key in range(40)] for k in (4, 8)}
    medians = {k: np.median(each) for k, each in whole.items()}
    assert all(0.017 < each < 0.027 for each in medians.values())
    assert 0.25 < np.mean(np.less(whole[8], whole[4])) < 0.75
    slope = [
        np.median([linearization_error(k, 60, key, intercepts=False)[0] for key in range(40)])
        for k in (2, 4, 8)
    ]
    assert 0.008 < slope[0] < 0.015 < 0.018 < slope[1] < 0.03 < 0.04 < slope[2] < 0.06


def test_notebook_02_intercepts_make_nearly_all_of_the_gram_of_eight_edges():
    shares = {}
    for edges in (4, 8):
        found = []
        for key in range(6):
            _, post, queries = linearization_error(edges, 60, key)
            index = [number for number, name in enumerate(post.names) if name.startswith("a[")]
            jacobian = cb.response(post).jacobian(post.mean, queries)
            level = (
                jacobian[:, index] @ post.covariance[np.ix_(index, index)] @ jacobian[:, index].T
            )
            whole = cb.jacobian_gram(post, queries).gram
            found.append(np.linalg.norm(level) / np.linalg.norm(whole))
        shares[edges] = np.median(found)
    assert shares[8] > 0.85 > shares[4] + 0.05


def test_notebook_04_linear_counts_what_needs_no_linearity_and_uses_both():
    graph = cb.CausalGraph.parse("Z -> X -> Y; X <-> Y")
    plain, linear = (cb.identify(graph, "Y", ["X", "Z"], linear=each) for each in (False, True))
    assert repr(linear) == "Identifications(Y: 1 of 2 sets identifiable and verified)"
    assert repr(plain).endswith("verified; not: {X})")
    assert linear.usable == (("Z",), ("X",)) and plain.usable == (("Z",),)
    assert linear[("Z",)].identifiable and not linear[("X",)].identifiable
    assert "linearity" in linear.to_frame() and "linearity" not in plain.to_frame()


def test_notebook_01_one_outcome_informs_effects_that_were_not_tried():
    chain = cb.models.load("chain")
    post = cb.fit(chain.problem, chain.observe(3200, 0).select(slice(25)), intercepts=False)
    found = cb.kernels.variance_reduction(post, chain.problem.queries([{"Z": 5.0}]))
    assert found.reduction.to_numpy().round(2).tolist() == [[0.07, 0.07, 0.38, 0.38]]
