"""Withholds what copies to the host bring, until the host waits for them.

A copy that is asked not to wait (`non_blocking=True`) writes pinned memory of the host at some time
before the host waits for it. What the host reads there before is what the memory held, or is
anything where torch made the memory for the copy. The device sees the copy as done: its work
runs in the order in which it was given.

The host waits where `device_operations` says, and in `synchronize` of an event that was recorded
behind the copy. Not modelled: several streams; what the next step's graph makes of a copy that this
step gave, since a run ends before the next step replays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fuzzgraph.graphs.device_operations import (
    DeviceOperations,
    Launches,
    copies_in,
    given_to,
    giving_line,
)
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.device_work import next_copy
from fuzzgraph.memory.mode_stack import past_modes
from fuzzgraph.memory.operator_facts import Facts
from fuzzgraph.relays import relay


def late_arrivals(memory: GuardedMemory, arrivals: Arrivals) -> AbstractContextManager[None]:
    """Inside, copies to the host arrive when the host waits for them; see `given_to`."""
    return given_to(arrivals, memory, _Operations(memory, arrivals), _Launches(arrivals))


@dataclass(slots=True, eq=False)
class _Arrival:
    """A copy to the host that has not arrived."""

    place: torch.Tensor
    content: torch.Tensor
    """What it brings."""
    number: int = field(default_factory=next_copy)


class Arrivals:
    """Implements `memory.device_work.Stream`: work is done at once, and copies arrive late.

    Args:
        lines: of the engine; what copies given there bring is withheld.
    """

    def __init__(self, lines: Collection[str]) -> None:
        self._lines = lines
        self._pending: list[_Arrival] = []
        self._all_arrived = False

    def withholds(self, line: str) -> bool:
        """Whether a copy that this line gives arrives late."""
        return line in self._lines

    def withhold(self, place: torch.Tensor, content: torch.Tensor, meanwhile: torch.Tensor) -> None:
        """Have a copy that is given now arrive later.

        Args:
            place: of the host, that it writes.
            content: what it brings.
            meanwhile: what the place holds until then.
        """
        self._pending.append(_Arrival(place, content))
        place.copy_(meanwhile)

    @contextmanager
    def arrived(self) -> Iterator[None]:
        """Inside, the host's memory is as if every copy had arrived, and nothing waits: for work of
        the device, and for reads of the harness."""
        if self._all_arrived or not self._pending:
            yield
            return
        self._all_arrived, pending = True, self._pending
        with past_modes(), torch._C.DisableTorchFunction():
            meanwhile = [each.place.clone() for each in pending]
            _arrive(pending)
        try:
            yield
        finally:
            self._all_arrived = False
            with past_modes(), torch._C.DisableTorchFunction():
                # Backwards, because places may overlap.
                for each, before in zip(reversed(pending), reversed(meanwhile), strict=True):
                    each.place.copy_(before)

    # as `Stream`

    @relay
    def give(self, work: Callable[[], object]) -> None:
        """See `Stream`."""
        with self.arrived(), past_modes(), torch._C.DisableTorchFunction():
            work()

    def copies_given(self) -> int:
        """See `Stream`."""
        return self._pending[-1].number if self._pending else 0

    def wait(self, copies: int | None = None) -> None:
        """See `Stream`."""
        if self._all_arrived or not self._pending:
            return
        waited = [each for each in self._pending if copies is None or each.number <= copies]
        with past_modes(), torch._C.DisableTorchFunction():
            _arrive(waited)
        self._pending = [each for each in self._pending if each not in waited]


def _arrive(arrivals: list[_Arrival]) -> None:
    for each in arrivals:
        each.place.copy_(each.content)


class _Operations(DeviceOperations):
    """Withholds what copies to the host bring."""

    def __init__(self, memory: GuardedMemory, arrivals: Arrivals) -> None:
        super().__init__(memory, arrivals.wait)
        self._arrivals = arrivals

    @relay
    def on_device(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See `DeviceOperations`: do it, with all copies before it done."""
        late = self.arriving_late(facts, args, kwargs)
        if not late or not self._arrivals.withholds(giving_line()):
            with self._arrivals.arrived():
                return self.noted(func(*args, **kwargs), facts, args, kwargs)
        copies = list(copies_in(facts, args, kwargs))
        before = [None if each.target is None else each.target.clone() for each in copies]
        with self._arrivals.arrived():
            out = self.noted(func(*args, **kwargs), facts, args, kwargs)
            places = [each.written(out) for each in copies]
            contents = [each.clone() for each in places]
        for is_late, place, content, held in zip(late, places, contents, before, strict=True):
            if is_late:
                self._arrivals.withhold(place, content, _other(content) if held is None else held)
        return out


def _other(content: torch.Tensor) -> torch.Tensor:
    """Memory that differs from the content in each element: 1 where that is not 1, else 0.

    Numbers that an engine may take for a length or an index of its own, since what it computes from
    them tells more than an access far outside of everything.
    """
    return (content.to(torch.float64) != 1).to(content.dtype)


class _Launches(Launches):
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    @relay
    def on_device(
        self, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See `Launches`: do it, with all copies before it done."""
        with self._arrivals.arrived():
            return work(*args, **kwargs)
