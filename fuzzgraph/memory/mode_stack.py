"""Puts a dispatch mode beneath all others, where a device is: it sees what they let through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

# The mode that stands for a device, while there is one.
_DEVICE: list[TorchDispatchMode] = []


@contextmanager
def beneath_all_modes(mode: TorchDispatchMode) -> Iterator[None]:
    """Inside, `mode` is asked last, as a device that captures; `past_modes` does not pass it."""
    above = _taken_off()
    _put_on([*above, mode])
    _DEVICE.append(mode)
    try:
        yield
    finally:
        _DEVICE.pop()
        _put_on([each for each in _taken_off() if each is not mode])


@contextmanager
def past_modes() -> Iterator[None]:
    """Inside, operations go straight to the device, to the mode that stands for one if any does."""
    if not _DEVICE:
        with torch._C._DisableTorchDispatch():
            yield
        return
    modes = _taken_off()
    _put_on(_DEVICE[-1:])
    try:
        yield
    finally:
        _taken_off()
        _put_on(modes)


def _taken_off() -> list[TorchDispatchMode]:
    """All modes, the one that is asked first at the front; none is active any more."""
    depth = torch._C._len_torch_dispatch_stack()
    return [_pop_mode() for _ in range(depth)]


def _put_on(modes: list[TorchDispatchMode]) -> None:
    for mode in reversed(modes):
        _push_mode(mode)
