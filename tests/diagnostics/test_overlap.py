"""Overlap of domains and data, compared with plain formulas."""

from itertools import product

import numpy as np
import pytest

import causal_bo_ppl as cb

CONFOUNDED = "W -> X -> Y; W -> Y"
PAIR = "A -> Y; B -> Y"


def posed(text, sets="mis", **domains):
    graph = cb.CausalGraph.parse(text)
    return cb.Problem(graph, "Y", domains=domains, sets=sets)


def as_data(problem, columns, intervened=()):
    """Return data from {variable: column}, the named variables set in all observations."""
    values = np.column_stack([columns[name] for name in problem.graph.nodes])
    mask = np.broadcast_to(np.isin(problem.graph.nodes, intervened), values.shape)
    return cb.Data(problem.graph.nodes, "Y", values, mask)


def normal_data(problem, size=100, seed=0, **columns):
    """Return standard normal columns, except those given."""
    draws = np.random.default_rng(seed)
    free = {name: draws.normal(size=size) for name in problem.graph.nodes}
    return as_data(problem, free | columns)


def line_of(check, members):
    return check.table.set_index("set").loc[members]


def dense_reach(problem, data, members):
    """Corners by product, distances by the inverse covariance."""
    points = np.column_stack([data.column(name) for name in members])
    mean, precision = points.mean(axis=0), np.linalg.inv(np.atleast_2d(np.cov(points.T)))

    def lengths(points):
        return np.sqrt([(point - mean) @ precision @ (point - mean) for point in points])

    corners = np.array(list(product(*(problem.domains[name] for name in members))))
    return lengths(corners).max() / np.quantile(lengths(points), 0.99)


def dense_share(data, name, by):
    """Adjusted R^2 by least squares."""
    design = np.column_stack([np.ones(len(data)), *(data.column(other) for other in by)])
    response = data.column(name)
    left = response - design @ np.linalg.lstsq(design, response)[0]
    return 1 - (left @ left / (len(data) - design.shape[1])) / response.var(ddof=1)


def test_reach_and_explained_are_those_of_plain_formulas():
    system = cb.models.load("synthetic")
    data = system.observe(60, 3)
    table = cb.diagnostics.check_overlap(system.problem, data).table
    assert len(table) == len(system.problem.sets) == 6
    for line in table.to_dict("records"):
        members = line["set"].split(", ")
        assert line["reach"] == pytest.approx(dense_reach(system.problem, data, members))
        by = [name for name in line["by"].split(", ") if name]
        assert line["explained"] == pytest.approx(
            max(0, dense_share(data, line["member"], by)), abs=1e-12
        )
        assert line["effective_observations"] == pytest.approx(60 * (1 - line["explained"]))
    assert (table["explained"] > 0.1).any()


def test_covered_is_the_share_of_the_box_that_the_observations_surround():
    problem = posed("X -> Y", X=(-5.0, 5.0))
    data = normal_data(problem, 500)
    x = data.column("X")
    inner = np.quantile(np.abs(x - x.mean()), 0.99)
    share = (min(5, x.mean() + inner) - max(-5, x.mean() - inner)) / 10
    assert line_of(cb.diagnostics.check_overlap(problem, data), "X")["covered"] == pytest.approx(
        share,
        abs=2 / 512,  # the share is that of 512 points
    )
    inside = posed("X -> Y", X=(-0.5, 0.5))
    assert line_of(cb.diagnostics.check_overlap(inside, data), "X")["covered"] == 1.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_healthcare_fails_because_aspirin_and_statin_follow_age_and_bmi(seed):
    system = cb.models.load("healthcare")
    data = system.observe(200, seed)
    check = cb.diagnostics.check_overlap(system.problem, data)
    assert check.verdict == "failed" and {"aspirin", "aspirin, statin"} <= set(
        check.failures["set"]
    )
    assert "aspirin is nearly a function of age, bmi (R^2 0.99" in check.text
    assert "statin is nearly a function of age, bmi, aspirin (R^2 0.99" in check.text
    together = np.corrcoef(data.column("aspirin"), data.column("statin"))[0, 1]
    assert (
        together > 0.95
        and f"The correlation of aspirin and statin is {together:.3f}." in check.text
    )
    assert "The data hardly inform effects of setting aspirin, statin apart" in check.text
    assert (
        "estimates there depend on the form of the model" in check.text
        and "do(aspirin = 0, statin = 1) lies 1" in check.text
    )
    assert check.advice.startswith("Run experiments that set aspirin, statin")
    assert "narrow the domains" in check.advice and "widen the priors" in check.advice


