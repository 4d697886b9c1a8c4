"""What is measured? Every (system, kind) gives quantities by name, each with its rule."""

from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
from golden import adapter, systems

import causal_bo_ppl as cb

POINTS = 100  # at which log densities are taken


class Quantity(NamedTuple):
    """Numbers, the rule that judges them, and what they are relative to.

    scale: broadcastable to the values; of a drawn quantity its standard errors. None stands for
    the largest recorded number.
    """

    values: object
    rule: str
    scale: object = None


FITS = {
    "chain": {
        "conjugate": {},
        "conjugate, fixed prior": {"prior": "fixed chain"},
        "conjugate, known noise": {"prior": "known noise"},
        "conjugate, total effects": {"parameters": "total_effect"},
        "conjugate, estimands": {"parameters": "estimand"},
        "conjugate, all rows": {"rows": "all"},
        "conjugate, updated": {"rows": "updated"},
        "wishart": {"method": "wishart"},
        "wishart, moment prior": {"method": "wishart", "prior": "moments"},
    },
    "ecoli": {
        "conjugate": {},
        "conjugate, estimands": {"parameters": "estimand"},
        "conjugate, updated": {"rows": "updated", "prior": "fixed"},
        "wishart": {"method": "wishart"},
    },
    "front_door": {
        "wishart": {"method": "wishart"},
        "wishart, moment prior": {"method": "wishart", "prior": "moments"},
    },
    "random": {
        "conjugate": {"rows": "all"},
        "conjugate, no intercepts": {"rows": "all", "intercepts": False},
        "conjugate, no intercepts, updated": {
            "rows": "updated",
            "intercepts": False,
            "prior": "scaled",
        },
        "conjugate, total effects": {
            "rows": "all",
            "parameters": "total_effect",
            "intercepts": False,
        },
        "conjugate, estimands": {"parameters": "estimand"},
        "conjugate, fixed prior": {"rows": "all", "prior": "fixed"},
    },
    "napkin": {"wishart": {"method": "wishart"}},
}
LAPLACE = {
    "chain": {"laplace": {"rows": "all", "prior": "fixed chain"}},
    "ecoli": {"laplace": {"rows": "all"}},
    "front_door": {"laplace": {"prior": "fixed"}},
    "random": {"laplace": {"rows": "all", "intercepts": False, "prior": "scaled"}},
}
DENSITIES = {  # models of `laplace` and `nuts`; outcomes: also of the target alone
    "chain": {"rows": "all", "prior": "fixed chain", "outcomes": True},
    "ecoli": {"rows": "all"},
    "front_door": {},
    "random": {"rows": "all", "intercepts": False, "prior": "scaled"},
    "napkin": {"rows": "all", "prior": "fixed", "outcomes": True},
}
NUTS = {"chain": {"rows": "all"}, "front_door": {"prior": "fixed"}}
DRAWS = (4, 400, 500)  # chains, warm-up, draws
LINEARIZED = {  # the posteriors whose responses and kernels are measured
    "chain": ("conjugate", "conjugate, total effects"),
    "ecoli": ("conjugate", "conjugate, estimands"),
    "front_door": ("wishart", "laplace"),
    "random": ("conjugate, no intercepts",),
    "napkin": ("wishart",),
}


@lru_cache
def posterior(system, label):
    """A posterior by its label, fitted once."""
    options = LAPLACE[system][label] if label == "laplace" else FITS[system][label]
    return _fit(
        systems.load(system),
        **{"method": "laplace" if label == "laplace" else "conjugate"} | options,
    )


def _fit(case, rows="observed", **options):
    post = adapter.fit(case.problem, _data(case, rows), **options)
    return post.update(adapter.make_data(case.problem, case.tried)) if rows == "updated" else post


def _data(case, rows):
    """The observed rows, or "all" of them with those of experiments."""
    return adapter.make_data(
        case.problem, systems.join(case.observed, case.tried) if rows == "all" else case.observed
    )


def told_outcomes(case):
    """Five interventions of which only the target is known, and its values."""
    found = cb.identify(case.problem)
    learned = [members for members in case.problem.sets if found[members].identifiable]
    interventions = systems.draw_interventions(case.problem, 5, 7, learned)
    return interventions, np.random.default_rng(8).normal(size=5)


@lru_cache
def queries(system, count=8):
    """Interventions within the sets that can be learned."""
    case = systems.load(system)
    learned = [
        members for members, found in cb.identify(case.problem).items() if found.identifiable
    ]
    return case.problem.queries(systems.draw_interventions(case.problem, count, 9, learned))


