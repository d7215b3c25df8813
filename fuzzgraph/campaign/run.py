"""A whole run from its plan: opens the target, reads the corpus, wires the writers, tidies up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from fuzzgraph import corpus
from fuzzgraph.campaign.export import Exporting
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.opening import Opened, open_setup, strategy_of
from fuzzgraph.campaign.pursuit import Exporter
from fuzzgraph.campaign.reports import write_reports
from fuzzgraph.campaign.resume import RunState
from fuzzgraph.campaign.search import Campaign
from fuzzgraph.capabilities import missing
from fuzzgraph.case_database import SharedCases
from fuzzgraph.corpus import Loaded
from fuzzgraph.coverage_values import coverage_values
from fuzzgraph.errors import UsageError
from fuzzgraph.events import Emit, Event, RunSummary
from fuzzgraph.policy import FindingPolicy
from fuzzgraph.reporting import EventFile, joined
from fuzzgraph.run_spec import RunSpec

__all__ = ["run_campaign", "join_shards", "load_corpus"]


def run_campaign(
    plan: RunSpec,
    emit: Emit,
    *,
    seeds: Loaded | None = None,
    opened: Opened | None = None,
    export: Exporter | None = None,
    standing: FindingPolicy | None = None,
    past: RunState | None = None,
    sharing: SharedCases | None = None,
    on_start: Callable[[Campaign], None] = lambda campaign: None,
) -> RunSummary:
    """Run a campaign and leave its events, summary and reports in its folder.

    Args:
        plan: what to do; its folder exists.
        emit: sees every event.
        seeds: cases to run first, as `load_corpus` returns them.
        opened: the target, where the caller opened it already (and closes it).
        export: writes the repro of a finding; None for every kind of export.
        standing: what ledger and baseline say.
        past: what this run had done before it was killed.
        sharing: cases of other runs; None for the database that the plan names.
        on_start: gets the campaign just before it runs, for example to interrupt it later.

    Raises:
        UsageError: an unknown name, a target that cannot be opened, a folder that cannot be used.
    """
    from fuzzgraph.strategies import minimise

    seeds = seeds or Loaded()
    sharing = sharing or SharedCases.of(plan)
    own = opened is None
    opened = opened or open_setup(plan.setup)
    folder = RunFolder(plan.folder, plan.shard, plan.shards)
    events = EventFile(folder.events)
    try:
        campaign = Campaign(
            plan,
            opened.runner,
            strategy_of(opened, plan.profile),
            _all(events, sharing, emit),
            minimise=minimise,
            export=export or Exporting(plan.setup, opened.record),
            dimensions=coverage_values,
            beyond=missing(opened.target.capabilities),
            deaths=opened.deaths,
            killed=opened.killed,
            standing=standing,
            past=past,
            corpus=seeds.entries,
            shared=sharing.beyond(seeds),
            bad_entries=seeds.bad_lines,
            notes=sharing.notes,
            cut_off=opened.cut_off,
        )
        on_start(campaign)
        summary = campaign.run()
    finally:
        sharing.close()
        events.close()
        if own:
            opened.close()
    if folder.whole:
        _report(plan.folder, summary)
    return summary


def _report(out: Path, summary: RunSummary) -> None:
    """The reports; a run that has failed already is not told to have failed at its reports."""
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
    summary = joined(summaries)
    summary = msgspec.structs.replace(summary, damaged=(*summary.damaged, *damaged))
    RunFolder(out).finish_run(summary)
    write_reports(out, summary)
    return summary
