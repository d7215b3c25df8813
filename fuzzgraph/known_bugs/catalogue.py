"""The catalogue: one TOML file for each known bug, named after it, strictly read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.finding import Clause, Finding
from fuzzgraph.shipped import KNOWN_BUGS


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a finding must say to count as this bug."""

    clause: Clause
    buffer: str
    """As the finding names it; '' for what has no buffer, e.g. an exception."""
    says: str = ""
    """A part of the message, where clause and buffer do not tell the bug from others."""

    def met_by(self, finding: Finding) -> bool:
        return (
            finding.clause == self.clause
            and finding.buffer == self.buffer
            and self.says in finding.message
        )


class KnownBug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bug. Either it is driven (target, releases, expectations) or the entry says why not."""

    source: str
    """Repository and pull request or issue."""
    summary: str
    target: str = ""
    broken: tuple[str, ...] = ()
    """Releases that have it."""
    fixed: tuple[str, ...] = ()
    """Releases that no longer have it."""
    fixed_target: str = ""
    """Target that acquits, where the broken one is a mutant of it; '' for the same."""
    overlap: bool = False
    """Whether it shows with the host a step ahead alone."""
    expect: tuple[Expectation, ...] = ()
    """A finding that meets one of them is this bug."""
    confirmed: str = ""
    """How it was made sure that the broken releases have it and the fixed ones do not."""
    not_driven: str = ""
    """Why no target can show it; '' where one does."""

    def is_seen_in(self, finding: Finding) -> bool:
        return any(expected.met_by(finding) for expected in self.expect)


def default_catalogue() -> Path:
    """`corpus/known_bugs` of the folder we are in; without one that which comes with FuzzGraph."""
    here = Path("corpus/known_bugs")
    return here if here.is_dir() else KNOWN_BUGS


def load(folder: Path) -> dict[str, KnownBug]:
    """Name -> bug, by name.

    Raises:
        UsageError: the folder cannot be read, or an entry is wrong; names file and field.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except OSError as error:
        raise UsageError(
            f"catalogue={str(folder)!r} cannot be read ({error.strerror}). Name another folder "
            "with --catalogue, or leave the option out for the catalogue that comes with FuzzGraph."
        ) from None
    return {path.stem: _read(path) for path in paths}


def _read(path: Path) -> KnownBug:
    try:
        bug = msgspec.toml.decode(path.read_bytes(), type=KnownBug)
    except (OSError, *UNREADABLE) as error:
        raise UsageError(
            f"{path}: not a valid entry of the catalogue ({error}). Mend it; "
            f"{KNOWN_BUGS / 'README.md'} has the fields."
        ) from None
    if bug.not_driven:
        wrong = "not_driven excludes broken, fixed and expect"
        bad = bool(bug.broken or bug.fixed or bug.expect)
    else:
        wrong = "a driven bug needs target, broken, expect and confirmed"
        bad = not (bug.target and bug.broken and bug.expect and bug.confirmed)
    both = not bug.fixed_target and set(bug.broken) & set(bug.fixed)
    if bad or both:
        raise UsageError(f"{path}: {wrong if bad else 'a release is both broken and fixed'}.")
    return bug


def chosen(catalogue: Mapping[str, KnownBug], names: Sequence[str]) -> dict[str, KnownBug]:
    """The bugs with these names, all where none is named.

    Raises:
        UsageError: a name is unknown; lists those there are.
    """
    for name in names:
        if name not in catalogue:
            raise UsageError(
                f"known bug {name!r} is not in the catalogue. Use one of: {', '.join(catalogue)}."
            )
    return {name: catalogue[name] for name in (names or catalogue)}
