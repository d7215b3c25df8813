"""How far a child has come, in a few bytes that outlive it.

The child writes stage and step into a mapped file before it enters them; the parent reads the file
when the child no longer answers.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from fuzzgraph.finding import Stage

if TYPE_CHECKING:
    from fuzzgraph.case import EngineConfig
    from fuzzgraph.ports import GraphEngine, Session
    from fuzzgraph.world import Batch

__all__ = ["Entered", "StageFile", "StagedTarget", "read_stage"]

_STAGES: tuple[Stage, ...] = get_args(Stage)
_BEFORE_ANY_STEP = 0xFFFF
_LAYOUT = struct.Struct(">BHI")
"""Stage, step, and how many stages were entered, so that two visits of one can be told apart."""


class Entered(NamedTuple):
    """Where a child was last seen."""

    stage: Stage = "open"
    step: int = -1
    """-1 before the first one."""
    visits: int = 0
    """Stages entered so far; 0 where the child left no word."""


class StageFile:
    """Written by the child."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.write(bytes(_LAYOUT.size))
            file.flush()
            self._bytes = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._count = 0
        self.enter("open")

    def enter(self, stage: Stage, step: int = _BEFORE_ANY_STEP) -> None:
        self._count = (self._count + 1) & 0xFFFFFFFF
        step = min(step, _BEFORE_ANY_STEP)
        self._bytes[:] = _LAYOUT.pack(_STAGES.index(stage), step, self._count)


def read_stage(path: Path) -> Entered:
    """Where a child was last; a file that is not there or not whole tells nothing."""
    try:
        stage, step, count = _LAYOUT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return Entered()
    if stage >= len(_STAGES):
        return Entered()
    return Entered(_STAGES[stage], -1 if step == _BEFORE_ANY_STEP else step, count)


class StagedTarget:
    """A target that leaves word of each stage before it enters it."""

    def __init__(self, target: Any, stages: StageFile) -> None:
        self.unwrapped = self._target = target
        self._stages = stages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        self._stages.enter("open")
        return cast("Session", _StagedSession(self._target.open(config, graphs), self._stages))


class _StagedSession:
    """Calls of a session, each announced; everything else is the session's own."""

    def __init__(self, session: Session, stages: StageFile) -> None:
        self.unwrapped = self._session = session
        self._stages = stages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @contextmanager
    def _stage(self, stage: Stage, batch: Batch | None = None) -> Iterator[None]:
        step = _BEFORE_ANY_STEP if batch is None else batch.step
        self._stages.enter(stage, step)
        yield
        self._stages.enter("check", step)

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
