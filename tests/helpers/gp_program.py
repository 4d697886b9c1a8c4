"""Nonlinear mechanisms as a NumPyro program, with which `density.GPDensity` is compared.

Internals: the constants of the basis are those of the package.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.hsgp.approximation import hsgp_matern, hsgp_squared_exponential

from causal_bo_ppl.mechanisms.gp_basis import BOUNDARY_FACTOR, SMOOTHNESS


def gp_program(model):
    """Return the program of a model, with a site for every parameter and every variable.

    Its parameters are sd[Z], trend[Z], amplitude[X->Z] and lengthscale[X->Z], log-normal; level[Z],
    b[X->Z], low[X->Z] and high[X->Z], Gaussian; and f[X->Z]/beta, the standardized coefficients of
    a Gaussian process. The program takes {variable: values} and {variable: where it was not set};
    variables without values are drawn. Variables whose mechanisms no effect depends on must be
    given.
    """
    nodes = model.nodes
    bound = {nodes[each.equation.position]: each for each in model.bound}

    def program(given=None, free=None):
        values = dict(given or {})
        for name in bound:
            sd, mean = _mechanism(nodes, *bound[name], values)
            if name in values:
                rounding = bound[name].known.statistics.rounding
                numpyro.factor(f"rounding[{name}]", -0.5 * rounding / sd**2)
            with numpyro.handlers.mask(mask=True if free is None else free[name]):
                drawn = numpyro.sample(name, dist.Normal(mean, sd), obs=values.get(name))
            values[name] = drawn

    return program


def _mechanism(nodes, equation, setting, known, values):
    """Draw the parameters of one mechanism; return its sd, and its mean given the causes."""
    form, frame, prior = equation.form, setting.frame, known.prior
    name, causes = nodes[equation.position], [nodes[position] for position in equation.causes]
    scales = iter(zip(np.asarray(prior.centre), np.asarray(prior.width), strict=True))
    widths = np.exp(np.asarray(prior.log_sd))

    sd = numpyro.sample(f"sd[{name}]", dist.LogNormal(*next(scales)))
    trend = (
        numpyro.sample(f"trend[{name}]", dist.LogNormal(*next(scales)))
        if form.is_nonlinear
        else 1.0
    )
    mean = numpyro.sample(f"level[{name}]", dist.Normal(prior.level, widths[0]))
    for index, cause in enumerate(causes):
        slope = numpyro.sample(f"b[{cause}->{name}]", dist.Normal(0.0, trend * widths[1 + index]))
        mean = mean + slope * (values[cause] - frame.origin[index])
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
    for number, index in enumerate(form.hinged):
        cause, start = causes[index], form.size - 2 * (len(form.hinged) - number)
        below, above = widths[start : start + 2]
        low = numpyro.sample(f"low[{cause}->{name}]", dist.Normal(0.0, below))
        high = numpyro.sample(f"high[{cause}->{name}]", dist.Normal(0.0, above))
        mean = mean + low * jnp.maximum(frame.low[index] - values[cause], 0.0)
        mean = mean + high * jnp.maximum(values[cause] - frame.high[index], 0.0)
    for slope, position in zip(setting.slopes, equation.known, strict=True):
        mean = mean + slope * values[nodes[position]]
    return sd, mean


def _process(group, frame, amplitude, lengths, inputs):
    """Draw a Gaussian process of some causes by NumPyro's Hilbert-space approximation."""
    columns = np.array(group.columns)
    middle, half = np.asarray(frame.middle)[columns], np.asarray(frame.half)[columns]
    inside = jnp.clip(jnp.stack(inputs, axis=-1) - middle, -half, half)
    box = {"ell": (BOUNDARY_FACTOR * half).tolist(), "m": list(group.functions)}
    length, variance = jnp.stack(lengths), amplitude**2  # NumPyro's alpha is a variance
    if group.kernel == "squared_exponential":
        return hsgp_squared_exponential(inside, variance, length, **box)
    return hsgp_matern(inside, SMOOTHNESS[group.kernel], variance, length, **box)
