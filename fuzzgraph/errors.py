"""Every error that FuzzGraph raises on purpose.

A `UsageError` is the caller's to mend and ends a command with exit code 2, in
one line and without a traceback. The message says what is wrong, the value
received, where, and the way out.
"""

from __future__ import annotations

__all__ = [
    "UNREADABLE",
    "AdapterUnavailable",
    "ArenaFull",
    "CaptureError",
    "DeviceReadError",
    "EngineError",
    "FuzzGraphError",
    "HarnessFailed",
    "InvalidCase",
    "NotExecuted",
    "OutOfTime",
    "TargetFailed",
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


class TargetFailed(FuzzGraphError):
    """The target's own code failed, which says nothing about the engine; names frame and remedy."""


class HarnessFailed(FuzzGraphError):
    """FuzzGraph's own code failed, which says nothing about the engine."""


class EngineError(FuzzGraphError):
    """The engine did what its device, or what stands in for a part of it, refuses.

    Raised on purpose: during a run it is a finding about the engine, wherever it was raised.
    """


class ArenaFull(EngineError, UsageError):
    """Guarded memory has no room left.

    While a session is opened the config is too large for it, which is the caller's to mend; during
    a step the engine allocates without end.
    """


class CaptureError(EngineError):
    """The engine did something during capture that a device graph forbids.

    Likely cause: a value was read back to the host (`.item()`, `.tolist()`,
    `.cpu()`), a shape depended on data, or pageable host memory was copied.
    Remedy: move it to `prepare_replay`, before the graph.
    """


class DeviceReadError(CaptureError, TypeError):
    """The engine read device memory as only host memory can be read, e.g. by `Tensor.numpy()`."""
