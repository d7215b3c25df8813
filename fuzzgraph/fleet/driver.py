"""Drives the shards of a run: starts them, takes in what they tell, starts lost ones again.

It knows no cluster: a `Cluster` puts a shard somewhere and hands back a `Member` to ask. The driver
itself may be killed too; all it knows is in the folder of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.fleet.messages import FindingNotice, PollReply, PollRequest, ShardSpec
from fuzzgraph.fleet.replica import Replica
from fuzzgraph.run.events import CampaignFinished, Emit, Event, FindingNew, FindingPursued, Progress
from fuzzgraph.strict_json import decode_json

_TRIES = 50
"""Starts of one shard; a night may lose a node more than once."""
_FRUITLESS = 5
"""Starts in a row that may bring no event."""
_PAUSE = 0.2
"""Seconds between two looks at the shards."""
_PATIENCE = 120.0
"""Seconds after the end of the budget in which a shard that is stuck has to come back."""


class ShardLost(Exception):
    """A shard's machine or process is gone."""


class FleetFailed(FuzzGraphError):
    """A shard cannot be run anywhere."""


class Member(Protocol):
    """A shard that was put on some machine."""

    def ask(self, told: bytes) -> bytes | None:
        """What it tells; None while there is no answer yet, and the same is asked again.

        Raises:
            ShardLost: it is gone.
        """
        ...

    def interrupt(self) -> None: ...

    def end(self) -> None:
        """Take it down, whatever it is doing."""
        ...


class Cluster(Protocol):
    def start(self, order: bytes) -> Member:
        """Put a shard on a machine and let it work."""
        ...


@dataclass(slots=True)
class _ShardRun:
    """One shard, wherever it is."""

    order: ShardSpec
    replica: Replica
    member: Member | None = None
    question: bytes = b""
    """What it was asked and has not answered yet."""
    asked: int = 0
    """FindingNotice told with the question that is not answered yet, those before included."""
    heard: int = 0
    """FindingNotice that the member has."""
    seconds: float = 0.0
    """How far the shard's own campaign has come."""
    tries: int = 0
    fruitless: int = 0
    """Starts since an event came."""
    next_try: float = 0.0
    ended: bool = False
    """Whether the last thing it told was its end, be it a bad one."""
    done: bool = False


