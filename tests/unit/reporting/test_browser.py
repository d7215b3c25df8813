"""The page in a real browser: nothing sticks out of a narrow window, in light and dark.

Skipped where no Chromium is installed. Set FUZZGRAPH_SCREENSHOTS to a folder to keep the pictures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fuzzgraph.reporting.html import Material, html
from fuzzgraph.reporting.trend import trend
from tests.unit.reporting.runs import overrun, reported, summary

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
]
FRAME = """<body style="margin:0">
<iframe src="page.html" style="width:{width}px;height:4000px;border:0"></iframe>
<p id="told"></p>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const count = (what) => page.querySelectorAll(what).length;
  document.querySelector("#told").textContent = `wide ${{page.documentElement.scrollWidth}} ` +
    `drawn ${{count("svg.draw")}} copy ${{count(".copy button")}}`;
}};
</script></body>"""

pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium is installed here")


def browse(folder: Path, *flags: str) -> str:
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [BROWSER, *FLAGS, profile, *flags, (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1060, "light")])
def test_the_page_fits_its_window_and_is_drawn(tmp_path: Path, width: int, scheme: str) -> None:
    run = summary(reported(), reported(overrun("backend.cuda_graph_kv_indices_of_a_long_name")))
    material = Material(
        trend=trend(run, [summary(started="2026-01-01T01:00:00+00:00")]),
        scripts={run.findings[0].id: {"script": "print('a line as long as they come')  #" * 9}},
    )
    (tmp_path / "page.html").write_text(html(run, material), encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    scheme_flag = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    told = browse(tmp_path, scheme_flag, "--virtual-time-budget=3000", "--dump-dom")
    assert f"wide {width} drawn 5 copy 5" in told
    kept = Path(os.environ.get("FUZZGRAPH_SCREENSHOTS", tmp_path))
    picture = kept / f"report-{width}-{scheme}.png"
    browse(
        tmp_path, scheme_flag, f"--window-size={max(width, 500)},2600", f"--screenshot={picture}"
    )
    assert picture.stat().st_size > 20_000
