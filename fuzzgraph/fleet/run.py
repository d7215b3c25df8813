"""A whole run on a fleet: gives each shard its order, and makes one report of what they told."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from fuzzgraph.campaign import RunFolder
from fuzzgraph.campaign.reports import rebuilt, write_reports
from fuzzgraph.campaign.resume import load_run_state, nothing_to_resume
from fuzzgraph.case_database import SharedCases
from fuzzgraph.corpus import Entry, Loaded, write_atomically
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.fleet.driver import Cluster, Driver, notices_of
from fuzzgraph.fleet.messages import FindingNotice, ShardSpec
from fuzzgraph.fleet.replica import Replica
from fuzzgraph.fleet.shard import BASELINE, LEDGER
from fuzzgraph.fleet.totals import Totals
from fuzzgraph.policy import FindingPolicy
from fuzzgraph.process.interrupts import interruptible
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import Emit, Event, RunSummary
from fuzzgraph.run.spec import RunSpec
from fuzzgraph.run.state import RunState
from fuzzgraph.strict_json import decode_json

_RECORD = "fleet.json"


class FleetRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a restarted driver needs to know: the content of `fleet.json`."""

    run: str
    """Name of the run, the same on every machine and after a restart."""
    address: str
    """Of the cluster, to find it again."""
    spec: RunSpec

    def resumed(self, out: Path, seconds: float | None) -> RunSpec:
        """What is asked of a run that goes on, with a new budget where one is given."""
        budget = self.spec.budget
        budget = msgspec.structs.replace(budget, seconds=seconds or budget.seconds)
        return msgspec.structs.replace(self.spec, out=str(out), budget=budget)


def fleet_of(out: Path) -> FleetRecord | None:
    """The record in the folder of a run; None where it is no fleet's.

    Raises:
        UsageError: it cannot be read.
    """
    path = out / _RECORD
    if not path.is_file():
        return None
    try:
        return decode_json(path.read_bytes(), FleetRecord)
    except (OSError, *UNREADABLE) as error:
        raise UsageError(
            f"{path}: damaged, or written by another FuzzGraph ({error}). Start a new run."
        ) from None


class SizedCluster(Cluster, Protocol):
    """A cluster that knows how many shards fit."""

    shards: int


Join = Callable[[int | None], AbstractContextManager[SizedCluster]]
"""Opens the cluster for so many shards, None for as many as fit."""


def run_fleet(
    spec: RunSpec,
    join: Join,
    emit: Emit,
    *,
    address: str = "",
    shards: int | None = None,
    more: bool = False,
    seeds: Loaded | None = None,
    standing: FindingPolicy | None = None,
) -> RunSummary:
    """Run a campaign on a cluster, or go on with one that was begun in the spec's folder.

    Args:
        spec: of the whole run; examples are divided among the shards.
        address: of the cluster, to find it again.
        shards: how many; None for as many as the cluster has room for. A run that goes on has as
            many as before.
        more: whether the spec's budget is a new one, for shards that had come to their end.
        seeds: cases to run first, divided as well.

    Raises:
        UsageError: the cluster, the folder or the database cannot be used. FleetFailed: a shard
            cannot carry out its order.
    """
    with RunFolder(spec.folder).lock():
        record = fleet_of(spec.folder)
        with join(record.spec.shards if record else shards) as cluster:
            # one that goes on is divided as before, however much room there is now
            divided = record.spec.shards if record else cluster.shards
            spec = msgspec.structs.replace(spec, shards=divided)
            if record is None:
                record = FleetRecord(run=secrets.token_hex(8), address=address, spec=spec)
                write_atomically(spec.folder / _RECORD, msgspec.json.encode(record))
            run = _Run(spec, record.run, emit, seeds or Loaded(), standing or FindingPolicy(), more)
            lines = run.on(cluster)
        summary = rebuilt(spec.folder)
        found = (*summary.bad_entries, *lines)
        summary = msgspec.structs.replace(summary, spec=spec, bad_entries=found)
        RunFolder(spec.folder).finish_run(summary)
        write_reports(spec.folder, summary)
    return summary


@dataclass(slots=True)
class _Run:
    spec: RunSpec
    run: str
    emit: Emit
    seeds: Loaded
    standing: FindingPolicy
    more: bool

    def on(self, cluster: Cluster) -> list[str]:
        """Drive every shard that is not done; what went wrong, one line each."""
        shards = range(self.spec.shards)
        owners: dict[str, int] = {}
        replicas = [Replica(self.spec.folder, one, len(shards), owners) for one in shards]
        pasts = [_past(self.spec.folder, one, len(shards)) for one in shards]
        whole = msgspec.structs.replace(self.spec, shards=1)  # it is the driver that divides them
        sharing = SharedCases.of(whole)
        shared = sharing.beyond(self.seeds)
        given = self._given()
        orders = [
            self._order(one, past, shared, given) for one, past in zip(shards, pasts, strict=True)
        ]
        wanted = [order for order in orders if order is not None]
        if not wanted:
            raise nothing_to_resume(self.spec.folder)
        driver = Driver(
            cluster,
            wanted,
            replicas,
            _both(sharing, Totals(self.emit)),
            spent=max(past.progress.seconds if past else 0.0 for past in pasts),
            news=list(self._news()),
        )
        try:
            with interruptible(driver):
                driver.run()
        finally:
            sharing.close()
        return [*self.seeds.bad_lines, *driver.lost, *sharing.notes()]

    def _order(
        self, shard: int, past: RunState | None, shared: list[Entry], given: dict[str, bytes]
    ) -> ShardSpec | None:
        """What a shard is told; None if it is done."""
        spec, shards = self.spec, self.spec.shards
        over = past is not None and past.finished and not self._has_more(past)
        if over and past is not None and not past.left:
            return None
        part = spec.of_shard(shard, shards)
        seconds = None if over else spec.budget.seconds
        budget = msgspec.structs.replace(part.budget, seconds=seconds)
        return ShardSpec(
            run=self.run,
            spec=msgspec.structs.replace(part, budget=budget, finish_only=over),
            again=past is not None and past.finished,
            corpus=tuple(entry.case for entry in self.seeds.entries[shard::shards]),
            shared=tuple(entry.case for entry in shared[shard::shards]),
            given=given,
        )

    def _has_more(self, past: RunState) -> bool:
        limit = self.spec.budget.seconds
        return self.more and limit is not None and limit > past.progress.seconds

    def _given(self) -> dict[str, bytes]:
        """Ledger and baseline, with the cases that the ledger names."""
        given = {LEDGER: b""}  # or the shard looks for one where it happens to be
        for name, path in ((LEDGER, self.spec.ledger), (BASELINE, self.spec.baseline)):
            if path:
                given[name] = Path(path).read_bytes()
        for entry in self.standing.ledger.tolerated:
            case = self.standing.ledger.folder / entry.case
            if entry.case and not Path(entry.case).is_absolute() and case.is_file():
                given[entry.case] = case.read_bytes()
        return given

    def _news(self) -> list[tuple[int, FindingNotice]]:
        """What every shard had found before the driver was started."""
        found = []
        for shard in range(self.spec.shards):
            log = RunFolder(self.spec.folder, shard, self.spec.shards).events
            events = read_log(log)[0] if log.is_file() else []
            found += [(shard, news) for event in events for news in notices_of(event)]
        return found


def _past(out: Path, shard: int, shards: int) -> RunState | None:
    try:
        return load_run_state(out, shard, shards)
    except UsageError:  # it has told nothing yet
        return None


def _both(*sinks: Emit) -> Emit:
    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit
