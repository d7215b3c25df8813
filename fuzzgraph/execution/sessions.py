"""Keeps captured sessions of recent configs, because capturing takes most of a case's time."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, suppress

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution.failures import SessionFailed
from fuzzgraph.execution.session import OpenSession

_USUAL_BYTES = 4 << 30
# Cached sessions may take one in four bytes of a limited address space. Torch and the engine need
# most of the rest, and confirming a finding opens another session.
_SHARE = 4


def reservable_bytes() -> int:
    """Address space for cached sessions: a share of what `ulimit -v` allows this process."""
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
