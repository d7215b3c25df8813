"""A campaign that looks for certain findings and ends once each of them is confirmed and shrunk."""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.campaign.export import no_export
from fuzzgraph.campaign.run import Campaign, run_campaign
from fuzzgraph.finding import Finding
from fuzzgraph.open_target import Opened
from fuzzgraph.run.events import Event, FindingNew, FindingPursued, RunSummary
from fuzzgraph.run.spec import RunSpec


class _Watcher:
    """Interrupts the campaign once `wanted` names are confirmed, and shrunk as time allowed."""

    def __init__(self, name_of: Callable[[Finding], object], wanted: int | None) -> None:
        self._name_of = name_of
        self._wanted = wanted
        self._names: dict[str, object] = {}
        self._done: set[object] = set()
        self.campaign: Campaign | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, FindingNew) and (name := self._name_of(event.finding)) is not None:
            self._names[event.id] = name
        elif isinstance(event, FindingPursued) and event.reported.id in self._names:
            self._done.add(self._names[event.reported.id])
            if self.campaign is not None and len(self._done) == self._wanted:
                self.campaign.interrupt("findings")

    def start(self, campaign: Campaign) -> None:
        self.campaign = campaign


def run_until_found(
    spec: RunSpec, opened: Opened, name_of: Callable[[Finding], object], wanted: int | None
) -> RunSummary:
    """Run a campaign of generated cases only, without exports.

    Args:
        spec: its budget ends the run at the latest.
        opened: the target; the caller closes it.
        name_of: what a finding counts as, None if it is not wanted.
        wanted: how many different names end the run, for the reason "findings"; None lets it take
            its whole time.
    """
    watcher = _Watcher(name_of, wanted)
    return run_campaign(spec, watcher, opened=opened, export=no_export, on_start=watcher.start)
