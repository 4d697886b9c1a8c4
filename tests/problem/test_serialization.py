"""A problem as a JSON text: what it gives back, and what is refused."""

import hashlib
import json
from functools import partial

import numpy as np
import pytest

import causal_bo_ppl as cb

read = cb.Problem.from_json


def squares(queries):
    return 1 + (queries.value**2).sum(axis=1)


def cubes(queries):
    return 1 + np.abs(queries.value**3).sum(axis=1)


def same(one, other):
    """Equal in everything, also in what the fingerprint leaves out."""
    return (
        one == other
        and one.fingerprint == other.fingerprint
        and one.sets == other.sets
        and one.sets_rule == other.sets_rule
        and one.sets_are_explicit == other.sets_are_explicit
        and one.units == other.units
        and one.known == other.known
        and one.domains == other.domains
    )


def sealed(record):
    """A text that was changed together with its checksum."""
    rest = {name: part for name, part in record.items() if name != "checksum"}
    checksum = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return json.dumps(rest | {"checksum": checksum})


@pytest.mark.parametrize("name", cb.models.names())
def test_problem_of_every_model_is_given_back(name):
    problem = cb.models.load(name).problem
    again = read(problem.to_json())
    assert same(again, problem) and again.to_json() == problem.to_json()


@pytest.mark.parametrize(
    "options",
    [
        {"sets": "mis"},
        {"sets": "pomis"},
        {"sets": 2},
        {"sets": np.int64(1)},
        {"sets": ["Z", ("X", "Z")]},
        {"objective": "max", "identifiable_only": True},
        {"known": {("X", "Z"): 0.1 + 0.2, ("Z", "Y"): -1e-7}},
        {"units": {"X": "mg", "Y": 'µ\u2028\ud800 "quoted"'}},
        {"domains": {"X": (-0.0, 0.1 + 0.2), "Z": (-1e49 / 3, 1e-49 / 3)}},
        {"costs": {"X": 1, "Z": 1}},
        {"costs": {"X": 0.1, "Z": 1 / 3}},
        {"costs": cb.problem.MagnitudeCost(1 / 3)},
        {"costs": cb.problem.MagnitudeCost(np.float32(0.1))},
    ],
)
def test_every_part_of_a_problem_is_given_back(make_problem, options):
    problem = make_problem(**options)
    text = problem.to_json()
    assert same(read(text), problem) and read(text).costs == problem.costs
    assert same(read(json.dumps(json.loads(text), indent=2, sort_keys=True)), problem)


def test_text_of_a_problem_after_a_round_trip_through_a_file(make_problem, tmp_path):
    graph = cb.CausalGraph.from_edges([("Größe, a", "日本")], nodes=["alone"])
    problem = cb.Problem(graph, "日本", domains={"Größe, a": (0, 1)})
    (tmp_path / "problem.json").write_text(problem.to_json())
    again = read((tmp_path / "problem.json").read_text())
    assert same(again, problem) and again.graph == graph


def test_reading_searches_no_sets(make_problem, monkeypatch):
    problems = [make_problem(sets=sets) for sets in ("mis", "pomis", 2)]
    texts = [problem.to_json() for problem in problems]

    def search(*_):
        raise AssertionError("sets were searched")

    for name in ("mis", "pomis", "subsets"):
        monkeypatch.setattr(f"causal_bo_ppl.graph.intervention_sets.{name}", search)
    for problem, text in zip(problems, texts, strict=True):
        assert same(read(text), problem)


def test_interventions_outside_the_sets_stay_legal_where_a_rule_gave_them(make_problem):
    both = {"X": 1.0, "Z": 1.0}
    assert len(read(make_problem(sets="mis").to_json()).queries(both)) == 1
    with pytest.raises(cb.errors.DomainError, match="is not a set of this problem"):
        read(make_problem(sets=["X", "Z"]).to_json()).queries(both)


def test_cost_function_is_given_back_by_its_name(make_problem):
    problem = make_problem(costs=squares, sets=2)
    text = problem.to_json()
    assert json.loads(text)["costs"] == {"function": "squares"}
    again = read(text, functions={"squares": squares, "cubes": cubes})
    assert same(again, problem) and again.costs is squares
    with pytest.raises(
        cb.errors.DomainError, match=r"function 'squares'.*functions=.*\(given: none\)"
    ):
        read(text)
    with pytest.raises(cb.errors.DomainError, match=r"function 'squares'.*\(given: cubes\)"):
        read(text, functions={"cubes": cubes})
    with pytest.raises(
        cb.errors.DomainError, match=r"fingerprint .* give as functions\['squares'\] the f"
    ):
        read(text, functions={"squares": cubes})
    with pytest.raises(cb.errors.DomainError, match="cannot be posed: the cost function returned"):
        read(text, functions={"squares": lambda queries: 1.0})
    for functions in ({"squares": 1.0}, [squares], squares):
        with pytest.raises(cb.errors.DomainError, match="functions must be {name: function}, got"):
            read(text, functions=functions)