def sorted_places(post):
    """Places of the coordinates by name, so that their order does not matter."""
    return np.array(sorted(range(len(post.names)), key=lambda place: post.names[place]))


def identification(system):
    """What can be learned, by which route, and the slopes of the estimands in two covariances."""
    case = systems.load(system)
    found = cb.identify(case.problem)
    rows = np.column_stack([case.observed.values[name] for name in case.problem.graph.nodes])
    results = _identified(found, systems.implied_covariance(case), np.cov(rows.T, bias=True))
    for kind in ("structural", "total_effect", "estimand"):
        for intercepts in (True, False):
            names = list(found.parameters(kind, intercepts=intercepts).names)
            results[f"names of {kind}, intercepts {intercepts}"] = Quantity(names, "same")
    return results


def _identified(found, implied, sampled):
    verdicts, slopes = {}, {"the equations": [], "the rows": []}
    for members, each in found.items():
        label = ", ".join(members)
        verdicts[label] = [
            each.identifiable,
            each.route,
            [list(part) for part in adapter.hedge(each)],
        ]
        if each.identifiable:
            for words, covariance in (("the equations", implied), ("the rows", sampled)):
                slopes[words] += [
                    float(value) for _, value in sorted(each.evaluate(covariance).items())
                ]
    results = {"verdicts": Quantity(verdicts, "same")}
    for words, numbers in slopes.items():
        results[f"slopes in the covariance of {words}"] = Quantity(np.array(numbers), "closed form")
    return results


GRAPHS = {  # (graph, sets): the front door, instruments, hedges, ratios, and a long district
    "front door": ("X -> Z -> Y; X <-> Y", ["X", "Z", "XZ"]),
    "bow": ("X -> Y; X <-> Y", ["X"]),
    "instrument": ("Z -> X -> Y; X <-> Y", ["X", "Z"]),
    "napkin": ("W -> Z -> X -> Y; W <-> X; W <-> Y", ["X", "Z", "W", "ZX"]),
    "verma": ("A -> B -> C -> Y; B <-> Y", ["A", "B", "C", "AC"]),
    "covariates": ("A -> B; A -> X; B -> X; A -> Y; B -> Y; X -> Y", ["X", "A", "AX"]),
    "m": ("A -> X; B -> Y; X -> Y; A <-> C; B <-> C; C -> X", ["X", "C", "A"]),
    "tian": (
        "A -> B -> X -> Y; C -> D -> X; A <-> X; A <-> Y; A <-> C; C <-> B; E; C <-> E; E <-> D",
        ["X", "B", "D", "AX"],
    ),
    "two doors": ("X -> A -> Y; X -> B -> Y; X <-> Y; A <-> B", ["X", "A", "B", "AB"]),
}


def graphs(_):
    """Identification alone, in graphs whose effects need more than adjustment."""
    results = {}
    for label, (text, sets) in GRAPHS.items():
        graph = cb.CausalGraph.parse(text)
        generator = np.random.default_rng(len(label))
        root = generator.normal(size=(len(graph.nodes), 4 * len(graph.nodes)))
        found = cb.identify(graph, "Y", [tuple(members) for members in sets])
        results |= {
            f"{label}: {name}": each
            for name, each in _identified(found, np.eye(len(root)), root @ root.T).items()
            if "equations" not in name and np.size(each.values)
        }
    return results


def posteriors(system):
    """Mean, covariance and outcome variances of closed forms."""
    results = {}
    for label in FITS[system]:
        results |= _moments(system, label, posterior(system, label), "closed form")
    return results


def _moments(system, label, post, rule):
    order = sorted_places(post)
    covariance = np.asarray(post.covariance)[np.ix_(order, order)]
    variances = adapter.outcome_variances(post, queries(system))
    sds = np.sqrt(np.diagonal(covariance))
    return {
        f"{label}: names": Quantity(sorted(post.names), "same"),
        f"{label}: mean": Quantity(
            np.asarray(post.mean)[order], rule, np.abs(post.mean)[order] + sds
        ),
        f"{label}: covariance": Quantity(covariance, rule, np.outer(sds, sds)),
        f"{label}: outcome variances": Quantity(variances, rule, variances),
    }


