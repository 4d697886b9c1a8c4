"""Aspirin, statin and the prostate-specific antigen (PSA).

    age -> bmi;  age, bmi -> aspirin, statin, cancer, PSA
    aspirin, statin -> cancer, PSA;  cancer -> PSA

    age ~ U(55, 75)                      bmi ~ N(27 - 0.01 age, 0.7^2)
    aspirin = s(-8 + 0.10 age + 0.03 bmi)    statin = s(-13 + 0.10 age + 0.20 bmi)
    cancer = s(2.2 - 0.05 age + 0.01 bmi - 0.04 statin + 0.02 aspirin)
    PSA ~ N(6.8 + 0.04 age - 0.15 bmi - 0.60 statin + 0.55 aspirin + cancer, 0.4^2)

with s the logistic function. Source: Ferro et al. 2015 as used by Aglietti et al. 2020. Aspirin and
statin are functions of age and bmi: observed alone, their effects cannot be separated (there is no
overlap). Optimum by quadrature: 5.155287 at aspirin 0, statin 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import sigmoid

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

GRAPH = CausalGraph.parse("""
    age -> bmi
    age -> aspirin; age -> statin; age -> cancer; age -> PSA
    bmi -> aspirin; bmi -> statin; bmi -> cancer; bmi -> PSA
    aspirin -> cancer -> PSA; aspirin -> PSA
    statin -> cancer; statin -> PSA
""")
DOMAINS = {"aspirin": (0.0, 1.0), "statin": (0.0, 1.0)}
UNITS = {
    "age": "years",
    "bmi": "kg/m2",
    "aspirin": "propensity",
    "statin": "propensity",
    "PSA": "ng/mL",
}
YOUNGEST, OLDEST, BMI_SD, PSA_SD = 55.0, 75.0, 0.7, 0.4


def mean_bmi(age: jax.Array) -> jax.Array:
    """Return the mean body-mass index at an age."""
    return 27 - 0.01 * age


def natural_aspirin(age: jax.Array, bmi: jax.Array) -> jax.Array:
    """Return the aspirin use when nobody sets it."""
    return sigmoid(-8 + 0.10 * age + 0.03 * bmi)


def natural_statin(age: jax.Array, bmi: jax.Array) -> jax.Array:
    """Return the statin use when nobody sets it."""
    return sigmoid(-13 + 0.10 * age + 0.20 * bmi)


def cancer_risk(age: jax.Array, bmi: jax.Array, aspirin: jax.Array, statin: jax.Array) -> jax.Array:
    """Return the propensity of cancer."""
    return sigmoid(2.2 - 0.05 * age + 0.01 * bmi - 0.04 * statin + 0.02 * aspirin)


def mean_psa(
    age: jax.Array, bmi: jax.Array, aspirin: jax.Array, statin: jax.Array, cancer: jax.Array
) -> jax.Array:
    """Return the mean PSA given all of its causes."""
    return 6.8 + 0.04 * age - 0.15 * bmi - 0.60 * statin + 0.55 * aspirin + cancer


def model() -> None:
    """Draw one observation of the true system, a site for each variable."""
    age = numpyro.sample("age", dist.Uniform(YOUNGEST, OLDEST))
    bmi = numpyro.sample("bmi", dist.Normal(mean_bmi(age), BMI_SD))
    aspirin = numpyro.deterministic("aspirin", natural_aspirin(age, bmi))
    statin = numpyro.deterministic("statin", natural_statin(age, bmi))
    cancer = numpyro.deterministic("cancer", cancer_risk(age, bmi, aspirin, statin))
    numpyro.sample("PSA", dist.Normal(mean_psa(age, bmi, aspirin, statin, cancer), PSA_SD))


def parameter(name: str, sd: float) -> jax.Array:
    """Draw a coefficient from N(0, sd^2)."""
    drawn: jax.Array = numpyro.sample(name, dist.Normal(0.0, sd))
    return drawn


def by_age_and_bmi(age: jax.Array, bmi: jax.Array) -> jax.Array:
    """Return the log odds of a person, linear with unknown coefficients."""
    level, by_age, by_bmi = (parameter(name, 3.0) for name in ("level", "by_age", "by_bmi"))
    return level + by_age * (age - 65) / 10 + by_bmi * (bmi - 26)


def use(age: jax.Array, bmi: jax.Array) -> jax.Array:
    """Return the use of a drug, a logistic function with unknown coefficients."""
    return sigmoid(by_age_and_bmi(age, bmi))


def risk(age: jax.Array, bmi: jax.Array, aspirin: jax.Array, statin: jax.Array) -> jax.Array:
    """Return the propensity of cancer, a logistic function with unknown coefficients."""
    drugs = parameter("by_aspirin", 1.0) * aspirin + parameter("by_statin", 1.0) * statin
    return sigmoid(by_age_and_bmi(age, bmi) + drugs)


# The Bayesian model with which an analyst would begin: propensities are logistic functions, and
# what is not named is linear.
MECHANISMS = {"aspirin": use, "statin": use, "cancer": risk}


# Gauss-Legendre over age, Gauss-Hermite over bmi: the integrand is nearly linear in both, so these
# few nodes reach 1e-12 (a test doubles them).
AGE_NODES, BMI_NODES = 12, 12


def population(
    ages: int = AGE_NODES, bmis: int = BMI_NODES
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the quadrature of the population: ages, bmis and weights, arrays of shape (k,)."""
    x, across = np.polynomial.legendre.leggauss(ages)
    t, along = np.polynomial.hermite_e.hermegauss(bmis)
    ages_at, offsets = np.meshgrid(
        YOUNGEST + (OLDEST - YOUNGEST) * (x + 1) / 2, BMI_SD * t, indexing="ij"
    )
    weight = np.outer(across / across.sum(), along / along.sum())
    age = jnp.array(ages_at.ravel())
    return age, mean_bmi(age) + jnp.array(offsets.ravel()), jnp.array(weight.ravel())


def response(queries: Queries) -> jax.Array:
    """Return the mean PSA over the population, aspirin and statin natural where not set."""
    means: jax.Array = _response(queries)  # a compiled function cannot be pickled
    return means


@jax.jit
def _response(queries: Queries) -> jax.Array:
    age, bmi, weight = population()
    columns = [GRAPH.index("aspirin"), GRAPH.index("statin")]
    naturals = natural_aspirin(age, bmi), natural_statin(age, bmi)

    def one(mask: jax.Array, value: jax.Array) -> jax.Array:
        aspirin, statin = (
            jnp.where(mask[c], value[c], natural)
            for c, natural in zip(columns, naturals, strict=True)
        )
        return mean_psa(age, bmi, aspirin, statin, cancer_risk(age, bmi, aspirin, statin)) @ weight

    means: jax.Array = jax.lax.map(
        lambda query: one(*query), (queries.mask, queries.value), batch_size=4096
    )
    return means


def healthcare(max_size: int | None = None) -> CausalSystem:
    """Build the system: lower PSA by aspirin and statin."""
    problem = Problem(
        GRAPH, "PSA", domains=DOMAINS, sets="mis" if max_size is None else max_size, units=UNITS
    )
    source = "Ferro et al. 2015; Aglietti et al. 2020"
    return CausalSystem("healthcare", problem, model, response, False, source, MECHANISMS)
