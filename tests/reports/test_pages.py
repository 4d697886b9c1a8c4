"""Pages of every kind: one file, nothing external, hostile names as text, the same bytes again.

Internals: a picture is made to fail.
"""

import base64
import re
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import jax
import numpy as np
import pandas as pd
import pytest
from validation.test_validation import CHAIN, chain_frame

import causal_bo_ppl as cb
from causal_bo_ppl.errors import ArgumentError, StoreError
from causal_bo_ppl.reports import pages

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"


class Page(HTMLParser):
    """All elements of a page with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.words, self.opened = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def check(text):
    """Check what every page must keep, and return it."""
    assert text.startswith("<!doctype html>") and len(text.encode()) < 3_000_000
    page = Page(text)
    assert not page.opened
    ids = [given["id"] for _, given in page.found if "id" in given]
    assert len(ids) == len(set(ids))
    for tag, given in page.found:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        assert not [name for name in given if name.startswith("on")], given
        for name in ("src", "href", "srcset", "action", "data"):
            if name in given:
                assert given[name].startswith(("#", "data:image/svg+xml;base64,")), given
        if given.get("href", "").startswith("#"):
            assert given["href"][1:] in ids
        if tag == "img":
            assert len(given["alt"]) > 10
            svg = base64.b64decode(given["src"].partition(",")[2], validate=True)
            assert ElementTree.fromstring(svg).tag.endswith("svg")  # noqa: S314
    assert not re.search(r"url\(|@import", re.search(r"<style>(.*?)</style>", text, re.S)[1])
    return page


@pytest.fixture(scope="module")
def found():
    return cb.validate(CHAIN, chain_frame(direct=0.6), key=0, progress=False)


def test_a_validation_has_failed_cards_first_and_folded_passed_ones(found, tmp_path):
    path = cb.report(found, tmp_path / "report.html")
    text = path.read_text()
    page = check(text)
    cards = [given for tag, given in page.found if tag == "details"]
    assert len(cards) == len(found.cards)
    assert "failed" in cards[0]["class"] and "open" in cards[0]
    assert not [each for each in cards if "card passed" in each["class"] and "open" in each]
    assert "Do not use" in text and found["causal graph"].meaning in text.replace("&#39;", "'")
    assert "Recommended: do(Z = 2)" in text and "Problem.from_json" in text
    assert found.subject.data.fingerprint in text
    assert len([1 for tag, _ in page.found if tag == "img"]) == 3
    assert text == cb.report(found, tmp_path / "again.html").read_text()


def test_the_code_on_a_page_computes_the_same_again(found, tmp_path, monkeypatch):
    data = found.subject.data
    again = cb.validate(found.subject, only=["A1", "A2"], key=jax.random.key(7), progress=False)
    text = cb.report(again, tmp_path / "page.html").read_text()
    code = unescape(re.search(r"<code>(.*?)</code>", text, re.S)[1])
    data.to_csv(tmp_path / "observations.csv")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "page", "exec"), names)  # noqa: S102
    same = names["validation"]
    assert same.subject.fingerprint == found.subject.fingerprint
    assert same["causal graph"].figure == found["causal graph"].figure
    assert same["Gaussian error"].figure == again["Gaussian error"].figure
    assert (tmp_path / "report.html").exists()


def test_hostile_names_stay_text(tmp_path):
    x, z, y = np.random.default_rng(0).normal(size=(3, 60))
    name = HOSTILE.replace("/", "")
    graph = cb.CausalGraph.from_edges([(name, "B<script>"), ("B<script>", "Y")])
    problem = cb.Problem(
        graph, "Y", domains={name: (-1, 1), "B<script>": (-1, 1)}, units={"Y": "<b>kg</b>"}
    )
    frame = pd.DataFrame({name: x, "B<script>": x + z, "Y": z + y})
    validation = cb.validate(problem, frame, only=["data", "A1", "robustness"], key=0)
    text = cb.report(validation, tmp_path / "report.html").read_text()
    page = check(text)
    words = "".join(page.words)
    assert HOSTILE in words and "B<script>" in words and "<b>kg</b>" in words
    assert "49" not in re.findall(r"&#34;&#39;&amp;(\S+?)[ &<]", text)


def test_studies_runs_posteriors_and_comparisons_have_pages(found, tmp_path):
    system = cb.models.load("chain")
    run = cb.optimize(system, rounds=2, observations=50, key=0, progress=False)
    kernels = cb.compare_kernels(run.study.posterior, system.problem.vertices(), draws=500, key=0)
    for thing in (found.subject, run, run.study, kernels, cb.validate(run, only=["A6"], key=0)):
        text = cb.report(thing, tmp_path / "page.html").read_text()
        check(text)
        assert "could not be drawn" not in text
    study = cb.report(run.study, tmp_path / "page.html").read_text()
    assert "What was tried and what came back" in study and "Study.from_json" in study


def test_a_picture_that_fails_says_why():
    def draw():
        raise ValueError("no <ink>")

    drawn = pages._figure("A title", "A text", draw)
    assert drawn.address == "" and drawn.fault == "ValueError: no <ink>"


def test_estimands_are_formulas_and_still_escaped():
    shown = pages.formula("sum_{<Z>} [P(Y | X)]")
    assert shown == "<b>&sum;</b><sub>&lt;Z&gt;</sub> [P(Y | X)]"


def test_what_has_no_report_and_where_none_can_be_written_is_refused(found, tmp_path):
    with pytest.raises(ArgumentError, match="a report is of a validation.*got int"):
        cb.report(3, tmp_path / "report.html")
    with pytest.raises(StoreError, match="name a file in a folder that exists"):
        cb.report(found, tmp_path / "nowhere" / "report.html")
    with pytest.raises(StoreError, match="cannot be written"):
        cb.report(found, tmp_path)
