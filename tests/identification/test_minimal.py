"""The minimal theta: the fewest quantities of which all effects are polynomials.

Internals: the circuit of `Parameters.circuit` is evaluated here by plain loops, without JAX.
"""

import numpy as np
import pytest
from helpers.oracles import ancestors, dense_effect, powerset, random_admg

import causal_bo_ppl as cb
from causal_bo_ppl.identification.parameters import generic_rank

STEP = 1e-6


def random_results(draws, count):
    """Random graphs with a random selection of sets: any, or all of some variables up to a size."""
    while count:
        nodes, directed, bidirected = random_admg(draws)
        target = nodes[-1]
        causes = sorted(ancestors(directed, {target}) - {target})
        if not causes:
            continue
        if draws.uniform() < 0.5:
            sets = [s for s in powerset(causes) if s and draws.uniform() < 0.5]
        else:
            some, most = [c for c in causes if draws.uniform() < 0.6], draws.integers(1, 4)
            sets = [s for s in powerset(some) if 0 < len(s) <= most]
        graph = cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes)
        ids = cb.identify(graph, target, sets or [causes[:1]], identifiable_only=True)
        if ids.usable:
            count -= 1
            yield graph, target, ids


def random_model(draws, graph, intercepts, known=()):
    weights, constants = np.zeros((len(graph.nodes),) * 2), draws.normal(size=len(graph.nodes))
    for cause, effect in graph.directed:
        weights[graph.index(cause), graph.index(effect)] = draws.uniform(0.5, 1.5) * draws.choice(
            [-1, 1]
        )
    for (cause, effect), value in dict(known).items():
        weights[graph.index(cause), graph.index(effect)] = value
    return weights, constants * intercepts


def read(graph, coordinates, weights, constants):
    """The coordinates by their definition: what a cause adds to a mean while others are held."""
    values = []
    for each in coordinates:
        held = [graph.index(name) for name in each.given]
        effect, zeros = graph.index(each.effect), np.zeros(len(held))
        units = np.array([float(name == each.cause) for name in each.given])
        base = dense_effect(weights, constants, effect, held, zeros)
        moved = dense_effect(weights, constants, effect, held, units)
        values.append(moved - base if each.cause else base)
    return np.array(values)


def slopes_by_circuit(circuit, theta):
    """{set: {cause: slope}}, "" for the intercept."""
    numbers = [*theta, *circuit.constants]
    for left, right in circuit.layers:
        numbers += [
            sum(numbers[i] * numbers[j] for i, j in zip(row, other, strict=True))
            for row, other in zip(left, right, strict=True)
        ]
    return {
        members: {cause: numbers[position] for cause, position in slopes.items()}
        for members, slopes in circuit.slopes.items()
    }


def dense_slopes(graph, target, members, weights, constants):
    held, size = [graph.index(name) for name in members], len(members)
    base = dense_effect(weights, constants, graph.index(target), held, np.zeros(size))
    moved = [dense_effect(weights, constants, graph.index(target), held, x) for x in np.eye(size)]
    return {"": base} | {name: each - base for name, each in zip(members, moved, strict=True)}


@pytest.mark.parametrize("intercepts", [False, True], ids=["centred", "intercepts"])
def test_every_effect_of_random_graphs_is_a_function_of_the_minimal_coordinates(intercepts):
    draws, shorter = np.random.default_rng(30), 0
    for graph, target, ids in random_results(draws, 200):
        theta = ids.parameters("minimal", intercepts=intercepts)
        weights, constants = random_model(draws, graph, intercepts)
        values = read(graph, theta.coordinates, weights, constants)
        found = slopes_by_circuit(theta.circuit, values)
        for members in ids.usable:
            effective = theta.reduce(members).effective
            expected = dense_slopes(graph, target, members, weights, constants)
            for name in members:
                slope = found[effective].get(name, 0.0)
                np.testing.assert_allclose(slope, expected[name], rtol=1e-10, atol=1e-10)
            if intercepts:
                np.testing.assert_allclose(found[effective][""], expected[""], atol=1e-10)
        assert len(set(theta.names)) == len(theta)
        shorter += len(theta) < ids.parameters("structural", intercepts=intercepts).dimension
    assert shorter > 50


