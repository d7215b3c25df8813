"""Clause "writes only what its batch owns": red zones, foreign slots and rows, stray stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from fuzzgraph.accesses import Access, Race
from fuzzgraph.finding import Clause, Finding, Stage
from fuzzgraph.observation import ForeignWrite, RunKind, StepRecord, ZoneHit
from fuzzgraph.oracles.claims import claim, freed, stray, wrong_writes
from fuzzgraph.rules.writes import Overrun, foreign_rows_text
from fuzzgraph.text.numbers import counted


class Footprint:
    """Red zones are intact; every slot, row and state outside the batch's own keeps its bytes.

    Where kernels are checked access by access: stores stay inside what the kernel was passed, and
    no two of its programs meet at one place. A recorded graph writes no buffer that the engine has
    let go of.
    """

    name = "footprint"
    clause: Clause = "writes"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        stores = [access for access in step.accesses if access.kind == "write"]
        for hit in step.zone_hits:
            by = next((access for access in stores if access.region == hit.region), None)
            yield self._overrun(step, hit, by)
        for write, stage, whose in wrong_writes(step):
            if not write.own:
                yield self._foreign(step, write, stage, whose)
        told = {hit.region for hit in step.zone_hits}
        for access in stores:
            if access.region not in told:
                yield stray(step, self.name, self.clause, access)
        for use in step.freed_uses:
            if use.kind == "write":
                yield freed(step, self.name, self.clause, use)
        for race in step.races:
            yield self._race(step, race)

    def _overrun(self, step: StepRecord, hit: ZoneHit, by: Access | None) -> Finding:
        overrun = Overrun(hit.side, hit.offset, hit.reach, hit.elements, hit.written)
        kernel = "" if by is None else f"; stored by {by.kernel} at {by.source}"
        return claim(
            step,
            self.name,
            self.clause,
            buffer=hit.region,
            symptom="red_zone_hit",
            stage=cast(Stage, hit.stage),
            message=overrun.text(hit.region, hit.payload, hit.allocated_at) + kernel,
            offset=hit.offset,
            elements=hit.elements,
            reach=hit.reach,
            payload=hit.payload,
            side=hit.side,
            allocated_at=hit.allocated_at,
            found=" ".join(map(str, hit.written)),
        )

    def _foreign(
        self, step: StepRecord, write: ForeignWrite, stage: Stage | None, whose: str
    ) -> Finding:
        return claim(
            step,
            self.name,
            self.clause,
            buffer=write.region,
            symptom="foreign_write",
            message=whose + foreign_rows_text(write.region, write.what, write.indices),
            stage=stage,
            indices=write.indices,
            what=write.what,
        )

    def _race(self, step: StepRecord, race: Race) -> Finding:
        buffer = race.region or race.buffer
        verb = "write" if race.kind == "write and write" else "write and read"
        first, second = race.programs
        return claim(
            step,
            self.name,
            self.clause,
            buffer=buffer,
            symptom="race",
            message=f"programs {first} and {second} of {race.kernel} {verb} one place of {buffer},"
            f" element {race.offset}, in no promised order ({race.source}, {race.other_source});"
            f" {counted(race.elements, 'such element')}",
            kernel=race.kernel,
            source=race.source,
            offset=race.offset,
            elements=race.elements,
        )
