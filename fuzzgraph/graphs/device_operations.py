"""Tells an engine's work on its device from its host's own, and where the host waits.

The host waits where CUDA does: in a copy that blocks, in a copy to memory of the host that is not
pinned, in a read of a value of the device, in an operation whose result has a shape that depends on
data, in an operation on tensors of both memories, and in `synchronize`; and in `synchronize` of an
event for what was given before it was recorded. What is not known to go on without waiting waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.graphs.repeating import fresh_of
from fuzzgraph.graphs.rules import HOST_READS, depends_on_data
from fuzzgraph.kernel_models.launch import ModelKernel, Run, current_route, routed
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.device_work import Stream, opened
from fuzzgraph.memory.launches import Launch, LaunchHook
from fuzzgraph.memory.operator_facts import Facts, facts_of, inside_of, tensors_in
from fuzzgraph.memory.side_requests import device_of
from fuzzgraph.memory.sides import Sides, works_on_host
from fuzzgraph.memory.source_lines import innermost_source
from fuzzgraph.memory.stream_order import ORDER
from fuzzgraph.relays import relay

_FACTS: dict[Any, tuple[Facts, Any]] = {}
COPIES: Mapping[str, int | None] = {
    "aten.copy_": 2, "aten._foreach_copy_": 2, "aten._to_copy": None,
}  # fmt: skip
"""Operators that copy, and where their schemas have `non_blocking`; None: a keyword only."""


@contextmanager
def given_to(
    stream: Stream, memory: GuardedMemory, operations: DeviceOperations, launches: Launches
) -> Iterator[None]:
    """Inside, the engine's operations and its launches of kernels go to a stream.

    For steps after capture; enter it inside `memory.over_lanes`.
    """
    launches.route = current_route()
    hook = LaunchHook()
    hook.install(launches.launch, memory.lanes)
    try:
        with (
            opened(stream),
            memory.sides.separate(watched=True),
            routed(launches.run_model),
            operations,
            HostCalls(memory, stream.wait),
        ):
            yield
    finally:
        hook.remove()


class Launches:
    """Hands launches of kernels, which pass no mode, to a subclass."""

    route: Run
    """What runs the model of a kernel, as it did before launches were handed on."""

    @relay
    def launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an interpreted kernel of Triton."""
        return self.on_device(launch, (executor, *args), kwargs)

    @relay
    def run_model(self, kernel: ModelKernel, **arguments: Any) -> None:
        """Run the model of a kernel."""
        self.on_device(self.route, (kernel,), arguments)

    def on_device(
        self, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do a launch, `work` on these arguments."""
        raise NotImplementedError


class DeviceOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands the device's operations to a subclass, and notes on which side their results are.

    Args:
        memory: the session's, on a CPU.
        wait: called before an operation for which the host waits.
    """

    def __init__(self, memory: GuardedMemory, wait: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sides: Sides = memory.sides
        self._wait = wait
        self._arena = memory.arena.storage_key

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the mode, which imports its compiler."""
        return False

    @relay
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        known = _FACTS.get(func)
        if known is None:
            known = _FACTS[func] = facts_of(func), inside_of(func, "CPU")
        facts, inside = known
        if inside is not None:
            with self:
                return func._op_dk(inside, *args, **kwargs)
        if self._is_the_hosts(facts, args, kwargs):
            return self.noted(func(*args, **kwargs), facts, args, kwargs)
        if not self._waits(facts, args, kwargs):
            return self.on_device(func, facts, args, kwargs)
        self._wait()
        out = self.on_device(func, facts, args, kwargs)
        ORDER.host_waits(ORDER.clock())
        return out

    def on_device(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do an operation of the device."""
        raise NotImplementedError

    def arriving_late(
        self, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[bool]:
        """For each copy that an operation makes, whether it goes to the host and may arrive late;
        empty where none does."""
        if facts.name not in COPIES or not goes_on(facts, args, kwargs):
            return []
        copies = copies_in(facts, args, kwargs)
        late = [self._is_to_host(each) and self._may_arrive_late(each) for each in copies]
        return late if any(late) else []

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the host's memory, for certain."""
        return self.sides.of(tensor) == "host"

    def noted(self, out: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, whose side is known from now on."""
        # What was lifted is no operation's result before.
        for each in [out] if facts.is_lift else fresh_of(out, args, kwargs):
            if each.untyped_storage()._cdata != self._arena:
                self.sides.put(each, self.sides.of_fresh("engine", facts, args, kwargs))
        return out

    def _is_the_hosts(self, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an operation has nothing to do with the device."""
        asked_for_host = self.sides.wanted in (None, "host")
        given = tensors_in([*args, *kwargs.values()])
        if facts.is_lift or not given:
            return asked_for_host
        if facts.name == "aten._to_copy":
            return asked_for_host and all(map(self.is_on_host, given))
        return works_on_host(args, kwargs, self.sides.of)

    def _waits(self, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the host goes on only when the device is done."""
        if facts.name in COPIES:
            return self._copy_waits(facts, args, kwargs)
        if facts.is_lift or depends_on_data(facts, args, kwargs):
            return True
        # Torch takes a scalar of the host as an argument of the kernel.
        given = [each for each in tensors_in([*args, *kwargs.values()]) if each.dim()]
        return any(map(self.is_on_host, given))

    def _copy_waits(self, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if goes_on(facts, args, kwargs):
            given = copies_in(facts, args, kwargs)
            return any(self._is_to_host(each) and not self._may_arrive_late(each) for each in given)
        wanted = self.sides.wanted if facts.name == "aten._to_copy" else ""
        return wanted == "host" or any(
            self.sides.of(each) != "device" for each in tensors_in([*args])
        )

    def _is_to_host(self, copy: GivenCopy) -> bool:
        """Whether a copy writes memory of the host."""
        if copy.target is None:
            return self.sides.wanted == "host"
        return self.is_on_host(copy.target)

    def _may_arrive_late(self, copy: GivenCopy) -> bool:
        """Whether a copy to the host that is asked not to wait may have written nothing yet when
        the call returns.

        It may where CUDA writes pinned memory as it lies. Torch converts to another dtype on the
        host, behind a copy to pageable memory, which CUDA waits for (`copy_kernel_cuda` in torch's
        `Copy.cu`; CUDA runtime API, "API synchronization behavior").
        """
        if copy.converts or self.sides.of(copy.source) != "device":
            return False
        if copy.target is None:  # torch pins what it makes
            return copy.source.is_contiguous()
        return self.sides.is_pinned(copy.target) and copy.target.is_contiguous()


class GivenCopy(NamedTuple):
    """A copy that an operation makes."""

    target: torch.Tensor | None
    """None for memory that torch makes for it."""
    source: torch.Tensor
    converts: bool
    """Whether to another dtype."""

    def written(self, out: Any) -> Any:
        """The memory that it wrote.

        Args:
            out: what the operation returned.
        """
        return out if self.target is None else self.target


def giving_line() -> str:
    """The engine's line that gives the device what it is given now."""
    return innermost_source() or "unknown line"


def goes_on(facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation that copies is asked not to wait."""
    at = COPIES[facts.name]
    given = args[at] if at is not None and len(args) > at else kwargs.get("non_blocking")
    return bool(given)


def copies_in(facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[GivenCopy]:
    """The copies that one operation makes."""
    if facts.name == "aten._to_copy":
        dtype = kwargs.get("dtype") or args[0].dtype
        yield GivenCopy(None, args[0], dtype != args[0].dtype)
        return
    targets, sources = (each if isinstance(each, (list, tuple)) else [each] for each in args[:2])
    for target, source in zip(targets, sources, strict=True):
        yield GivenCopy(target, source, target.dtype != source.dtype)


_DEVICE: Any = torch.Tensor.device
# `Tensor.cpu` says by itself that it waits.
_READS = frozenset(read for read, name in HOST_READS.items() if name != "cpu")


class HostCalls(TorchFunctionMode):
    """Sees reads that dispatch does not show on a CPU, and tells host from device where code asks
    for a tensor's device.

    Args:
        wait: called before a read of a value of the device.
    """

    def __init__(self, memory: GuardedMemory, wait: Callable[[], None]) -> None:
        super().__init__()
        self._sides, self._wait = memory.sides, wait

    @relay
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _READS and self._sides.of(args[0]) != "host":
            ORDER.host_waits(ORDER.clock())
            self._wait()
        found = func(*args, **kwargs) if kwargs else func(*args)
        if getattr(func, "__self__", None) is _DEVICE:
            return device_of(found, self._sides.of(args[0]))
        return found
