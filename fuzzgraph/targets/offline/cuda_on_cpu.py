"""What code for GPUs asks of one where there is none: memory on `cuda` and its properties.

Backends allocate on `device="cuda"` by name and look up the number of multiprocessors. Where there
is a GPU nothing is changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fuzzgraph.memory.cuda_on_cpu import ClaimsCuda, CudaMeansCpu
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.runners.capture import replaced_names

__all__ = ["cuda_on_cpu", "trusting"]

_PROPERTIES = Stub(multi_processor_count=4, major=9, minor=0)


@contextlib.contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """While the engine's code runs."""
    if torch.cuda.is_available():
        yield
        return
    answers = {
        "get_device_properties": lambda *_: _PROPERTIES,
        "get_device_capability": lambda *_: (_PROPERTIES.major, _PROPERTIES.minor),
    }
    with replaced_names([torch.cuda], answers), CudaMeansCpu():
        yield


def trusting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the engine that asserts tensors of a GPU and runs without one."""
    if hasattr(function, "__wrapped__"):
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with ClaimsCuda():
            return function(*args, **kwargs)

    return run
