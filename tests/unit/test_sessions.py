"""Which captured sessions are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.execution.sessions import SessionCache


@dataclass
class Sized:
    """A session that holds so many bytes."""

    held_bytes: int
    closed: list[int] = field(default_factory=list)

    def reset(self) -> None: ...

    def close(self) -> None:
        self.closed.append(self.held_bytes)


def config(number: int) -> EngineConfig:
    return EngineConfig(max_context_len=number)


def opened(sizes: list[int], *, size: int, held_bytes: int) -> list[int]:
    """Open one after the other; what was closed by then."""
    closed: list[int] = []
    cache = SessionCache(size, held_bytes, lambda config: Sized(config.max_context_len, closed))  # type: ignore[arg-type,return-value]
    for each in sizes:
        cache.get(config(each))
    return closed


@pytest.mark.parametrize(
    ("size", "held_bytes", "closed"),
    [(2, 1000, [10, 20]), (8, 75, [10, 20]), (8, 35, [10, 20, 30]), (8, 1000, [])],
    ids=["too many", "too large together", "the newest alone is too large", "within both"],
)
def test_the_sessions_used_longest_ago_go_first(
    size: int, held_bytes: int, closed: list[int]
) -> None:
    assert opened([10, 20, 30, 40], size=size, held_bytes=held_bytes) == closed
