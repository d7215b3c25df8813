"""Decides whose fault an exception is: the engine's, the target's, or FuzzGraph's own.

The innermost frame in code of one of the three decides. Frames of torch, Triton, numpy and the
standard library do not count, because these do what they are asked. Errors that FuzzGraph raises on
purpose about the engine have a type of their own, `EngineError`.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import isabstract
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

import torch

from fuzzgraph.errors import EngineError
from fuzzgraph.execution.missing_attributes import engine_leaves_unset
from fuzzgraph.graphs.engagement import WatchedGraph
from fuzzgraph.memory.source_lines import file_name
from fuzzgraph.ports import Session, Target, defining_modules, engine_packages, names_its_engine
from fuzzgraph.relays import is_relay

Side = Literal["engine", "target", "harness"]

# Folders, not package names: whatever is installed beside torch is a library here, unless its
# module was recognised as the engine's or the target's before.
_LIBRARIES = tuple(
    folder.rstrip(os.sep) + os.sep
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(torch.__file__).parent.parent),
    }
)
_OURS = "fuzzgraph"
# A launch that raises under the lanes is run again by Triton's own operations, so what comes out of
# the lanes is the kernel's error: their frames count as Triton's.
_AS_TRITON = "fuzzgraph.lanes"
# Stubs and stand-ins that targets of any package are made of: they answer for the target.
_STUBS = "fuzzgraph.targets.offline"
_REPLAY = WatchedGraph.replay.__code__
# Begins the file names of frozen modules and compiled text, which are not files.
_SYNTHETIC = "<"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of code that an exception came through."""

    module: str
    code: CodeType
    line: int

    def __str__(self) -> str:
        file = self.code.co_filename
        return f"{file_name(file) or Path(file).name}:{self.line} in {self.code.co_name}"


def frames_of(error: BaseException) -> list[Frame]:
    """Every frame of an exception, outermost first.

    Triton wraps an exception of a kernel; the kernel's own frames are those of its cause.
    """
    found = [frame_of(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        found += frames_of(error.__cause__)
    return found


def frame_of(frame: FrameType, line: int) -> Frame:
    """The line of code of a running frame."""
    return Frame(str(frame.f_globals.get("__name__", "")), frame.f_code, line)


_NO_GPU = re.compile(
    "Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available"
)
"""What torch raises where code uses a GPU and there is none (torch/cuda/__init__.py)."""


def _misses_a_gpu(error: BaseException, frames: list[Frame]) -> bool:
    """Whether torch looked for a GPU: the engine asked for something that no stand-in answers."""
    raised_by = frames[-1].module if frames else ""
    return raised_by == "torch.cuda" and _NO_GPU.search(str(error)) is not None


class Blame:
    """Tells the code of engine, target and harness apart, for one target and its open session.

    The target's code is the modules that define target and session and the modules beside them,
    except those that the target names as its engine.
    """

    def __init__(self, target: Target, session: Session | None = None) -> None:
        self._engine = engine_packages(target)
        modules = defining_modules(target) + (() if session is None else defining_modules(session))
        self._own = frozenset(modules) - frozenset(self._engine)
        self._packages = tuple(name.rpartition(".")[0] for name in self._own if "." in name)
        # A target in a single file has no package. Files in its folder are its own only if it says
        # which module is the engine, since a small engine may lie in the same folder.
        self._folders = tuple(_folders(self._own)) if names_its_engine(target) else ()

    def side(self, error: BaseException) -> Side:
        """Whose code raised; the engine's where no frame tells."""
        if isinstance(error, EngineError):
            return "engine"
        if isinstance(error, AttributeError) and self._is_targets(type(error.obj).__module__):
            # The engine asked the target's stand-in for something that it lacks.
            return "engine" if self._engines_lack(error) else "target"
        frames = frames_of(error)
        if _misses_a_gpu(error, frames):
            return "target"
        # Which frame hits the limit is chance; which code fills the stack is not.
        if isinstance(error, RecursionError):
            return self._most_frequent(frames)
        return self._innermost(frames)

    def _innermost(self, frames: list[Frame]) -> Side:
        for frame in reversed(frames):
            found = self.side_of(frame)
            if found:
                return found
            if frame.code is _REPLAY:
                break  # Nobody's Python runs in a graph: it repeats what the engine captured.
        return "engine"

    def side_of(self, frame: Frame) -> Side | None:
        """Whose code a frame runs; None for a library, and for code that only passes a call on."""
        name, file = frame.module, frame.code.co_filename
        if is_relay(frame.code):
            return None
        if self._is_targets(name):
            return "target"
        # The order of these tests decides: a target may live inside the engine's package or inside
        # FuzzGraph.
        if _below(name, self._engine):
            return "engine"
        if _below(name, (_OURS,)):
            return None if _below(name, (_AS_TRITON,)) else "harness"
        if file.startswith((_SYNTHETIC, *_LIBRARIES)):
            return None
        return "target" if file.startswith(self._folders) else "engine"

    def _is_targets(self, module: str) -> bool:
        beside = _below(module, self._packages) and not _below(module, self._engine)
        return module in self._own or beside or _below(module, (_STUBS,))

    def _engines_lack(self, error: AttributeError) -> bool:
        """Whether an object of the engine's own would lack it as the target's does."""
        name = str(error.name)
        return self._nobody_has(error.obj, name) or (
            self._innermost(frames_of(error)) == "engine"
            and engine_leaves_unset(type(error.obj), name, self._is_engines)
        )

    def _is_engines(self, module: str) -> bool:
        return _below(module, self._engine) and not self._is_targets(module)

    def _nobody_has(self, stand_in: object, name: str) -> bool:
        """Whether it stands for an interface of the engine's, beside whose classes none has it."""
        kinds = [each for each in type(stand_in).__mro__ if _below(each.__module__, self._engine)]
        interfaces = filter(isabstract, kinds)
        folders = {folder for each in interfaces if (folder := _folder_of(each)) is not None}
        return bool(folders) and not any(_defined_in(folder, name) for folder in folders)

    def _most_frequent(self, frames: Iterable[Frame]) -> Side:
        """Whose code fills the stack."""
        sides: Counter[Side] = Counter()
        for frame in frames:
            # A relay that calls itself without end is the harness's mistake, so it counts here.
            side = self.side_of(frame)
            if side is not None or _below(frame.module, (_OURS,)):
                sides[side or "harness"] += 1
        return max(sides, key=lambda side: sides[side], default="engine")


def _folder_of(kind: type) -> Path | None:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).parent if file else None


def _defined_in(folder: Path, name: str) -> bool:
    """Whether code below a folder defines a method or sets an attribute of that name.

    By its text: most of an engine's classes are in modules that nobody has imported.
    """
    defined = re.compile(rf"\bdef {name}\b|\bself\.{name}\b[^=\n]*=|^ +{name}\b[^=\n(]*=", re.M)
    files = sorted(folder.rglob("*.py"))
    # Without a source nothing can be said against the engine.
    return not files or any(defined.search(each.read_text("utf-8", "replace")) for each in files)


def _below(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _folders(modules: Iterable[str]) -> Iterator[str]:
    """Where single modules lie, unless that is where packages are installed."""
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if "." not in name and file and not file.startswith(_LIBRARIES):
            yield os.path.dirname(file) + os.sep
