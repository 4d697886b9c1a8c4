"""Plots of the theory: gains, spectra, concentration, and the four panels of the paper."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn_texts import faults, lines

import causal_bo_ppl as cb


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
