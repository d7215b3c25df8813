"""The folder of a run: who owns which finding, and what is left of it.

Shards of one run share the folder. A finding belongs to the shard that creates its sub-folder,
which the file system lets only one of them do.
"""

from __future__ import annotations

import os
from collections.abc import Container
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from fuzzgraph import corpus
from fuzzgraph.case import Case, encode_case
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.finding import FindingKey
from fuzzgraph.run.events import ReportedFinding, RunSummary, finding_id
from fuzzgraph.run.records import FindingId
from fuzzgraph.strict_json import decode_json


def fresh_folder(out: Path | None, seed: int, root: Path = Path("reports/runs")) -> Path:
    """Create the folder of a new run: `out`, or one named by time and seed below `root`.

    Raises:
        UsageError: it cannot be created, or already holds something.
    """
    if out is None:
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        return _first_free(root, f"{stamp}-seed{seed}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UsageError(
                f"out={str(out)!r} already holds files. Name a new or empty folder for the run."
            )
    except OSError as error:
        raise _refused(out, error) from None
    return out


def _first_free(root: Path, name: str) -> Path:
    for number in range(1, 1000):
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _refused(path, error) from None
        return path
    raise UsageError(f"out={str(root)!r} holds 1000 runs of this second. Name a folder with --out.")


def _refused(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"out={str(path)!r} cannot be used ({error.strerror}). Name a folder that you may write."
    )


def refuse_links(folder: Path) -> None:
    """Refuse the folder of a run that leads out of itself: a run makes no links, and what is read
    or written through one lies anywhere on this machine.

    Raises:
        UsageError: there is a link; it is named.
    """
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink():
                raise UsageError(
                    f"{path}: is a link, and no run leaves links in its folder. Remove it if you "
                    "know what it leads to."
                )


class RunFolder:
    """Reads and writes the files of one run, one shard at a time."""

    def __init__(self, path: Path, shard: int = 0, shards: int = 1) -> None:
        self.path = path
        self.whole = shards == 1
        """Whether the folder holds one shard only, or stands for all of them together."""
        self._suffix = "" if self.whole else f"-{shard}"

    @property
    def events(self) -> Path:
        return self.path / f"events{self._suffix}.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / f"summary{self._suffix}.json"

    @property
    def running(self) -> Path:
        """The case at hand, written before it is run."""
        return self.path / f"running{self._suffix}.json"

    def set_out(self, case: Case) -> None:
        """Save the next case. A plain write: a rename costs as much as running a small case, and a
        torn file means that the case never ran."""
        try:
            self.running.write_bytes(encode_case(case))
        except OSError as error:
            raise _refused(self.path, error) from None

    def lock(self) -> FileLock:
        """Hold the folder for this process.

        Raises:
            UsageError: another one has it.
        """
        lock = FileLock(self.path / f".lock{self._suffix}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"{self.path}: another run is using this folder. Wait for it, or name another "
                "folder."
            ) from None
        return lock

    @property
    def findings(self) -> Path:
        return self.path / "findings"

    def of(self, finding: str) -> Path:
        """The folder of a finding, by its id; the one place where an id becomes a path.

        Raises:
            UsageError: it is not a valid id.
        """
        try:
            msgspec.convert(finding, FindingId)
        except msgspec.ValidationError:
            raise UsageError(
                f"finding id={finding!r} is not one that FuzzGraph gives, so nothing is read or "
                "written for it. Use the folder or the log as the run left it."
            ) from None
        return self.findings / finding

    def claim(self, finding: str) -> bool:
        """Whether the finding is ours to work on: no other shard has it."""
        folder = self.of(finding)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            return False
        except OSError as error:
            raise _refused(folder, error) from None
        return True

    def found(self, finding: str, case: Case) -> None:
        """Write the case that showed it first."""
        corpus.write_atomically(self.of(finding) / "found.json", corpus.readable_json(case))

    def save(self, reported: ReportedFinding) -> Path:
        """Write the shrunk case, also to the corpus of the run; return its path."""
        path = self.of(reported.id) / "case.json"
        content = corpus.readable_json(reported.case)
        corpus.write_atomically(path, content)
        corpus.add(self.path / "corpus", reported.case)
        return path

    def finish(self, reported: ReportedFinding) -> None:
        """Write the finding's record, the last of its files."""
        record = msgspec.json.format(msgspec.json.encode(reported), indent=2)
        corpus.write_atomically(self.of(reported.id) / "finding.json", record + b"\n")

    def companions(self, key: FindingKey) -> frozenset[FindingKey] | None:
        """Other findings of the case of a finished finding; None while a shard is working on it.

        A damaged record counts as not written yet.
        """
        path = self.of(finding_id(key)) / "finding.json"
        try:
            reported = decode_json(path.read_bytes(), ReportedFinding)
        except (FileNotFoundError, *UNREADABLE):
            return None
        return frozenset(finding.key for finding in reported.also)

    def finish_run(self, summary: RunSummary) -> None:
        record = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        corpus.write_atomically(self.summary, record + b"\n")

    def shard_summaries(self) -> tuple[list[RunSummary], list[str]]:
        """What each shard left, in order, and one line about each summary that is damaged."""
        summaries: list[RunSummary] = []
        bad: list[str] = []
        for path in sorted(self.path.glob("summary-*.json")):
            try:
                summaries.append(decode_json(path.read_bytes(), RunSummary))
            except UNREADABLE as error:
                bad.append(f"{path.name}: not a summary ({error}); skipped")
        return summaries, bad


def unlogged_findings(out: Path, logged: Container[str]) -> tuple[list[ReportedFinding], list[str]]:
    """The findings in the folder of a run of which its log says nothing, and a line about each.

    A finding is in the log before anything is written into its folder, so what is found here was
    lost from the log: it is damaged.

    Args:
        logged: the ids that the log has.
    """
    found: list[ReportedFinding] = []
    damage: list[str] = []
    for place in sorted(RunFolder(out).findings.glob("*")):
        if place.name in logged or not place.is_dir() or not any(place.iterdir()):
            continue
        where = f"findings/{place.name}: missing from the log"
        try:
            reported = decode_json((place / "finding.json").read_bytes(), ReportedFinding)
            if reported.id != place.name:
                raise ValueError(f"its record is that of {reported.id}")
        except FileNotFoundError:
            damage.append(f"{where}, and it has no finding.json")
        except (OSError, *UNREADABLE) as error:
            damage.append(f"{where}, and its finding.json cannot be read ({error})")
        else:
            found.append(reported)
            damage.append(f"{where}; taken from its finding.json")
    return found, damage
