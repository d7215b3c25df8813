"""Cases shared between runs and machines, kept in one of Hypothesis' own databases.

A folder, a Redis server or the artifact of a GitHub workflow. It is a cache: what cannot be reached
costs the sharing and not the run, and is said. What comes out of it is untrusted and read strictly.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fuzzgraph.case import Case, decode_case, digest, encode_case
from fuzzgraph.corpus import BadEntry, Entry, Loaded
from fuzzgraph.errors import InvalidCase, UsageError
from fuzzgraph.run.events import CaseKept, Event, FindingPursued
from fuzzgraph.run.spec import DATABASE_FORMS, RunSpec, checked_database

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

DEFAULT_FOLDER = Path(".fuzzgraph/examples")
"""Where cases go that a server or an artifact does not take."""

Answer = TypeVar("Answer")

_MOST = 1000
"""Cases that one run takes; which of more, its seed decides."""
_REDIS_SECONDS = 2.0
_ANSWER_SECONDS = 20.0
"""How long a server may be silent; a client that has a bound of its own keeps to that."""
_AGAIN_SECONDS = 30.0
"""How long a server that failed is left alone."""


def open_database(option: str, fallback: Path = DEFAULT_FOLDER) -> CaseDatabase:
    """The examples behind an option, of which `checked_database` knows the forms.

    Raises:
        UsageError: it has none of them, or what it needs is not installed.
    """
    kind, _, rest = checked_database(option).partition(":")
    if kind == "dir":
        return CaseDatabase(_folder(Path(rest)))
    if kind == "github":
        far = _artifact(*rest.split("/"))
        return CaseDatabase(_folder(fallback), far, name=option, writes=False, instead=fallback)
    name = _without_password(option)
    return CaseDatabase(_folder(fallback), _redis(option), name=name, instead=fallback)


def _folder(path: Path) -> ExampleDatabase:
    from hypothesis.database import DirectoryBasedExampleDatabase

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"database={f'dir:{path}'!r}: cannot be used ({error.strerror}). Name a folder that "
            "you may write."
        ) from None
    return DirectoryBasedExampleDatabase(path)


def _redis(url: str) -> ExampleDatabase:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
    except ImportError:
        raise UsageError(
            f"database={url!r} needs the package redis. Install it: pip install 'fuzzgraph[fleet]'."
        ) from None
    try:
        server = Redis.from_url(
            url, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS
        )
    except ValueError as error:
        raise UsageError(f"database={url!r}: {error}. Use one of: {DATABASE_FORMS}.") from None
    return RedisExampleDatabase(server, key_prefix=b"fuzzgraph-example:")


def _artifact(owner: str, repo: str) -> ExampleDatabase:
    from hypothesis.database import GitHubArtifactDatabase, ReadOnlyDatabase

    cache = os.environ.get("FUZZGRAPH_ARTIFACTS")  # Hypothesis' own folder otherwise
    name = "fuzzgraph-examples"
    return ReadOnlyDatabase(GitHubArtifactDatabase(owner, repo, name, path=cache))


class CaseDatabase:
    """Reads and writes shared cases.

    Args:
        near: a folder of this machine.
        far: a server or an artifact; the folder takes its place where it fails.
        name: how it is called in messages.
        writes: whether `far` takes cases.
        instead: the folder's path, for messages.
    """

    def __init__(
        self,
        near: ExampleDatabase,
        far: ExampleDatabase | None = None,
        *,
        name: str = "",
        writes: bool = True,
        instead: Path = DEFAULT_FOLDER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._near = near
        self._far = far
        self._name = name
        self._writes = writes
        self._instead = instead
        self._clock = clock
        self._again = 0.0
        self._missed: dict[bytes, bytes] = {}
        self.notes: list[str] = []
        """What could not be reached, one line each."""

    def fetch(self, target: str, seed: int = 0) -> Loaded:
        """The cases shared for a target, in the seed's order; a bad one costs itself."""
        key = _key(target)
        values = set(self._near.fetch(key))
        values |= self._ask(lambda far: set(far.fetch(key))) or set()
        loaded = Loaded()
        for number, value in enumerate(sorted(values)):
            name = Path(f"{self._name or 'examples'}[{number}]")
            try:
                case = decode_case(value)
            except InvalidCase as error:
                loaded.bad.append(BadEntry(name, f"{name}: {error}"))
            else:
                loaded.entries.append(Entry(name, case, digest(case)))
        random.Random(seed).shuffle(loaded.entries)
        del loaded.entries[_MOST:]
        return loaded

    def save(self, target: str, case: Case) -> None:
        """Share a case; what the server does not take lies in the folder."""
        key, value = _key(target), encode_case(case)
        if not self._take(key, value):
            self._near.save(key, value)
            self._missed[value] = key

    def close(self) -> None:
        """Hand over what a server missed, where it is back."""
        self._again = 0.0
        missed, self._missed = self._missed, {}
        for value, key in missed.items():
            if not self._take(key, value):
                return

    def _take(self, key: bytes, value: bytes) -> bool:
        """Whether the server has it."""

        def save(far: ExampleDatabase) -> bool:
            far.save(key, value)
            return True

        return self._writes and bool(self._ask(save))

    def _ask(self, question: Callable[[ExampleDatabase], Answer]) -> Answer | None:
        """The answer of a server; None where there is none, or it fails or failed just now."""
        if self._far is None or self._clock() < self._again:
            return None
        try:
            with warnings.catch_warnings(record=True) as warned, _answering(_ANSWER_SECONDS):
                warnings.simplefilter("always")
                answer = question(self._far)
        except Exception as error:  # whatever a client of somebody else's raises
            self._again = self._clock() + _AGAIN_SECONDS
            self._say(f"{type(error).__name__}: {error}")
            return None
        for warning in warned:
            self._say(str(warning.message))
        return answer

    def _say(self, what: str) -> None:
        instead = f"examples are kept in {self._instead}" if self._writes else "it is left out"
        if not self.notes:
            self.notes.append(f"{self._name}: {' '.join(what.split())[:200]}; {instead}")


