"""What driver and shards say to each other: strict JSON, whatever carries it."""

from __future__ import annotations

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.run.records import FindingId
from fuzzgraph.run.spec import RunSpec

PLACE = "{folder of the run}"


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An unknown field is refused."""


class ShardSpec(_Message, frozen=True):
    """Everything a shard is told before it starts, or goes on."""

    run: str
    """Name of the run, the same on every machine and after a restart."""
    spec: RunSpec
    """What the shard is asked; its budget is one in all, with what the shard has spent. Of files it
    is told the content below: the paths are the driver's, and so is the database."""
    again: bool = False
    """Whether to go on where the shard had come to its end, for a new budget or what was left."""
    corpus: tuple[Case, ...] = ()
    shared: tuple[Case, ...] = ()
    given: dict[str, bytes] = {}
    """Files of the ledger and the baseline, by names relative to a folder of the shard's."""
    log: bytes = b""
    """The driver's copy of the shard's events, for a machine that does not have them; `PLACE`
    stands for the folder of the run."""


class FindingNotice(_Message, frozen=True):
    """A finding that another shard has taken up."""

    id: FindingId
    record: bytes = b""
    """Its finding.json, once it is shrunk."""


class PollRequest(_Message, frozen=True):
    """What a driver asks with: lines of the log that it has, and what others have found."""

    lines: int
    news: tuple[FindingNotice, ...] = ()


class PollReply(_Message, frozen=True):
    """What a shard has to tell since."""

    folder: str = ""
    """Where the run lies on the shard's machine; the driver puts its own folder in its place."""
    lines: bytes = b""
    """Events, as they stand in the shard's log."""
    files: dict[str, bytes] = {}
    """Exports of findings, by path below the folder of the run."""
    done: bool = False
    """Whether the shard has come to its end and every line is told."""
    wrong: str = ""
    """Why the order cannot be carried out, which no other machine would mend."""
    broken: str = ""
    """Why it could not be carried out here; another machine, or another try, may do better."""


def moved(lines: bytes, old: str, new: str) -> bytes:
    """Events with another folder in their paths."""
    before, after = (msgspec.json.encode(path)[1:-1] for path in (old, new))
    return lines.replace(before, after)
