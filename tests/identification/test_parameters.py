"""theta_Y: which coordinates, shared by which sets, and how many of them any response can see."""

import numpy as np
import pytest
from helpers.oracles import ancestors, dense_effect, powerset, random_admg

import causal_bo_ppl as cb

STEP = 1e-5


def parameters(text, sets, kind="structural", *, intercepts=False, **options):
    ids = cb.identify(cb.CausalGraph.parse(text), "Y", sets, identifiable_only=True, **options)
    return ids.parameters(kind, intercepts=intercepts)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("target", "parents", "size", "counts", "ranks"),
    [("yaeM", True, None, (16, 26), (16, 26)), ("b1583", False, 5, (19, 31), (13, 22))],
)
def test_ecoli70_has_the_known_dimensions_and_ranks(target, parents, size, counts, ranks):
    problem = cb.models.load("ecoli70", target=target, parents=parents, max_size=size).problem
    ids = cb.identify(problem)
    assert all(found.identifiable for found in ids.values())
    for intercepts, count, rank in zip((False, True), counts, ranks, strict=True):
        theta = ids.parameters("structural", intercepts=intercepts)
        assert (theta.dimension, theta.rank) == (count, rank) and len(theta) == len(
            set(theta.names)
        ) == count
        for kind in "total_effect", "estimand":
            assert ids.parameters(kind, intercepts=intercepts).rank == rank


def test_chain_shares_its_last_edge():
    theta = parameters("X -> Z -> Y", ["X", "Z"])
    assert theta.names == ("b[X->Z]", "b[Z->Y]")
    assert theta.sharing().to_numpy().tolist() == [[True, True], [False, True]]
    assert theta.sharing().index.tolist() == ["X", "Z"] and theta.rank == 2
    assert parameters("X -> Z -> Y", ["X", "Z"], intercepts=True).names == (
        "b[X->Z]",
        "b[Z->Y]",
        "a[Z]",
        "a[Y]",
    )


def test_known_coefficient_leaves_theta(make_problem):
    ids = cb.identify(make_problem(known={("Z", "Y"): 1.3}))
    theta = ids.parameters("structural", intercepts=False)
    assert (
        theta.names == ("b[X->Z]",) and theta.rank == 1 and theta.uses.tolist() == [[True], [False]]
    )
    assert ids.parameters("total_effect", intercepts=False).names == ("tau[X|X]",)
    assert ids.parameters("estimand", intercepts=False).names == ("est[X|X]",)
    everything = cb.identify(make_problem(known={("Z", "Y"): 1.3, ("X", "Z"): 0.5}))
    assert everything.parameters("structural", intercepts=False).rank == 0
    assert everything.parameters("total_effect", intercepts=True).names == ("tau[Y|X]", "tau[Y|Z]")


def test_total_effects_are_keyed_by_what_lies_on_the_paths():
    theta = parameters(
        "X -> Z -> Y; X -> Y; W -> Y",
        ["X", "Z", ("X", "Z"), ("X", "W")],
        "total_effect",
        intercepts=True,
    )
    assert theta.names == (
        *("tau[X|X]", "tau[Y|X]", "tau[Z|Z]", "tau[Y|Z]"),
        *("tau[W|W]", "tau[Y|W,X]", "tau[X|X,Z]", "tau[Y|X,Z]"),
    )
    assert theta.sharing().loc["W, X", ["tau[X|X]", "tau[W|W]"]].all()
    frame = theta.to_frame()
    assert (
        frame.loc["tau[X|X,Z]"].tolist() == ["X", "Y", "X, Z", 1]
        and frame.loc["tau[X|X]", "used_by"] == 2
    )


def test_estimand_coordinates_belong_to_one_effect():
    theta = parameters("X -> Z -> Y; X <-> Y", ["X", "Z", ("X", "Z")], "estimand", intercepts=True)
    assert theta.names == ("est[X|X]", "est[Y|X]", "est[Z|Z]", "est[Y|Z]")
    assert theta.uses.sum(axis=1).tolist() == [2, 2, 2]  # do(X, Z) is do(Z)


def random_sets(draws, most_nodes=6):
    while True:
        nodes, directed, bidirected = random_admg(draws, most_nodes)
        target = nodes[-1]
        causes = sorted(ancestors(directed, {target}) - {target})
        if causes:
            chosen = [s for s in powerset(causes) if s and draws.uniform() < 0.5]
            return (
                cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes),
                target,
                chosen or [(causes[0],)],
            )


def random_results(draws, count):
    """Random graphs with the sets of each whose effects can be learned."""
    for _ in range(count):
        graph, target, sets = random_sets(draws)
        ids = cb.identify(graph, target, sets, identifiable_only=True)
        if ids.usable:
            yield graph, target, ids


def responses(graph, target, weights, intercepts, sets, values):
    """f_s at |s| + 1 points of every set."""
    return np.array(
        [
            dense_effect(
                weights,
                intercepts,
                graph.index(target),
                [graph.index(v) for v in members],
                row[: len(members)],
            )
            for members, points in zip(sets, values, strict=True)
            for row in points[: len(members) + 1]
        ]
    )


