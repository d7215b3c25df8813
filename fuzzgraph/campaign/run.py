"""A whole run from its spec: opens the target, searches, triages, exports, writes the reports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fuzzgraph import corpus
from fuzzgraph.campaign.budget import Clock
from fuzzgraph.campaign.export import Exporting
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.live_run import LiveRun
from fuzzgraph.campaign.reports import write_reports
from fuzzgraph.campaign.search import CaseRunner, SavedCases, search
from fuzzgraph.campaign.shrink import Minimise
from fuzzgraph.campaign.triage import Exporter, Triage
from fuzzgraph.capabilities import missing
from fuzzgraph.case import Case
from fuzzgraph.case_database import SharedCases
from fuzzgraph.corpus import Loaded
from fuzzgraph.coverage_values import coverage_values
from fuzzgraph.errors import FuzzGraphError, UsageError
from fuzzgraph.open_target import Opened, open_setup, strategy_of
from fuzzgraph.policy import FindingPolicy, QuarantiningRunner
from fuzzgraph.process.interrupts import interruptible
from fuzzgraph.reporting import EventFile
from fuzzgraph.run.events import Emit, Event, Reason, RunSummary
from fuzzgraph.run.spec import RunSpec
from fuzzgraph.run.state import RunState, join_summaries


def _shrunk(case: Case, still_fails: Callable[[Case], bool]) -> Case:
    from fuzzgraph.strategies import minimise

    return minimise(case, still_fails)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a campaign works with.

    Args:
        export: writes the repros of a finding; None for every kind of export.
        minimise: shrinks a case while a condition holds.
        dimensions: names of what a case covers.
        clock: in seconds.
    """

    export: Exporter | None = None
    minimise: Minimise = _shrunk
    dimensions: Callable[[Case], Iterable[str]] = coverage_values
    clock: Clock = time.monotonic


@dataclass(slots=True)
class Campaign:
    """One run over one target.

    Args:
        spec: budget, seed, shard, folder.
        opened: the target, and what runs cases on it.
        emit: receives every event, in order.
        saved: cases to run before any is generated.
        policy: what ledger and baseline say of findings and cases.
        state: what this run had done before it was killed; it goes on from there.
    """

    spec: RunSpec
    opened: Opened
    emit: Emit
    saved: SavedCases = field(default_factory=SavedCases)
    policy: FindingPolicy = field(default_factory=FindingPolicy)
    state: RunState = field(default_factory=RunState)
    tools: Tools = field(default_factory=Tools)
    live: LiveRun = field(init=False)

    def __post_init__(self) -> None:
        opened = self.opened
        self.live = LiveRun(
            self.spec,
            self.emit,
            self.state,
            deaths=lambda: (opened.deaths(), opened.killed()),
            clock=self.tools.clock,
        )

    def interrupt(self, why: Reason = "interrupted") -> None:
        """End after the case at hand, as Ctrl-C does."""
        self.live.budget.interrupt(why)

    def run(
        self, bad_entries: Iterable[str] = (), notes: Callable[[], Iterable[str]] = tuple
    ) -> RunSummary:
        """Run until the budget is spent; the summary is written and emitted last.

        Args:
            bad_entries: entries of the corpus that could not be read.
            notes: what else went wrong beside the cases, by the end of the run.

        Raises:
            UsageError: the target cannot be opened, or another run is at work in the folder.
            Whatever else ended the run: its summary is written, with the reason `failed`.
        """
        live = self.live
        with live.folder.lock(), interruptible(live.budget):
            beyond = missing(self.opened.target.capabilities)
            live.start(len(self.saved.corpus), beyond, self.opened.environment)
            live.note(bad_entries=[*bad_entries, *self.policy.bad_lines])
            try:
                return self._run_through(notes)
            except (Exception, SystemExit, GeneratorExit) as failure:
                if isinstance(failure, UsageError) and not live.cases:
                    raise
                summary = self._failed(failure)
                if isinstance(failure, FuzzGraphError | OSError):
                    return summary  # a full disk, say: the message is enough
                raise

    def _run_through(self, notes: Callable[[], Iterable[str]]) -> RunSummary:
        """Search, then triage, then export; each begins where the one before it has ended."""
        live, opened = self.live, self.opened
        quarantining = QuarantiningRunner(
            opened.runner,
            self.policy.ledger,
            self.spec.setup.target,
            self.tools.dimensions,
            live.count_quarantined,
        )
        export = self.tools.export or Exporting(self.spec.setup, opened.record, opened.environment)
        triage = Triage(
            live,
            quarantining,
            self.tools.minimise,
            export,
            self.policy,
            opened.located,
            opened.unserved,
        )
        runner = CaseRunner(live, quarantining, triage, self.tools.dimensions, opened.cut_off)
        ended = live.state.ended

        reason = search(
            live, runner, strategy_of(opened, self.spec.profile), self.policy, self.saved
        )
        seconds = live.budget.seconds
        if self.spec.finish_only and ended is not None and ended.reason != "failed":
            reason, seconds = ended.reason, ended.seconds  # nothing was searched any more
        opened.cut_off(live.budget.deadline())
        triage.settle()

        def summary() -> RunSummary:
            live.note(bad_entries=notes())
            live.write_counts()
            return live.summary(reason, seconds=seconds, cut_off=runner.case_cut_off)

        live.folder.finish_run(summary())  # exports may be killed
        triage.export_all()
        whole = summary()
        live.folder.finish_run(whole)
        live.finish(whole)
        if not runner.case_cut_off:
            live.folder.running.unlink(missing_ok=True)
        return whole

    def _failed(self, failure: BaseException) -> RunSummary:
        """What was found until then, as far as it can still be written."""
        live = self.live
        error = f"{type(failure).__name__}: {failure}"
        with contextlib.suppress(UsageError, OSError):
            live.write_counts()
        summary = live.summary("failed", seconds=live.budget.seconds, error=error)
        with contextlib.suppress(UsageError, OSError):
            live.folder.finish_run(summary)
        with contextlib.suppress(UsageError, OSError):
            live.finish(summary)
        return summary


