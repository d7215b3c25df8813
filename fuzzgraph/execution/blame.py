"""Whose fault an exception is: the engine's, the target's, or FuzzGraph's own.

The innermost frame decides that lies in code of one of the three: torch, Triton, numpy and the
standard library do what they are asked. What was raised on purpose about the engine carries its own
type, `EngineError`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Literal

import torch

from fuzzgraph.errors import EngineError
from fuzzgraph.ports import Session, Target, defining_modules, engine_packages, names_its_engine
from fuzzgraph.relays import is_relay

__all__ = ["Blame", "frames_of"]

Side = Literal["engine", "target", "harness"]

_LIBRARIES = tuple(
    folder.rstrip(os.sep) + os.sep
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(torch.__file__).parent.parent),
    }
)
_OURS = "fuzzgraph"
# The lanes run a launch that raised once more by Triton's own operations: what is left is the
# kernel's.
_AS_TRITON = "fuzzgraph.lanes"
# How the names of files begin that are none: frozen modules, compiled text.
_MADE_UP = "<"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of code that an exception came through."""

    module: str
    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{Path(self.code.co_filename).name}:{self.line} in {self.code.co_name}"


def frames_of(error: BaseException) -> list[Frame]:
    """Every frame of an exception, outermost first.

    Triton wraps what a kernel raised: the kernel's own frames are those of the cause.
    """
    found = [
        Frame(str(frame.f_globals.get("__name__", "")), frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        found += frames_of(error.__cause__)
    return found


class Blame:
    """Which code is whose, for one target and, once it is open, its session.

    The target's are the modules that define it and its session, unless it names one of these as its
    engine, and what lies beside them, unless that is the engine.
    """

    def __init__(self, target: Target, session: Session | None = None) -> None:
        self._engine = engine_packages(target)
        modules = defining_modules(target) + (() if session is None else defining_modules(session))
        self._own = frozenset(modules) - frozenset(self._engine)
        self._packages = tuple(name.rpartition(".")[0] for name in self._own if "." in name)
        self._folders = tuple(_folders(self._own)) if names_its_engine(target) else ()

    def side(self, error: BaseException) -> Side:
        """Whose code raised; the engine's where no frame is anybody's."""
        if isinstance(error, EngineError):
            return "engine"
        if isinstance(error, AttributeError) and self._is_targets(type(error.obj).__module__):
            return "target"  # the engine asked a stand-in for what it lacks
        frames = frames_of(error)
        if isinstance(error, RecursionError):  # where it stops is a matter of luck
            return self._most_frequent(frames)
        return next(filter(None, map(self.side_of, reversed(frames))), "engine")

    def side_of(self, frame: Frame) -> Side | None:
        """Whose code a frame runs; None for a library's, or one that passes a call on."""
        name, file = frame.module, frame.code.co_filename
        if is_relay(frame.code):
            return None
        if self._is_targets(name):
            return "target"
        if _below(name, self._engine):
            return "engine"
        if _below(name, (_OURS,)):
            return None if _below(name, (_AS_TRITON,)) else "harness"
        if file.startswith((_MADE_UP, *_LIBRARIES)):
            return None
        return "target" if file.startswith(self._folders) else "engine"

    def _is_targets(self, module: str) -> bool:
        return module in self._own or (
            _below(module, self._packages) and not _below(module, self._engine)
        )

    def _most_frequent(self, frames: Iterable[Frame]) -> Side:
        """Who called itself without end; code that passes calls on may be the one."""
        sides: Counter[Side] = Counter()
        for frame in frames:
            side = self.side_of(frame)
            if side is not None or _below(frame.module, (_OURS,)):
                sides[side or "harness"] += 1
        return max(sides, key=lambda side: sides[side], default="engine")


def _below(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _folders(modules: Iterable[str]) -> Iterator[str]:
    """Where single modules lie, unless that is where packages are installed."""
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if "." not in name and file and not file.startswith(_LIBRARIES):
            yield os.path.dirname(file) + os.sep
