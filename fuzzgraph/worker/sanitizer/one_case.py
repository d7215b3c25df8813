"""The process that the tool watches: runs one case and leaves what is known of its memory.

It notes how long the tool's report is whenever a stage is entered, once the device has done all
that was asked of it: what the report says behind that was found later.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.finding import Stage
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.strict_json import decode_json
from fuzzgraph.worker.messages import Failed, Open, Refused

REQUEST, ANSWER = "request.json", "answer.json"


class OneCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process is asked."""

    opening: Open
    case: Case
    log: str
    """File of the tool's report."""
    seconds: int
    """After which the process ends itself, should nobody be left to end it."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stage that was entered."""

    stage: Stage
    step: int
    reported: int
    """Bytes of the tool's report by then."""


class Guarded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One guarded buffer. Bytes; offsets count from the begin of guarded memory."""

    name: str
    offset: int
    nbytes: int
    before: int
    """Red zone in front of it."""
    after: int
    itemsize: int
    allocated_at: str


class Ran(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """What the process came to."""

    marks: tuple[Mark, ...] = ()
    address: int = 0
    """Of guarded memory."""
    capacity: int = 0
    guarded: tuple[Guarded, ...] = ()


Outcome: TypeAlias = Ran | Refused | Failed


class _Watcher:
    """Takes down the guarded memory that a target is opened in, and the stages that it enters."""

    def __init__(self, log: Path, device: str) -> None:
        self._log, self._device = log, device
        # Until the engine is opened, what runs on the device is our own.
        self.marks = [Mark(stage="check", step=-1, reported=0)]
        self._memory: GuardedMemory | None = None
        self._guarded: tuple[Guarded, ...] = ()

    def enter(self, stage: Stage, step: int) -> None:
        if self._device != "cpu":
            import torch

            with suppress(RuntimeError):  # a lost device is told by whoever waits for it next
                torch.cuda.synchronize()
        size = self._log.stat().st_size if self._log.exists() else 0
        self.marks.append(Mark(stage=stage, step=step, reported=size))
        self._look()

    def see(self, memory: GuardedMemory) -> None:
        self._memory, self._guarded = memory, ()

    def _look(self) -> None:
        """Keep the guarded buffers of now; a session that was closed has none any more."""
        if self._memory is not None and (now := self._memory.regions):
            self._guarded = tuple(
                Guarded(
                    name=region.name,
                    offset=region.offset,
                    nbytes=region.nbytes,
                    before=region.zone_before,
                    after=region.zone_after,
                    itemsize=region.dtype.itemsize,
                    allocated_at=region.allocated_at,
                )
                for region in now
            )

    def ran(self) -> Ran:
        self._look()
        arena = self._memory.arena if self._memory is not None else None
        return Ran(
            marks=tuple(self.marks),
            address=arena.address if arena else 0,
            capacity=arena.capacity if arena else 0,
            guarded=self._guarded,
        )


class _SeenTarget:
    """A target that shows which guarded memory it is opened in, and when that is done."""

    def __init__(self, target: Any, watcher: _Watcher) -> None:
        self.unwrapped = getattr(target, "unwrapped", target)
        self._target, self._watcher = target, watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: Any, graphs: Any) -> Any:
        self._watcher.see(graphs.memory)
        session = self._target.open(config, graphs)
        self._watcher.enter("check", -1)
        return session


def _run(asked: OneCase) -> Ran:
    from fuzzgraph.execution import Execution
    from fuzzgraph.worker.serve import loaded_target
    from fuzzgraph.worker.stages import StagedTarget
    from fuzzgraph.worker.watched import Watched

    setup = asked.opening.setup
    watcher = _Watcher(Path(asked.log), setup.device)
    target: Any = loaded_target(asked.opening, Watched({}))
    seen: Any = _SeenTarget(StagedTarget(target, watcher.enter), watcher)
    Execution(seen, setup).run_case(asked.case)
    return watcher.ran()


def _outcome(asked: OneCase) -> Outcome:
    try:
        return _run(asked)
    except FuzzGraphError as error:
        return Refused(kind=type(error).__name__, message=str(error))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Failed(error=said, traceback=traceback.format_exc())


def main(folder: Path) -> None:
    """Run what the request in a folder asks, and leave the answer beside it."""
    asked = decode_json((folder / REQUEST).read_bytes(), OneCase)
    signal.alarm(asked.seconds)
    outcome = _outcome(asked)
    written = folder / f"{ANSWER}.new"
    written.write_bytes(msgspec.json.encode(outcome))
    os.replace(written, folder / ANSWER)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
