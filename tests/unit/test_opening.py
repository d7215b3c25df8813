"""What runs in a process of its own: real engines, and whatever runs on a device."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.campaign import opening
from fuzzgraph.campaign.opening import Opened, open_target_object
from fuzzgraph.events import Setup
from tests.fakes import FakeRunner, FakeTarget


class InAWorker(Exception):
    """Stands for a worker that is started."""


class Isolated(FakeTarget):
    isolated = True


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(setup: Setup, target: Any) -> Opened:
        raise InAWorker

    monkeypatch.setattr(opening, "_in_worker", in_worker)
    monkeypatch.setattr("fuzzgraph.execution.Execution", lambda *_, **__: Closing())


class Closing(FakeRunner):
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("target", "setup", "isolated"),
    [
        (FakeTarget(), Setup(target="fake"), False),
        (Isolated(), Setup(target="fake"), True),
        (FakeTarget(), Setup(target="fake", device="cuda"), True),
        (FakeTarget(), Setup(target="mine:Target", device="cuda"), True),
        (FakeTarget(), Setup(target="fake", device="cuda", fault="planted"), True),
    ],
    ids=["on the CPU", "a real engine", "on a device", "one's own on a device", "a planted fault"],
)
def test_an_engine_gets_a_process_of_its_own_where_it_may_take_one_down(
    target: Any, setup: Setup, isolated: bool
) -> None:
    if isolated:
        with pytest.raises(InAWorker):
            open_target_object(target, setup)
    else:
        assert open_target_object(target, setup).target is target
