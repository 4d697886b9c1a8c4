"""Sizes whose squares overflow or underflow are refused by name.

All others give the same answers in any units.

Internals: closed forms are broken on purpose, and limits are tested without a fit.
"""

import math

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.data.checks import require_sizes
from causal_bo_ppl.inference import conjugate, wishart
from causal_bo_ppl.mechanisms import linear_equations as equations

NAMES = ("X", "Z", "Y")
EXTREMES = [(1e48, 1e-48, 1e48), (1e-48, 1e48, 1e-48), (1e-48, 1e-48, 1e48), (1e48, 1e48, 1e-48)]
SHORT = {"method": cb.NUTS(chains=1, warmup=10, draws=4, progress=False), "key": 0}
WAYS = [
    {"method": "conjugate"},
    {"method": "conjugate", "prior": cb.priors.FixedPrior()},
    {"method": "wishart"},
    {"method": "wishart", "prior": cb.priors.MomentPrior(np.zeros(3), 1.0, np.eye(3), 6.0)},
    {"method": "laplace"},
    {"method": "laplace", "prior": cb.priors.FixedPrior()},
    SHORT,
    {"prior": cb.priors.FixedPrior(), **SHORT},
]


@pytest.fixture(scope="module")
def rows(chain):
    return chain.observe(60, 0)


def scaled(data, units, offsets=(0.0, 0.0, 0.0)):
    """The same observations with every column in other units."""
    return cb.Data(
        data.nodes, data.target, data.values * units + np.array(offsets), data.intervened
    )


def posed(chain, units=(1.0, 1.0, 1.0)):
    """The problem with domains in the same units."""
    domains = {name: (-5 * unit, 20 * unit) for name, unit in zip("XZ", units, strict=False)}
    return cb.Problem(chain.problem.graph, "Y", domains=domains, sets=2)


@pytest.mark.parametrize(
    "options", WAYS, ids=lambda options: " ".join(map(str, list(options.values())[:2]))[:30]
)
@pytest.mark.parametrize(
    "name, unit, message",
    [
        (
            "X",
            1e155,
            r"column 'X' has values up to .*e\+155, above 1e\+50, where squares .* overflow; "
            "change its units",
        ),
        (
            "Z",
            1e-170,
            r"column 'Z' has values up to .*e-170, below 1e-50, .* underflow; change its units",
        ),
        ("Y", 1e307, r"column 'Y' has values up to .*e\+307"),
        ("Y", 5e-324, r"column 'Y' has values up to .*e-32"),
    ],
)
def test_column_whose_squares_leave_float64_is_refused_by_every_method(
    chain, rows, options, name, unit, message
):
    data = scaled(rows, [unit if each == name else 1.0 for each in NAMES])
    with pytest.raises(cb.errors.DataError, match=message):
        cb.fit(chain.problem, data, **options)


@pytest.mark.parametrize("method", ["conjugate", "wishart", "laplace"])
def test_update_with_such_observations_is_refused_too(chain, rows, method):
    post = cb.fit(chain.problem, rows, method=method)
    with pytest.raises(cb.errors.DataError, match=r"column 'Z' has values up to .*e\+154"):
        post.update(scaled(rows.select(slice(1)), [1.0, 1e155, 1.0]))


def test_observations_near_zero_are_learned_from_where_others_are_not(chain, rows):
    tiny = scaled(rows.select(slice(2)), [1e-170, 1e-60, 1.0])
    post = cb.fit(chain.problem, rows).update(tiny)
    assert np.allclose(post.mean, cb.fit(chain.problem, rows.join(tiny)).mean, rtol=1e-10)
    without = cb.fit(chain.problem, rows.select(slice(0)), prior=cb.priors.FixedPrior())
    for some in (tiny, tiny.select(slice(1))):
        with pytest.raises(cb.errors.DataError, match="column 'X' has values up to .*, below"):
            without.update(some)


def test_column_that_hardly_varies_is_refused_and_a_constant_one_left_to_others(chain, rows):
    with pytest.raises(cb.errors.DataError, match=r"column 'X' varies by .*e-53, below 1e-50"):
        cb.fit(chain.problem, scaled(rows, [2e-53, 1.0, 1.0], [1e-40, 0.0, 0.0]))
    with pytest.raises(cb.errors.DataError, match="'X', a parent of 'Z', is constant"):
        cb.fit(chain.problem, scaled(rows, [1e-60, 1.0, 1.0], [1e-40, 0.0, 0.0]))
    with pytest.raises(cb.errors.DataError, match="'X', a parent of 'Z', is constant"):
        cb.fit(chain.problem, scaled(rows, [0.0, 1.0, 1.0]))
    require_sizes(scaled(rows, [0.0, 0.0, 0.0]))
    require_sizes(rows.select(slice(0)))


