"""What the documentation's pages build."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-target.md"


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The Python blocks of docs/writing-a-target.md as one module; it runs its own assertions."""
    if not PAGE.is_file():
        pytest.skip("needs the repository")
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    path = tmp_path_factory.mktemp("page") / "tiny.py"
    path.write_text("\n".join(blocks), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tiny", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
