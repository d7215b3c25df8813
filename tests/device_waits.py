"""Counts where the host would wait for a device, on a CPU: reads of its memory, copies to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph import handover
from fuzzgraph.memory import interception
from fuzzgraph.memory.side_requests import side_named
from tests.two_memories import TwoMemories

_READS = frozenset(
    ("cpu", "numpy", "tolist", "item", "equal", "nonzero", "masked_select", "unique")
    + ("__bool__", "__int__", "__float__", "__index__")
)
"""Calls after which the host has, or has to know the size of, what the device computed."""


class DeviceWaits(TorchFunctionMode):
    """Inside `counting`, notes each wait of the host; an index that is a mask is one too.

    What is taken down of a kernel's model does not count: on a device there is the kernel.

    Args:
        memories: tells device from host; the sessions have to be opened inside of its `watching`.
    """

    def __init__(self, memories: TwoMemories) -> None:
        super().__init__()
        self._memories = memories
        self.seen: Counter[str] = Counter()
        self._of_a_model = False

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """Note each wait by the name of the call."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(handover, "_array", self._reading(handover._array)))
            for name in ("taken_down", "without_results"):
                apart = self._apart(getattr(interception, name))
                stack.enter_context(patch.object(interception, name, apart))
            stack.enter_context(self)
            yield self.seen

    def _apart(self, of_a_model: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self._of_a_model = True
            try:
                return of_a_model(*given)
            finally:
                self._of_a_model = False

        return call

    def _reading(self, array: Any) -> Any:
        """Content of what is handed over is read past every mode."""

        def read(tensor: torch.Tensor) -> Any:
            if not self._of_a_model and self._on_device(tensor):
                self.seen["handed over"] += 1
            return array(tensor)

        return read

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Methods that FuzzGraph replaces are called "tensor_cpu" and the like.
        name = getattr(func, "__name__", "").removeprefix("tensor_")
        if args and self._waits(name, args, kwargs or {}):
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))

    def _waits(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if name in _READS:
            return any(map(self._on_device, args))
        if name == "to":
            wanted = side_named(kwargs.get("device", args[1] if len(args) > 1 else None))
            return bool(wanted) and self._side(args[0]) not in ("", wanted)
        if name == "__getitem__":
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            return any(map(self._is_mask, indices))
        return False

    def _is_mask(self, index: object) -> bool:
        return getattr(index, "dtype", None) is torch.bool and self._on_device(index)

    def _on_device(self, value: object) -> bool:
        return self._side(value) == "device"

    def _side(self, value: object) -> str:
        return self._memories.side_of(value) if isinstance(value, torch.Tensor) else ""
