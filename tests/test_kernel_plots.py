"""Pictures of kernels: what is drawn was computed, and what cannot be drawn is refused."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def posts():
    system = cb.models.load("chain")
    return [cb.fit(system.problem, system.observe(rows, 1)) for rows in (15, 60)]


@pytest.fixture(scope="module")
def found(posts):
    return [cb.compare_kernels(post, post.problem.grid(3), draws=400, key=0) for post in posts]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def written(ax):
    ax.figure.canvas.draw()
    return [each.get_text() for each in ax.texts]


def test_errors_are_drawn_for_every_pair_of_sets(found):
    ax = cb.plots.draw_kernel_errors(found[0])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["X", "Z"]
    assert (
        written(ax)[0] == f"{float(found[0].frobenius[0, 0, 0]):.2g}"
        and written(ax).count("0") == 3
    )
    assert ax.get_title() == "jacobian - exact\n15 rows"
    drawn = cb.plots.draw_kernel_errors(
        found[0], comparison="monte_carlo - exact", measure="spectral"
    )
    inside = int((found[0].spectral_z.sel(comparison="monte_carlo - exact") < 3).sum())
    assert (
        len(drawn.lines[0].get_xdata()) == inside > 0
        and "within Monte-Carlo error" in drawn.get_title()
    )


def test_errors_are_drawn_against_rows(found):
    ax = cb.plots.draw_errors_by_rows(xr.concat(found[::-1], "rows"))
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    expected = [float(each.overall_frobenius[0]) for each in found]
    np.testing.assert_allclose(lines["jacobian - exact"], expected)
    np.testing.assert_allclose(lines["like 1 / rows"], [expected[0], expected[0] / 4])


def test_terms_are_drawn_relative_to_the_leading_one(found):
    ax = cb.plots.draw_terms({"few $rows$": found[0], "more": found[1]})
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [r"few \$rows\$", "more"]
    drawn = next(line for line in ax.lines if line.get_label() == "remainder")
    share = [float(each.overall_drawn[2] / each.overall_drawn[0]) for each in found]
    np.testing.assert_allclose(drawn.get_ydata(), share)
    noise = [2 * float(each.overall_drawn_se[0] / each.overall_drawn[0]) for each in found]
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches[:2]], noise)
    assert cb.plots.draw_terms(found[0]).get_ylabel().startswith("Frobenius norm")


def test_couplings_are_drawn_with_lines_between_sets(posts):
    coupling = cb.coupling(posts[0])
    for of in ("between", "explained", "correlation"):
        ax = cb.plots.draw_coupling(coupling, of=of)
        shown = ax.collections[0].get_array().reshape(coupling[of].shape)
        np.testing.assert_allclose(shown, coupling[of].values)
        assert ax.yaxis_inverted()
        if of == "explained":
            assert (ax.get_xlabel(), ax.get_ylabel()) == ("explained set", "known set")
    assert [float(line.get_ydata()[0]) for line in ax.lines[::2]] == [2.0]


def test_lessons_are_drawn_for_one_experiment_and_for_several(posts):
    queries = posts[0].problem.queries([{"Z": 4.0}, {"X": 1.0}])
    one = cb.variance_reduction(posts[0], queries[0])
    ax = cb.plots.draw_variance_reduction(one)
    assert ax.get_title() == "what do(Z = 4) teaches" and len(ax.patches) == 8
    assert f"-{100 * float(one.reduction[0, -1]):.2g} % of variance" in written(ax)[-1]
    before, after = ([bar.get_width() for bar in each] for each in (ax.patches[:4], ax.patches[4:]))
    np.testing.assert_allclose(before, one.sd)
    np.testing.assert_allclose(after, one.sd_after[0])
    several = cb.variance_reduction(posts[0], queries)
    both = cb.plots.draw_variance_reduction(several)
    shown = both.collections[0].get_array().reshape(several.reduction.shape)
    np.testing.assert_allclose(shown, several.reduction.values)
    assert both.yaxis_inverted() and [tick.get_text() for tick in both.get_yticklabels()] == [
        "do(Z = 4)",
        "do(X = 1)",
    ]


@pytest.mark.slow
def test_of_many_effects_those_that_are_taught_most_are_drawn_with_labels_that_differ():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)
    post = cb.fit(system.problem, system.observe(100, 0))
    found = cb.variance_reduction(post, system.problem.vertices()[-1])
    ax = cb.plots.draw_variance_reduction(found)
    share = np.sort(found.reduction.values[0])[-40:]
    drawn = [float(text.split("-")[1].split(" %")[0]) for text in written(ax)]
    np.testing.assert_allclose(np.sort(drawn), 100 * share, rtol=0.06)
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    assert max(map(len, labels)) <= 64 and any("=" in label for label in labels)
    assert len(set(labels)) == 40
    assert "40 of 1010 effects" in ax.get_title()


def test_what_cannot_be_drawn_is_refused(found, posts):
    with pytest.raises(
        cb.ModelError,
        match="draw_kernel_errors needs the result of cb.compare_kernels, got Posterior",
    ):
        cb.plots.draw_kernel_errors(posts[0])
    with pytest.raises(cb.ModelError, match="unknown measure 'frobenus'.*frobenius"):
        cb.plots.draw_kernel_errors(found[0], measure="frobenus")
    with pytest.raises(cb.ModelError, match="unknown comparison 'exact'"):
        cb.plots.draw_kernel_errors(found[0], comparison="exact")
    with pytest.raises(
        cb.ModelError, match="draw_errors_by_rows needs several, joined by xarray.concat"
    ):
        cb.plots.draw_errors_by_rows(found[0])
    with pytest.raises(cb.ModelError, match="draw_kernel_errors needs one; select it"):
        cb.plots.draw_kernel_errors(xr.concat(found, "rows"))
    with pytest.raises(
        cb.ModelError, match="draw_coupling needs the result of cb.coupling, got Dataset"
    ):
        cb.plots.draw_coupling(found[0])
    with pytest.raises(cb.ModelError, match="unknown part of a coupling 'betwen'.*between"):
        cb.plots.draw_coupling(cb.coupling(posts[0]), of="betwen")
    with pytest.raises(
        cb.ModelError, match="draw_teaching needs the result of cb.teaching, got Dataset"
    ):
        cb.plots.draw_variance_reduction(found[0])


def test_gains_spectra_and_concentration_are_drawn_as_computed(posts):
    post = posts[0]
    curves = cb.theory.gain_curves(post, post.problem.grid(5), noise=0.5, rounds=20)
    ax = cb.plots.draw_gains(curves)
    assert [line.get_label() for line in ax.lines][0] == "independent, RBF (lengthscale 0.2)"
    assert [line.get_label() for line in ax.lines][-1] == "coupled"
    for line in ax.lines:
        np.testing.assert_allclose(line.get_ydata(), curves[line.get_label().split(" (")[0]])
    assert ax.get_title().endswith(f"{curves.attrs['kappa2'] / 0.5:.3g}")
    gram = cb.jacobian_gram(post, post.problem.grid(5))
    ax = cb.plots.draw_spectrum(gram)
    sizes = np.linalg.eigvalsh(gram.gram)[::-1]
    np.testing.assert_allclose(ax.lines[0].get_ydata()[:4], sizes[:4] / sizes[0], rtol=1e-9)
    assert len(ax.lines[1].get_xdata()) == cb.theory.effective_rank(gram)
    rows = cb.models.load("chain").observe(200, 0)
    table = cb.theory.concentration(post.problem, rows)
    ax = cb.plots.draw_concentration(table)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), table["trace"])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), table["eps_pointwise"])
    for line, column, power in zip(
        ax.lines[-2:], ("trace", "eps_pointwise"), (1.0, 0.5), strict=True
    ):
        np.testing.assert_allclose(
            line.get_ydata(), table[column].iloc[0] * (25 / table.index) ** power
        )
    assert [line.get_label() for line in ax.lines][-2:] == ["like N^-1", "like N^-0.5"]


def test_what_is_no_theory_is_refused(posts):
    with pytest.raises(
        cb.ModelError, match="draw_gains needs the result of cb.theory.gain_curves, got DataFrame"
    ):
        cb.plots.draw_gains(posts[0].to_frame())
    with pytest.raises(
        cb.ModelError,
        match="draw_concentration needs the result of cb.theory.concentration, got Post",
    ):
        cb.plots.draw_concentration(posts[0])
    with pytest.raises(cb.ModelError, match="this gram is zero: all effects are known"):
        cb.plots.draw_spectrum(np.zeros((2, 2)))