def test_experiments_that_set_both_clear_healthcare():
    system = cb.models.load("healthcare")
    observed, tried = system.observe(200, 0), system.problem.sobol(10)
    values = observed.values[: len(tried)].copy()
    values[tried.mask] = np.asarray(tried.value)[
        tried.mask
    ]  # what follows from them is not looked at
    data = observed.join(cb.Data(observed.nodes, "PSA", values, np.asarray(tried.mask)))
    check = cb.diagnostics.check_overlap(system.problem, data)
    assert check.passed, check
    assert check.advice == "" and "without overlap: 0." in check.text


def test_experiments_that_set_two_variables_alike_do_not_separate_them():
    problem = posed(PAIR, sets=2, A=(-1.0, 1.0), B=(-1.0, 1.0))
    draws = np.random.default_rng(0)
    alike, other = draws.uniform(-1, 1, 50), draws.uniform(-1, 1, 50)
    same = as_data(
        problem, {"A": alike, "B": alike + 0.01 * other, "Y": alike}, intervened=["A", "B"]
    )
    line = line_of(cb.diagnostics.check_overlap(problem, same), "A, B")
    assert line["verdict"] == "failed" and line["explained"] > 0.99
    apart = as_data(problem, {"A": alike, "B": other, "Y": alike}, intervened=["A", "B"])
    assert cb.diagnostics.check_overlap(problem, apart).passed


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "options", "size", "sets"),
    [
        ("chain", {}, 200, 2),
        ("ecoli70", {"target": "b1583", "parents": False, "max_size": 5}, 500, 218),
    ],
)
def test_models_whose_data_fill_their_domains_pass(name, options, size, sets):
    system = cb.models.load(name, **options)
    for seed in range(2):
        check = cb.diagnostics.check_overlap(system.problem, system.observe(size, seed))
        assert (
            check.passed and len(check.table) == sets and set(check.table["verdict"]) == {"passed"}
        ), check
        assert (
            f"Intervention sets checked, with {size} observations: {sets}; without overlap: 0."
            in check.text
        )


def test_domain_far_from_the_data_fails_with_both_ranges():
    problem = posed("X -> Y", X=(100.0, 110.0))
    x = np.linspace(-2, 2.5, 50)
    check = cb.diagnostics.check_overlap(problem, normal_data(problem, 50, X=x))
    assert check.verdict == "failed" and line_of(check, "X")["covered"] == 0.0
    assert "X may be set in [100, 110], but was observed in [-2, 2.5] only." in check.text
    assert "do(X = 110) lies" in check.text and "nearly a function" not in check.text
    assert "set X independently" in check.advice
    assert cb.diagnostics.check_overlap(problem, normal_data(problem, 50, X=x), reach=1000.0).passed


def test_jointly_unseen_corner_is_named():
    problem = posed(PAIR, sets=2, A=(-2.0, 2.0), B=(-2.0, 2.0))
    a, noise = np.random.default_rng(1).normal(size=(2, 200))
    check = cb.diagnostics.check_overlap(
        problem, normal_data(problem, 200, A=a, B=0.98 * a + 0.19 * noise)
    )
    assert check.failures["set"].tolist() == ["A, B"] and check.table["set"].tolist() == [
        "A, B",
        "A",
        "B",
    ]
    assert "do(A = -2, B = 2) lies" in check.text or "do(A = 2, B = -2) lies" in check.text
    assert "was observed in" not in check.text and "set A, B independently" in check.advice


def test_exactly_collinear_members_are_infinitely_far():
    problem = posed(PAIR, sets=2, A=(-1.0, 1.0), B=(-1.0, 1.0))
    a = 1e3 + np.random.default_rng(2).normal(size=40)
    check = cb.diagnostics.check_overlap(problem, normal_data(problem, 40, A=a, B=3 - a / 7))
    line = line_of(check, "A, B")
    assert (
        line["reach"] == np.inf
        and line["covered"] == 0
        and line["explained"] == 1
        and line["verdict"] == "failed"
    )
    assert (
        "lies in a direction in which the observations do not vary" in check.text
        and "A and B is -1.000" in check.text
    )


