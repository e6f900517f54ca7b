"""The report in a real browser: everything in it is seen, on a desk and on a phone."""

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.branching.evaluate import evaluate
from pipelines.branching.report import make_report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

# Tells, from inside the page, what a reader gets to see.
PROBE = """<script>addEventListener('load', () => {
  const shown = (q) => [...document.querySelectorAll(q)].filter((e) =>
    e.getClientRects().length && !e.closest('details:not([open])'));
  parent.postMessage(JSON.stringify({
    tables: shown('table').map((t) => t.rows.length),
    pictures: shown('img').map((i) => i.complete && i.naturalWidth),
    cells: shown('td').map((c) => c.textContent),
    page: document.documentElement.scrollWidth, window: innerWidth,
    letters: Math.min(...shown('p, td, dd').map((e) => parseFloat(getComputedStyle(e).fontSize))),
  }), '*');
});</script>"""
# A window of Chromium cannot be as narrow as a phone; a frame in it can.
FRAME = """<!DOCTYPE html><script>addEventListener('message', (event) => {
  document.documentElement.dataset.seen = event.data;
});</script><iframe src="copy.html" style="width: %dpx; height: 900px; border: 0"></iframe>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a real evaluation of two instances."""
    folder = tmp_path_factory.mktemp("browser")
    for k in range(2):
        rng = random.Random(k)
        names = [f"x{j}" for j in range(16)]
        rows = [[rng.randint(10, 60) for _ in names] for _ in range(4)]
        sums = [" + ".join(f"{w} {x}" for w, x in zip(row, names, strict=True)) for row in rows]
        lines = ["Maximize", " + ".join(f"{rng.randint(20, 50)} {x}" for x in names), "Subject To"]
        lines += [f"{total} <= {sum(row) / 3}" for total, row in zip(sums, rows, strict=True)]
        (folder / f"k{k}.lp").write_text("\n".join([*lines, "Binary", *names, "End"]))
    path, rows_ = evaluate(
        instances=[folder],
        policies=["pscost", "relpscost"],
        seeds=1,
        time_limit=60,
        out=folder / "r",
    )
    return make_report(rows_).write(path.parent / "report.html")


def open_in_browser(page: Path, width: int, profile: Path) -> tuple[str, str]:
    """Return the page as the browser has it, and what it says on its console."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage",
         f"--user-data-dir={profile}", f"--window-size={width},900", "--enable-logging=stderr",
         "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "HOME": str(profile)},
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def test_the_page_as_written_loads_without_a_word_on_the_console(
    page: Path, tmp_path: Path
) -> None:
    seen, console = open_in_browser(page, 1200, tmp_path)
    assert console == "" and "Performance profile" in seen


@pytest.mark.parametrize("width", [1200, 390])
def test_tables_and_pictures_are_seen_and_nothing_runs_off_the_side(
    page: Path, width: int, tmp_path: Path
) -> None:
    # The page forbids scripts, so the copy that tells what is seen goes without that rule.
    html = re.sub(r"<meta http-equiv[^>]*>", PROBE, page.read_text())
    (tmp_path / "copy.html").write_text(html)
    (tmp_path / "frame.html").write_text(FRAME % width)
    dom, console = open_in_browser(tmp_path / "frame.html", 1400, tmp_path / "profile")
    assert console == ""
    told = re.search(r'data-seen="([^"]*)"', dom)
    assert told is not None
    seen = json.loads(told[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert seen["tables"] == [3, 3, 4]  # a header and a row a policy, or a measure
    assert len(seen["pictures"]) == 6 and all(w and w > 100 for w in seen["pictures"])
    assert any("2 / 2" in cell for cell in seen["cells"])
    assert seen["window"] == width
    assert seen["page"] <= seen["window"] and seen["letters"] >= 12