class Driver:
    """One run over all its shards.

    Args:
        orders: one for each shard that is not done.
        replicas: the copies of all shards, by number.
        emit: sees every event of every shard.
        spent: seconds that the run had taken before the driver was started.
        news: shard and what it had found before.
    """

    def __init__(
        self,
        cluster: Cluster,
        orders: Sequence[ShardSpec],
        replicas: Sequence[Replica],
        emit: Emit,
        *,
        spent: float = 0.0,
        news: Iterable[tuple[int, FindingNotice]] = (),
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._emit = emit
        self._clock = clock
        self._pause = pause
        self._spent = spent
        self._begin: float | None = None
        self._interrupted = False
        self._news = list(news)
        self._places = [_ShardRun(order, replicas[order.spec.shard]) for order in orders]
        self.lost: list[str] = []
        """One line for each time a shard was lost."""

    def interrupt(self) -> None:
        """Let every shard end after its case at hand."""
        self._interrupted = True

    def run(self) -> None:
        """Until every shard has told its end, or was lost too often.

        Raises:
            FleetFailed: a shard cannot carry out its order on any machine.
        """
        interrupted = False
        try:
            while open_places := [place for place in self._places if not place.done]:
                if self._interrupted and not interrupted:
                    interrupted = True
                    for place in open_places:
                        if place.member is not None:
                            place.member.interrupt()
                moved = [self._look(place) for place in open_places]
                if not any(moved):
                    self._pause(_PAUSE)
        finally:
            for place in self._places:
                self._take_down(place)

    @property
    def _seconds(self) -> float:
        begin = self._clock() if self._begin is None else self._begin
        return self._spent + self._clock() - begin

    def _look(self, place: _ShardRun) -> bool:
        """Whether something new came from a shard."""
        if place.member is None:
            self._start(place)
            return False
        place.question = place.question or self._question(place)
        try:
            answer = place.member.ask(place.question)
        except ShardLost as error:
            self._lose(place, str(error))
            return False
        fresh = answer is not None and self._answered(place, answer)
        limit = place.order.spec.budget.seconds
        if not place.done and limit is not None and self._seconds > limit + _PATIENCE:
            self._lose(place, "did not come back after the end of the budget")
            place.done = True
        return fresh

    def _answered(self, place: _ShardRun, answer: bytes) -> bool:
        place.heard, place.question = place.asked, b""
        return self._take(place, decode_json(answer, PollReply))

    def _start(self, place: _ShardRun) -> None:
        if self._clock() < place.next_try:
            return
        if self._interrupted and place.tries:
            place.done = True  # what it had found is in its log
            return
        spec = place.order.spec
        budget = msgspec.structs.replace(spec.budget, seconds=self._seconds_for(place))
        spec = msgspec.structs.replace(spec, budget=budget)
        order = msgspec.structs.replace(place.order, log=place.replica.log(), spec=spec)
        place.member = self._cluster.start(msgspec.json.encode(order))
        place.heard = 0
        place.tries += 1
        place.fruitless += 1
        if self._interrupted:
            place.member.interrupt()

    def _seconds_for(self, place: _ShardRun) -> float | None:
        """What the shard has in all: the time in which it was lost does not come back."""
        limit = place.order.spec.budget.seconds
        if limit is None or place.tries == 0:
            return limit
        missed = max(0.0, self._seconds - place.seconds)
        return max(limit - missed, place.seconds, 0.001)

    def _question(self, place: _ShardRun) -> bytes:
        place.asked = len(self._news)
        own = place.order.spec.shard
        others = [news for shard, news in self._news[place.heard :] if shard != own]
        return msgspec.json.encode(PollRequest(lines=place.replica.lines, news=tuple(others)))

    def _take(self, place: _ShardRun, batch: PollReply) -> bool:
        if batch.wrong:
            raise FleetFailed(f"shard {place.order.spec.shard}: {batch.wrong}")
        events = place.replica.take(batch)
        if events:
            place.fruitless = 0
            self._begin = self._clock() if self._begin is None else self._begin
        for event in events:
            if isinstance(event, Progress):
                place.seconds = event.seconds
            place.ended = isinstance(event, CampaignFinished)
            self._news += [(place.order.spec.shard, news) for news in notices_of(event)]
            self._emit(event)
        if batch.done and batch.broken and not place.ended:
            self._lose(place, batch.broken)
        elif batch.done:
            place.done = True
            self._take_down(place)
        return bool(events) or batch.done

    def _lose(self, place: _ShardRun, why: str) -> None:
        """Start it again, later and later; what it had told is kept."""
        self._take_down(place)
        place.question = b""
        shard = place.order.spec.shard
        self.lost.append(f"shard {shard} was lost ({why})")
        if place.fruitless >= _FRUITLESS:
            raise FleetFailed(f"shard {shard} was lost {_FRUITLESS} times at its start: {why}")
        if place.tries >= _TRIES:
            self.lost.append(f"shard {shard} was lost {_TRIES} times and given up")
            place.done = True
        place.next_try = self._clock() + min(0.2 * 2 ** min(place.tries, 8), 30.0)

    def _take_down(self, place: _ShardRun) -> None:
        if place.member is not None:
            place.member.end()
            place.member = None


def notices_of(event: Event) -> list[FindingNotice]:
    """What others should know of an event, so that a finding is worked on once."""
    if isinstance(event, FindingNew):
        return [FindingNotice(id=event.id)]
    if isinstance(event, FindingPursued):
        return [FindingNotice(id=event.reported.id, record=msgspec.json.encode(event.reported))]
    return []
