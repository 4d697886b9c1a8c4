"""Draw the figures of README and guide: a problem, a run, information gains, and intervals."""

from pathlib import Path

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
