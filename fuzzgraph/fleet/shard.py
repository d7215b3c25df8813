"""One shard of a run, on whatever machine it was put: works in a folder of its own and is asked for
its events.

The folder outlives the process. A shard that is started again on the same machine goes on where it
was, with the case at hand; on another machine it begins with the driver's copy of its events.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import msgspec

from fuzzgraph.campaign import RunFolder, run_campaign
from fuzzgraph.campaign.resume import load_run_state
from fuzzgraph.case import Case, digest
from fuzzgraph.case_database import SharedCases
from fuzzgraph.corpus import Entry, Loaded, write_atomically
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.fleet.messages import PLACE, FindingNotice, PollReply, PollRequest, ShardSpec, moved
from fuzzgraph.policy import load_policy
from fuzzgraph.repro.files import file_names
from fuzzgraph.run.events import Exported, ReportedFinding, decode_event
from fuzzgraph.run.spec import RunSpec
from fuzzgraph.strict_json import decode_json

if TYPE_CHECKING:
    from fuzzgraph.campaign import Campaign

LEDGER = "ledger.toml"
BASELINE = "baseline.jsonl"
_GIVEN = (LEDGER, BASELINE)
_EXPORTED = b'"event":"exported"'
_ELSEWHERE = "elsewhere"
"""Marks the folder of a finding that another shard works on."""
_PORTION = 4 << 20
"""Bytes of the log that are told at once."""


class Shard:
    """Carries out one order while it answers what has happened."""

    def __init__(self) -> None:
        self._order: ShardSpec | None = None
        self._campaign: Campaign | None = None
        self._interrupted = False
        self._done = threading.Event()
        self._wrong = ""
        self._broken = ""
        self._at = (0, 0)
        """Lines told, and where in the log the next one begins."""

    def work(self, text: bytes) -> None:
        """Run the campaign of an order to its end."""
        order = decode_json(text, ShardSpec)
        try:
            folder = self._prepare(order)
            self._order = order
            self._fuzz(order, folder)
        except UsageError as error:
            self._wrong = f"{type(error).__name__}: {error}"
        except (Exception, SystemExit, GeneratorExit, KeyboardInterrupt) as error:
            # told to the driver, who decides
            self._broken = f"{type(error).__name__}: {error}"
        finally:
            self._done.set()

    def drain(self, text: bytes) -> bytes:
        """What there is to tell; a driver that says which lines it has gets the next ones."""
        told = decode_json(text, PollRequest)
        done = self._done.is_set()  # asked first: what is written after it is told next time
        order = self._order
        if order is None:
            return msgspec.json.encode(PollReply(done=done, wrong=self._wrong, broken=self._broken))
        folder = _folder(order)
        for news in told.news:
            _learn(folder, news)
        lines = self._lines_after(folder.events, told.lines)
        batch = PollReply(
            folder=str(folder.path),
            lines=lines,
            files=_exports(folder, lines),
            done=done and not lines,
            wrong=self._wrong,
            broken=self._broken,
        )
        return msgspec.json.encode(batch)

    def interrupt(self) -> None:
        """End after the case at hand."""
        self._interrupted = True
        if self._campaign is not None:
            self._campaign.interrupt()

    def _prepare(self, order: ShardSpec) -> RunFolder:
        """The folder, with what the order brings; its own log where that knows more."""
        folder = _folder(order)
        for name, content in order.given.items():
            write_atomically(_inside(folder.path / "given", name), content)
        try:
            known = folder.events.read_bytes().count(b"\n")
        except FileNotFoundError:
            known = 0
        if order.log.count(b"\n") > known:
            write_atomically(folder.events, moved(order.log, PLACE, str(folder.path)))
        folder.path.mkdir(parents=True, exist_ok=True)
        return folder

    def _fuzz(self, order: ShardSpec, folder: RunFolder) -> None:
        begun = folder.events.exists() and b'"campaign_started"' in folder.events.read_bytes()
        state = load_run_state(folder.path, order.spec.shard, order.spec.shards) if begun else None
        if state is not None and state.finished and not order.again:
            return
        given = folder.path / "given"
        names = [given / name if name in order.given else None for name in _GIVEN]
        run_campaign(
            _spec(order, folder.path),
            lambda event: None,
            seeds=Loaded(entries=_entries(order.corpus)),
            sharing=SharedCases(
                None, order.spec.setup.target, Loaded(entries=_entries(order.shared))
            ),
            policy=load_policy(*names, only_new=order.spec.only_new),
            state=state,
            on_start=self._begin,
        )

    def _begin(self, campaign: Campaign) -> None:
        self._campaign = campaign
        if self._interrupted:
            campaign.interrupt()

    def _lines_after(self, log: Path, have: int) -> bytes:
        """Whole lines of the log after so many."""
        lines, offset = self._at
        try:
            with log.open("rb") as file:
                if lines != have:
                    for _ in range(have):
                        file.readline()
                    offset = file.tell()
                file.seek(offset)
                found = file.read(_PORTION)
        except FileNotFoundError:
            return b""
        found = found[: found.rfind(b"\n") + 1]
        self._at = (have + found.count(b"\n"), offset + len(found))
        return found


def _folder(order: ShardSpec) -> RunFolder:
    """The same for the same run and shard on one machine; no two shards share one."""
    path = Path(gettempdir()) / f"fuzzgraph-{order.run}" / f"shard-{order.spec.shard}"
    return RunFolder(path, order.spec.shard, order.spec.shards)


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UsageError(f"file {name!r} of the order lies outside its folder. Name one inside.")
    return path


def _spec(order: ShardSpec, out: Path) -> RunSpec:
    given = out / "given"
    ledger, baseline = (str(given / name) if name in order.given else "" for name in _GIVEN)
    return msgspec.structs.replace(
        order.spec, out=str(out), corpus="", ledger=ledger, baseline=baseline
    )


def _entries(cases: tuple[Case, ...]) -> list[Entry]:
    return [Entry(Path(f"{digest(case)}.json"), case, digest(case)) for case in cases]


def _learn(folder: RunFolder, news: FindingNotice) -> None:
    """Leave the finding to the other shard, unless it is ours already."""
    place = folder.of(news.id)
    if folder.claim(news.id):
        (place / _ELSEWHERE).touch()
    if news.record and (place / _ELSEWHERE).exists():
        with contextlib.suppress(*UNREADABLE):
            if decode_json(news.record, ReportedFinding).id == news.id:
                write_atomically(place / "finding.json", news.record)


def _exports(folder: RunFolder, lines: bytes) -> dict[str, bytes]:
    """The texts of the findings that were exported in these lines."""
    found = {}
    for line in lines.splitlines():
        if _EXPORTED in line[:200]:
            event = decode_event(line)
            assert isinstance(event, Exported)
            for name in file_names(event.reported.id).values():
                path = folder.of(event.reported.id) / name
                with contextlib.suppress(OSError):
                    found[f"findings/{event.reported.id}/{name}"] = path.read_bytes()
    return found
