"""The one place where the recorded cases call the package: a small vocabulary of their own.

A renamed public name needs an edit here and nowhere else in this folder. Interventions are
{variable: value}, results are plain dictionaries, lists and arrays.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpyro.diagnostics import effective_sample_size

import causal_bo_ppl as cb

Interventions = Sequence[Mapping[str, float]]


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore the package's warnings: small data and few draws cause some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CausalBOWarning)
        yield


# Graphs, problems, systems and data


def load(name: str, **options: Any) -> Any:
    """Return a system whose truth is known."""
    return cb.models.load(name, **options)


def parse(text: str) -> Any:
    """Return a causal graph."""
    return cb.CausalGraph.parse(text)


def pose(graph: str, target: str, domains: Mapping[str, Any], **options: Any) -> Any:
    """Return a problem; a domain that is a list holds levels."""
    read = {
        name: cb.Levels(domain) if isinstance(domain, list) else domain
        for name, domain in domains.items()
    }
    with quiet():
        return cb.Problem(parse(graph), target, domains=read, **options)


def at_most(coefficients: Mapping[str, float], upper: float) -> Any:
    """Return a linear constraint on values that are set together."""
    return cb.LinearConstraint(dict(coefficients), upper=upper)


def nodes(problem: Any) -> list[str]:
    """Return the names of the variables in causal order."""
    return list(problem.graph.nodes)


def widths(problem: Any) -> dict[str, float]:
    """Return the width of every domain."""
    return {name: high - low for name, (low, high) in problem.domains.items()}


def sets(problem: Any) -> list[list[str]]:
    """Return the intervention sets that are explored."""
    return [list(members) for members in problem.sets]


def minimal_sets(graph: str, target: str, manipulable: Sequence[str]) -> dict[str, Any]:
    """Return the minimal and the possibly optimal minimal intervention sets of a graph."""
    read = parse(graph)
    found = {"minimal": cb.graph.mis, "possibly optimal": cb.graph.pomis}
    return {
        name: sorted(sorted(members) for members in find(read, target, manipulable))
        for name, find in found.items()
    }


def designs(problem: Any) -> dict[str, list[dict[str, float]]]:
    """Return the grid of 3, the Sobol points of 4 and the vertices, as interventions."""
    made = {"grid": problem.grid(3), "sobol": problem.sobol(4), "vertices": problem.vertices()}
    return {name: problem.interventions(queries) for name, queries in made.items()}


def costs(problem: Any, interventions: Interventions) -> np.ndarray:
    """Return what the interventions cost."""
    return problem.cost(problem.queries(interventions))


def problem_text(problem: Any) -> str:
    """Return the JSON text of a problem."""
    return problem.to_json()


def problem_from_text(text: str) -> Any:
    """Return the problem that a JSON text describes."""
    with quiet():
        return cb.Problem.from_json(text)


def observe(system: Any, n: int, key: int) -> Any:
    """Return n observations of a system."""
    return system.observe(n, key)


def experiment(system: Any, interventions: Interventions, key: int) -> Any:
    """Return one observation of a system under each intervention."""
    return system.experiment(system.problem.queries(interventions), key)


def true_effects(system: Any, interventions: Interventions) -> np.ndarray:
    """Return the true effects of interventions on a system."""
    return system.effect(system.problem.queries(interventions))


def optimum(system: Any) -> tuple[dict[str, float], float]:
    """Return the best intervention of a system and its effect."""
    return dict(system.optimum.intervention), float(system.optimum.value)


def table(problem: Any, values: np.ndarray, intervened: np.ndarray | None = None) -> Any:
    """Return data from values (n, p) in the order of the graph, and where they were set."""
    mask = np.zeros(values.shape, bool) if intervened is None else intervened
    return cb.Data(problem.graph.nodes, problem.target, values, mask)


def values(data: Any) -> np.ndarray:
    """Return the values (n, p) of data."""
    return data.values


# Identification


def identify(graph: str, target: str, intervened: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Return the identification of every set, by its label."""
    found = cb.identify(parse(graph), target, intervened)
    return {", ".join(members): found[members] for members in intervened}