def test_cost_function_without_a_name_is_not_written(make_problem):
    with pytest.raises(
        cb.errors.DomainError, match="'costs' is a partial without a name.* def name"
    ):
        make_problem(costs=partial(squares)).to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "read from a JSON text, got NoneType"),
        (b"{}", "read from a JSON text, got bytes"),
        ("", "not JSON, or not all of it.*to_json"),
        ("Problem()", "not JSON, or not all of it"),
        ("[" * 100_000, "not JSON, or not all of it"),
        ("9" * 10_000, "not JSON, or not all of it"),
        ("[1, 2]", r"not that of a problem: \[1, 2\]"),
        ("null", "not that of a problem: None"),
        ("{}", "not that of a problem: {}"),
        ('{"format": NaN}', "the number NaN; all numbers must be finite"),
        ('{"format": 1, "format": 1}', "gives 'format' more than once"),
    ],
)
def test_text_that_is_no_problem_is_refused(text, message):
    with pytest.raises(cb.errors.DomainError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"format 2, this version .* reads the format 1; .*\('0.1.0'\)"),
        ({"format": "1"}, "format '1', this version"),
        ({"colour": "red"}, "changed after it was written"),
        ({"domains": []}, "changed after it was written"),
        ({"checksum": 1}, "changed after it was written: its checksum is 1"),
        ({"units": {"X": "kg"}}, "changed after it was written: its checksum is '.*new Problem"),
        ({"sets_given_as": "pomis"}, "changed after it was written"),
        ({"domains": {"X": [-5.0, 5.0], "Z": [-5.0, 21.0]}}, "changed after it was written"),
    ],
)
def test_edited_text_is_refused(make_problem, changes, message):
    text = make_problem(units={"X": "mg"}).to_json()
    with pytest.raises(cb.errors.DomainError, match=message):
        read(json.dumps(json.loads(text) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sets": [["X"]]}, r"fingerprint .* another version \(0.1.0\).* processor"),
        ({"objective": "max"}, "the text has the fingerprint '.*', but the problem read from it"),
        ({"fingerprint": "0"}, "the text has the fingerprint '0'"),
        ({"costs": {"magnitude": 1.0}}, "the text has the fingerprint"),
        ({"target": "W"}, "cannot be posed: unknown target 'W'"),
        ({"directed": [["X", "Z"], ["Z", "X"]]}, "cannot be posed: the graph has a cycle"),
        ({"sets": []}, "cannot be posed: no intervention set is left"),
        ({"sets": [["W"]]}, "cannot be posed: unknown manipulable variable 'W'"),
        ({"nodes": []}, "cannot be posed: the graph is empty"),
        ({"known": [["X", "Y", 1.0]]}, "cannot be posed: known holds a coefficient"),
        ({"nodes": "XZY"}, "cannot be posed: the edge"),
        ({"target": ["Y"]}, "cannot be posed: unknown target"),
        ({"objective": "mix"}, "cannot be posed: objective must be"),
        ({"domains": {"X": [0.0, "1"]}}, "cannot be posed: the domain of 'X' must be a pair"),
        ({"costs": {"code": "1"}}, "cannot be posed: the problem has the function '1'"),
        ({"costs": 1.0}, "cannot be posed"),
        ({"known": [["X", "Z"]]}, "cannot be posed"),
        ({"identifiable_only": 0}, "cannot be posed: identifiable_only must be True or False"),
        ({"levels": {"X": 1.0}}, "cannot be posed: levels must be a list"),
        ({"levels": {"X": [1.0, 1.0]}}, "cannot be posed: the level 1 is repeated"),
        ({"levels": {"X": [-5.0, 0.0, 5.0]}}, "fingerprint"),
        (
            {"constraints": [{"coefficients": {"X": 1.0}}]},
            "cannot be posed: the constraint on X has no bound",
        ),
        ({"feasible": "ring"}, "cannot be posed: the problem has the function 'ring'"),
    ],
)
def test_edited_text_with_its_checksum_is_refused_by_the_fingerprint(
    make_problem, changes, message
):
    record = json.loads(make_problem().to_json())
    with pytest.raises(cb.errors.DomainError, match=message):
        read(sealed(record | changes))
    assert same(read(sealed(record)), make_problem())


def test_text_without_one_of_its_parts_is_refused(make_problem):
    record = json.loads(make_problem().to_json())
    for name in record:
        with pytest.raises(
            cb.errors.DomainError, match="not that of a problem|format None|was changed"
        ):
            read(json.dumps({key: part for key, part in record.items() if key != name}))


def test_number_beyond_all_floats_is_refused(make_problem):
    text = make_problem().to_json()
    with pytest.raises(cb.errors.DomainError, match="was changed after it was written"):
        read(text.replace("20.0", "1e999"))
    with pytest.raises(
        cb.errors.DomainError, match="the number Infinity; all numbers must be finite"
    ):
        read(text.replace("20.0", "Infinity"))


def test_truncated_text_is_refused(make_problem):
    text = make_problem(units={"X": "mg"}).to_json()
    for end in range(len(text)):
        with pytest.raises(cb.errors.DomainError, match="not JSON, or not all of it"):
            read(text[:end])


