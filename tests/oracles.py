"""Slow, obvious computations from the definitions; they share no code with the package."""

from itertools import chain, combinations

import numpy as np


def random_admg(draws, most_nodes=7, names="ABCDEFGH"):
    """Nodes in a random order, forward arrows and arcs at random densities."""
    size = int(draws.integers(2, most_nodes + 1))
    order = [names[i] for i in draws.permutation(size)]
    pairs = list(combinations(order, 2))
    dense, confounded = draws.uniform(0.2, 0.8), draws.uniform(0.0, 0.5)
    directed = [pair for pair in pairs if draws.uniform() < dense]
    bidirected = [pair for pair in pairs if draws.uniform() < confounded]
    return order, directed, bidirected


def closure(start, step):
    """Smallest set that holds `start` and all that `step` gives for its members."""
    found, grown = set(), set(start)
    while grown != found:
        found = grown
        grown = found.union(*(step(v) for v in found))
    return found


def ancestors(directed, names):
    return closure(names, lambda v: {a for a, b in directed if b == v})


def descendants(directed, names):
    return closure(names, lambda v: {b for a, b in directed if a == v})


def cut(directed, bidirected, names):
    return [e for e in directed if e[1] not in names], [e for e in bidirected if not set(e) & set(names)]


def powerset(names):
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def minimal_sets(nodes, directed, bidirected, target, manipulable):
    """X is minimal iff it lies inside An(Y) after do(X)."""
    return {
        frozenset(chosen)
        for chosen in powerset(manipulable)
        if set(chosen) <= ancestors(cut(directed, bidirected, chosen)[0], {target})
    }


def possibly_optimal_sets(nodes, directed, bidirected, target, manipulable):
    """X is a POMIS iff the border of the territory in the projected graph after do(X) is X."""
    keep = {*manipulable, target}
    directed, bidirected = projection(nodes, directed, bidirected, keep)
    return {
        frozenset(chosen)
        for chosen in powerset(manipulable)
        if border(*cut(directed, bidirected, chosen), target) == set(chosen)
    }


def border(directed, bidirected, target):
    upstream = ancestors(directed, {target})
    arrows = [e for e in directed if set(e) <= upstream]
    arcs = [e for e in bidirected if set(e) <= upstream]

    def grow(v):
        return {a for e in arcs if v in e for a in e} | {b for a, b in arrows if a == v}

    territory = closure({target}, grow)
    return {a for a, b in arrows if b in territory} - territory


def projection(nodes, directed, bidirected, keep):
    """By the definition: paths whose inner nodes are all latent, and treks from a latent top."""
    latent = set(nodes) - set(keep)

    def reached(v):  # kept nodes on directed paths from v through latent ones
        found, stack, seen = set(), [b for a, b in directed if a == v], set()
        while stack:
            w = stack.pop()
            if w in seen:
                continue
            seen.add(w)
            if w in latent:
                stack += [b for a, b in directed if a == w]
            else:
                found.add(w)
        return found

    def heads(v):  # kept nodes at which a trek that starts at v arrives
        return reached(v) if v in latent else {v}

    arrows = [(v, w) for v in keep for w in reached(v)]
    tops = [(heads(a), heads(b)) for a, b in bidirected] + [(reached(v), reached(v)) for v in latent]
    arcs = {frozenset((a, b)) for left, right in tops for a in left for b in right if a != b}
    return arrows, [tuple(sorted(arc)) for arc in arcs]


def m_connected(nodes, directed, bidirected, one, other, given):
    """Some simple path on which every inner collider is in An(given) and no other inner node is in given."""
    opened = ancestors(directed, given)
    steps = [(a, b, "-", ">") for a, b in directed] + [(a, b, ">", ">") for a, b in bidirected]
    steps += [(b, a, right, left) for a, b, left, right in steps]

    def walk(path, arrived):
        if path[-1] == other:
            return True
        for a, b, left, right in steps:
            if a != path[-1] or b in path:
                continue
            if len(path) > 1:
                collider = arrived == ">" and left == ">"
                if (a not in opened) if collider else (a in given):
                    continue
            if walk([*path, b], right):
                return True
        return False

    return walk([one], None)


def dense_effect(weights, intercepts, target, columns, values):
    """E Y after do(...), by solving the mutilated system with numpy."""
    w, a = np.array(weights), np.array(intercepts)
    w[:, columns] = 0
    a[columns] = values
    return np.linalg.solve(np.eye(len(a)) - w.T, a)[target]
