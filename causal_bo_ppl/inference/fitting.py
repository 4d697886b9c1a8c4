"""The door to all methods of inference: which method, on which rows, for which parameters?"""

from collections.abc import Sequence

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_sizes
from causal_bo_ppl.data.data import require_data_of
from causal_bo_ppl.data.outcomes import read_outcomes
from causal_bo_ppl.errors import DataError, DomainError, ModelError
from causal_bo_ppl.inference.base import Method, Recipe
from causal_bo_ppl.inference.methods import METHODS as METHODS
from causal_bo_ppl.inference.methods import read_method as read_method
from causal_bo_ppl.inference.methods import read_written_method as read_written_method
from causal_bo_ppl.inference.methods import trait as trait
from causal_bo_ppl.inference.methods import write_method as write_method
from causal_bo_ppl.inference.posterior import Posterior
from causal_bo_ppl.inputs import as_key, require_float64
from causal_bo_ppl.mechanisms import Choice, read_mechanisms
from causal_bo_ppl.mechanisms.base import Prior, Task
from causal_bo_ppl.problem import Problem, Queries


def fit(
    problem: Problem,
    data: Data,
    *,
    mechanisms: Choice = "linear",
    method: str | Method = "conjugate",
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
    problem, data:
        What is asked, and rows of all variables.
    mechanisms:
        "linear": V = a + W'V + e with Gaussian disturbances. "gp": V = g(causes) + e, where g is
        a linear trend plus a Gaussian process of every cause (a Hilbert-space basis, so that theta
        is finite); disturbances are additive and Gaussian. Where latent causes join causes of the
        target, every variable is regressed on what its verified estimands ask for, and effects are
        averages over draws of these regressions; an estimand with a ratio is refused, and rows of
        an experiment teach only regressions that it leaves as they are. `cb.GP(...)`: the same with
        options, such as causes that interact. A
        dictionary chooses by variable, {"Z": "linear", "Y": cb.GP(kernel="matern52")}; variables
        that it does not name are linear. "auto": linear where rows that are left out show that a
        line is enough, "gp" elsewhere; `post.chosen` says which and why. Or a family of your own,
        see
        `causal_bo_ppl.mechanisms.base`.

        A dictionary may also hold functions that you write with NumPyro, {"Z": saturate, "Y":
        "gp"}; see `causal_bo_ppl.mechanisms.custom`. A function takes the causes of its variable
        as keywords, under their names (or, where its only parameter is called `causes`, as one
        mapping, for names that are no identifiers), and a root takes none. It is written for many
        rows at once with `jax.numpy`, draws its parameters by `numpyro.sample`, with priors of its
        own and not inside of a plate over rows, and returns either the mean of the variable, to
        which a Gaussian disturbance is added whose sd is learned (at least 1e-4 of the variable's
        sd, so that a mechanism without any disturbance has a density), or its distribution given
        the causes, such as `dist.LogNormal(mean, sd)`, which need neither be Gaussian nor have an
        additive disturbance; `dist.Delta` is a formula without parameters. Theta are the
        parameters without their constraints, `b[Z]`, `log_most[Z]`. A program without arguments,
        with one site for every variable of the graph, gives all mechanisms at once; its other
        sites are parameters. It is refused where a variable depends on another one that is not
        its parent in the graph. Methods are "laplace" and "nuts".
    method:
        A name or a record. "conjugate", `cb.Conjugate()`: a normal-inverse-gamma posterior of every
        equation upstream of the target, in closed form, from observational and interventional rows;
        refused where a latent cause joins two of them. For "gp": the coefficients in closed form,
        given the hyperparameters at the mode of their evidence, whose uncertainty is ignored;
        "nuts" draws them too. "wishart", `cb.Wishart()`: a
        normal-inverse-Wishart posterior of the observational mean and covariance, pushed through
        the verified estimands; valid under latent confounding, from observational rows only.
        "nuts", `cb.NUTS(chains=4, warmup=1000, draws=1000)`: draws of the whole model, with
        correlated disturbances where latent causes join variables. "laplace", `cb.Laplace()`: a
        Gaussian at the mode of the same model. Or a method of your own.
    parameters:
        "structural", "total_effect" or "estimand", for linear mechanisms; by default what the
        method is at home in.
    intercepts:
        False: linear equations have none, so the rows must be centred.
    prior:
        For linear mechanisms `ScaledPrior` (the default: scaled to the data, worth 1/100 of a row),
        `FixedPrior`, or `MomentPrior`; each says what is believed about the strength of latent
        causes. For "gp" and dictionaries `cb.priors.GPPrior`, by default scaled to the data; functions
        have priors of their own.
    outcomes:
        (queries, values): experiments of which only the target is known; for "laplace" and "nuts".
        Tell a surrogate about them, or the posterior, never both.
    linear:
        Also use sets whose effects only linearity identifies (an instrument); for "laplace" and
        "nuts". Where the instrument is weak (an F below about 20 in the regression of the cause on
        it) the default prior leaves tails that chains do not reach, and the verdict of "nuts" says
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

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> post
    Posterior(2 structural parameters of Y, conjugate, 200 rows, exact)
    >>> post.names, post.mean.round(2).tolist()
    (('b[X->Z]', 'b[Z->Y]'), [0.76, -1.29])
    >>> cb.fit(system.problem, system.observe(50, 0), mechanisms={"Y": cb.GP(functions=8)}).verdict
    'passed'
    """
    require_float64()
    read_mechanisms(mechanisms)  # refused before any work
    chosen = read_method(method)
    if trait(chosen, "needs_key") and key is None:
        raise ModelError(f"{chosen.name} draws at random: give a key, such as key=0")
    given_key = None if key is None else as_key(key)
    _require_inputs(problem, data, parameters, intercepts, linear)
    if linear and not trait(chosen, "uses_linearity"):
        raise ModelError(
            f"{chosen.name} cannot use what only linearity identifies; take "
            'method="nuts" or "laplace"'
        )
    told = read_outcomes(problem, outcomes)
    task = Task(problem, data, told, prior, parameters, intercepts, linear)
    return Posterior.infer(Recipe(mechanisms, chosen, task, given_key))


def _require_inputs(
    problem: Problem, data: Data, parameters: object, intercepts: object, linear: object
) -> None:
    if not isinstance(problem, Problem):
        raise DomainError(
            f"fit needs a Problem, got {type(problem).__name__}; of a system take system.problem"
        )
    if not isinstance(data, Data):
        raise DataError(
            f"fit needs Data, got {type(data).__name__}; read a table with "
            "Data.from_frame(problem, ...)"
        )
    require_data_of(problem, data)
    require_sizes(data)
    for name, flag in (("intercepts", intercepts), ("linear", linear)):
        if not isinstance(flag, bool):
            raise ModelError(f"{name} must be True or False, got {flag!r}")
    if parameters is not None and not isinstance(parameters, str):
        raise ModelError(f"parameters must be a text such as 'structural', got {parameters!r}")