def test_constant_variable_is_infinitely_far():
    problem = posed(PAIR, sets=2, A=(0.0, 1.0), B=(-1.0, 1.0))
    check = cb.diagnostics.check_overlap(problem, normal_data(problem, 40, A=np.full(40, 0.1)))
    assert (
        check.failures["set"].tolist() == ["A", "A, B"]
        and line_of(check, "B")["verdict"] == "passed"
    )
    assert line_of(check, "A")["reach"] == np.inf and np.isnan(line_of(check, "A")["explained"])
    assert "A may be set in [0, 1], but was observed in [0.1, 0.1] only." in check.text


def test_member_that_does_nothing_beside_the_others_is_omitted(make_problem):
    problem = make_problem(sets=[["Z"], ["X", "Z"]])
    x, noise = np.random.default_rng(3).normal(size=(2, 100))
    data = normal_data(problem, 100, X=x, Z=x + 1e-3 * noise)
    check = cb.diagnostics.check_overlap(problem, data, reach=10.0)
    assert check.passed and check.table["reach"].nunique() == 1  # X acts through Z alone


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("W -> X -> Y", ""),
        (CONFOUNDED, "W"),
        ("W -> X -> Y; W <-> Y", "W"),
        ("V -> W -> X -> Y; V -> Y", "W"),
        ("V -> W -> X -> Y; V -> X; V -> Y", "V"),
        ("V -> W -> X -> Y; V -> X; W <-> Y", "V, W"),
    ],
)
def test_parents_confound_where_they_are_related_to_the_target_by_another_path(text, by):
    problem = posed(text, X=(-1.0, 1.0))
    assert line_of(cb.diagnostics.check_overlap(problem, normal_data(problem)), "X")["by"] == by


def test_variable_that_hardly_varies_beside_its_causes_fails():
    problem = posed(CONFOUNDED, X=(-1.0, 1.0))
    w, noise = np.random.default_rng(4).normal(size=(2, 100))
    data = normal_data(problem, 100, W=w, X=w + 0.2 * noise)
    share = dense_share(data, "X", ["W"])
    assert 0.93 < share < 0.99 and cb.diagnostics.check_overlap(problem, data).passed
    check = cb.diagnostics.check_overlap(problem, data, most_explained=0.9)
    assert (
        check.verdict == "failed" and f"X is nearly a function of W (R^2 {share:.3f}" in check.text
    )
    assert f"equals {100 * (1 - share):.2g} of 100 observations" in check.text


def test_share_is_adjusted_for_the_number_of_causes():
    """Ten causes of no effect explain half of 21 observations by chance."""
    names = [f"W{position}" for position in range(10)]
    problem = posed(
        "; ".join(f"{name} -> X; {name} -> Y" for name in names) + "; X -> Y", X=(-1.0, 1.0)
    )
    shares = [
        line_of(cb.diagnostics.check_overlap(problem, normal_data(problem, 21, seed)), "X")[
            "explained"
        ].item()
        for seed in range(30)
    ]
    assert np.mean(shares) < 0.25
    check = cb.diagnostics.check_overlap(problem, normal_data(problem, 11))
    assert check.verdict == "not assessed" and line_of(check, "X")["reach"] < 4
    assert line_of(check, "X")["reason"].startswith(
        "11 observations are too few to separate X from W0, W1"
    )


def test_neither_units_nor_means_matter():
    system = cb.models.load("healthcare")
    data = system.observe(200, 5)
    expected = cb.diagnostics.check_overlap(system.problem, data).table[
        ["reach", "covered", "explained"]
    ]
    for unit, mean in [(1e-49, 0.0), (1e49, 0.0), (1.0, 1e6)]:
        domains = {name: (mean, mean + unit) for name in system.problem.domains}
        problem = cb.Problem(system.problem.graph, "PSA", domains=domains)
        moved = cb.Data(data.nodes, "PSA", mean + unit * data.values, data.intervened)
        found = cb.diagnostics.check_overlap(problem, moved).table[
            ["reach", "covered", "explained"]
        ]
        assert np.allclose(found, expected, rtol=1e-5)


def test_giant_domains_are_very_far_and_domains_of_constants_infinitely_so():
    problem = posed(PAIR, sets=2, A=(0.0, 1e50), B=(-1e50, 1e50))
    for columns in ({}, {"A": np.full(100, 1e-200)}, {"A": np.zeros(100), "B": np.zeros(100)}):
        check = cb.diagnostics.check_overlap(problem, normal_data(problem, **columns))
        assert len(check.failures) == 3 and (check.table["reach"] > 1e49).all()
    assert (check.table["reach"] == np.inf).all()