def verdict_of_identification(found: Any) -> dict[str, Any]:
    """Return what is known of one set without numbers."""
    return {
        "identifiable": found.identifiable,
        "route": found.route,
        "hedge": [sorted(district) for district in found.hedge],
    }


def evaluate(found: Any, covariance: np.ndarray) -> dict[str, float]:
    """Return the slopes that an estimand gives for a covariance."""
    return {name: float(slope) for name, slope in found.evaluate(covariance).items()}


def coordinates(problem: Any, kind: str, intercepts: bool) -> list[str]:
    """Return the names of the parameters that all effects share, sorted."""
    return sorted(cb.identify(problem).parameters(kind, intercepts=intercepts).names)


# Posteriors, responses and kernels


def nuts(chains: int, warmup: int, draws: int) -> Any:
    """Return the configuration of NUTS."""
    return cb.NUTS(chains=chains, warmup=warmup, draws=draws, progress=False)


def gp(**options: Any) -> Any:
    """Return Gaussian process mechanisms with options."""
    return cb.GP(**options)


def fixed_prior(**options: Any) -> Any:
    """Return a prior of linear mechanisms in given units."""
    return cb.priors.FixedPrior(**options)


def fit(problem: Any, data: Any, **options: Any) -> Any:
    """Return the posterior of the parameters that all effects share."""
    with quiet():
        return cb.fit(problem, data, **options)


def update(post: Any, data: Any) -> Any:
    """Return the posterior after more observations."""
    return post.update(data)


def verdict(post: Any) -> str:
    """Return whether the computation of a posterior worked."""
    return post.verdict


def accept(post: Any, why: str) -> Any:
    """Return a posterior that may be used whatever its verdict."""
    return post.accept(why)


def moments(post: Any) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return names, mean and covariance of the parameters, in the order of their names."""
    order = sorted(range(len(post.names)), key=lambda position: post.names[position])
    names = [post.names[position] for position in order]
    return names, post.mean[order], post.covariance[np.ix_(order, order)]


def drawn(post: Any, n: int, key: int) -> np.ndarray:
    """Return n draws of the parameters, in the order of their names."""
    order = sorted(range(len(post.names)), key=lambda position: post.names[position])
    return post.draws(n, key)[:, order]


def chains(post: Any, interventions: Interventions) -> tuple[np.ndarray, np.ndarray]:
    """Return what a sampler drew: parameters and effects, each (chains, draws, ...)."""
    tree = post.to_datatree(effects=interventions)["posterior"]
    order = sorted(range(len(post.names)), key=lambda position: post.names[position])
    return tree["theta"].to_numpy()[..., order], tree["effect"].to_numpy()


def mean_and_error(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means over chains (chains, draws, ...) and their standard errors."""
    size = np.maximum(effective_sample_size(samples), 1.0)
    return samples.mean(axis=(0, 1)), np.sqrt(samples.var(axis=(0, 1)) / size)


def response_at_mean(post: Any, interventions: Interventions) -> np.ndarray:
    """Return the effects of the posterior mean."""
    queries = post.problem.queries(interventions)
    return cb.response(post)(post.mean, queries)


def response_gradient(post: Any, interventions: Interventions) -> np.ndarray:
    """Return the gradient of the effects at the posterior mean, in the order of the names."""
    queries = post.problem.queries(interventions)
    order = sorted(range(len(post.names)), key=lambda position: post.names[position])
    return np.asarray(cb.response(post).jacobian(post.mean, queries))[:, order]


