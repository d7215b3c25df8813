"""Tells on which side code asks for memory, where host and device are the same memory of a CPU.

Which side memory is on follows from what was asked for:

* on the device: "cuda", `graphs.device` itself, or a name read from it (`graphs.device.type`);
* on the host: the word "cpu", pinned memory, memory for which no device was named, `from_numpy`,
  and what `.cpu()` gave;
* a result is on the side of the tensors that it was made of, and so is what is asked for on the
  device of a tensor (`x.device`).

Requests are watched while a session opens and captures, when buffers are made. The side of other
memory is unknown: `.cpu()` copies it, `.to(device)` does what torch does. A new
`torch.device("cpu")` object names no side either, and neither does `x.device` of such memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import BuiltinFunctionType
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.memory.operator_facts import tensors_in
from fuzzgraph.relays import relay

Side = Literal["device", "host", ""]
"""Where an engine holds memory; "" where that is unknown."""

SESSION_CPU = torch.device("cpu")
"""The device of every session on a CPU; compared by identity, since "cpu" names the host too."""

HOST_CPU = torch.device("cpu")
"""What `x.device` of host memory is where host and device are told apart; compared by identity."""

DEVICE_OF: Mapping[Side, torch.device] = {"host": HOST_CPU, "device": SESSION_CPU}
"""What `x.device` is for memory of a known side."""

# Code that writes "cpu" names the host; a name read from SESSION_CPU names the device. The two
# strings are equal, so they are told apart by identity: Python interns a word that is written out
# in code, while `device.type` and `str(device)` make a new string object at each call.
_HOST_WORD = "cpu"


def own_device(device: torch.device) -> torch.device:
    """The device object that a session uses; `SESSION_CPU` for any CPU device."""
    return SESSION_CPU if device.type == "cpu" else device


def is_cuda(device: object) -> bool:
    """Whether this names a GPU."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def side_named(device: object) -> Side:
    """The side that a `device` argument asks for; "" where it names none."""
    if device is _HOST_WORD or device is HOST_CPU:
        return "host"
    if device is SESSION_CPU or device == _HOST_WORD or is_cuda(device):
        # A string equal to "cpu" and not the literal was read from the session's device. A new
        # `torch.device("cpu")` does not equal the string, so it names no side.
        return "device"
    return ""


class Requests(TorchFunctionMode):
    """Tells `ask` on which side a call of torch wants its result.

    Args:
        ask: takes the side and returns the one it took before, to be put back after the call.
        side_of: tells the side of a tensor whose device is asked for.
    """

    def __init__(
        self,
        ask: Callable[[Side | None], Side | None],
        side_of: Callable[[torch.Tensor], Side],
    ) -> None:
        super().__init__()
        self._ask = ask
        self._side_of = side_of
        self._call: tuple[Any, tuple[Any, ...], Any] | None = None

    @relay
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func == _GET_DEVICE:
            return device_of(func(*args), self._side_of(args[0]))
        outer, self._call = self._call, (func, args, kwargs)
        try:
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
        finally:
            self._call = outer

    @property
    def sees_all(self) -> bool:
        """Whether what is asked for now is what the present call of torch asks for.

        An operator that an engine registers, as all Python within a call, calls torch past its
        modes, and what torch makes by the way lies where the call's tensors do.
        """
        if self._call is None:
            return False
        func, args, kwargs = self._call
        made_of = tensors_in([*args, *(kwargs or {}).values()])
        return isinstance(func, BuiltinFunctionType) and not made_of


_GET_DEVICE = torch.Tensor.device.__get__  # type: ignore[attr-defined]


def device_of(found: torch.device, side: Side) -> torch.device:
    """What code is told that asks for a tensor's device, where two sides are told apart."""
    return DEVICE_OF.get(side, found) if found.type == "cpu" else found


def _side_wanted(kwargs: dict[str, Any]) -> Side | None:
    if kwargs.get("pin_memory"):
        return "host"
    device = kwargs.get("device")
    return None if device is None else side_named(device)
