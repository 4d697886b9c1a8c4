"""Plots of kernels: errors, terms, couplings, variance reductions; and of the theory."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.drawn_texts import faults, legend, lines, texts

import causal_bo_ppl as cb


def written(ax):
    ax.figure.canvas.draw()
    return [each.get_text() for each in ax.texts]


@pytest.mark.heavy
def test_errors_are_drawn_for_every_pair_of_sets(comparisons):
    ax = cb.plots.draw_kernel_errors(comparisons[0])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["X", "Z"]
    assert (
        written(ax)[0] == f"{float(comparisons[0].frobenius[0, 0, 0]):.2g}"
        and written(ax).count("0") == 3
    )
    assert ax.get_title() == "jacobian - exact\n15 observations"
    drawn = cb.plots.draw_kernel_errors(
        comparisons[0], comparison="monte_carlo - exact", measure="spectral"
    )
    inside = int((comparisons[0].spectral_z.sel(comparison="monte_carlo - exact") < 3).sum())
    assert (
        len(drawn.lines[0].get_xdata()) == inside > 0
        and "within Monte-Carlo error" in drawn.get_title()
    )


@pytest.mark.heavy
def test_errors_are_drawn_against_observations(comparisons):
    ax = cb.plots.draw_errors_by_observations(xr.concat(comparisons[::-1], "observations"))
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    expected = [float(each.overall_frobenius[0]) for each in comparisons]
    np.testing.assert_allclose(lines["jacobian - exact"], expected)
    np.testing.assert_allclose(lines["like 1 / observations"], [expected[0], expected[0] / 4])


@pytest.mark.heavy
def test_terms_are_drawn_relative_to_the_leading_one(comparisons):
    ax = cb.plots.draw_terms({"few $data$": comparisons[0], "more": comparisons[1]})
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [r"few \$data\$", "more"]
    drawn = next(line for line in ax.lines if line.get_label() == "remainder")
    share = [float(each.overall_drawn[2] / each.overall_drawn[0]) for each in comparisons]
    np.testing.assert_allclose(drawn.get_ydata(), share)
    noise = [2 * float(each.overall_drawn_se[0] / each.overall_drawn[0]) for each in comparisons]
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches[:2]], noise)
    assert cb.plots.draw_terms(comparisons[0]).get_ylabel().startswith("Frobenius norm")


@pytest.mark.heavy
def test_couplings_are_drawn_with_lines_between_sets(posts):
    coupling = cb.kernels.coupling(posts[0])
    for of in ("between", "explained", "correlation"):
        ax = cb.plots.draw_coupling(coupling, of=of)
        shown = ax.collections[0].get_array().reshape(coupling[of].shape)
        np.testing.assert_allclose(shown, coupling[of].values)
        assert ax.yaxis_inverted()
        if of == "explained":
            assert (ax.get_xlabel(), ax.get_ylabel()) == ("explained set", "known set")
    assert [float(line.get_ydata()[0]) for line in ax.lines[::2]] == [2.0]


@pytest.mark.heavy
def test_variance_reductions_are_drawn_for_one_experiment_and_for_several(posts):
    queries = posts[0].problem.queries([{"Z": 4.0}, {"X": 1.0}])
    one = cb.kernels.variance_reduction(posts[0], queries[0])
    ax = cb.plots.draw_variance_reduction(one)
    assert ax.get_title() == "variance reduction by do(Z = 4)" and len(ax.patches) == 8
    assert f"-{100 * float(one.reduction[0, -1]):.2g} % of variance" in written(ax)[-1]
    before, after = ([bar.get_width() for bar in each] for each in (ax.patches[:4], ax.patches[4:]))
    np.testing.assert_allclose(before, one.sd)
    np.testing.assert_allclose(after, one.sd_after[0])
    several = cb.kernels.variance_reduction(posts[0], queries)
    both = cb.plots.draw_variance_reduction(several)
    shown = both.collections[0].get_array().reshape(several.reduction.shape)
    np.testing.assert_allclose(shown, several.reduction.values)
    assert both.yaxis_inverted() and [tick.get_text() for tick in both.get_yticklabels()] == [
        "do(Z = 4)",
        "do(X = 1)",
    ]


@pytest.mark.slow
def test_of_many_effects_the_most_reduced_are_drawn_with_labels_that_differ():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)
    post = cb.fit(system.problem, system.observe(100, 0))
    found = cb.kernels.variance_reduction(post, system.problem.vertices()[-1])
    ax = cb.plots.draw_variance_reduction(found)
    share = np.sort(found.reduction.values[0])[-40:]
    drawn = [float(text.split("-")[1].split(" %")[0]) for text in written(ax)]
    np.testing.assert_allclose(np.sort(drawn), 100 * share, rtol=0.06)
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    assert max(map(len, labels)) <= 64 and any("=" in label for label in labels)
    assert len(set(labels)) == 40
    assert "40 of 1010 effects" in ax.get_title()


@pytest.mark.heavy
def test_what_cannot_be_drawn_is_refused(comparisons, posts):
    with pytest.raises(
        cb.errors.ArgumentError,
        match="draw_kernel_errors needs the result of cb.compare_kernels, got Posterior",
    ):
        cb.plots.draw_kernel_errors(posts[0])
    with pytest.raises(cb.errors.ArgumentError, match="unknown measure 'frobenus'.*frobenius"):
        cb.plots.draw_kernel_errors(comparisons[0], measure="frobenus")
    with pytest.raises(cb.errors.ArgumentError, match="unknown comparison 'exact'"):
        cb.plots.draw_kernel_errors(comparisons[0], comparison="exact")
    with pytest.raises(
        cb.errors.ArgumentError,
        match="draw_errors_by_observations needs several, joined by",
    ):
        cb.plots.draw_errors_by_observations(comparisons[0])
    with pytest.raises(cb.errors.ArgumentError, match="draw_kernel_errors needs one; select it"):
        cb.plots.draw_kernel_errors(xr.concat(comparisons, "observations"))
    with pytest.raises(
        cb.errors.ArgumentError,
        match="draw_coupling needs the result of cb.kernels.coupling, got Dataset",
    ):
        cb.plots.draw_coupling(comparisons[0])
    with pytest.raises(
        cb.errors.ArgumentError, match="unknown part of a coupling 'betwen'.*between"
    ):
        cb.plots.draw_coupling(cb.kernels.coupling(posts[0]), of="betwen")
    with pytest.raises(
        cb.errors.ArgumentError,
        match="draw_variance_reduction needs the result of cb.k.*, got Dataset",
    ):
        cb.plots.draw_variance_reduction(comparisons[0])


def test_a_reduction_of_nearly_all_variance_is_written_in_plain_digits(plant):
    found = cb.kernels.variance_reduction(plant, plant.problem.vertices()[:2]).isel(experiment=[0])
    found["reduction"].values[0, :3] = [0.998, 1.0, 0.0123]
    ax = cb.plots.draw_variance_reduction(found)
    written = [text.get_text().strip() for text in ax.texts]
    assert written[:3] == ["-99.8 % of variance", "-100 % of variance", "-1.2 % of variance"]
    assert len(set(texts(ax.get_yticklabels()))) == found.sizes["effect"]
    assert ax.get_xlabel().replace("\n", " ").endswith(r"profit per campaign (\$) [\$ of 2024]")


def test_experiments_have_different_labels(plant):
    tried = plant.problem.vertices()
    ax = cb.plots.draw_variance_reduction(cb.kernels.variance_reduction(plant, tried))
    assert len(set(texts(ax.get_yticklabels()))) == len(tried)
    assert ax.get_title().startswith("variance reduction by one outcome, effects on")


def test_terms_of_one_comparison_are_named_by_its_observations_and_zeros_are_marked():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(30, 1))
    found = cb.compare_kernels(post, post.problem.grid(3), draws=100, progress=False, key=0)
    ax = cb.plots.draw_terms(found)
    assert texts(ax.get_xticklabels()) == ["30 observations"] and not ax.texts
    assert "exact" in legend(ax) and faults(ax) == []
    affine = found.copy(deep=True)
    for name in ("overall_drawn", "overall_drawn_se"):
        affine[name].loc[{"term": ["mixed", "remainder"]}] = 0.0
    affine.attrs["reference"] = "monte_carlo"
    ax = cb.plots.draw_terms(affine)
    assert [(text.get_text(), text.get_position()[0]) for text in ax.texts] == [
        ("0", 0.0),
        ("0", pytest.approx(0.22)),
    ]
    assert ax.get_ylim()[0] <= 0.05 and "exact" not in legend(ax)
    named = [value for value in ax.get_yticks() if ax.get_ylim()[0] <= value <= ax.get_ylim()[1]]
    assert len(named) >= 3 and faults(ax) == []


@pytest.mark.heavy
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
    data = cb.models.load("chain").observe(200, 0)
    table = cb.theory.concentration(post.problem, data)
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


@pytest.mark.heavy
def test_results_of_other_functions_are_refused(posts):
    with pytest.raises(
        cb.errors.ArgumentError,
        match="draw_gains needs the result of cb.theory.gain_curves, got DataFrame",
    ):
        cb.plots.draw_gains(posts[0].to_frame())
    with pytest.raises(
        cb.errors.ArgumentError,
        match="draw_concentration needs the result of cb.theory.concentration, got Post",
    ):
        cb.plots.draw_concentration(posts[0])
    with pytest.raises(
        cb.errors.ArgumentError, match="this gram is zero, .* all effects are known"
    ):
        cb.plots.draw_spectrum(np.zeros((2, 2)))


@pytest.mark.parametrize("count", [1, 3, 8, 60, 200, 1234])
def test_a_spectrum_counts_from_one_and_names_the_largest(count):
    ax = cb.plots.draw_spectrum(np.diag(np.geomspace(1, 1e-6, count)))
    ticks = [int(tick) for tick in ax.get_xticks()]
    assert ticks[0] == 1 and len(ticks) <= 9 and max(ticks) <= count and (np.diff(ticks) > 0).all()
    low, high = ax.get_ylim()
    named = [value for value in ax.get_yticks() if low <= value <= high]
    assert 1.0 in named and 4 <= len(named) <= 8
    assert ax.get_title() == f"spectrum of K over {count} effects" and faults(ax) == []


@pytest.fixture(scope="module")
def diagnostics():
    system = cb.models.load("chain")
    data = system.observe(200, 1)
    post = cb.fit(system.problem, data, intercepts=False)
    queries = system.problem.grid(9)
    gram = np.asarray(cb.jacobian_gram(post, queries).gram)
    pairs = gram[np.triu_indices(len(gram), 1)]
    return {
        "eigenvalues": np.linalg.eigvalsh(gram)[::-1],
        "dimension": 2,
        "covariances": np.column_stack([pairs, pairs + 1e-6]),
        "gains": cb.theory.gain_curves(post, queries, noise=0.5, rounds=40),
        "concentration": pd.DataFrame({"observations": [25, 50, 100], "trace": [0.2, 0.11, 0.04]}),
    }


def test_theory_has_the_four_panels_of_the_paper(diagnostics):
    spectrum, covariances, gains, uncertainty = panels = cb.plots.draw_theory(diagnostics)
    assert spectrum.get_title() == "rank 2 of K over 18 effects, dimension of theta 2"
    assert list(lines(spectrum)["dimension of theta, 2"].get_xdata()) == [2.5, 2.5]
    drawn = np.column_stack(lines(covariances)["pairs of effects"].get_data())
    np.testing.assert_array_equal(drawn, diagnostics["covariances"])
    assert covariances.get_title() == "covariances of 153 pairs, largest difference 1e-06"
    np.testing.assert_array_equal(
        lines(gains)["coupled"].get_ydata(), diagnostics["gains"]["coupled"]
    )
    assert [list(line.get_xdata()) for line in uncertainty.lines] == [[25, 50, 100]] * 2
    np.testing.assert_array_equal(uncertainty.lines[0].get_ydata(), [0.2, 0.11, 0.04])
    np.testing.assert_allclose(uncertainty.lines[1].get_ydata(), [0.2, 0.1, 0.05])
    assert faults(panels) == []


def test_theory_refuses_what_is_missing_or_no_number(diagnostics):
    draw = cb.plots.draw_theory
    with pytest.raises(cb.errors.DataError, match="missing: dimension, gains$"):
        draw({key: diagnostics[key] for key in ("eigenvalues", "covariances", "concentration")})
    with pytest.raises(cb.errors.DataError, match="missing: eigenvalues, dimension, cov"):
        draw([1])
    with pytest.raises(cb.errors.DataError, match=r"covariances .* shape \(n, 2\), got \(3, 3\)"):
        draw(diagnostics | {"covariances": np.eye(3)})
    with pytest.raises(cb.errors.DataError, match=r"eigenvalues must be finite .* shape \(n\)"):
        draw(diagnostics | {"eigenvalues": [1.0, np.nan]})
    with pytest.raises(cb.errors.DataError, match=r"covariances must be finite .* got \(0, 2\)"):
        draw(diagnostics | {"covariances": np.empty((0, 2))})
    with pytest.raises(cb.errors.ArgumentError, match="has 4 panels .* and was given 3 Axes"):
        draw(diagnostics, plt.subplots(1, 3)[1])
