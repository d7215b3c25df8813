"""What docs/lanes.md shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lanes.md"


def test_the_lines_to_try_print_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert code and shown
    (tmp_path / "add.py").write_text(code[1])
    ran = subprocess.run(
        [sys.executable, "add.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == shown[1]
