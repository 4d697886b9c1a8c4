"""What linearity identifies beyond ID, against the implied covariance itself.

Internals: ranks and half-treks are compared with the implied covariance below identification.
"""

import numpy as np
import pytest
from helpers.oracles import ancestors, has_hedge, random_admg

import causal_bo_ppl as cb
from causal_bo_ppl.identification import linear_identification as linearity
from causal_bo_ppl.identification.finite_field import eliminate
from causal_bo_ppl.identification.linear_identification import half_trek_identified
from causal_bo_ppl.identification.parameters import reduce_effect

INSTRUMENT = "Z -> X -> Y; X <-> Y"
CONDITIONAL = "C -> A -> X -> Y; C -> X; C -> Y; C <-> Y; X <-> Y"
TWO_VALUED = "D -> A; D -> B; D -> C; A -> C; B -> Y; C -> Y; D <-> A; D <-> B; D <-> C; A <-> Y"


def verdict(text, intervened="X", known=None):
    graph = cb.CausalGraph.parse(text)
    domains = dict.fromkeys(graph.require(intervened), (-1.0, 1.0))
    return cb.identify(cb.Problem(graph, "Y", domains=domains, sets=[intervened], known=known))[
        intervened
    ].linearity


def test_instrument_is_identified_by_half_treks_and_a_bow_is_not():
    assert verdict(INSTRUMENT) == (True, "identified under linearity", "half-trek criterion")
    bow = verdict("X -> Y; X <-> Y")
    assert not bow.identified and bow.verdict == "not identified under linearity"


def test_conditional_instrument_is_identified_by_numerical_evidence():
    found = verdict(CONDITIONAL)
    assert (
        found.identified
        and found.evidence.startswith("numerical evidence")
        and "all with the same effect" in found.evidence
    )


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("A -> X; C -> X; C -> Y; X -> Y; C <-> Y; X <-> Y", "X"),
        (
            "E -> C; E -> D; E -> B; E -> Y; C -> D; C -> Y; D -> B; D -> Y; B -> Y; E <-> B; "
            "D <-> B",
            "D",
        ),
        ("D -> E; D -> A; D -> Y; E -> B; E -> A; E -> Y; B -> A; B -> Y; D <-> Y; E <-> B", "E"),
    ],
)
def test_runaway_coefficients_are_not_taken_for_a_second_effect(text, cause):
    """Some coefficients are not identified and may go to infinity.

    There rounding looks like a solution.
    """
    assert verdict(text, cause).identified


def test_effect_with_two_values_is_only_locally_identified():
    found = verdict(TWO_VALUED, "D")
    assert (
        not found.identified
        and found.verdict == "locally identified under linearity (finite-to-one)"
    )
    assert "have another effect" in found.evidence


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "target", "cause"),
    [
        (
            "A -> B; B -> C; C -> D; C -> E; A <-> B; A <-> C; A <-> E; B <-> D; C <-> D; D <-> E",
            *("E", "C"),
        ),
        (
            "A -> B; A -> C; A -> D; A -> E; B -> C; C -> D; D -> E; B <-> C; B <-> D; B <-> E",
            *("E", "D"),
        ),
    ],
)
def test_second_effect_that_only_some_models_have_is_found(text, target, cause):
    found = cb.identify(cb.CausalGraph.parse(text), target, [cause])[cause].linearity
    assert not found.identified and "have another effect" in found.evidence


def test_bow_at_the_head_of_a_deep_chain_is_not_identified():
    names = [f"N{position:03}" for position in range(80)]
    graph = cb.CausalGraph.from_edges(
        [*zip(names, names[1:], strict=False)], [(names[0], names[1])]
    )
    found = cb.identify(graph, names[-1], [names[0]])[names[0]].linearity
    assert found.verdict == "not identified under linearity"


def test_bow_beside_other_variables_is_still_a_bow():
    """Entries that are zero in theory are zero here: rounding cannot lend them a rank."""
    graph = cb.CausalGraph.parse("A -> C; B -> E; C -> D; C -> E; B <-> E")
    assert cb.identify(graph, "E", ["B"])["B"].linearity.verdict == "not identified under linearity"


@pytest.mark.heavy
def test_half_treks_do_not_decide_where_a_coefficient_is_known():
    """The criterion holds for almost all coefficients, and known ones may be among the rest."""
    found = verdict(TWO_VALUED + "; I -> D", "D", known={("I", "D"): 0.3})
    assert "numerical evidence" in found.evidence
    assert verdict(TWO_VALUED + "; I -> D", "D").evidence == "half-trek criterion"


def test_what_id_identifies_needs_no_linearity():
    assert verdict("X -> Z -> Y; X <-> Y").evidence == "ID identifies it, whatever the mechanisms"


def test_known_coefficients_help_linearity_but_not_id():
    assert (
        verdict("X -> Y; X <-> Y", known={("X", "Y"): 0.7}).evidence
        == "every coefficient on its paths is known"
    )
    front = "X -> Z -> Y; X <-> Z; Z <-> Y"
    assert not verdict(front).identified
    assert not verdict(front, known={("Z", "Y"): 0.7}).identified
    assert verdict("X -> Z -> Y; X <-> Z", known={("X", "Z"): 0.7}).identified