def test_no_edit_of_one_character_gives_another_problem(make_problem):
    problem = make_problem(
        sets=2, units={"X": "mg"}, known={("X", "Z"): 0.8}, costs={"X": 0.5, "Z": 2.0}
    )
    text, draws = problem.to_json(), np.random.default_rng(0)
    letters = '0123456789.-+eE"[]{},: \\ntrufalsXYZ'
    refused = 0
    for position in range(len(text)):
        letter = letters[draws.integers(len(letters))]
        for edited in (
            text[:position] + text[position + 1 :],
            text[:position] + letter + text[position + 1 :],
            text[:position] + letter + text[position:],
        ):
            try:
                assert same(read(edited), problem), edited
            except cb.errors.DomainError:
                refused += 1
    assert refused > 2.5 * len(text)


def positive(queries):
    return queries.value.sum(axis=1) > -3.0


def negative(queries):
    return queries.value.sum(axis=1) < 3.0


BUDGET = cb.LinearConstraint({"X": 1.0, "Z": 2.0}, upper=1 / 3)
MIXTURE = cb.LinearConstraint({"Z": 1.0, "X": 0.1 + 0.2}, lower=1.0, upper=1.0, when="all")


@pytest.mark.parametrize(
    "options",
    [
        {"domains": {"X": cb.Levels([-0.1, 0.1 + 0.2, 7]), "Z": (-5, 20)}},
        {"constraints": [BUDGET]},
        {"constraints": [BUDGET, MIXTURE], "sets": 2},
        {
            "domains": {"X": (-5, 5), "Z": cb.Levels(range(-3, 9))},
            "constraints": [BUDGET],
            "feasible": positive,
            "costs": squares,
            "sets": 2,
        },
        {"feasible": positive},
    ],
)
def test_what_restricts_the_values_is_given_back(make_problem, options):
    problem = make_problem(**options)
    functions = {"positive": positive, "squares": squares}
    again = read(problem.to_json(), functions=functions)
    assert same(again, problem) and again.levels == problem.levels
    assert again.constraints == problem.constraints
    assert again.feasible_rule is problem.feasible_rule and again.to_json() == problem.to_json()
    assert problem != make_problem(**({"sets": options["sets"]} if "sets" in options else {}))


def test_text_of_a_problem_without_restrictions_has_no_word_of_them(make_problem):
    record = json.loads(make_problem().to_json())
    assert not {"levels", "constraints", "feasible"} & record.keys()
    assert record["fingerprint"] == (
        "2ae2aea32774e8f7baeac82b69cb319779c50688bbcf17b2d42a6975c378d0cb"
    )


def test_fingerprints_of_restricted_problems_differ(make_problem):
    levels = {"X": cb.Levels([-5, 0, 5]), "Z": (-5, 20)}
    problems = [
        make_problem(),
        make_problem(domains=levels),
        make_problem(domains=levels | {"X": cb.Levels([-5, 1, 5])}),
        make_problem(constraints=[BUDGET]),
        make_problem(constraints=[MIXTURE]),
        make_problem(
            constraints=[cb.LinearConstraint({"X": 1.0, "Z": 2.0}, lower=-9, upper=1 / 3)]
        ),
        make_problem(
            constraints=[cb.LinearConstraint(BUDGET.coefficients, upper=1 / 3, when="all")]
        ),
        make_problem(feasible=positive),
        make_problem(feasible=negative),
    ]
    assert len({problem.fingerprint for problem in problems}) == len(problems)
    swapped = cb.LinearConstraint({"Z": 2.0, "X": 1.0}, upper=1 / 3)
    assert make_problem(constraints=[BUDGET, MIXTURE]) == make_problem(
        constraints=[MIXTURE, swapped]
    )


def test_function_for_feasible_is_given_back_by_its_name(make_problem):
    text = make_problem(feasible=positive).to_json()
    with pytest.raises(
        cb.errors.DomainError, match=r"has the function 'positive'.*\(given: none\)"
    ):
        read(text)
    with pytest.raises(
        cb.errors.DomainError, match=r"functions\['positive'\] the function that returns"
    ):
        read(text, functions={"positive": negative})
    with pytest.raises(cb.errors.DomainError, match="'feasible' is a partial without a name"):
        make_problem(feasible=partial(positive)).to_json()

    def one(queries):
        return np.ones(len(queries))

    one.__name__ = "positive"
    with pytest.raises(
        cb.errors.DomainError, match="are both called 'positive'.*give them different names"
    ):
        make_problem(feasible=positive, costs=one).to_json()


def test_restricted_problem_shows_what_restricts_it(make_problem):
    problem = make_problem(
        domains={"X": cb.Levels([-5, 0, 5]), "Z": (-5, 20)}, constraints=[BUDGET], feasible=positive
    )
    assert "X in {-5, 0, 5}; X + 2 Z <= 0.333333333333333; where positive" in repr(problem)
    shown = problem._repr_html_()
    assert "-5, 0, 5" in shown and "X + 2 Z &lt;= 0.33" in shown and "positive(queries)" in shown
    assert problem.variables().loc["X", "levels"] == "-5, 0, 5"
