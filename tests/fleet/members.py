"""A cluster of threads: the real shards and the real driver, and machines that can be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from fuzzgraph.fleet.driver import ShardLost
from fuzzgraph.fleet.messages import ShardSpec
from fuzzgraph.fleet.shard import Shard


class Killed(BaseException):
    """Stands for a kill of the shard's process: nothing in FuzzGraph catches it."""


class ThreadMember:
    def __init__(self, order: bytes) -> None:
        self._shard = Shard()
        self._killed = False
        self._thread = threading.Thread(target=self._work, args=(order,), daemon=True)
        self._thread.start()

    def _work(self, order: bytes) -> None:
        try:
            self._shard.work(order)
        except Killed:
            self._killed = True

    def ask(self, told: bytes) -> bytes:
        if self._killed:
            raise ShardLost("somebody killed it")
        return self._shard.drain(told)

    def interrupt(self) -> None:
        self._shard.interrupt()

    def end(self) -> None:
        self._thread.join(30.0)


class SlowMember(ThreadMember):
    """Takes two looks for every answer."""

    held = b""

    def ask(self, told: bytes) -> bytes | None:  # type: ignore[override]
        if not self.held:
            self.held = told
            return None
        assert told == self.held, "what was not answered is asked again"
        self.held = b""
        return super().ask(told)


class ThreadCluster:
    member: type[ThreadMember] = ThreadMember

    def __init__(
        self, shards: int, before: Callable[[ShardSpec], None] = lambda order: None
    ) -> None:
        self.shards = shards
        self.orders: list[ShardSpec] = []
        self._before = before

    def start(self, order: bytes) -> ThreadMember:
        decoded = msgspec.json.decode(order, type=ShardSpec)
        self.orders.append(decoded)
        self._before(decoded)
        return self.member(order)
