"""Keeps captured sessions for the configs seen last: capture is what costs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from fuzzgraph.case import EngineConfig
from fuzzgraph.execution.opening import OpenSession

__all__ = ["SessionCache"]


class SessionCache:
    """Least-recently-used sessions by config; an evicted one is closed."""

    def __init__(self, size: int, open_session: Callable[[EngineConfig], OpenSession]) -> None:
        self._size = size
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
        while len(self._sessions) > self._size:
            self._sessions.popitem(last=False)[1].close()
        return opened

    def forget(self, config: EngineConfig) -> None:
        """Drop a session that was lost."""
        opened = self._sessions.pop(config, None)
        if opened is not None:
            opened.close()

    def clear(self) -> None:
        for config in list(self._sessions):
            self.forget(config)
