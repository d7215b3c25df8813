"""Replays while a script is recorded do what replays of a session do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fuzzgraph.repro.trace import Recording


@pytest.mark.parametrize(("continues", "poisoned"), [(False, 1), (True, 0)])
def test_a_piece_that_continues_another_finds_what_that_one_left(
    continues: bool, poisoned: int
) -> None:
    done: list[str] = []
    recording: Any = object.__new__(Recording)
    recording.memory = SimpleNamespace(poison_graph_pool=lambda: done.append("poisoned"))
    recording._replay(SimpleNamespace(trace=(), _steps=(), continues=continues))
    assert len(done) == poisoned
