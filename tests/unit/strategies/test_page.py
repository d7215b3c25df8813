"""docs/strategies.md: every block of Python on it runs, and prints what the page shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import find, settings

PAGE = Path(__file__).resolve().parents[3] / "docs" / "strategies.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository")


def blocks(kind: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)


@cache
def names() -> dict[str, Any]:
    """What the page defines, its blocks run one after the other as on one module."""
    found: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, str(PAGE), "exec"), found)
    return found


@pytest.mark.parametrize(
    "name", ["test_the_engine_keeps_the_law", "test_growing_first", "test_page_counts"]
)
def test_an_example_passes(name: str) -> None:
    names()[name]()


def test_the_example_with_a_given_config_passes() -> None:
    names()["test_two_requests_at_most"]()


def test_the_failing_example_prints_what_the_page_shows() -> None:
    check: Callable[[], None] = names()["test_no_batch_grows"]
    with pytest.raises(AssertionError) as caught:
        check()
    notes = "\n".join(getattr(caught.value, "__notes__", []))
    assert blocks("text")[0].strip() in notes.replace("Falsifying example:", "Failing test case:")


def test_the_refusal_is_the_one_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    names.cache_clear()
    names()
    assert capsys.readouterr().out == blocks("text")[1]


def test_a_strategy_of_drawn_configs_can_be_composed() -> None:
    config, steps = find(names()["drawn"], lambda drawn: True, settings=settings(database=None))
    assert config.page_size == 16 and steps
