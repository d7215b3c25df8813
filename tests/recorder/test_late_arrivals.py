"""What a copy to pinned memory brings is there when the host has waited for it, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fuzzgraph.graphs import Recorder
from fuzzgraph.graphs.late_arrivals import Arrivals, late_arrivals
from fuzzgraph.graphs.late_copies import late_copies
from fuzzgraph.graphs.late_stream import LateStream
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu
from tests.recorder.test_late_copies import GIVEN, GOES_ON, WAITS, Engine

Tensor = torch.Tensor
ON_DEVICE = 5


class Everywhere(Arrivals):
    """What any line gives arrives late."""

    def __init__(self) -> None:
        super().__init__(())

    def withholds(self, line: str) -> bool:
        return True


def arriving_late(
    step: Callable[[Engine], object],
    arrivals: Arrivals | None = None,
    engine: Engine | None = None,
) -> None:
    """Run the step of an engine whose copies to the host arrive late."""
    engine = engine or Engine.opened()
    engine.buffer.fill_(ON_DEVICE)
    with (
        engine.memory.over_lanes(),
        late_arrivals(engine.memory, arrivals or Everywhere()),
        cuda_on_cpu({**DEVICE, **STREAMS}),
    ):
        step(engine)


def read(engine: Engine, tensor: Tensor) -> list[float]:
    """What the host reads of its own memory."""
    assert engine.memory.sides.of(tensor) == "host"
    return [float(value) for value in tensor.tolist()]


def test_what_the_host_reads_before_it_waits_is_not_what_the_copy_brings() -> None:
    def step(engine: Engine) -> None:
        mirror = engine.buffer.to("cpu", non_blocking=True)
        assert read(engine, mirror) == [1] * 4
        torch.cuda.synchronize()
        assert read(engine, mirror) == [ON_DEVICE] * 4

    arriving_late(step)


def test_memory_that_was_there_keeps_what_it_held() -> None:
    def step(engine: Engine) -> None:
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        assert read(engine, engine.pinned) == [GIVEN] * 4
        torch.cuda.synchronize()
        assert read(engine, engine.pinned) == [ON_DEVICE] * 4

    arriving_late(step)


def test_a_view_of_numpy_shows_the_same() -> None:
    def step(engine: Engine) -> None:
        array = engine.pinned.numpy()
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        assert array.tolist() == [GIVEN] * 4
        torch.cuda.synchronize()
        assert array.tolist() == [ON_DEVICE] * 4

    arriving_late(step)


def test_copies_of_a_list_arrive_one_by_one() -> None:
    def step(engine: Engine) -> None:
        targets = [engine.pinned[:2], engine.pinned[2:]]
        torch._foreach_copy_(targets, [engine.buffer[:2], engine.buffer[2:]], non_blocking=True)
        assert read(engine, engine.pinned) == [GIVEN] * 4
        torch.cuda.synchronize()
        assert read(engine, engine.pinned) == [ON_DEVICE] * 4

    arriving_late(step)


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_copy_has_arrived_when_the_host_has_waited(wait: Callable[[Engine], object]) -> None:
    def step(engine: Engine) -> None:
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        wait(engine)
        assert read(engine, engine.pinned) == [ON_DEVICE] * 4

    arriving_late(step)


@pytest.mark.parametrize("work", GOES_ON.values(), ids=GOES_ON)
def test_a_copy_has_not_arrived_where_nothing_waits(work: Callable[[Engine], object]) -> None:
    def step(engine: Engine) -> None:
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        work(engine)
        assert read(engine, engine.pinned) == [GIVEN] * 4

    arriving_late(step)


IN_TIME: dict[str, Callable[[Engine], Tensor]] = {
    "to pageable memory": lambda engine: engine.pageable.copy_(engine.buffer, non_blocking=True),
    "that blocks": lambda engine: engine.pinned.copy_(engine.buffer),
    "with another dtype": lambda engine: engine.buffer.to("cpu", torch.int64, non_blocking=True),
    "to memory with gaps": lambda engine: engine.pinned[::2].copy_(
        engine.buffer[:2], non_blocking=True
    ),
}


@pytest.mark.parametrize("copy", IN_TIME.values(), ids=IN_TIME)
def test_a_copy_arrives_with_the_call(copy: Callable[[Engine], Tensor]) -> None:
    def step(engine: Engine) -> None:
        earlier = engine.buffer.to("cpu", non_blocking=True)
        assert set(read(engine, copy(engine))) == {ON_DEVICE}
        assert read(engine, earlier) == [ON_DEVICE] * 4  # in stream order

    arriving_late(step)


def test_an_event_brings_what_was_given_before_it_alone() -> None:
    def step(engine: Engine) -> None:
        first = engine.buffer.to("cpu", non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        second = engine.buffer.to("cpu", non_blocking=True)
        event.synchronize()  # type: ignore[no-untyped-call]
        assert read(engine, first) == [ON_DEVICE] * 4
        assert read(engine, second) == [1] * 4

    arriving_late(step)


def test_the_device_reads_what_was_copied_before_it() -> None:
    def step(engine: Engine) -> None:
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        engine.buffer.zero_()
        engine.buffer.copy_(engine.pinned, non_blocking=True)
        assert read(engine, engine.pinned) == [GIVEN] * 4

    engine = Engine.opened()
    arriving_late(step, engine=engine)
    assert engine.buffer.tolist() == [ON_DEVICE] * 4


def test_a_graph_reads_it_too() -> None:
    engine = Engine.opened()
    recorder = Recorder(engine.memory)
    with engine.memory.intercept("engine"):
        graph = recorder.capture(lambda: engine.pinned * 2, key="double")

    def step(engine: Engine) -> None:
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        graph.replay()
        assert read(engine, engine.pinned) == [GIVEN] * 4

    arriving_late(step, engine=engine)
    assert graph.outputs.tolist() == [ON_DEVICE * 2] * 4


def test_a_read_of_the_harness_sees_it_and_waits_for_nothing() -> None:
    def step(engine: Engine) -> None:
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        with arrivals.arrived():
            assert read(engine, engine.pinned) == engine.buffer.tolist() == [ON_DEVICE] * 4
        assert read(engine, engine.pinned) == [GIVEN] * 4

    arrivals = Everywhere()
    arriving_late(step, arrivals)


def test_only_copies_of_the_lines_asked_for_arrive_late() -> None:
    def step(engine: Engine) -> None:
        engine.pinned.copy_(engine.buffer, non_blocking=True)
        assert read(engine, engine.pinned) == [ON_DEVICE] * 4

    arriving_late(step, Arrivals({"elsewhere.py:1 in step"}))


def test_a_run_in_which_they_arrive_at_once_names_their_lines() -> None:
    engine = Engine.opened()
    stream = LateStream(engine.memory, engine.memory.snapshot())
    with (
        engine.memory.over_lanes(),
        late_copies(engine.memory, stream),
        cuda_on_cpu({**DEVICE, **STREAMS}),
    ):
        mirror = engine.buffer.to("cpu", non_blocking=True)
        assert read(engine, mirror) == [0] * 4
    (line,) = stream.to_host
    assert "test_late_arrivals.py" in line
