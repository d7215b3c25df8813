"""What files of planted bugs share: targets whose sessions are changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    BackendSession,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from tests.targets.sglang.changed_kernels import change_held_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere

T = TypeVar("T")


def with_changed_sessions(target: T, change: Callable[[Any], None]) -> T:
    """The target, of which `change` gets every session that is opened."""
    opens: Any = target
    open_session = opens.open_session

    def opened(config: EngineConfig, graphs: GraphEngine) -> Any:
        session = open_session(config, graphs)
        change(session)
        return session

    opens.open_session = opened
    return target


def with_a_line_changed(
    opened: Callable[[], T], holder: str, name: str, line: str, other: str
) -> Callable[[], T]:
    """Opens the target with one line of the engine changed; see `change_line_elsewhere`."""

    def change(session: Any) -> None:
        change_line_elsewhere(session, holder, name, line, other)

    return lambda: with_changed_sessions(opened(), change)


def with_a_held_kernel_changed(
    opened: Callable[[], T], module: str, name: str, line: str, other: str
) -> Callable[[], T]:
    """Opens the target with one line of a kernel changed; see `change_held_kernel`."""

    def change(session: Any) -> None:
        change_held_kernel(session, module, name, line, other)

    return lambda: with_changed_sessions(opened(), change)


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
