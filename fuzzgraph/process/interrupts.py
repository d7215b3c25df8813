"""Tells a person's Ctrl-C from a KeyboardInterrupt that an engine raises by itself.

Python's own SIGINT handler raises in whatever code is running, so an interrupt that comes out of an
engine may be either. The handler here records the signal first.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_noted = False


def _note(number: int, frame: FrameType | None) -> None:
    global _noted
    _noted = True
    signal.default_int_handler(number, frame)


@contextmanager
def noting_interrupts() -> Iterator[None]:
    """Inside, a SIGINT that becomes a KeyboardInterrupt is recorded as well."""
    global _noted
    # Only the main thread gets signals, and a handler that is not Python's own stays in place.
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _noted = False
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        # Code inside may have set a handler of its own, which stays.
        if signal.getsignal(signal.SIGINT) is _note:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def signal_may_have_raised() -> bool:
    """Whether a KeyboardInterrupt may come from a signal: one was recorded, or none could be."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if _noted:
        return True
    # Under a handler of other code no signal is recorded. Then it has to count as a person's.
    handler = signal.getsignal(signal.SIGINT)
    ours = getattr(handler, "__module__", "").startswith("fuzzgraph.")
    return callable(handler) and not ours


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Interruptible(Protocol):
    def interrupt(self) -> None: ...


@contextmanager
def interruptible(watch: _Interruptible) -> Iterator[None]:
    """The first SIGINT or SIGTERM lets the case at hand finish; the next one acts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with noting_interrupts(), _interrupting(watch):
        yield


@contextmanager
def _interrupting(watch: _Interruptible) -> Iterator[None]:
    previous = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def once(number: int, frame: FrameType | None) -> None:
        watch.interrupt()
        restore()

    for number in _SIGNALS:
        signal.signal(number, once)
    try:
        yield
    finally:
        restore()
