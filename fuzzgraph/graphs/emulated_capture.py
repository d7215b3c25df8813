"""What a capture on the emulated device takes down, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs.playback import frozen
from fuzzgraph.graphs.repeating import Step, listed, moved, repeat_all, repeat_of
from fuzzgraph.graphs.rules import HostReads, refuse_forbidden
from fuzzgraph.memory.arena import storage_key
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.memory.launches import Launch
from fuzzgraph.memory.listener import Listener
from fuzzgraph.memory.operator_facts import Facts, facts_of, tensors_in
from fuzzgraph.memory.placement import memory_of
from fuzzgraph.memory.sides import works_on_host
from fuzzgraph.relays import relay

_ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect."
)
_NOT_PERMITTED = f"CUDA error: operation not permitted when stream is capturing{_ADVICE}"
_SPOILT = f"CUDA error: operation failed due to a previous error during capture{_ADVICE}"

_FACTS: dict[Any, Facts] = {}


class EmulatedGraph:
    """What one capture took down."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Operators and kernels in their order, as `aten.add.Tensor`."""
        self._steps: list[Step] = []

    def take_down(self, name: str, step: Step) -> None:
        """Add work."""
        self.names.append(name)
        self._steps.append(step)

    @relay
    def replay(self) -> None:
        """Run it all again."""
        repeat_all(self._steps)

    def reset(self) -> None:
        """Drop what was captured."""
        self.names, self._steps = [], []


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down in a graph what reaches the device.

    Args:
        memory: tells which tensors are the host's, whose work no graph holds; None where all are
            the device's.
    """

    def __init__(self, graph: EmulatedGraph, memory: GuardedMemory | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.side_of = None if memory is None else partial(self._side_of, memory)
        # What the host made outside guarded memory, by storage. The tensors are kept, so that no
        # other storage gets the same key.
        self._of_host: dict[int, torch.Tensor] = {}
        self._spoilt = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the mode, which imports its compiler."""
        return False

    def _side_of(self, memory: GuardedMemory, tensor: torch.Tensor) -> str:
        """'host' or 'device', '' where that is unknown."""
        key = storage_key(tensor)
        guarded = key == memory.arena.storage_key
        return "host" if not guarded and key in self._of_host else memory.side_of(tensor)

    def refuse(self, why: BaseException | None = None) -> NoReturn:
        """Spoil the capture, as a device does when it is asked for what it forbids.

        Raises:
            RuntimeError: what CUDA says then.
        """
        self._spoilt = True
        raise RuntimeError(_NOT_PERMITTED) from why

    def end(self) -> None:
        """The end of the capture.

        Raises:
            RuntimeError: it was spoilt.
        """
        self.side_of = None  # it holds this object, and with it the session
        self._of_host.clear()
        if self._spoilt:
            self.graph.reset()
            raise RuntimeError(_SPOILT)

    @relay
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        facts = _FACTS.get(func)
        if facts is None:
            facts = _FACTS[func] = facts_of(func)
        if self.side_of is not None and works_on_host(args, kwargs, self.side_of):
            out = func(*args, **kwargs)
            self._of_host |= {storage_key(each): each for each in tensors_in(listed(out))}
            return out
        self._check(facts, func, args, kwargs)
        before = memory_of(args[0]) if facts.is_resize else None
        out = func(*args, **kwargs)
        if before is not None:
            step = moved(before, args[0])
        else:
            step = repeat_of(facts, func, args, kwargs, out)
        if step is not None:
            if self._spoilt:
                raise RuntimeError(_SPOILT)
            self.graph.take_down(facts.text, step)
        return out

    def _check(self, facts: Facts, func: Any, args: Any, kwargs: Any) -> None:
        try:
            refuse_forbidden(facts, func, args, kwargs, "")
        except CaptureError as why:
            self.refuse(why)


class DeviceReads(HostReads):
    """Refuses reads that dispatch does not show on a CPU, as the device of this capture does."""

    def __init__(self, capture: Capture) -> None:
        super().__init__("", lambda: None, capture.side_of)
        self._capture = capture

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        try:
            super()._check(func, args, kwargs)
        except CaptureError as why:
            self._capture.refuse(why)


class Launches(Listener):
    """Takes down launches of kernels, which write by address and pass no mode."""

    def __init__(self, graph: EmulatedGraph) -> None:
        self._graph = graph

    def on_launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        args, kwargs = frozen(args), {name: frozen(item) for name, item in kwargs.items()}
        name = getattr(executor, "name", None) or getattr(executor.fn, "__name__", "kernel")
        self._graph.take_down(str(name), partial(launch, executor, *args, **kwargs))
