"""The packages, their order, and who may import heavy dependencies, read from the imports."""

import ast
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from helpers.import_graph import (
    SMALL,
    code_lines,
    cycles,
    import_graph,
    imported_names,
    longest_chain,
    module_files,
    single_importer,
)

import causal_bo_ppl as cb

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "causal_bo_ppl"
LAYERS = [
    "errors",
    "inputs checks linalg serialization",
    "batching",
    "graph",
    "problem",
    "data",
    "identification",
    "mechanisms",
    "priors",
    "systems",
    "models",
    "inference",
    "responses",
    "kernels",
    "effect_estimates",
    "diagnostics",
    "theory surrogates",
    "optimization",
    "acquisition",
    "validation",
    "plots",
    "reports",
    "experiments",
    "cli",
]
DEPTH = {package: depth for depth, layer in enumerate(LAYERS) for package in layer.split()}
USERS = {  # the packages that may import a dependency
    "y0": {"identification"},
    "networkx": {"graph", "identification"},
    "numpyro": {"mechanisms", "systems", "models", "inference"},
    "numpyro.infer": {"inference"},
    "arviz_base": {"inference"},
    "arviz_stats": {"mechanisms", "inference", "diagnostics"},
    "arviz_plots": {"plots"},
    "matplotlib": {"plots"},
    "dask": {"experiments"},
    "distributed": {"experiments"},
    "typer": {"cli"},
    "rich": {"cli"},
    "jinja2": {"reports"},
}
MOST_MODULES, MOST_CODE_LINES = 146, 34_950
MOST_FILES_OF_A_STEP, MOST_FILES_OF_A_RUN = 20, 40
MOST_LINES_OF_THE_ENGINE = 6_725  # in `optimization` and `surrogates`
MOST_SINGLE_IMPORTERS, LONGEST_CHAIN = 17, 34
# What a problem identifies lies on it, `problem.identification`, found by `cb.identify` when read.
READ_LATER = {"problem/problem.py": {"identification", "identify"}}
PUBLIC_INTERFACES: set[str] = set()
FILES = sorted(
    [*PACKAGE.glob("*.py"), *(p for d in PACKAGE.iterdir() if d.is_dir() for p in d.rglob("*.py"))]
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def package_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_packages(path):
    return {
        name.split(".")[1] for name in imported_names(path) if name.startswith("causal_bo_ppl.")
    }


def test_every_package_has_a_position_in_the_pipeline():
    assert len(FILES) > 25
    assert {package_of(path) for path in FILES} - {"__init__", "testing"} <= set(DEPTH)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_nothing_to_its_right(path):
    here = package_of(path)
    if here in ("__init__", "testing"):
        return
    allowed = READ_LATER.get(str(path.relative_to(PACKAGE)), set())
    uphill = {
        name
        for name in imported_packages(path) - {here} - allowed
        if DEPTH.get(name, len(LAYERS)) >= DEPTH[here]
    }
    assert not uphill, f"{here} reaches up the pipeline: {sorted(uphill)}"


def test_no_modules_import_each_other_in_a_circle():
    assert not cycles(import_graph())


def test_a_circle_of_imports_inside_a_package_is_noticed(tmp_path):
    package = tmp_path / "causal_bo_ppl"
    package.mkdir()
    (package / "one.py").write_text("def f():\n    from causal_bo_ppl.two import g\n")
    (package / "two.py").write_text("from causal_bo_ppl.one import f\n")
    found = cycles(import_graph(package))
    assert found == [["causal_bo_ppl.one", "causal_bo_ppl.two"]]


def test_small_modules_with_a_single_importer_are_public_interfaces():
    graph, files = import_graph(), module_files()
    small = {
        name for name in single_importer(graph) if len(files[name].read_text().splitlines()) < SMALL
    }
    assert small <= PUBLIC_INTERFACES, f"merge them into their importers: {sorted(small)}"


def test_the_package_stays_as_small_as_it_is():
    graph = import_graph()
    assert len(module_files()) <= MOST_MODULES
    assert sum(map(code_lines, module_files().values())) <= MOST_CODE_LINES
    assert len(single_importer(graph)) <= MOST_SINGLE_IMPORTERS
    assert len(longest_chain(graph)) <= LONGEST_CHAIN


def test_a_class_name_exists_once():
    names = Counter(
        node.name
        for path in module_files().values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


def test_a_constant_of_one_word_exists_once():
    """A limit is named for what it limits; `DRAWS` in two modules means two things."""
    names = Counter(
        target.id
        for path in module_files().values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and re.fullmatch("[A-Z]+", target.id)
    )
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependency_is_imported_by_its_packages_only(path):
    for name in imported_names(path):
        for library, users in USERS.items():
            if name == library or name.startswith(f"{library}."):
                assert package_of(path) in users, (
                    f"{name} is used in {package_of(path)}, not in one of {sorted(users)}"
                )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_has_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_architecture_test_notices_a_wrong_import(tmp_path, monkeypatch):
    (tmp_path / "graph.py").write_text(
        "def f():\n    from causal_bo_ppl.problem import Problem\n    import matplotlib.pyplot\n"
    )
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    with pytest.raises(AssertionError, match="graph reaches up the pipeline: \\['problem'\\]"):
        test_module_imports_nothing_to_its_right(tmp_path / "graph.py")
    with pytest.raises(AssertionError, match="matplotlib.pyplot is used in graph"):
        test_dependency_is_imported_by_its_packages_only(tmp_path / "graph.py")


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


def test_five_rounds_check_few_names_and_interventions(monkeypatch):
    """Input is checked where it enters; what is inside trusts it."""
    calls, system = Counter(), cb.models.load("chain")

    def count(kind):
        check = kind.require

        def counted(self, *given, **options):
            calls[kind] += 1
            return check(self, *given, **options)

        monkeypatch.setattr(kind, "require", counted)

    count(cb.CausalGraph)
    count(cb.Problem)
    cb.optimize(system, rounds=5, key=0, progress=False)
    assert calls[cb.CausalGraph] <= 10
    assert calls[cb.Problem] <= 10


def executed(work):
    """Return what some work returns, and the files of the package whose functions it ran."""
    ran = set()
    sys.setprofile(lambda frame, event, _: ran.add(frame.f_code))
    try:
        found = work()
    finally:
        sys.setprofile(None)
    files = {each.co_filename for each in ran if each.co_name != "<module>"}
    ours = {path for path in files if path.startswith(str(PACKAGE))}
    return found, {path for path in ours if "/models/" not in path}  # the system's own file apart


def test_few_files_are_run_by_asking_observing_and_optimizing():
    """What a person must read to follow a step: ideas that belong together share a file."""
    system = cb.models.load("chain")
    cb.optimize(system, rounds=1, observations=50, key=0, progress=False)  # imports what is lazy
    study = cb.Study(system.problem, system.observe(50, 0), key=0)
    for outcome in (-6.1, -6.3):
        suggestion, asked = executed(study.ask)
        study, observed = executed(lambda: study.tell(suggestion, outcome))  # noqa: B023
        assert str(PACKAGE / "optimization" / "study.py") in asked & observed
        assert len(asked) <= MOST_FILES_OF_A_STEP, sorted(asked)
        assert len(observed) <= MOST_FILES_OF_A_STEP, sorted(observed)
        assert not {path for path in asked | observed if "/identification/" in path}
    options = {"rounds": 5, "observations": 50, "key": 0, "progress": False}
    _, ran = executed(lambda: cb.optimize(system, **options))
    assert len(ran) <= MOST_FILES_OF_A_RUN, sorted(ran)


def test_the_engine_stays_as_short_as_it_is():
    """Comments and docstrings count: all of it is read."""
    files = [path for path in FILES if package_of(path) in ("optimization", "surrogates")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES_OF_THE_ENGINE


def internal_imports(path):
    """Return the modules of the package that a test imports, other than by public names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name.startswith("causal_bo_ppl.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "causal_bo_ppl":
            found |= {each.name for each in node.names} - set(cb.__all__)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("causal_bo_ppl."):
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_tests_import_public_names_or_say_why_not(path):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    says_why = re.search(r"^Internals: \w[^.]+", docstring, re.MULTILINE) is not None
    assert says_why == bool(internal_imports(path)), (
        'a sentence "Internals: ..." says why a test does not go through public names, '
        f"and there is none without reason; imported: {sorted(internal_imports(path))}"
    )


def test_imports_of_internals_are_noticed_in_a_test(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(
        "import causal_bo_ppl as cb\nfrom causal_bo_ppl import theory, linalg\n"
        "def test():\n    from causal_bo_ppl.data import Data\n"
        "    import causal_bo_ppl.graph.admg\n"
    )
    assert internal_imports(path) == {
        "linalg",
        "causal_bo_ppl.data",
        "causal_bo_ppl.graph.admg",
    }


def test_no_code_path_runs_or_unpickles_what_it_reads():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, path
        assert not {name.split(".")[0] for name in imported_names(path)} & {
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