class SharedCases:
    """The part of a run: takes what is shared at its begin, shares what comes up.

    Args:
        examples: where cases are kept; None to take `found` and keep nothing.
    """

    def __init__(self, examples: CaseDatabase | None, target: str, found: Loaded) -> None:
        self._examples = examples
        self._target = target
        self._found = found

    @staticmethod
    def of(plan: RunSpec) -> SharedCases:
        """As the plan says.

        Raises:
            UsageError: its database cannot be used.
        """
        target = plan.setup.target
        examples = open_database(plan.database) if plan.database else None
        if examples is None or plan.finish_only:
            return SharedCases(examples, target, Loaded())
        found = examples.fetch(target, plan.seed)
        found.entries = found.entries[plan.shard :: plan.shards]
        return SharedCases(examples, target, found)

    def notes(self) -> list[str]:
        """What could not be read or reached."""
        return [*self._found.bad_lines, *(self._examples.notes if self._examples else ())]

    def beyond(self, seeds: Loaded) -> list[Entry]:
        """The shared cases that the corpus does not hold."""
        known = {entry.digest for entry in seeds.entries}
        return [entry for entry in self._found.entries if entry.digest not in known]

    def __call__(self, event: Event) -> None:
        if self._examples is None:
            return
        if isinstance(event, CaseKept):
            self._examples.save(self._target, event.case)
        elif isinstance(event, FindingPursued):
            self._examples.save(self._target, event.reported.case)

    def close(self) -> None:
        if self._examples is not None:
            self._examples.close()


@contextlib.contextmanager
def _answering(seconds: float) -> Iterator[None]:
    """Bound what a new connection may be silent: Hypothesis asks GitHub without any bound."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _key(target: str) -> bytes:
    return f"fuzzgraph.cases.1:{target}".encode()


def _without_password(url: str) -> str:
    return re.sub(r"//[^@/]*@", "//***@", url)
