"""Turns the progress of many shards into that of the run, for whoever watches it."""

from __future__ import annotations

import msgspec

from fuzzgraph.run.events import CampaignStarted, Emit, Event, Progress
from fuzzgraph.run.state import add_counts


class Totals:
    """Passes events on: one start, progress added up over the shards, all else as it is."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._begun = False
        self._last: dict[int, Progress] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._last[event.shard] = event
            self._emit(self._sum(event))
        elif not isinstance(event, CampaignStarted) or not self._begun:
            self._begun = self._begun or isinstance(event, CampaignStarted)
            self._emit(event)

    def _sum(self, latest: Progress) -> Progress:
        shards = [latest, *(one for one in self._last.values() if one is not latest)]
        left = [one.examples_left for one in shards if one.examples_left is not None]
        return msgspec.structs.replace(
            add_counts(shards),
            findings=sum(one.findings for one in shards),
            rate=sum(one.rate for one in shards),
            seconds=max(one.seconds for one in shards),
            dimensions=max(one.dimensions for one in shards),
            pairs=max(one.pairs for one in shards),
            examples_left=sum(left) if left else None,
        )
