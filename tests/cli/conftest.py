"""A folder with a table and a graph, and the command line called in it.

Internals: the command line is called in this process.
"""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from causal_bo_ppl.cli import app

ROOT = Path(__file__).parents[2]
GRAPH = """dag {
crop [outcome]
feed [exposure]
water [exposure]
feed -> nitrogen -> crop
water -> nitrogen
water -> crop
}
"""


class Shell:
    """Calls `causal-bo` in one folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *arguments, code=0):
        environment = {"COLUMNS": "200", "NO_COLOR": "1"}
        result = CliRunner(env=environment).invoke(app, [str(each) for each in arguments])
        assert result.exit_code == code, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments, code=0):
        answer = json.loads(self(*arguments, "--json", code=code).stdout)
        assert answer.pop("format_version") == 1
        return answer


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "docs" / "greenhouse.csv", tmp_path)
    (tmp_path / "graph.txt").write_text(GRAPH)
    return Shell(tmp_path)


@pytest.fixture
def greenhouse(shell):
    """The same folder with a problem file."""
    shell("init", "greenhouse.csv", "--graph", "graph.txt", "--objective", "max")
    return shell
