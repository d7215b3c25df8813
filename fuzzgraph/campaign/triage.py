"""Which findings are worked on, and when: shrinking must not eat the time for searching.

A finding is taken up when it is first seen, its case is then on disk. It is pursued (confirmed and
shrunk) and exported as long as such work took no more than its share of the time so far; the rest
waits for the end of the search, which makes room for it. What shows only beside a finding that is
not shrunk yet waits for that, and is often explained by it. How time is shared is `reserve`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from fuzzgraph.campaign.dedup import Deduplicator
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.pursuit import Exporter, Occurrence, Pursuit, unexecuted
from fuzzgraph.campaign.reserve import Reserve
from fuzzgraph.campaign.resume import RunState
from fuzzgraph.campaign.shrink import Minimise, Shrinking
from fuzzgraph.campaign.tally import Tally
from fuzzgraph.case import Case, digest
from fuzzgraph.events import Emit, ReportedFinding, finding_id
from fuzzgraph.finding import Finding, FindingKey
from fuzzgraph.policy import FindingPolicy
from fuzzgraph.run_spec import RunSpec
from fuzzgraph.runner import Runner

__all__ = ["Docket", "docket_of"]


def docket_of(
    plan: RunSpec,
    folder: RunFolder,
    runner: Runner,
    emit: Emit,
    *,
    minimise: Minimise,
    export: Exporter,
    tally: Tally,
    standing: FindingPolicy,
) -> Docket:
    """The docket of a campaign, with what works on its findings."""

    def notice(case: Case, findings: tuple[Finding, ...]) -> None:
        seen = Occurrence(case, findings, "generated", tally.cases, tally.watch.seconds)
        docket.take_in(seen)

    shrinking = Shrinking(
        runner,
        plan,
        emit,
        minimise=minimise,
        watch=tally.watch,
        tick=tally.tick,
        notice=notice,
    )
    pursuit = Pursuit(
        plan,
        folder,
        emit,
        shrinking=shrinking,
        export=export,
        say=tally.say,
        standing=standing.of,
    )
    reserve = Reserve(plan, tally.watch)
    docket = Docket(folder, pursuit, reserve, plan.budget.findings, standing.counts)
    return docket


class Docket:
    """Findings seen and not yet reported, and those reported."""

    def __init__(
        self,
        folder: RunFolder,
        pursuit: Pursuit,
        reserve: Reserve,
        max_findings: int | None = None,
        counts: Callable[[Finding], bool] = lambda finding: True,
    ) -> None:
        self._counts = counts
        self.known = Deduplicator(folder.companions)
        self.reported: list[ReportedFinding] = []
        self.beside: dict[str, list[Finding]] = {}
        """What was seen only beside findings that other shards report."""
        self._folder = folder
        self._pursuit = pursuit
        self._reserve = reserve
        self._max_findings = max_findings
        self._pending: deque[tuple[Occurrence, Finding]] = deque()
        self._waiting: dict[FindingKey, Occurrence] = {}
        self._exported: set[str] = set()

    def take_back(self, past: RunState) -> None:
        """Go on with what a killed run had found, finished or not."""
        for reported in past.reported.values():
            key = reported.finding.key
            if {"confirm", "shrink"} & set(reported.left):
                self.known.take_up(key)
                self._pending.append((_followed_before(reported), reported.finding))
                continue
            self.known.report(key, [other.key for other in reported.also])
            self.reported.append(reported)
            if any(one.kind == "script" and not unexecuted(one) for one in reported.exports):
                self._exported.add(reported.id)
        for new in past.unfinished.values():
            self.known.take_up(new.finding.key)
            self._pending.append((_seen_before(past, new.case, new.finding), new.finding))
        for put_off in past.waiting.values():
            findings = (put_off.finding, *put_off.beside)
            self._waiting[put_off.finding.key] = _seen_before(past, put_off.case, *findings)

    @property
    def counting(self) -> int:
        """Findings reported that decide the exit code: those the budget is about."""
        return sum(self._counts(reported.finding) for reported in self.reported)

    @property
    def taken_up(self) -> int:
        """Findings of this shard, reported or still to be pursued."""
        return len(self.reported) + len(self._pending)

    @property
    def kept_seconds(self) -> float:
        """How long before the end of the budget the search makes room for what is left to do."""
        return self._reserve.kept(len(self._pending), len(self._pending) + len(self._unexported()))

    def note(self, seen: Occurrence) -> None:
        """Take in what a case showed, and work on it where that is due."""
        self.take_in(seen)
        self._work()

    def take_in(self, seen: Occurrence) -> None:
        """Leave word of what a case showed; also of a case that a finding is being shrunk by."""
        fresh = self.known.fresh(seen.findings)
        if fresh and not self.known.unresolved(seen.findings):
            self._take_up(seen, fresh.pop(0))
        for finding in fresh:
            if finding.key not in self._waiting:
                self._pursuit.put_off(seen, finding)
                self._waiting[finding.key] = seen

    def settle(self) -> None:
        """Pursue what is left; what there is no time for is reported as it was seen."""
        self._reconsider()
        self._pursue_all()
        for key, seen in list(self._waiting.items()):
            self._fold(key, seen)
        self._pursue_all()

    def export(self) -> None:
        """Write all repros, and execute them as long as there is time for it."""
        for index in self._unexported():
            self._export(index)

    def give_up(self) -> None:
        """Report what is pending as it was seen; writes nothing."""
        for seen, finding in self._pending:
            self.reported.append(
                ReportedFinding(
                    id=finding_id(finding.key),
                    finding=finding,
                    case=seen.case,
                    digest=digest(seen.case),
                    also=tuple(other for other in seen.findings if other.key != finding.key),
                    source=seen.source,
                    left=("confirm", "shrink", "export"),
                )
            )
        self._pending.clear()

    def _work(self) -> None:
        """Pursue and export until the search has a better right to the time."""
        while self._pending and (self._reserve.due or self._enough_found()):
            self._pursue(*self._pending.popleft())
            self._reconsider()
        if not self._pending and self._reserve.limited and not self._enough_found():
            for index in self._unexported():
                if self._reserve.due and self._reserve.export_seconds() > 0.0:
                    self._export(index)

    def _enough_found(self) -> bool:
        return self._max_findings is not None and self.taken_up >= self._max_findings

    def _unexported(self) -> list[int]:
        """Which of `reported` have no repros yet."""
        found = enumerate(self.reported)
        return [index for index, reported in found if reported.id not in self._exported]

    def _export(self, index: int) -> None:
        with self._reserve.exporting():
            seconds = self._reserve.export_seconds()
            self.reported[index] = self._pursuit.write_repro(self.reported[index], seconds)
        self._exported.add(self.reported[index].id)

    def _take_up(self, seen: Occurrence, finding: Finding) -> None:
        try:
            ours = self._pursuit.claim(seen.case, finding)
        except Exception:  # a full disk, say: it was seen all the same
            self._pending.append((seen, finding))
            raise
        if ours:
            self._pending.append((seen, finding))
        self.known.take_up(finding.key)

    def _pursue_all(self) -> None:
        """The quick ones first, so that as many as possible are done when time is out."""
        while self._pending:
            quickest = min(self._pending, key=lambda one: one[0].took)
            self._pending.remove(quickest)
            self._pursue(*quickest)
            self._reconsider()

    def _pursue(self, seen: Occurrence, finding: Finding) -> None:
        pending = len(self._pending) + 1
        slice_end = self._reserve.slice_end(pending, pending + len(self._unexported()))
        try:
            with self._reserve.pursuing():
                reported = self._pursuit.follow(seen, finding, slice_end)
        except Exception:
            self._pending.appendleft((seen, finding))  # to be told as it was seen
            raise
        self.known.report(finding.key, [other.key for other in reported.also])
        self.reported.append(reported)

    def _reconsider(self) -> None:
        """Look again at what waited: explained by now, or a finding of its own."""
        for key, seen in list(self._waiting.items()):
            finding = self._still_fresh(key, seen)
            if finding is None:
                del self._waiting[key]
            elif not self._reserve.over and not self.known.unresolved(seen.findings):
                del self._waiting[key]
                self._take_up(seen, finding)

    def _still_fresh(self, key: FindingKey, seen: Occurrence) -> Finding | None:
        return next((one for one in self.known.fresh(seen.findings) if one.key == key), None)

    def _fold(self, key: FindingKey, seen: Occurrence) -> None:
        """Tell it with the finding it was only seen beside; without one, by itself."""
        finding = self._still_fresh(key, seen)
        if finding is None:
            return
        owners = {one.finding.key: index for index, one in enumerate(self.reported)}
        for key in self.known.primaries(seen.findings):
            if key in owners:
                self._add_to(owners[key], finding)
            else:
                self.beside.setdefault(finding_id(key), []).append(finding)
            return
        self._take_up(seen, finding)

    def _add_to(self, index: int, finding: Finding) -> None:
        reported = self.reported[index]
        reported = msgspec.structs.replace(reported, also=(*reported.also, finding))
        self.reported[index] = reported
        self._folder.finish(reported)


def _followed_before(reported: ReportedFinding) -> Occurrence:
    """Where a finding stands that a run had no time to follow to the end."""
    findings = (reported.finding, *reported.also)
    cases, seconds = reported.after_cases, reported.after_seconds
    return Occurrence(reported.case, findings, reported.source, cases, seconds)


def _seen_before(past: RunState, case: Case, *findings: Finding) -> Occurrence:
    return Occurrence(case, findings, "generated", past.last.cases, past.last.seconds)