def test_sets_of_linearity_are_used_only_on_request():
    graph = cb.CausalGraph.parse(INSTRUMENT)
    assert cb.identify(graph, "Y", ["X", "Z"]).unidentified == (("X",),)
    ids = cb.identify(graph, "Y", ["X", "Z"], linear=True)
    assert (
        ids.unidentified == ()
        and not ids["X"].identifiable
        and ids.require_usable() == (("Z",), ("X",))
    )
    assert ids.parameters("structural", intercepts=False).names == ("b[Z->X]", "b[X->Y]")
    with pytest.raises(
        cb.errors.NotIdentifiable, match="linearity identifies it, but there is no estimand for it"
    ):
        ids.parameters("estimand")
    with pytest.raises(cb.errors.NotIdentifiable, match="cannot be learned"):
        ids["X"].evaluate(np.eye(3))
    with pytest.raises(cb.errors.DomainError, match="linear must be True or False"):
        cb.identify(graph, "Y", ["X"], linear="yes")


def local_oracle(draws, graph, target, chosen):
    """Does the gradient of tau lie in the row space of d Sigma / d (W, Omega)?

    Derivatives are by complex steps, which are exact.
    """
    size = len(graph.nodes)
    edges = np.array([(graph.index(a), graph.index(b)) for a, b in graph.directed]).reshape(-1, 2)
    arcs = np.array([(graph.index(a), graph.index(b)) for a, b in graph.bidirected], int).reshape(
        -1, 2
    )

    def unpack(theta):
        w, variances, shared = np.split(theta, np.cumsum([len(edges), size]))
        weights, noise = np.zeros((size, size), complex), np.diag(variances)
        weights[edges[:, 0], edges[:, 1]] = w
        noise[arcs[:, 0], arcs[:, 1]] = noise[arcs[:, 1], arcs[:, 0]] = shared
        return weights, noise

    def covariance(theta):
        weights, noise = unpack(theta)
        solve = np.linalg.inv(np.eye(size) - weights.T)
        return (solve @ noise @ solve.T)[np.triu_indices(size)]

    def slopes(theta):
        weights = unpack(theta)[0]
        at, free = (
            [graph.index(v) for v in chosen],
            [i for i, v in enumerate(graph.nodes) if v not in chosen],
        )
        inner = np.linalg.inv(np.eye(len(free)) - weights[np.ix_(free, free)])
        return weights[np.ix_(at, free)] @ inner[:, free.index(graph.index(target))]

    theta = np.concatenate(
        [
            draws.uniform(0.5, 1.5, len(edges)),
            draws.uniform(3.0, 4.0, size),
            draws.uniform(0.2, 0.5, len(arcs)),
        ]
    )
    steps = theta + 1e-30j * np.eye(len(theta))
    rows, gradient = (
        np.array([f(step).imag / 1e-30 for step in steps]).T for f in (covariance, slopes)
    )
    ranks = [
        np.linalg.matrix_rank(found, tol=1e-9) for found in (rows, np.vstack([rows, gradient]))
    ]
    return ranks[0] == ranks[1]


def test_local_verdict_is_the_row_space_test_of_the_implied_covariance():
    draws, found = np.random.default_rng(30), {True: 0, False: 0}
    while min(found.values()) < 15:
        nodes, directed, bidirected = random_admg(draws, 5 if found[True] < 8 else 10, "ABCDEFGHIJ")
        causes = sorted(ancestors(directed, {nodes[-1]}) - {nodes[-1]})
        if not causes:
            continue
        graph = cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes)
        chosen = (causes[int(draws.integers(len(causes)))],)
        if (
            has_hedge(nodes, directed, bidirected, chosen, nodes[-1])
            if len(nodes) < 6
            else bidirected
        ):
            spanned = linearity._row_space(graph, ())
            gradient = linearity._gradient(
                graph, nodes[-1], reduce_effect(graph, nodes[-1], chosen), ()
            )
            ours = len(eliminate(np.vstack([spanned, gradient]))) == len(spanned)
            assert ours == local_oracle(draws, graph, nodes[-1], chosen), (graph, chosen)
            found[ours] += 1


def test_variable_that_causes_nothing_may_be_an_instrument():
    """E shares a latent cause with X and none with Y.

    It is no ancestor of Y, and yet it tells X's effect from the bow.
    """
    text = "X -> Y; X <-> Y; E; E <-> X"
    assert verdict(text) == (True, "identified under linearity", "half-trek criterion")
    assert not cb.identify(cb.CausalGraph.parse(text), "Y", ["X"])["X"].identifiable


def test_half_trek_identified_equations_are_locally_identified():
    """Every equation that the criterion solves has its coefficients as an effect.

    It is the effect of setting all parents of its variable.
    """
    draws, solved, unsolved = np.random.default_rng(31), 0, 0
    for _ in range(60):
        nodes, directed, bidirected = random_admg(draws, 6)
        graph = cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes)
        found = half_trek_identified(graph)
        for name in graph.nodes:
            if graph.parents(name):
                assert name not in found or local_oracle(draws, graph, name, graph.parents(name)), (
                    graph,
                    name,
                )
                solved, unsolved = solved + (name in found), unsolved + (name not in found)
    assert min(solved, unsolved) > 20


def test_half_trek_criterion_on_published_graphs():
    """Foygel, Draisma and Drton 2012: graphs without a bow are solved whole; a bow is not."""
    assert half_trek_identified(
        cb.CausalGraph.parse("A -> B -> C -> D; A <-> C; A <-> D; B <-> D")
    ) == set("ABCD")
    assert half_trek_identified(cb.CausalGraph.parse("A -> B; A <-> B; B -> C")) == {"A", "C"}
    assert half_trek_identified(cb.CausalGraph.parse("Z -> X -> Y; X <-> Y")) == {"Z", "X", "Y"}
    verma = "A -> B -> C -> D; A -> C; B <-> D"
    assert half_trek_identified(cb.CausalGraph.parse(verma)) == set("ABCD")
