"""What do kernels cost beside the bare products and copies that they cannot do without?

The two are timed by turns, in one run.
"""

import subprocess
import sys
from time import perf_counter

import numpy as np
import pytest

import causal_bo_ppl as cb

LIMIT_GB = 4.0
LARGE = """
import resource, sys
import causal_bo_ppl as cb
system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)
post = cb.fit(system.problem, system.observe(100, 0))
found = cb.monte_carlo_gram(post, system.problem.sobol(46)[:10_000], draws=4_000, key=0)
assert found.gram.shape == found.standard_error.shape == (10_000, 10_000)
sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9))
"""


@pytest.fixture(scope="module")
def system():
    return cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)


@pytest.fixture(scope="module")
def post(system):
    rows = system.observe(300, 0)
    centred = cb.Data(
        rows.nodes, rows.target, rows.values - rows.values.mean(axis=0), rows.intervened
    )
    return cb.fit(system.problem, centred, intercepts=False)


def by_turns(*works, turns=9):
    """Median seconds of each, measured in turn after a first run of all."""
    taken = np.zeros((turns, len(works)))
    for turn in range(-1, turns):
        for position, work in enumerate(works):
            start = perf_counter()
            work()
            if turn >= 0:
                taken[turn, position] = perf_counter() - start
    return np.median(taken, axis=0)


def exponent(sizes, seconds):
    return np.polyfit(np.log(sizes), np.log(seconds), 1)[0]


def growth_beside(work, bare, sizes, turns):
    """Exponent of the seconds of a work, and of the bare product of the same shape.

    Both are measured by turns.
    """
    taken = np.array(
        [by_turns(lambda m=m: work(m), lambda m=m: bare(m), turns=turns) for m in sizes]
    )
    return exponent(sizes, taken[:, 0]), exponent(sizes, taken[:, 1])


def test_the_jacobian_gram_costs_little_more_than_its_product(system, post, say):
    queries = system.problem.sobol(23)[:5_000]
    features = np.asarray(cb.kernels.jacobian_features(post, queries))
    other = features.copy()
    assert len(post.names) == 19
    ours, bare = by_turns(lambda: cb.jacobian_gram(post, queries), lambda: features @ other.T)
    say(
        f"Jacobian gram of 5,000 queries, d = 19: {1e3 * ours:.0f} ms, bare {1e3 * bare:.0f} ms: "
        f"{ours / bare:.2f}"
    )
    assert ours <= 2 * bare


def test_features_cost_little_more_than_copies(system, post, say):
    queries = system.problem.sobol(460)[:100_000]
    features = np.asarray(cb.kernels.jacobian_features(post, queries))
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    ours, copies = by_turns(
        lambda: cb.kernels.jacobian_features(post, queries),
        lambda: (mask.copy(), value.copy(), features.copy()),
    )
    say(
        f"features of 100,000 queries: {1e3 * ours:.0f} ms, copies {1e3 * copies:.1f} ms: "
        f"{ours / copies:.1f}"
    )
    assert ours <= 10 * copies


def test_the_monte_carlo_gram_costs_little_more_than_two_products(system, post, say):
    queries = system.problem.sobol(14)[:3_000]
    effects = np.asarray(cb.response(post)(post.draws(4_000, 0), queries))
    centred = effects - effects.mean(axis=0)
    squares = centred**2
    ours, bare = by_turns(
        lambda: cb.monte_carlo_gram(post, queries, draws=4_000, key=0),
        lambda: (centred.T @ centred, squares.T @ squares),
        turns=5,
    )
    say(
        f"Monte-Carlo gram, 3,000 queries x 4,000 draws: {ours:.2f} s, two products {bare:.2f} s: "
        f"{ours / bare:.2f}"
    )
    assert ours <= 2 * bare


def test_a_large_monte_carlo_gram_fits_in_memory(say):
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    say(
        "Monte-Carlo gram of 10,000 queries x 4,000 draws, with its error: "
        f"{float(done.stdout):.2f} GB at most"
    )
    assert float(done.stdout) < LIMIT_GB


def test_growth_is_as_the_formulas_have_it(system, post, say):
    """M^2 for grams, beside the product that they end in.

    Large matrices cost more than their size says, so the product is measured too.
    The sets stay the same, ten of them, since an exact gram has a recursion for every pair of sets.
    """
    sets = system.problem.sobol(800)[:8_000]
    batch = sets[np.random.default_rng(0).permutation(8_000)]
    features = np.asarray(cb.kernels.jacobian_features(post, batch))
    sizes = [1_000, 2_000, 4_000, 8_000]
    gram = growth_beside(
        lambda m: cb.jacobian_gram(post, batch[:m]),
        lambda m: features[:m] @ features[:m].T,
        sizes,
        turns=5,
    )
    exact = growth_beside(
        lambda m: cb.exact_gram(post, batch[:m]),
        lambda m: features[:m] @ features[:m].T,
        sizes,
        turns=3,
    )
    draws = [2_000, 4_000, 8_000, 16_000]
    drawn = [
        by_turns(lambda n=n: cb.monte_carlo_gram(post, batch[:1_000], draws=n, key=0), turns=3)[0]
        for n in draws
    ]
    widths, seconds = [], []
    for size in (10, 20, 40, 80):
        chain = long_chain(size)
        widths.append(len(chain.names))
        queries = chain.problem.sobol(40_000)
        seconds.append(
            by_turns(
                lambda chain=chain, queries=queries: cb.kernels.jacobian_features(chain, queries),
                turns=5,
            )[0]
        )
    by_draws, by_width = exponent(draws, drawn), exponent(widths, seconds)
    for name, (ours, bare) in {"Jacobian": gram, "exact": exact}.items():
        say(f"growth: {name} gram M^{ours:.2f}, the bare product beside it M^{bare:.2f}")
    say(
        f"growth: Monte-Carlo gram draws^{by_draws:.2f}, features d^{by_width:.2f} "
        f"({widths[0]} to {widths[-1]} edges)"
    )
    assert (
        gram[0] < gram[1] + 0.3 and exact[0] < exact[1] + 0.3 and by_draws < 1.3 and by_width < 2.2
    )


def long_chain(size):
    """A posterior of a chain with `size` edges, whose first variable may be set."""
    names = [f"V{position}" for position in range(size + 1)]
    graph = cb.CausalGraph.from_edges(list(zip(names[:-1], names[1:], strict=True)))
    problem = cb.Problem(graph, names[-1], domains={names[0]: (-1, 1)}, sets=[(names[0],)])
    values = np.random.default_rng(0).normal(size=(200, size + 1)).cumsum(axis=1)
    return cb.fit(
        problem,
        cb.Data(graph.nodes, names[-1], values, np.zeros(values.shape, bool)),
        intercepts=False,
    )