def gram(
    post: Any, interventions: Interventions, kind: str, draws: int = 1_000, key: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the covariances of effects by a kernel, and their standard errors."""
    queries = post.problem.queries(interventions)
    with quiet():
        if kind == "monte_carlo":
            found = cb.monte_carlo_gram(post, queries, draws=draws, key=key)
            return found.gram, found.standard_error
        found = {"jacobian": cb.jacobian_gram, "exact": cb.exact_gram}[kind](post, queries)
    return found.gram, np.zeros_like(found.gram)


def effects(
    of: Any,
    interventions: Interventions,
    against: Mapping[str, float] | None = None,
    key: int | None = None,
) -> dict[str, Any]:
    """Return mean, sd, lower, upper and how they were found; of a posterior, study or run."""
    options = {} if key is None else {"key": key}
    with quiet():
        found = cb.effects(of, list(interventions), against=against, level=0.9, **options)
    numbers = {name: found[name].to_numpy() for name in ("mean", "sd", "lower", "upper")}
    return numbers | {"by": found["by"].tolist()}


def coupling(post: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return between all sets: rms correlations, and shares of variance explained."""
    found = cb.kernels.coupling(post)
    return found["between"].to_numpy(), found["explained"].to_numpy()


def theory(post: Any, interventions: Interventions, noise: float, rounds: int) -> dict[str, float]:
    """Return causal rank, information gain and its bound."""
    queries = post.problem.queries(interventions)
    found = cb.jacobian_gram(post, queries).gram
    rank, kappa2 = int(cb.theory.causal_rank(post, queries)), float(np.diagonal(found).max())
    return {
        "rank": rank,
        "information gain": float(cb.theory.information_gain(found, noise)),
        "bound": float(cb.theory.information_gain_bound(rank, rounds, kappa2, noise)),
    }


def checks(problem: Any, data: Any, post: Any) -> dict[str, str]:
    """Return the verdicts of some diagnostics."""
    found = {
        "graph": cb.diagnostics.check_graph(problem, data),
        "overlap": cb.diagnostics.check_overlap(problem, data),
        "posterior": cb.diagnostics.check_posterior(post),
    }
    return {name: check.verdict for name, check in found.items()}


# Settings, runs and studies


def observing(probability: float | None, most: int, size: int, cost: float = 0.0) -> Any:
    """Return when a round observes instead of running an experiment, `size` at a time."""
    return cb.optimization.Observe(probability=probability, most=most, batch=size, cost=cost)


def per_cost(acquisition: str) -> Any:
    """Return an acquisition per unit of cost."""
    return cb.acquisition.PerCost(acquisition)


def settings(
    preset: str = "gc-cbo", *, exact: bool = False, beta: float | None = None, **options: Any
) -> Any:
    """Return settings.

    Parameters
    ----------
    preset:
        The name of a preset.
    exact:
        Whether outcomes have no noise.
    beta:
        Of the confidence bound; None for its default.
    options:
        What has one name: mechanisms, inference, prior, acquisition, relinearize, discrepancy,
        learn_from, report, batch, observations, rounds, budget, observe.
    """
    if exact:
        options["noise"] = 0.0
    if beta is not None:
        options["acquisition"] = cb.acquisition.ConfidenceBound(beta)
    return cb.Settings.preset(preset, **options)


def settings_text(chosen: Any) -> str:
    """Return the JSON text of settings."""
    return chosen.to_json()


def settings_from_text(text: str) -> Any:
    """Return the settings that a JSON text describes."""
    return cb.Settings.from_json(text)


def run(
    of: Any,
    preset: str = "gc-cbo",
    *,
    data: Any = None,
    experiment: Callable[[list[dict[str, float]]], Sequence[float]] | None = None,
    resume: Any = None,
    key: int,
    **options: Any,
) -> Any:
    """Return the run of a system, or of a problem with data and an experiment.

    The experiment takes a list of interventions and returns their outcomes. Other options are those
    of `settings`.
    """

    def measure(queries: Any) -> np.ndarray:
        return np.asarray(experiment(of.interventions(queries)), float)

    with quiet():
        return cb.optimize(
            of,
            settings=settings(preset, **options),
            data=data,
            experiment=None if experiment is None else measure,
            resume=resume,
            progress=False,
            key=key,
        )


def run_of_error(error: BaseException) -> Any:
    """Return the run that an error out of an experiment holds."""
    return error.run


ExperimentFailed = cb.errors.ExperimentFailed


def trace(of_run: Any) -> dict[str, Any]:
    """Return what a run did: a number for each experiment, and interventions."""
    found, problem = of_run.trace, of_run.problem
    names = ("outcome", "noise", "mean", "sd", "bound", "cost", "total_cost")
    renamed = {"bound": "acquisition value", "noise": "outcome variance"}
    numbers = {renamed.get(name, name): found[name].to_numpy() for name in names}
    numbers["recommended mean"] = found["best_mean"].to_numpy()
    numbers["recommended sd"] = found["best_sd"].to_numpy()
    numbers["discrepancy"] = found["discrepancy"].to_numpy()
    names = [str(name) for name in found["variable"].to_numpy()]
    return {
        "numbers": numbers,
        "round": [int(number) for number in found["round"].to_numpy()],
        "tried": [_set_values(names, row) for row in found["value"].to_numpy()],
        "recommended": [_set_values(names, row) for row in found["best_value"].to_numpy()],
        "widths": widths(problem),
    }


def _set_values(names: Sequence[str], row: np.ndarray) -> dict[str, float]:
    pairs = zip(names, row.tolist(), strict=True)
    return {name: value for name, value in pairs if not np.isnan(value)}


def observed(of_run: Any) -> list[list[int]]:
    """Return [round, number of observations] of each round that observed."""
    passive = of_run.rounds[of_run.log.is_passive]
    return [[int(each), int((passive == each).sum())] for each in np.unique(passive)]


def regret(of_run: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the regret of what was recommended, and of the best tried."""
    return of_run.regret(), of_run.regret("tried")


def recommended(of: Any) -> dict[str, Any]:
    """Return what a run or study recommends: intervention, mean, sd, interval, by."""
    best = of.best
    return {
        "intervention": dict(best.intervention),
        "numbers": [best.mean, best.sd, *best.interval(0.9)],
        "by": best.by,
    }


def surprise(of: Any) -> float:
    """Return the corrected probability of outcomes as unexpected as those of a run or study."""
    return float(of.surprise.p)


def study(problem: Any, data: Any, preset: str = "gc-cbo", *, key: int, **options: Any) -> Any:
    """Return a study; the options are those of `settings`."""
    with quiet():
        return cb.Study(problem, data, settings(preset, **options), key=key)


def ask(of_study: Any, n: int | None = None, pending: Any = ()) -> Any:
    """Return the next suggestion, or n of them."""
    with quiet():
        return of_study.ask(n, pending=pending)


def suggested(suggestion: Any) -> tuple[dict[str, float], list[float]]:
    """Return a suggestion's intervention, and mean, sd, interval, cost and acquisition value."""
    numbers = [
        suggestion.mean,
        suggestion.sd,
        *suggestion.interval(0.9),
        suggestion.cost,
        suggestion.bound,
    ]
    return dict(suggestion.intervention), numbers


def tell(of_study: Any, what: Any, outcome: Any = None, **options: Any) -> Any:
    """Return the study after something came back, however far from what was expected."""
    with quiet():
        return of_study.tell(what, outcome, sure=True, **options)


def history(of_study: Any) -> dict[str, Any]:
    """Return what was recorded and what had been predicted for it."""
    found = of_study.to_frame()
    renamed = {"expected": "predicted mean", "spread": "predicted sd", "z": "residual"}
    names = ("outcome", "variance", "cost", "expected", "spread", "z")
    numbers = {renamed.get(name, name): found[name].to_numpy(float) for name in names}
    return {
        "numbers": numbers,
        "suggestions": [None if value is None else int(value) for value in _nullable(found)],
        "failed": found["failed"].tolist(),
    }


def _nullable(found: Any) -> list[Any]:
    return found["suggestion"].astype(object).where(found["suggestion"].notna(), None).tolist()


def study_text(of_study: Any) -> str:
    """Return the JSON text of a study."""
    return of_study.to_json()


def study_from_text(text: str, data: Any) -> Any:
    """Return the study that a JSON text describes, given the observations it began with."""
    with quiet():
        return cb.Study.from_json(text, data)
