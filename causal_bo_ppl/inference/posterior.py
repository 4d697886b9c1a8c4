"""How is the posterior of theta computed, by any method of inference, and what is known of it?

`fit` returns a `Posterior`, which is one result for every method.
"""

import hashlib
import html
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_sizes
from causal_bo_ppl.data.data import digest, read_data, require_data_of
from causal_bo_ppl.data.observations import no_outcomes, read_outcomes
from causal_bo_ppl.errors import (
    ArgumentError,
    DataError,
    DomainError,
    NumericalError,
    PosteriorError,
    listed,
)
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.inference import datatree
from causal_bo_ppl.inference.conjugate import Conjugate
from causal_bo_ppl.inference.draws import (
    GivenDraws,
    InferenceMethod,
    ObservationModel,
    Recipe,
    ThetaDistribution,
    learned_entries,
    read_draws,
    trait,
)
from causal_bo_ppl.inference.laplace import Laplace
from causal_bo_ppl.inference.nuts import NUTS, OwnSampler, read_own_draws
from causal_bo_ppl.inference.wishart import Wishart
from causal_bo_ppl.inputs import (
    as_key,
    offered,
    read_component,
    read_count,
    read_share,
    require_float64,
)
from causal_bo_ppl.mechanisms import Choice, read_mechanisms, read_response
from causal_bo_ppl.mechanisms.automatic import Chosen, choose_mechanisms
from causal_bo_ppl.mechanisms.base import (
    Canonical,
    DescribedMap,
    ExpectedInformation,
    Mechanisms,
    Prior,
    ResponseMap,
    Task,
)
from causal_bo_ppl.mechanisms.numpyro_models import NumPyroModel, program_of
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import Interventions

if TYPE_CHECKING:
    import xarray as xr