def run_campaign(
    spec: RunSpec,
    emit: Emit,
    *,
    seeds: Loaded | None = None,
    opened: Opened | None = None,
    export: Exporter | None = None,
    policy: FindingPolicy | None = None,
    state: RunState | None = None,
    sharing: SharedCases | None = None,
    on_start: Callable[[Campaign], None] = lambda campaign: None,
) -> RunSummary:
    """Run a campaign and leave its events, summary and reports in its folder.

    Args:
        spec: what to do; its folder exists.
        emit: sees every event.
        seeds: cases to run first, as `load_corpus` returns them.
        opened: the target, where the caller opened it already (and closes it).
        export: writes the repros of a finding; None for every kind of export.
        policy: what ledger and baseline say.
        state: what this run had done before it was killed.
        sharing: cases of other runs; None for the database that the spec names.
        on_start: gets the campaign just before it runs, for example to interrupt it later.

    Raises:
        UsageError: an unknown name, a target that cannot be opened, a folder that cannot be used.
    """
    seeds = seeds or Loaded()
    folder = RunFolder(spec.folder, spec.shard, spec.shards)
    with contextlib.ExitStack() as stack:
        sharing = sharing or SharedCases.of(spec)
        stack.callback(sharing.close)
        if opened is None:
            opened = open_setup(spec.setup)
            stack.callback(opened.close)
        events = EventFile(folder.events)
        stack.callback(events.close)
        campaign = Campaign(
            spec,
            opened,
            _all(events, sharing, emit),
            SavedCases(seeds.entries, sharing.beyond(seeds)),
            policy or FindingPolicy(),
            state or RunState(),
            Tools(export),
        )
        on_start(campaign)
        summary = campaign.run(seeds.bad_lines, sharing.notes)
    if folder.whole:
        _report(spec.folder, summary)
    return summary


def _report(out: Path, summary: RunSummary) -> None:
    """Write the reports; an error in them must not mask the run's own error."""
    try:
        write_reports(out, summary)
    except UsageError:
        if not summary.error:
            raise


def load_corpus(folder: Path | None) -> Loaded:
    """The cases of a folder; without one those of `corpus/cases` here and of FuzzGraph itself.

    Raises:
        UsageError: the folder cannot be read.
    """
    return corpus.load_saved() if folder is None else corpus.load(folder)


def _all(*sinks: Emit) -> Emit:
    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit


def join_shards(out: Path) -> RunSummary | None:
    """One report of what the shards of a run left; None where none of them left a summary.

    One that is damaged is named and left out.
    """
    summaries, damaged = RunFolder(out).shard_summaries()
    if not summaries:
        return None
    summary = join_summaries(summaries)
    summary = msgspec.structs.replace(summary, damaged=(*summary.damaged, *damaged))
    RunFolder(out).finish_run(summary)
    write_reports(out, summary)
    return summary
