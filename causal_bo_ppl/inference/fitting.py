"""Which method of inference, on which data, for which parameters? The door to all of them."""

import warnings
from collections.abc import Sequence
from copy import deepcopy

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.learnability import require_learnable, require_sizes
from causal_bo_ppl.errors import CausalBOWarning, DataError, DomainError, ModelError, listed
from causal_bo_ppl.inference.equations import fit_equations
from causal_bo_ppl.inference.laplace import approximate
from causal_bo_ppl.inference.linear_model import make_linear_model
from causal_bo_ppl.inference.methods import METHODS, identified
from causal_bo_ppl.inference.nuts import Sampling, sample
from causal_bo_ppl.inference.outcomes import read_outcomes
from causal_bo_ppl.inference.posterior import Belief, Posterior, digest, require_rows_of
from causal_bo_ppl.inference.wishart import fit_estimands
from causal_bo_ppl.inputs import as_key, require_float64
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior, Prior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.readout import Readout
from causal_bo_ppl.problem import Problem, Queries

FAR = 5.0  # standard errors of a mean from 0: centred rows are 0 apart from rounding


def fit(
    problem: Problem,
    data: Data,
    *,
    mechanisms: str = "linear",
    method: str = "conjugate",
    parameters: str | None = None,
    intercepts: bool = True,
    prior: Prior | None = None,
    outcomes: tuple[Queries, Sequence[float] | np.ndarray] | None = None,
    linear: bool = False,
    chains: int = 4,
    warmup: int = 1_000,
    draws: int = 1_000,
    target_accept: float = 0.8,
    progress: bool = True,
    key: jax.Array | int | None = None,
) -> Posterior:
    """Learn theta_Y, the parameters that the effects of all intervention sets share.

    Parameters
    ----------
    mechanisms:
        "linear": V = a + W'V + e with Gaussian disturbances.
    method:
        "conjugate": a normal-inverse-gamma posterior of every equation upstream of the target, in closed form, from
        observational and interventional rows; refused where a latent cause joins two of them. "wishart": a
        normal-inverse-Wishart posterior of the observational mean and covariance, pushed through the verified
        estimands: valid under latent confounding, from observational rows only. "nuts": draws of the whole model, with
        correlated disturbances where latent causes join variables. "laplace": a Gaussian at the mode of the same model.
    parameters:
        "structural", "total_effect" or "estimand"; by default what the method is at home in.
    intercepts:
        False: the equations have none, so the rows must be centred.
    prior:
        `ScaledPrior` (default: scaled to the data, worth 1/100 of a row), `FixedPrior`, or `MomentPrior`. Each says
        what is believed about the strength of latent causes.
    outcomes:
        (queries, values): experiments of which only the target is known; for "laplace" and "nuts". Tell a surrogate
        about them, or the posterior, never both.
    linear:
        Also use sets whose effects only linearity identifies (an instrument); for "laplace" and "nuts".
    chains, warmup, draws, target_accept, progress:
        Of "nuts": chains run side by side; warmup and draws are per chain. Look at `cb.check_posterior(post)`.
    key:
        Of "nuts"; the other methods need none.

    Raises NotIdentifiable for a problem with a set whose effect cannot be learned, unless it was made with
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
    """
    _require_inputs(problem, data, mechanisms, method, intercepts, prior)
    sampling = Sampling(chains, warmup, draws, target_accept, progress=progress)
    found = identified(problem, _read_linear(linear, method))
    sets = found.require_usable()
    theta = found.parameters(
        METHODS[method] if parameters is None else parameters, intercepts=intercepts
    )
    if not theta.names:
        raise ModelError("every coefficient that matters is known: there is nothing left to learn")
    if not intercepts:
        _warn_unless_centred(data, problem)
    causes, belief_prior = problem.graph.ancestral(problem.target), deepcopy(prior) or ScaledPrior()
    if isinstance(belief_prior, FixedPrior):
        belief_prior.require_names(problem.graph)
    belief: Belief
    if method == "wishart":
        _require_no_outcomes(outcomes, method)
        belief = fit_estimands(
            causes, [found[members] for members in sets], theta, belief_prior, data
        )
        return Posterior(problem, theta, method, belief, (data,), digest(data))
    readout = Readout(theta, causes)
    if isinstance(belief_prior, ScaledPrior):
        opened = {name for reduction in theta.explored.reductions for name in reduction.open}
        needed = {name for each in opened for name in causes.district(each)}
        require_learnable(data, problem.graph, problem.known, nodes=needed, spare=3 + intercepts)
    parts = (causes, theta.explored.known, intercepts, belief_prior, readout, data)
    if method == "conjugate":
        _require_no_outcomes(outcomes, method)
        return Posterior(problem, theta, method, fit_equations(*parts), (data,), digest(data))
    told = read_outcomes(problem, theta, outcomes)
    model = make_linear_model(*parts, told)
    if method == "nuts" and key is None:
        raise ModelError("nuts draws at random: give a key, such as key=0")
    belief = (
        approximate(model)
        if key is None or method == "laplace"
        else sample(model, sampling, as_key(key))
    )
    return Posterior(
        problem, theta, method, belief, (data,), (digest(data) + told.digest()) % 2**256
    )


