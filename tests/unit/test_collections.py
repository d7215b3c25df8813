"""What a session collects as garbage while it opens."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator

import pytest

from fuzzgraph.execution import process


class Ring:
    """An object that refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process, "_opened", itertools.count(1))
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def ring() -> weakref.ref[Ring]:
    return weakref.ref(Ring())


def test_a_collection_walks_only_what_came_after_a_session_began_to_open() -> None:
    before = ring()
    process.spare_collections()
    after = ring()
    gc.collect()
    assert before() is not None, "walked"
    assert after() is None


def test_what_was_set_aside_is_freed_by_the_next_collection_of_everything() -> None:
    left = ring()
    for opened in range(1, process._OPENED_BETWEEN + 1):
        assert left() is not None, opened
        process.spare_collections()
    assert left() is None
