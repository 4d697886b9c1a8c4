"""How is the posterior of a problem computed from data, by any method of inference?"""

from collections.abc import Sequence

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_sizes
from causal_bo_ppl.data.data import read_data
from causal_bo_ppl.data.outcomes import read_outcomes
from causal_bo_ppl.errors import ArgumentError, DomainError
from causal_bo_ppl.inference.base import InferenceMethod, Recipe
from causal_bo_ppl.inference.methods import read_method, trait
from causal_bo_ppl.inference.posterior import Posterior
from causal_bo_ppl.inputs import as_key, require_float64
from causal_bo_ppl.mechanisms import Choice, read_mechanisms
from causal_bo_ppl.mechanisms.base import Prior, Task
from causal_bo_ppl.problem import Problem, Queries


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
        options, such as causes that interact. A dictionary chooses by variable,
        {"Z": "linear", "Y": cb.GP(kernel="matern52")}; variables that it does not name are linear.
        "auto": linear where held-out observations show that this is enough, "gp" elsewhere;
        `post.chosen` reports the choice. Or a user-defined family, see
        `causal_bo_ppl.mechanisms.base`.

        A dictionary may also hold user-defined NumPyro functions, {"Z": saturate, "Y": "gp"}; see
        `causal_bo_ppl.mechanisms.custom`. A function takes the causes of its variable as keywords,
        under their names (or, where its only parameter is called `causes`, as one mapping, for
        names that are no identifiers), and a root takes none. It is written for many observations
        at once with `jax.numpy`, draws its parameters by `numpyro.sample`, not inside of a plate
        over observations, and returns either the mean of the variable, to which Gaussian noise is
        added whose sd is learned (at least 1e-4 of the variable's sd, so that a mechanism without
        any noise has a density), or its distribution given the causes, such as
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
        "structural", "total_effect" or "estimand", for linear mechanisms; by default "estimand" for
        "wishart" and "structural" for the others.
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
    require_float64()
    if not isinstance(problem, Problem):
        raise DomainError(
            f"fit needs a Problem, got {type(problem).__name__}; of a system take system.problem"
        )
    read_mechanisms(mechanisms)  # refused before any work
    chosen = read_method(method)
    if trait(chosen, "needs_key") and key is None:
        raise ArgumentError(f"{chosen.name} draws at random: give a key, such as key=0")
    for name, flag in (("intercepts", intercepts), ("linear", linear)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name} must be True or False, got {flag!r}")
    if parameters is not None and not isinstance(parameters, str):
        raise ArgumentError(f"parameters must be a text such as 'structural', got {parameters!r}")
    if linear and not trait(chosen, "uses_linearity"):
        raise ArgumentError(
            f"{chosen.name} cannot use what only linearity identifies; take "
            'method="nuts" or "laplace"'
        )
    observations = read_data(problem, data)
    require_sizes(observations)
    experiments = read_outcomes(problem, outcomes)
    task = Task(problem, observations, experiments, prior, parameters, intercepts, linear)
    return Posterior.infer(Recipe(mechanisms, chosen, task, None if key is None else as_key(key)))
