"""Linear mechanisms with products of their causes."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from helpers.wrong_models import INTERACTIONS
from numpyro.infer.util import log_density

import causal_bo_ppl as cb

GRAPH = cb.CausalGraph.parse("X -> A -> Y; B -> Y; X -> Y")
PROBLEM = cb.Problem(GRAPH, "Y", domains={"A": (-3, 3), "B": (-3, 3), "X": (-2, 2)})
QUERIES = [{"X": 1.0}, {"X": -1.5}, {"A": 2.0, "B": -1.0}, {"B": 2.0}]
PRODUCTS = cb.Linear(interactions=[("A", "B"), ("X", "A")])


def observe(count, seed):
    x, a, b, y = np.random.default_rng(seed).normal(size=(4, count))
    a, b = x + 0.5 * a, 1 + b
    table = {"X": x, "A": a, "B": b, "Y": a * b - 0.3 * x + 0.4 * a * x + 0.5 * y}
    return pd.DataFrame(table)


@pytest.fixture(scope="module")
def fitted():
    table = observe(150, 0)
    return table, cb.fit(PROBLEM, table, mechanisms={"Y": PRODUCTS})


def design(table, origin):
    b, x, a = (np.asarray(table[name]) - origin[name] for name in ("B", "X", "A"))
    return np.column_stack([np.ones(len(a)), b, x, a, b * a, x * a])


def test_coefficients_are_those_of_least_squares(fitted):
    table, post = fitted
    matrix, y = design(table, table.mean()), table["Y"].to_numpy()
    estimate, rest, *_ = np.linalg.lstsq(matrix, y, rcond=None)
    sd = np.sqrt(rest[0] / (len(y) - 6) * np.diag(np.linalg.inv(matrix.T @ matrix)))
    names = ["level[Y]", "b[B->Y]", "b[X->Y]", "b[A->Y]", "b[B*A->Y]", "b[X*A->Y]"]
    mine = post.to_frame().loc[names]
    assert (abs(mine["mean"] - estimate) < 0.02 * sd).all()
    assert (abs(mine["sd"] / sd - 1) < 0.03).all()


def test_effects_are_means_of_simulated_experiments(fitted):
    table, post = fitted
    value, origin = dict(zip(post.names, post.mean, strict=True)), table.mean()
    for query, effect in zip(QUERIES, cb.response(post)(post.mean, QUERIES), strict=True):
        e = np.random.default_rng(1).normal(size=(3, 400_000))
        drawn = {"B": value["level[B]"] + np.exp(value["log_sd[B]"]) * e[0]}
        drawn["X"] = value["level[X]"] + np.exp(value["log_sd[X]"]) * e[1]
        drawn |= {name: np.full(e.shape[1], v) for name, v in query.items() if name != "A"}
        mean = value["level[A]"] + value["b[X->A]"] * (drawn["X"] - origin["X"])
        drawn["A"] = mean + np.exp(value["log_sd[A]"]) * e[2]
        drawn |= {name: np.full(e.shape[1], v) for name, v in query.items() if name == "A"}
        names = ["level[Y]", "b[B->Y]", "b[X->Y]", "b[A->Y]", "b[B*A->Y]", "b[X*A->Y]"]
        outcomes = design(drawn, origin) @ [value[name] for name in names]
        assert abs(effect - outcomes.mean()) < 5 * outcomes.std() / np.sqrt(e.shape[1]) + 1e-3


def test_program_is_the_one_on_paper(fitted):
    table, post = fitted
    origin, scale = table.mean(), table.std(ddof=0)
    theirs = post.numpyro_model

    def by_hand():
        for name in GRAPH.ancestral("Y").nodes:
            prior = dist.Normal(origin[name], 10 * scale[name])
            mean = numpyro.sample(f"level[{name}]", prior)
            for cause in GRAPH.parents(name):
                width = 10 * scale[name] / scale[cause]
                slope = numpyro.sample(f"b[{cause}->{name}]", dist.Normal(0, width))
                mean = mean + slope * (table[cause].to_numpy() - origin[cause])
            for one, other in (("B", "A"), ("X", "A")) if name == "Y" else ():
                width = 10 * scale[name] / scale[one] / scale[other]
                slope = numpyro.sample(f"b[{one}*{other}->{name}]", dist.Normal(0, width))
                product = (table[one] - origin[one]) * (table[other] - origin[other])
                mean = mean + slope * product.to_numpy()
            median = (0.5 if GRAPH.parents(name) else 1.0) * scale[name]
            sd = numpyro.sample(f"sd[{name}]", dist.LogNormal(np.log(median), 1.5))
            numpyro.factor(f"rounding {name}", -0.5 * len(table) * (1e-4 * scale[name] / sd) ** 2)
            numpyro.sample(name, dist.Normal(mean, sd), obs=table[name].to_numpy())

    generator, gaps = np.random.default_rng(0), []
    for _ in range(20):
        sites = {name: generator.normal() for name in theirs.parameters}
        sites = {k: np.exp(v) if k.startswith("sd") else v for k, v in sites.items()}
        one, other = (log_density(each, (), {}, sites)[0] for each in (theirs, by_hand))
        gaps.append(float(one - other) / max(1.0, abs(float(one))))
    assert np.ptp(gaps) < 1e-9


def test_effects_at_the_front_door_hold_the_interaction():
    problem, data = INTERACTIONS["front door"](3, 400)
    choice = {"Y": cb.Linear(interactions=[("X", "Z")])}
    post = cb.fit(problem, data, mechanisms=choice)
    found = cb.effects(post, [{"X": 2.0}], key=0).iloc[0]
    slope = 1 / 1.09  # of U on X; E[Y | do(x)] = E_X' E_Z [Z + (1 + Z) slope X'], X' observed
    expected = 0.6 * 2.0 + slope * 0.0 * (1 + 1.2)
    assert abs(found["mean"] - expected) < 4 * found["sd"] and found["sd"] < 0.2
    assert cb.diagnostics.check_interactions(post).passed


def test_products_survive_files_settings_and_studies(fitted, tmp_path):
    _, post = fitted
    again = cb.Posterior.load(post.save(tmp_path / "post.nc", draws=100), PROBLEM)
    assert again.fingerprint == post.fingerprint and (again.mean == post.mean).all()
    settings = cb.Settings(mechanisms={"Y": PRODUCTS})
    assert cb.Settings.from_json(settings.to_json()) == settings
    data = observe(150, 4)
    study = cb.Study(PROBLEM, data, settings, key=0)
    assert cb.Study.from_json(study.to_json(), data).settings == settings


def test_kernels_and_variances_are_those_of_draws(fitted):
    _, post = fitted
    gram = cb.jacobian_gram(post, QUERIES).gram
    drawn = cb.response(post)
    effects = np.stack([drawn(theta, QUERIES) for theta in post.draws(300, 0)])
    assert np.abs(gram / np.cov(effects.T) - 1)[np.eye(len(QUERIES), dtype=bool)].max() < 0.4
    queries = PROBLEM.queries(QUERIES).repeat(4_000)
    models = post.distribution.drawn(4, jax.random.key(0)).models[:1]
    replicated = post.distribution.model.replicate(
        models, post.upstream(queries), jax.random.key(1)
    )
    simulated = replicated[0, :, -1].reshape(len(QUERIES), -1).var(axis=1)
    once = post.upstream(PROBLEM.queries(QUERIES))
    found = post.distribution.model.outcome_variances(models, once)
    np.testing.assert_allclose(found, simulated, rtol=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cb.Linear(interactions="some"), "pairs of names"),
        (lambda: cb.Linear(interactions=[("A",)]), "two different causes"),
        (lambda: cb.Linear(interactions=[("A", "B"), ("B", "A")]), "once only"),
        (lambda: cb.Linear(noise="loud"), "noise must be one of"),
    ],
)
def test_impossible_options_are_refused(make, message):
    with pytest.raises(cb.errors.MechanismError, match=message):
        make()


def test_interactions_of_variables_that_are_no_causes_are_refused():
    choice = {"Y": cb.Linear(interactions=[("A", "C")])}
    with pytest.raises(cb.errors.MechanismError, match="'C' is in an interaction of 'Y'"):
        cb.fit(PROBLEM, observe(50, 0), mechanisms=choice)


def test_too_many_interactions_are_refused():
    graph = cb.CausalGraph.parse("; ".join(f"C{k} -> Y" for k in range(7)))
    problem = cb.Problem(graph, "Y", domains={"C0": (-1, 1)})
    columns = [*(f"C{k}" for k in range(7)), "Y"]
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 8)), columns=columns)
    with pytest.raises(cb.errors.MechanismError, match="at most 15"):
        cb.fit(problem, table, mechanisms={"Y": cb.Linear(interactions="all")})
