"""Wheel and sdist, built and imported in fresh environments from another directory."""

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from floors import floors

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[1]
TRIAL = """
import causal_bo_ppl as cb, importlib.util, pathlib, sys
assert pathlib.Path(cb.__file__).is_relative_to(sys.prefix), cb.__file__
assert importlib.util.find_spec("models") is None
assert (pathlib.Path(cb.__file__).parent / "py.typed").exists()
print(cb.models.load("ecoli70").optimum.value, cb.models.load("toy").optimum.value)
"""


def run(*command, cwd):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build in a copy of the tracked files: a stale build folder or a missing file then shows."""
    source = tmp_path_factory.mktemp("source")
    tracked = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).splitlines()
    for name in tracked:
        if (ROOT / name).is_symlink():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source, cwd=target)
    return {path.suffix: path for path in target.iterdir()}


@pytest.mark.parametrize("suffix", [".whl", pytest.param(".gz", marks=pytest.mark.slow)])
def test_built_distribution_works_in_a_fresh_environment(built, suffix, tmp_path):
    """Dependencies come from this environment's packages; ours must come from what was built."""
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False)
    [site] = fresh.glob("lib/python*/site-packages")
    [here] = {Path(path) for path in sys.path if path.endswith("site-packages")}
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site]
    run(sys.executable, "-m", "pip", "install", *options, built[suffix], cwd=tmp_path)
    (site / "dependencies.pth").write_text(str(here))
    first, second = run(fresh / "bin/python", "-c", TRIAL, cwd=tmp_path).split()
    assert float(first) == pytest.approx(-4.587211, abs=1e-6) and float(second) == pytest.approx(
        -2.171806, abs=1e-6
    )


def test_every_installed_package_is_pinned():
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    installed = {re.sub(r"[-_.]+", "-", each.name).lower() for each in metadata.distributions()}
    assert installed - pinned <= {"pip", "causal-bo-ppl"}


def test_distributions_hold_data_licence_and_nothing_at_the_top(built):
    wheel = zipfile.ZipFile(built[".whl"]).namelist()
    assert {
        "causal_bo_ppl/models/ecoli70.json",
        "causal_bo_ppl/models/toy.py",
        "causal_bo_ppl/py.typed",
    } <= set(wheel)
    assert {name.split("/")[0] for name in wheel if ".dist-info" not in name} == {"causal_bo_ppl"}
    sources = [name.split("/", 1)[-1] for name in tarfile.open(built[".gz"]).getnames()]
    assert {"models/ecoli70.json", "LICENSE", "README.md"} <= set(sources)


def numbers(version):
    return tuple(int(part) for part in version.split("."))


def test_lowest_versions_are_below_those_that_are_pinned_and_leave_analysts_their_pandas():
    pinned = re.findall(
        r"^([\w-]+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    lowest = floors()
    assert len(lowest) > 15 and {"pandas", "numpyro", "jax"} <= set(lowest)
    for name, version in pinned:
        assert name not in lowest or numbers(lowest[name]) <= numbers(version), name
    assert numbers(lowest["pandas"]) < (2, 3) and numbers(lowest["numpyro"]) < (0, 21)
    assert "tests/floors.py >" in (ROOT / "Makefile").read_text()
