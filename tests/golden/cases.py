"""The recorded cases: small runs, studies, posteriors, kernels, identifications and texts.

Each case is a function that returns {entry: value with its kind}; `CASES` lists them by name. All
that they call of the package goes through `adapter`.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from golden import adapter
from golden.entries import Entry, choice, closed, draws, find_differences, interventions

Case = Callable[[], dict[str, Entry]]
CASES: dict[str, Case] = {}

# Deterministic results whose last digits depend on the order of floating point operations.
ITERATIVE = {
    "relative": 1e-6,
    "why": "an iterative optimizer's stopping rule decides the last digits of the mode",
}
ROUNDS = {
    "relative": 1e-6,
    "why": "intervention values found by searches and modes found by an iterative optimizer enter "
    "into every later round",
}
CANCELLED = {
    "relative": 1e-4,
    "why": "after exact outcomes a variance is a difference of nearly equal numbers, and 10 of its "
    "digits cancel; other processors differ by 3e-6",
}
NEARLY_CANCELLED = {
    "relative": 1e-7,
    "why": "sds after exact outcomes, whose digits cancel, are among these numbers",
}
SEARCHED = {
    "tolerance": 1e-5,
    "why": "a search by brackets or gradients ends where next to nothing can be gained, so "
    "rounding may end it one step earlier",
}
PROBABILITY = {"relative": 1e-6, "why": "a tail probability magnifies relative differences"}

CHAIN_QUERIES = [{"X": 1.0}, {"X": -2.0}, {"Z": 3.0}, {"Z": 0.5}]
HEALTHCARE_QUERIES = [
    {"aspirin": 0.2}, {"statin": 0.9}, {"aspirin": 0.0, "statin": 1.0}, {"aspirin": 1.0}
]  # fmt: skip


def case(name: str) -> Callable[[Case], Case]:
    """Register a case under a name that reads as the beginning of a sentence."""

    def register(function: Case) -> Case:
        CASES[name] = function
        return function

    return register


# Systems and data


@cache
def system(name: str) -> Any:
    if name == "b1583":
        return adapter.load("ecoli70", target="b1583", parents=False, max_size=2)
    if name == "confounded":
        return adapter.load("toy", variant="confounded")
    return adapter.load(name)


@cache
def data_of(name: str, n: int = 50, key: int = 0) -> Any:
    return adapter.observe(system(name), n, key)


def b1583_queries() -> list[dict[str, float]]:
    found = adapter.designs(system("b1583").problem)["vertices"]
    return found[:: len(found) // 6][:6]


QUERIES = {
    "chain": CHAIN_QUERIES, "toy": CHAIN_QUERIES, "confounded": CHAIN_QUERIES,
    "healthcare": HEALTHCARE_QUERIES, "synthetic": [{"B": -1.0}, {"D": 2.0, "E": 0.5}, {"E": -3.0}]
}  # fmt: skip


@cache
def front_door() -> tuple[Any, Any]:
    """Return a linear problem with a latent common cause of X and Y, and its data."""
    problem = adapter.pose("X -> Z -> Y; X <-> Y", "Y", {"X": (-2.0, 2.0), "Z": (-2.0, 2.0)})
    u, x, z, y = np.random.default_rng(0).normal(size=(4, 60))
    x = u + x
    z = 0.8 * x + z
    return problem, adapter.table(problem, np.column_stack([x, z, -z + u + 0.5 * y]))


@cache
def nonlinear_front_door() -> tuple[Any, Any]:
    """Return a nonlinear problem with a latent common cause of X and Y, and its data."""
    problem = adapter.pose(
        "X -> Z -> Y; X <-> Y", "Y", {"X": (-2.0, 2.0), "Z": (-3.0, 3.0)}, sets=[("X",), ("Z",)]
    )
    u, x, z, y = np.random.default_rng(0).normal(size=(4, 60))
    x = u + 0.7 * x
    z = 2 * np.tanh(x) + 0.6 * z
    y = 1.5 * np.sin(1.2 * z) + 1.5 * u + 0.5 * y
    return problem, adapter.table(problem, np.column_stack([x, z, y]))


def saturate(X):
    most = numpyro.sample("most", dist.LogNormal(0.0, 1.0))
    half = numpyro.sample("half", dist.LogNormal(0.0, 1.0))
    return most * X / (half + X)


def decay(Z):
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    return a + b * jnp.exp(-Z)


def whole_program():
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    X = numpyro.sample("X", dist.LogNormal(centre, 0.5))
    most = numpyro.sample("most", dist.LogNormal(0.0, 1.0))
    half = numpyro.sample("half", dist.LogNormal(0.0, 1.0))
    first = numpyro.sample("first", dist.LogNormal(-1.0, 1.0))
    Z = numpyro.sample("Z", dist.Normal(most * X / (half + X), first))
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    second = numpyro.sample("second", dist.LogNormal(-1.0, 1.0))
    numpyro.sample("Y", dist.Normal(a + b * jnp.exp(-Z), second))


CUSTOM = {"Z": saturate, "Y": decay}
CUSTOM_QUERIES = [{"X": 1.0}, {"X": 6.0}, {"Z": 0.5}, {"Z": 3.0}]


@cache
def saturating() -> tuple[Any, Any]:
    """Return a problem with Z = 3 X / (1.5 + X) + e and Y = 1 + 2 exp(-Z) + e, and its data."""
    domains = {"X": (0.5, 8.0), "Z": (0.0, 4.0)}
    problem = adapter.pose("X -> Z -> Y", "Y", domains, sets=[("X",), ("Z",)])
    x, z, y = np.random.default_rng(0).normal(size=(3, 60))
    x = np.exp(0.3 + 0.5 * x)
    z = 3 * x / (1.5 + x) + 0.2 * z
    return problem, adapter.table(problem, np.column_stack([x, z, 1 + 2 * np.exp(-z) + 0.3 * y]))


def saturating_effects(chosen: list[dict[str, float]]) -> list[float]:
    """Return the mean of Y, up to the noise of Z, as a deterministic experiment."""
    z = [each.get("Z", 3 * each.get("X", 1.3) / (1.5 + each.get("X", 1.3))) for each in chosen]
    return (1 + 2 * np.exp(-np.array(z))).tolist()


def _observations(name: str) -> dict[str, Entry]:
    of, queries = system(name), b1583_queries() if name == "b1583" else QUERIES[name]
    best, value = adapter.optimum(of)
    entries = {
        "observations": closed(adapter.values(adapter.observe(of, 4, 0))),
        "experiments": closed(adapter.values(adapter.experiment(of, queries[:3], 1))),
        "true effects": closed(adapter.true_effects(of, queries)),
        "optimal value": closed(value),
    }
    widths = adapter.widths(of.problem)
    return entries | {"optimal intervention": interventions([best], widths, **SEARCHED)}


for _name in ("chain", "toy", "confounded", "healthcare", "synthetic", "b1583"):
    CASES[f"observations, experiments and truth of {_name}"] = partial(_observations, _name)


# Problems and their JSON texts

RESTRICTED = {
    "graph": "X -> Z -> Y; W -> Y; X -> Y",
    "target": "Y",
    "domains": {"X": (-5, 5), "Z": (-5.0, 20.0), "W": [0.0, 1.0, 2.5]},
}
PROBLEMS: dict[str, Callable[[], Any]] = {
    "the chain": lambda: system("chain").problem,
    "healthcare": lambda: system("healthcare").problem,
    "synthetic": lambda: system("synthetic").problem,
    "levels, a constraint, costs and a known slope": lambda: adapter.pose(
        **RESTRICTED,
        objective="max",
        sets=2,
        costs={"X": 1.0, "Z": 2.0, "W": 0.5},
        known={("X", "Y"): 0.5},
        constraints=[adapter.at_most({"X": 1.0, "Z": 0.5}, 6.0)],
    ),
    "possibly optimal sets and costs by magnitude": lambda: adapter.pose(
        "X -> Z -> Y; X <-> Y; W -> Z", "Y", {"X": (-5, 5), "Z": (-5, 20), "W": (0, 1)},
        sets="pomis", costs="magnitude",
    ),
}  # fmt: skip


def _problem(name: str) -> dict[str, Entry]:
    problem = PROBLEMS[name]()
    text, widths = adapter.problem_text(problem), adapter.widths(problem)
    designs = adapter.designs(problem)
    entries = {
        "JSON text": choice(text),
        "is read back": choice(adapter.problem_from_text(text) == problem),
        "sets": choice(adapter.sets(problem)),
        "costs of vertices": closed(adapter.costs(problem, designs["vertices"])),
    }
    return entries | {each: interventions(found, widths) for each, found in designs.items()}


for _name in PROBLEMS:
    CASES[f"the problem with {_name}"] = partial(_problem, _name)


@case("minimal and possibly optimal intervention sets")
def _minimal_sets() -> dict[str, Entry]:
    graphs = {
        "front door": ("X -> Z -> Y; X <-> Y", ("X", "Z")),
        "synthetic": ("F -> A -> E -> Y; B -> C -> D -> Y; C -> E; A <-> Y; B <-> Y", "BDE"),
        "two districts": ("A -> B -> C -> Y; D -> C; A <-> C; D <-> Y; B <-> D", "ABCD"),
    }
    return {
        name: choice(adapter.minimal_sets(text, "Y", tuple(names)))
        for name, (text, names) in graphs.items()
    }


# Identification

IDENTIFIED = {
    "a chain": ("X -> Z -> Y", [("X",), ("Z",), ("X", "Z")]),
    "a front door": ("X -> Z -> Y; X <-> Y", [("X",), ("Z",)]),
    "a bow": ("X -> Y; X <-> Y; Z -> X", [("X",), ("Z",)]),
    "a napkin": ("W -> Z -> X -> Y; W <-> X; W <-> Y", [("X",), ("Z",), ("W", "X")]),
    "two covariates": ("Z1 -> Z2; Z1 -> X; Z2 -> X; Z1 -> Y; Z2 -> Y; X -> Y", [("X",)]),
    "Tian's graph": (
        "W1 -> W2 -> X -> Y; W3 -> W4 -> X; W1 <-> X; W1 <-> Y; W1 <-> W3; W3 <-> W2; W5; "
        "W3 <-> W5; W5 <-> W4",
        [("X",), ("W2", "X")],
    ),
    "the synthetic system": (
        "F -> A -> E -> Y; B -> C -> D -> Y; C -> E; A <-> Y; B <-> Y",
        [("B",), ("D",), ("E",), ("B", "D"), ("D", "E"), ("B", "E")],
    ),
}


def random_covariance(graph: Any, seed: int) -> np.ndarray:
    """Return the covariance of a random linear system with latent arcs, by dense algebra."""
    draw, size = np.random.default_rng(seed), len(graph.nodes)
    index = {name: position for position, name in enumerate(graph.nodes)}
    weights, noise = np.zeros((size, size)), np.eye(size)
    for cause, effect in sorted(graph.directed):
        weights[index[cause], index[effect]] = draw.normal()
    for one, other in sorted(tuple(sorted(arc)) for arc in graph.bidirected):
        shared = np.zeros(size)
        shared[[index[one], index[other]]] = draw.normal(size=2)
        noise += np.outer(shared, shared)
    solve = np.linalg.inv(np.eye(size) - weights.T)
    return solve @ noise @ solve.T


def _identification(name: str) -> dict[str, Entry]:
    text, asked = IDENTIFIED[name]
    entries: dict[str, Entry] = {}
    covariance = random_covariance(adapter.parse(text), 3)
    for label, found in adapter.identify(text, "Y", asked).items():
        verdict = adapter.verdict_of_identification(found)
        entries[f"verdict of do({label})"] = choice(verdict)
        if verdict["identifiable"]:
            slopes = adapter.evaluate(found, covariance)
            entries[f"variables with slopes of do({label})"] = choice(sorted(slopes))
            entries[f"slopes of do({label})"] = closed([slopes[name] for name in sorted(slopes)])
    return entries


for _name in IDENTIFIED:
    CASES[f"identification in {_name}"] = partial(_identification, _name)


@case("the parameters that all effects share")
def _parameters() -> dict[str, Entry]:
    problems = {name: system(name).problem for name in ("chain", "b1583", "synthetic")}
    problems["front door"] = front_door()[0]
    kinds = ("structural", "estimand", "total_effect")
    return {
        f"{name}, {kind}, {intercepts}": choice(adapter.coordinates(problem, kind, intercepts))
        for name, problem in problems.items()
        for kind in kinds
        if not (name == "b1583" and kind == "estimand")
        for intercepts in (True, False)
    }


# Posteriors, effects and kernels


def _of_posterior(
    post: Any,
    queries: list[dict[str, float]],
    kernels: tuple[str, ...] = ("jacobian", "monte_carlo"),
    *,
    is_closed: bool = True,
    tolerance: dict[str, Any] | None = None,
) -> dict[str, Entry]:
    """Return the entries of a posterior without chains: moments, draws, effects and grams."""
    allowed = tolerance or {}
    names, mean, covariance = adapter.moments(post)
    sample, count = adapter.drawn(post, 1_000, 7), 1_000
    entries = {
        "names": choice(names),
        "verdict": choice(adapter.verdict(post)),
        "mean": closed(mean, **allowed),
        "sd": closed(np.sqrt(np.diagonal(covariance)), **allowed),
        "effects of the mean": closed(adapter.response_at_mean(post, queries), **allowed),
        "mean of draws": draws(sample.mean(axis=0), sample.std(axis=0, ddof=1) / count**0.5),
    }
    if len(names) <= 24:
        entries["covariance"] = closed(covariance, **allowed)
        gradient = adapter.response_gradient(post, queries)
        entries["gradient of effects"] = closed(gradient, **allowed)
    for kind in kernels:
        gram, error = adapter.gram(post, queries, kind, key=3)
        is_drawn = kind == "monte_carlo"
        entries[f"gram, {kind}"] = draws(gram, error) if is_drawn else closed(gram, **allowed)
    if is_closed:
        return entries | _closed_effects(post, queries, **allowed)
    found = adapter.effects(post, queries, key=5)
    entries["effects: mean"] = draws(found["mean"], found["sd"] / 4_000**0.5)
    entries["effects: sd"] = draws(found["sd"], found["sd"] / 4_000**0.5)  # heavier tails: twice
    return entries | {"effects: by": choice(found["by"])}


def _closed_effects(
    of: Any, queries: list[dict[str, float]], prefix: str = "", **allowed: Any
) -> dict[str, Entry]:
    """Return the entries of effects and contrasts that need no draws."""
    entries: dict[str, Entry] = {}
    tables = {"effects": adapter.effects(of, queries)}
    tables["contrasts"] = adapter.effects(of, queries[1:], against=queries[0])
    for kind, found in tables.items():
        numbers = [found[name] for name in ("mean", "sd", "lower", "upper")]
        entries[f"{prefix}{kind}"] = closed(numbers, **allowed)
        entries[f"{prefix}{kind}: by"] = choice(found["by"])
    return entries


def _of_chains(post: Any, queries: list[dict[str, float]]) -> dict[str, Entry]:
    """Return the entries of a sampled posterior: means and mean squares with their errors."""
    theta, effects = adapter.chains(post, queries)
    names, _, _ = adapter.moments(post)
    accepted = adapter.accept(post, "few draws")
    gram = adapter.gram(accepted, queries, "monte_carlo", key=3)
    entries = {"names": choice(names), "gram, monte_carlo": draws(*gram)}
    for kind, samples in (("parameters", theta), ("effects", effects)):
        entries[f"{kind}: mean"] = draws(*adapter.mean_and_error(samples))
        squares = (samples - samples.mean(axis=(0, 1))) ** 2
        entries[f"{kind}: variance"] = draws(*adapter.mean_and_error(squares))
    return entries


ALL_KERNELS = ("jacobian", "exact", "monte_carlo")


@case("linear mechanisms, conjugate, on the chain")
def _conjugate() -> dict[str, Entry]:
    post = adapter.fit(system("chain").problem, data_of("chain"))
    entries = _of_posterior(post, CHAIN_QUERIES, ALL_KERNELS)
    between, explained = adapter.coupling(post)
    entries["correlations between sets"] = closed(between)
    entries["variance explained between sets"] = closed(explained)
    entries["observational mean"] = closed(adapter.effects(post, [{}])["mean"])
    return entries


@case("linear mechanisms, conjugate, without intercepts and with a fixed prior")
def _conjugate_fixed_prior() -> dict[str, Entry]:
    prior = adapter.fixed_prior(slope_sd=2.0)
    options = {"intercepts": False, "prior": prior}
    post = adapter.fit(system("chain").problem, data_of("chain"), **options)
    return _of_posterior(post, CHAIN_QUERIES, ("jacobian", "exact"))


@case("linear mechanisms, conjugate, updated with experiments")
def _conjugate_updated() -> dict[str, Entry]:
    post = adapter.fit(system("chain").problem, data_of("chain"))
    more = adapter.experiment(system("chain"), CHAIN_QUERIES * 3, 11)
    return _of_posterior(adapter.update(post, more), CHAIN_QUERIES, ("jacobian", "exact"))


@case("linear mechanisms, conjugate, in total effects")
def _conjugate_total_effects() -> dict[str, Entry]:
    options = {"parameters": "total_effect"}
    post = adapter.fit(system("chain").problem, data_of("chain"), **options)
    return _of_posterior(post, CHAIN_QUERIES, ("jacobian",), is_closed=False)


@case("linear mechanisms, conjugate, on healthcare")
def _conjugate_healthcare() -> dict[str, Entry]:
    post = adapter.fit(system("healthcare").problem, data_of("healthcare"))
    return _of_posterior(post, HEALTHCARE_QUERIES, ALL_KERNELS)


@case("linear mechanisms, conjugate, on b1583")
def _conjugate_b1583() -> dict[str, Entry]:
    problem, data = system("b1583").problem, data_of("b1583", 60)
    post = adapter.fit(problem, data)
    entries = _of_posterior(post, b1583_queries(), ALL_KERNELS)
    found = adapter.theory(post, adapter.designs(problem)["vertices"][::7], 0.5, 20)
    entries["causal rank"] = choice(found.pop("rank"))
    entries["information gain and its bound"] = closed(list(found.values()))
    entries["verdicts of checks"] = choice(adapter.checks(problem, data, post))
    return entries


@case("linear mechanisms, Wishart, on a front door")
def _wishart() -> dict[str, Entry]:
    problem, data = front_door()
    post = adapter.fit(problem, data, method="wishart")
    return _of_posterior(post, [{"X": 1.0}, {"X": -2.0}, {"Z": 1.5}, {"Z": 0.5}], is_closed=False)


@case("linear mechanisms, Laplace, on the chain")
def _laplace_chain() -> dict[str, Entry]:
    post = adapter.fit(system("chain").problem, data_of("chain"), method="laplace")
    return _of_posterior(post, CHAIN_QUERIES, is_closed=False, tolerance=ITERATIVE)


@case("linear mechanisms, Laplace, on a front door")
def _laplace_front_door() -> dict[str, Entry]:
    problem, data = front_door()
    post = adapter.fit(problem, data, method="laplace")
    queries = [{"X": 1.0}, {"X": -2.0}, {"Z": 1.5}]
    return _of_posterior(post, queries, is_closed=False, tolerance=ITERATIVE)


@case("linear mechanisms, NUTS, on the chain")
def _nuts_chain() -> dict[str, Entry]:
    options = {"method": adapter.nuts(2, 300, 400), "key": 0}
    return _of_chains(
        adapter.fit(system("chain").problem, data_of("chain"), **options), CHAIN_QUERIES
    )


@case("linear mechanisms, NUTS, on a front door")
def _nuts_front_door() -> dict[str, Entry]:
    post = adapter.fit(*front_door(), method=adapter.nuts(2, 300, 400), key=0)
    return _of_chains(post, [{"X": 1.0}, {"Z": 1.5}])


@case("Gaussian processes, conjugate, on toy")
def _gp() -> dict[str, Entry]:
    post = adapter.fit(system("toy").problem, data_of("toy"), mechanisms="gp")
    return _of_posterior(post, CHAIN_QUERIES, is_closed=False, tolerance=ITERATIVE)


@case("Gaussian processes, conjugate, on a front door")
def _gp_front_door() -> dict[str, Entry]:
    post = adapter.fit(*nonlinear_front_door(), mechanisms=adapter.gp(functions=8))
    queries = [{"X": 1.0}, {"X": -1.5}, {"Z": 1.5}]
    return _of_posterior(post, queries, is_closed=False, tolerance=ITERATIVE)


@case("Gaussian processes, Laplace, on toy")
def _gp_laplace() -> dict[str, Entry]:
    options = {"mechanisms": adapter.gp(functions=6), "method": "laplace"}
    post = adapter.fit(system("toy").problem, data_of("toy"), **options)
    return _of_posterior(post, CHAIN_QUERIES, is_closed=False, tolerance=ITERATIVE)


@case("Gaussian processes, NUTS, on toy")
def _gp_nuts() -> dict[str, Entry]:
    options = {"mechanisms": adapter.gp(functions=4), "method": adapter.nuts(2, 200, 200), "key": 0}
    return _of_chains(adapter.fit(system("toy").problem, data_of("toy"), **options), CHAIN_QUERIES)


@case("user-defined mechanisms, Laplace")
def _custom_laplace() -> dict[str, Entry]:
    post = adapter.fit(*saturating(), mechanisms=CUSTOM, method="laplace")
    return _of_posterior(post, CUSTOM_QUERIES, is_closed=False, tolerance=ITERATIVE)


@case("user-defined mechanisms as a whole program, Laplace")
def _program_laplace() -> dict[str, Entry]:
    post = adapter.fit(*saturating(), mechanisms=whole_program, method="laplace")
    return _of_posterior(post, CUSTOM_QUERIES, is_closed=False, tolerance=ITERATIVE)


@case("user-defined mechanisms, NUTS")
def _custom_nuts() -> dict[str, Entry]:
    options = {"mechanisms": CUSTOM, "method": adapter.nuts(2, 300, 300), "key": 0}
    return _of_chains(adapter.fit(*saturating(), **options), CUSTOM_QUERIES)


@case("a dictionary of linear mechanisms and Gaussian processes, conjugate")
def _mixed_conjugate() -> dict[str, Entry]:
    mechanisms = {"Z": "linear", "Y": adapter.gp(functions=8, kernel="matern52")}
    post = adapter.fit(system("toy").problem, data_of("toy"), mechanisms=mechanisms)
    return _of_posterior(post, CHAIN_QUERIES, is_closed=False, tolerance=ITERATIVE)


@case("a dictionary of a user-defined mechanism and a Gaussian process, Laplace")
def _mixed_laplace() -> dict[str, Entry]:
    mechanisms = {"Z": saturate, "Y": adapter.gp(functions=6)}
    post = adapter.fit(*saturating(), mechanisms=mechanisms, method="laplace")
    return _of_posterior(post, CUSTOM_QUERIES, is_closed=False, tolerance=ITERATIVE)


@case("automatically chosen mechanisms")
def _auto() -> dict[str, Entry]:
    post = adapter.fit(system("toy").problem, data_of("toy"), mechanisms="auto")
    return _of_posterior(post, CHAIN_QUERIES, is_closed=False, tolerance=ITERATIVE)


# Runs


def _of_run(
    run: Any,
    tolerance: dict[str, Any] | None = None,
    values: dict[str, Any] | None = None,
    *,
    has_truth: bool = True,
    exact: bool = False,
) -> dict[str, Entry]:
    """Return the entries of a run: its trace, what it recommends, and what it lacks."""
    allowed, steps = tolerance or {}, values or {}
    of_best = tolerance or (NEARLY_CANCELLED if exact else {})
    found, best = adapter.trace(run), adapter.recommended(run)
    widths = found["widths"]
    entries = {
        "tried": interventions(found["tried"], widths, **steps),
        "recommended": interventions(found["recommended"], widths, **steps),
        "best": interventions([best["intervention"]], widths, **steps),
        "best: by": choice(best["by"]),
        "best: mean, sd and interval": closed(best["numbers"], **of_best),
        "round": choice(found["round"]),
        "observed": choice(adapter.observed(run)),
        "surprise": closed(adapter.surprise(run), **(tolerance or PROBABILITY)),
    }
    for name, numbers in found["numbers"].items():
        is_cancelled = exact and name in ("sd", "recommended sd")
        entries[name] = closed(numbers, **(CANCELLED if is_cancelled else allowed))
    if has_truth:
        entries["regret"] = closed(adapter.regret(run), **allowed)
    return entries


LINEAR_RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "linear mechanisms on the chain, noisy": ("chain", "gc-cbo", {"rounds": 6}),
    "linear mechanisms on the chain, exact": ("chain", "gc-cbo", {"rounds": 6, "exact": True}),
    "linear mechanisms on the chain, from outcomes alone": (
        "chain", "gc-cbo", {"rounds": 6, "learn_from": "target"},
    ),
    "linear mechanisms on the chain, from whole observations": (
        "chain", "gc-cbo", {"rounds": 6, "learn_from": "rows"},
    ),
    "linear mechanisms on the chain, observing now and then": (
        "chain", "gc-cbo", {"rounds": 8, "observe": adapter.observing(0.6, 20, 5)},
    ),
    "linear mechanisms on b1583, observing where the gain per cost is larger": (
        "b1583", "gc-cbo", {"rounds": 6, "observe": adapter.observing(None, 20, 4, 0.02)},
    ),
    "linear mechanisms on b1583, noisy": ("b1583", "gc-cbo", {"rounds": 6}),
    "linear mechanisms on b1583, in batches of 3": ("b1583", "gc-cbo", {"rounds": 2, "batch": 3}),
    "linear mechanisms on b1583, from outcomes alone": (
        "b1583", "gc-cbo", {"rounds": 6, "learn_from": "target"},
    ),
    "linear mechanisms on b1583, exact": ("b1583", "gc-cbo", {"rounds": 6, "exact": True}),
    "linear mechanisms on b1583, without coupling": ("b1583", "gc-cbo-nocoupling", {"rounds": 5}),
    "linear mechanisms on b1583, linearized once": (
        "b1583", "gc-cbo", {"rounds": 5, "relinearize": False},
    ),
    "linear mechanisms on b1583, Thompson sampling": (
        "b1583", "gc-cbo", {"rounds": 4, "acquisition": "thompson"},
    ),
    "linear mechanisms on b1583, expected improvement within a budget": (
        "b1583", "gc-cbo-ei", {"budget": 8.0},
    ),
    "linear mechanisms on b1583, look-ahead per cost": (
        "b1583", "gc-cbo", {"rounds": 4, "acquisition": adapter.per_cost("look-ahead")},
    ),
    "linear mechanisms on healthcare, beta of 4, the model's own best": (
        "healthcare", "gc-cbo", {"rounds": 4, "beta": 4.0, "report": "model"},
    ),
    "linear mechanisms on confounded toy": ("confounded", "gc-cbo", {"rounds": 4}),
}  # fmt: skip
NONLINEAR_RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a model discrepancy on healthcare": (
        "healthcare", "gc-cbo", {"rounds": 4, "learn_from": "target", "discrepancy": True},
    ),
    "a model discrepancy on toy, exact": (
        "toy", "gc-cbo", {"rounds": 4, "exact": True, "discrepancy": True},
    ),
    "linear mechanisms on toy, exact, and a discrepancy where the evidence favours one": (
        "toy", "gc-cbo", {"rounds": 5, "exact": True},
    ),
    "Gaussian processes on toy, noisy": ("toy", "gc-cbo", {"rounds": 3, "mechanisms": "gp"}),
    "Gaussian processes on toy, exact": (
        "toy", "gc-cbo", {"rounds": 3, "mechanisms": "gp", "exact": True},
    ),
    "automatically chosen mechanisms on toy": (
        "toy", "gc-cbo", {"rounds": 3, "mechanisms": "auto", "learn_from": "target"},
    ),
    "cbo on toy": ("toy", "cbo", {"rounds": 4}),
    "cbo on toy, exact": ("toy", "cbo", {"rounds": 4, "exact": True}),
    "cbo without a causal prior on toy": ("toy", "cbo-noprior", {"rounds": 4}),
    "bo on healthcare, exact": ("healthcare", "bo", {"rounds": 4, "exact": True}),
}  # fmt: skip


def _linear_run(name: str) -> dict[str, Entry]:
    of, preset, options = LINEAR_RUNS[name]
    run = adapter.run(system(of), preset, key=1, **({"observations": 50} | options))
    exact = options.get("exact", False)
    queries = b1583_queries() if of == "b1583" else QUERIES[of]
    effects = _closed_effects(
        run, queries, "after the run, ", **(NEARLY_CANCELLED if exact else {})
    )
    return _of_run(run, exact=exact) | effects


def _nonlinear_run(name: str) -> dict[str, Entry]:
    of, preset, options = NONLINEAR_RUNS[name]
    run = adapter.run(system(of), preset, key=1, **({"observations": 50} | options))
    return _of_run(run, ROUNDS, SEARCHED, exact=options.get("exact", False))


for _name in LINEAR_RUNS:
    CASES[f"a run with {_name}"] = partial(_linear_run, _name)
for _name in NONLINEAR_RUNS:
    CASES[f"a run with {_name}"] = partial(_nonlinear_run, _name)


@case("a run with user-defined mechanisms and a user's experiment")
def _custom_run() -> dict[str, Entry]:
    problem, data = saturating()
    run = adapter.run(
        problem, data=data, experiment=saturating_effects, mechanisms=CUSTOM, inference="laplace",
        rounds=3, key=1,
    )  # fmt: skip
    return _of_run(run, ROUNDS, SEARCHED, has_truth=False)


@cache
def bowl() -> tuple[Any, Any]:
    """Return a problem with Y = (Z - 0.5)^2 + e, whose optimum is no vertex, and its data."""
    problem = adapter.pose("X -> Z -> Y", "Y", {"X": (-3.0, 3.0), "Z": (-3.0, 3.0)})
    x, z, y = np.random.default_rng(0).normal(size=(3, 60))
    z = x + z
    return problem, adapter.table(problem, np.column_stack([x, z, (z - 0.5) ** 2 + y]))


def bowl_effects(chosen: list[dict[str, float]]) -> list[float]:
    """Return the true effects on the bowl."""
    return [
        (each["Z"] - 0.5) ** 2 if "Z" in each else (each["X"] - 0.5) ** 2 + 1.0 for each in chosen
    ]


def _bowl_run(exact: bool) -> dict[str, Entry]:
    problem, data = bowl()
    options = {"mechanisms": "gp", "exact": exact, "rounds": 3, "key": 1}
    run = adapter.run(problem, data=data, experiment=bowl_effects, **options)
    return _of_run(run, ROUNDS, SEARCHED, has_truth=False, exact=exact)


CASES["a run with Gaussian processes on a bowl, noisy"] = partial(_bowl_run, False)
CASES["a run with Gaussian processes on a bowl, exact"] = partial(_bowl_run, True)


@case("a run that is resumed")
def _resumed() -> dict[str, Entry]:
    options = {"observations": 50, "key": 1}
    first = adapter.run(system("b1583"), rounds=2, **options)
    again = adapter.run(system("b1583"), rounds=5, resume=first, **options)
    whole = adapter.run(system("b1583"), rounds=5, **options)
    tried = [adapter.trace(each)["tried"] for each in (again, whole)]
    return _of_run(again) | {"equals a run without a break": choice(tried[0] == tried[1])}


@case("a run that an error cuts off, and that is resumed")
def _cut_off() -> dict[str, Entry]:
    of, data = system("b1583"), data_of("b1583")
    count = 0

    def measure(chosen: list[dict[str, float]], fails: bool = True) -> list[float]:
        nonlocal count
        count += 1
        if fails and count == 4:
            raise RuntimeError("the pump leaks")
        return adapter.true_effects(of, chosen).tolist()

    options = {"data": data, "rounds": 6, "key": 1}
    try:
        adapter.run(of.problem, experiment=measure, **options)
    except adapter.ExperimentFailed as error:
        first = adapter.run_of_error(error)
    measure_on = partial(measure, fails=False)
    again = adapter.run(of.problem, experiment=measure_on, resume=first, **options)
    entries = _of_run(again, has_truth=False)
    before = _of_run(first, has_truth=False)
    return entries | {f"before the error, {name}": entry for name, entry in before.items()}


# Studies


def _of_suggestions(
    suggestions: list[Any], widths: dict[str, float], prefix: str, **allowed: Any
) -> dict[str, Entry]:
    found = [adapter.suggested(each) for each in suggestions]
    steps = SEARCHED if allowed else {}
    return {
        f"{prefix}: interventions": interventions([each for each, _ in found], widths, **steps),
        f"{prefix}: numbers": closed([numbers for _, numbers in found], **allowed),
    }


def _of_study(study: Any, data: Any, queries: list[dict[str, float]], **allowed: Any):
    """Return the entries of a study: history, next suggestion, recommendation, JSON text."""
    widths = adapter.widths(study.problem)
    history, best = adapter.history(study), adapter.recommended(study)
    restored = adapter.study_from_text(adapter.study_text(study), data)
    following, again = (
        _of_suggestions([adapter.ask(each)], widths, "next", **allowed)
        for each in (study, restored)
    )
    steps = SEARCHED if allowed else {}
    entries = {
        f"history: {name}": closed(each, **allowed) for name, each in history["numbers"].items()
    }
    entries |= {
        "history: suggestions": choice(history["suggestions"]),
        "history: failed": choice(history["failed"]),
        "best": interventions([best["intervention"]], widths, **steps),
        "best: by": choice(best["by"]),
        "best: mean, sd and interval": closed(best["numbers"], **allowed),
        "surprise": closed(adapter.surprise(study), **(allowed or PROBABILITY)),
        "restored from JSON asks the same": choice(not find_differences(following, again)),
    }
    return entries | _closed_effects(study, queries, "", **allowed) | following


@case("a study that follows its own suggestions")
def _study() -> dict[str, Entry]:
    of, data = system("b1583"), data_of("b1583", 60)
    study = adapter.study(of.problem, data, key=2)
    asked = []
    for _ in range(4):
        asked.append(adapter.ask(study))
        [outcome] = adapter.true_effects(of, [adapter.suggested(asked[-1])[0]]).tolist()
        study = adapter.tell(study, asked[-1], outcome + 0.1)
    entries = _of_suggestions(asked, adapter.widths(of.problem), "suggestions")
    return entries | _of_study(study, data, b1583_queries())


@case("a study with replicates, variances, whole observations, a failure and a pending batch")
def _study_of_everything() -> dict[str, Entry]:
    of, data = system("chain"), data_of("chain", 40)
    study = adapter.study(of.problem, data, key=2)
    study = adapter.tell(study, {"X": 5.0}, -5.0)
    study = adapter.tell(study, {"X": 5.0}, [-5.2, -4.7], again=True)
    study = adapter.tell(study, {"Z": -1.0}, 1.5, variance=0.3)
    study = adapter.tell(study, {"Z": 2.0}, {"X": 0.3, "Y": -2.9})
    study = adapter.tell(study, {"Z": 4.0}, failed="leaked")
    study = adapter.tell(study, {}, {"X": 0.5, "Z": 0.2, "Y": 0.4})
    entries = _of_study(study, data, CHAIN_QUERIES)
    batch = list(adapter.ask(study, 3, pending=[{"X": -5.0}]))
    return entries | _of_suggestions(batch, adapter.widths(of.problem), "a batch")


@case("a study with levels, a constraint, costs and a known slope")
def _restricted_study() -> dict[str, Entry]:
    problem = PROBLEMS["levels, a constraint, costs and a known slope"]()
    x, w, z, y = np.random.default_rng(1).normal(size=(4, 40))
    made = {"X": x, "Z": 0.8 * x + z, "W": np.abs(w)}
    made["Y"] = made["Z"] - made["W"] + 0.5 * x + 0.5 * y
    data = adapter.table(problem, np.column_stack([made[name] for name in adapter.nodes(problem)]))
    study = adapter.study(problem, data, acquisition=adapter.per_cost("log-ei"), key=2)
    for outcome in (7.0, 8.5, 7.7):
        study = adapter.tell(study, adapter.ask(study), outcome)
    return _of_study(study, data, [{"X": 1.0}, {"Z": 3.0}, {"Z": 3.0, "W": 1.0}])


@case("a study with a model discrepancy")
def _study_with_discrepancy() -> dict[str, Entry]:
    of, data = system("healthcare"), data_of("healthcare")
    options = {"learn_from": "target", "discrepancy": True}
    study = adapter.study(of.problem, data, key=2, **options)
    for intervention, outcome in (({"statin": 1.0}, 6.5), ({"aspirin": 0.5}, 7.9)):
        study = adapter.tell(study, intervention, outcome)
    return _of_study(study, data, HEALTHCARE_QUERIES, **ROUNDS)


@case("a study with Gaussian processes")
def _gp_study() -> dict[str, Entry]:
    of, data = system("toy"), data_of("toy")
    study = adapter.study(of.problem, data, mechanisms="gp", key=2)
    study = adapter.tell(study, {"Z": -3.0}, -2.3)
    study = adapter.tell(study, {"X": 2.0}, {"Z": 0.1, "Y": 0.4})
    return _of_study(study, data, CHAIN_QUERIES, **ROUNDS)


@case("JSON texts of settings")
def _settings_texts() -> dict[str, Entry]:
    made = {
        "the usual ones": {},
        "cbo": {"preset": "cbo", "rounds": 5, "batch": 2},
        "exact outcomes": {"exact": True, "acquisition": "ei", "report": "model"},
        "observing": {"observe": adapter.observing(None, 20, 2, 0.1), "budget": 12.0},
        "NUTS and Gaussian processes": {
            "mechanisms": {"Y": adapter.gp(kernel="matern52")},
            "inference": adapter.nuts(2, 300, 300),
            "learn_from": "target",
        },
    }
    entries: dict[str, Entry] = {}
    for name, options in made.items():
        settings = adapter.settings(**options)
        again = adapter.settings_from_text(adapter.settings_text(settings))
        entries[f"{name} are read back"] = choice(again == settings)
    return entries
