"""Known bugs that are being fixed: tolerated or quarantined, each with an issue and an expiry date.

A tolerated finding is looked for, reported and left out of the exit code. A quarantined case is
never launched, because it takes the device or the machine down. Both end on their day, so that a
ledger which nobody reads hides nothing for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.run.records import finding_id
from fuzzgraph.text.escaping import web_link
from fuzzgraph.text.toml import parse_toml


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issue: str
    """Link to the issue."""
    expires: date
    """Last day on which the entry applies."""
    note: str = ""

    def _check(self) -> None:
        if not web_link(self.issue):
            raise ValueError(
                f"issue={self.issue!r} is not a link: write the http(s) address of the issue"
            )


class Tolerated(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding that is known and waits for its fix.

    `finding` is the id of one finding. The other names are parts of its key, with `*` for any
    text; those left out fit everything.
    """

    finding: str = ""
    oracle: str = "*"
    clause: str = "*"
    target: str = "*"
    buffer: str = "*"
    mode: str = "*"
    case: str = ""
    """File of a case that shows it, relative to the ledger; where it passes, the entry can go."""

    def __post_init__(self) -> None:
        self._check()
        if not self.finding and {self.oracle, self.clause, self.target, self.buffer} == {"*"}:
            raise ValueError("fits every finding: name a finding, or an oracle, clause or buffer")

    @property
    def name(self) -> str:
        parts = (self.oracle, self.clause, self.target, self.buffer, self.mode)
        what = self.finding or " ".join(part for part in parts if part != "*")
        return f"{what} ({self.issue})"

    def fits(self, finding: Finding) -> bool:
        if self.finding and self.finding != finding_id(finding.key):
            return False
        patterns = (self.oracle, self.clause, self.target, self.buffer, self.mode)
        return all(map(fnmatchcase, finding.key, patterns))


class Quarantined(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cases that are never launched: by digest, or by what they cover."""

    target: str = "*"
    cases: tuple[str, ...] = ()
    """Digests."""
    when: tuple[str, ...] = ()
    """Dimension values, e.g. 'mode draft', 'page_size=3': a case that has all of them stays out."""

    def __post_init__(self) -> None:
        self._check()
        if not self.cases and not self.when:
            raise ValueError(
                "keeps nothing out: name digests in cases, or dimension values in when"
            )

    @property
    def name(self) -> str:
        what = " + ".join(self.when) or ", ".join(self.cases)
        return f"{what} ({self.issue})"

    def keeps_out(self, target: str, digest: str, covers: Iterable[str]) -> bool:
        if not fnmatchcase(target, self.target):
            return False
        return digest in self.cases or (bool(self.when) and set(self.when) <= set(covers))


@dataclass(frozen=True, slots=True)
class Ledger:
    """The entries that apply today; the others are named in `bad_lines`."""

    tolerated: tuple[Tolerated, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    bad_lines: tuple[str, ...] = ()
    folder: Path = field(default_factory=Path)
    """Folder of the ledger; its case files are relative to it."""

    def tolerates(self, finding: Finding) -> Tolerated | None:
        return next((entry for entry in self.tolerated if entry.fits(finding)), None)

    def keeps_out(self, target: str, digest: str, covers: Iterable[str]) -> Quarantined | None:
        """The entry for which a case must not be launched."""
        if not self.quarantined:
            return None
        covers = frozenset(covers)
        return next(
            (entry for entry in self.quarantined if entry.keeps_out(target, digest, covers)), None
        )


def load_ledger(path: Path, today: date) -> Ledger:
    """The entries of a file; an unusable one is named in `bad_lines`, the others apply.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        raise UsageError(f"ledger {path}: cannot be read ({reason}). Name a TOML file.") from None
    return parse_ledger(text, today, where=path.name, folder=path.parent)


def parse_ledger(text: str, today: date, where: str = "ledger", folder: Path = Path()) -> Ledger:
    """The same from text."""
    tolerated: list[Tolerated] = []
    quarantined: list[Quarantined] = []
    bad: list[str] = []
    for line, entry in _entries(text):
        if isinstance(entry, Exception):
            said = " ".join(str(entry).split())
            bad.append(f"{where}:{line}: not a ledger entry ({said}); skipped")
        elif entry.expires < today:
            bad.append(
                f"{where}:{line}: {entry.name} expired on {entry.expires} and is ignored. "
                "Fix it, or give it another day"
            )
        elif isinstance(entry, Tolerated):
            tolerated.append(entry)
        else:
            quarantined.append(entry)
    return Ledger(tuple(tolerated), tuple(quarantined), tuple(bad), folder)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Each table of the file with the line it starts on; each is parsed by itself."""
    start, lines = 1, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("["):
            yield start, "\n".join(lines)
            start, lines = number, []
        lines.append(line)
    yield start, "\n".join(lines)


_KINDS: dict[str, type[Tolerated | Quarantined]] = {
    "tolerated": Tolerated,
    "quarantined": Quarantined,
}


def _entries(text: str) -> Iterator[tuple[int, Tolerated | Quarantined | Exception]]:
    """Each entry, or why it is none, with the line that its block starts on."""
    for line, block in _blocks(text):
        try:
            tables = list(_tables(block))
        except UNREADABLE as error:
            yield line, error
            continue
        for kind, table in tables:
            try:
                yield line, msgspec.convert(table, kind)
            except UNREADABLE as error:
                yield line, error


def _tables(block: str) -> Iterator[tuple[type[Tolerated | Quarantined], object]]:
    """The tables of a block: none in one of comments, several where their headers are indented."""
    for name, tables in parse_toml(block).items():
        if name not in _KINDS or not isinstance(tables, list):
            raise ValueError(f"{name!r} is unknown: write [[tolerated]] or [[quarantined]]")
        yield from ((_KINDS[name], table) for table in tables)
