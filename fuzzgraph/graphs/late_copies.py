"""Tells a late stream what an engine gives its device, and when the engine's host waits.

A copy is late if it is asked not to wait (`non_blocking=True`) and reads contiguous memory of the
host that the engine asked to be pinned. CUDA reads pageable memory, and memory that it has to lay
out anew, before the call returns; the content of the call is kept for these.

The host waits for all copies where CUDA does: in a copy that blocks, in a read of a value of the
device, in an operation whose result has a shape that depends on data, in an operation on tensors of
both memories, and in `synchronize`; and in `synchronize` of an event for those given before it was
recorded. What is not known to go on without waiting waits.

Not modelled: several streams and their order; what the host reads of a copy from the device that
has not arrived; copies from pinned memory that a graph holds, which read it when it is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.graphs.late_stream import LateCopy, LateStream
from fuzzgraph.graphs.playback import frozen
from fuzzgraph.graphs.repeating import fresh_of, moved, repeat_of
from fuzzgraph.graphs.rules import HOST_READS, depends_on_data
from fuzzgraph.kernel_models.launch import ModelKernel, Run, current_route, routed
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.device_work import opened
from fuzzgraph.memory.launches import Launch, LaunchHook
from fuzzgraph.memory.operator_facts import Facts, facts_of, inside_of, tensors_in
from fuzzgraph.memory.placement import memory_of
from fuzzgraph.memory.side_requests import HOST_CPU, SESSION_CPU, Side
from fuzzgraph.memory.sides import works_on_host
from fuzzgraph.memory.source_lines import innermost_source
from fuzzgraph.relays import relay

_FACTS: dict[Any, tuple[Facts, Any]] = {}
# Operators that copy, and where their schemas have `non_blocking`; None: a keyword only.
_COPIES: Mapping[str, int | None] = {
    "aten.copy_": 2, "aten._foreach_copy_": 2, "aten._to_copy": None,
}  # fmt: skip


@contextmanager
def late_copies(memory: GuardedMemory, stream: LateStream) -> Iterator[None]:
    """Inside, the engine's work and its launches of kernels go to the stream.

    For steps after capture; enter it inside `memory.over_lanes`.
    """
    hook = LaunchHook()
    launches = _Launches(stream, current_route())
    hook.install(launches.launch, memory.lanes)
    try:
        with (
            opened(stream),
            memory.sides.separate(watched=True),
            routed(launches.run_model),
            _Operations(memory, stream),
            _Calls(memory, stream),
        ):
            yield
    finally:
        hook.remove()


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down operations on the device, and notes on which side their results are."""

    def __init__(self, memory: GuardedMemory, stream: LateStream) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sides, self._stream = memory.sides, stream
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
            return self._noted(func(*args, **kwargs), facts, args, kwargs)
        if self._waits(facts, args, kwargs):
            self._stream.wait()
        return self._taken_down(func, facts, args, kwargs)

    def _is_the_hosts(self, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an operation has nothing to do with the device."""
        asked_for_host = self._sides.wanted in (None, "host")
        given = tensors_in([*args, *kwargs.values()])
        if facts.is_lift or not given:
            return asked_for_host
        if facts.name == "aten._to_copy":
            return asked_for_host and all(map(self._on_host, given))
        return works_on_host(args, kwargs, self._sides.of)

    def _on_host(self, tensor: torch.Tensor) -> bool:
        return self._sides.of(tensor) == "host"

    def _waits(self, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the host goes on only when the device is done."""
        if facts.name in _COPIES:
            if _without_waiting(facts, args, kwargs):
                return False
            wanted = self._sides.wanted if facts.name == "aten._to_copy" else ""
            return wanted == "host" or any(
                self._sides.of(each) != "device" for each in tensors_in([*args])
            )
        if facts.is_lift or depends_on_data(facts, args, kwargs):
            return True
        # Torch takes a scalar of the host as an argument of the kernel.
        given = [each for each in tensors_in([*args, *kwargs.values()]) if each.dim()]
        return any(map(self._on_host, given))

    @relay
    def _taken_down(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        stream = self._stream
        stream.about_to_write(_written(facts, args, kwargs))
        before = memory_of(args[0]) if facts.is_resize else None
        # A source that is late is looked at before the operation, as are other reads of the host.
        copies = self._late(facts, args, kwargs)
        kept = tuple(map(self._kept, args)) if copies is None else copies
        out = self._noted(func(*args, **kwargs), facts, args, kwargs)
        stream.made(fresh_of(out, args, kwargs))
        if before is not None:
            step = moved(before, args[0])
        elif copies is None:
            step = repeat_of(facts, func, kept, kwargs, out)
        else:
            step = partial(_copied, stream, func, facts, kept, kwargs, out)
        if step is not None:
            stream.take_down(step)
        return out

    def _late(
        self, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """The arguments with late copies in the place of their sources; None if none is late."""
        if facts.name not in _COPIES or not _without_waiting(facts, args, kwargs):
            return None
        at = 0 if facts.name == "aten._to_copy" else 1
        sources = args[at] if isinstance(args[at], (list, tuple)) else [args[at]]
        targets = sources if at == 0 else args[0]
        targets = targets if isinstance(targets, (list, tuple)) else [targets]
        line = innermost_source() or "unknown line"
        late = [
            self._stream.add_copy(source, line)
            if self._is_late(target, source)
            else self._kept(source)
            for target, source in zip(targets, sources, strict=True)
        ]
        if not any(isinstance(each, LateCopy) for each in late):
            return None
        return (*frozen(args[:at]), late if isinstance(args[at], (list, tuple)) else late[0],
                *frozen(args[at + 1 :]))  # fmt: skip

    def _is_late(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        if not self._sides.is_pinned(source):
            return False
        return source.numel() > 0 and source.expand(target.shape).is_contiguous()

    def _kept(self, value: Any) -> Any:
        """An argument as a repetition is given it: what the host holds now."""
        if isinstance(value, torch.Tensor):
            return value.clone() if self._on_host(value) else value
        if isinstance(value, (list, tuple)) and tensors_in([value]):
            return type(value)(map(self._kept, value))
        return value

    def _noted(self, out: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, whose side is known from now on."""
        # What was lifted is no operation's result before.
        for each in [out] if facts.is_lift else fresh_of(out, args, kwargs):
            if each.untyped_storage()._cdata != self._arena:
                self._sides.put(each, self._sides.of_fresh("engine", facts, args, kwargs))
        return out


class PinnedCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the lines that give copies from pinned memory to a real device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the mode, which imports its compiler."""
        return False

    @relay
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        facts = facts_of(func)
        if facts.name in _COPIES and _without_waiting(facts, args, kwargs):
            pinned = [each for each in tensors_in(args) if each.is_cpu and each.is_pinned()]
            self.lines += [innermost_source() or "unknown line"] * len(pinned)
        return func(*args, **kwargs)


def _without_waiting(facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    at = _COPIES[facts.name]
    given = args[at] if at is not None and len(args) > at else kwargs.get("non_blocking")
    return bool(given)


def _written(facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for which in facts.writes:
        if isinstance(which, int):
            yield from tensors_in(args[which : which + 1])
        elif which in kwargs:
            yield from tensors_in([kwargs[which]])


@relay
def _copied(
    stream: LateStream, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: Any, out: Any
) -> None:
    """Copy again what each source holds in this repetition."""
    filled = [_filled(stream, each) for each in args]
    found = func(*filled, **kwargs)
    if not facts.writes:
        out.copy_(found)


def _filled(stream: LateStream, value: Any) -> Any:
    if isinstance(value, LateCopy):
        return stream.content(value)
    return [_filled(stream, each) for each in value] if isinstance(value, list) else value


class _Launches:
    """Takes down launches of kernels, which pass no mode.

    Args:
        route: runs models of kernels.
    """

    def __init__(self, stream: LateStream, route: Run) -> None:
        self._stream, self._route = stream, route

    @relay
    def launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an interpreted kernel of Triton."""
        self._stream.about_to_write(tensors_in([*args, *kwargs.values()]))
        result = launch(executor, *args, **kwargs)
        args, kwargs = frozen(args), {name: frozen(item) for name, item in kwargs.items()}
        self._stream.take_down(partial(launch, executor, *args, **kwargs))
        return result

    @relay
    def run_model(self, kernel: ModelKernel, **arguments: Any) -> None:
        """Run the model of a kernel."""
        self._stream.about_to_write(tensors_in(arguments.values()))
        self._route(kernel, **arguments)
        kept = {name: frozen(item) for name, item in arguments.items()}
        self._stream.take_down(partial(self._route, kernel, **kept))


_DEVICE: Any = torch.Tensor.device
# `Tensor.cpu` says by itself that it waits.
_READS = frozenset(read for read, name in HOST_READS.items() if name != "cpu")


class _Calls(TorchFunctionMode):
    """Sees reads that dispatch does not show on a CPU, and tells host from device where code asks
    for a tensor's device."""

    def __init__(self, memory: GuardedMemory, stream: LateStream) -> None:
        super().__init__()
        self._sides, self._stream = memory.sides, stream

    @relay
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _READS and self._sides.of(args[0]) != "host":
            self._stream.wait()
        found = func(*args, **kwargs) if kwargs else func(*args)
        if getattr(func, "__self__", None) is _DEVICE and found.type == "cpu":
            return _NAMED.get(self._sides.of(args[0]), found)
        return found


_NAMED: Mapping[Side, torch.device] = {"host": HOST_CPU, "device": SESSION_CPU}
