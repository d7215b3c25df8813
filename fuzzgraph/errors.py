"""Every error that FuzzGraph raises on purpose.

A `UsageError` is the caller's to mend and ends a command with exit code 2, in
one line and without a traceback. The message says what is wrong, the value
received, where, and the way out.
"""

from __future__ import annotations

__all__ = [
    "UNREADABLE",
    "AdapterUnavailable",
    "CaptureError",
    "FuzzGraphError",
    "InvalidCase",
    "NotExecuted",
    "OutOfTime",
    "UsageError",
]


UNREADABLE = (ValueError, RecursionError)
"""What decoding untrusted bytes raises: no text, no JSON or TOML, another shape, too deep."""


class FuzzGraphError(Exception):
    """Base of all deliberate errors."""


class UsageError(FuzzGraphError):
    """The call was wrong: an unknown name, a bad value, a path that cannot be used."""


class InvalidCase(UsageError):
    """A case contradicts itself or its engine config; the message names the field."""


class AdapterUnavailable(UsageError):
    """A target's engine or device is not installed or not usable here."""


class OutOfTime(FuzzGraphError):
    """The time is up and a case was cut off, which says nothing about the engine."""


class NotExecuted(FuzzGraphError):
    """An exported file could not be executed, which says nothing about its finding."""


class CaptureError(FuzzGraphError):
    """The engine did something during capture that a device graph forbids.

    Likely cause: a value was read back to the host (`.item()`, `.tolist()`,
    `.cpu()`), a shape depended on data, or pageable host memory was copied.
    Remedy: move it to `prepare_replay`, before the graph.
    """
