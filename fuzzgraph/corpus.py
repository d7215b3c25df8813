"""Cases in a folder: one JSON file each, named by its content.

Reading is strict and forgiving at once: a bad entry costs that entry and is
named. Writing is atomic, so a killed run leaves whole files only. What a case
means is `case`'s, running it is `campaign`'s.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fuzzgraph.case import Case, digest, encode_case, load_case
from fuzzgraph.errors import InvalidCase, UsageError
from fuzzgraph.shipped import case_folders

_PART = ".part"


@dataclass(frozen=True, slots=True)
class Entry:
    """A case and the file that holds it."""

    path: Path
    case: Case
    digest: str


@dataclass(frozen=True, slots=True)
class BadEntry:
    """A file that holds no case, and why, in one line."""

    path: Path
    message: str


@dataclass(slots=True)
class Loaded:
    """What a folder holds: the readable entries, and those that are not."""

    entries: list[Entry] = field(default_factory=list)
    bad: list[BadEntry] = field(default_factory=list)

    @property
    def bad_lines(self) -> list[str]:
        return [entry.message for entry in self.bad]


@dataclass(slots=True)
class Merged:
    """What `merge` did."""

    added: list[Path] = field(default_factory=list)
    known: int = 0
    bad_lines: list[str] = field(default_factory=list)


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{folder}: cannot be written ({error.strerror}). Make room, or name a folder that you may "
        "write."
    )


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: aside first, then renamed into place.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(aside, 0o644)  # mkstemp makes it private; a corpus is shared
        os.replace(aside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        if isinstance(error, OSError):
            raise _unwritable(path.parent, error) from None
        raise


def load(folder: Path) -> Loaded:
    """All cases of a folder, by file name; sub-folders are not searched.

    Raises:
        UsageError: the folder is missing or cannot be listed.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if _is_entry(name))
    except OSError as error:
        raise UsageError(
            f"corpus folder {folder}: cannot be read ({error.strerror}). "
            "Name an existing folder, or make one with 'fuzzgraph corpus add'."
        ) from None
    loaded = Loaded()
    for name in names:
        try:
            case = load_case(folder / name)
        except InvalidCase as error:
            loaded.bad.append(BadEntry(folder / name, str(error)))
        else:
            loaded.entries.append(Entry(folder / name, case, digest(case)))
    return loaded


def load_saved() -> Loaded:
    """The cases that a run starts with: those of `case_folders()`, equal ones once.

    Raises:
        UsageError: a folder cannot be listed.
    """
    entries: dict[str, Entry] = {}
    joined = Loaded()
    for loaded in map(load, case_folders()):
        for entry in loaded.entries:
            entries.setdefault(entry.digest, entry)
        joined.bad += loaded.bad
    joined.entries += entries.values()
    return joined


def _is_entry(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".") and name != "case.schema.json"


def add(folder: Path, case: Case) -> Path:
    """Save a case under its digest and return its path; a case already there stays as it is.

    Raises:
        UsageError: the folder cannot be written.
    """
    path = folder / f"{digest(case)}.json"
    if not path.exists():
        write_atomically(path, readable_json(case))
    return path


def readable_json(case: Case) -> bytes:
    """The case as JSON for people: canonical content, indented."""
    return msgspec.json.format(encode_case(case), indent=2) + b"\n"


def merge(folder: Path, sources: Iterable[Path]) -> Merged:
    """Add every readable case of `sources` to `folder`.

    Raises:
        UsageError: a source cannot be read, or `folder` cannot be written.
    """
    merged = Merged()
    known = {entry.digest for entry in load(folder).entries} if folder.is_dir() else set()
    for source in sources:
        loaded = load(source)
        merged.bad_lines += loaded.bad_lines
        for entry in loaded.entries:
            if entry.digest in known:
                merged.known += 1
                continue
            known.add(entry.digest)
            merged.added.append(add(folder, entry.case))
    return merged


