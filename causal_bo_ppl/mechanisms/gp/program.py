"""Mechanisms that bend as a NumPyro program: priors, then one line for every variable.

It is there to be read, simulated and checked against. What is fitted is `density.GPDensity`, which
has the same density and is faster.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.hsgp.approximation import hsgp_matern, hsgp_squared_exponential

from causal_bo_ppl.mechanisms.gp.basis import SMOOTHNESS, WIDER, Frame, Group
from causal_bo_ppl.mechanisms.gp.evidence import Known
from causal_bo_ppl.mechanisms.gp.model import GPModel
from causal_bo_ppl.mechanisms.gp.propagation import Equation, Setting

Columns = Mapping[str, Any]


def gp_program(model: GPModel) -> Callable[..., None]:
    """Return the program of a model, with a site for every parameter and every variable.

    Its parameters are sd[Z], trend[Z], amplitude[X->Z] and lengthscale[X->Z], log-normal; level[Z],
    b[X->Z], low[X->Z] and high[X->Z], Gaussian; and f[X->Z]/beta, the standardized coefficients of
    a Gaussian process. The program takes {variable: values} and {variable: where it was not set};
    variables without values are drawn. Variables whose mechanisms no effect depends on must be
    given.
    """
    nodes = model.nodes
    bound = {nodes[each.equation.position]: each for each in model.bound}

    def program(given: Columns | None = None, free: Columns | None = None) -> None:
        values: dict[str, Any] = dict(given or {})
        for name in bound:
            sd, mean = _mechanism(nodes, *bound[name], values)
            if name in values:
                rounding = bound[name].known.rows.rounding
                numpyro.factor(f"rounding[{name}]", -0.5 * rounding / sd**2)
            with numpyro.handlers.mask(mask=True if free is None else free[name]):
                drawn = numpyro.sample(name, dist.Normal(mean, sd), obs=values.get(name))
            values[name] = drawn

    return program


def _mechanism(
    nodes: tuple[str, ...], equation: Equation, setting: Setting, known: Known, values: Columns
) -> tuple[Any, Any]:
    """Draw the parameters of one mechanism; return its sd, and its mean given the causes."""
    (form, frame), beliefs, name = (
        (equation.form, setting.frame),
        known.beliefs,
        nodes[equation.position],
    )
    causes = [nodes[position] for position in equation.causes]
    scales = iter(zip(np.asarray(beliefs.centre), np.asarray(beliefs.width), strict=True))
    widths = np.exp(np.asarray(beliefs.log_sd))

    sd = numpyro.sample(f"sd[{name}]", dist.LogNormal(*next(scales)))
    trend = (
        numpyro.sample(f"trend[{name}]", dist.LogNormal(*next(scales)))
        if form.is_nonlinear
        else 1.0
    )
    mean = numpyro.sample(f"level[{name}]", dist.Normal(beliefs.level, widths[0]))
    for at, cause in enumerate(causes):
        slope = numpyro.sample(f"b[{cause}->{name}]", dist.Normal(0.0, trend * widths[1 + at]))
        mean = mean + slope * (values[cause] - frame.origin[at])
    for group in form.groups:
        members = [causes[column] for column in group.columns]
        label = f"{'*'.join(members)}->{name}"
        amplitude = numpyro.sample(f"amplitude[{label}]", dist.LogNormal(*next(scales)))
        lengths = [
            numpyro.sample(f"lengthscale[{cause}->{name}]", dist.LogNormal(*next(scales)))
            for cause in members
        ]
        with numpyro.handlers.scope(prefix=f"f[{label}]"):
            mean = mean + _process(group, frame, amplitude, lengths, [values[c] for c in members])
    for number, at in enumerate(form.hinged):
        below, above = widths[form.size - 2 * (len(form.hinged) - number) :][:2]
        low = numpyro.sample(f"low[{causes[at]}->{name}]", dist.Normal(0.0, below))
        high = numpyro.sample(f"high[{causes[at]}->{name}]", dist.Normal(0.0, above))
        mean = mean + low * jnp.maximum(frame.low[at] - values[causes[at]], 0.0)
        mean = mean + high * jnp.maximum(values[causes[at]] - frame.high[at], 0.0)
    for slope, position in zip(setting.slopes, equation.known, strict=True):
        mean = mean + slope * values[nodes[position]]
    return sd, mean


def _process(
    group: Group, frame: Frame, amplitude: Any, lengths: list[Any], inputs: list[Any]
) -> Any:
    """Draw a Gaussian process of some causes by NumPyro's Hilbert-space approximation."""
    columns = np.array(group.columns)
    middle, half = np.asarray(frame.middle)[columns], np.asarray(frame.half)[columns]
    inside = jnp.clip(jnp.stack(inputs, axis=-1) - middle, -half, half)
    box = {"ell": (WIDER * half).tolist(), "m": list(group.functions)}
    length, variance = jnp.stack(lengths), amplitude**2  # NumPyro's alpha is a variance
    if group.kernel == "squared_exponential":
        return hsgp_squared_exponential(inside, variance, length, **box)
    return hsgp_matern(inside, SMOOTHNESS[group.kernel], variance, length, **box)
