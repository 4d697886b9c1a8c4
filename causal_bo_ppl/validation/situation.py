"""What is validated: a posterior, its data and its recommendation, with what several checks need.

Whatever is computed here is computed once, when it is first asked for.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import read_data
from causal_bo_ppl.diagnostics import check_graph
from causal_bo_ppl.errors import (
    ArgumentError,
    DataError,
    MechanismError,
    NotIdentifiable,
    NumericalError,
    PosteriorError,
)
from causal_bo_ppl.identification.parameters import reduce_effect
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import TRUSTED_VERDICTS
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.optimization import Run, Settings, Study
from causal_bo_ppl.optimization.state import fit_data
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import labels, show, to_mappings
from causal_bo_ppl.responses import response, response_to_draws
from causal_bo_ppl.theory.constants import design

GRAPH_ALPHA = 1e-3  # the share of true graphs that fail
MOST_ADDED_ARROWS = 3  # where the data contradict independences
PLANNED_ROUNDS = 20  # for forecasts, where nothing says how many there will be


class CandidateEffects(NamedTuple):
    """Interventions among which the best is sought, with their effects under a posterior.

    queries: M interventions. how: what they are. mean: (M,) effects at the posterior mean.
    features: (M, r), whose products are the Jacobian kernel.
    """

    queries: Queries
    how: str
    mean: np.ndarray
    features: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """The linearized posterior sds of the effects, (M,)."""
        return np.asarray(np.linalg.norm(self.features, axis=1))


@dataclass(frozen=True, eq=False)
class Situation:
    """A problem, its data, a posterior of these, and the study or run that it belongs to.

    fitted: the posterior, None where the data could not be fitted, as `refused` says. study, run:
    None where there is none. root: the key of all that is drawn. full: whether checks that take
    long are wanted.
    """

    problem: Problem
    data: Data
    fitted: Posterior | None
    study: Study | None
    run: Run | None
    root: jax.Array
    full: bool
    refused: str = ""
    memory: dict[str, Any] = field(default_factory=dict, repr=False)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what is computed under a name, once."""
        if name not in self.memory:
            self.memory[name] = compute()
        return self.memory[name]

    @property
    def post(self) -> Posterior:
        """The posterior; an error where these data could not be fitted."""
        if self.fitted is None:
            raise PosteriorError("there is no posterior; see the card of the fit")
        return self.fitted

    @property
    def subject(self) -> Any:
        """What is validated, for a report."""
        return self.run or self.study or self.fitted or self.problem

    def key(self, name: str) -> jax.Array:
        """Return the key of what is drawn for a card; it does not depend on other cards."""
        return jax.random.fold_in(self.root, zlib.crc32(name.encode()) & 0x7FFFFFFF)

    @property
    def sign(self) -> float:
        """1 where a smaller effect is better, -1 where a larger one is."""
        return 1.0 if self.problem.objective == "min" else -1.0

    @property
    def settings(self) -> Settings:
        """The settings of the study; the default ones without a study."""
        return Settings() if self.study is None else self.study.settings

    @property
    def rounds(self) -> int:
        """The number of rounds that are planned, for forecasts."""
        return self.settings.rounds or PLANNED_ROUNDS

    @cached_property
    def trusted(self) -> Posterior:
        """The posterior; one that failed as accepted, since its failure has a card of its own."""
        is_trusted = self.post.verdict in TRUSTED_VERDICTS or self.post.accepted
        return self.post if is_trusted else self.post.accept("to be validated")

    @cached_property
    def candidates(self) -> CandidateEffects:
        """All vertices, or points that fill the domains, with their effects."""
        queries, how = design(self.trusted)
        mean, jacobian = response(self.trusted).linearize(self.trusted.mean, queries)
        return CandidateEffects(
            queries, how, np.asarray(mean), np.asarray(jacobian @ self.trusted.factor)
        )

    @cached_property
    def best(self) -> Queries:
        """The recommended intervention: that of the study, or the best mean effect.

        Where a study recommends to set nothing, it is the best intervention.
        """
        if self.study is not None and self.study.best.intervention:
            return self.study.problem.queries([self.study.best.intervention])
        found = self.candidates
        return found.queries[first_smallest(self.sign * found.mean)]

    @property
    def recommendation(self) -> dict[str, float]:
        """The recommended intervention, {variable: value}."""
        return to_mappings(self.best, self.problem.graph.nodes)[0]

    def show(self, query: Queries) -> str:
        """Return an intervention as a text."""
        return show(to_mappings(query, self.problem.graph.nodes)[0], 4)

    def effects_of(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the effects (s, M) of interventions at several theta (s, d)."""
        return np.asarray(response_to_draws(self.trusted).effects(theta, queries))

    @property
    def effect_name(self) -> str:
        """The name of the recommended intervention in tables."""
        return labels(self.problem, self.best)[0]

    @property
    def label(self) -> str:
        """The recommended intervention as a text."""
        return self.show(self.best)

    @cached_property
    def best_mean(self) -> float:
        """The effect of the recommendation at the posterior mean."""
        return float(response(self.trusted).effects(self.trusted.mean, self.best)[0])

    @cached_property
    def outcome_sd(self) -> float:
        """The sd of the target in observations without interventions, or in all of them."""
        plain = self.data.is_observational
        outcomes = self.data.outcomes[plain] if plain.sum() > 1 else self.data.outcomes
        return float(outcomes.std()) if len(outcomes) else np.nan

    @cached_property
    def gain(self) -> float:
        """By how much the recommendation is better than the average outcome; at least 0."""
        plain = self.data.is_observational
        if not plain.any():
            return np.nan
        return max(self.sign * (float(self.data.outcomes[plain].mean()) - self.best_mean), 0.0)

    @cached_property
    def graph_check(self) -> Check:
        """Whether the data contradict an independence of the graph."""
        return check_graph(self.post, alpha=GRAPH_ALPHA, key=self.key("causal graph"))

    @property
    def contradicted(self) -> list[tuple[str, str]]:
        """The pairs that the graph separates and the data do not, the worst first."""
        failed = self.graph_check.failures.head(MOST_ADDED_ARROWS)
        return [(str(row["left"]), str(row["right"])) for _, row in failed.iterrows()]

    @cached_property
    def open(self) -> tuple[str, ...]:
        """The variables whose mechanisms the effect of the recommendation rests on."""
        graph = self.problem.graph.ancestral(self.problem.target)
        return reduce_effect(graph, self.problem.target, tuple(self.recommendation)).open

    def rests_on(self, names: Any) -> bool:
        """Whether the recommended effect depends on the mechanism of one of these variables."""
        return bool({*map(str, names)} & {*self.open})

    def concern(self, names: Any) -> str:
        """Return in words whether faults of these mechanisms concern the recommendation."""
        touched = [str(name) for name in dict.fromkeys(names) if str(name) in self.open]
        if touched:
            return (
                f"The effect of the recommended {self.label} rests on the mechanism of "
                f"{', '.join(touched[:4])}."
            )
        return f"The recommended {self.label} does not depend on these mechanisms; others may."


def read_situation(
    thing: Any,
    data: Any,
    mechanisms: Any,
    method: Any,
    prior: Any,
    key: jax.Array,
    full: bool,
) -> Situation:
    """Return what is validated; of a problem and data the posterior is fitted."""
    if isinstance(thing, Problem):
        if data is None:
            raise DataError("a problem is validated with its data: cb.validate(problem, data)")
        observed = read_data(thing, data)
        chosen = Settings() if mechanisms is None else Settings(mechanisms=mechanisms)
        chosen = replace(chosen, inference=method, prior=prior)
        common = None, None, key, full
        try:
            post, _, _ = fit_data(thing, observed, chosen, jax.random.fold_in(key, 1))
        except (DataError, NotIdentifiable, NumericalError, MechanismError) as error:
            return Situation(thing, observed, None, *common, str(error))
        return Situation(thing, observed, post, *common)
    if data is not None or any(each is not None for each in (mechanisms, method, prior)):
        raise ArgumentError(
            "data, mechanisms, method and prior belong to the posterior, the study or the run; "
            "leave them out, or give the problem in place of it"
        )
    if isinstance(thing, Posterior):
        return Situation(thing.problem, thing.data, thing, None, None, key, full)
    if isinstance(thing, Run | Study):
        study = thing.study if isinstance(thing, Run) else thing
        run, post = (thing if isinstance(thing, Run) else None), study.posterior
        return Situation(study.problem, post.data, post, study, run, key, full)
    raise ArgumentError(
        "validate takes a problem with its data, a posterior, a study or a run; got "
        f"{type(thing).__name__}"
    )