def test_values_of_any_size_are_compared_with_their_domains():
    problem = posed(PAIR, sets=2, A=(0.0, 1.0), B=(-1.0, 1.0))
    column = np.random.default_rng(0).normal(size=100)
    for unit, failures in ((1e155, 0), (1e-170, 2)):
        check = cb.diagnostics.check_overlap(problem, normal_data(problem, A=unit * column))
        assert len(check.failures) == failures and not check.table["reach"].isna().any()


def test_many_members_have_a_reach_within_its_bound():
    names = [f"A{position:02}" for position in range(14)]
    problem = posed(
        "; ".join(f"{name} -> Y" for name in names),
        sets=[names],
        **dict.fromkeys(names, (-1.0, 2.0)),
    )
    one, noise = np.random.default_rng(6).normal(size=(2, 60))
    data = normal_data(
        problem, 60, A00=one, A01=one + 0.01 * noise
    )  # few corners are far, and very far
    found = line_of(cb.diagnostics.check_overlap(problem, data), ", ".join(names))["reach"]
    points = data.values[:, :14]
    whiten = np.linalg.inv(np.linalg.cholesky(np.cov(points.T)))
    corners = np.array(list(product((-1.0, 2.0), repeat=14))) - points.mean(axis=0)
    inner = np.quantile(np.linalg.norm((points - points.mean(axis=0)) @ whiten.T, axis=1), 0.99)
    exact = np.linalg.norm(corners @ whiten.T, axis=1).max() / inner
    assert exact / np.sqrt(14) <= found <= exact * (1 + 1e-9)


def test_few_observations_are_not_assessed():
    problem = posed(PAIR, sets=2, A=(-1.0, 1.0), B=(-1.0, 1.0))
    check = cb.diagnostics.check_overlap(problem, normal_data(problem, 3))
    assert line_of(check, "A, B")["reason"] == "3 observations are too few; at least 4 are needed"
    assert line_of(check, "A")["verdict"] != "not assessed"
    alone = cb.diagnostics.check_overlap(problem, normal_data(problem, 1))
    assert alone.verdict == "not assessed" and alone.table["reach"].isna().all()
    assert (
        "not assessed: 3 (such as: 1 observations are too few" in alone.text and alone.advice == ""
    )
    with pytest.raises(cb.errors.DataError, match="there are no observations; observe some"):
        cb.diagnostics.check_overlap(problem, normal_data(problem, 0))


def test_many_failing_variables_are_counted_and_not_all_named():
    names = [f"A{position}" for position in range(8)]
    problem = posed(
        "; ".join(f"{name} -> Y" for name in names), sets=1, **dict.fromkeys(names, (50.0, 60.0))
    )
    check = cb.diagnostics.check_overlap(problem, normal_data(problem))
    assert len(check.failures) == 8 and check.text.count("was observed in") == 3
    assert "5 more variables likewise" in check.text


@pytest.mark.parametrize(
    ("change", "error", "fault"),
    [
        (
            {"problem": cb.models.load("chain")},
            cb.errors.ArgumentError,
            "check_overlap needs a Problem, got CausalSystem; of a sys",
        ),
        ({"data": [[1.0, 2.0]]}, cb.errors.DataError, "check_overlap needs Data, got list"),
        (
            {"problem": posed(PAIR, A=(0.0, 1.0))},
            cb.errors.DataError,
            "the data are of X, Y .* read them for this problem",
        ),
        ({"reach": 0.0}, cb.errors.ArgumentError, "reach must lie between 0 and inf, got 0"),
        (
            {"reach": float("nan")},
            cb.errors.ArgumentError,
            "reach must lie between 0 and inf, got nan",
        ),
        (
            {"most_explained": 1.0},
            cb.errors.ArgumentError,
            "most_explained must lie between 0 and 1, got 1",
        ),
        (
            {"most_explained": None},
            cb.errors.DomainError,
            "the value of 'most_explained' must be a real number, got None",
        ),
    ],
)
def test_wrong_inputs_are_refused(change, error, fault):
    problem = posed("X -> Y", X=(0.0, 1.0))
    options = {"problem": problem, "data": normal_data(problem)} | change
    with pytest.raises(error, match=fault):
        cb.diagnostics.check_overlap(options.pop("problem"), options.pop("data"), **options)