def draws(system):
    """Draws of closed forms for a key; NumPy's generator makes them."""
    results = {}
    for label in LINEARIZED[system]:
        if not label == "laplace":
            post = posterior(system, label)
            found = np.asarray(post.draws(12, jax.random.key(3)))[:, sorted_places(post)]
            results[label] = Quantity(
                found, "closed form", np.abs(found).max(axis=0, keepdims=True)
            )
    return results


def log_densities(system):
    """Log prior, log likelihood and gradients of the model that `laplace` and `nuts` fit."""
    case = systems.load(system)
    options = {"rows": "observed", "outcomes": False} | DENSITIES[system]
    data, told = (
        _data(case, options.pop("rows")),
        told_outcomes(case) if options.pop("outcomes") else None,
    )
    model = adapter.make_model(case.problem, data, outcomes=told, **options)
    names = adapter.density_names(model)
    found = adapter.log_density(model, names, density_points(system, tuple(names)))
    prior, likelihood, prior_slopes, likelihood_slopes = found
    return {
        "names": Quantity(names, "same"),
        "log prior": Quantity(prior - prior[0], "closed form"),  # its constant is left open
        "log likelihood": Quantity(likelihood, "closed form", np.abs(likelihood)),
        "gradient of the log prior": _by_coordinate(prior_slopes),
        "gradient of the log likelihood": _by_coordinate(likelihood_slopes),
    }


def _by_coordinate(gradients):
    largest = np.abs(gradients).max(axis=0, keepdims=True)
    return Quantity(gradients, "closed form", np.where(largest > 0, largest, 1.0))


def density_points(system, names):
    """(100, k) points around the truth, in the order of the names."""
    typical = systems.typical_values(systems.load(system))
    centre, spread = (
        np.array([typical[name] for name in names]),
        [0.3 if name[0] == "t" else 0.15 for name in names],
    )
    return centre + np.array(spread) * np.random.default_rng(10).standard_normal(
        (POINTS, len(names))
    )


def laplace(system):
    """Mean, covariance and outcome variances at the mode."""
    results = {}
    for label in LAPLACE[system]:
        results |= _moments(system, label, posterior(system, label), "laplace")
    return results


def unfinished_modes():
    """Systems whose mode was given up too early to be found again by other steps.

    At 3e-7 posterior sds from the mode, covariances were measured to be 2e-8 off.
    """
    return [
        system
        for system in LAPLACE
        if not adapter.mode_distance(posterior(system, "laplace")) <= 5e-7
    ]


def nuts(system):
    """Means and sds of theta by NUTS, with Monte-Carlo errors from batches of each chain."""
    case = systems.load(system)
    post = _fit(case, method="nuts", chains=DRAWS, key=jax.random.key(4), **NUTS[system])
    theta = adapter.chains(post)[:, :, sorted_places(post)]
    mean = theta.mean(axis=(0, 1))
    squares = (theta - mean) ** 2
    sd = np.sqrt(squares.mean(axis=(0, 1)))
    return {
        "names": Quantity(sorted(post.names), "same"),
        "mean": Quantity(mean, "drawn", _batch_errors(theta)),
        "sd": Quantity(sd, "drawn", _batch_errors(squares) / (2 * sd)),
    }


def _batch_errors(values):
    """(d,) standard errors of means over (chains, draws, d), by ten batches of each chain."""
    chains, _, size = values.shape
    means = values.reshape(chains * 10, -1, size).mean(axis=1)
    return means.std(axis=0, ddof=1) / np.sqrt(len(means))


def responses(system):
    """Effects and Jacobians at given theta."""
    results = {}
    for label in LINEARIZED[system]:
        post, asked = posterior(system, label), queries(system)
        order, response = sorted_places(post), cb.response(post.problem, post)
        theta = np.empty((3, len(order)))
        theta[:, order] = np.random.default_rng(11).normal(size=(3, len(order)))
        one, many, jacobian = (
            response(theta[0], asked),
            response(theta, asked),
            response.jacobian(theta[0], asked),
        )
        results |= {
            f"{label}: effects": Quantity(np.asarray(one), "closed form"),
            f"{label}: effects of several": Quantity(np.asarray(many), "closed form"),
            f"{label}: jacobian": Quantity(np.asarray(jacobian)[:, order], "closed form"),
        }
    return results


