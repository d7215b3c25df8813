"""Which findings are worked on, and when: shrinking must not eat the time for searching.

A finding is taken up when it is first seen, its case is then on disk. It is pursued (confirmed
and shrunk) as long as all pursuits together took no more than a third of the time so far; the rest
waits for the end of the budget, of which a part is kept for it. What shows only beside a finding
that is not shrunk yet waits for that, and is often explained by it. Repros are written last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.known import Known
from fuzzgraph.campaign.plan import Plan
from fuzzgraph.campaign.pursuit import Pursuit, Sighting
from fuzzgraph.campaign.resuming import Past
from fuzzgraph.campaign.stopping import Stopwatch
from fuzzgraph.case import Case
from fuzzgraph.events import ReportedFinding, finding_id
from fuzzgraph.finding import Finding, FindingKey

__all__ = ["Docket"]

_SHARE = 1 / 3
_KEPT = 1 / 4


class Docket:
    """Findings seen and not yet reported, and those reported."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        pursuit: Pursuit,
        watch: Stopwatch,
        counts: Callable[[Finding], bool] = lambda finding: True,
    ) -> None:
        self._counts = counts
        self.known = Known(folder.companions)
        self.reported: list[ReportedFinding] = []
        self.beside: dict[str, list[Finding]] = {}
        """What was seen only beside findings that other shards report."""
        self._plan = plan
        self._pursuit = pursuit
        self._watch = watch
        self._pending: deque[tuple[Sighting, Finding]] = deque()
        self._waiting: dict[FindingKey, Sighting] = {}
        self._spent = 0.0
        self._pursued = 0

    def take_back(self, past: Past) -> None:
        """Go on with what a killed run had found, finished or not."""
        for reported in past.reported.values():
            key = reported.finding.key
            self.known.report(key, [other.key for other in reported.also])
            self.reported.append(reported)
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
        """How long before the end of the budget the search makes room for what is pending."""
        limit = self._plan.budget.seconds
        if limit is None or not self._pending:
            return 0.0
        as_before = len(self._pending) * self._spent / max(self._pursued, 1)
        return min(_KEPT * limit, max(self._plan.shrink_seconds, as_before))

    def note(self, seen: Sighting) -> None:
        """Take in what a case showed, and pursue it where that is due."""
        fresh = self.known.fresh(seen.findings)
        if fresh and not self.known.unresolved(seen.findings):
            self._take_up(seen, fresh.pop(0))
        for finding in fresh:
            if finding.key not in self._waiting:
                self._pursuit.put_off(seen, finding)
                self._waiting[finding.key] = seen
        while self._pending and self._due():
            self._pursue(*self._pending.popleft())
            self._reconsider()

    def settle(self) -> None:
        """Pursue what is left, without much shrinking once the time is up."""
        self._reconsider()
        while self._pending:
            self._pursue(*self._pending.popleft())
            self._reconsider()
        for key, seen in list(self._waiting.items()):
            self._fold(key, seen)
        while self._pending:
            self._pursue(*self._pending.popleft())

    def export(self) -> None:
        """Write the repros, and execute them as long as there is time for it."""
        begin = self._watch.seconds
        for index, reported in enumerate(self.reported):
            late = self._watch.seconds - begin > self._plan.export_seconds
            if any(one.kind == "script" and (one.rate or one.error) for one in reported.exports):
                continue  # done before the run was resumed
            execute = not late and not self._watch.interrupted and reported.status == "new"
            self.reported[index] = self._pursuit.write_repro(reported, execute=execute)

    def _due(self) -> bool:
        budget = self._plan.budget
        if budget.seconds is None:
            return True
        if budget.findings is not None and self.taken_up >= budget.findings:
            return True
        return self._spent <= _SHARE * self._watch.seconds

    def _take_up(self, seen: Sighting, finding: Finding) -> None:
        if self._pursuit.claim(seen.case, finding):
            self._pending.append((seen, finding))
        self.known.take_up(finding.key)

    def _pursue(self, seen: Sighting, finding: Finding) -> None:
        begin = self._watch.seconds
        reported = self._pursuit.follow(seen, finding, self._last_moment(begin))
        self.known.report(finding.key, [other.key for other in reported.also])
        self.reported.append(reported)
        self._spent += self._watch.seconds - begin
        self._pursued += 1

    def _last_moment(self, begin: float) -> float:
        """When the shrinking of one finding ends at the latest."""
        latest = begin + self._plan.shrink_seconds
        limit = self._plan.budget.seconds
        return latest if limit is None else min(latest, limit + self._plan.shrink_seconds)

    def _reconsider(self) -> None:
        """Look again at what waited: explained by now, or a finding of its own."""
        for key, seen in list(self._waiting.items()):
            finding = self._still_fresh(key, seen)
            if finding is None:
                del self._waiting[key]
            elif self._has_time() and not self.known.unresolved(seen.findings):
                del self._waiting[key]
                self._take_up(seen, finding)

    def _still_fresh(self, key: FindingKey, seen: Sighting) -> Finding | None:
        return next((one for one in self.known.fresh(seen.findings) if one.key == key), None)

    def _has_time(self) -> bool:
        limit = self._plan.budget.seconds
        late = limit is not None and self._watch.seconds > limit
        return not late and not self._watch.interrupted

    def _fold(self, key: FindingKey, seen: Sighting) -> None:
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
        self.reported[index] = msgspec.structs.replace(reported, also=(*reported.also, finding))


def _seen_before(past: Past, case: Case, *findings: Finding) -> Sighting:
    return Sighting(case, findings, "generated", past.last.cases, past.last.seconds)