def _require_no_outcomes(outcomes: object, method: str) -> None:
    if outcomes is not None:
        raise ModelError(
            f"{method} learns from whole rows only; for outcomes of the target alone use method='nuts' or 'laplace', "
            "or tell them to a surrogate: cb.couple(post).tell(query, outcome)"
        )


def _read_linear(linear: bool, method: str) -> bool:
    if not isinstance(linear, bool):
        raise ModelError(f"linear must be True or False, got {linear!r}")
    if linear and method not in ("laplace", "nuts"):
        raise ModelError(
            f'{method} cannot use what only linearity identifies; take method="nuts" or "laplace"'
        )
    return linear


def _require_inputs(
    problem: Problem,
    data: Data,
    mechanisms: str,
    method: str,
    intercepts: bool,
    prior: Prior | None,
) -> None:
    require_float64()
    if not isinstance(problem, Problem):
        raise DomainError(
            f"fit needs a Problem, got {type(problem).__name__}; of a system take system.problem"
        )
    if not isinstance(data, Data):
        raise DataError(
            f"fit needs Data, got {type(data).__name__}; read a table with Data.from_frame(problem, ...)"
        )
    require_rows_of(problem, data)
    require_sizes(data)
    if not isinstance(mechanisms, str) or mechanisms != "linear":
        raise ModelError(f'mechanisms must be "linear", got {mechanisms!r}')
    if not isinstance(method, str) or method not in METHODS:
        raise ModelError(f"method must be one of {listed(METHODS)}; got {method!r}")
    if not isinstance(intercepts, bool):
        raise ModelError(f"intercepts must be True or False, got {intercepts!r}")
    if prior is not None and not isinstance(prior, ScaledPrior | FixedPrior | MomentPrior):
        raise ModelError(
            f"prior must be a ScaledPrior, a FixedPrior or a MomentPrior, got {prior!r}"
        )


def _warn_unless_centred(data: Data, problem: Problem) -> None:
    values = data.values[data.is_observational]
    if len(values) < 2:
        return
    error = np.maximum(values.std(axis=0, ddof=1), np.finfo(float).tiny) / np.sqrt(len(values))
    names = [*problem.graph.ancestors(problem.target), problem.target]
    far = [
        name
        for name in names
        if not abs(values[:, at := data.nodes.index(name)].mean()) <= FAR * error[at]
    ]
    if far:
        warnings.warn(
            f"intercepts=False takes the means as 0, but those of {listed(far, most=5)} are not: "
            "centre the rows, or leave intercepts in",
            CausalBOWarning,
            stacklevel=3,
        )