def test_table_itself_takes_any_finite_number(rows):
    data = scaled(rows, [1e155, 1e-170, 1.0])
    assert np.array_equal(
        cb.Data(data.nodes, "Y", data.values, data.intervened).values, data.values
    )


@pytest.mark.parametrize("units", EXTREMES, ids=str)
@pytest.mark.parametrize("method", ["conjugate", "wishart", "laplace", "fixed"])
def test_answers_do_not_depend_on_units_up_to_the_limits(chain, rows, units, method):
    priors = (
        {"prior": cb.priors.FixedPrior()},
        {"prior": cb.priors.FixedPrior(scales=dict(zip(NAMES, units, strict=True)))},
    )
    one, other = ({"method": method},) * 2 if method != "fixed" else priors
    plain, moved = posed(chain), posed(chain, units)
    unit, questions = units[2], (plain.vertices(), moved.vertices())
    data = rows, scaled(rows, units)
    posts = (
        cb.fit(plain, data[0], **one).update(data[0]),
        cb.fit(moved, data[1], **other).update(data[1]),
    )
    effects = [
        np.asarray(cb.response(post)(post.mean, q))
        for post, q in zip(posts, questions, strict=True)
    ]
    grams = [
        np.asarray(cb.jacobian_gram(post, q).gram) for post, q in zip(posts, questions, strict=True)
    ]
    assert posts[1].verdict == posts[0].verdict and np.isfinite(posts[1].covariance).all()
    assert np.allclose(effects[1] / unit, effects[0], rtol=1e-7, atol=1e-7)
    assert np.allclose(grams[1] / unit**2, grams[0], rtol=1e-7, atol=1e-9)
    drawn = [
        cb.monte_carlo_gram(post, q, draws=200, key=0)
        for post, q in zip(posts, questions, strict=True)
    ]
    assert np.allclose(
        drawn[1].standard_error / unit**2, drawn[0].standard_error, rtol=1e-6, atol=1e-9
    )
    surrogates = [
        cb.surrogates.couple(post)
        .condition(q[0], size)
        .condition(q[3], 2 * size)
        .relinearize()
        .predict(q)
        for post, q, size in zip(posts, questions, (1.0, unit), strict=True)
    ]
    assert np.allclose(surrogates[1].mean / unit, surrogates[0].mean, rtol=1e-6, atol=1e-6)
    assert np.allclose(surrogates[1].sd / unit, surrogates[0].sd, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("units", EXTREMES[:2], ids=str)
def test_exact_kernel_and_its_comparison_work_up_to_the_limits(chain, rows, units):
    plain, moved = posed(chain), posed(chain, units)
    one, other = cb.fit(plain, rows), cb.fit(moved, scaled(rows, units))
    expected = cb.exact_gram(one, plain.vertices()).gram
    assert np.allclose(
        cb.exact_gram(other, moved.vertices()).gram / units[2] ** 2, expected, rtol=1e-8, atol=1e-10
    )
    table = cb.compare_kernels(other, moved.vertices(), draws=200, key=0)
    assert (
        not np.isnan(table["bound"]).any() and (table["bound"] >= table["remainder_maximum"]).all()
    )


@pytest.mark.parametrize(
    "domain, message",
    [
        ((-1e155, 1e155), r"the domain of 'X' reaches 1e\+155, above 1e\+50, .*; change its units"),
        ((0.0, 1e-170), "the domain of 'X' reaches 1e-170, below 1e-50"),
        ((1e-40, 1e-40 * (1 + 1e-12)), "the domain of 'X' has the width 1e-52, below 1e-50"),
    ],
)
def test_domain_of_impossible_size_is_refused(chain, domain, message):
    with pytest.raises(cb.errors.DomainError, match=message):
        cb.Problem(chain.problem.graph, "Y", domains={"X": domain})


def test_known_coefficient_of_impossible_size_is_refused(chain):
    with pytest.raises(
        cb.errors.DomainError,
        match=r"the known coefficient of X -> Z has the size 1e\+155, .*; change its units",
    ):
        cb.Problem(chain.problem.graph, "Y", domains={"X": (-1, 1)}, known={("X", "Z"): -1e155})


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: cb.priors.FixedPrior(scales={"X": 1e160}),
            r"the scale of 'X' has the size 1e\+160, above 1e\+50",
        ),
        (
            lambda: cb.priors.FixedPrior(scales={"X": 1e-160}),
            "the scale of 'X' has the size 1e-160, below 1e-50",
        ),
        (
            lambda: cb.priors.FixedPrior(centres={"X": -1e160}),
            r"the centre of 'X' has the size 1e\+160",
        ),
        (lambda: cb.priors.FixedPrior(slope_sd=1e160), r"slope_sd has the size 1e\+160"),
        (
            lambda: cb.priors.FixedPrior(slopes={("X", "Z"): (1e160, 1.0)}),
            r"prior mean of the slope .* 1e\+160",
        ),
        (
            lambda: cb.priors.FixedPrior(slopes={("X", "Z"): (1.0, 1e-160)}),
            "prior sd of the slope .* 1e-160",
        ),
        (
            lambda: cb.priors.FixedPrior(noise_observations=1e160),
            r"noise_observations must be more than 2 and at most 1e50",
        ),
        (lambda: cb.priors.ScaledPrior(observations=1e-160), "observations has the size 1e-160"),
        (
            lambda: cb.priors.MomentPrior(np.full(2, 1e160), 1.0, np.eye(2), 5.0),
            r"centre\[0\] has the size 1e\+160",
        ),
        (
            lambda: cb.priors.MomentPrior(np.zeros(2), 1.0, np.diag([1.0, 1e-150]), 5.0),
            r"root of scale\[1, 1\] has .*e-75",
        ),
    ],
)
def test_prior_of_impossible_size_is_refused(make, message):
    with pytest.raises(cb.errors.MechanismError, match=message):
        make()
    assert cb.priors.FixedPrior(noise_observations=math.inf, centres={"X": 0.0}).centres == {
        "X": 0.0
    }


