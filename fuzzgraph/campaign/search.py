"""The search: cases of the ledger and the corpus first, then generated ones, until it has to stop.

It knows neither how a case is run nor what becomes of a finding: it runs cases, counts them and
hands what they show to `triage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fuzzgraph.campaign.blocks import Blocks, StrategyOf
from fuzzgraph.campaign.budget import StopCampaign
from fuzzgraph.campaign.live_run import LiveRun
from fuzzgraph.campaign.triage import Triage
from fuzzgraph.case import Case, digest
from fuzzgraph.corpus import Entry, readable_json, write_atomically
from fuzzgraph.errors import InvalidCase, OutOfTime, UsageError
from fuzzgraph.policy import FindingPolicy, QuarantiningRunner, run_tolerated
from fuzzgraph.run.events import CaseKept, Reason, Source
from fuzzgraph.run.runner import VerdictLike

_SHARED = 1 / 4
"""Of the budget at most, for cases of other runs: what was found must not crowd out the new."""


@dataclass(frozen=True, slots=True)
class SavedCases:
    """The cases to run before any is generated.

    Args:
        corpus: all of them are run.
        shared: cases of other runs; run in a part of the budget.
    """

    corpus: Sequence[Entry] = ()
    shared: Sequence[Entry] = ()

    def has(self, case: Case) -> bool:
        return digest(case) in {entry.digest for entry in (*self.corpus, *self.shared)}


def search(
    run: LiveRun,
    runner: CaseRunner,
    strategy: StrategyOf,
    policy: FindingPolicy,
    saved: SavedCases,
) -> Reason:
    """Run cases until the budget is spent; why it ended."""
    blocks = Blocks(run, strategy, runner.stop_if_over, runner.run_generated)
    at_hand, finish_only = run.state.at_hand, run.spec.finish_only
    try:
        if not finish_only:
            run_tolerated(policy, runner.run_saved, run.note)
        if at_hand is not None and (finish_only or not saved.has(at_hand)):
            blocks.run_first(at_hand)
        if finish_only:
            return "time"
        for entry in saved.corpus:
            runner.run_entry(entry)
        for entry in saved.shared:
            if run.budget.used < _SHARED:
                runner.run_entry(entry)
        if run.spec.budget.examples == 0:
            return "corpus"
        blocks.run_all()
    except StopCampaign as stop:
        return stop.reason
    raise AssertionError("the blocks end by an exception")


class CaseRunner:
    """Runs one case after another, and enters what came of it: counts, coverage, findings.

    Args:
        runner: runs a case, where the ledger does not keep it out.
        dimensions: names of what a case covers.
        cut_off: sets the moment, by the clock, at which a case that is still running is cut off.
    """

    def __init__(
        self,
        run: LiveRun,
        runner: QuarantiningRunner,
        triage: Triage,
        dimensions: Callable[[Case], Iterable[str]],
        cut_off: Callable[[float], None],
    ) -> None:
        self._run = run
        self._runner = runner
        self._triage = triage
        self._dimensions = dimensions
        self._cut_off = cut_off
        self.case_cut_off = ""
        """Digest of the case that the end of the time cut off; '' for none."""

    def stop_if_over(self, *, generating: bool = True) -> None:
        """Emit progress if that is due.

        Raises:
            StopCampaign: the budget is spent.
        """
        self._run.tick()
        kept = self._triage.kept_seconds
        examples = self._run.examples if generating else -1
        reason = self._run.budget.stop_reason(examples, self._triage.counting, kept)
        if reason is not None:
            raise StopCampaign(reason)
        # A case that begins before the end of the search may use half of what triage needs.
        self._cut_off(self._run.budget.deadline(kept / 2))

    def run_saved(self, case: Case) -> VerdictLike:
        """Run a case that somebody saved.

        Raises:
            StopCampaign: the budget is spent. InvalidCase: the case contradicts itself.
        """
        self.stop_if_over(generating=False)
        return self._run_case(case, "corpus")

    def run_entry(self, entry: Entry) -> None:
        """Run a case of the corpus, unless the run did before it was killed."""
        if entry.digest in self._run.state.corpus_ran:
            return
        try:
            self.run_saved(entry.case)
        except InvalidCase as error:
            self._run.note(bad_entries=[f"{entry.path}: {error}"])

    def run_generated(self, case: Case) -> None:
        try:
            self._run_case(case, "generated")
        except InvalidCase:  # the pools are too small for it; the strategies draw few of these
            self._run.count_refused("contradicts itself: its requests do not fit into the pools")

    def _run_case(self, case: Case, source: Source) -> VerdictLike:
        run = self._run
        begin = run.budget.seconds
        verdict = self._verdict(case)
        if self._runner.keeps_out(verdict):
            return verdict
        outcome = run.count(verdict, source)
        if not verdict.skipped and run.cover(self._dimensions(case)) and run.spec.database:
            run.emit(CaseKept(shard=run.spec.shard, case=case))
        took = run.budget.seconds - begin
        if verdict.findings:
            for known in self._triage.known(verdict.findings):
                run.repeated(known, digest(case))
            self._triage.add(case, verdict.findings, source, took=took)
        # Not before the findings are in the log: a case of the corpus is not run again after it.
        run.write_case(case, verdict, outcome, source, took)
        if verdict.findings:
            self._triage.work()
        return verdict

    def _verdict(self, case: Case) -> VerdictLike:
        self._run.folder.set_out(case)
        try:
            return self._runner.run_case(case)
        except OutOfTime:
            self.case_cut_off = digest(case)
            raise StopCampaign("time") from None
        except UsageError:
            raise
        except Exception:
            path = self._run.spec.folder / f"unfinished-{digest(case)}.json"
            write_atomically(path, readable_json(case))
            raise
