"""Says for each tensor of a session on a CPU whether it stands for device or for host memory.

Guarded memory keeps the answer in its region, other memory in its storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _device as _default

from fuzzgraph.memory.arena import Arena
from fuzzgraph.memory.operator_facts import Facts, tensors_in
from fuzzgraph.memory.placement import Layout
from fuzzgraph.memory.regions import Segment
from fuzzgraph.memory.side_requests import SESSION_CPU, Requests, Side
from fuzzgraph.memory.transfers import Transfers

_ATTRIBUTE = "_fuzzgraph_side"
_PINNED = "_fuzzgraph_pinned"


def works_on_host(
    args: Any, kwargs: Mapping[str, Any], side_of: Callable[[torch.Tensor], str]
) -> bool:
    """Whether an operation is given tensors, all of them known to be the host's.

    Scalars beside other tensors do not count: torch takes a host scalar beside device tensors.
    """
    tensors = tensors_in([*args, *kwargs.values()])
    counted = [tensor for tensor in tensors if tensor.dim()] or tensors
    return bool(counted) and all(side_of(tensor) == "host" for tensor in counted)


class Sides:
    """Sides of one session's memory; does nothing where the session runs on a real device."""

    def __init__(self, arena: Arena, layout: Layout) -> None:
        self._layout = layout
        self._storage = arena.storage_key
        self._one_memory = arena.device is SESSION_CPU
        self._wanted: Side | None = None
        self._apart = False
        self._requests = Requests(self._ask, self.of)
        self._transfers = Transfers(self.of, self.put, self._ask)

    def separate(self, *, watched: bool = False) -> AbstractContextManager[object]:
        """Inside, host and device copy to each other as if they were two memories.

        Args:
            watched: whether the devices that calls ask for are noted too; needed while buffers
                are made.
        """
        if not self._one_memory:
            return nullcontext()
        if not watched:
            return self._transfers.installed()
        both = ExitStack()
        both.enter_context(self._transfers.installed())
        both.enter_context(self._requests)
        return both

    def of(self, tensor: torch.Tensor) -> Side:
        """The side of a tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata != self._storage:
            side: Side = getattr(storage, _ATTRIBUTE, "")
            return side
        region = self._layout.region_of(tensor)
        return "" if region is None else region.side

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in memory of the host that the engine asked to be pinned."""
        storage = tensor.untyped_storage()
        if storage._cdata != self._storage:
            return getattr(storage, _PINNED, False)
        region = self._layout.region_of(tensor)
        return region is not None and region.pinned

    def is_out_of_reach(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies, for certain, where no kernel of a device reaches: on the host, and
        not pinned."""
        storage = tensor.untyped_storage()
        if storage._cdata != self._storage:
            on_host = getattr(storage, _ATTRIBUTE, "") == "host"
            return on_host and not getattr(storage, _PINNED, False)
        region = self._layout.region_of(tensor)
        return region is not None and region.side == "host" and not region.pinned

    @property
    def wanted(self) -> Side | None:
        """The side on which the call of torch that runs now wants its result; None where it names
        no device."""
        return self._wanted

    @contextmanager
    def host_apart(self) -> Iterator[None]:
        """Inside, what a graph's capture makes of the host's memory is on the host too."""
        before, self._apart = self._apart, True
        try:
            yield
        finally:
            self._apart = before

    def of_fresh(self, segment: Segment, facts: Facts, args: tuple[Any, ...], kwargs: Any) -> Side:
        """The side of a result that has memory of its own."""
        if segment == "graph":  # it holds device work only
            on_host = self._apart and works_on_host(args, kwargs or {}, self.of)
            return "host" if on_host else "device"
        return self._inherited(facts, args, kwargs) if self._wanted is None else self._wanted

    def _ask(self, side: Side | None) -> Side | None:
        before, self._wanted = self._wanted, side
        return before

    def put(self, tensor: torch.Tensor, side: Side, *, pinned: bool = False) -> None:
        """Note the side of a tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata != self._storage:
            # Torch keeps one Python object for a storage as long as the storage lives.
            setattr(storage, _ATTRIBUTE, side)
            setattr(storage, _PINNED, pinned)
        elif (region := self._layout.region_of(tensor)) is not None:
            region.side, region.pinned = side, pinned

    @property
    def _sees_requests(self) -> bool:
        """Whether it is known that a call names no device."""
        # A default device that an engine has set is no argument of any call.
        return self._requests.sees_all and _default.CURRENT_DEVICE is None

    def _inherited(self, facts: Facts, args: tuple[Any, ...], kwargs: Any) -> Side:
        """The side of a result for which no device was named: torch's default is the host."""
        tensors = tensors_in([*args, *(kwargs or {}).values()])
        if facts.is_lift or not tensors:
            return "host" if self._sees_requests else ""
        # Scalars do not count: torch takes a host scalar beside device tensors.
        sides = {self.of(tensor) for tensor in tensors if tensor.dim()}
        if "device" in sides:
            return "device"
        return sides.pop() if len(sides) == 1 else ""
