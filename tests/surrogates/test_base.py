"""What all surrogates share: queries that they trust or refuse, and how outcomes are read.

Internals: calls of `Problem.require` are counted.
"""

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.surrogates.base import find_fault

MAKERS = {
    "coupled": cb.surrogates.CoupledMaker(),
    "monte carlo": cb.surrogates.CoupledMaker(kernel="monte_carlo", draws=50),
    "uncoupled": cb.surrogates.UncoupledMaker(),
    "cbo": cb.surrogates.IndependentMaker(),
    "bo": cb.surrogates.IndependentMaker(kernel="matern52", is_plain=True),
}
BOTH = [{"X": 1.0, "Z": -1.0}, {"X": 0.5, "Z": 2.0}]


@pytest.fixture(scope="module")
def post():
    graph, domains = cb.CausalGraph.parse("X -> Z -> Y"), {"X": (-2, 2), "Z": (-3, 5)}
    problem = cb.Problem(graph, "Y", domains=domains, sets=[("X",), ("Z",), ("X", "Z")])
    return cb.fit(problem, cb.models.load("chain").observe(60, 0))


def use(surrogate, queries):
    """Call every method of a surrogate with a batch of two queries."""
    one = queries[0] if isinstance(queries, cb.problem.Queries) else queries[:1]
    updated = surrogate.condition(queries, [1.0, 2.0], 0.3)
    return [
        *updated.predict(queries),
        *updated.joint(queries),
        updated.sample(0, queries, 3),
        updated.fantasize(queries, 0.2).predict(queries).sd,
        np.array([updated.log_density(one, 1.0, 0.3)]),
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_no_method_of_a_surrogate_checks_queries_and_each_reads_mappings(post, name, monkeypatch):
    surrogate, queries = MAKERS[name].begin(post), post.problem.queries(BOTH)
    use(surrogate, queries)
    here, require = [], Problem.require

    def count(self, given):
        here.append(sys_caller())
        return require(self, given)

    monkeypatch.setattr(Problem, "require", count)
    expected = use(surrogate, queries)
    assert not here
    for left, right in zip(expected, use(surrogate, BOTH), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)
    assert here
    with pytest.raises(cb.errors.DomainError, match="X = 9.* lies outside"):
        surrogate.predict([{"X": 9.0, "Z": 0.0}])


def sys_caller():
    """Return the file that called `Problem.require`."""
    import sys

    return sys._getframe(2).f_code.co_filename


def test_sets_that_are_not_modelled_are_named_before_anything_is_predicted(post):
    baseline, z = post.problem.baseline(), post.problem.queries([{"Z": 1.0}])
    plain, coupled = MAKERS["bo"].begin(post), MAKERS["coupled"].begin(post)
    assert find_fault(coupled, z) == "" and find_fault(MAKERS["cbo"].begin(post), z) == ""
    assert find_fault(plain, z) == (
        "this surrogate models do(X, Z) alone, with every variable set; got do(Z)"
    )
    assert "the effect of setting nothing is not modelled" in find_fault(plain, baseline)
    for method in (plain.predict, plain.joint, plain.require_known):
        with pytest.raises(cb.errors.ExplorationError, match=r"models do\(X, Z\) alone"):
            method(z)
    with pytest.raises(cb.errors.ExplorationError, match=r"models do\(X, Z\) alone"):
        plain.condition(z, 1.0, 0.1)
    illegal = cb.problem.Queries(np.array([[True, False, False]]), np.array([[9.0, 0.0, 0.0]]))
    assert "X = 9) lies outside" in find_fault(coupled, illegal)


def test_a_surrogate_without_that_method_is_asked_for_a_prediction(post):
    class Odd:
        def __init__(self, post):
            self.post = post

        def predict(self, queries):
            raise cb.errors.ExplorationError("not this one")

    assert find_fault(Odd(post), post.problem.baseline()) == "not this one"


def test_fits_are_kept_by_the_configuration_and_never_shared_by_posteriors(post):
    maker = cb.surrogates.IndependentMaker()
    other = cb.fit(post.problem, cb.models.load("chain").observe(60, 1))
    queries, outcomes = post.problem.queries([{"Z": 1.0}, {"Z": 4.0}]), [1.0, -2.0]
    first, again, moved = (
        maker.begin(each).condition(queries, outcomes, 0.1) for each in (post, post, other)
    )
    [key] = first.sets
    assert again.sets[key] is first.sets[key] and moved.sets[key] is not first.sets[key]
    alone = cb.surrogates.IndependentMaker().begin(other).condition(queries, outcomes, 0.1)
    np.testing.assert_array_equal(moved.predict(queries).mean, alone.predict(queries).mean)
    assert not [name for name in vars(post) if "fitted" in name]
    assert maker == cb.surrogates.IndependentMaker() and hash(maker) == hash(type(maker)())
