"""`cuda` on a machine without a GPU: device names mean the CPU, and torch.cuda has answers.

Engines allocate on `device="cuda"` by name, look up the number of multiprocessors and hand streams
around. Where there is a GPU nothing is changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.memory.side_requests import SESSION_CPU, is_cuda
from fuzzgraph.memory.transfers import pinned
from fuzzgraph.relays import relay
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.streams import (
    DEFAULT,
    Event,
    OnStream,
    Stream,
    current_stream,
    set_stream,
    synchronize_device,
)
from fuzzgraph.targets.offline.stub import Stub

__all__ = [
    "ACCELERATOR",
    "DEVICE",
    "STREAMS",
    "ClaimsCuda",
    "CudaMeansCpu",
    "cuda_on_cpu",
    "tensors_claim_cuda",
]


class CudaMeansCpu(TorchFunctionMode):
    """Every `cuda` in a call of torch means the CPU, and pinned memory is memory counted so."""

    @relay
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _PIN_MEMORY:
            return pinned(args[0].clone())  # a device's host copies to memory that it pins
        # Called for every operation, attributes of tensors among them, hundreds of times a step.
        for arg in args:
            if type(arg) in _NAMES:
                args = tuple(SESSION_CPU if is_cuda(arg) else arg for arg in args)
                break
        if not kwargs:
            return func(*args)
        made = func(*args, **_without_cuda(kwargs))
        return pinned(made) if kwargs.get("pin_memory") else made


class ClaimsCuda(TorchFunctionMode):
    """Tensors say that they lie on a GPU, for code that asserts it and needs none.

    Args:
        device: whether they say so as well where code asks for their device, to choose a kernel by
            it; memory that it asks for there must come from inside `cuda_on_cpu`.
    """

    def __init__(self, device: bool = False) -> None:
        super().__init__()
        self._device = device

    @relay
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func == _IS_CUDA:
            return True
        if self._device and func == _DEVICE_OF:
            return _CUDA
        return func(*args, **(kwargs or {}))


_NAMES = (str, torch.device)
_PIN_MEMORY = torch.Tensor.pin_memory
_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_DEVICE_OF = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_CUDA = torch.device("cuda")


def _without_cuda(kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs = dict(kwargs)
    if is_cuda(kwargs.get("device")):
        kwargs["device"] = SESSION_CPU
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
        kwargs["device"] = "cpu"  # the word by which `memory.transfers` knows the host
    return kwargs


def _nothing() -> Callable[..., None]:
    """A function of its own for each name: torch's compiler keeps a rule for each by the function,
    and refuses two names for one."""
    return lambda *_, **__: None


def _device_synchronized() -> Callable[..., None]:
    """The same for what waits for all work."""
    return lambda *_, **__: synchronize_device()


# Of a Hopper GPU, so that engines choose the code that they ship for servers; few
# multiprocessors, because work is split among them and a split costs time here.
_MAJOR, _MINOR, _MULTIPROCESSORS, _BYTES = 9, 0, 4, 80 << 30
_THREADS = 2048
"""That a multiprocessor of this kind holds (CUDA C++ programming guide, compute capabilities)."""


@relay
def _properties(device: Any = None) -> Stub:
    """Of any device.

    Raises:
        RuntimeError: torch's own, of what names no device.
    """
    if isinstance(device, str):
        torch.device(device)
    return Stub(
        name="CPU", multi_processor_count=_MULTIPROCESSORS, major=_MAJOR, minor=_MINOR,
        total_memory=_BYTES, max_threads_per_multi_processor=_THREADS,
    )  # fmt: skip


DEVICE: Mapping[str, Any] = {
    "get_device_properties": _properties,
    "get_device_capability": lambda *_: (_MAJOR, _MINOR),
    "current_device": lambda: 0,
}  # fmt: skip
"""Names of torch.cuda that say what the device is."""

STREAMS: Mapping[str, Any] = {
    "Stream": Stream,
    "Event": Event,
    "current_stream": current_stream,
    "default_stream": lambda *_: DEFAULT,
    "stream": OnStream,
    "set_stream": set_stream,
    "synchronize": _device_synchronized(),
    "empty_cache": _nothing(),
    "device": contextlib.nullcontext,
    "set_device": _nothing(),
    "mem_get_info": lambda *_: (_BYTES, _BYTES),
    "memory_stats": lambda *_: {},
    "memory_allocated": lambda *_: 0,
    "memory_reserved": lambda *_: 0,
    "max_memory_allocated": lambda *_: 0,
    "reset_peak_memory_stats": _nothing(),
    "is_current_stream_capturing": lambda: False,
    "graph_pool_handle": lambda: (0, 0),
}
"""Names of torch.cuda that order work on the device and account for its memory."""

ACCELERATOR: Mapping[str, Any] = {
    "synchronize": _device_synchronized(),
    "empty_cache": _nothing(),
    "reset_peak_memory_stats": _nothing(),
    "current_stream": current_stream,
    "current_device_index": lambda: 0,
    "get_memory_info": lambda *_: (_BYTES, _BYTES),
    "memory_stats": lambda *_: {},
    "memory_allocated": lambda *_: 0,
    "memory_reserved": lambda *_: 0,
    "max_memory_allocated": lambda *_: 0,
    "max_memory_reserved": lambda *_: 0,
}
"""The same of torch.accelerator, for engines that ask there."""


@contextlib.contextmanager
def cuda_on_cpu(names: Mapping[str, Any] = DEVICE) -> Iterator[None]:
    """Around the engine's code: `cuda` names the CPU, and torch.cuda holds these names.

    Args:
        names: of torch.cuda -> what replaces it, e.g. `{**DEVICE, **STREAMS}`.
    """
    if torch.cuda.is_available():
        yield
        return
    with replaced_names([torch.cuda], names), CudaMeansCpu():
        yield


def tensors_claim_cuda(function: Callable[..., Any], *, device: bool = False) -> Callable[..., Any]:
    """A function of the engine that asserts tensors of a GPU and runs without one.

    Args:
        device: as of `ClaimsCuda`.
    """
    if hasattr(function, _CLAIMS):
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with ClaimsCuda(device):
            return function(*args, **kwargs)

    setattr(run, _CLAIMS, True)
    return run


_CLAIMS = "_claims_cuda"
"""Of a function for which tensors do so already."""
