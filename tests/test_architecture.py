"""The rooms, their order, and the doors of heavy dependencies, read from the imports."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import causal_bo_ppl as cb

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "causal_bo_ppl"
LAYERS = [
    "errors",
    "inputs checks numerics sweeps",
    "batching",
    "graph",
    "problem",
    "data",
    "identification",
    "mechanisms",
    "systems",
    "models",
    "inference",
    "responses",
    "diagnostics kernels",
    "theory surrogates",
    "optimization",
    "campaign validation",
    "plots",
    "experiments",
    "report",
    "cli",
]
INSIDE = {  # the order within a room, from left to right
    "graph": "layout notation admg exploration",
    "problem": "levels constraints polytopes regions batches queries search costs feasibility "
    "fingerprints display validation serialization problem",
    "data": "tables data identity outcomes learnability",
    "identification": "evaluation y0_adapter finite_field verification parameters "
    "linearity results truncated_factorization formulas sampling_plans",
    "mechanisms": "interfaces simulation linear gp custom automatic serialization",
    "kernels": "jacobian exact monte_carlo comparison couplings",
    "surrogates": "interface weights told residual evidence kept_rows weighted_response coupled "
    "uncoupled effect_moments effect_tables doubts gp_regression independent plain",
    "optimization": "sequential_tests predicted_outcomes surprise precheck interface confidence "
    "improvement lookahead acquisition ascent zooming climbing candidates search widening settings "
    "ledger state beginnings contradictions observing experiments run replay rounds loop regret",
    "campaign": "reasons suggestions told asking_back unexpected_rows learning stopping asking "
    "answers storage display study",
    "experiments": "published own_code serialized_calls worker_environment cluster workers units "
    "store execution tables result_files comparison sweeping benchmarks transfers "
    "theory_checks reproduction",
}
DEPTH = {room: depth for depth, layer in enumerate(LAYERS) for room in layer.split()}
DOORS = {
    "y0": {"identification"},
    "networkx": {"graph", "identification"},
    "numpyro": {"mechanisms", "models", "inference"},
    "numpyro.infer": {"inference"},
    "arviz_base": {"inference"},
    "arviz_stats": {"inference", "diagnostics"},
    "arviz_plots": {"plots"},
    "matplotlib": {"plots"},
    "sqlalchemy": {"campaign"},
    "dask": {"experiments"},
    "distributed": {"experiments"},
    "cloudpickle": {"experiments"},
    "typer": {"cli"},
    "rich": {"cli"},
}
FILES = sorted(
    [*PACKAGE.glob("*.py"), *(p for d in PACKAGE.iterdir() if d.is_dir() for p in d.rglob("*.py"))]
)


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path, types_too=True):
    """Full dotted names, also inside functions; those for type checkers only on request."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if not types_too and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_rooms(path):
    return {name.split(".")[1] for name in imported(path) if name.startswith("causal_bo_ppl.")}


def test_every_file_has_a_place_in_the_pipeline():
    assert len(FILES) > 25
    assert {room(path) for path in FILES} - {"__init__", "testing"} <= set(DEPTH)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_nothing_to_its_right(path):
    here = room(path)
    if here in ("__init__", "testing"):
        return
    uphill = {
        name for name in our_rooms(path) - {here} if DEPTH.get(name, len(LAYERS)) >= DEPTH[here]
    }
    assert not uphill, f"{here} reaches up the pipeline: {sorted(uphill)}"


@pytest.mark.parametrize("name", INSIDE)
def test_modules_of_a_room_import_only_what_stands_before_them(name):
    order = INSIDE[name].split()
    for path in sorted((PACKAGE / name).rglob("*.py")):
        here = path.relative_to(PACKAGE / name).parts[0].removesuffix(".py")
        if path == PACKAGE / name / "__init__.py":
            continue
        assert here in order, f"{name}/{here} has no place in its room"
        parts = [each.split(".") for each in imported(path, types_too=False)]
        used = {
            each[2] for each in parts if each[:2] == ["causal_bo_ppl", name] and each[2] in order
        }
        later = {each for each in used - {here} if order.index(each) >= order.index(here)}
        assert not later, f"{name}/{here} reaches up its room: {sorted(later)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependency_is_used_behind_its_door_only(path):
    for name in imported(path):
        for library, doors in DOORS.items():
            if name == library or name.startswith(f"{library}."):
                assert room(path) in doors, (
                    f"{name} is used in {room(path)}, its doors are {sorted(doors)}"
                )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_is_short_and_says_what_it_is_for(path):
    assert len(path.read_text().splitlines()) <= 420
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_architecture_test_notices_a_wrong_import(tmp_path, monkeypatch):
    (tmp_path / "graph.py").write_text(
        "def f():\n    from causal_bo_ppl.problem import Problem\n    import matplotlib.pyplot\n"
    )
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    with pytest.raises(AssertionError, match="graph reaches up the pipeline: \\['problem'\\]"):
        test_module_imports_nothing_to_its_right(tmp_path / "graph.py")
    with pytest.raises(AssertionError, match="matplotlib.pyplot is used in graph"):
        test_dependency_is_used_behind_its_door_only(tmp_path / "graph.py")


def test_no_module_bears_the_name_of_an_exported_function():
    exported = {name for name in cb.__all__ if not isinstance(getattr(cb, name), type(cb))}
    assert not exported & {
        part for path in FILES for part in path.relative_to(PACKAGE).with_suffix("").parts
    }
    assert not {"utils", "helpers", "common", "misc"} & {path.stem for path in FILES}


def test_lazy_names_are_those_that_type_checkers_see():
    seen = re.findall(r"import \w+ as (\w+)", (PACKAGE / "__init__.py").read_text())
    assert sorted(seen) == cb.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cb.nonsense  # noqa: B018


def test_every_package_is_listed_for_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("causal_bo_ppl", *p.relative_to(PACKAGE).parts[:-1]))
        for p in FILES
        if p.name == "__init__.py"
    }
    assert set(listed) == found
    assert (PACKAGE / "models").is_symlink() and not (PACKAGE / "models").readlink().is_absolute()


def test_no_code_path_runs_or_unpickles_what_it_reads():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, path
        assert not {name.split(".")[0] for name in imported(path)} & {
            "pickle",
            "dill",
            "joblib",
            "shelve",
        }, path
        assert "allow_pickle" not in path.read_text(), path


def test_repository_names_no_registry_and_no_machine_path():
    kept = [
        ROOT / name
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md")
    ]
    for path in [*kept, *FILES]:
        assert not re.search(r"/(home|root|tmp)/|pypi\.org|--index-url", path.read_text()), path
