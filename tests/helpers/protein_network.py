"""A made data set like that of Sachs et al. (2005): proteins, with skewed and positive columns.

The graph has eleven proteins. Eight mechanisms matter for Akt; they have 13 causes in all, and 25
sets of at most three of five settable proteins. Abundances are positive and skewed, and depend on
each other by saturation, with noise that multiplies.
"""

import numpy as np

import causal_bo_ppl as cb

GRAPH = cb.CausalGraph.parse(
    "Plcg -> PIP3; PIP3 -> PIP2; Plcg -> PIP2; Plcg -> PKC; PKC -> PKA; PKC -> Raf; PKA -> Raf; "
    "PKC -> Mek; PKA -> Mek; Raf -> Mek; Mek -> Erk; PKA -> Erk; PKA -> Akt; Erk -> Akt; "
    "PIP3 -> Akt; PKC -> P38; PKA -> P38; PKC -> Jnk; PKA -> Jnk"
)
TARGET = "Akt"
SETTABLE = ("PKC", "PKA", "Raf", "Mek", "Erk")
OBSERVATIONS, MOST_OBSERVATIONS = 853, 7_500


def simulate(n, seed=0):
    """Draw observations (n, 11) by plain NumPy, columns in the order of the graph."""
    rng, logs = np.random.default_rng(seed), {}
    for name in GRAPH.nodes:
        mean = 0.0
        for number, cause in enumerate(GRAPH.parents(name)):
            size = (0.9, -0.6, 0.5)[number]
            mean = mean + size * np.tanh(1.2 * logs[cause] + 0.3 * number)
        logs[name] = mean + (0.6 if GRAPH.parents(name) else 0.8) * rng.normal(size=n)
    return np.stack([np.exp(3 + 0.7 * logs[name]) for name in GRAPH.nodes], axis=1)


def protein_data(n=OBSERVATIONS, seed=0):
    """Return n observations without intervention."""
    values = simulate(n, seed)
    return cb.Data(GRAPH.nodes, TARGET, values, np.zeros(values.shape, bool))


def protein_problem(data, settable=SETTABLE, largest=3):
    """Return the problem of lowering Akt within the middle nine tenths of each settable protein."""
    domains = {
        name: tuple(np.quantile(data.column(name), [0.05, 0.95]).tolist()) for name in settable
    }
    return cb.Problem(GRAPH, TARGET, objective="min", domains=domains, sets=largest)
