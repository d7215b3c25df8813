"""What shards tell, written into the folder of the run as if they had worked in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from fuzzgraph.campaign import RunFolder
from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import UsageError
from fuzzgraph.fleet.messages import PLACE, PollReply, moved
from fuzzgraph.run.events import (
    CampaignFinished,
    Event,
    Exported,
    FindingNew,
    FindingPursued,
    decode_event,
)


class Replica:
    """The driver's copy of one shard.

    Args:
        owners: finding id -> the shard that takes its folder, shared by all shards of the run.
    """

    def __init__(self, out: Path, shard: int, shards: int, owners: dict[str, int]) -> None:
        self._folder = RunFolder(out, shard, shards)
        self._out = str(out)
        self._shard = shard
        self._owners = owners
        self.lines = self._whole_lines()

    def _whole_lines(self) -> int:
        """How many there are; one that a kill cut short is taken off, for it is told again."""
        log = self._folder.events
        if not log.exists():
            return 0
        content = log.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            write_atomically(log, whole)
        return whole.count(b"\n")

    def log(self) -> bytes:
        """Every line, for a machine that has none."""
        log = self._folder.events
        return moved(log.read_bytes(), self._out, PLACE) if log.exists() else b""

    def take(self, batch: PollReply) -> list[Event]:
        """Write down what a shard told; its events.

        Raises:
            UsageError, OSError: the folder of the run cannot be written.
        """
        for name, content in batch.files.items():
            self._take_file(name, content)
        lines = moved(batch.lines, batch.folder, self._out) if batch.folder else batch.lines
        events = list(_events(lines))
        for event in events:
            self._take(event)
        with self._folder.events.open("ab") as log:  # last: what is in the log is not told again
            log.write(lines)
        self.lines += lines.count(b"\n")
        return events

    def _take(self, event: Event) -> None:
        if isinstance(event, FindingNew) and self._owns(event.id):
            self._folder.claim(event.id)
            self._folder.found(event.id, event.case)
        elif isinstance(event, FindingPursued | Exported) and self._owns(event.reported.id):
            self._folder.save(event.reported)
            self._folder.finish(event.reported)
        elif isinstance(event, CampaignFinished):
            self._folder.finish_run(event.summary)

    def _take_file(self, name: str, content: bytes) -> None:
        parts = Path(name).parts
        if len(parts) == 3 and parts[0] == "findings" and parts[2] != ".." and self._owns(parts[1]):
            write_atomically(self._folder.of(parts[1]) / parts[2], content)

    def _owns(self, finding: str) -> bool:
        """Two shards may find the same at one instant; the files are those of one of them."""
        return self._owners.setdefault(finding, self._shard) == self._shard


def _events(lines: bytes) -> Iterator[Event]:
    for line in lines.splitlines():
        try:
            yield decode_event(line)
        except (msgspec.DecodeError, UnicodeDecodeError, UsageError):
            continue  # a line that a kill cut short on the shard's machine
