"""Opens a target inside guarded memory, captures its graphs, and can put it back to that moment."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path

import torch

import fuzzgraph
from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import UsageError
from fuzzgraph.execution.painting import Painter
from fuzzgraph.graphs import GraphKind, open_engine
from fuzzgraph.memory import (
    AttributeSnapshot,
    GuardedMemory,
    restore_attributes,
    snapshot_attributes,
)
from fuzzgraph.observation import RunKind, Stumble, ZoneHit
from fuzzgraph.ports import Session, Target

__all__ = ["OpenSession", "SessionLost", "innermost_line", "open_session"]

_PACKAGE = Path(fuzzgraph.__file__).parent
_HARNESS = tuple(
    str(_PACKAGE / name) for name in ("execution", "memory", "graphs", "campaign", "worker")
)


class SessionLost(Exception):
    """The engine raised; carries what the survival oracle reports."""

    def __init__(self, stumble: Stumble) -> None:
        super().__init__(stumble.error)
        self.stumble = stumble

    @classmethod
    def at(cls, stage: str, run: RunKind, error: BaseException) -> SessionLost:
        text = " ".join(str(error).split())[:300]
        return cls(
            Stumble(
                run, stage, "exception", f"{type(error).__name__}: {text}", innermost_line(error)
            )
        )


def innermost_line(error: BaseException) -> str:
    """The deepest source line of an error that lies in the engine, not in torch or the harness."""
    frames = traceback.extract_tb(error.__traceback__)
    engine = [
        frame
        for frame in frames
        if not frame.filename.startswith(_HARNESS) and "/torch/" not in frame.filename
    ]
    frame = (engine or list(frames) or [None])[-1]  # type: ignore[list-item]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" if frame else "?"


@dataclass(slots=True)
class OpenSession:
    """A session, its memory, and how both looked just after capture."""

    config: EngineConfig
    session: Session
    memory: GuardedMemory
    painter: Painter
    captured: torch.Tensor = field(init=False)
    attributes: AttributeSnapshot = field(init=False)
    opening_hits: list[ZoneHit] = field(default_factory=list)

    def remember(self) -> None:
        """Take this moment as the one `reset` returns to."""
        self.captured = self.memory.snapshot()
        self.attributes = snapshot_attributes(self.session.roots)

    def reset(self) -> None:
        """Bytes and attributes of the engine as they were just after capture."""
        self.memory.restore(self.captured)
        restore_attributes(self.attributes)


def open_session(
    target: Target, config: EngineConfig, *, graphs: GraphKind, device: torch.device
) -> OpenSession:
    """Open, warm up and capture.

    Raises:
        SessionLost: the engine raised at one of these stages.
    """
    memory = GuardedMemory(device, tail_factor=config.page_size)
    engine = open_engine(graphs, memory)
    stage = "open"
    try:
        with memory.intercept("engine"):
            session = target.open(config, engine)
        opened = OpenSession(config, session, memory, Painter(session.pools, config, memory))
        opened.painter.fill_unowned()
        stage = "warmup"
        with memory.intercept("scratch"):
            session.warm_up()
        stage = "capture"
        with memory.intercept("engine"):
            session.capture()
    except UsageError:
        raise
    except Exception as error:  # whatever the engine raises is the finding
        raise SessionLost.at(stage, "replay", error) from error
    memory.name_regions(session.roots)
    opened.painter.use_region_names()
    opened.opening_hits = memory.zone_hits("capture")
    opened.remember()
    return opened
