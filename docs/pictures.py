"""Draw the figures of README, guide and pages: a problem, a run, gains, intervals, wrong models."""

from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

import causal_bo_ppl as cb

DATA_SETS, OBSERVATIONS = 200, 500


def save(axes, name):
    """Write a figure into the folder of this file."""
    axes.figure.savefig(Path(__file__).with_name(name), dpi=130)


def observe_confounded(problem, seed):
    """X -> Z -> Y with a strong latent cause of X and Y; the effect of X on Y is 0.8 times -1.3."""
    u, x, z, y = np.random.default_rng(seed).normal(size=(4, OBSERVATIONS))
    x = 2 * u + x
    z = 0.8 * x + z
    y = -1.3 * z + 2 * u + y
    return cb.Data.from_frame(problem, pd.DataFrame({"X": x, "Z": z, "Y": y}))


def intervals(problem, seed):
    """Return 90 % intervals of the slope of Y in X: by wishart, and by regression."""
    data = observe_confounded(problem, seed)
    ours = cb.fit(problem, data, method="wishart").quantiles([0.05, 0.95], draws=1000, key=seed)
    fitted = stats.linregress(data.column("X"), data.column("Y"))
    half = stats.t.ppf(0.95, OBSERVATIONS - 2) * fitted.stderr
    return ours.loc["est[X|X]"].tolist(), [fitted.slope - half, fitted.slope + half]


def draw_interaction():
    """Effects along B at A = 2 of Y = A B + A / 2 + e, by three models."""
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    pair = cb.Problem(graph, "Y", domains={"A": (-2, 2), "B": (-2, 2)})
    a, b, e = np.random.default_rng(0).normal(size=(3, 100))
    table = pd.DataFrame({"A": a, "B": b, "Y": a * b + a / 2 + e})
    along, axes = np.linspace(-2, 2, 17), plt.figure(figsize=(6, 4)).add_subplot()
    queries = [{"A": 2.0, "B": value} for value in along]
    models = {"additive": "gp", "with the product": {"Y": cb.Linear([("A", "B")])}}
    for colour, (label, mechanisms) in zip(("C1", "C0"), models.items(), strict=True):
        found = cb.effects(cb.fit(pair, table, mechanisms=mechanisms), queries, key=0)
        axes.plot(along, found["mean"], colour, label=label)
        axes.fill_between(along, found["lower"], found["upper"], color=colour, alpha=0.2, lw=0)
    axes.plot(along, 2 * along + 1, "k--", label="truth")
    axes.set(xlabel="B", ylabel="E[Y | do(A = 2, B)]", title="90 % intervals, 100 observations")
    axes.legend()
    return axes


def draw_noise():
    """The sd of Z given X under a mechanism whose noise varies, and the truth."""
    chain = cb.Problem(cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-2, 2)})
    x, e, f = np.random.default_rng(1).normal(size=(3, 150))
    z = x + (0.2 + 0.6 * abs(x)) * e
    table = pd.DataFrame({"X": x, "Z": z, "Y": z**2 / 2 + 0.3 * f})
    choice = {"Z": cb.Linear(noise="varying"), "Y": "gp"}
    post = cb.fit(chain, table, mechanisms=choice, method="laplace")
    along, axes = np.linspace(-2, 2, 41), plt.figure(figsize=(6, 4)).add_subplot()
    models = post.distribution.drawn(200, jax.random.key(0)).models
    queries = chain.queries([{"X": value} for value in along for _ in range(50)])
    drawn = post.distribution.model.replicate(models, queries, jax.random.key(1))[:, :, 1]
    sds = drawn.reshape(len(drawn), len(along), -1).std(axis=2)
    low, middle, high = np.quantile(sds, (0.05, 0.5, 0.95), axis=0)
    axes.plot(along, middle, "C0", label="posterior median")
    axes.fill_between(along, low, high, color="C0", alpha=0.2, lw=0)
    axes.plot(along, 0.2 + 0.6 * abs(along), "k--", label="truth")
    axes.set(xlabel="X", ylabel="sd of Z given X", title="90 % intervals, 150 observations")
    axes.legend()
    return axes


save(cb.plots.draw_problem(cb.models.load("synthetic").problem), "synthetic.png")
ecoli70 = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)
save(cb.plots.draw_run(cb.optimize(ecoli70, rounds=40, observations=100, key=0)), "run.png")
post = cb.fit(ecoli70.problem, ecoli70.observe(100, 0))
gains = cb.theory.gain_curves(post, ecoli70.problem.vertices(), noise=0.5)
save(cb.plots.draw_gains(gains), "gains.png")
graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
problem = cb.Problem(graph, "Y", domains={"X": (-3, 3), "Z": (-3, 3)})
ours, theirs = zip(*(intervals(problem, seed) for seed in range(DATA_SETS)), strict=True)
found = {"wishart, by the front door": np.array(ours), "regression of Y on X": np.array(theirs)}
label = "effect of X on Y, 90 % intervals"
save(cb.plots.draw_coverage(found, 0.8 * -1.3, quantity=label), "coverage.png")
save(draw_interaction(), "interaction.png")
save(draw_noise(), "noise.png")
