"""What is public: `fuzzgraph` for tests, `fuzzgraph.target` for authors of targets, and
`fuzzgraph.targets.offline` for those whose engine needs a GPU that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fuzzgraph
import fuzzgraph.target

ROOT = Path(__file__).parents[2]
PUBLIC = ("fuzzgraph", "fuzzgraph.target", "fuzzgraph.lanes")
OFFLINE = "fuzzgraph.targets.offline"
AUTHORS = (
    ROOT / "docs" / "writing-a-target.md",
    ROOT / "docs" / "bring-your-own-engine.md",
    *sorted((ROOT / "docs" / "examples").glob("*.py")),
)


def code_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        return text
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def imported(code: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "fuzzgraph"}


@pytest.mark.parametrize("page", AUTHORS, ids=lambda page: page.name)
def test_an_author_imports_public_modules_only(page: Path) -> None:
    inner = {name for name in imported(code_of(page)) if not name.startswith(OFFLINE)}
    assert inner <= {*PUBLIC}


def test_the_search_for_imports_finds_them() -> None:
    assert imported("import fuzzgraph.ports\nfrom fuzzgraph.world import Batch") == {
        "fuzzgraph.ports",
        "fuzzgraph.world",
    }


@pytest.mark.parametrize(
    "module", [fuzzgraph, fuzzgraph.target], ids=lambda module: module.__name__
)
def test_every_public_name_is_there(module: object) -> None:
    for name in getattr(module, "__all__"):  # noqa: B009
        assert hasattr(module, name), name
