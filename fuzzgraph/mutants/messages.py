"""What the processes of a measurement say to each other: one strict JSON line each, on a socket.

The parent (the command) starts one host, which imports the engine; the host forks one child for
each mutant.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from fuzzgraph.mutants.records import Done, Ground, Mutant, Result, Sought
from fuzzgraph.worker.messages import Entered


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Tagged with its class name; an unknown field or tag is refused."""


class Begin(_Message, frozen=True):
    """What the host is to do; the first message."""

    sought: Sought
    jobs: int
    paths: tuple[str, ...] = ()
    """Folders to put first on `sys.path`, e.g. an unpacked release."""
    ground: Ground | None = None
    """What an interrupted run had learned of the unchanged engine, as `done` of mutants."""
    done: tuple[Result, ...] = ()
    named: tuple[Mutant, ...] = ()
    """Mutants of another run to take in place of a sample; () for a sample."""


class Refused(_Message, frozen=True):
    """The host cannot do it; the class name of a `FuzzGraphError` and its message."""

    kind: str
    message: str


class Finished(_Message, frozen=True):
    """Everything is measured."""


class Lines(_Message, frozen=True):
    """A child's answer to a trace."""

    lines: dict[str, tuple[int, ...]]
    """Module -> lines of its functions that ran."""
    cases: int
    seconds: float
    imported: tuple[str, ...] = ()
    """Modules that the engine's code imported meanwhile."""


class Quiet(_Message, frozen=True):
    """A child's answer for the unchanged engine."""

    cases: int
    seconds: float
    tried: int
    """Of the cases, the first so many."""
    findings: dict[str, str]
    """Id of each finding -> a line on it."""
    shown_by: dict[str, tuple[int, ...]]
    """Id of each finding -> numbers of the cases that showed it."""


class Judged(_Message, frozen=True):
    """A child's answer for a mutant."""

    result: Result


FromHost: TypeAlias = Ground | Result | Done | Refused | Finished
FromChild: TypeAlias = Entered | Lines | Quiet | Judged | Refused
