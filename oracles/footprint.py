"""Clause "writes only what its batch owns": red zones, foreign slots, foreign rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from fuzzgraph.finding import Clause, Finding, Stage
from fuzzgraph.observation import ForeignWrite, RunKind, StepRecord, ZoneHit
from fuzzgraph.oracles.claims import claim

__all__ = ["Footprint"]

_OWNER = {"slot": "KV slots", "row": "request rows", "state": "state slots"}


class Footprint:
    """Red zones are intact; every slot, row and state outside the batch's own keeps its bytes."""

    name = "footprint"
    clause: Clause = "writes"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for hit in step.zone_hits:
            yield self._overrun(step, hit)
        for write in step.foreign_writes:
            if not write.own:
                yield self._foreign(step, write)

    def _overrun(self, step: StepRecord, hit: ZoneHit) -> Finding:
        return claim(
            step,
            self.name,
            self.clause,
            buffer=hit.region,
            symptom="red_zone_hit",
            stage=cast(Stage, hit.stage),
            message=(
                f"{hit.elements} elements written {hit.side} {hit.region} ({hit.payload} elements,"
                f" allocated at {hit.allocated_at}), as far as {hit.reach:+d}; found {hit.written}"
            ),
            offset=hit.offset,
            elements=hit.elements,
            reach=hit.reach,
            payload=hit.payload,
            side=hit.side,
            allocated_at=hit.allocated_at,
            found=" ".join(map(str, hit.written)),
        )

    def _foreign(self, step: StepRecord, write: ForeignWrite) -> Finding:
        return claim(
            step,
            self.name,
            self.clause,
            buffer=write.region,
            symptom="foreign_write",
            message=f"{write.region}: {_OWNER[write.what]} {write.indices} changed, which the"
            " batch does not own",
            indices=write.indices,
            what=write.what,
        )
