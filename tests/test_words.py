"""The package speaks the words of the field: those of its former private language stay away."""

import io
import json
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = {
    "bent bend bends bending": "nonlinear",
    "straight straighter": "linear",
    "doubt doubts doubted doubting doubtful": "uncertainty, posterior sd",
    "teach teaches teaching taught lesson lessons": "inform, learn from; variance reduction",
    "imagine imagines imagined imagining": "fantasize",
    "recentre recentres recentred recentring": "relinearize",
    "foreign foreigner": "out of domain",
    "tenant tenants": "plugin",
    "dear dearer dearest": "expensive",
    "belief beliefs believe believed believes believing": "posterior, predictive, model",
    "worth": "acquisition value",
    "told": "observed, recorded",
    "aloud": "warn, report",
}
INSTEAD = {word: instead for words, instead in WORDS.items() for word in words.split()}
PATTERN = re.compile(rf"(?<![a-z])({'|'.join(INSTEAD)})(?![a-z])", re.IGNORECASE)
ALLOWED = re.compile(r"worth (?:reading|knowing)|test_words", re.IGNORECASE)
SKIPPED = {"test_words.py", "recorded.json", "CHANGELOG.md"}
FILES = sorted(
    path
    for folder in ("causal_bo_ppl", "models", "tests", "docs", "notebooks")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".ipynb") and path.name not in SKIPPED
)
FILES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]


def texts(path):
    """Yield the texts of a file; of a notebook, its cells with their outputs in words."""
    if path.suffix != ".ipynb":
        yield path.read_text()
        return
    for cell in json.loads(path.read_text())["cells"]:
        yield "".join(cell["source"])
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            yield "".join(output.get("text", [])) + "".join(shown.get("text/plain", []))


def found_words(text):
    """Return the words of the former language in a text; parts of snake_case names count."""
    parts = re.sub(r"([a-z])([A-Z])", r"\1 \2", ALLOWED.sub("", text)).replace("_", " ")
    return {match.lower() for match in PATTERN.findall(parts)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_uses_the_words_of_the_field(path):
    found = {word for text in texts(path) for word in found_words(text)}
    assert not found, {word: f"write: {INSTEAD[word]}" for word in sorted(found)}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix == ".py"], ids=lambda path: path.name
)
def test_row_is_said_of_tables_only(path):
    """Data hold observations; a parameter, attribute or variable of a table may be a row."""
    names = {
        token.string
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME
    }
    assert not names & {"takes_rows", "with_rows", "n_rows", "rows_of_sets", "learned_rows"}


def test_a_word_is_found_in_names_and_texts():
    assert found_words("is_bent, BentCurve and a Doubt; unbent") == {"bent", "doubt"}
    assert not found_words("worth reading; dearth; nonlinear")