def kernels(system):
    """Grams without Monte-Carlo error, and what linearization leaves out."""
    results = {}
    for label in LINEARIZED[system]:
        post, asked = posterior(system, label), queries(system)
        is_laplace = label == "laplace"
        gram = np.asarray(cb.jacobian_gram(post, asked).gram)
        sds = np.sqrt(np.diagonal(gram))
        results[f"{label}: jacobian gram"] = Quantity(
            gram, "laplace" if is_laplace else "closed form", np.outer(sds, sds)
        )
        if label.startswith("conjugate"):
            exact = np.asarray(cb.exact_gram(post, asked).gram)
            sds = np.sqrt(np.diagonal(exact))
            results[f"{label}: exact gram"] = Quantity(exact, "closed form", np.outer(sds, sds))
        if not is_laplace:
            left_out = adapter.remainders(post, asked)
            results[f"{label}: remainders"] = Quantity(left_out, "closed form", sds**2)
    return results


def drawn_kernels(system):
    """Grams by Monte Carlo, with the standard errors that they state themselves."""
    results = {}
    for label in LINEARIZED[system]:
        post, asked = posterior(system, label), queries(system)
        found = cb.monte_carlo_gram(post, asked, draws=1000, key=jax.random.key(5))
        upper = np.triu_indices(len(asked))
        gram, error = np.asarray(found.gram)[upper], np.asarray(found.standard_error)[upper]
        results[f"{label}: monte carlo gram"] = Quantity(gram, "drawn", error)
        if label == "laplace":
            results[f"{label}: remainders"] = _drawn_remainders(post, asked)
    return results


def _drawn_remainders(post, asked):
    """Means of squares over draws: their errors by draws of our own."""
    theta, response = post.draws(2_000, jax.random.key(6)), cb.response(post.problem, post)
    values, jacobian = (
        np.asarray(response(post.mean, asked)),
        np.asarray(response.jacobian(post.mean, asked)),
    )
    missed = np.asarray(response(theta, asked)) - values - (theta - post.mean) @ jacobian.T
    floor = 1e-12 * np.diagonal(
        cb.jacobian_gram(post, asked).gram
    )  # an effect linear in theta misses only rounding
    error = np.hypot((missed**2).std(axis=0) / np.sqrt(512), floor)
    return Quantity(adapter.remainders(post, asked), "drawn", error)


def theory(system):
    """Ranks, information and the theory's constants."""
    results = {}
    for label in LINEARIZED[system]:
        if label == "laplace":
            continue
        post, asked = posterior(system, label), queries(system)
        gram = cb.jacobian_gram(post, asked).gram
        noise = adapter.outcome_variances(post, asked)
        numbers = {
            "information gain": cb.information_gain(gram, float(noise[0])),
            "information gain, noise of each": cb.information_gain(gram, noise),
            "bound": cb.information_gain_bound(
                cb.causal_rank(post, asked), 40, float(np.max(np.diagonal(gram))), 1.0
            ),
        } | adapter.constants(post)
        ranks = [cb.causal_rank(post, asked), cb.causal_rank(post), adapter.effective_rank(gram)]
        results[f"{label}: ranks"] = Quantity([int(rank) for rank in ranks], "same")
        gains = np.asarray(adapter.greedy_gains(post, asked, noise, 10))
        results[f"{label}: greedy gains"] = Quantity(gains, "closed form", gains)
        results |= {
            f"{label}: {name}": Quantity(np.array([value]), "closed form", np.abs([value]))
            for name, value in numbers.items()
        }
    return results


def comparison(system):
    """The numbers of `compare_kernels` that are not drawn."""
    results = {}
    label = LINEARIZED[system][0]
    post, asked = posterior(system, label), queries(system)
    arrays, kinds = adapter.comparison(post, asked, jax.random.key(12))
    sizes = arrays["size"][0]  # of the leading term: what is left out is relative to it
    scales = {
        "frobenius": 1.0, "overall frobenius": 1.0, "maximum": sizes, "spectral": sizes,
        "bound": arrays["bound"], "size": sizes, "remainder maximum": sizes,
        "overall size": arrays["overall size"][0],
    }  # fmt: skip
    for name, values in arrays.items():
        results[f"{label}: {name}"] = Quantity(values, "closed form", scales[name])
    return results | {f"{label}: {name}": Quantity(words, "same") for name, words in kinds.items()}


SIMULATED = {
    "chain": {},
    "ecoli70": {"target": "b1583", "parents": False, "max_size": 2},
    "funnel": {},
    "healthcare": {},
    "synthetic": {},
    "toy": {"variant": "confounded"},
}


