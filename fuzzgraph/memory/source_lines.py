"""Finds the engine's source line on the stack: the innermost frame outside torch and FuzzGraph."""

from __future__ import annotations

import importlib.util
import os
import sys
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


def _name_of(filename: str) -> str:
    name = os.path.basename(filename)
    if filename.startswith(_SKIPPED):
        return ""
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
