"""Problems as TOML files that people edit."""

import tomllib

import pytest
from helpers.constrained_problems import random_polytope
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import causal_bo_ppl as cb

TEXT = """\
target = "crop"
objective = "max"
data = { file = "rows.csv", separator = ";", decimal = ",", missing = "drop" }
latent = ["soil"]
graph = '''
feed -> nitrogen -> crop   # one chain
water -> nitrogen
soil -> feed; soil -> crop
'''
key = 7

[variables.feed]
domain = [0, 40]
unit = "mL per day"
cost = 2

[variables.water]
levels = [0.5, 1, 2]
column = "Water (L)"

[variables.crop]
unit = "kg"

[[constraints]]
coefficients = { feed = 1, water = 10 }
upper = 50

[[known]]
cause = "water"
effect = "nitrogen"
coefficient = -2.5

[settings]
mechanisms = "gp"
"""


def read(folder, text):
    (folder / "problem.toml").write_text(text, encoding="utf-8")
    return cb.Problem.read(folder / "problem.toml")


def same(one, other):
    return (
        one == other
        and one.sets_rule == other.sets_rule
        and (one.units, one.known, one.known_effects)
        == (other.units, other.known, other.known_effects)
        and (one.levels, one.constraints) == (other.levels, other.constraints)
    )


def test_a_file_says_all_that_a_problem_takes(tmp_path):
    graph = cb.CausalGraph.parse("feed -> nitrogen -> crop; water -> nitrogen; feed <-> crop")
    expected = cb.Problem(
        graph,
        "crop",
        "max",
        domains={"feed": (0, 40), "water": cb.Levels([0.5, 1, 2])},
        units={"feed": "mL per day", "crop": "kg"},
        costs={"feed": 2, "water": 1},
        known={("water", "nitrogen"): -2.5},
        constraints=[cb.LinearConstraint({"feed": 1, "water": 10}, upper=50)],
    )
    assert same(read(tmp_path, TEXT), expected)


def test_the_graph_may_be_in_a_file_of_another_tool(tmp_path):
    (tmp_path / "model.txt").write_text("dag { feed -> crop; feed <-> crop }")
    text = 'target = "crop"\ngraph_file = "model.txt"\n[variables.feed]\ndomain = [0, 1]\n'
    assert read(tmp_path, text).graph == cb.CausalGraph.parse("feed -> crop; feed <-> crop")
    with pytest.raises(
        cb.errors.GraphError, match=r"line 2, graph_file: .*none.txt cannot be read"
    ):
        read(tmp_path, text.replace("model", "none"))


@pytest.mark.parametrize(
    "options",
    [
        {"sets": "mis"},
        {"sets": "pomis"},
        {"sets": 2},
        {"sets": ["Z", ("X", "Z")]},
        {"objective": "max", "identifiable_only": True},
        {"known": {("X", "Z"): 0.1 + 0.2, "tau[Z]": -1e-7}},
        {"units": {"X": "mg", "Y": 'µ\u2028 "quoted" \\ \x7f\n[x] = 3'}},
        {"domains": {"X": (-0.0, 0.1 + 0.2), "Z": (-1e49 / 3, 1e-49 / 3)}},
        {"domains": {"X": cb.Levels([1 / 3, 2, 7e5]), "Z": (0, 1)}},
        {"costs": {"X": 0.1, "Z": 1 / 3}},
        {"costs": cb.problem.MagnitudeCost(1 / 3)},
    ],
)
def test_every_part_of_a_problem_is_given_back_by_its_file(make_problem, options, tmp_path):
    problem = make_problem(**options)
    assert same(read(tmp_path, problem.to_toml()), problem)


@pytest.mark.parametrize("name", cb.models.names())
def test_the_problem_of_every_model_is_given_back_by_its_file(name, tmp_path):
    problem = cb.models.load(name).problem
    try:
        text = problem.to_toml()
    except cb.errors.DomainError as error:
        assert "cannot hold a cost function" in str(error)
        return
    assert same(read(tmp_path, text), problem)


@pytest.mark.parametrize("seed", range(10))
def test_constrained_problems_are_given_back_by_their_files(seed, tmp_path):
    problem = random_polytope(seed)
    problem = problem[0] if isinstance(problem, tuple) else problem
    assert same(read(tmp_path, problem.to_toml()), problem)


