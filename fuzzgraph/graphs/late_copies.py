"""Tells a late stream what an engine gives its device, and when the engine's host waits.

A copy is late if it is asked not to wait (`non_blocking=True`) and reads contiguous memory of the
host that the engine asked to be pinned. CUDA reads pageable memory, and memory that it has to lay
out anew, before the call returns; the content of the call is kept for these. Where the host waits
is told by `device_operations`.

Not modelled: copies from pinned memory that a graph holds, which read it when it is replayed.
Copies to the host arrive at once, and are taken down for a run in which they do not
(`late_arrivals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.graphs.device_operations import (
    COPIES,
    DeviceOperations,
    GivenCopy,
    Launches,
    copies_in,
    given_to,
    giving_line,
    goes_on,
)
from fuzzgraph.graphs.late_stream import LateCopy, LateStream
from fuzzgraph.graphs.playback import frozen
from fuzzgraph.graphs.repeating import fresh_of, moved, repeat_of
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.operator_facts import Facts, facts_of, inside_of, tensors_in
from fuzzgraph.memory.placement import memory_of
from fuzzgraph.relays import relay


def late_copies(memory: GuardedMemory, stream: LateStream) -> AbstractContextManager[None]:
    """Inside, the engine's work and its launches of kernels go to the stream; see `given_to`."""
    return given_to(stream, memory, _Operations(memory, stream), _Launches(stream))


class _Operations(DeviceOperations):
    """Takes down operations on the device."""

    def __init__(self, memory: GuardedMemory, stream: LateStream) -> None:
        super().__init__(memory, stream.wait)
        self._stream = stream

    @relay
    def on_device(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See `DeviceOperations`: do it, and take it down."""
        stream = self._stream
        stream.about_to_write(_written(facts, args, kwargs))
        before = memory_of(args[0]) if facts.is_resize else None
        # A source that is late is looked at before the operation, as are other reads of the host.
        copies = self._late(facts, args, kwargs)
        kept = tuple(map(self._kept, args)) if copies is None else copies
        if to_host := sum(self.arriving_late(facts, args, kwargs)):
            stream.to_host += [giving_line()] * to_host
        out = self.noted(func(*args, **kwargs), facts, args, kwargs)
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
        if facts.name not in COPIES or not goes_on(facts, args, kwargs):
            return None
        late = [
            self._stream.add_copy(each.source, giving_line())
            if self._is_late(each)
            else self._kept(each.source)
            for each in copies_in(facts, args, kwargs)
        ]
        if not any(isinstance(each, LateCopy) for each in late):
            return None
        at = 0 if facts.name == "aten._to_copy" else 1
        return (*frozen(args[:at]), late if isinstance(args[at], (list, tuple)) else late[0],
                *frozen(args[at + 1 :]))  # fmt: skip

    def _is_late(self, copy: GivenCopy) -> bool:
        source = copy.source
        if not self.sides.is_pinned(source):
            return False
        target = source if copy.target is None else copy.target
        return source.numel() > 0 and source.expand(target.shape).is_contiguous()

    def _kept(self, value: Any) -> Any:
        """An argument as a repetition is given it: what the host holds now."""
        if isinstance(value, torch.Tensor):
            return value.clone() if self.is_on_host(value) else value
        if isinstance(value, (list, tuple)) and tensors_in([value]):
            return type(value)(map(self._kept, value))
        return value


class PinnedCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the lines that give copies between pinned memory and a real device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.to_device: list[str] = []
        self.to_host: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the mode, which imports its compiler."""
        return False

    @relay
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # In inference mode `to` comes whole, and only its parts are copies.
        if (inside := inside_of(func, "CUDA")) is not None:
            with self:
                return func._op_dk(inside, *args, **kwargs)
        facts = facts_of(func)
        out = func(*args, **kwargs)
        if facts.name in COPIES and goes_on(facts, args, kwargs):
            line = giving_line()
            for each in copies_in(facts, args, kwargs):
                self.to_host += [line] * _is_pinned(each.written(out))
                self.to_device += [line] * _is_pinned(each.source)
        return out


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.is_pinned()


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


class _Launches(Launches):
    """Takes down launches of kernels."""

    def __init__(self, stream: LateStream) -> None:
        self._stream = stream

    @relay
    def on_device(
        self, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See `Launches`: do it, and take it down."""
        self._stream.about_to_write(tensors_in([*args, *kwargs.values()]))
        result = work(*args, **kwargs)
        args, kwargs = frozen(args), {name: frozen(item) for name, item in kwargs.items()}
        self._stream.take_down(partial(work, *args, **kwargs))
        return result
