"""What parent and child say to each other: one strict JSON line each, on a socket of their own.

stdin, stdout and stderr are not part of it, so that an engine may print what it likes.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.environment import UNKNOWN, Environment
from fuzzgraph.errors import UNREADABLE
from fuzzgraph.finding import Finding
from fuzzgraph.run_spec import Setup
from fuzzgraph.strict_json import decode_json
from fuzzgraph.target_report import TargetReport

__all__ = [
    "Answer",
    "Channel",
    "Confirm",
    "Confirmed",
    "Export",
    "Exported",
    "Failed",
    "FromChild",
    "Garbage",
    "Inspect",
    "Inspected",
    "Open",
    "Ready",
    "Refused",
    "RunCase",
    "ToChild",
]


_LOOK_SECONDS = 0.05
_LONGEST = 64 << 20
"""Bytes of a message; the longest seen took 300 kB."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Tagged with its class name; an unknown field or tag is refused."""


class Open(_Message, frozen=True):
    """Open a target; the first message."""

    setup: Setup
    paths: tuple[str, ...] = ()
    """Folders to put first on `sys.path`, e.g. an unpacked release."""
    branches: bool = False
    """Whether answers name the engine's branches that a case took."""


class RunCase(_Message, frozen=True):
    case: Case


class Confirm(_Message, frozen=True):
    """Run a case in fresh sessions and give the rate at which the finding shows."""

    case: Case
    finding: Finding
    times: int


class Inspect(_Message, frozen=True):
    """Run healthy cases, each twice, and tell what the target shows."""

    cases: tuple[Case, ...]


class Inspected(_Message, frozen=True):
    report: TargetReport


class Export(_Message, frozen=True):
    """Record a case's operations, and write them as a script that shows the finding."""

    case: Case
    finding: Finding


class Exported(_Message, frozen=True):
    script: str = ""
    """Needs torch alone; '' where there is none."""
    reason: str = ""
    """Why there is none."""


class Ready(_Message, frozen=True):
    """The target is open."""

    environment: Environment = UNKNOWN


class Answer(_Message, frozen=True):
    """A verdict, without the case, which the parent has."""

    findings: tuple[Finding, ...] = ()
    steps: int = 0
    skipped: str = ""
    nondeterministic: bool = False
    fallbacks: dict[str, int] = {}
    unchecked: dict[str, int] = {}
    branches: frozenset[str] = frozenset()
    spent: bool = False
    """Whether the device's context is lost, so that this child answers for nothing any more."""


class Confirmed(_Message, frozen=True):
    finding: Finding


class Refused(_Message, frozen=True):
    """A `FuzzGraphError`, mostly the caller's to mend, with its class name."""

    kind: str
    message: str


class Failed(_Message, frozen=True):
    """A fault of the harness itself, with its traceback."""

    error: str
    traceback: str


ToChild: TypeAlias = Open | RunCase | Confirm | Inspect | Export
FromChild: TypeAlias = Ready | Answer | Confirmed | Inspected | Exported | Refused | Failed

Incoming = TypeVar("Incoming")


class Garbage(Exception):
    """What came is no message, or came without being asked for."""


class Channel(Generic[Incoming]):
    """Sends messages and receives those of the other side, one answer for one question."""

    def __init__(self, end: socket.socket, incoming: object) -> None:
        self._socket = end
        self._incoming: Any = incoming
        self._rest = b""

    def send(self, message: _Message) -> None:
        self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def ready(self, seconds: float) -> bool:
        """Whether something can be received, waiting for it at most that long."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def receive(self, again: Callable[[], None] = lambda: None) -> Incoming:
        """The next message.

        Args:
            again: called now and then while nothing comes; may raise to end the wait.

        Raises:
            EOFError: the other side is gone. Garbage: what came is no message of ours.
        """
        while b"\n" not in self._rest:
            while not self.ready(_LOOK_SECONDS):
                again()
            try:
                part = self._socket.recv(1 << 16)
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError("the other side closed the channel")
            self._rest += part
            if len(self._rest) > _LONGEST:
                raise Garbage(f"more than {_LONGEST >> 20} MiB in one message")
        line, self._rest = self._rest.split(b"\n", 1)
        try:
            received: Incoming = decode_json(line, self._incoming)
            return received
        except UNREADABLE as error:
            raise Garbage(" ".join(str(error).split())[:200]) from None

    def unasked(self) -> bool:
        """Whether something came that was not asked for; a closed channel is not meant."""
        if self._rest:
            return True
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except (BlockingIOError, ConnectionError):
            return False

    def close(self) -> None:
        self._socket.close()
