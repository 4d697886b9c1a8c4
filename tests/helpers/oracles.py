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
    return [e for e in directed if e[1] not in names], [
        e for e in bidirected if not set(e) & set(names)
    ]


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
    tops = [(heads(a), heads(b)) for a, b in bidirected] + [
        (reached(v), reached(v)) for v in latent
    ]
    arcs = {frozenset((a, b)) for left, right in tops for a in left for b in right if a != b}
    return arrows, [tuple(sorted(arc)) for arc in arcs]


def m_connected(nodes, directed, bidirected, one, other, given):
    """Whether some simple path is open.

    Every inner collider is then in An(given), and no other inner node is in given.
    """
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


def bidirected_connected(bidirected, names):
    start = next(iter(names))
    return closure(
        {start}, lambda v: {w for e in bidirected if v in e for w in e if w in names}
    ) == set(names)


def has_hedge(nodes, directed, bidirected, chosen, target):
    """Whether there is a hedge, by the definition (Shpitser and Pearl 2006).

    It is two C-forests rooted at R, of which the larger meets the set and the other does not. A
    C-forest rooted at R on given nodes exists iff arcs connect them and each has a directed path to
    R among them.
    """
    after = ancestors(cut(directed, bidirected, chosen)[0], {target})

    def is_forest(names, roots):
        inside = [e for e in directed if set(e) <= names]
        return names <= ancestors(inside, roots) and bidirected_connected(bidirected, names)

    free, chosen = [v for v in nodes if v not in chosen], set(chosen)
    for roots in map(set, powerset([v for v in free if v in after])):
        for extra in map(set, powerset([v for v in free if v not in roots])) if roots else ():
            small = roots | extra
            if not is_forest(small, roots):
                continue
            for more in map(set, powerset([v for v in nodes if v not in small])):
                if more & chosen and is_forest(small | more, roots):
                    return True
    return False


class BinarySCM:
    """A random SCM of binary variables with a latent cause per arc, all enumerated.

    A latent cause has 4 values, or 2.
    """

    def __init__(self, draws, nodes, directed, bidirected):
        self.nodes, self.latent = list(nodes), [tuple(e) for e in bidirected]
        self.causes = {
            v: [a for a, b in directed if b == v] + [e for e in self.latent if v in e]
            for v in self.nodes
        }
        values = 4 if len(self.latent) < 6 else 2  # what is enumerated grows with their product
        self.weight = {e: draws.dirichlet(np.ones(values)) for e in self.latent}
        self.table = {
            v: draws.uniform(
                0.1, 0.9, [values if isinstance(c, tuple) else 2 for c in self.causes[v]]
            )
            for v in self.nodes
        }

    def joint(self, chosen=()):
        """P(v | do(chosen)) as an array with an axis for every node.

        A set variable has weight 1 at each value.
        """
        names = [*self.nodes, *self.latent]
        letter = {name: position for position, name in enumerate(names)}
        parts = [(self.weight[e], [letter[e]]) for e in self.latent]
        for v in self.nodes:
            if v not in chosen:
                one = self.table[v]
                parts.append(
                    (
                        np.stack([1 - one, one], -1),
                        [*(letter[c] for c in self.causes[v]), letter[v]],
                    )
                )
        parts += [(np.ones(2), [letter[v]]) for v in self.nodes]
        flat = [piece for array, axes in parts for piece in (array, axes)]
        return np.einsum(*flat, [letter[v] for v in self.nodes], optimize="greedy")


def enumerate_expression(expression, joint, nodes):
    """Value of a y0 expression at every cell of the table.

    There is an axis for every node, of length 1 where it is not free.
    """
    kind = type(expression).__name__

    def again(inner):
        return enumerate_expression(inner, joint, nodes)

    def margin(names):
        return joint.sum(
            axis=tuple(i for i, v in enumerate(nodes) if v not in names), keepdims=True
        )

    if kind == "Probability":
        children, given = (
            {v.name for v in side} for side in (expression.children, expression.parents)
        )
        return margin(children | given) / (margin(given) if given else 1.0)
    if kind == "Product":
        value = np.ones((1,) * len(nodes))
        for inner in expression.expressions:
            value = value * again(inner)
        return value
    if kind == "Fraction":
        return again(expression.numerator) / again(expression.denominator)
    if kind == "Sum":
        value, bound = again(expression.expression), {v.name for v in expression.ranges}
        axes = tuple(i for i, v in enumerate(nodes) if v in bound)
        assert all(value.shape[i] == 2 for i in axes), "a sum over an absent variable"
        return value.sum(axis=axes, keepdims=True)
    assert kind == "One"
    return np.ones((1,) * len(nodes))
