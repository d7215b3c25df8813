"""Which functions of its engine a target executes, recorded once and kept in the cache.

A record belongs to a target and to the files that it executed: it is stale once one of them has
another content, and is then made anew. It is made in a process of its own, over drawn cases.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import UNREADABLE
from fuzzgraph.process.cache import cache_root
from fuzzgraph.process.interpreter import engine_environment, module_command
from fuzzgraph.run.spec import Setup
from fuzzgraph.strict_json import decode_json
from fuzzgraph.text.escaping import file_name
from fuzzgraph.worker.messages import Channel, InvalidMessage

_FORMAT = 2
SECONDS = 2.5
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
    """What a process is to record, an answer for each target."""

    setup: Setup
    """Its target is replaced."""
    targets: tuple[str, ...]
    root: str
    """Folder to import the engine from."""
    package: str
    seconds: float


class Traced(msgspec.Struct, frozen=True, kw_only=True, tag="traced"):
    """What it saw of one target."""

    target: str
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
        self, targets: Sequence[str], jobs: int, told: Callable[[Executed], object]
    ) -> dict[str, Executed]:
        """Record these targets anew, in so many processes side by side.

        Args:
            told: called with each record, by several threads.
        """
        parts = [targets[number::jobs] for number in range(min(jobs, len(targets)))]
        with ThreadPoolExecutor(max(len(parts), 1)) as pool:
            made = [one for part in pool.map(partial(self._recorded, told), parts) for one in part]
        return {one.target: one for one in made}

    def _path(self, target: str) -> Path:
        name = hashlib.sha256(target.encode()).hexdigest()[:8]
        return self._folder / f"{file_name(target)}-{name}.json"

    def _read(self, target: str) -> Executed | None:
        try:
            found = decode_json(self._path(target).read_bytes(), Executed)
        except (OSError, *UNREADABLE):
            return None
        sound = (found.format, found.target) == (_FORMAT, target)
        return found if sound and set(found.functions) <= set(found.files) else None

    def _recorded(
        self, told: Callable[[Executed], object], targets: Sequence[str]
    ) -> list[Executed]:
        request = TraceRequest(
            setup=self._setup, targets=tuple(targets), root=str(self._root),
            package=self._package, seconds=SECONDS,
        )  # fmt: skip
        made = []
        for seen in _answers(request):
            made.append(self._keep(seen))
            told(made[-1])
        return made

    def _keep(self, seen: Traced) -> Executed:
        names = sorted({*seen.files, *seen.functions})
        made = Executed(
            target=seen.target,
            files={name: self._digest(name) for name in names},
            functions=seen.functions,
            cases=seen.cases,
            why=seen.why,
        )
        write_atomically(self._path(seen.target), msgspec.json.encode(made))
        return made


def _answers(request: TraceRequest) -> Iterator[Traced]:
    """One for each target; why there is nothing where the process died before it."""
    left = list(request.targets)
    with _process(request) as (channel, process):
        while left:
            try:
                answer = channel.receive()
            except (EOFError, InvalidMessage):
                break
            if answer.target in left:
                left.remove(answer.target)
                yield answer
        for target in left:
            why = f"the process that records it ended with exit code {process.wait()}"
            yield Traced(target=target, files=[], functions={}, cases=0, why=why)


@contextlib.contextmanager
def _process(
    request: TraceRequest,
) -> Iterator[tuple[Channel[Traced], subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            module_command("fuzzgraph.gate", str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=engine_environment(request.setup.device),
            start_new_session=True,
        )
    channel: Channel[Traced] = Channel(ours, Traced)
    try:
        with contextlib.suppress(ConnectionError):  # seen when it is asked
            channel.send(request)
        yield channel, process
    finally:
        channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its forks as well
        process.wait()
