"""Copies between host and device where both lie in the memory of one CPU.

On a device `x.cpu()` and `x.to(device)` give a tensor of its own unless `x` lies there already. On
a CPU torch gives `x` itself: a mirror made with it follows every later write, so that a stale one
looks fresh. While an engine runs on the recorder, these methods copy as they do on a device.

Where memory lies follows from what was asked for:

* on the device: "cuda", `graphs.device` itself, or a name read from it (`graphs.device.type`);
* on the host: the word "cpu", pinned memory, memory for which no device was named, `from_numpy`,
  and what `.cpu()` gave;
* a result lies where the tensors lie that it was made of.

What is asked for is watched while a session opens and captures, when buffers are made. Other memory
is unknown: `.cpu()` copies it, `.to(device)` leaves it as torch does. So is the side that a
`torch.device("cpu")` made anew names, `x.device` among them.

Not modelled: that a copy with `non_blocking=True` has not arrived yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.errors import DeviceReadError
from fuzzgraph.relays import relay

__all__ = [
    "SESSION_CPU",
    "Requests",
    "Side",
    "Transfers",
    "is_cuda",
    "own_device",
    "tensor_cpu",
    "tensor_numpy",
]

Side = Literal["device", "host", ""]
"""Where an engine holds memory; "" where that is unknown."""

SESSION_CPU = torch.device("cpu")
"""The device of every session on a CPU, known by identity: its name is the host's too."""

# Code that writes "cpu" names the host; a name read from SESSION_CPU names the device. The two
# strings are equal, so they are told apart by identity: Python interns a word that is written out
# in code, while `device.type` and `str(device)` make a new string object at each call.
_HOST_WORD = "cpu"


def own_device(device: torch.device) -> torch.device:
    """The object by which a session's device is known."""
    return SESSION_CPU if device.type == "cpu" else device


def is_cuda(device: object) -> bool:
    """Whether this names a GPU."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def _side_named(device: object) -> Side:
    if device is _HOST_WORD:
        return "host"
    if device is SESSION_CPU or device == _HOST_WORD or is_cuda(device):
        # `torch.device("cpu") == "cpu"` does not hold, so a device made anew names no side.
        return "device"
    return ""


class Requests(TorchFunctionMode):
    """Tells `ask` where a call of torch wants its result; `ask` returns what it was told before."""

    def __init__(self, ask: Callable[[Side | None], Side | None]) -> None:
        super().__init__()
        self._ask = ask

    @relay
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not kwargs:
            return func(*args)
        wanted = _side_wanted(kwargs)
        if wanted is None:
            return func(*args, **kwargs)
        before = self._ask(wanted)
        try:
            return func(*args, **kwargs)
        finally:
            self._ask(before)


def _side_wanted(kwargs: dict[str, Any]) -> Side | None:
    if kwargs.get("pin_memory"):
        return "host"
    device = kwargs.get("device")
    return None if device is None else _side_named(device)


_TO, _CPU, _NUMPY = torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.numpy
_CUDA, _AS_TENSOR, _FROM_NUMPY = torch.Tensor.cuda, torch.as_tensor, torch.from_numpy


class Transfers:
    """Torch's conversions between host and device, as they are where these are apart.

    Args:
        side_of: where a tensor lies.
        put: notes where a tensor lies.
    """

    def __init__(
        self, side_of: Callable[[torch.Tensor], Side], put: Callable[[torch.Tensor, Side], None]
    ) -> None:
        self.side_of = side_of
        self.put = put

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Meanwhile tensors are converted so; may be nested."""
        _install()
        _active.append(self)
        try:
            yield
        finally:
            _active.pop()

    @relay
    def to(self, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """As `Tensor.to`."""
        wanted = self._destination(args, kwargs)
        if not wanted:
            return _TO(x, *args, **kwargs)
        held = self.side_of(x)
        if held == wanted or (wanted == "device" and not held):
            return _TO(x, *args, **kwargs)
        if wanted == "host":
            _CPU(x)  # which a capture refuses
        before_copy = 2 if args and isinstance(args[0], torch.Tensor) else 3
        copy = _TO(x, *args[:before_copy], **{**kwargs, "copy": True})
        self.put(copy, wanted)
        return copy

    def _destination(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Side:
        named = kwargs.get("device", kwargs.get("other", args[0] if args else None))
        return self.side_of(named) if isinstance(named, torch.Tensor) else _side_named(named)

    @relay
    def cpu(self, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """As `Tensor.cpu`."""
        found = _CPU(x, *args, **kwargs)
        if self.side_of(x) == "host":
            return found
        copy = found.clone(memory_format=torch.preserve_format) if found is x else found
        self.put(copy, "host")
        return copy

    @relay
    def numpy(self, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `Tensor.numpy`.

        Raises:
            DeviceReadError: of device memory.
        """
        if self.side_of(x) == "device":
            raise DeviceReadError(
                "Tensor.numpy() of device memory, which a device refuses. "
                "Use Tensor.cpu() first, which copies it to the host."
            )
        return _NUMPY(x, *args, **kwargs)


_active: list[Transfers] = []
_converting = [False]
# A mode of torch looks a method up by its name and calls that: then it is ours a second time.


@relay
def _once(convert: Callable[..., Any], stock: Callable[..., Any], x: Any, *given: Any) -> Any:
    """Convert; inside of a conversion, and where no engine runs, do as torch does."""
    if _converting[0] or not _active:
        args, kwargs = given
        return stock(x, *args, **kwargs)
    _converting[0] = True
    try:
        return convert(_active[-1], x, *given)
    finally:
        _converting[0] = False


@relay
def tensor_to(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """In place of `Tensor.to`."""
    return _once(Transfers.to, _TO, x, args, kwargs)


@relay
def tensor_cpu(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """In place of `Tensor.cpu`."""
    return _once(Transfers.cpu, _CPU, x, args, kwargs)


@relay
def tensor_cuda(x: torch.Tensor, device: Any = None, **kwargs: Any) -> Any:
    """In place of `Tensor.cuda`: nothing and a number name a GPU too."""
    if not _active:
        return _CUDA(x, device, **kwargs)
    return tensor_to(x, "cuda" if device is None or isinstance(device, int) else device, **kwargs)


@relay
def tensor_numpy(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """In place of `Tensor.numpy`."""
    return _once(Transfers.numpy, _NUMPY, x, args, kwargs)


@relay
def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if device is None or not _active:
        return _AS_TENSOR(data, dtype=dtype, device=device)
    if isinstance(data, torch.Tensor):
        found: torch.Tensor = tensor_to(data, device, dtype or data.dtype)
        return found
    return torch.tensor(data, dtype=dtype, device=device)  # never an array's own memory


@relay
def _from_numpy(array: Any) -> torch.Tensor:
    found = _FROM_NUMPY(array)
    if _active:
        _active[-1].put(found, "host")
    return found


_METHODS = {"to": tensor_to, "cpu": tensor_cpu, "cuda": tensor_cuda, "numpy": tensor_numpy}


def _install() -> None:
    # For good: each change of a class makes Python look all its attributes up anew.
    if torch.Tensor.to is tensor_to:
        return
    for name, method in _METHODS.items():
        setattr(torch.Tensor, name, method)
    functions: Any = torch
    functions.as_tensor, functions.from_numpy = _as_tensor, _from_numpy
