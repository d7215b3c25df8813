"""Finds the engine's source line on the stack: the innermost frame outside torch and FuzzGraph."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType

import torch


def _folders(package: str) -> list[str]:
    """Folders of a package, without importing it; none where it is not installed."""
    spec = importlib.util.find_spec(package)
    return [folder + os.sep for folder in (spec and spec.submodule_search_locations) or ()]


_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)
_BUILTIN = os.path.join(_PACKAGE, "targets", "builtin") + os.sep
# Frames in these files are passed over. "<" begins the names of compiled text and frozen modules,
# and `contextlib` is on the stack wherever the engine uses `with`.
_SKIPPED = (
    _HERE + os.sep,
    os.path.join(_PACKAGE, "graphs") + os.sep,
    os.path.join(_PACKAGE, "lanes") + os.sep,
    os.path.join(_PACKAGE, "execution") + os.sep,
    # What stands in for a device, or for a compiled kernel, between an engine and torch.
    os.path.join(_PACKAGE, "kernel_models") + os.sep,
    os.path.join(_PACKAGE, "targets", "offline") + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    *_folders("triton"),
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib",
    "<",
)


# What a file of code is called in a source line, '' where it is skipped.
_NAMES: dict[str, str] = {}
# Source lines by code object and instruction; the code is kept, so that its id stays its own.
_LINES: dict[tuple[int, int], tuple[CodeType, str]] = {}
# Source lines kept, so that a long run stays flat.
_REMEMBERED = 1 << 16
# While `lines_below` is active: path of a folder or file -> what a line calls it.
_BELOW: dict[str, str] = {}


@contextmanager
def lines_below(folders: Mapping[str, str]) -> Iterator[None]:
    """Inside, a source line is one of these folders and begins with its whole path.

    Frames elsewhere are passed over, also those of other packages that the engine calls.

    Args:
        folders: folder, or single file -> what its path is called, e.g.
            {"/releases/sglang": "python/sglang"}. FuzzGraph's own files count where they are named.
    """
    kept = _NAMES.copy(), _LINES.copy(), _BELOW.copy()
    _forget({name.rstrip(os.sep): called for name, called in folders.items()})
    try:
        yield
    finally:
        names, lines, below = kept
        _forget(below)
        _NAMES.update(names)
        _LINES.update(lines)


def _forget(below: Mapping[str, str]) -> None:
    for known in (_NAMES, _LINES, _BELOW):
        known.clear()
    _BELOW.update(below)


def innermost_source(depth: int = 1) -> str:
    """`file.py:123 in function` of the engine code on the stack, '' if there is none."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        name = _NAMES.get(code.co_filename)
        if name is None:
            name = _NAMES[code.co_filename] = _name_of(code.co_filename)
        if name:
            known = _LINES.get((id(code), frame.f_lasti))
            return known[1] if known is not None else _remember(frame, name)
        frame = frame.f_back
    return ""


def sources_here(depth: int = 1) -> tuple[str, ...]:
    """All lines of the engine on the stack, the innermost first."""
    frame: FrameType | None = sys._getframe(depth)
    lines = []
    while frame is not None:
        lines.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _sources(lines)


def sources_of(error: BaseException) -> tuple[str, ...]:
    """All lines of the engine that an error came through, the innermost first."""
    return _sources([*traceback.walk_tb(error.__traceback__)][::-1])


def _sources(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, ...]:
    found = []
    for frame, line in frames:
        code = frame.f_code
        name = _NAMES.get(code.co_filename)
        if name is None:
            name = _NAMES[code.co_filename] = _name_of(code.co_filename)
        if name:
            found.append(f"{name}:{line} in {code.co_name}")
    return tuple(found)


def file_name(filename: str) -> str:
    """What a source line calls a file: its last name; the whole path inside `lines_below`.

    '' for one that is passed over there.
    """
    if not _BELOW:
        return os.path.basename(filename)
    for folder, called in _BELOW.items():
        if filename == folder or filename.startswith(folder + os.sep):
            return called + filename[len(folder) :].replace(os.sep, "/")
    return ""


def _name_of(filename: str) -> str:
    if filename.startswith(_SKIPPED):
        return ""
    name = file_name(filename)
    if _BELOW:
        return name
    # A target's own file must not be taken for one of the engine that it drives.
    ours = filename.startswith(_PACKAGE + os.sep) and not filename.startswith(_BUILTIN)
    return f"fuzzgraph/{name}" if ours else name


def _remember(frame: FrameType, name: str) -> str:
    code = frame.f_code
    line = f"{name}:{frame.f_lineno} in {code.co_name}"
    if len(_LINES) >= _REMEMBERED:
        _LINES.clear()
    _LINES[id(code), frame.f_lasti] = code, line
    return line
