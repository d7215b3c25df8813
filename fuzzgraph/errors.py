"""Every error that FuzzGraph raises on purpose.

A `UsageError` is the caller's mistake: it ends a command with exit code 2 and one line, without a
traceback. The message says what is wrong, the value received, where, and what to do.
"""

from __future__ import annotations

UNREADABLE = (ValueError, RecursionError)
"""What decoding untrusted bytes raises: not text, not JSON or TOML, another shape, too deep."""


class FuzzGraphError(Exception):
    """Base of all deliberate errors."""


class UsageError(FuzzGraphError):
    """The call was wrong: an unknown name, a bad value, a path that cannot be used."""


class InvalidCase(UsageError):
    """A case contradicts itself or its engine config; the message names the field."""


class OutOfPages(InvalidCase):
    """A case needs more KV pages than its engine config has."""


class AdapterUnavailable(UsageError):
    """A target's engine or device is not installed or not usable here."""


class DeviceUnavailable(AdapterUnavailable):
    """The device cannot be used, or not any more, which says nothing about the engine."""


class OutOfTime(FuzzGraphError):
    """The time ran out during a case, which says nothing about the engine."""


class RunsCutOff(OutOfTime):
    """The time ran out while an exported file was being executed."""

    def __init__(self, message: str, rate: str) -> None:
        super().__init__(message)
        self.rate = rate
        """Of the runs that came to an end, e.g. '2/2'; '' where none did."""


class NotExecuted(FuzzGraphError):
    """An exported file could not be executed, which says nothing about its finding."""


class TargetFailed(FuzzGraphError):
    """The target's own code failed, which says nothing about the engine.

    The message names the frame and the remedy.
    """


class HarnessFailed(FuzzGraphError):
    """FuzzGraph's own code failed, which says nothing about the engine."""


class EngineError(FuzzGraphError):
    """The engine did something that its device, or a stand-in for the device, refuses.

    During a run it is a finding about the engine, whichever code raised it.
    """


class ArenaFull(EngineError, UsageError):
    """Guarded memory has no room left.

    While a session opens, the config is too large: the caller's mistake. During a step, the engine
    allocates without end: a finding.
    """


class CaptureError(EngineError):
    """The engine did something during capture that a device graph forbids.

    Likely cause: a value was read back to the host (`.item()`, `.tolist()`,
    `.cpu()`), a shape depended on data, or pageable host memory was copied.
    Remedy: move it to `prepare_replay`, before the graph.
    """


class KernelRefused(EngineError):
    """A kernel's host code refuses the call: a dtype, a shape, a stride, a scalar.

    Raised by a model of the kernel, with the rule, the value received and the rule's source.
    """


class KernelNotModelled(FuzzGraphError):
    """A call asks for what a model does not follow; says nothing about the engine."""


class KernelNotCompiled(FuzzGraphError):
    """The compiler of a device refuses a kernel at these shapes; says nothing about replay."""


class NotInRelease(FuzzGraphError):
    """The release of this process lacks what a config asks for; says nothing about the engine.

    `Target.unsupported` answers without a release, so a session says it when it opens.
    """


class DeviceReadError(CaptureError, TypeError):
    """The engine read device memory in a way that works for host memory only: `Tensor.numpy()`."""