@pytest.mark.parametrize("intercepts", [False, True], ids=["centred", "intercepts"])
def test_coordinates_are_those_on_which_some_response_depends_and_rank_is_the_jacobians(intercepts):
    draws = np.random.default_rng(20)
    for graph, target, ids in random_results(draws, 25):
        theta, size = ids.parameters("structural", intercepts=intercepts), len(graph.nodes)
        weights, constants = np.zeros((size, size)), draws.normal(size=size) * intercepts
        for cause, effect in graph.directed:
            weights[graph.index(cause), graph.index(effect)] = draws.uniform(
                0.5, 1.5
            ) * draws.choice([-1, 1])
        values = draws.normal(size=(len(ids.usable), size, size))
        columns, rows = {}, np.cumsum([0, *(len(members) + 1 for members in ids.usable)])
        for cause, effect in [
            *graph.directed,
            *((("", node) for node in graph.nodes) if intercepts else ()),
        ]:
            moved = []
            for step in STEP, -STEP:
                w, a = weights.copy(), constants.copy()
                if cause:
                    w[graph.index(cause), graph.index(effect)] += step
                else:
                    a[graph.index(effect)] += step
                moved.append(responses(graph, target, w, a, ids.usable, values))
            columns[cause, effect] = (moved[0] - moved[1]) / (2 * STEP)
        for position, coordinate in enumerate(theta.coordinates):
            column = columns[coordinate.cause, coordinate.effect]
            depends = [
                np.abs(column[start:stop]).max() > 1e-7
                for start, stop in zip(rows, rows[1:], strict=False)
            ]
            assert depends == theta.uses[:, position].tolist(), (graph, coordinate)
        seen = {key for key, column in columns.items() if np.abs(column).max() > 1e-7}
        assert seen == {(found.cause, found.effect) for found in theta.coordinates}
        jacobian = np.stack([columns[key] for key in sorted(seen)], axis=1)
        assert theta.rank == np.linalg.matrix_rank(jacobian, tol=1e-6 * np.linalg.norm(jacobian))


@pytest.mark.heavy
def test_sets_that_share_a_total_effect_have_the_same_one():
    draws = np.random.default_rng(21)
    shared = 0
    for graph, target, ids in random_results(draws, 100):
        theta, size = ids.parameters("total_effect", intercepts=True), len(graph.nodes)
        weights, constants = np.triu(draws.normal(size=(size, size)), 1), draws.normal(size=size)
        edges = np.zeros((size, size), bool)
        edges[tuple(np.array([(graph.index(a), graph.index(b)) for a, b in graph.directed]).T)] = (
            True
        )
        weights *= edges
        for position, coordinate in enumerate(theta.coordinates):
            found = []
            for row in np.flatnonzero(theta.uses[:, position]):
                members = ids.usable[row]
                at = [graph.index(name) for name in members]
                unit = np.array([float(name == coordinate.cause) for name in members])
                base = dense_effect(weights, constants, graph.index(target), at, 0 * unit)
                moved = dense_effect(weights, constants, graph.index(target), at, unit)
                found.append(moved - base if coordinate.cause else base)
            np.testing.assert_allclose(found, found[0], atol=1e-10)
            shared += len(found) > 1
    assert shared > 30


@pytest.mark.parametrize(("intercepts", "rank"), [(False, 99), (True, 198)])
@pytest.mark.heavy
def test_rank_of_a_deep_chain_is_full(intercepts, rank):
    names = [f"N{position:03}" for position in range(100)]
    ids = cb.identify(
        cb.CausalGraph.from_edges(list(zip(names, names[1:], strict=False))), names[-1], 1
    )
    theta = ids.parameters("structural", intercepts=intercepts)
    assert (theta.dimension, theta.rank) == (rank, rank)


def test_names_of_coordinates_never_collide():
    graph = cb.CausalGraph.from_edges(
        [("A", "Y"), ("B", "Y"), ("A,B", "Y"), ("A->B", "Y"), ("Y", 'Y"')]
    )
    ids = cb.identify(graph, "Y", 2)
    for kind in "structural", "total_effect", "estimand", "minimal":
        names = ids.parameters(kind, intercepts=True).names
        assert len(set(names)) == len(names)
    assert 'b["A->B"->Y]' in ids.parameters("structural").names
    assert "tau[A|A]" in ids.parameters("total_effect").names
    assert {"est[A|A,B]", 'est["A,B"|"A,B"]'} <= set(ids.parameters("estimand").names)


def test_unknown_kind_is_refused():
    ids = cb.identify(cb.CausalGraph.parse("X -> Y"), "Y", ["X"])
    with pytest.raises(
        cb.errors.ArgumentError, match="structural, total_effect, estimand, minimal; got 'slopes'"
    ):
        ids.parameters("slopes")


def test_parameters_show_dimension_and_rank_side_by_side():
    problem = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2).problem
    theta = cb.identify(problem).parameters("structural", intercepts=False)
    assert "dimension 19, generic rank 13" in theta._repr_html_()
    assert repr(theta) == f"Parameters(structural: 19 coordinates for {len(problem.sets)} sets)"
    with pytest.raises(ValueError, match="read-only"):
        theta.uses[0, 0] = False


@pytest.mark.parametrize("kind", ["structural", "total_effect", "estimand"])
@pytest.mark.parametrize("intercepts", [True, False])
def test_coordinates_of_one_set_are_those_that_the_table_shows(kind, intercepts):
    text = "A -> B -> C -> Y; A -> C; B -> Y"
    theta = parameters(text, 3, kind, intercepts=intercepts)
    for members, row in zip(theta.explored.sets, theta.uses, strict=True):
        used = {each.name for each in theta.used_by(members)}
        assert used == {name for name, is_used in zip(theta.names, row, strict=True) if is_used}
    other = parameters(text, ["A"], kind, intercepts=intercepts).used_by(("A", "C"))
    assert {each.name for each in other} <= set(theta.names)


def test_sets_that_only_linearity_identifies_become_usable():
    graph = cb.CausalGraph.parse("I -> X -> Y; X <-> Y")
    found = cb.identify(graph, "Y", ["X"])
    assert found.unidentified == (("X",),) and found.with_linearity().usable == (("X",),)
    assert found.with_linearity()["X"] is found["X"] and not found.linear
