"""Which functions of its engine a target executes, recorded once and kept in the cache.

A record belongs to a target and to the files that it executed: it is stale once one of them has
another content, and is then made anew. It is made in a process of its own, over drawn cases.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.process.cache import cache_root
from fuzzgraph.process.interpreter import module_command
from fuzzgraph.run.spec import Setup
from fuzzgraph.strict_json import decode_json
from fuzzgraph.worker.messages import Channel, InvalidMessage

_FORMAT = 1
SECONDS = 5.0
"""Processor seconds of cases for one record; most functions run in the first case."""


class Executed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one target executes of one tree."""

    format: int = _FORMAT
    target: str
    files: dict[str, str]
    """File below the package's folder -> digest of its content; those that it imports."""
    functions: dict[str, list[str]]
    """File -> dotted names of its functions that ran."""
    cases: int
    why: str = ""
    """Why the target does not run on the tree; '' where it does."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, tag="trace"):
    """What a process is to record."""

    setup: Setup
    root: str
    """Folder to import the engine from."""
    package: str
    seconds: float


class Traced(msgspec.Struct, frozen=True, kw_only=True, tag="traced"):
    """What it saw."""

    files: list[str]
    functions: dict[str, list[str]]
    cases: int
    why: str = ""


def digest_of(path: Path) -> str:
    """Of a file's content; '' where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


class ExecutedMap:
    """The records of an engine's targets on one tree.

    Args:
        package: import name.
        root: folder of the tree that holds it.
        setup: of the tree; its target is replaced.
    """

    def __init__(self, package: str, root: Path, setup: Setup) -> None:
        self._package = package
        self._root = root
        self._setup = setup
        self._folder = cache_root() / "executed" / package
        self._digests: dict[str, str] = {}

    def kept(self, target: str) -> tuple[Executed | None, bool]:
        """The record of a target, and whether each file that it executed is as it was then."""
        record = self._read(target)
        if record is None:
            return None, False
        return record, all(self._digest(name) == record.files[name] for name in record.functions)

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = digest_of(self._root / self._package / name)
        return self._digests[name]

    def record(
        self, targets: Sequence[str], jobs: int, told: Callable[[str, Executed], None]
    ) -> dict[str, Executed]:
        """Record these targets anew, side by side."""

        def one(target: str) -> Executed:
            made = self._record(target)
            told(target, made)
            return made

        with ThreadPoolExecutor(jobs) as pool:
            return dict(zip(targets, pool.map(one, targets), strict=True))

    def _path(self, target: str) -> Path:
        name = hashlib.sha256(target.encode()).hexdigest()[:8]
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in target)[:80]
        return self._folder / f"{safe}-{name}.json"

    def _read(self, target: str) -> Executed | None:
        try:
            found = decode_json(self._path(target).read_bytes(), Executed)
        except (OSError, *UNREADABLE):
            return None
        sound = (found.format, found.target) == (_FORMAT, target)
        return found if sound and set(found.functions) <= set(found.files) else None

    def _record(self, target: str) -> Executed:
        setup = msgspec.structs.replace(self._setup, target=target)
        request = TraceRequest(
            setup=setup, root=str(self._root), package=self._package, seconds=SECONDS
        )
        seen = _asked(request)
        made = Executed(
            target=target,
            files={name: self._digest(name) for name in sorted({*seen.files, *seen.functions})},
            functions=seen.functions,
            cases=seen.cases,
            why=seen.why,
        )
        path = self._path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(made))
        return made


def _asked(request: TraceRequest) -> Traced:
    """What the process says; why there is nothing where it dies."""
    ours, theirs = socket.socketpair()
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if request.setup.device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    with theirs:
        process = subprocess.Popen(
            module_command("fuzzgraph.gate", str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=environment,
            start_new_session=True,
        )
    channel: Channel[Traced] = Channel(ours, Traced)
    try:
        channel.send(request)
        return channel.receive()
    except (EOFError, InvalidMessage, ConnectionError):
        why = f"its process ended with exit code {process.wait()}"
        return Traced(files=[], functions={}, cases=0, why=why)
    finally:
        channel.close()
        if process.poll() is None:
            process.kill()
        process.wait()


def targets_of(package: str) -> tuple[str, ...]:
    """Names of the registered targets on a package.

    Raises:
        UsageError: there is none.
    """
    from fuzzgraph.targets import open_target, target_names

    named = []
    for name in target_names():
        try:
            owner = getattr(open_target(name), "package", "")
        except UsageError:
            continue
        if owner == package:
            named.append(name)
    if not named:
        raise UsageError(f"package={package!r} has no registered target. Name one with --target.")
    return tuple(named)
