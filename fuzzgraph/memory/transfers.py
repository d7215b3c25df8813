"""Makes copies between host and device on a CPU, where both are the same memory.

On a device `x.cpu()` and `x.to(device)` return a new tensor unless `x` lies there already. On a CPU
torch returns `x` itself: a host mirror made that way follows every later write, so that a stale
mirror looks fresh. While an engine runs on the recorder, these methods copy as they do on a device.

Which side a tensor is on: `side_requests` and `sides`. Copies arrive at once, unless a late stream
is open (`graphs.late_copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from fuzzgraph.errors import DeviceReadError
from fuzzgraph.memory.device_work import wait
from fuzzgraph.memory.side_requests import Side, side_named
from fuzzgraph.relays import relay

# Torch's own methods, kept before `_install` replaces them.
_TO, _CPU, _NUMPY = torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.numpy
_CUDA, _AS_TENSOR, _FROM_NUMPY = torch.Tensor.cuda, torch.as_tensor, torch.from_numpy


class Put(Protocol):
    """Notes the side of a tensor, and whether its memory is pinned."""

    def __call__(self, tensor: torch.Tensor, side: Side, *, pinned: bool = False) -> None: ...


def _asks_nobody(side: Side | None) -> Side | None:
    return None


class Transfers:
    """Torch's conversions between host and device, as they work with two memories.

    Args:
        side_of: tells the side of a tensor.
        put: notes the side of a tensor.
        ask: told on which side a conversion wants its result; see `Requests`.
    """

    def __init__(
        self,
        side_of: Callable[[torch.Tensor], Side],
        put: Put,
        ask: Callable[[Side | None], Side | None] = _asks_nobody,
    ) -> None:
        self.side_of = side_of
        self.put = put
        self.ask = ask

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, tensors are converted this way; may be nested."""
        _install()
        _active.append(self)
        try:
            yield
        finally:
            _active.pop()

    @relay
    def to(self, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """As `Tensor.to`."""
        named = kwargs.get("device", kwargs.get("other", args[0] if args else None))
        wanted = self.side_of(named) if isinstance(named, torch.Tensor) else side_named(named)
        held = self.side_of(x)
        if not wanted:
            made = _TO(x, *args, **kwargs)
            names_none = named is None or isinstance(named, torch.dtype)
            if held == "host" and names_none and not self.side_of(made):
                self.put(made, held)  # converted where it lies
            return made
        # Memory of unknown side moved to the device is left to torch: a copy would be wrong if it
        # is the device's already.
        if held == wanted or (wanted == "device" and not held):
            return _TO(x, *args, **kwargs)
        # `copy` is the third argument of `to(other, non_blocking, copy)` and the fourth of
        # `to(device, dtype, non_blocking, copy)`. Dropped, because it is given by keyword here.
        before_copy = 2 if args and isinstance(args[0], torch.Tensor) else 3
        waits = not kwargs.get("non_blocking", args[before_copy - 1 : before_copy] == (True,))
        if wanted == "host":
            _CPU(x)  # a capture refuses this call, as a device does
            if waits:
                wait()
        before = self.ask(wanted)
        try:
            copy = _TO(x, *args[:before_copy], **{**kwargs, "copy": True})
        finally:
            self.ask(before)
        # Torch pins what it copies to without waiting.
        self.put(copy, wanted, pinned=wanted == "host" and not waits)
        return copy

    @relay
    def cpu(self, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """As `Tensor.cpu`."""
        found = _CPU(x, *args, **kwargs)
        if self.side_of(x) == "host":
            return found
        wait()
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


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Count memory that no pool of ours holds as the host's, which a server has pageable.

    For what a session hands an engine: while a step runs, nobody watches where memory is asked for.
    """
    if _active:
        _active[-1].put(tensor, "host")
    return tensor


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Count memory of the host as pinned, which a torch without a GPU cannot ask for."""
    if _active:
        _active[-1].put(tensor, "host", pinned=True)
    return tensor


_converting = [False]


class _ByTorch:
    """Inside, conversions are torch's own: for work that a device does, not an engine's host."""

    # No generator: it is entered for every launch of a model.
    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _converting[0] = _converting[0], True

    def __exit__(self, *_: object) -> None:
        _converting[0] = self._before


by_torch = _ByTorch


# A mode of torch looks a method up by its name and calls what it finds. Within a conversion that is
# our method a second time, so this flag lets the inner call through.


@relay
def _once(convert: Callable[..., Any], stock: Callable[..., Any], x: Any, *given: Any) -> Any:
    """Convert; within a conversion, and where no engine runs, do what torch does."""
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
    """In place of `Tensor.cuda`: no device, or a number, names a GPU too."""
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
    # A device copies an array. `as_tensor` on a CPU would share the array's memory.
    return torch.tensor(data, dtype=dtype, device=device)


@relay
def _from_numpy(array: Any) -> torch.Tensor:
    found = _FROM_NUMPY(array)
    if _active:
        _active[-1].put(found, "host")
    return found


_METHODS = {"to": tensor_to, "cpu": tensor_cpu, "cuda": tensor_cuda, "numpy": tensor_numpy}


def _install() -> None:
    # Never taken back: each change of a class makes Python drop its cached look-ups of that class.
    if torch.Tensor.to is tensor_to:
        return
    for name, method in _METHODS.items():
        setattr(torch.Tensor, name, method)
    functions: Any = torch
    functions.as_tensor, functions.from_numpy = _as_tensor, _from_numpy
