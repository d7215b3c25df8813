"""Runs one case of a campaign and enters what came of it: counts, coverage, findings, events.

Which case comes next, and when to stop, is the campaign's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.pursuit import Occurrence
from fuzzgraph.campaign.stopping import Deadline, StopCampaign
from fuzzgraph.campaign.tally import Tally
from fuzzgraph.campaign.triage import Docket
from fuzzgraph.case import Case, digest
from fuzzgraph.corpus import readable_json, write_atomically
from fuzzgraph.errors import OutOfTime, UsageError
from fuzzgraph.events import CaseKept, CaseRun, Emit, FindingRepeated, Outcome, Source, finding_id
from fuzzgraph.policy import QuarantiningRunner
from fuzzgraph.run_spec import RunSpec
from fuzzgraph.runner import VerdictLike

__all__ = ["Casebook"]


class Casebook:
    """One for a campaign.

    Args:
        runner: runs a case, where the ledger does not keep it out.
        docket: takes the findings.
        dimensions: names of what a case covers.
    """

    def __init__(
        self,
        plan: RunSpec,
        folder: RunFolder,
        runner: QuarantiningRunner,
        emit: Emit,
        *,
        docket: Docket,
        tally: Tally,
        watch: Deadline,
        dimensions: Callable[[Case], Iterable[str]],
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._runner = runner
        self._emit = emit
        self._docket = docket
        self._tally = tally
        self._watch = watch
        self._dimensions = dimensions
        self.cut_off = ""
        """Digest of the case that the end of the time cut off; '' for none."""

    def run(self, case: Case, source: Source) -> VerdictLike:
        """The verdict, once all that follows from it is entered.

        Raises:
            StopCampaign: the time is up and the case was cut off. InvalidCase: it contradicts
                itself.
        """
        begin = self._watch.seconds
        verdict = self._verdict(case)
        if self._runner.keeps_out(verdict):
            return verdict
        outcome = _outcome(verdict)
        self._tally.count(outcome, verdict.steps, from_corpus=source == "corpus")
        self._tally.fallbacks.update(verdict.fallbacks)
        self._tally.unchecked.update(verdict.unchecked)
        if verdict.skipped:
            self._tally.skip(verdict.skipped)
        elif self._tally.cover(self._dimensions(case)) and self._plan.database:
            self._emit(CaseKept(shard=self._plan.shard, case=case))
        if verdict.findings:
            took = self._watch.seconds - begin
            seen = Occurrence(case, verdict.findings, source, self._tally.cases, begin, took)
            self._note(seen)
        if self._tally.worth_telling(outcome, source):
            self._tell(case, verdict, outcome, source, self._watch.seconds - begin)
        return verdict

    def _tell(
        self, case: Case, verdict: VerdictLike, outcome: Outcome, source: Source, seconds: float
    ) -> None:
        self._emit(
            CaseRun(
                shard=self._plan.shard,
                index=self._tally.cases - 1,
                digest=digest(case),
                source=source,
                outcome=outcome,
                steps=verdict.steps,
                seconds=round(seconds, 6),
                note=verdict.skipped,
            )
        )

    def _verdict(self, case: Case) -> VerdictLike:
        self._folder.set_out(case)
        try:
            return self._runner.run_case(case)
        except OutOfTime:
            self.cut_off = digest(case)
            raise StopCampaign("time") from None
        except UsageError:
            raise
        except Exception:
            path = self._plan.folder / f"unfinished-{digest(case)}.json"
            write_atomically(path, readable_json(case))
            raise

    def _note(self, seen: Occurrence) -> None:
        for key in self._docket.known.primaries(seen.findings):
            name = finding_id(key)
            if self._tally.repeat(name):
                event = FindingRepeated(shard=self._plan.shard, id=name, digest=digest(seen.case))
                self._emit(event)
        self._docket.note(seen)


def _outcome(verdict: VerdictLike) -> Outcome:
    if verdict.findings:
        return "finding"
    if verdict.skipped:
        return "skipped"
    return "nondeterministic" if verdict.nondeterministic else "clean"