@lru_cache
def simulated(name):
    """A worked system of the package."""
    return cb.models.load(name, **SIMULATED[name])


def simulator(name):
    """Rows and exact effects of a worked system for given keys."""
    system = simulated(name)
    asked = system.problem.queries(systems.draw_interventions(system.problem, 4, 13))
    observed = adapter.rows_of(system.observe(4, jax.random.key(14)))
    tried = adapter.rows_of(system.experiment(asked, jax.random.key(15)))
    results = {
        "rows": Quantity(observed, "closed form", np.abs(observed).max(axis=0, keepdims=True)),
        "rows of experiments": Quantity(
            tried, "closed form", np.abs(tried).max(axis=0, keepdims=True)
        ),
        "effects": Quantity(np.asarray(system.effect(asked)), "closed form"),
    }
    if name in ("chain", "ecoli70", "funnel"):
        results["optimum"] = Quantity(np.array([system.optimum.value]), "closed form")
        results["best intervention"] = Quantity(sorted(system.optimum.intervention), "same")
    return results


SETTINGS = {
    "adaptive, one at a time": {"kernel": "adaptive", "batch": 1, "report": "mean"},
    "fixed, three at a time": {"kernel": "fixed", "batch": 3, "report": "observed", "beta": 9.0},
    "adaptive, three at a time": {"kernel": "adaptive", "batch": 3, "report": "model", "beta": 9.0},
}
WHOLE_ROWS = {
    "whole rows": {"update": "full", "batch": 1, "report": "mean"},
    "whole rows, three at a time": {"update": "full", "batch": 3, "report": "observed"},
}
KEYS = {"chain": (0, 1), "ecoli70": (0, 1), "funnel": (0, 1)}
TOLD_RUNS = {
    "chain": SETTINGS | WHOLE_ROWS,
    "ecoli": SETTINGS | WHOLE_ROWS,
    "front_door": SETTINGS,
    "napkin": SETTINGS,
}


def runs(name):
    """Runs on worked systems that simulate themselves, for two keys."""
    results = {}
    for label in ("adaptive, one at a time", "fixed, three at a time"):
        for key in KEYS[name]:
            options = (
                {"update": "target"}
                | SETTINGS[label]
                | {"rounds": 8, "observations": 60, "key": key}
            )
            results |= _run(f"{label}, key {key}", simulated(name), options)
    return results


def told_runs(system):
    """Runs on given rows and outcomes, which no key of the package changes."""
    case, results = systems.load(system), {}
    data = adapter.make_data(case.problem, case.observed)

    def simulate(is_set, value, number):
        return systems.simulate(
            case.equations, len(is_set[case.problem.target]), 1000 + number, is_set, value
        )

    for label, settings in TOLD_RUNS[system].items():
        experiment = adapter.experiment_of(case.problem, simulate)
        options = (
            {"update": "target"}
            | settings
            | {"rounds": 10, "data": data, "experiment": experiment, "key": 0}
        )
        results |= _run(label, case.problem, options)
    return results


def _run(label, problem, options):
    tried, best, numbers = adapter.optimize(problem, **options)
    results = {
        f"{label}: tried": Quantity(tried, "same"),
        f"{label}: recommended": Quantity(best, "same"),
    }
    for name, values in numbers.items():
        results[f"{label}: {name}"] = Quantity(values, "run")
    return results


KINDS = {  # kind: what makes it, and of which systems
    "identification": (identification, systems.NAMES),
    "graphs": (graphs, ("graphs",)),
    "posteriors": (posteriors, systems.NAMES),
    "draws": (draws, systems.NAMES),
    "log densities": (log_densities, systems.NAMES),
    "laplace": (laplace, tuple(LAPLACE)),
    "nuts": (nuts, tuple(NUTS)),
    "responses": (responses, systems.NAMES),
    "kernels": (kernels, systems.NAMES),
    "drawn kernels": (drawn_kernels, systems.NAMES),
    "theory": (theory, systems.NAMES),
    "comparison": (comparison, ("chain", "random")),
    "simulator": (simulator, tuple(SIMULATED)),
    "runs": (runs, tuple(KEYS)),
    "told runs": (told_runs, tuple(TOLD_RUNS)),
}
PAIRS = tuple((system, kind) for kind, (_, names) in KINDS.items() for system in names)


def measure(system, kind):
    """{name: Quantity} of one kind of one system."""
    return KINDS[kind][0](system)
