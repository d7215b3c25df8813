"""The campaign: corpus first, then generated cases, until the budget is spent.

It knows neither how a case is run nor how it is shown: it runs cases, follows up what they show
and emits events.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence

from fuzzgraph.campaign.blocks import Blocks, StrategyOf
from fuzzgraph.campaign.casebook import Casebook
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.pursuit import Exporter
from fuzzgraph.campaign.resume import RunState
from fuzzgraph.campaign.shrink import Minimise
from fuzzgraph.campaign.stopping import Clock, Deadline, StopCampaign
from fuzzgraph.campaign.summing import About, started, summed
from fuzzgraph.campaign.tally import Tally
from fuzzgraph.campaign.triage import docket_of
from fuzzgraph.case import Case, digest
from fuzzgraph.corpus import Entry
from fuzzgraph.errors import FuzzGraphError, InvalidCase, UsageError
from fuzzgraph.events import CampaignFinished, Emit, Reason, RunSummary
from fuzzgraph.interrupts import interruptible
from fuzzgraph.policy import FindingPolicy, QuarantiningRunner, run_tolerated
from fuzzgraph.run_spec import RunSpec
from fuzzgraph.runner import Runner, VerdictLike

__all__ = ["Campaign", "StrategyOf"]

_SHARED = 1 / 4
"""Of the budget at most, for cases of other runs: what was found must not crowd out the new."""


class Campaign:
    """One run over one target.

    Args:
        plan: budget, seed, shard, folder.
        runner: runs a case and confirms a finding.
        strategy: what to draw from.
        emit: receives every event, in order.
        minimise: shrinks a case while a condition holds.
        export: writes the repro of a finding.
        dimensions: names of what a case covers.
        standing: what ledger and baseline say of findings and cases.
        corpus: cases to run first.
        shared: cases of other runs, to run after these in a part of the budget.
        beyond: what the target cannot express, for the report.
        deaths: how often the engine's process has died so far.
        killed: how often it was killed from outside.
        bad_entries: corpus entries that could not be read, for the summary.
        past: what this run had done before it was killed.
        notes: what went wrong beside the cases so far, one line each.
        cut_off: sets the moment, by the clock, at which a case that is still running is cut off.
    """

    def __init__(
        self,
        plan: RunSpec,
        runner: Runner,
        strategy: StrategyOf,
        emit: Emit,
        *,
        minimise: Minimise,
        export: Exporter,
        dimensions: Callable[[Case], Iterable[str]] = lambda case: (),
        standing: FindingPolicy | None = None,
        beyond: Sequence[str] = (),
        deaths: Callable[[], int] = lambda: 0,
        killed: Callable[[], int] = lambda: 0,
        corpus: Sequence[Entry] = (),
        shared: Sequence[Entry] = (),
        bad_entries: Iterable[str] = (),
        past: RunState | None = None,
        notes: Callable[[], Iterable[str]] = tuple,
        clock: Clock = time.monotonic,
        cut_off: Callable[[float], None] = lambda moment: None,
    ) -> None:
        self._plan = plan
        self._standing = standing or FindingPolicy()
        self._runner = QuarantiningRunner(
            runner, self._standing.ledger, plan.setup.target, dimensions
        )
        self._emit = emit
        self._corpus = corpus
        self._shared = shared
        self._past = past
        self._about = About(tuple(beyond), len(corpus))
        self._about.bad_entries += [*bad_entries, *self._standing.bad_lines]
        self._folder = RunFolder(plan.folder, plan.shard, plan.shards)
        self._watch = Deadline(plan.budget, clock, past.last.seconds if past else 0.0)
        self._tally = Tally(plan, self._watch, emit)
        self._cut_off = cut_off
        self._notes = notes
        self._searched: float | None = None
        self._docket = docket_of(
            plan,
            self._folder,
            self._runner,
            emit,
            minimise=minimise,
            export=export,
            tally=self._tally,
            standing=self._standing,
        )
        self._casebook = Casebook(
            plan,
            self._folder,
            self._runner,
            emit,
            docket=self._docket,
            tally=self._tally,
            watch=self._watch,
            dimensions=dimensions,
        )
        self._blocks = Blocks(
            plan, strategy, self._tally, look=self._stop_if_over, run=self._run_generated
        )
        self._tally.findings = lambda: self._docket.taken_up
        earlier = (past.last.deaths, past.last.killed) if past else (0, 0)
        self._tally.deaths = lambda: earlier[0] + deaths()
        self._tally.killed = lambda: earlier[1] + killed()

    def interrupt(self, why: Reason = "interrupted") -> None:
        """End after the case at hand, as Ctrl-C does."""
        self._watch.interrupt(why)

    def run(self) -> RunSummary:
        """Run until the budget is spent; the summary is written and emitted last.

        Raises:
            UsageError: the target cannot be opened, or another run is at work in the folder.
            Whatever else ended the run: its summary is written, with the reason `failed`.
        """
        with self._folder.lock(), interruptible(self._watch):
            self._take_back()
            self._emit(started(self._plan, self._about))
            try:
                return self._run_through()
            except (Exception, SystemExit, GeneratorExit) as failure:
                if isinstance(failure, UsageError) and not self._tally.cases:
                    raise
                summary = self._failed(failure)
                if isinstance(failure, FuzzGraphError | OSError):
                    return summary  # a full disk, say: the message is enough
                raise

    def _run_through(self) -> RunSummary:
        reason = self._search()
        self._searched = self._watch.seconds
        if self._plan.finish_only and self._past is not None:
            reason, self._searched = self._past.search_ended(reason, self._searched)
        self._cut_off(self._watch.moment())
        self._docket.settle()
        self._folder.finish_run(self._summary(reason))  # exports may be killed
        self._docket.export()
        self._tally.tick("done", always=True)
        summary = self._summary(reason)
        self._folder.finish_run(summary)
        self._emit(CampaignFinished(shard=self._plan.shard, summary=summary))
        if not self._casebook.cut_off:
            self._folder.running.unlink(missing_ok=True)
        return summary

    def _failed(self, failure: BaseException) -> RunSummary:
        """What was found until then, told as far as it can still be written."""
        self._docket.give_up()
        summary = self._summary("failed", f"{type(failure).__name__}: {failure}")
        with contextlib.suppress(UsageError, OSError):
            self._folder.finish_run(summary)
        with contextlib.suppress(UsageError, OSError):
            self._emit(CampaignFinished(shard=self._plan.shard, summary=summary))
        return summary

    def _take_back(self) -> None:
        if self._past is not None:
            self._tally.take_back(self._past)
            self._docket.take_back(self._past)
            self._about.started_at = self._past.start.started or self._about.started_at
            self._about.bad_entries += self._past.cut
            self._about.damaged += self._past.damaged

    def _search(self) -> Reason:
        try:
            if not self._plan.finish_only:
                about = self._about
                run_tolerated(self._standing, self._run_saved, about.mended, about.bad_entries)
            at_hand = self._past.at_hand if self._past is not None else None
            if at_hand is not None and not self._is_saved(at_hand):
                self._blocks.run_first(at_hand)
            if self._plan.finish_only:
                return "time"
            for entry in self._corpus:
                self._run_entry(entry)
            for entry in self._shared:
                if self._watch.used < _SHARED:
                    self._run_entry(entry)
            if self._plan.budget.examples == 0:
                return "corpus"
            self._blocks.run_all()
        except StopCampaign as enough:
            return enough.reason
        raise AssertionError("the blocks end by an exception")

    def _run_saved(self, case: Case) -> VerdictLike:
        self._stop_if_over(generating=False)
        return self._casebook.run(case, "corpus")

    def _run_entry(self, entry: Entry) -> None:
        if self._past is not None and entry.digest in self._past.ran:
            return
        self._stop_if_over(generating=False)
        try:
            self._casebook.run(entry.case, "corpus")
        except InvalidCase as error:
            self._about.bad_entries.append(f"{entry.path}: {error}")

    def _is_saved(self, case: Case) -> bool:
        """Whether its turn comes with the cases that are run first."""
        saved = () if self._plan.finish_only else (*self._corpus, *self._shared)
        return digest(case) in {entry.digest for entry in saved}

    def _run_generated(self, case: Case) -> None:
        try:
            self._casebook.run(case, "generated")
        except InvalidCase:  # the pools are too small for it; the strategies draw few of these
            self._tally.count("skipped", 0, from_corpus=False)
            self._tally.skip("contradicts itself: its requests do not fit into the pools")

    def _stop_if_over(self, *, generating: bool = True) -> None:
        """Raise `StopCampaign` if the budget is spent."""
        self._tally.tick()
        examples = self._tally.examples if generating else -1
        found = self._docket.counting
        kept = self._docket.kept_seconds
        reason = self._watch.over(examples, found, kept)
        if reason is not None:
            raise StopCampaign(reason)
        self._cut_off(self._watch.moment(kept / 2))

    def _summary(self, reason: Reason, error: str = "") -> RunSummary:
        return summed(
            self._plan,
            self._about,
            self._tally,
            self._docket,
            seconds=self._watch.seconds if self._searched is None else self._searched,
            reason=reason,
            error=error,
            quarantined=dict(self._runner.kept_out),
            cut_off=self._casebook.cut_off,
            notes=self._notes(),
        )
