"""What a person sees of many shards: one run."""

from __future__ import annotations

from fuzzgraph.fleet.totals import Totals
from fuzzgraph.run.events import CampaignStarted, Event, Progress
from fuzzgraph.run.spec import RunSpec


def progress(shard: int, cases: int) -> Progress:
    return Progress(shard=shard, seconds=5.0 + shard, cases=cases, steps=0, findings=1, rate=2.5)


def test_progress_is_added_up_over_the_shards() -> None:
    events: list[Event] = []
    totals = Totals(events.append)
    for event in (progress(0, 10), progress(1, 30), progress(0, 20)):
        totals(event)
    told = [(one.cases, one.rate, one.findings) for one in events if isinstance(one, Progress)]
    assert told == [(10, 2.5, 1), (40, 5.0, 2), (50, 5.0, 2)]


def test_a_run_starts_once() -> None:
    events: list[Event] = []
    totals = Totals(events.append)
    for shard in (0, 1):
        totals(CampaignStarted(shard=shard, spec=RunSpec(seed=1)))
    assert len(events) == 1
