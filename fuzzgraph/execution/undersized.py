"""Which buffer was too small, where an index error of the engine says so.

Known only if exactly one tensor named on the failing line has the size that the error tells;
nothing is guessed beyond that. Values are looked up without running any code of the engine.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch

_MESSAGES = (
    # torch, of an index; then of a slice that the end of the buffer cut short
    r"index -?\d+ is out of bounds for dimension (?P<dim>\d+) with size (?P<size>\d+)",
    r"The expanded size of the tensor \((?P<size>\d+)\) must match the existing size \(\d+\) at"
    r" non-singleton dimension (?P<dim>\d+)",
)
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def undersized_buffer(message: str, frame: FrameType, line: int) -> tuple[str, torch.Tensor] | None:
    """The tensor that an index error is about, and what the engine's line calls it; else None.

    Args:
        message: the error's.
        frame: the engine's innermost one.
        line: where in its file it was.
    """
    told = next(filter(None, (re.search(each, message) for each in _MESSAGES)), None)
    if told is None:
        return None
    dim, size = int(told["dim"]), int(told["size"])
    text = linecache.getline(frame.f_code.co_filename, line)
    found = {
        tensor.data_ptr(): (name, tensor)
        for name, tensor in _tensors_named(text, frame.f_locals)
        if dim < tensor.dim() and tensor.shape[dim] == size
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _tensors_named(text: str, values: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors under the dotted names of a line of code, `self.indptr` among them."""
    for name in dict.fromkeys(_DOTTED.findall(text)):
        first, *rest = name.split(".")
        value = values.get(first)
        for at, attribute in enumerate(rest, start=1):
            if isinstance(value, torch.Tensor):  # what follows is a method of it
                name = ".".join([first, *rest[: at - 1]])
                break
            value = _attribute(value, attribute)
        if isinstance(value, torch.Tensor):
            yield name, value


def _attribute(owner: object, name: str) -> object:
    """What an object holds under a name; properties, which would run code, are not asked."""
    held = inspect.getattr_static(owner, name, None)
    if inspect.ismemberdescriptor(held):  # __slots__
        return getattr(owner, name, None)
    return held