@pytest.mark.heavy
@pytest.mark.parametrize("intercepts", [False, True], ids=["centred", "intercepts"])
def test_no_theta_has_fewer_coordinates_in_nearly_all_random_graphs(intercepts):
    """The rank by singular values of finite differences is a lower bound of any dimension."""
    draws, larger = np.random.default_rng(31), []
    for graph, target, ids in random_results(draws, 200):
        theta = ids.parameters("minimal", intercepts=intercepts)
        weights, constants = random_model(draws, graph, intercepts)

        columns = []
        for matrix in (weights, constants):
            where = np.argwhere(matrix) if matrix.ndim == 2 else np.arange(len(matrix))[:, None]
            for index in where if matrix.ndim == 2 or intercepts else []:
                ends = []
                for step in (STEP, -STEP):
                    moved = matrix.copy()
                    moved[tuple(index)] += step
                    pair = (moved, constants) if matrix.ndim == 2 else (weights, moved)
                    rows = [dense_slopes(graph, target, s, *pair) for s in ids.usable]
                    ends.append([row[name] for row in rows for name in row if name or intercepts])
                columns.append((np.array(ends[0]) - np.array(ends[1])) / (2 * STEP))
        sizes = np.linalg.svd(np.stack(columns, axis=1), compute_uv=False)
        rank = int((sizes > 1e-6 * sizes[0]).sum())
        assert rank == theta.rank <= theta.dimension
        larger.append(theta.dimension - rank)
    assert np.mean(np.array(larger) > 0) < 0.05


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("target", "parents", "sizes"), [("yaeM", True, (16, 26)), ("b1583", False, (13, 22))]
)
def test_ecoli70_needs_as_many_coordinates_as_its_rank(target, parents, sizes):
    problem = cb.models.load("ecoli70", target=target, parents=parents, max_size=None).problem
    if target == "b1583":
        problem = problem.explore(5)
    for intercepts, size in zip((False, True), sizes, strict=True):
        theta = problem.identification.parameters("minimal", intercepts=intercepts)
        assert (theta.dimension, theta.rank) == (size, size)
        structural = problem.identification.parameters("structural", intercepts=intercepts)
        assert (theta.names == structural.names) == (target == "yaeM")
        if target == "b1583" and not intercepts:
            edges = [(each.cause, each.effect) for each in structural.coordinates]
            known_intercepts = (problem.graph, "b1583", problem.sets, {}, edges, False)
            assert generic_rank(*known_intercepts) == 15


def names(text, sets, *, intercepts=False):
    ids = cb.identify(cb.CausalGraph.parse(text), "Y", sets)
    return ids.parameters("minimal", intercepts=intercepts).names


def test_coordinates_have_the_names_of_what_they_mean():
    both = ["X", "Z", ("X", "Z")]
    assert names("X -> Z -> Y; X -> Y", both) == ("b[X->Z]", "b[X->Y]", "b[Z->Y]")
    assert names("X -> Z -> Y; X -> Y", ["X", "Z"]) == ("b[Z->Y]", "tau[X|X]")
    text = "X -> M; W -> M; M -> Z; Z -> Y; X -> Z; W -> Y"
    found = names(text, ["X", "Z", "W", ("X", "W"), ("X", "Z"), ("W", "Z")], intercepts=True)
    assert found == (
        *("b[W->..->Z]", "b[W->Y]", "b[X->..->Z]", "b[Z->Y]"),
        *("a[W]", "a[X]", "a[..->Z]", "a[Y]"),
    )
    found = names("M -> X; M -> N; N -> Y; X -> Y", ["X"], intercepts=True)
    assert found == ("b[X->Y]", "tau[Y|X]")


def test_products_of_which_no_polynomials_are_enough_keep_one_coordinate_more_than_the_rank():
    ids = cb.identify(cb.CausalGraph.parse("A -> M; B -> M; M -> C -> Y; M -> D -> Y"), "Y", 4)
    assert any("M" in members for members in ids)  # M is set too: 6 coefficients, all seen
    theta = ids.parameters("minimal", intercepts=False)
    assert theta.dimension == theta.rank == 6
    sets = [s for s in ids if "M" not in s]
    ids = cb.identify(ids.graph, "Y", sets)
    theta = ids.parameters("minimal", intercepts=False)
    assert (theta.dimension, theta.rank) == (6, 5)  # a matrix of rank one has 5 dimensions


def test_known_coefficients_are_constants_of_the_circuit(make_problem):
    problem = make_problem(known={("Z", "Y"): 1.3})
    theta = problem.identification.parameters("minimal", intercepts=False)
    assert theta.names == ("b[X->Z]",) and theta.rank == 1
    found = slopes_by_circuit(theta.circuit, np.array([2.0]))
    assert found["X",] == {"X": 2.6} and found["Z",] == {"Z": 1.3}
    draws = np.random.default_rng(32)
    text = "X -> M; M -> Z; X -> Z; Z -> Y; W -> Z; W -> M"
    graph = cb.CausalGraph.parse(text)
    known = {("M", "Z"): -0.7, ("X", "Z"): 0.4, ("X", "M"): 2.0}
    problem = cb.Problem(graph, "Y", domains=dict.fromkeys("XZW", (-1, 1)), sets=2, known=known)
    theta = problem.identification.parameters("minimal", intercepts=True)
    assert not any(name.startswith("b[X") for name in theta.names)  # 0.4 - 0.7 x 2 is known
    weights, constants = random_model(draws, graph, True, known)
    values = read(graph, theta.coordinates, weights, constants)
    found = slopes_by_circuit(theta.circuit, values)
    for members in problem.sets:
        expected = dense_slopes(graph, "Y", members, weights, constants)
        for name in theta.reduce(members).effective:
            assert found[theta.reduce(members).effective][name] == pytest.approx(expected[name])


