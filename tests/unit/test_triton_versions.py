"""The tested versions of Triton are one list: docs, table, extra and pin agree with it."""

from __future__ import annotations

import re
from pathlib import Path

from fuzzgraph.lanes.versions import TESTED_TRITON, text_of_versions

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lanes.md"


def test_page_table_and_extra_name_the_tested_versions() -> None:
    assert f"Triton {text_of_versions()}, each run" in PAGE.read_text()
    rows = re.findall(r"^\| (\d[\d.]+) \|", (ROOT / "reports" / "triton.md").read_text(), re.M)
    assert list(dict.fromkeys(rows)) == list(TESTED_TRITON)
    oldest, newest = TESTED_TRITON[0].split("."), TESTED_TRITON[-1].split(".")
    bounds = f">={'.'.join(oldest[:2])},<{newest[0]}.{int(newest[1]) + 1}"
    assert f'"triton{bounds};' in (ROOT / "pyproject.toml").read_text()


def test_make_setup_installs_a_tested_version() -> None:
    pinned = re.search(r"^triton==(.+)$", (ROOT / "constraints" / "dev.txt").read_text(), re.M)
    assert pinned and pinned[1] in TESTED_TRITON
