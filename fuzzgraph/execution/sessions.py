"""Keeps captured sessions of recent configs, because capturing takes most of a case's time."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, suppress

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution.failures import SessionFailed
from fuzzgraph.execution.session import OpenSession

# Bytes that all cached sessions may hold: 4 MiB each on the built-in engine, 6 to 25 on a released
# one. Cases draw their configs from a pool of a dozen (`strategies.profile`): a cache that holds
# fewer sessions captures the same config again and again, which took a third of a campaign's time.
_HELD_BYTES = 320 << 20
_USUAL_BYTES = 4 << 30
# Cached sessions may take one in four bytes of a limited address space. Torch and the engine need
# most of the rest, and confirming a finding opens another session.
_SHARE = 4
# Of the free memory of a device, where an arena for shapes of servers takes 4 GiB at once: other
# processes use the same device.
_DEVICE_SHARE = 16


def held_bytes(device: str) -> int:
    """Bytes that cached sessions may hold."""
    return _HELD_BYTES if device == "cpu" else _of_device()


def _of_device() -> int:
    return int(torch.cuda.mem_get_info()[0]) // _DEVICE_SHARE


def reservable_bytes(device: str) -> int:
    """Address space for cached sessions: a share of what `ulimit -v` allows this process; on a
    device, memory there."""
    if device != "cpu":
        return _of_device()
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return _USUAL_BYTES if limit == resource.RLIM_INFINITY else min(_USUAL_BYTES, limit // _SHARE)


class SessionCache:
    """Keeps the most recently used sessions by config; an evicted session is closed.

    Args:
        size: sessions kept.
        held_bytes: bytes that they may hold together; the one in use stays, whatever it holds.
        reserved_bytes: address space that they may take together.
        open_session: opens a session that is not kept.
    """

    def __init__(
        self,
        size: int,
        held_bytes: int,
        open_session: Callable[[EngineConfig], OpenSession],
        *,
        reserved_bytes: int,
    ) -> None:
        self._size = size
        self._held_bytes = held_bytes
        self._reserved_bytes = reserved_bytes
        self._open = open_session
        self._sessions: OrderedDict[EngineConfig, OpenSession] = OrderedDict()

    def get(self, config: EngineConfig) -> OpenSession:
        """A session as it was just after capture."""
        opened = self._sessions.get(config)
        if opened is not None:
            self._sessions.move_to_end(config)
            opened.reset()
            return opened
        opened = self._open(config)
        self._sessions[config] = opened
        self._evict()
        return opened

    def _evict(self) -> None:
        held = sum(opened.held_bytes for opened in self._sessions.values())
        reserved = sum(opened.reserved_bytes for opened in self._sessions.values())
        while len(self._sessions) > 1 and (
            len(self._sessions) > self._size
            or held > self._held_bytes
            or reserved > self._reserved_bytes
        ):
            oldest = self._sessions.popitem(last=False)[1]
            held -= oldest.held_bytes
            reserved -= oldest.reserved_bytes
            oldest.close()

    def forget(self, config: EngineConfig) -> None:
        """Drop a session that failed."""
        opened = self._sessions.pop(config, None)
        if opened is not None:
            # That its `close` fails as well adds nothing to what was found.
            with suppress(SessionFailed, TargetFailed):
                opened.close()

    def abandon(self) -> None:
        """Forget every session."""
        for config in list(self._sessions):
            self.forget(config)

    def clear(self) -> None:
        """Close every session.

        Raises:
            SessionFailed, TargetFailed: a session failed to close; all others are closed.
        """
        with ExitStack() as closing:
            while self._sessions:
                closing.callback(self._sessions.popitem()[1].close)
