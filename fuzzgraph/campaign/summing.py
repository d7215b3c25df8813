"""A campaign's records of itself: how it began, and what it came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone

import fuzzgraph
from fuzzgraph.campaign.tally import Tally
from fuzzgraph.campaign.triage import Docket
from fuzzgraph.events import CampaignStarted, Reason, RunSummary
from fuzzgraph.run_spec import RunSpec

__all__ = ["About", "started", "summed"]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(slots=True)
class About:
    """What a report wants to know besides counts and findings."""

    beyond: tuple[str, ...] = ()
    """What the target cannot express."""
    corpus_cases: int = 0
    bad_entries: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    started_at: str = field(default_factory=_now)


def started(plan: RunSpec, about: About) -> CampaignStarted:
    """The first event; with it a run can be resumed from its log."""
    return CampaignStarted(
        shard=plan.shard,
        spec=plan,
        corpus_cases=about.corpus_cases,
        started=about.started_at,
        fuzzgraph=fuzzgraph.__version__,
        beyond=about.beyond,
    )


def summed(
    plan: RunSpec,
    about: About,
    tally: Tally,
    docket: Docket,
    *,
    seconds: float,
    reason: Reason,
    error: str,
    quarantined: dict[str, int],
    cut_off: str,
    notes: Iterable[str],
) -> RunSummary:
    """The summary as things stand.

    Args:
        seconds: of the search; the rest of the time so far came after it.
    """
    return RunSummary(
        fuzzgraph=fuzzgraph.__version__,
        spec=plan,
        started=about.started_at,
        reason=reason,
        seconds=round(seconds, 3),
        total_seconds=round(tally.watch.seconds, 3),
        cases=tally.cases,
        corpus_cases=tally.corpus_cases,
        steps=tally.steps,
        skipped=tally.skipped,
        skips=dict(tally.skips.most_common()),
        beyond=about.beyond,
        nondeterministic=tally.nondeterministic,
        fallbacks=dict(tally.fallbacks.most_common()),
        unchecked=dict(tally.unchecked.most_common()),
        deaths=tally.deaths(),
        killed=tally.killed(),
        findings=tuple(docket.reported),
        repeats=dict(tally.repeats),
        beside={name: tuple(found) for name, found in docket.beside.items()},
        quarantined=quarantined,
        mended=tuple(about.mended),
        bad_entries=(*about.bad_entries, *notes),
        damaged=tuple(about.damaged),
        coverage=tally.coverage.record(),
        cut_off=cut_off,
        error=error,
    )
