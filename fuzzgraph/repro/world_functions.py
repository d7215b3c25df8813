"""The functions of a script that change memory between its steps, as assignments.

What the scheduler and earlier steps left, and what the check changes: memory that the batch does
not own, or the past. Only what differs is written.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fuzzgraph.memory import Region
from fuzzgraph.repro.arena import ScriptMemory
from fuzzgraph.repro.checks import ScriptCheck
from fuzzgraph.repro.literals import assignments
from fuzzgraph.repro.printing import statements
from fuzzgraph.repro.trace import Recording


class WorldFunctions:
    """Those of one script.

    Args:
        memory: which regions the script names; the others are not there to be changed.
    """

    def __init__(self, recording: Recording, check: ScriptCheck, memory: ScriptMemory) -> None:
        self._recording = recording
        self._check = check
        self._memory = memory
        self.idle: set[str] = set()
        """Names of those that change nothing, and are left out."""

    def lines(self) -> list[str]:
        """All of them, in the order in which they are called."""
        lines: list[str] = []
        for name, doc, before, after in self._between_steps():
            lines += self._world(name, doc, self._changes(before, after))
        for name, before, after in self._check.changes:
            doc = "Memory that the batch neither names nor owns gets other values."
            if name.endswith("without_past"):
                doc = "The same truth on a session just after capture."
            zones = [id(region) for region in self._check.zones]
            poisoned = [self._memory.names[key] for key in zones if key in self._memory.used]
            body = [*self._changes(before, after), *(f"poison_zones({z}, 1)" for z in poisoned)]
            lines += self._world(name, doc, body, pool=self._check.pool)
        return lines

    def _between_steps(self) -> Iterator[tuple[str, str, torch.Tensor, torch.Tensor]]:
        """Name, docstring, bytes before and after."""
        for run in self._recording.runs:
            if run.unlaid is not None and run.start is not None:
                rows = ", ".join(f"r{r}" for r in run.batch.requests.tolist()) or "nobody"
                step = run.batch.step
                doc = f"What the scheduler and earlier steps left for step {step}: {rows}."
                yield f"world_{step}", doc, run.unlaid, run.start

    def _world(self, name: str, doc: str, body: list[str], *, pool: bool = False) -> list[str]:
        if not body and not pool:
            self.idle.add(name)
            return []
        head = [f"def {name}():", f'    """{doc}"""']
        if pool:
            head.append("    global world")
            body = [*body, "world = 1"]
        return ["", "", *head, *statements(body)]

    def _changes(self, before: torch.Tensor, after: torch.Tensor) -> list[str]:
        regions = [each for each in self._memory.used.values() if each.segment == "engine"]
        return [line for each in regions for line in self._changes_of(each, before, after)]

    def _changes_of(self, region: Region, before: torch.Tensor, after: torch.Tensor) -> list[str]:
        """Assignments of the elements that differ, row by row."""
        old, new = self._recording.raw(region, before), self._recording.raw(region, after)
        if torch.equal(old, new):
            return []
        name = self._memory.names[id(region)]
        was, now = (self._recording.payload(region, image) for image in (before, after))
        if now.dim() == 2 and now.shape[1] > 1 and not now.dtype.is_floating_point:
            return _table_changes(name, was, now)
        size = region.dtype.itemsize
        unequal = (old.view(-1, size) != new.view(-1, size)).any(1)
        rows = unequal.as_strided(now.shape, now.stride(), 0).reshape(len(now), -1).any(1)
        return assignments(name, now, rows)


def _table_changes(name: str, was: torch.Tensor, now: torch.Tensor) -> list[str]:
    """Of a table of indices only the columns that changed."""
    lines = []
    for row in (was != now).any(1).nonzero().flatten().tolist():
        columns = (was[row] != now[row]).nonzero().flatten().tolist()
        start, stop = columns[0], columns[-1] + 1
        values = now[row, start:stop].tolist()
        value = str(values[0]) if len(set(values)) == 1 else f"torch.tensor({values})"
        place = start if stop == start + 1 else f"{start or ''}:{stop}"
        lines.append(f"{name}[{row}, {place}] = {value}")
    return lines
