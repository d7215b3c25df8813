"""Which work of a device's streams has ended before other work begins, as far as waits decide it.

Work of one stream runs in the order in which it was given. Between streams only waits order it: of
a stream for another one or for an event, and of the host, which gives what follows afterwards. All
else may run in either order, or at once.

On a CPU work runs as it is given. What is told here serves to run it again in another order that a
device allows (`late_order`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

MAIN = 0
"""The stream that is current unless an engine makes another one so."""

Clock = dict[int, int]
"""Stream -> number of its last work that has ended."""


class Issued(NamedTuple):
    """A piece of work as it was given."""

    stream: int
    number: int
    """In the order in which work of all streams was given."""
    after: Mapping[int, int]
    """Stream -> number of its last work that has ended before this begins; for the work's own
    stream, of the work before it."""


class StreamOrder:
    """The streams of a process, and what they have waited for."""

    def __init__(self) -> None:
        self._streams = itertools.count(MAIN + 1)
        self._numbers = itertools.count(1)
        self._clocks: dict[int, Clock] = {MAIN: {}}
        self._host: Clock = {}
        self.current = MAIN

    def new_stream(self) -> int:
        """A stream that nothing was given to."""
        stream = next(self._streams)
        self._clocks[stream] = {}
        return stream

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Inside, work is given to this stream."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def issue(self) -> Issued:
        """Work is given to the current stream."""
        clock = self._clocks[self.current]
        _merge(clock, self._host)
        issued = Issued(self.current, next(self._numbers), dict(clock))
        clock[self.current] = issued.number
        return issued

    def clock(self, stream: int | None = None) -> Clock:
        """What has ended once a stream has done what it was given so far; None: the current one."""
        return dict(self._clocks[self.current if stream is None else stream])

    def clocks(self) -> list[Clock]:
        """The same of every stream."""
        return [dict(clock) for clock in self._clocks.values()]

    def wait(self, stream: int, clock: Mapping[int, int]) -> None:
        """A stream waits, before what it is given next, until this has ended."""
        _merge(self._clocks[stream], clock)

    def host_waits(self, clock: Mapping[int, int] | None = None) -> None:
        """The host waits until this has ended; None: all that was given."""
        for ended in self.clocks() if clock is None else [clock]:
            _merge(self._host, ended)


def _merge(clock: Clock, other: Mapping[int, int]) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


ORDER = StreamOrder()
"""Of this process, as an engine's calls of its device's streams tell it."""


def late_order(works: Sequence[Issued], late: int) -> list[int]:
    """Indices of works in an order that a device allows: what one stream was given runs only when
    all others wait for it.

    Args:
        works: in the order in which they were given.
        late: the stream.
    """
    waiting: dict[int, deque[int]] = {}
    for index, work in enumerate(works):
        waiting.setdefault(work.stream, deque()).append(index)
    late_works = waiting.get(late, deque())
    order: list[int] = []
    while len(order) < len(works):
        ready = (
            queue[0]
            for stream, queue in waiting.items()
            if queue and stream != late and _may_run(works[queue[0]], works, waiting)
        )
        # Of the works that have not run the first given one may always run: what it waits for was
        # given before it. So where no other stream's may, the late stream's next one does.
        index = min(ready, default=-1)
        if index < 0:
            index = late_works[0]
        waiting[works[index].stream].popleft()
        order.append(index)
    return order


def _may_run(work: Issued, works: Sequence[Issued], waiting: Mapping[int, deque[int]]) -> bool:
    """Whether all that a work waits for has run.

    Args:
        waiting: stream -> indices of its works that have not run.
    """
    return not any(
        waiting.get(stream) and works[waiting[stream][0]].number <= number
        for stream, number in work.after.items()
    )


def streams_apart(works: Sequence[Issued]) -> list[int]:
    """The streams whose work may run later than it was given, in the order of their first work."""
    streams = dict.fromkeys(work.stream for work in works)
    if len(streams) == 1:
        return []
    as_given = list(range(len(works)))
    return [stream for stream in streams if late_order(works, stream) != as_given]


_LATE: list[int] = []


@contextmanager
def running_late(stream: int) -> Iterator[None]:
    """Inside, replays of recorded graphs run what this stream was given as late as they may."""
    _LATE.append(stream)
    try:
        yield
    finally:
        _LATE.pop()


def late_stream() -> int | None:
    """The stream whose work runs late in the replays that run now."""
    return _LATE[-1] if _LATE else None
