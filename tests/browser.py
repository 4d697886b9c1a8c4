"""Reports as Debian's chromium shows them: screenshots at 1280 and 400 pixels, a PDF, overflow.

    .venv/bin/python tests/browser.py

It needs `chromium` (apt-get install chromium). The reports and pictures lie in results/browser, to
be looked at, and docs/report.png is drawn again. What is wider than the window, outside of what
scrolls by itself, is an error.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd

import causal_bo_ppl as cb

FOLDER = Path("results") / "browser"
WIDTHS, HEIGHT = (1280, 400), 6000
OPTIONS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars
--disable-background-networking --disable-component-update --disable-sync
--allow-file-access-from-files""".split()
FRAME = """<!doctype html><body style="margin:0"><iframe id="page" src="{page}" width="{width}"
height="{height}" style="border:0"></iframe><pre id="found"></pre><script>
document.getElementById("page").onload = () => {{
  const inside = document.getElementById("page").contentDocument;
  const wide = [...inside.querySelectorAll("body *")].filter(each =>
    each.getBoundingClientRect().right > {width} + 1 && !each.closest(".scroll, pre"));
  const images = [...inside.images];
  document.getElementById("found").textContent = JSON.stringify({{
    width: inside.documentElement.scrollWidth,
    wide: wide.slice(0, 5).map(each => each.outerHTML.slice(0, 120)),
    broken: images.filter(each => !each.naturalWidth).length, images: images.length}});
}};
</script>"""


def browse(*arguments: str) -> str:
    """Run chromium with an empty profile, and return what it prints."""
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", *OPTIONS, f"--user-data-dir={profile}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def make_reports() -> list[Path]:
    """Write a report of a table, of a run, and of one with hostile and long names."""
    frame = pd.read_csv(Path(__file__).parents[1] / "docs" / "greenhouse.csv")
    graph = cb.CausalGraph.parse("feed -> nitrogen -> crop; water -> nitrogen; water -> crop")
    ranges = {"feed": (0, 40), "water": (0.5, 2)}
    problem = cb.Problem(graph, "crop", "max", domains=ranges, units={"crop": "kg"})
    run = cb.optimize(cb.models.load("chain"), rounds=4, observations=60, key=0)
    x, z, y = np.random.default_rng(0).normal(size=(3, 80))
    long, odd = "a very long name of a variable, " * 4 + "end", "<script>alert(1)<"
    names = cb.CausalGraph.from_edges([(long, odd), (odd, "Y")], [(long, "Y")])
    hostile = cb.Problem(names, "Y", domains={long: (-1, 1), odd: (-1, 1)})
    table = pd.DataFrame({long: x, odd: x + z, "Y": z + y + x})
    given = {
        "greenhouse": cb.validate(problem, frame, key=0),
        "run": cb.validate(run, key=0),
        "hostile": cb.validate(hostile, table, key=0),
    }
    return [cb.report(each, FOLDER / f"{name}.html").resolve() for name, each in given.items()]


def look(page: Path, width: int) -> dict[str, object]:
    """Take a screenshot of a page at a width, and return what is wrong with it."""
    frame = page.with_name(f"{page.stem}-{width}-frame.html")
    frame.write_text(FRAME.format(page=page.name, width=width, height=HEIGHT))
    address, picture = f"file://{frame}", page.with_name(f"{page.stem}-{width}.png")
    size = f"--window-size={max(width, 500)},{HEIGHT}"
    shown = browse(size, "--virtual-time-budget=5000", "--dump-dom", address)
    browse(size, f"--screenshot={picture}", address)
    frame.unlink()
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', shown, re.S)[1]))


def main() -> None:
    """Look at all reports at all widths; end with an error if one overflows."""
    if shutil.which("chromium") is None:
        sys.exit("chromium is not installed; apt-get install chromium")
    FOLDER.mkdir(parents=True, exist_ok=True)
    faults, reports = [], make_reports()
    picture = Path(__file__).parents[1] / "docs" / "report.png"  # of the README
    browse("--window-size=1000,860", f"--screenshot={picture}", f"file://{reports[0]}")
    for page in reports:
        for width in WIDTHS:
            found = look(page, width)
            sys.stdout.write(f"{page.name} at {width}: {found}\n")
            if found["wide"] or found["broken"] or found["width"] > width:
                faults.append(f"{page.name} at {width}")
        browse(f"--print-to-pdf={page.with_suffix('.pdf')}", f"file://{page}")
        sys.stdout.write(f"{page.with_suffix('.pdf')}\n")
    sys.exit(f"these overflow, or lack pictures: {', '.join(faults)}" if faults else 0)


if __name__ == "__main__":
    main()
