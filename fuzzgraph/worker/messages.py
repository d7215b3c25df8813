"""What parent and child say to each other: one strict JSON line each, on a socket of their own.

stdin, stdout and stderr are not part of it, so that an engine may print what it likes.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.errors import UNREADABLE
from fuzzgraph.finding import EngineLine, Finding, Stage
from fuzzgraph.run.environment import UNKNOWN, Environment
from fuzzgraph.run.spec import Device, Setup
from fuzzgraph.strict_json import decode_json
from fuzzgraph.target_report import TargetReport

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
    watched: dict[str, tuple[int, ...]] = {}
    """File -> first lines of statements; answers name those that were executed."""


class RunCase(_Message, frozen=True):
    case: Case


class Confirm(_Message, frozen=True):
    """Run a case in fresh sessions and give the rate at which the finding shows."""

    case: Case
    finding: Finding
    times: int


class AskServed(_Message, frozen=True):
    """Say why no server of the engine has a config."""

    config: EngineConfig


class Served(_Message, frozen=True):
    unserved: str = ""
    """'' where a server may have it."""


class Inspect(_Message, frozen=True):
    """Run healthy cases, each twice, and tell what the target shows."""

    cases: tuple[Case, ...]


class Inspected(_Message, frozen=True):
    report: TargetReport


class ExportRequest(_Message, frozen=True):
    """Record a case's operations, and write them as a script that shows the finding."""

    case: Case
    finding: Finding
    device: Device = "cpu"
    """Where the script is to run."""


class ExportReply(_Message, frozen=True):
    script: str = ""
    """Needs torch alone; '' where there is none."""
    reason: str = ""
    """Why there is none."""


class Locate(_Message, frozen=True):
    """Run a case again and say which of the engine's lines its finding is about."""

    case: Case
    finding: Finding


class Located(_Message, frozen=True):
    lines: tuple[EngineLine, ...] = ()


class Entered(_Message, frozen=True):
    """The child enters a stage; sent unasked, while the parent waits for an answer.

    What a child has sent can be read after its death, whatever ended it: the parent knows the last
    stage even of a child that was killed in the middle of it.
    """

    stage: Stage = "open"
    step: int = -1
    """-1 before the first one."""


class Ready(_Message, frozen=True):
    """The target is open."""

    environment: Environment = UNKNOWN
    reached: dict[str, tuple[int, ...]] = {}
    """Watched statements that ran at import."""


class Answer(_Message, frozen=True):
    """A verdict, without the case, which the parent has."""

    findings: tuple[Finding, ...] = ()
    steps: int = 0
    skipped: str = ""
    nondeterministic: bool = False
    fallbacks: dict[str, int] = {}
    unchecked: dict[str, int] = {}
    unguarded: dict[str, int] = {}
    late_copies: dict[str, int] = {}
    unrepeatable: int = 0
    branches: frozenset[str] = frozenset()
    reached: dict[str, tuple[int, ...]] = {}
    """Watched statements that no earlier answer has named."""
    device_lost: bool = False
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


ToChild: TypeAlias = Open | RunCase | Confirm | AskServed | Inspect | ExportRequest | Locate
FromChild: TypeAlias = (
    Entered
    | Ready
    | Answer
    | Confirmed
    | Served
    | Inspected
    | ExportReply
    | Located
    | Refused
    | Failed
)

Received = TypeVar("Received")


class InvalidMessage(Exception):
    """What came is not a valid message, or nobody asked for it."""


class Channel(Generic[Received]):
    """Sends messages and receives those of the other side, one answer for one question."""

    def __init__(self, end: socket.socket, incoming: object) -> None:
        self._socket = end
        self._incoming: Any = incoming
        self._rest = b""
        self._looked = 0.0

    def send(self, message: msgspec.Struct) -> None:
        self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def ready(self, seconds: float) -> bool:
        """Whether something can be received, waiting for it at most that long."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def receive(self, again: Callable[[], None] = lambda: None) -> Received:
        """The next message.

        Args:
            again: called now and then, also while messages come; may raise to end the wait.

        Raises:
            EOFError: the other side is gone. InvalidMessage: what came is not a valid message.
        """
        while b"\n" not in self._rest:
            while not self.ready(_LOOK_SECONDS):
                self._look(again)
            try:
                part = self._socket.recv(1 << 16)
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError("the other side closed the channel")
            self._rest += part
            if len(self._rest) > _LONGEST:
                raise InvalidMessage(f"more than {_LONGEST >> 20} MiB in one message")
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look(again)  # a child that tells of stage after stage never lets it time out
        line, self._rest = self._rest.split(b"\n", 1)
        try:
            received: Received = decode_json(line, self._incoming)
            return received
        except UNREADABLE as error:
            raise InvalidMessage(" ".join(str(error).split())[:200]) from None

    def _look(self, again: Callable[[], None]) -> None:
        self._looked = time.monotonic()
        again()

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
