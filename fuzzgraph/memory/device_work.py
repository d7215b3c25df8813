"""What a device is given to do, and when the host waits for it, told to whoever models its stream.

On a CPU work is done as soon as it is given, unless a stream is open (`graphs.late_stream`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from fuzzgraph.relays import relay


class Stream(Protocol):
    """A model of a device's stream."""

    def give(self, work: Callable[[], object]) -> None:
        """Do work that passes no mode, such as the replay of a graph, and take it down."""
        ...

    def copies_given(self) -> int:
        """Number of the last copy that was given; later ones have larger numbers, also those of
        streams opened later."""
        ...

    def wait(self, copies: int | None = None) -> None:
        """The host waits for the copies up to this number; None for all."""
        ...


_OPEN: list[Stream] = []
_NUMBERS = itertools.count(1)


def next_copy() -> int:
    """The number of a copy that is given now.

    Counted over all streams: an event may have been recorded while another one was open.
    """
    return next(_NUMBERS)


@contextmanager
def opened(stream: Stream) -> Iterator[None]:
    """Inside, what the device is given goes to this stream."""
    _OPEN.append(stream)
    try:
        yield
    finally:
        _OPEN.pop()


@relay
def give(work: Callable[[], object]) -> None:
    """Have the device do work that passes no mode."""
    if _OPEN:
        _OPEN[-1].give(work)
    else:
        work()


def copies_given() -> int:
    """What `wait` takes, to wait for the copies given so far; 0 where no stream is open."""
    return _OPEN[-1].copies_given() if _OPEN else 0


def wait(copies: int | None = None) -> None:
    """The host waits for copies of the device; None for all of them."""
    if _OPEN:
        _OPEN[-1].wait(copies)
