"""What code for GPUs asks of one where there is none: memory on `cuda` and its properties.

Backends allocate on `device="cuda"` by name and look up the number of multiprocessors. Where there
is a GPU nothing is changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import torch

from fuzzgraph.memory.device_names import CudaMeansCpu

__all__ = ["on_this_device"]

_PROPERTIES = SimpleNamespace(multi_processor_count=4, major=9, minor=0)


@contextlib.contextmanager
def on_this_device() -> Iterator[None]:
    """While the engine's code runs."""
    if torch.cuda.is_available():
        yield
        return
    answers = {
        "get_device_properties": lambda *_: _PROPERTIES,
        "get_device_capability": lambda *_: (_PROPERTIES.major, _PROPERTIES.minor),
    }
    own = {name: getattr(torch.cuda, name) for name in answers}
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    try:
        with CudaMeansCpu():
            yield
    finally:
        for name, value in own.items():
            setattr(torch.cuda, name, value)
