"""What runs in a process of its own: real engines, and whatever runs on a device."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph import open_target
from fuzzgraph.errors import UsageError
from fuzzgraph.open_target import Opened, open_target_object
from fuzzgraph.run.events import Setup
from fuzzgraph.run_options import checked_setup
from tests.fakes import FakeRunner, FakeTarget


class InAWorker(Exception):
    """Stands for a worker that is started."""


class Isolated(FakeTarget):
    isolated = True


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(setup: Setup, target: Any, *, branches: bool = False) -> Opened:
        raise InAWorker

    monkeypatch.setattr(open_target, "_in_worker", in_worker)
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
        (FakeTarget(), Setup(target="fake", isolation="on"), True),
        (FakeTarget(), Setup(target="fake", device="cuda", isolation="off"), False),
    ],
    ids=[
        "on the CPU",
        "a real engine",
        "on a device",
        "one's own on a device",
        "a planted fault",
        "switched on",
        "switched off",
    ],
)
def test_an_engine_gets_a_process_of_its_own_where_it_may_take_one_down(
    target: Any, setup: Setup, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzgraph.open_target.require_usable", lambda device: None)
    if isolated:
        with pytest.raises(InAWorker):
            open_target_object(target, setup)
    else:
        assert open_target_object(target, setup).target is target


def test_an_isolation_that_cannot_be_had_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="runs in a process of its own only. Drop the option"):
        open_target_object(Isolated(), Setup(target="fake", isolation="off"))
    with pytest.raises(UsageError, match="Name it as module:factory"):
        open_target_object(FakeTarget(), Setup(target="another", isolation="on"))
    with pytest.raises(UsageError, match="isolation='maybe' is unknown. Use one of: on, off"):
        checked_setup(isolation="maybe")
