"""Would discrepancies help one another if a set and its subsets shared a part of them?

    .venv/bin/python tests/benchmarks/shared_discrepancies.py

For random wrong models, fitted with linear mechanisms, the errors of 12 effects are measured with
noise, and those of the others are predicted by Gaussian processes: h_A = g_A and h_AB = c (g_A +
g_B) + sqrt(1 - 2 c^2) g_AB with independent g; c = 0 shares nothing. Amplitude and lengthscale have
the largest evidence. Printed are the root mean squared error of prediction and the log evidence,
each as the difference from sharing nothing, with its standard error.
"""

import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.simulated_systems import random_system  # noqa: E402

import causal_bo_ppl as cb  # noqa: E402

SHARES, LENGTHSCALES = (0.0, 0.3, 0.5, 0.6, 0.7), (0.1, 0.2, 0.4, 0.8)
AMPLITUDES, WIDTH, MEASURED, NOISE = np.geomspace(0.05, 5, 9), 4.0, 12, 0.5


def covariance(queries, lengthscale, share):
    """Return the covariance of the errors of all queries at amplitude 1."""
    found = np.zeros((len(queries), len(queries)))
    for i, left in enumerate(queries):
        for j, right in enumerate(queries):
            both = sorted({*left} & {*right})
            squares = {
                name: ((left[name] - right[name]) / WIDTH / lengthscale) ** 2 for name in both
            }
            one, other = (1.0 if len(each) == 1 else share for each in (left, right))
            found[i, j] = sum(one * other * np.exp(-0.5 * squares[name]) for name in both)
            if len(both) == 2:
                mean = np.mean(list(squares.values()))
                found[i, j] += (1 - 2 * share**2) * np.exp(-0.5 * mean)
    return found


def predict(queries, errors, seed, share):
    """Return the error of prediction and the evidence, at the most probable hyperparameters."""
    known = errors[:MEASURED] + NOISE * np.random.default_rng(seed).normal(size=MEASURED)
    best = (-np.inf, np.nan)
    for lengthscale in LENGTHSCALES:
        unit = covariance(queries, lengthscale, share)
        for amplitude in AMPLITUDES:
            gram = amplitude**2 * unit
            total = gram[:MEASURED, :MEASURED] + NOISE**2 * np.eye(MEASURED)
            weights = np.linalg.solve(total, known)
            evidence = -0.5 * known @ weights - 0.5 * np.linalg.slogdet(total)[1]
            left = errors[MEASURED:] - gram[MEASURED:, :MEASURED] @ weights
            best = max(best, (evidence, np.sqrt(np.mean(left**2))))
    return best[1], best[0]


def main() -> None:
    """Print the differences from sharing nothing."""
    warnings.simplefilter("ignore", cb.CausalBOWarning)
    found = []
    for seed in range(200, 224):
        system = random_system(seed)
        problem, post = system.problem, cb.fit(system.problem, system.observe(100, seed))
        queries = [*problem.interventions(problem.vertices())]
        queries += problem.interventions(problem.sobol(4))
        if len({tuple(each) for each in queries}) < 3:
            continue  # there is a single set
        chosen = np.random.default_rng(seed).permutation(len(queries))[:44]
        queries = [queries[index] for index in chosen]
        truth = np.array([system.effect(each) for each in queries])
        errors = truth - cb.effects(post, queries)["mean"].to_numpy()
        found.append([predict(queries, errors, seed, share) for share in SHARES])
    numbers = np.array(found)
    error = numbers[:, 0, 0].mean()
    sys.stdout.write(f"{len(numbers)} systems; error without sharing {error:.3f}\n")
    for index, share in enumerate(SHARES[1:], 1):
        gaps = numbers[:, index] - numbers[:, 0]
        mean, spread = gaps.mean(axis=0), gaps.std(axis=0) / np.sqrt(len(gaps))
        sys.stdout.write(
            f"c = {share}: error {mean[0]:+.3f} +- {spread[0]:.3f}, "
            f"log evidence {mean[1]:+.2f} +- {spread[1]:.2f}\n"
        )


if __name__ == "__main__":
    main()