def test_outcome_of_impossible_size_is_refused(chain, rows):
    problem, query = chain.problem, chain.problem.queries([{"X": 1.0}])
    large = r"an outcome of the target has the size 1e\+160, above 1e\+50, .*; change its units"
    for method in ("laplace", "nuts"):
        with pytest.raises(cb.errors.DataError, match=large):
            cb.fit(problem, rows, method=method, outcomes=(query, [-1e160]), key=0)
    surrogate = cb.surrogates.couple(cb.fit(problem, rows))
    with pytest.raises(cb.errors.DataError, match=large):
        surrogate.condition(query, 1e160)
    with pytest.raises(
        cb.errors.DataError, match=r"variance of the outcome's noise is 1e\+160, above 1e\+100"
    ):
        surrogate.condition(query, 1.0, 1e160)
    assert np.isfinite(surrogate.condition(query, 1e-170).predict(query).mean).all()
    with pytest.raises(cb.errors.ExperimentFailed, match=large):
        cb.optimize(problem, data=rows, experiment=lambda q: 1e160, rounds=3, key=0)

    def measure(queries):
        found = chain.experiment(queries, 0)
        return cb.Data(
            found.nodes,
            "Y",
            np.where(np.array(NAMES) == "Y", 1e160, found.values),
            found.intervened,
        )

    with pytest.raises(cb.errors.ExperimentFailed, match=large):
        cb.optimize(problem, data=rows, experiment=measure, rounds=3, key=0)


def test_closed_form_that_is_not_finite_is_not_called_exact(chain, rows, monkeypatch):
    good = cb.fit(chain.problem, rows), cb.fit(chain.problem, rows, method="wishart")
    solve, moments_of = equations.solve_scaled, wishart.solve_moments

    def broken(*arguments):
        return (found := solve(*arguments))._replace(mean=found.mean * np.nan)

    monkeypatch.setattr(equations, "solve_scaled", broken)
    monkeypatch.setattr(
        wishart, "solve_moments", lambda *a: moments_of(*a)._replace(centre=np.full(3, np.nan))
    )
    for post in good:
        with pytest.raises(cb.errors.NumericalError, match="not finite, so .* is not exact"):
            cb.fit(chain.problem, rows, method=post.method)
        with pytest.raises(cb.errors.NumericalError, match="not exact"):
            post.update(rows)
    monkeypatch.undo()
    monkeypatch.setattr(
        conjugate.ExactDistribution, "moments", lambda self: (np.full(4, np.inf), np.eye(4))
    )
    with pytest.raises(
        cb.errors.NumericalError,
        match=r"of b\[X->Z\] is not finite, so the verdict 'exact' does not hold",
    ):
        cb.fit(chain.problem, rows).mean  # noqa: B018
