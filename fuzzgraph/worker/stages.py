"""How far a child has come: a target that says which stage it enters, before it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from fuzzgraph.finding import Stage

if TYPE_CHECKING:
    from fuzzgraph.case import EngineConfig
    from fuzzgraph.ports import GraphEngine, Session
    from fuzzgraph.world import Batch

Enter = Callable[[Stage, int], None]
"""Takes a stage and the number of its step, -1 before the first one."""


class StagedTarget:
    """A target that announces each stage before it enters it."""

    def __init__(self, target: Any, enter: Enter) -> None:
        self.unwrapped = self._target = target
        self._enter = enter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        self._enter("open", -1)
        return cast("Session", _StagedSession(self._target.open(config, graphs), self._enter))


class _StagedSession:
    """Calls of a session, each announced; everything else is the session's own."""

    def __init__(self, session: Session, enter: Enter) -> None:
        self.unwrapped = self._session = session
        self._enter = enter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @contextmanager
    def _stage(self, stage: Stage, batch: Batch | None = None) -> Iterator[None]:
        step = -1 if batch is None else batch.step
        self._enter(stage, step)
        yield
        self._enter("check", step)

    @property
    def roots(self) -> Mapping[str, object]:
        return self._session.roots

    def warm_up(self) -> None:
        with self._stage("warmup"):
            self._session.warm_up()

    def capture(self) -> None:
        with self._stage("capture"):
            self._session.capture()

    def prepare_replay(self, batch: Batch) -> None:
        with self._stage("prepare", batch):
            self._session.prepare_replay(batch)

    def replay(self, batch: Batch) -> None:
        with self._stage("replay", batch):
            self._session.replay(batch)

    def eager(self, batch: Batch) -> None:
        with self._stage("eager", batch):
            self._session.eager(batch)
