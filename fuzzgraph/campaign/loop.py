"""The campaign: corpus first, then generated cases, until the budget is spent.

It knows neither how a case is run nor how it is shown: it runs cases, follows up what they show
and emits events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone

from hypothesis.strategies import SearchStrategy

import fuzzgraph
from fuzzgraph.campaign.docket import Docket
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.generation import BLOCK, draw
from fuzzgraph.campaign.plan import Plan
from fuzzgraph.campaign.pursuit import Exporter, Minimise, Pursuit, Sighting
from fuzzgraph.campaign.runner import Runner, VerdictLike
from fuzzgraph.campaign.stopping import Clock, Enough, Stopwatch, interruptible
from fuzzgraph.campaign.tally import Tally
from fuzzgraph.case import Case, digest
from fuzzgraph.corpus import Entry, readable_json, write_atomically
from fuzzgraph.errors import InvalidCase, UsageError
from fuzzgraph.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    Emit,
    FindingRepeated,
    Outcome,
    Reason,
    RunSummary,
    Source,
    finding_id,
)

__all__ = ["Campaign", "StrategyOf"]

StrategyOf = Callable[[int], SearchStrategy[Case]]
"""The strategy of a block, by a number: another pool of configs for another number."""


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
        corpus: cases to run first.
        beyond: what the target cannot express, for the report.
        deaths: how often the engine's process has died so far.
        bad_entries: corpus entries that could not be read, for the summary.
    """

    def __init__(
        self,
        plan: Plan,
        runner: Runner,
        strategy: StrategyOf,
        emit: Emit,
        *,
        minimise: Minimise,
        export: Exporter,
        dimensions: Callable[[Case], Iterable[str]] = lambda case: (),
        beyond: Sequence[str] = (),
        deaths: Callable[[], int] = lambda: 0,
        corpus: Sequence[Entry] = (),
        bad_entries: Iterable[str] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self._plan = plan
        self._runner = runner
        self._strategy = strategy
        self._emit = emit
        self._dimensions = dimensions
        self._beyond = tuple(beyond)
        self._started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._corpus = corpus
        self._bad_entries = list(bad_entries)
        self._folder = RunFolder(plan.out, plan.shard, plan.shards)
        self._watch = Stopwatch(plan.budget, clock)
        self._tally = Tally(plan, self._watch, emit)
        pursuit = Pursuit(
            runner,
            plan,
            self._folder,
            emit,
            minimise=minimise,
            export=export,
            watch=self._watch,
            tick=self._tally.tick,
        )
        self._searched: float | None = None
        self._docket = Docket(plan, self._folder, pursuit, self._watch)
        self._tally.findings = lambda: self._docket.taken_up
        self._tally.deaths = deaths

    def interrupt(self) -> None:
        """End after the case at hand, as Ctrl-C does."""
        self._watch.interrupt()

    def run(self) -> RunSummary:
        """Run until the budget is spent; the summary is written and emitted last.

        Raises:
            UsageError: the target cannot be opened or the folder not be written.
        """
        error = ""
        reason: Reason = "failed"
        with interruptible(self._watch):
            self._emit(self._started())
            try:
                reason = self._search()
                self._searched = self._watch.seconds
                self._docket.settle()
                self._folder.finish_run(self._summary(reason, error))  # exports may be killed
                self._docket.export()
            except UsageError:
                raise
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
                self._finish(reason, error)
                raise
        return self._finish(reason, error)

    def _search(self) -> Reason:
        try:
            for entry in self._corpus:
                self._run_entry(entry)
            if self._plan.budget.examples == 0:
                return "corpus"
            block = 0
            while True:
                self._run_block(block)
                block += 1
        except Enough as enough:
            return enough.reason

    def _run_entry(self, entry: Entry) -> None:
        self._stop_if_over(generating=False)
        try:
            self._run(entry.case, "corpus")
        except InvalidCase as error:
            self._bad_entries.append(f"{entry.path}: {error}")

    def _run_block(self, block: int) -> None:
        number = self._plan.block_seed(block)
        draw(self._strategy(number), number, BLOCK, self._run_generated)
        self._stop_if_over()

    def _run_generated(self, case: Case) -> None:
        self._stop_if_over()
        try:
            self._run(case, "generated")
        except InvalidCase:  # the pools are too small for it; the strategies draw few of these
            self._tally.count("skipped", 0, from_corpus=False)
            self._tally.skip("contradicts itself: its requests do not fit into the pools")

    def _stop_if_over(self, *, generating: bool = True) -> None:
        """Raise `Enough` if the budget is spent."""
        self._tally.tick()
        examples = self._tally.examples if generating else -1
        found = len(self._docket.reported)
        reason = self._watch.over(examples, found, self._docket.kept_seconds)
        if reason is not None:
            raise Enough(reason)

    def _run(self, case: Case, source: Source) -> None:
        begin = self._watch.seconds
        verdict = self._verdict(case)
        outcome = _outcome(verdict)
        self._tally.count(outcome, verdict.steps, from_corpus=source == "corpus")
        if verdict.skipped:
            self._tally.skip(verdict.skipped)
        else:
            self._tally.cover(self._dimensions(case))
        if self._tally.worth_telling(outcome, source):
            self._emit(
                CaseRun(
                    shard=self._plan.shard,
                    index=self._tally.cases - 1,
                    digest=digest(case),
                    source=source,
                    outcome=outcome,
                    steps=verdict.steps,
                    seconds=round(self._watch.seconds - begin, 6),
                    note=verdict.skipped,
                )
            )
        if verdict.findings:
            self._note(Sighting(case, verdict.findings, source, self._tally.cases, begin))

    def _verdict(self, case: Case) -> VerdictLike:
        try:
            return self._runner.run_case(case)
        except UsageError:
            raise
        except Exception:
            path = self._plan.out / f"unfinished-{digest(case)}.json"
            write_atomically(path, readable_json(case))
            raise

    def _note(self, seen: Sighting) -> None:
        for key in self._docket.known.primaries(seen.findings):
            name = finding_id(key)
            if self._tally.repeat(name):
                event = FindingRepeated(shard=self._plan.shard, id=name, digest=digest(seen.case))
                self._emit(event)
        self._docket.note(seen)

    def _started(self) -> CampaignStarted:
        plan = self._plan
        return CampaignStarted(
            shard=plan.shard,
            setup=plan.setup,
            seed=plan.seed,
            shards=plan.shards,
            profile=plan.profile,
            seconds=plan.budget.seconds,
            examples=plan.budget.examples,
            max_findings=plan.budget.findings,
            corpus_cases=len(self._corpus),
            out=str(plan.out),
            started=self._started_at,
            fuzzgraph=fuzzgraph.__version__,
            beyond=self._beyond,
        )

    def _finish(self, reason: Reason, error: str) -> RunSummary:
        self._tally.tick("done", always=True)
        summary = self._summary(reason, error)
        self._folder.finish_run(summary)
        self._emit(CampaignFinished(shard=self._plan.shard, summary=summary))
        return summary

    def _summary(self, reason: Reason, error: str) -> RunSummary:
        tally, plan = self._tally, self._plan
        return RunSummary(
            fuzzgraph=fuzzgraph.__version__,
            setup=plan.setup,
            seed=plan.seed,
            profile=plan.profile,
            shards=plan.shards,
            started=self._started_at,
            reason=reason,
            seconds=round(self._watch.seconds if self._searched is None else self._searched, 3),
            total_seconds=round(self._watch.seconds, 3),
            cases=tally.cases,
            corpus_cases=tally.corpus_cases,
            steps=tally.steps,
            skipped=tally.skipped,
            skips=dict(tally.skips.most_common()),
            beyond=self._beyond,
            nondeterministic=tally.nondeterministic,
            deaths=tally.deaths(),
            findings=tuple(self._docket.reported),
            repeats=dict(tally.repeats),
            beside={name: tuple(found) for name, found in self._docket.beside.items()},
            bad_entries=tuple(self._bad_entries),
            coverage=tally.coverage.record(),
            error=error,
            out=str(plan.out),
        )


def _outcome(verdict: VerdictLike) -> Outcome:
    if verdict.findings:
        return "finding"
    if verdict.skipped:
        return "skipped"
    return "nondeterministic" if verdict.nondeterministic else "clean"
