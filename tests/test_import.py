"""What importing costs and changes, each in a fresh process."""

import os
import subprocess
import sys

import pytest


def run(code, *flags, cwd=None, **environment):
    command, environment = [sys.executable, *flags, "-c", code], os.environ | environment
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_heavy_libraries_wait_until_they_are_used():
    heavy = ["numpyro", "y0", "arviz", "arviz_base", "matplotlib", "networkx", "pandas"]
    loaded = run(
        f"import causal_bo_ppl, sys; print([name for name in {heavy} if name in sys.modules])"
    )
    assert loaded == "[]"


@pytest.mark.heavy
def test_import_costs_little_more_than_jax():
    """Seconds of the processor, the best of a few.

    The two imports come one after the other in one process.
    """
    timed = """
from time import process_time
start = process_time()
import jax
between = process_time()
import causal_bo_ppl
print((process_time() - between) / (between - start))
"""
    ratios = [float(run(timed)) for _ in range(3)]
    assert min(ratios) <= 0.3, ratios


@pytest.mark.heavy
def test_import_turns_on_64_bit_floats_and_warns_of_nothing():
    code = (
        "import causal_bo_ppl as cb, jax.numpy as jnp; cb.models.load('toy'); cb.plots; "
        "print(jnp.zeros(1).dtype)"
    )
    assert run(code, "-W", "error") == "float64"


def test_folder_of_systems_cannot_be_imported_under_another_name(request):
    code = "try:\n import models\nexcept ImportError as error:\n print(error)"
    assert "import causal_bo_ppl.models" in run(code, cwd=request.config.rootpath)


@pytest.mark.heavy
def test_same_key_gives_the_same_numbers_in_two_processes():
    code = """
import causal_bo_ppl as cb
system = cb.models.load("synthetic")
data = system.observe(3, 7).join(system.experiment(system.problem.sobol(2), 8))
print(data.values.tobytes().hex(), system.problem.fingerprint, cb.pomis(system.problem.graph, "Y"))
"""
    first, second = (run(code, PYTHONHASHSEED=seed) for seed in "12")
    assert first == second and len(first) > 1000
