"""A study continues in another process, and refuses other data and a changed text."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.study_cases import reports

import causal_bo_ppl as cb

ROOT = Path(__file__).parents[2]


@pytest.mark.heavy
def test_json_in_a_fresh_process_gives_the_same_suggestions(chain, chain_data, tmp_path):
    settings = cb.Settings(acquisition="thompson", batch=2, budget=20.0)
    study = cb.Study(chain.problem, chain_data, settings, key=3)
    for arguments, options in reports(chain):
        study = study.tell(*arguments, **options)
    study = study.tell(study.ask(), -6.0)
    (tmp_path / "study.json").write_text(study.to_json())
    chain_data.to_csv(tmp_path / "rows.csv")
    code = (
        "import json, pathlib, sys; import causal_bo_ppl as cb; import pandas as pd\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "text = (folder / 'study.json').read_text()\n"
        "from causal_bo_ppl.data.data import EXACT\n"
        "rows = pd.read_csv(folder / 'rows.csv', **EXACT)\n"
        "study = cb.Study.from_json(text, rows)\n"
        "found = [[s.intervention, s.mean, s.bound, s.number] for s in study.ask(3)]\n"
        "more = [study.spent, study.surprise.p, repr(study.best), study.to_json()]\n"
        "print(json.dumps([found, *more]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)  # noqa: S603
    assert done.returncode == 0, done.stderr
    found, spent, p, best, text = json.loads(done.stdout)
    assert found == [[s.intervention, s.mean, s.bound, s.number] for s in study.ask(3)]
    assert (spent, p, best) == (study.spent, study.surprise.p, repr(study.best))
    assert text == study.to_json()


def test_json_with_other_data_or_a_changed_text_is_refused(chain, chain_data, chain_study):
    updated = chain_study.tell({"X": 1.0}, -1.0)
    text = updated.to_json()
    with pytest.raises(
        cb.errors.DataError, match="other data than those that the study began with"
    ):
        cb.Study.from_json(text, chain.observe(40, 1))
    with pytest.raises(cb.errors.StoreError, match="cut off or changed: its checksum differs"):
        cb.Study.from_json(text.replace("-1.0", "-2.0"), chain_data)
    with pytest.raises(cb.errors.StoreError, match="a study is read from a JSON text"):
        cb.Study.from_json(text[:-5], chain_data)
    with pytest.raises(cb.errors.StoreError, match="not the text of a study"):
        cb.Study.from_json(chain.problem.to_json(), chain_data)
    with pytest.raises(
        cb.errors.StoreError, match="written in format 99 by .*this version reads format 4"
    ):
        cb.Study.from_json(text.replace('"format": 4, "kind"', '"format": 99, "kind"'), chain_data)
    shuffled = chain_data.select(np.arange(40)[::-1])
    assert cb.Study.from_json(text, shuffled).ask().mean == pytest.approx(updated.ask().mean)


def double(queries):
    """Cost twice as much as the number of variables that are set."""
    return 2.0 * np.asarray(queries.mask).sum(axis=1)


def test_functions_are_given_back_by_their_names(chain, chain_data):
    problem = cb.Problem(chain.problem.graph, "Y", domains=chain.problem.domains, costs=double)
    study = cb.Study(problem, chain_data, cb.Settings(inference=cb.Conjugate()), key=0)
    study = study.tell({"X": 1.0}, -1.0)
    again = cb.Study.from_json(study.to_json(), chain_data, functions={"double": double})
    assert again.spent == study.spent == 2.0 and again.fingerprint == study.fingerprint
    with pytest.raises(cb.errors.DomainError, match="double"):
        cb.Study.from_json(study.to_json(), chain_data)
