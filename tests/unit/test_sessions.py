"""Which captured sessions are kept."""

from __future__ import annotations

import subprocess
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution, open_session
from fuzzgraph.execution.sessions import SessionCache, held_bytes, reservable_bytes
from fuzzgraph.memory import capacities, guard
from fuzzgraph.memory.arena import Arena
from fuzzgraph.targets import open_target


@dataclass
class Sized:
    """A session that holds so many bytes."""

    held_bytes: int
    reserved_bytes: int
    closed: list[int] = field(default_factory=list)

    def reset(self) -> None: ...

    def close(self) -> None:
        self.closed.append(self.held_bytes)


def config(number: int) -> EngineConfig:
    return EngineConfig(max_context_len=number)


def opened(
    sizes: list[int], *, size: int, held_bytes: int = 1000, reserved_bytes: int = 1000
) -> list[int]:
    """Open one after the other; what was closed by then."""
    closed: list[int] = []

    def open_session(config: EngineConfig) -> Any:
        return Sized(config.max_context_len, 100, closed)

    cache = SessionCache(size, held_bytes, open_session, reserved_bytes=reserved_bytes)
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


def test_sessions_share_the_address_space_that_there_is() -> None:
    assert opened([10, 20, 30, 40], size=8, reserved_bytes=250) == [10, 20]


_LIMITED = """
import resource
from fuzzgraph.case import EngineConfig
from fuzzgraph.execution import Execution
from fuzzgraph.targets import open_target
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
execution = Execution(open_target("builtin"))
for pages in range(30):
    execution._sessions.get(EngineConfig(kv_pool_pages=64 + pages))
print(sum(each.reserved_bytes for each in execution._sessions._sessions.values()))
"""


def test_many_sessions_fit_into_a_process_of_four_gigabytes_of_addresses() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=True
    )
    assert 0 < int(done.stdout) <= 1 << 30


def test_a_session_that_needs_more_room_than_usual_gets_it() -> None:
    opened = Execution(open_target("builtin"))._sessions.get(
        EngineConfig(kv_pool_pages=80_000, head_dim=128, v_head_dim=128)
    )
    assert opened.reserved_bytes == capacities(torch.device("cpu"))[1]
    opened.close()


def test_an_arena_that_was_too_small_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has all of it from the start, and engines refer to themselves."""
    arenas: list[weakref.ref[Arena]] = []

    class Noted(Arena):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            arenas.append(weakref.ref(self))

    monkeypatch.setattr(guard, "Arena", Noted)
    monkeypatch.setattr(open_session, "capacities", lambda _: (2 << 20, 512 << 20))
    opened = Execution(open_target("builtin"))._sessions.get(EngineConfig(kv_pool_pages=80_000))
    assert [arena() is None for arena in arenas] == [True, False]
    opened.close()


def test_cached_sessions_share_a_part_of_what_a_device_has_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (64 << 30, 80 << 30))
    assert held_bytes("cuda") == reservable_bytes("cuda") == 4 << 30
    assert held_bytes("cpu") < 1 << 30


def test_a_config_that_fits_no_arena_is_skipped_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_session, "capacities", lambda _: (1 << 20, 2 << 20))
    step = ReplayStep(mode="decode", rows=(BatchRow(request=0, seq_len=2),))
    large, small = EngineConfig(kv_pool_pages=80_000), EngineConfig()
    run = Execution(open_target("builtin"))
    skipped = [
        run.run_case(Case(schema_version=1, config=each, steps=(step,))).skipped
        for each in (large, small)
    ]
    assert skipped[0].startswith("guarded memory is full: an allocation of ") and not skipped[1]
    run.close()
