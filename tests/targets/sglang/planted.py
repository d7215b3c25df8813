"""What files of planted bugs share: a backend's own target, on a session that was changed."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    BackendSession,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA3


class PlantedBackend(BackendTarget):
    """The target of a backend in one mode; `session` has the bug.

    Args:
        name: of the target, without "sglang-"; by default the backend's.
    """

    def __init__(
        self,
        session: type[BackendSession],
        backend: AttentionBackend = FA3,
        mode: Mode = "decode",
        name: str = "",
    ) -> None:
        super().__init__(f"sglang-{name or backend.name}", backend, mode)
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BackendSession:
        return self._session(config, graphs, self.backend)
