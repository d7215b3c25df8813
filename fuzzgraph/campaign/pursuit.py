"""One finding, step by step: claim, confirm, shrink, confirm again, save; export comes last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.plan import Plan
from fuzzgraph.campaign.runner import Runner
from fuzzgraph.campaign.stopping import Stopwatch
from fuzzgraph.case import Case, digest
from fuzzgraph.errors import InvalidCase
from fuzzgraph.events import (
    Emit,
    Export,
    Exported,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingWaiting,
    ReportedFinding,
    Setup,
    Shrunk,
    Source,
    Status,
    finding_id,
    is_full_rate,
)
from fuzzgraph.finding import Finding

__all__ = ["Exporter", "Minimise", "Pursuit", "Sighting", "replay_command"]

Minimise = Callable[[Case, Callable[[Case], bool]], Case]
Exporter = Callable[[ReportedFinding, RunFolder, bool], tuple[Export, ...]]
"""Writes the repros of a finding; the flag says whether to execute them too."""


def replay_command(path: str, setup: Setup) -> str:
    """The command line that replays a case on the setup that showed the finding."""
    words = ["fuzzgraph", "replay", path, "--target", setup.target]
    if setup.release:
        words += ["--release", setup.release]
    if setup.fault:
        words += ["--fault", setup.fault]
    if setup.device != "cpu":
        words += ["--device", setup.device]
    if setup.graphs == "recorder" and setup.device != "cpu":
        words += ["--graphs", setup.graphs]
    if setup.strict_nan:
        words.append("--strict-nan")
    if setup.second_opinion:
        words.append("--second-opinion")
    if setup.stock_kernels:
        words.append("--stock-kernels")
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A case that showed findings."""

    case: Case
    findings: tuple[Finding, ...]
    source: Source
    cases: int
    """Cases run up to here, this one included."""
    seconds: float


class Pursuit:
    """Works on one finding at a time."""

    def __init__(
        self,
        runner: Runner,
        plan: Plan,
        folder: RunFolder,
        emit: Emit,
        *,
        minimise: Minimise,
        export: Exporter,
        watch: Stopwatch,
        tick: Callable[[str], None],
        standing: Callable[[Finding], tuple[Status, str]] = lambda finding: ("new", ""),
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._folder = folder
        self._emit = emit
        self._minimise = minimise
        self._export = export
        self._watch = watch
        self._tick = tick
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

    def put_off(self, seen: Sighting, finding: Finding) -> None:
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

    def follow(self, seen: Sighting, finding: Finding, last_moment: float) -> ReportedFinding:
        """The finding with its rate and its shrunk case, both on disk.

        Args:
            seen: where it was seen first.
            finding: which of the findings there; claimed before.
            last_moment: when shrinking ends at the latest, in seconds of the campaign.
        """
        name = finding_id(finding.key)
        self._tick(f"confirming {name}")
        finding = self._confirm(seen.case, finding)
        case, tries, seconds = seen.case, 0, 0.0
        if not finding.confirmed.startswith("0/"):
            case, finding, tries, seconds = self._shrunk(name, seen.case, finding, last_moment)
        if not is_full_rate(finding.confirmed):
            self._emit(FindingFlaky(shard=self._plan.shard, id=name, rate=finding.confirmed))
        status, issue = self._standing(finding)
        reported = ReportedFinding(
            id=name,
            status=status,
            issue=issue,
            finding=finding,
            case=case,
            digest=digest(case),
            also=self._companions(case, finding),
            source=seen.source,
            after_cases=seen.cases,
            after_seconds=round(seen.seconds, 3),
            shrink_tries=tries,
            shrink_seconds=round(seconds, 3),
        )
        return self._write(reported)

    def _confirm(self, case: Case, finding: Finding) -> Finding:
        return self._runner.confirm(case, finding, self._plan.confirm_times)

    def _shrunk(
        self, name: str, case: Case, finding: Finding, last_moment: float
    ) -> tuple[Case, Finding, int, float]:
        """The smallest case found and the finding on it, or what was given where nothing holds."""
        begin = self._watch.seconds
        tries = 0

        def still_fails(candidate: Case) -> bool:
            nonlocal tries
            if self._watch.interrupted or self._watch.seconds > last_moment:
                return False
            tries += 1
            self._tick(f"shrinking {name}")
            return self._seen_in(candidate, finding) is not None

        small = self._minimise(case, still_fails)
        seconds = self._watch.seconds - begin
        seen = self._seen_in(small, finding) if small != case else None
        confirmed = self._confirm(small, seen) if seen else finding
        if not is_full_rate(confirmed.confirmed) and is_full_rate(finding.confirmed):
            small, confirmed = case, finding
        self._emit(
            Shrunk(
                shard=self._plan.shard,
                id=name,
                before=digest(case),
                after=digest(small),
                steps=len(small.steps),
                requests=len({row.request for step in small.steps for row in step.rows}),
                tries=tries,
                seconds=round(seconds, 3),
            )
        )
        return small, confirmed, tries, seconds

    def _findings(self, case: Case) -> tuple[Finding, ...]:
        try:
            return self._runner.run_case(case).findings
        except InvalidCase:  # a candidate of the shrink that contradicts itself
            return ()

    def _seen_in(self, case: Case, finding: Finding) -> Finding | None:
        return next((seen for seen in self._findings(case) if seen.key == finding.key), None)

    def _companions(self, case: Case, finding: Finding) -> tuple[Finding, ...]:
        others = {seen.key: seen for seen in self._findings(case) if seen.key != finding.key}
        return tuple(others.values())

    def _write(self, reported: ReportedFinding) -> ReportedFinding:
        path = str(self._folder.save(reported))
        reported = msgspec.structs.replace(
            reported, case_path=path, replay=replay_command(path, self._plan.setup)
        )
        self._folder.finish(reported)
        self._emit(FindingPursued(shard=self._plan.shard, reported=reported))
        return reported

    def write_repro(self, reported: ReportedFinding, *, execute: bool) -> ReportedFinding:
        """Export the finding; executing the exports may take longer than finding it did."""
        self._tick(f"exporting {reported.id}")
        exports = self._export(reported, self._folder, execute)
        reported = msgspec.structs.replace(reported, exports=exports)
        self._folder.finish(reported)
        self._emit(Exported(shard=self._plan.shard, reported=reported))
        return reported