@pytest.fixture(scope="module")
def b1583():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)
    data = system.observe(60, 0)
    posts = {
        kind: cb.fit(system.problem, data, parameters=kind) for kind in ("structural", "minimal")
    }
    return system, data, posts


def test_kernels_and_effects_are_those_of_all_coefficients(b1583):
    system, data, posts = b1583
    queries = system.problem.vertices()
    assert [len(post.names) for post in posts.values()] == [31, 22]
    found = {kind: np.asarray(cb.response(p)(p.mean, queries)) for kind, p in posts.items()}
    np.testing.assert_allclose(found["minimal"], found["structural"], rtol=1e-10, atol=1e-10)
    for gram in cb.jacobian_gram, cb.exact_gram:
        one, other = (np.asarray(gram(posts[kind], queries).gram) for kind in posts)
        assert np.abs(one - other).max() < 1e-10 * np.abs(one).max()
    tables = [
        cb.effects(post, [{"eutG": 1.0}, {}], against={"cspG": 0.5}) for post in posts.values()
    ]
    for column in ("mean", "sd"):
        np.testing.assert_allclose(tables[0][column], tables[1][column], rtol=1e-8)
    draws = {kind: post.draws(300, 0) for kind, post in posts.items()}
    drawn = [np.asarray(cb.response(posts[kind])(draws[kind], queries)) for kind in posts]
    np.testing.assert_allclose(*drawn, rtol=1e-9, atol=1e-10)
    more = system.observe(20, 1)
    again = [cb.jacobian_gram(p.update(more), queries).gram for p in posts.values()]
    np.testing.assert_allclose(*map(np.asarray, again), rtol=1e-8, atol=1e-12)


def test_the_bound_by_dimension_is_as_tight_as_that_by_rank(b1583):
    _, _, posts = b1583
    tables = {
        kind: cb.theory.gain_curves(post, noise=0.5, rounds=40) for kind, post in posts.items()
    }
    assert all(table.attrs["rank"] == 22 for table in tables.values())
    assert [table.attrs["dimension"] for table in tables.values()] == [31, 22]
    last = {kind: table.iloc[-1] for kind, table in tables.items()}
    bounds = [last[kind]["bound by dimension"] for kind in ("structural", "minimal")]
    assert bounds[1] < bounds[0]
    assert bounds[1] == pytest.approx(last["structural"]["bound by rank"], rel=1e-9)


@pytest.mark.parametrize("method", ["laplace", cb.NUTS(chains=2, warmup=100, draws=100)])
def test_other_methods_read_the_same_models(method):
    graph = cb.CausalGraph.parse("X -> M -> Z -> Y; W -> M; X <-> W")
    problem = cb.Problem(graph, "Y", domains=dict.fromkeys("XZW", (-1, 1)), sets=2)
    draws = np.random.default_rng(0)
    data = cb.Data(graph.nodes, "Y", draws.normal(size=(60, 5)), np.zeros((60, 5), bool))
    posts = [
        cb.fit(problem, data, method=method, parameters=kind, key=1)
        for kind in ("structural", "minimal")
    ]
    assert posts[1].parameters.rank == len(posts[1].names) < len(posts[0].names)
    queries = problem.sobol(2)
    if method == "laplace":
        found = [np.asarray(cb.jacobian_gram(post, queries).gram) for post in posts]
    else:
        chains = [post.distribution.chains.reshape(200, -1) for post in posts]
        found = [np.asarray(cb.response(p)(c, queries)) for p, c in zip(posts, chains, strict=True)]
    np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-11)


def test_what_minimal_cannot_be_is_refused_by_name(b1583):
    system, data, posts = b1583
    with pytest.raises(cb.errors.ArgumentError, match='take parameters="estimand", not \'minimal'):
        cb.fit(system.problem, data, method="wishart", parameters="minimal")
    with pytest.raises(cb.errors.ArgumentError, match="is for linear mechanisms"):
        cb.fit(system.problem, data, mechanisms="gp", parameters="minimal")
    graph = cb.CausalGraph.parse("X -> Z -> Y; X -> Y")
    chain = cb.Problem(graph, "Y", domains=dict.fromkeys("XZ", (-1, 1)), sets=["X", "Z"])
    draws = np.random.default_rng(0).normal(size=(30, 3))
    post = cb.fit(
        chain, cb.Data(graph.nodes, "Y", draws, np.zeros((30, 3), bool)), parameters="minimal"
    )
    with pytest.raises(cb.errors.ExplorationError, match=r"needs tau\[X\|X,Z\].*add that set"):
        cb.response(post).map.batch(
            cb.problem.Queries(np.array([[1, 1, 0]], bool), np.ones((1, 3)))
        )
