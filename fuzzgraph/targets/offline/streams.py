"""Streams and events of a device on a CPU, where each call ends before the next begins.

What they wait for is noted in `memory.stream_order`; a wait of the host also shows on a stream that
models late copies (`memory.device_work`).
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.memory.device_work import copies_given, wait
from fuzzgraph.memory.stream_order import MAIN, ORDER, Clock


class Stream:
    """In the place of `torch.cuda.Stream`."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = ORDER.new_stream()
        self._entered: list[OnStream] = []

    def query(self) -> bool:
        """Whether all is done; asking brings it about."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """The host waits."""
        ORDER.host_waits(ORDER.clock(self.number))
        wait()

    def record_event(self, event: Event | None = None) -> Event:
        """An event behind all that the stream was given."""
        found = Event() if event is None else event
        found.record(self)
        return found

    def wait_event(self, event: Event) -> None:
        """What follows waits for an event."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """What follows waits for all that another stream was given."""
        ORDER.wait(self.number, ORDER.clock(stream.number))

    def __enter__(self) -> Stream:
        self._entered.append(OnStream(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.pop().__exit__(*error)


class _Default(Stream):
    def __init__(self) -> None:
        self.number = MAIN
        self._entered = []


DEFAULT = _Default()
"""The stream that is current unless another one is made so."""
_CURRENT: list[Stream] = [DEFAULT]


class Event:
    """In the place of `torch.cuda.Event`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._clock: Clock = {}
        self._copies = 0

    def record(self, stream: Stream | None = None) -> None:
        """It is behind all that the stream was given."""
        self._clock = ORDER.clock((stream or current_stream()).number)
        self._copies = copies_given()

    def wait(self, stream: Stream | None = None) -> None:
        """What the stream is given next waits for it."""
        ORDER.wait((stream or current_stream()).number, self._clock)

    def query(self) -> bool:
        """Whether it is over; asking brings it about."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """The host waits."""
        ORDER.host_waits(self._clock)
        wait(self._copies)

    def elapsed_time(self, other: Any) -> float:
        """No time passes."""
        return 0.0


class OnStream:
    """In the place of `torch.cuda.stream`: inside, work is given to a stream; None: as before."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream = self._stream or current_stream()
        _CURRENT.append(stream)
        self._on = ORDER.on(stream.number)
        self._on.__enter__()

    def __exit__(self, *_: object) -> None:
        self._on.__exit__(None, None, None)
        _CURRENT.pop()


def current_stream(*_: Any, **__: Any) -> Stream:
    """In the place of `torch.cuda.current_stream`."""
    return _CURRENT[-1]


def set_stream(stream: Stream | None) -> None:
    """In the place of `torch.cuda.set_stream`."""
    if stream is not None:
        _CURRENT[-1] = stream
        ORDER.current = stream.number


def synchronize_device(*_: Any, **__: Any) -> None:
    """The host waits for all streams."""
    ORDER.host_waits()
    wait()


stream = OnStream
"""By torch's own name, as an engine calls it."""
