"""Streams run what they are given in any order that waits allow, and in no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs import Recorder
from fuzzgraph.graphs.late_copies import late_copies
from fuzzgraph.graphs.late_stream import LateStream
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.stream_order import MAIN, StreamOrder, late_order, running_late, streams_apart
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu

cuda: Any = torch.cuda


def test_work_of_one_stream_stays_in_order() -> None:
    order = StreamOrder()
    works = [order.issue() for _ in range(3)]
    assert late_order(works, MAIN) == [0, 1, 2] and streams_apart(works) == []


def test_work_of_a_stream_that_nobody_waits_for_may_run_last() -> None:
    order = StreamOrder()
    side = order.new_stream()
    works = [order.issue()]
    with order.on(side):
        works.append(order.issue())
    works.append(order.issue())
    assert late_order(works, side) == [0, 2, 1]
    assert late_order(works, MAIN) == [1, 0, 2]
    assert streams_apart(works) == [MAIN, side]


def test_a_wait_for_a_stream_orders_what_it_was_given_before() -> None:
    order = StreamOrder()
    side = order.new_stream()
    with order.on(side):
        works = [order.issue(), order.issue()]
    order.wait(MAIN, order.clock(side))
    works.append(order.issue())
    with order.on(side):
        works.append(order.issue())
    works.append(order.issue())
    assert late_order(works, side) == [0, 1, 2, 4, 3]


def test_a_wait_for_an_event_orders_only_what_lies_before_it() -> None:
    order = StreamOrder()
    side = order.new_stream()
    with order.on(side):
        works = [order.issue()]
        event = order.clock()
        works.append(order.issue())
    order.wait(MAIN, event)
    works.append(order.issue())
    assert late_order(works, side) == [0, 2, 1]


def test_streams_that_do_not_wait_for_the_late_one_run_before_those_that_do() -> None:
    order = StreamOrder()
    late, waits, free = (order.new_stream() for _ in range(3))
    with order.on(late):
        works = [order.issue()]
    order.wait(waits, order.clock(late))
    for stream in (waits, free):
        with order.on(stream):
            works.append(order.issue())
    assert late_order(works, late) == [2, 0, 1]


def test_what_was_waited_for_by_way_of_a_third_stream_has_ended() -> None:
    order = StreamOrder()
    first, second = order.new_stream(), order.new_stream()
    with order.on(first):
        works = [order.issue()]
    order.wait(second, order.clock(first))
    with order.on(second):
        works.append(order.issue())
    order.wait(MAIN, order.clock(second))
    works.append(order.issue())
    assert streams_apart(works) == []


def test_what_the_host_waited_for_has_ended_before_all_that_follows() -> None:
    order = StreamOrder()
    side = order.new_stream()
    with order.on(side):
        works = [order.issue()]
    order.host_waits(order.clock(side))
    works.append(order.issue())
    assert streams_apart(works) == []


@dataclass
class Engine:
    """Memory of one engine, its side stream, and a recorder over both."""

    memory: GuardedMemory
    source: torch.Tensor
    copy: torch.Tensor
    total: torch.Tensor
    side: Any

    @classmethod
    def opened(cls) -> Engine:
        memory = GuardedMemory()
        with memory.intercept("engine"), cuda_on_cpu({**DEVICE, **STREAMS}):
            source, copy, total = (torch.zeros(2, device="cuda") for _ in range(3))
            return cls(memory, source, copy, total, cuda.Stream())

    def fork(self) -> None:
        self.side.wait_stream(cuda.current_stream())

    def join(self) -> None:
        cuda.current_stream().wait_stream(self.side)

    def copied_beside(self) -> None:
        """On the side stream."""
        with cuda.stream(self.side):
            self.copy.copy_(self.source)

    def forward(self, *, waits: bool) -> torch.Tensor:
        self.source.add_(1)
        self.fork()
        self.copied_beside()
        if waits:
            self.join()
        self.total.copy_(self.copy)
        self.join()
        return self.total

    def captured(self, forward: Callable[[], torch.Tensor]) -> Any:
        with self.memory.intercept("engine"), cuda_on_cpu({**DEVICE, **STREAMS}):
            return Recorder(self.memory).capture(forward, key="one")


def totals(engine: Engine, waits: bool) -> list[float]:
    """What a graph gives at its next replay as it was given, and with each stream late."""
    graph = engine.captured(lambda: engine.forward(waits=waits))
    found = []
    for stream in (None, *graph.streams_apart):
        engine.source.fill_(4)
        engine.copy.zero_()
        if stream is None:
            graph.replay()
        else:
            with running_late(stream):
                graph.replay()
        found.append(float(engine.total[0]))
    return found


def test_a_graph_that_waits_gives_the_same_in_every_order() -> None:
    assert totals(Engine.opened(), waits=True) == [5]


def test_a_graph_that_does_not_wait_reads_what_was_there_before() -> None:
    assert totals(Engine.opened(), waits=False) == [5, 0]


def test_a_graph_names_the_line_that_gives_its_side_stream_work() -> None:
    engine = Engine.opened()
    graph = engine.captured(lambda: engine.forward(waits=True))
    assert "copied_beside" in graph.side_lines[0]


def test_a_capture_that_ends_before_its_side_stream_is_refused() -> None:
    engine = Engine.opened()

    def forward() -> torch.Tensor:
        engine.fork()
        engine.copied_beside()
        return engine.copy

    with pytest.raises(CaptureError, match=r"before work of a side stream, .*copied_beside"):
        engine.captured(forward)


def test_work_of_a_stream_that_waits_for_nothing_of_the_capture_is_no_part_of_it() -> None:
    engine = Engine.opened()

    def forward() -> torch.Tensor:
        engine.copied_beside()
        return engine.source.add_(0)

    graph = engine.captured(forward)
    engine.source.fill_(3)
    graph.replay()
    assert engine.copy.tolist() == [0, 0]


def taken_down(step: Callable[[Engine], object]) -> tuple[Engine, LateStream]:
    engine = Engine.opened()
    stream = LateStream(engine.memory, engine.memory.snapshot())
    with (
        engine.memory.over_lanes(),
        late_copies(engine.memory, stream),
        cuda_on_cpu({**DEVICE, **STREAMS}),
    ):
        step(engine)
    return engine, stream


WAITS: dict[str, Callable[[Engine], object]] = {
    "a stream": Engine.join,
    "an event": lambda engine: cuda.current_stream().wait_event(engine.side.record_event()),
    "an event of its own": lambda engine: engine.side.record_event().wait(),
    "the host, for the stream": lambda engine: engine.side.synchronize(),
    "the host, for the device": lambda engine: cuda.synchronize(),
    "the host, for an event": lambda engine: engine.side.record_event().synchronize(),
    "the host, by a value": lambda engine: side_value(engine),
}


def side_value(engine: Engine) -> float:
    with cuda.stream(engine.side):
        return float(engine.copy[0].item())


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_work_behind_a_wait_runs_behind_what_it_waits_for(wait: Callable[[Engine], object]) -> None:
    def step(engine: Engine) -> None:
        engine.source.add_(1)
        engine.fork()
        engine.copied_beside()
        wait(engine)
        engine.total.copy_(engine.copy)

    engine, stream = taken_down(step)
    for late in (*stream.streams_apart, engine.side.number):
        stream.repeat(late=False, late_stream=late)
        assert engine.total.tolist() == [1, 1]


def test_work_that_waits_for_nothing_may_run_first() -> None:
    def step(engine: Engine) -> None:
        engine.source.add_(1)
        engine.fork()
        engine.copied_beside()
        engine.total.copy_(engine.copy)

    engine, stream = taken_down(step)
    (late,) = stream.streams_apart
    stream.repeat(late=False, late_stream=late)
    assert engine.total.tolist() == [0, 0]
    stream.repeat(late=False)
    assert engine.total.tolist() == [1, 1]


def test_the_current_stream_is_the_one_that_was_entered_last() -> None:
    with cuda_on_cpu({**DEVICE, **STREAMS}):
        outer, inner = cuda.Stream(), cuda.Stream()
        with cuda.stream(outer):
            with cuda.stream(inner), cuda.stream(None):
                assert cuda.current_stream() is inner
            assert cuda.current_stream() is outer
        assert cuda.current_stream() is cuda.default_stream()
