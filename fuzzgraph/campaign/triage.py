"""What happens to a finding: deduplicated, queued, confirmed, shrunk, exported.

A finding is in the log, and its case on disk, when it is first seen. It is worked on as long as
such work took no more than its share of the time so far; the rest waits for the end of the search,
which leaves time for it. A finding seen only in cases that show another one, not shrunk yet, waits
for that: shrinking often explains it. How time is shared is `budget`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from fuzzgraph.campaign.budget import Allowance
from fuzzgraph.campaign.dedup import Deduplicator
from fuzzgraph.campaign.effect import with_effect
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.live_run import LiveRun
from fuzzgraph.campaign.shrink import Minimise, Shrinker, ShrunkFinding, Unserved
from fuzzgraph.case import Case, digest
from fuzzgraph.errors import OutOfTime
from fuzzgraph.finding import Finding
from fuzzgraph.policy import FindingPolicy
from fuzzgraph.run.events import (
    Export,
    Exported,
    FindingAttached,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingWaiting,
    Left,
    ReportedFinding,
    Source,
    finding_id,
    is_full_rate,
)
from fuzzgraph.run.runner import Runner
from fuzzgraph.run_options import replay_command

Say = Callable[[str], object]
"""Takes a few words on what is being done."""
Locate = Callable[[Case, Finding], Finding]
Exporter = Callable[[ReportedFinding, RunFolder, Allowance, Say], tuple[Export, ...]]
"""Writes the repros of a finding, as far as it is allowed to."""


class Triage:
    """One for a campaign. Its queue is in the state of the run: what is `unfinished` and `waiting`
    there, also from before a kill.

    Args:
        minimise: shrinks a case while a condition holds.
        export: writes the repros of a finding.
        policy: how a finding counts.
        locate: adds the engine's lines that a finding is about.
        unserved: why no server of the engine has a config; '' where one may.
    """

    def __init__(
        self,
        run: LiveRun,
        runner: Runner,
        minimise: Minimise,
        export: Exporter,
        policy: FindingPolicy,
        locate: Locate,
        unserved: Unserved,
    ) -> None:
        self._run = run
        self._state = run.state
        self._shrinker = Shrinker(run, runner, minimise, self._notice, unserved)
        self._export = export
        self._policy = policy
        self._locate = locate
        self._dedup = Deduplicator(run.state, run.folder.companions)
        self._exported = {
            reported.id
            for reported in run.state.findings.values()
            if any(one.kind == "script" and not _unexecuted(one) for one in reported.exports)
        }

    @property
    def counting(self) -> int:
        """Findings reported that decide the exit code: those that a budget of findings is about."""
        return sum(self._policy.counts(reported.finding) for reported in self._state.reported)

    def known(self, findings: Sequence[Finding]) -> list[str]:
        """Ids of those that are known already."""
        return [finding_id(key) for key in self._dedup.primaries(findings)]

    @property
    def kept_seconds(self) -> float:
        """How long before the end of the budget the search ends for what is left to do here."""
        pending = len(self._state.unfinished)
        return self._run.budget.kept_for_triage(pending, pending + len(self._unexported()))

    def add(
        self,
        case: Case,
        findings: tuple[Finding, ...],
        source: Source = "generated",
        took: float = 0.0,
    ) -> None:
        """Take in what a case showed just now: one fresh finding is queued, the others wait for it.

        Args:
            took: seconds of running the case; the quick ones are worked on first at the end.
        """
        fresh = self._dedup.fresh(findings)
        if not fresh:
            return
        told: dict[str, Any] = {
            "shard": self._run.spec.shard,
            "case": case,
            "source": source,
            "after_cases": self._run.cases,
            "after_seconds": round(self._run.budget.seconds - took, 3),
            "took": took,
        }
        if not self._dedup.unresolved(findings):
            finding = fresh.pop(0)
            self._claim(FindingNew(**told, **_among(findings, finding)))
        for finding in fresh:
            if not self._is_waiting(finding):
                self._run.emit(FindingWaiting(**told, **_among(findings, finding)))

    def work(self) -> None:
        """Shrink and export until the search has a better right to the time."""
        budget, unfinished = self._run.budget, self._state.unfinished
        while unfinished and (budget.triage_due or self._enough_found()):
            self._report(next(iter(unfinished.values())))
            self._reconsider()
        if not unfinished and budget.limited and not self._enough_found():
            for name in self._unexported():
                if budget.triage_due and budget.export_allowance().seconds > 0.0:
                    self._export_one(name)

    def settle(self) -> None:
        """Work on all that is left; what there is no time for is reported as it was seen."""
        self._reconsider()
        self._report_all()
        for waiting in list(self._state.waiting.values()):
            self._attach(waiting)
        self._report_all()

    def export_all(self) -> None:
        """Write all repros, and execute them as long as there is time for it."""
        for name in self._unexported():
            self._export_one(name)

    def _notice(self, case: Case, findings: tuple[Finding, ...]) -> None:
        """A candidate of a shrink may show findings of its own."""
        self.add(case, findings)

    def _claim(self, new: FindingNew) -> None:
        """Queue the finding, unless another shard of the run has it."""
        folder = self._run.folder
        try:
            ours = folder.claim(new.id)
        except Exception:  # a full disk, say: it was seen all the same
            self._state.apply(new)
            raise
        if not ours:
            self._dedup.leave_to_other(new.finding.key)
            return
        self._run.emit(new)  # first: a folder with a case in it has a finding in the log
        folder.found(new.id, new.case)

    def _is_waiting(self, finding: Finding) -> bool:
        waiting = self._state.waiting.get(finding_id(finding.key))
        return waiting is not None and self._is_fresh(waiting)

    def _is_fresh(self, waiting: FindingWaiting) -> bool:
        """Whether nothing explains it even now."""
        fresh = self._dedup.fresh(_shown(waiting))
        return any(one.key == waiting.finding.key for one in fresh)

    def _reconsider(self) -> None:
        """Look again at what waits: a finding of its own once all beside it are shrunk."""
        for waiting in list(self._state.waiting.values()):
            if self._run.budget.over:
                return
            if self._is_fresh(waiting) and not self._dedup.unresolved(_shown(waiting)):
                self._claim(_queued(waiting))

    def _attach(self, waiting: FindingWaiting) -> None:
        """Report it with the finding it always came with; without one, by itself."""
        if not self._is_fresh(waiting):
            return
        primaries = self._dedup.primaries(_shown(waiting))
        if not primaries:
            return self._claim(_queued(waiting))
        owner = finding_id(primaries[0])
        shard = self._run.spec.shard
        self._run.emit(FindingAttached(shard=shard, id=owner, finding=waiting.finding))
        if owner in self._state.findings:
            self._run.folder.finish(self._state.findings[owner])

    def _enough_found(self) -> bool:
        return self._run.budget.enough_found(len(self._state.findings))

    def _report_all(self) -> None:
        """The quick ones first, so that as many as possible are done when time is out."""
        while unfinished := self._state.unfinished:
            self._report(min(unfinished.values(), key=lambda new: new.took))
            self._reconsider()

    def _report(self, new: FindingNew) -> None:
        """Confirm, shrink and save one finding."""
        budget, pending = self._run.budget, len(self._state.unfinished)
        until = budget.shrink_until(pending, pending + len(self._unexported()))
        with budget.shrinking():
            done = self._shrinker.shrink(new, until)
            also = self._companions(new, done)
            done = self._with_lines(self._with_effect(done, also))
            rate = done.finding.confirmed
            if rate and not is_full_rate(rate):
                self._run.emit(FindingFlaky(shard=self._run.spec.shard, id=new.id, rate=rate))
            self._save(self._reported(new, done, also))

    def _with_effect(self, done: ShrunkFinding, also: tuple[Finding, ...]) -> ShrunkFinding:
        """The finding with its effect on live rows; what a layer behind it does to them, only if
        there was time to look."""
        if done.finding.confirmed.startswith("0/"):
            return done
        look = _run_nothing if done.left else self._shrinker.findings
        with contextlib.suppress(OutOfTime):
            told = with_effect(done.case, done.finding, also, look)
            return replace(done, finding=told)
        return done

    def _with_lines(self, done: ShrunkFinding) -> ShrunkFinding:
        """The finding with the engine's lines, once it showed again and if there was time."""
        if "confirm" in done.left or done.finding.confirmed.startswith("0/"):
            return done
        with contextlib.suppress(OutOfTime):
            return replace(done, finding=self._locate(done.case, done.finding))
        return done

    def _reported(
        self, new: FindingNew, done: ShrunkFinding, also: tuple[Finding, ...]
    ) -> ReportedFinding:
        status, issue = self._policy.of(done.finding)
        return ReportedFinding(
            id=new.id,
            status=status,
            issue=issue,
            left=done.left,
            finding=done.finding,
            case=done.case,
            digest=digest(done.case),
            also=also,
            source=new.source,
            after_cases=new.after_cases,
            after_seconds=new.after_seconds,
            shrink_tries=done.tries,
            shrink_seconds=round(done.seconds, 3),
        )

    def _companions(self, new: FindingNew, done: ShrunkFinding) -> tuple[Finding, ...]:
        """Other findings of the final case; if it was not even confirmed, those already seen."""
        shown = _shown(new)
        if "confirm" not in done.left:
            with contextlib.suppress(OutOfTime):
                shown = self._shrinker.findings(done.case)
        return tuple({one.key: one for one in shown if one.key != done.finding.key}.values())

    def _save(self, reported: ReportedFinding) -> None:
        path = str(self._run.folder.save(reported))
        command = replay_command(path, self._run.spec.setup)
        reported = msgspec.structs.replace(reported, case_path=path, replay=command)
        self._run.folder.finish(reported)
        self._run.emit(FindingPursued(shard=self._run.spec.shard, reported=reported))

    def _unexported(self) -> list[str]:
        """Ids of the reported findings that have no repros yet."""
        return [one.id for one in self._state.reported if one.id not in self._exported]

    def _export_one(self, name: str) -> None:
        run = self._run
        reported = self._state.findings[name]
        with run.budget.exporting():
            exports = self._export(reported, run.folder, run.budget.export_allowance(), run.say)
        left: tuple[Left, ...] = tuple(one for one in reported.left if one != "export")
        if reported.status == "new" and any(map(_unexecuted, exports)):
            left = (*left, "export")
        reported = msgspec.structs.replace(reported, exports=exports, left=left)
        self._exported.add(name)
        run.folder.finish(reported)
        run.emit(Exported(shard=run.spec.shard, reported=reported))


def _among(findings: Sequence[Finding], finding: Finding) -> dict[str, Any]:
    """The fields of an event about one of the findings that a case shows."""
    others = tuple(other for other in findings if other.key != finding.key)
    return {"id": finding_id(finding.key), "finding": finding, "also": others}


def _shown(seen: FindingNew | FindingWaiting) -> tuple[Finding, ...]:
    return (seen.finding, *seen.also)


def _queued(waiting: FindingWaiting) -> FindingNew:
    return FindingNew(**msgspec.structs.asdict(waiting))


def _run_nothing(case: Case) -> tuple[Finding, ...]:
    """Stands for running a case where there is no time for it."""
    return ()


def _unexecuted(export: Export) -> bool:
    """Whether a script is still to be run, or to be run to the end."""
    done = export.error or (export.rate and not export.cut_off)
    return export.kind == "script" and not done