@pytest.mark.parametrize(
    "name", ["a.b", "body mass", "=x", 'the "x"', "β", "a;b", "a\\b", "[x]", "'"]
)
def test_odd_names_are_given_back(name, tmp_path):
    graph = cb.CausalGraph.from_edges([(name, "Y"), ("X", "Y")], [(name, "X")])
    limit = [cb.LinearConstraint({name: 1.0, "X": -1.5}, lower=-3, when="all")]
    options = {"known": {(name, "Y"): 2.0}, "units": {name: "m"}, "constraints": limit}
    problem = cb.Problem(graph, "Y", domains={name: (0, 1), "X": (0, 2)}, **options)
    assert same(read(tmp_path, problem.to_toml()), problem)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('target = "crop"', 'target = "corp"', "problem.toml, line 1, target: unknown target"),
        ('target = "crop"', 'target = ""', "line 1, target: name the variable to improve, one of"),
        ('target = "crop"', "target = 3", "line 1, target: it must be the name of a variable"),
        ('objective = "max"', 'objective = "most"', 'line 2, objective: it must be "min" or "max"'),
        ('objective = "max"', 'goal = "max"', "line 2, goal: unknown key 'goal'"),
        ("feed -> nitrogen", "feed => nitrogen", "line 5, graph: cannot read 'feed => nitrogen'"),
        ('["soil"]', '["soul"]', "line 4, latent: unknown variable 'soul'; did you mean 'soil'"),
        ("[0, 40]", "[40, 0]", r"line 13, variables.feed.domain: .* is \[40.0, 0.0\]"),
        ("[0, 40]", '["0", 40]', "line 13, variables.feed.domain: .* must be a pair of numbers"),
        ("[0, 40]", "3", "line 13, variables.feed.domain: it must be a list of numbers, got 3"),
        ("[0.5, 1, 2]", "[1, 1]", "line 18, variables.water.levels: the level 1 is repeated"),
        ("cost = 2", "cost = -2", "line 15, variables.feed.cost: the cost of 'feed' is -2"),
        ("cost = 2", "costs = 2", "line 15, variables.feed.costs: unknown key 'costs'"),
        ('unit = "kg"', "domain = [0, 1]", "line 22, .*target 'crop' is among"),
        ("[variables.crop]", "[variables.corp]", "line 21, variables.corp: unknown variable"),
        ("water = 10 }", "nitrogen = 10 }", "line 24, constraints: the constraint .*'nitrogen'"),
        ("upper = 50", "uper = 50", "line 26, constraints.uper: unknown key 'uper'"),
        ('effect = "nitrogen"', 'effect = "feed"', "problem.toml: known holds a coefficient for"),
        ("coefficient = -2.5", "coeficient = -2.5", "line 28, known: it must have cause, effect"),
        ('missing = "drop"', 'missing = "guess"', 'line 3, data.missing: it must be "refuse"'),
        ('separator = ";"', 'separator = "; "', "line 3, data.separator: it must be one character"),
        ("key = 7", "key = -1", "line 10, key: key must be a whole number"),
        ("key = 7", "key = 7\nsets = [3]", 'line 11, sets: it must be "mis", "pomis"'),
        ("key = 7", "key = 7\nsets = true", 'line 11, sets: it must be "mis", "pomis"'),
        ("key = 7", 'key = 7\nsets = [["corp"]]', "problem.toml: .*corp"),
        ("key = 7", 'key = 7\ncosts = "magnitude"', "line 11, costs: .* without a cost of"),
        ("key = 7", "key = = 7", "is not a TOML file: .*line 10"),
    ],
)  # fmt: skip
def test_an_error_names_the_key_and_its_line(old, new, message, tmp_path):
    assert old in TEXT
    with pytest.raises(cb.errors.CausalBOError, match=message):
        read(tmp_path, TEXT.replace(old, new, 1))


def test_functions_are_not_written_and_a_missing_file_is_our_error(make_problem, tmp_path):
    for options in (
        {"costs": lambda q: 1 + q.value[:, 0] ** 2},
        {"feasible": lambda q: q.value[:, 0] < 9},
    ):
        with pytest.raises(
            cb.errors.DomainError, match="cannot hold a cost function or a function"
        ):
            make_problem(**options).to_toml()
    with pytest.raises(cb.errors.DomainError, match=r"none.toml cannot be read: No such file"):
        cb.Problem.read(tmp_path / "none.toml")


VALUES = ['""', "3", "-1", "1e400", "nan", "true", "[]", "[[]]", "{}", '["crop"]', "2020-01-01",
          '[["feed"]]', "{ feed = 1 }", "'x'", '"feed -> crop"', "[0, nan]", "[1, 2, 3]",
          "{ a.b = 1 }"]  # fmt: skip
LINES = [
    number for number, line in enumerate(TEXT.splitlines()) if " = " in line and "'''" not in line
]


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.sampled_from(LINES), st.sampled_from(VALUES), st.booleans())
def test_any_value_gives_a_problem_or_our_error(tmp_path, number, value, is_removed):
    lines = TEXT.splitlines()
    lines[number] = "" if is_removed else f"{lines[number].split(' = ')[0]} = {value}"
    tomllib.loads("\n".join(lines))
    try:
        read(tmp_path, "\n".join(lines))
    except cb.errors.CausalBOError as error:
        assert str(error).startswith("problem.toml")
