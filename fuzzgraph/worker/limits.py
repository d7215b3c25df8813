"""How long a child may be in a stage and how much memory it may take; watched from outside.

A deadline counts from the moment the child entered a stage, so that a slow capture does not use up
the time of the replays behind it. The time in which the child could run and other work had the
processors does not count: on a busy machine an engine is slow without hanging.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fuzzgraph.finding import Stage
from fuzzgraph.worker.messages import Entered

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _half_of_the_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * _PAGE // 2


_COMPILING: tuple[Stage, ...] = ("warmup", "capture", "eager")
_COMPILING_SECONDS = 600.0
"""For such a stage on a device."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and bytes that one child gets."""

    opening_seconds: float = 300.0
    """For the imports of an engine: 5 to 10 s alone on a core, more than a minute on a busy one."""
    case_seconds: float = 240.0
    """For one case in all; the slowest seen took 10 s."""
    stage_seconds: Mapping[Stage, float] = field(
        default_factory=lambda: {
            "open": 60.0,
            "warmup": 60.0,
            "capture": 120.0,
            "prepare": 30.0,
            "replay": 30.0,
            "eager": 60.0,
            "check": 60.0,
        }
    )
    """For one visit of a stage; a kernel that is compiled first is compiled in warm-up, capture or
    eager."""
    memory_bytes: int = field(default_factory=_half_of_the_memory)
    """Resident memory of the child; beyond it the machine would choose whom to kill."""

    @classmethod
    def on(cls, device: str) -> Limits:
        """Of a child whose engine is on this device. On a GPU kernels are compiled when they are
        first asked for, by whole compilers of C++ in FlashInfer."""
        usual = cls()
        if device == "cpu":
            return usual
        compiles = dict.fromkeys(_COMPILING, _COMPILING_SECONDS)
        stages = {**usual.stage_seconds, **compiles}
        return cls(case_seconds=2 * _COMPILING_SECONDS, stage_seconds=stages)


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """Why a child is ended."""

    kind: str
    """'hang' or 'memory'."""
    words: str


class Watch:
    """Holds one child against its limits while the parent waits for one answer."""

    def __init__(
        self,
        limits: Limits,
        pid: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[int], float] | None = None,
    ) -> None:
        self._limits = limits
        self._pid = pid
        self._clock, self._waited = clock, waited or queued
        self._seconds = seconds
        self._end = self._now() + seconds
        self._entered: Entered | None = None
        self._since = self._now()

    def enter(self, entered: Entered) -> None:
        """The child enters a stage now. Before the first one it imports the engine, for which it
        has the whole time of the opening."""
        self._entered, self._since = entered, self._now()

    def exceeded(self) -> LimitExceeded | None:
        """Which limit is exceeded now; None for none."""
        now = self._now()
        if self._entered is not None:
            stage = self._entered.stage
            limit = self._limits.stage_seconds.get(stage, self._seconds)
            if now - self._since > limit:
                return LimitExceeded("hang", f"was in stage {stage!r} for more than {limit:g} s")
        if now > self._end:
            return LimitExceeded("hang", f"gave no answer in {self._seconds:g} s")
        if resident(self._pid) > self._limits.memory_bytes:
            most = self._limits.memory_bytes / (1 << 30)
            return LimitExceeded("memory", f"took more than {most:.3g} GiB of memory")
        return None

    def _now(self) -> float:
        """Seconds of a clock that stands still while the child waits for a processor."""
        return self._clock() - self._waited(self._pid)


def queued(pid: int) -> float:
    """Seconds in which a process could have run and had no processor; 0 where it cannot be told.

    Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat, of the main
    thread, which is the one that runs an engine's steps.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 where it cannot be told."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
