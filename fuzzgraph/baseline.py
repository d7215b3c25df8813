"""Findings that a branch already has, so that a pull request fails only for those it adds.

One JSON object a line, written aside and renamed: a file that merges in version control, and of
which a damaged line costs that line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.run.records import ReportedFinding, finding_id
from fuzzgraph.strict_json import decode_json
from fuzzgraph.text.finding_text import sentence


class KnownFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file: the key of a finding, and its name for people."""

    id: str
    oracle: str
    clause: str
    target: str
    buffer: str
    mode: str
    sentence: str = ""
    """What happens, for people; decides nothing."""
    since: str = ""
    """When it was first written down, UTC."""

    def __post_init__(self) -> None:
        if finding_id(self._key) != self.id:
            raise ValueError(f"id {self.id!r} does not belong to this key")

    @property
    def _key(self) -> tuple[str, str, str, str, str]:
        return (self.oracle, self.clause, self.target, self.buffer, self.mode)


@dataclass(frozen=True, slots=True)
class Baseline:
    known: dict[str, KnownFinding]
    """By id."""
    bad_lines: tuple[str, ...] = ()

    def has(self, finding: Finding) -> bool:
        return finding_id(finding.key) in self.known


def load_baseline(path: Path) -> Baseline:
    """The findings of a file; a bad line is named and does not affect the others.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(
            f"baseline {path}: cannot be read ({error.strerror}). Write one with "
            "'fuzzgraph baseline DIR --out FILE'."
        ) from None
    known: dict[str, KnownFinding] = {}
    bad = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = decode_json(line, KnownFinding)
        except UNREADABLE as error:
            bad.append(f"{path.name}:{number}: not a known finding ({error}); skipped")
        else:
            known[entry.id] = entry
    return Baseline(known, tuple(bad))


def known_of(reported: Iterable[ReportedFinding], since: str) -> dict[str, KnownFinding]:
    """The findings of a run as lines of a baseline; flaky ones too, tolerated ones not."""
    entries = {}
    for one in reported:
        if one.status == "tolerated":
            continue
        oracle, clause, target, buffer, mode = one.finding.key
        entries[one.id] = KnownFinding(
            id=one.id,
            oracle=oracle,
            clause=clause,
            target=target,
            buffer=buffer,
            mode=mode,
            sentence=sentence(one.finding),
            since=since,
        )
    return entries


def baseline_text(known: Iterable[KnownFinding]) -> bytes:
    """The file, sorted, so that equal baselines are equal bytes."""
    return b"".join(
        msgspec.json.encode(entry) + b"\n" for entry in sorted(known, key=lambda one: one.id)
    )
