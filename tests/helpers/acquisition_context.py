"""What an acquisition knows of a suggestion, where a test evaluates it by hand.

Internals: a study makes the context of its suggestions by itself.
"""

from causal_bo_ppl.optimization.acquisition import Context


def knowing(surrogate, objective="min", candidates=None, recommendable=None, **options):
    """The context of a surrogate; by default any vertex may be chosen and recommended."""
    candidates = surrogate.post.problem.vertices() if candidates is None else candidates
    among = candidates if recommendable is None else recommendable
    return Context(surrogate, objective, candidates, among, **options)


def values_of(rule, surrogate, queries, objective="min", **options):
    """The acquisition values of queries in a plain context."""
    return rule.value(surrogate, queries, knowing(surrogate, objective, **options))