T = TypeVar("T")
TRUSTED_VERDICTS = ("exact", "passed")
FEWEST_DEGREES = 3.0  # of freedom: with fewer a variance has no posterior mean
METHODS: dict[str, InferenceMethod] = {
    method.name: method for method in (Conjugate(), Wishart(), Laplace(), NUTS())
}
WRITTEN = METHODS | {OwnSampler.name: OwnSampler()}  # methods that a file may name


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of theta_Y, which all effects share; made by `cb.fit` or `from_draws`.

    Attributes
    ----------
    problem:
        The problem whose effects theta_Y determines.
    method:
        The name of the method of inference.
    distribution:
        The result of the method of inference; see `inference.draws.ThetaDistribution`.
    parts:
        The observations of the first fit and of each update.
    digest:
        A sum of their hashes, whatever their order.
    accepted:
        The reason given to `accept`; empty where it was not called.
    mechanisms:
        The name of the family of mechanisms.
    chosen:
        The check that chose the mechanisms, for mechanisms="auto"; None where they were given.
    recipe:
        The arguments of `fit`, by which it can be computed again; None for given draws.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> post.to_frame()[["mean", "sd"]].round(2).loc["b[X->Z]"].tolist()
    [0.76, 0.08]
    """

    problem: Problem
    method: str
    distribution: ThetaDistribution
    parts: tuple[Data, ...]
    digest: int
    accepted: str = ""
    mechanisms: str = "linear"
    chosen: Check | None = None
    recipe: Recipe | None = None
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def cached(self, name: str, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, computed once under this name and kept with the posterior.

        It is for quantities that other modules derive from this posterior alone.
        """
        if name not in self._cache:
            self._cache.setdefault(name, compute())
        return cast(T, self._cache[name])

    @cached_property
    def noise_degrees(self) -> float:
        """The degrees of freedom with which the noise of the target is known.

        These are the observations in which the target was not set, minus the parameters of its
        equation.
        """
        if not self.n_observations:
            return FEWEST_DEGREES
        graph, target = self.problem.graph, self.problem.target
        free = ~self.data.intervened[:, graph.index(target)]
        return float(max(free.sum() - len(graph.parents(target)) - 1, FEWEST_DEGREES))

    @property
    def n_observations(self) -> int:
        """The number of observations it was learned from."""
        return sum(map(len, self.parts))

    @cached_property
    def data(self) -> Data:
        """The observations it was learned from."""
        return reduce(Data.join, self.parts)

    @property
    def verdict(self) -> str:
        """Whether the computation worked: "exact", "passed", "failed" or "not assessed"."""
        return self.distribution.verdict

    @property
    def status(self) -> str:
        """The verdict, with the reason for accepting the posterior where there is one."""
        return f"{self.verdict}, accepted: {self.accepted}" if self.accepted else self.verdict

    def accept(self, why: str) -> "Posterior":
        """Return this posterior with a reason to use it whatever its verdict is.

        Parameters
        ----------
        why:
            The reason, at least a word. Kernels, comparisons, runs and files that are made from the
            returned posterior record it, and it stays with later updates.

        Returns
        -------
        Posterior

        Raises
        ------
        ArgumentError
            If no reason is given.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(50, 0)).accept("a dry run")
        >>> post.status
        'exact, accepted: a dry run'
        """
        if not isinstance(why, str) or not why.strip():
            raise ArgumentError(f"give the reason why this posterior is accepted; got {why!r}")
        return replace(self, accepted=why.strip())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of theta_Y."""
        return self.distribution.response.names

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The intervention sets whose effects were learned."""
        return self.distribution.response.sets

    @property
    def parameters(self) -> Parameters:
        """The coordinates of theta_Y of linear mechanisms, and which set uses which."""
        parameters = getattr(self.distribution.response, "parameters", None)
        if not isinstance(parameters, Parameters):
            raise PosteriorError(
                f"{self.mechanisms} mechanisms have no such parameters; post.names and "
                "post.to_frame() list the coordinates of theta"
            )
        return parameters

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        require_float64()
        mean, factor = self.distribution.moments()
        covariance = factor @ factor.T
        finite = np.isfinite(mean) & np.isfinite(covariance).all(axis=1)
        if not finite.all() and self.verdict in TRUSTED_VERDICTS:
            raise NumericalError(
                f"the mean or variance of {self.names[int(finite.argmin())]} is not finite, so the "
                f"verdict {self.verdict!r} does not hold; change the units of its variables"
            )
        for part in (mean, factor, covariance):
            part.flags.writeable = False
        return mean, factor, covariance

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean of theta_Y, (d,); by the delta method, theta_Y of the mean equations."""
        return self._moments[0]

    @property
    def covariance(self) -> np.ndarray:
        """Posterior covariance of theta_Y, of shape (d, d), computed as `moments_by` names."""
        return self._moments[2]

    @property
    def factor(self) -> np.ndarray:
        """A factor of the covariance, of shape (d, r): factor factor' is the covariance."""
        return self._moments[1]

    @property
    def sd(self) -> np.ndarray:
        """Posterior standard deviations of theta_Y, an array of shape (d,)."""
        return np.asarray(np.sqrt(np.diagonal(self.covariance)))

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance were computed, such as "closed form"."""
        return self.distribution.moments_by

    @property
    def prior(self) -> Prior:
        """The prior of the parameters."""
        return self.distribution.prior

    @cached_property
    def learned_observations(self) -> tuple[np.ndarray, np.ndarray]:
        """Values (n, p) of the target and its causes, and which of them inform a density."""
        nodes = self.problem.graph.ancestral(self.problem.target).nodes
        learned = learned_entries(
            self.distribution.model, self.distribution.learned, self.data, nodes
        )
        return self.data.values[:, self._columns], learned

    @cached_property
    def fingerprint(self) -> str:
        """Hash of problem, parameters, method, prior and observations, in any order of these."""
        parts = [self.problem.fingerprint, self._canonical, self.method, self.prior.canonical()]
        parts += [str(self.n_observations), f"{self.digest:x}"]
        parts += [self.distribution.settings] if self.distribution.settings else []
        return hashlib.sha256("|".join(parts).encode()).hexdigest()

    def draws(self, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw theta_Y n times; those of a sampled posterior are chosen among its draws.

        Parameters
        ----------
        n:
            How many draws.
        key:
            A JAX key or an int seed.

        Returns
        -------
        np.ndarray
            Of shape (n, d), in the order of `names`.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> cb.fit(system.problem, system.observe(50, 0)).draws(1_000, key=0).shape
        (1000, 4)
        """
        return self.distribution.draw(read_count("n", n, 1), as_key(key))

    def quantiles(
        self, levels: float | Sequence[float], *, draws: int = 4_000, key: jax.Array | int
    ) -> pd.DataFrame:
        """Return a table of quantiles, a row for every coordinate and a column for every level.

        A quantile is infinite where too many draws have no value.

        Parameters
        ----------
        levels:
            One or several numbers between 0 and 1.
        draws, key:
            How many draws are used, and a JAX key or an int seed.

        Returns
        -------
        pd.DataFrame

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(50, 0), intercepts=False)
        >>> post.quantiles([0.05, 0.95], key=0).shape
        (2, 2)
        """
        given = np.atleast_1d(np.asarray(levels, dtype=object))
        theta, columns = self.draws(draws, key), {}
        for level in [read_share("level", each) for each in given]:
            values = np.nan_to_num(theta, nan=np.inf if level >= 0.5 else -np.inf)
            columns[level] = np.quantile(values, level, axis=0, method="inverted_cdf")
        return pd.DataFrame(columns, index=pd.Index(self.names, name="coordinate"))

    def update(self, data: Data | pd.DataFrame) -> "Posterior":
        """Return the posterior after more observations: the same as fitting all of them at once.

        Parameters
        ----------
        data:
            Observations of the same problem, observational or interventional: `cb.Data`, or a
            pandas DataFrame as `cb.Data.from_frame` takes it.

        Returns
        -------
        Posterior

        Raises
        ------
        DataError
            If the data are not of this problem, or not such as the method takes.
        PosteriorError
            If it was made from given draws.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(50, 0)).update(system.observe(20, 1))
        >>> post.n_observations
        70
        """
        require_float64()
        more = read_data(self.problem, data)
        require_sizes(more, self.parts)
        return replace(
            self,
            distribution=self.distribution.update(more),
            parts=(*self.parts, more),
            digest=(self.digest + digest(more)) % 2**256,
        )

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the model's variance of one outcome under each of M queries, (M,)."""
        return self.distribution.outcome_variances(self.upstream(queries))

    def expected_information(self, queries: Queries) -> ExpectedInformation | None:
        """Return the information of one observation of each query about w, theta = mean + factor w.

        None where it is not known.
        """
        method = offered(self.distribution, "expected_information") or (lambda _: None)
        information: ExpectedInformation | None = method(self.upstream(queries))
        return information

    def to_datatree(
        self,
        *,
        draws: int | None = None,
        key: jax.Array | int = 0,
        observations: bool | str | Sequence[str] | None = None,
        effects: Queries | Interventions | None = None,
    ) -> "xr.DataTree":
        """Return draws, densities and statistics as ArviZ's DataTree.

        `posterior` and `prior` hold theta and the parameters by name: for linear mechanisms slopes
        `b` over edges, intercepts `a` and `sd` over nodes, and strengths `t` of latent causes over
        arcs; for nonlinear ones `level`, the mean at the causes' means, slopes `b` of the trend,
        coefficients `f` of the processes, changes of slope `low` and `high` beyond the data, `sd`,
        and, where they are drawn ("nuts", "laplace"), the hyperparameters `trend`, `amplitude` and
        `lengthscale`. The attribute `note` of `prior` says how its draws differ from the prior,
        where a prior that is scaled to the data is improper (see `cb.priors.ScaledPrior`). There is
        no group `prior` where nothing can be drawn; the attribute `no_prior` is the reason.

        Parameters
        ----------
        draws:
            About how many; by default all there are.
        key:
            A JAX key or an int seed, for new draws.
        observations:
            The groups with a number for every draw and observation. By default
            `prior_predictive`, `posterior_predictive` (200 draws each) and `observed_data`. True:
            these for all draws, and `log_likelihood` (for `loo`, `compare` and `psense_summary`);
            all draws are then thinned to 160 MB in each group. False: none; or the names of some.
            Variables that were set, and those that are not learned, keep their observed values in
            predictions.
        effects:
            Interventions whose effects are the variable `effect` of `posterior`.

        Returns
        -------
        xr.DataTree

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> tree = cb.fit(system.problem, system.observe(50, 0)).to_datatree(effects=[{"X": 1.0}])
        >>> tree["posterior"]["effect"].coords["intervention"].values.tolist()
        ['do(X = 1)']
        """
        options = draws, as_key(key), observations, effects
        return datatree.to_datatree(self, write_method, *options)

    def save(
        self,
        path: str | Path,
        *,
        draws: int | None = None,
        key: jax.Array | int = 0,
        observations: bool | str | Sequence[str] = False,
        effects: Queries | Interventions | None = None,
    ) -> Path:
        """Write `to_datatree` to a netCDF file, whole or not at all; `Posterior.load` reads it.

        The file ends with a checksum, which `load` verifies. A failure or a crash leaves what was
        at the path before untouched.

        Parameters
        ----------
        path:
            A new or an existing regular file in an existing directory. A symbolic link is followed.
        draws, key, observations, effects:
            As in `to_datatree`. Where only some draws of a sampled posterior are saved, `load`
            samples again with the same key; given draws must all be saved.

        Returns
        -------
        Path
            The path of the file that was written, links resolved.

        Raises
        ------
        StoreError
            If the target is no regular file, or the system refuses to write, as on a full disk.

        Examples
        --------
        >>> import tempfile
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(50, 0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     post.save(f"{folder}/posterior.nc", draws=40).name
        'posterior.nc'
        """
        tree = self.to_datatree(draws=draws, key=key, observations=observations, effects=effects)
        return datatree.save_tree(tree, path)

    @classmethod
    def load(
        cls,
        source: "str | Path | xr.DataTree",
        problem: Problem,
        *,
        mechanisms: Choice | None = None,
        method: Any = None,
        prior: Prior | None = None,
        largest: int = datatree.LARGEST_FILE,
    ) -> "Posterior":
        """Return the posterior that `save` wrote, or whose tree `to_datatree` made.

        Closed forms and modes are computed again from the observations; chains are not sampled
        again where all of their draws were saved. Effects, kernels, updates and draws are those of
        the posterior that was saved.

        Parameters
        ----------
        source:
            The path of a file that `save` wrote, or a tree that `to_datatree` made.
        problem:
            The problem that the posterior was fitted for.
        mechanisms, method, prior:
            The arguments of `fit` that a file cannot hold: functions and user-defined objects.
            Leave them out otherwise.
        largest:
            The most bytes that the file and its declared arrays may have together.

        Returns
        -------
        Posterior

        Raises
        ------
        StoreError
            If the file is not netCDF, does not match its checksum or comes from a newer version; if
            it links to other files, declares more than `largest` bytes or does not follow the
            schema; if it is of another problem, or another posterior is computed from it.

        Examples
        --------
        >>> import tempfile
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(50, 0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = cb.Posterior.load(post.save(f"{folder}/posterior.nc"), system.problem)
        >>> again
        Posterior(4 structural parameters of Y, conjugate, 50 observations, exact)
        >>> bool((again.mean == post.mean).all())
        True
        """
        require_float64()
        user = datatree.UserDefined(mechanisms, method, prior)
        with datatree.reading(source):
            saved = datatree.read_saved(source, problem, user, largest, _restore_method)
            post = cls._restore(saved, problem, mechanisms)
            datatree.require_same(saved.tree, post)
        accepted = str(saved.tree.attrs.get("accepted", ""))
        return post.accept(accepted) if accepted else post

    @classmethod
    def _restore(cls, saved: datatree.Saved, problem: Problem, mechanisms: Any) -> "Posterior":
        attributes = saved.tree.attrs
        if saved.recipe is None:
            return cls.from_draws(
                problem,
                saved.tree["posterior"]["theta"].values,
                mechanisms=attributes["mechanisms"] if mechanisms is None else mechanisms,
                parameters=attributes.get("parameters"),
                intercepts=attributes.get("intercepts", "yes") == "yes",
            )
        has_chains = "unconstrained_posterior" in saved.tree.children
        if has_chains and offered(saved.recipe.method, "resume") is not None:
            return cls.infer(saved.recipe, saved)
        post = cls.infer(saved.recipe)
        for part in saved.parts[1:]:
            post = post.update(part)
        return post

    @classmethod
    def infer(cls, recipe: Recipe, saved: datatree.Saved | None = None) -> "Posterior":
        """Return the posterior of a recipe, with the draws of a saved one where it is given."""
        task = recipe.task
        family, choice = choose_family(task, read_mechanisms(recipe.mechanisms))
        method = method_for(family, choice, recipe.method)
        parts = (task.data,) if saved is None else saved.parts
        if saved is None:
            distribution = method.infer(task, family, recipe.key)
        else:
            distribution = saved.resume(family.bind(task))
        total = (sum(map(digest, parts)) + task.outcomes.digest()) % 2**256
        common = method.name, distribution, parts, total
        return cls(task.problem, *common, "", family.name, choice, recipe)

    def as_queries(self, queries: Queries | Interventions) -> Queries:
        """Return Queries as they are; interventions in another form are read and checked."""
        return queries if isinstance(queries, Queries) else self.problem.require(queries)

    def upstream(self, queries: Queries) -> Queries:
        """Return legal queries cut to the target and its causes, the target last."""
        require_float64()
        queries = self.as_queries(queries)
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        return Queries(mask[:, self._columns], value[:, self._columns])

    @cached_property
    def _columns(self) -> list[int]:
        graph = self.problem.graph
        return [graph.index(name) for name in graph.ancestral(self.problem.target).nodes]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every coordinate, with its mean and sd."""
        described, table = self.distribution.response, pd.DataFrame(index=self.names)
        if isinstance(described, DescribedMap):
            table = described.to_frame()
        return table.rename_axis("coordinate").assign(mean=self.mean, sd=self.sd)

    def __repr__(self) -> str:
        size = f"{len(self.names)} {self.kind} parameters of {self.problem.target}"
        count = f"{self.n_observations} observations"
        return f"Posterior({size}, {self.method}, {count}, {self.status})"

    @property
    def kind(self) -> str:
        """The kind of parameters, such as "structural" or "estimand"."""
        return self._canonical.partition("|")[0]

    @property
    def _canonical(self) -> str:
        described = self.distribution.response
        return described.canonical() if isinstance(described, Canonical) else self.mechanisms

    def _repr_html_(self) -> str:
        size = f"{len(self.names)} {self.kind} parameters"
        title = f"<p>{size}, {self.method} posterior from {self.n_observations} observations"
        note = html.escape(f"verdict: {self.status}; moments: {self.moments_by}")
        table = self.to_frame().to_html(max_rows=60, float_format="{:.4g}".format)
        why = "" if self.chosen is None else f"<p>{html.escape(self.chosen.text)}</p>"
        return f"{title}; {note}</p>{why}{table}"

    @classmethod
    def from_draws(
        cls,
        problem: Problem,
        draws: object,
        *,
        mechanisms: str | Mechanisms | ResponseMap = "linear",
        parameters: str | None = None,
        intercepts: bool = True,
    ) -> "Posterior":
        """Make a posterior of draws of theta that were made elsewhere.

        Kernels, checks and surrogates take it as any other, if its verdict is "passed", which needs
        at least two chains, (chains, n, d); one chain must be accepted by `post.accept("why")`. It
        cannot be updated, and does not determine the variance of outcomes.

        Parameters
        ----------
        problem:
            The problem whose effects theta determines.
        draws:
            An array (n, d) or (chains, n, d) in the order of the coordinates, or {name: array}.
        mechanisms:
            "linear", a family that offers `response(task)`, or a response map.
        parameters, intercepts:
            As in `fit`, for linear mechanisms.

        Returns
        -------
        Posterior

        Raises
        ------
        ArgumentError
            If the draws do not have the shape or the names of the coordinates, or are not finite.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
        >>> again = cb.Posterior.from_draws(system.problem, post.draws(4_000, 0), intercepts=False)
        >>> bool((abs(again.mean - post.mean) < 0.1 * post.sd).all())
        True
        """
        require_float64()
        if not isinstance(problem, Problem):
            kind = type(problem).__name__
            raise ArgumentError(f"from_draws needs a Problem, got {kind}; of a system .problem")
        task = read_task(problem, no_data(problem), None, parameters, intercepts)
        name, response = read_response(mechanisms, task)
        size = len(problem.graph.ancestral(problem.target).nodes)
        distribution = GivenDraws(response, read_draws(draws, response.names), size)
        return cls(problem, datatree.GIVEN_DRAWS, distribution, (task.data,), 0, "", name)

    @classmethod
    def from_numpyro(
        cls,
        problem: Problem,
        data: Data | pd.DataFrame,
        draws: Any,
        *,
        mechanisms: Choice = "linear",
        prior: Prior | None = None,
        parameters: str | None = None,
        intercepts: bool = True,
        linear: bool = False,
        changed: bool = False,
    ) -> "Posterior":
        """Make a posterior of draws of `cb.numpyro_model` that another sampler made.

        It is as one that `cb.fit` samples: with a verdict, effects, kernels, checks and files. It
        cannot be updated.

        Parameters
        ----------
        problem, data, mechanisms, prior, intercepts, linear:
            As the program was made.
        draws:
            A `numpyro.infer.MCMC` object after its `run`, or {site: array} with draws (n, ...) or
            (chains, n, ...) of every parameter, as of `mcmc.get_samples(group_by_chain=True)`.
            Without chains R-hat is not known and the verdict is "not assessed". Sites of parameters
            that no effect depends on, and of variables, may be among them.
        parameters:
            The kind of coordinates of theta, as in `fit`.
        changed:
            Whether draws by site are of a program with another prior or likelihood, but with the
            same sites. The density that they come from is then not known, so that checks that need
            it are not assessed. Of an MCMC object this is found out.

        Returns
        -------
        Posterior

        Raises
        ------
        ArgumentError
            If sites are missing, or draws have a wrong shape, are not finite or not possible.

        Examples
        --------
        >>> import jax
        >>> from numpyro.infer import MCMC, NUTS
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> data = system.observe(50, 0)
        >>> kernel = NUTS(cb.numpyro_model(system.problem, data))
        >>> mcmc = MCMC(kernel, num_warmup=200, num_samples=500, progress_bar=False)
        >>> mcmc.run(jax.random.key(0))
        >>> post = cb.Posterior.from_numpyro(system.problem, data, mcmc)
        >>> post.method, post.names
        ('numpyro', ('b[X->Z]', 'b[Z->Y]', 'a[Z]', 'a[Y]'))
        """
        task = read_task(problem, data, prior, parameters, intercepts, linear)
        family, choice = choose_family(task, read_mechanisms(mechanisms))
        model = family.bind(task)
        psi, stats, is_changed = read_own_draws(model, draws, changed)
        method = OwnSampler(is_changed)
        distribution = method.resume(model, psi, stats, None, [len(task.data)])
        common = method.name, distribution, (task.data,), digest(task.data) % 2**256
        recipe = Recipe(mechanisms, method, task, None)
        return cls(problem, *common, "", family.name, choice, recipe)

    @cached_property
    def numpyro_model(self) -> NumPyroModel:
        """The model that was fitted, as a NumPyro program; see `cb.numpyro_model`."""
        model: Any = self.distribution.model
        seen = getattr(model, "data", None)  # a closed form keeps the model of the first fit
        if seen is not None and len(seen) < self.n_observations:
            model = model.with_observations(self.data.select(slice(len(seen), None)))
        return program_of(model)


def require_posterior(who: str, post: Posterior) -> None:
    """Refuse what is not a posterior."""
    require_float64()
    if not isinstance(post, Posterior):
        raise ArgumentError(
            f"{who} needs a Posterior, got {type(post).__name__}; make one with cb.fit"
        )


def require_trusted(post: Posterior) -> Posterior:
    """Return the posterior if its computation worked, or if it was accepted.

    Raises
    ------
    PosteriorError
        If the verdict is neither "exact" nor "passed" and `post.accept("why")` was not called.
    """
    require_float64()
    if not isinstance(post, Posterior):
        raise ArgumentError(
            f"a Posterior is needed here, got {type(post).__name__}; make one with cb.fit"
        )
    if post.verdict not in TRUSTED_VERDICTS and not post.accepted:
        raise PosteriorError(
            f"the posterior's verdict is {post.verdict!r}; look at "
            'cb.diagnostics.check_posterior(post), or go on with post.accept("why"), which every '
            "result made from it will record"
        )
    return post


def choose_family(task: Task, family: Mechanisms) -> Chosen:
    """Return the final family of one that offers a choice; any other is returned as it is."""
    problem, data = task.problem, task.data
    if not getattr(family, "is_automatic", False):
        return Chosen(family, None)

    def fit_conjugate(candidate: Mechanisms, prior: object) -> Posterior:
        alone = Task(problem, data, no_outcomes(len(problem.graph.nodes)), prior)
        distribution = Conjugate().infer(alone, candidate, None)
        parts = distribution, (data,), digest(data), "", candidate.name
        return Posterior(problem, "conjugate", *parts)

    return choose_mechanisms(problem, data, family, task.prior, fit_conjugate)


def method_for(
    family: Mechanisms, choice: Check | None, method: InferenceMethod
) -> InferenceMethod:
    """Return the method for a family; "laplace" where noise was chosen without a closed form."""
    has_none = choice is not None and family.name == "custom"
    return Laplace() if has_none and isinstance(method, Conjugate) else method


def read_method(given: object) -> InferenceMethod:
    """Return a method of inference, given by its name or as a user-defined configuration."""
    method: InferenceMethod = read_component("method", given, METHODS, "infer")
    return method


def write_method(method: Any) -> object:
    """Return a method of inference for JSON: None and names as they are, others with options.

    A user-defined method is written by its name alone.
    """
    if method is None or isinstance(method, str):
        return method
    if type(method) is type(WRITTEN.get(method.name)) and is_dataclass(method):
        return {"name": method.name, "options": asdict(method)}
    return {"name": method.name}


def read_written_method(record: Any) -> Any:
    """Return the method that `write_method` was given; a user-defined one as it was written."""
    if not isinstance(record, dict) or "options" not in record:
        return record
    name, options = record.get("name"), record["options"]
    if name not in WRITTEN or not isinstance(options, dict):
        raise ArgumentError(f"inference must be one of {listed(METHODS)}; got {record!r}")
    try:
        return type(WRITTEN[name])(**options)
    except TypeError as error:
        raise ArgumentError(f"the options of {name} cannot be read: {error}") from None


def _restore_method(written: object) -> InferenceMethod:
    """Return the method that was written, or that is given in place of a user-defined one."""
    return read_method(read_written_method(written))


def fit(
    problem: Problem,
    data: Data | pd.DataFrame,
    *,
    mechanisms: Choice = "linear",
    method: str | InferenceMethod = "conjugate",
    parameters: str | None = None,
    intercepts: bool = True,
    prior: Prior | None = None,
    outcomes: tuple[Queries, Sequence[float] | np.ndarray] | None = None,
    linear: bool = False,
    key: jax.Array | int | None = None,
) -> Posterior:
    """Learn theta_Y, the parameters that the effects of all intervention sets share.

    Parameters
    ----------
    problem:
        The problem whose effects are learned.
    data:
        Observations of all variables: `cb.Data`, or a pandas DataFrame as `cb.Data.from_frame`
        takes it.
    mechanisms:
        "linear": V = a + W'V + e with Gaussian noise. "gp": V = g(causes) + e, where g is a linear
        trend plus a Gaussian process of every cause (a Hilbert-space basis, so that theta is
        finite); the noise is additive and Gaussian. Where latent causes join causes of the target,
        every variable is regressed on the variables that its verified estimands need, and effects
        are averages over draws of these regressions; an estimand with a ratio is refused, and an
        experiment informs only regressions that it does not change. `cb.GP(...)`: the same with
        options, such as causes that interact, or noise that varies in size. `cb.Linear(...)`: a
        linear mechanism with products of its causes, or such noise. A dictionary chooses by
        variable, {"Z": "linear", "Y": cb.GP(kernel="matern52")}; variables that it does not name
        are linear. Noise that is not constant takes "laplace" or "nuts". "auto": for every variable
        the simplest mechanism that tests and held-out observations do not refute: linear, with
        products, a Gaussian process, or one of causes that interact, with constant or varying noise
        or heavy tails. `post.chosen` reports the choice and why. Noise that is not constant is then
        fitted by "laplace" in place of "conjugate". Or a user-defined family, see
        `causal_bo_ppl.mechanisms.base`.

        A dictionary may also hold user-defined NumPyro functions, {"Z": saturate, "Y": "gp"}; see
        `causal_bo_ppl.mechanisms.families`. A function takes the causes of its variable as
        keywords, under their names (or, where its only parameter is called `causes`, as one
        mapping, for names that are no identifiers), and a root takes none. It is written for many
        observations at once with `jax.numpy`, draws its parameters by `numpyro.sample`, not inside
        of a plate over observations, and returns either the mean of the variable, to which Gaussian
        noise is added whose sd is learned (at least 1e-4 of the variable's sd, so that a mechanism
        without any noise has a density), or its distribution given the causes, such as
        `dist.LogNormal(mean, sd)`, which need neither be Gaussian nor have additive noise;
        `dist.Delta` is a formula without parameters. Theta are the parameters without their
        constraints, `b[Z]`, `log_most[Z]`. A program without arguments, with one site for every
        variable of the graph, gives all mechanisms at once; its other sites are parameters. It is
        refused where a variable depends on another one that is not its parent in the graph.
        Methods are "laplace" and "nuts".
    method:
        A name or an object. "conjugate", `cb.Conjugate()`: a normal-inverse-gamma posterior of
        every equation upstream of the target, in closed form, from observational and interventional
        data; refused where a latent cause joins two of them. For "gp": the coefficients in closed
        form, given the hyperparameters at the mode of their evidence, whose uncertainty is ignored;
        "nuts" draws them too. "wishart", `cb.Wishart()`: a normal-inverse-Wishart posterior of the
        observational mean and covariance, pushed through the verified estimands; valid under latent
        confounding, from observational data only. "nuts",
        `cb.NUTS(chains=4, warmup=1000, draws=1000)`: draws of the whole model, with correlated
        noise where latent causes join variables. "laplace", `cb.Laplace()`: a Gaussian at the mode
        of the same model. Or a user-defined method.
    parameters:
        "structural", "total_effect", "estimand" or "minimal", for linear mechanisms; see
        `Identifications.parameters`. By default "estimand" for "wishart" and "structural" for the
        others, or "total_effect" where the problem has a known total effect. Effects and kernels
        are the same; "minimal" has the fewest coordinates and is not for "wishart".
    intercepts:
        False: linear equations have none, so the data must be centred.
    prior:
        For linear mechanisms `ScaledPrior` (the default: scaled to the data, with the weight of
        1/100 of an observation), `FixedPrior`, or `MomentPrior`; each has a prior of the strength
        of latent causes. For "gp" and dictionaries `cb.priors.GPPrior`, by default scaled to the
        data; user-defined functions draw from their own priors.
    outcomes:
        (queries, values): experiments of which only the target is known; for "laplace" and "nuts".
        Condition a surrogate on them, or the posterior, never both.
    linear:
        Also use sets whose effects only linearity identifies (an instrument); for "laplace" and
        "nuts". Where the instrument is weak (an F below about 20 in the regression of the cause on
        it) the default prior leaves tails that chains do not reach, and the verdict of "nuts" is
        "failed", rightly; give a `FixedPrior`.
    key:
        For methods that draw, such as "nuts": a JAX key or an int.

    Returns
    -------
    Posterior
        Look at `cb.diagnostics.check_posterior(post)` before using one that was sampled.

    Raises
    ------
    NotIdentifiable
        If the effect of a set cannot be learned, unless the problem was made with
        `identifiable_only=True`.
    DataError
        If the data are not of this problem, or do not determine an equation.
    MechanismError
        If the mechanisms or the prior cannot be used for this problem or method.
    ArgumentError
        If another argument has a wrong value.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> post
    Posterior(2 structural parameters of Y, conjugate, 200 observations, exact)
    >>> post.names, post.mean.round(2).tolist()
    (('b[X->Z]', 'b[Z->Y]'), [0.76, -1.29])
    >>> cb.fit(system.problem, system.observe(50, 0), mechanisms={"Y": cb.GP(functions=8)}).verdict
    'passed'
    """
    read_mechanisms(mechanisms)  # refused before any work
    chosen = read_method(method)
    if trait(chosen, "needs_key") and key is None:
        raise ArgumentError(f"{chosen.name} draws at random: give a key, such as key=0")
    task = read_task(problem, data, prior, parameters, intercepts, linear)
    if linear and not trait(chosen, "uses_linearity"):
        raise ArgumentError(
            f"{chosen.name} cannot use what only linearity identifies; take "
            'method="nuts" or "laplace"'
        )
    task = replace(task, outcomes=read_outcomes(problem, outcomes))
    return Posterior.infer(Recipe(mechanisms, chosen, task, None if key is None else as_key(key)))


def no_data(problem: Problem) -> Data:
    """Return a table of no observations of a problem."""
    empty = np.zeros((0, len(problem.graph.nodes)))
    return Data(problem.graph.nodes, problem.target, empty, empty.astype(bool))


def read_task(
    problem: Problem,
    data: Data | pd.DataFrame,
    prior: Any = None,
    parameters: str | None = None,
    intercepts: bool = True,
    linear: bool = False,
) -> Task:
    """Return what is to be learned, from arguments as `cb.fit` takes them."""
    require_float64()
    if not isinstance(problem, Problem):
        raise DomainError(
            f"a Problem is needed, got {type(problem).__name__}; of a system take system.problem"
        )
    for name, flag in (("intercepts", intercepts), ("linear", linear)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name} must be True or False, got {flag!r}")
    if parameters is not None and not isinstance(parameters, str):
        raise ArgumentError(f"parameters must be a text such as 'structural', got {parameters!r}")
    observations = read_data(problem, data)
    require_sizes(observations)
    outcomes = no_outcomes(len(problem.graph.nodes))
    return Task(problem, observations, outcomes, prior, parameters, intercepts, linear)


def numpyro_model(
    problem: Problem,
    data: Data | pd.DataFrame | None = None,
    mechanisms: Choice = "linear",
    *,
    prior: Prior | None = None,
    intercepts: bool = True,
    linear: bool = False,
) -> NumPyroModel:
    """Return the model that `cb.fit` fits as a NumPyro program.

    It runs under `numpyro.infer.MCMC(NUTS(model))`, `Predictive`, `AutoLaplaceApproximation`,
    `numpyro.handlers` and `numpyro.render_model`. `cb.Posterior.from_numpyro` takes its draws.

    Sites of parameters are `b[X->Z]`, a slope, `a[Z]`, an intercept, `sd[Z]` of the noise, and
    `t[X<->Y]`, the strength of a latent cause. Nonlinear mechanisms have `level[Z]` in place of the
    intercept, the mean where all causes are at their means; `trend[Z]`, the sd of the slopes;
    `amplitude[X->Z]` and `lengthscale[X->Z]` of a Gaussian process, and `f[X->Z]`, its standardized
    coefficients in the Hilbert-space basis; `low[X->Z]` and `high[X->Z]`, how the slope changes
    beyond the data. A parameter that a user-defined function of Z calls `most` is `most[Z]`.

    The target and each of its causes is a site of its own name, observed where there are data.
    Values that an experiment set are not scored, and what is downstream sees them. Variables that
    are no causes of the target have no site.

    Where latent causes join variables, linear mechanisms have correlated noise. In new rows the
    standardized noise has sites `e[X]`, so that `do` on one variable leaves the noise of others.
    Other mechanisms are replaced by regressions on the variables that verified estimands need, as
    their sites say (`b[X->Y|X,Z]`). The program is then the density of a row, but the distribution
    under an intervention only where this changes no regression: `model.do` refuses the others.
    `numpyro.handlers.do` cannot know, and must not be used on such a program.

    Parameters
    ----------
    problem:
        The problem whose mechanisms these are.
    data:
        Observations, as `cb.fit` takes them. Without any all variables are drawn, for which the
        prior must not be scaled to data: `FixedPrior`, or a `GPPrior` with `centres`, `scales` and
        `ranges`.
    mechanisms, prior, intercepts, linear:
        As in `cb.fit`. The variances of the default `ScaledPrior` are improper, and are drawn as
        it says.

    Returns
    -------
    NumPyroModel

    Raises
    ------
    MechanismError
        If the mechanisms or the prior cannot be used for this problem.
    DataError
        If the data are not of this problem, or do not determine an equation.

    Examples
    --------
    >>> import jax
    >>> import causal_bo_ppl as cb
    >>> from numpyro.infer import Predictive
    >>> system = cb.models.load("chain")
    >>> model = cb.numpyro_model(system.problem, system.observe(50, 0))
    >>> model.mechanisms["Y"].names
    ('a[Y]', 'b[Z->Y]')
    >>> drawn = Predictive(model.do({"Z": 2.0}), num_samples=10)(jax.random.key(0), rows=3)
    >>> drawn["b[Z->Y]"].shape, drawn["Y"].shape
    ((10,), (10, 3))
    """
    if data is None and isinstance(problem, Problem):
        data = no_data(problem)
    task = read_task(problem, data, prior, None, intercepts, linear)
    family, _ = choose_family(task, read_mechanisms(mechanisms))
    return program_of(family.bind(task))


def require_inputs(
    who: str, problem: Problem | Posterior, data: Data | None
) -> tuple[Problem, Data]:
    """Return a problem and its data, or those of a posterior; refuse data of another problem."""
    require_float64()
    if isinstance(problem, Posterior):
        data = problem.data if data is None else data
        problem = problem.problem
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"{who} needs a Problem, got {type(problem).__name__}; of a system take system.problem"
        )
    if not isinstance(data, Data):
        raise DataError(
            f"{who} needs Data, got {type(data).__name__}; read a table with "
            "Data.from_frame(problem, ...)"
        )
    require_data_of(problem, data)
    return problem, data


def require_draws(who: str, draws: object, post: Posterior, least: int = 100) -> int:
    """Return how many draws are asked for; refuse fewer than `least`, asked for or there."""
    count = read_count("draws", draws, least)
    chains = post.distribution.chains
    if chains is not None and chains[..., 0].size < least:
        raise PosteriorError(
            f"{who} needs at least {least} draws, the posterior has {chains[..., 0].size}; "
            "draw longer"
        )
    return count


def require_observations_known(who: str, post: Posterior) -> ObservationModel:
    """Return the model of observations of a posterior; refuse one of theta alone."""
    if post.distribution.model is None:
        raise PosteriorError(f"{who} needs whole models, and these draws are of theta alone")
    return post.distribution.model
