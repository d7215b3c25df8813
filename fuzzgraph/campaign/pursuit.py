"""One finding, step by step: claim, confirm, shrink, confirm again, save; export comes last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.shrink import Followed, Shrinking
from fuzzgraph.case import Case, digest
from fuzzgraph.errors import OutOfTime
from fuzzgraph.events import (
    Emit,
    Export,
    Exported,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingWaiting,
    Left,
    ReportedFinding,
    Source,
    Status,
    finding_id,
    is_full_rate,
)
from fuzzgraph.finding import Finding
from fuzzgraph.run_options import replay_command
from fuzzgraph.run_spec import RunSpec

__all__ = ["Exporter", "Pursuit", "Say", "Occurrence", "unexecuted"]

Say = Callable[[str], object]
"""Takes a few words on what is being done."""
Exporter = Callable[[ReportedFinding, RunFolder, float, Say], tuple[Export, ...]]
"""Writes the repros of a finding; the number of seconds says what executing them may take."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A case that showed findings."""

    case: Case
    findings: tuple[Finding, ...]
    source: Source
    cases: int
    """Cases run up to here, this one included."""
    seconds: float
    """When it was run, in seconds of the campaign."""
    took: float = 0.0
    """Seconds of that run."""


class Pursuit:
    """Works on one finding at a time."""

    def __init__(
        self,
        plan: RunSpec,
        folder: RunFolder,
        emit: Emit,
        *,
        shrinking: Shrinking,
        export: Exporter,
        say: Say,
        standing: Callable[[Finding], tuple[Status, str]] = lambda finding: ("new", ""),
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._emit = emit
        self._shrinking = shrinking
        self._export = export
        self._say = say
        self._standing = standing

    def claim(self, case: Case, finding: Finding) -> bool:
        """Whether the finding is this shard's to follow; it is then in the log, and its case on
        disk."""
        name = finding_id(finding.key)
        if not self._folder.claim(name):
            return False
        self._emit(FindingNew(shard=self._plan.shard, id=name, finding=finding, case=case))
        self._folder.found(name, case)
        return True

    def put_off(self, seen: Occurrence, finding: Finding) -> None:
        """Leave word of a finding that waits for another one."""
        self._emit(
            FindingWaiting(
                shard=self._plan.shard,
                id=finding_id(finding.key),
                finding=finding,
                case=seen.case,
                beside=tuple(other for other in seen.findings if other.key != finding.key),
            )
        )

    def follow(self, seen: Occurrence, finding: Finding, slice_end: float) -> ReportedFinding:
        """The finding with its rate and its shrunk case, both on disk.

        Args:
            seen: where it was seen first.
            finding: which of the findings there; claimed before.
            slice_end: when its share of the time ends, in seconds of the campaign.
        """
        name = finding_id(finding.key)
        done = self._shrinking.follow(name, seen.case, finding, slice_end)
        finding = done.finding
        if finding.confirmed and not is_full_rate(finding.confirmed):
            self._emit(FindingFlaky(shard=self._plan.shard, id=name, rate=finding.confirmed))
        status, issue = self._standing(finding)
        return self._write(
            ReportedFinding(
                id=name,
                status=status,
                issue=issue,
                left=done.left,
                finding=finding,
                case=done.case,
                digest=digest(done.case),
                also=self._companions(seen, done),
                source=seen.source,
                after_cases=seen.cases,
                after_seconds=round(seen.seconds, 3),
                shrink_tries=done.tries,
                shrink_seconds=round(done.seconds, 3),
            )
        )

    def _companions(self, seen: Occurrence, done: Followed) -> tuple[Finding, ...]:
        """What else the case breaks; of a case that is as it was seen, it is known."""
        shown = seen.findings
        if "confirm" not in done.left:
            with contextlib.suppress(OutOfTime):
                shown = self._shrinking.findings(done.case)
        others = {one.key: one for one in shown if one.key != done.finding.key}
        return tuple(others.values())

    def _write(self, reported: ReportedFinding) -> ReportedFinding:
        path = str(self._folder.save(reported))
        reported = msgspec.structs.replace(
            reported, case_path=path, replay=replay_command(path, self._plan.setup)
        )
        self._folder.finish(reported)
        self._emit(FindingPursued(shard=self._plan.shard, reported=reported))
        return reported

    def write_repro(self, reported: ReportedFinding, seconds: float) -> ReportedFinding:
        """Export the finding.

        Args:
            seconds: what executing the exports may take; 0 writes them only, less than 0 writes a
                script that runs the case through FuzzGraph.
        """
        exports = self._export(reported, self._folder, seconds, self._say)
        left: tuple[Left, ...] = tuple(one for one in reported.left if one != "export")
        if reported.status == "new" and any(map(unexecuted, exports)):
            left = (*left, "export")
        reported = msgspec.structs.replace(reported, exports=exports, left=left)
        self._folder.finish(reported)
        self._emit(Exported(shard=self._plan.shard, reported=reported))
        return reported


def unexecuted(export: Export) -> bool:
    """Whether a script is still to be run."""
    return export.kind == "script" and not export.rate and not export.error