def prune(folder: Path, *, malformed: bool = False, dry_run: bool = False) -> list[Path]:
    """Remove what adds nothing: second copies of a case and files of killed writes.

    Of equal cases the one named by a person is kept, then the one named by its digest. With
    `malformed`, entries that cannot be read go too. With `dry_run` nothing is touched.

    Raises:
        UsageError: the folder cannot be read or written.
    """
    doomed = [folder / name for name in sorted(_listing(folder)) if name.endswith(_PART)]
    kept: dict[str, Entry] = {}
    loaded = load(folder)
    for entry in sorted(loaded.entries, key=lambda entry: entry.path.stem == entry.digest):
        if kept.setdefault(entry.digest, entry) is not entry:
            doomed.append(entry.path)
    if malformed:
        doomed += [entry.path for entry in loaded.bad]
    if not dry_run:
        _remove(folder, doomed)
    return doomed


def minimise(
    folder: Path, features: Callable[[Case], Iterable[Hashable]], *, dry_run: bool = False
) -> list[Path]:
    """Remove cases whose features the others have as well; what a person named always stays.

    Greedy: of the cases left, the one with most new features for its steps and rows is kept next,
    so that small cases stand in for large ones. Together those kept have every feature that the
    folder had. With `dry_run` nothing is touched.

    Args:
        features: what a case covers, e.g. pairs of dimension values.

    Raises:
        UsageError: the folder cannot be read or written.
    """
    entries = load(folder).entries
    of = {entry.path: frozenset(features(entry.case)) for entry in entries}
    named = [entry for entry in entries if entry.path.stem != entry.digest]
    open_: set[Hashable] = set().union(*of.values()) - set().union(*(of[e.path] for e in named))
    left = [entry for entry in entries if entry.path.stem == entry.digest]
    while open_ and left:
        best = max(left, key=lambda entry: len(of[entry.path] & open_) / _size(entry.case))
        open_ -= of[best.path]
        left.remove(best)
    doomed = [entry.path for entry in left]
    if not dry_run:
        _remove(folder, doomed)
    return doomed


def _size(case: Case) -> int:
    return sum(1 + len(step.rows) for step in case.steps)


def _listing(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise UsageError(
            f"corpus folder {folder}: cannot be read ({error.strerror}). Name an existing folder."
        ) from None


def _remove(folder: Path, doomed: Iterable[Path]) -> None:
    try:
        for path in doomed:
            path.unlink()
    except OSError as error:
        raise _unwritable(folder, error) from None


def find(name: str, folders: Iterable[Path]) -> Path:
    """The file of a case given by path, or by the first digits of its digest.

    Raises:
        UsageError: no such file or digest, or several cases begin like this.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        if (path / "case.json").is_file():  # the folder of a finding
            return path / "case.json"
        raise UsageError(f"case {name!r}: is a folder. Name one case file in it.")
    hits: dict[str, Path] = {}
    if len(name) >= 4 and _is_hex(name):
        for folder in folders:
            for known, hit in _digests(folder):
                if known.startswith(name):
                    hits.setdefault(known, hit)
    if len(hits) > 1:
        raise UsageError(
            f"case {name!r}: {len(hits)} cases begin like this "
            f"({', '.join(sorted(hits)[:4])}). Give more digits, or a path."
        )
    if not hits:
        raise UsageError(
            f"case {name!r}: no such file, and no case of the corpus begins like this (it takes "
            "four digits). Give the path of a case file; 'fuzzgraph corpus list' shows digests."
        )
    return hits.popitem()[1]


def _digests(folder: Path) -> Iterator[tuple[str, Path]]:
    """Digest and file of each case: the file's name, or the content's where a person named it."""
    for path in sorted(folder.glob("*.json")):
        if _is_hex(path.stem):
            yield path.stem, path
        elif _is_entry(path.name):
            with contextlib.suppress(InvalidCase):  # a bad entry is no reason to miss a good one
                yield digest(load_case(path)), path


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in text)
