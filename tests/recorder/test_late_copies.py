"""Copies from pinned memory read what it holds when the host last waited, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fuzzgraph.graphs import Recorder
from fuzzgraph.graphs import late_copies as late_copies_module
from fuzzgraph.graphs.late_copies import PinnedCopies, late_copies
from fuzzgraph.graphs.late_stream import LateStream
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu

GIVEN, REWRITTEN = 3, 7
Tensor = torch.Tensor


@pytest.mark.parametrize("without_grad", [torch.inference_mode, torch.no_grad])
def test_a_cast_that_does_not_wait_is_a_copy_in_either_mode(
    without_grad: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where copies are noted and nothing is modelled."""
    monkeypatch.setattr(late_copies_module, "_is_pinned", lambda tensor: True)
    with without_grad():
        given, noted = torch.zeros(3), PinnedCopies()
        with noted:
            given.to(torch.float64, non_blocking=True)
            given + given
    assert len(noted.to_device) == len(noted.to_host) == 1


@dataclass
class Engine:
    """Memory of one engine: a buffer of the device, and pinned and pageable memory of the host."""

    memory: GuardedMemory
    buffer: Tensor
    pinned: Tensor
    pageable: Tensor

    @classmethod
    def opened(cls) -> Engine:
        memory = GuardedMemory()
        with memory.intercept("engine"), cuda_on_cpu({**DEVICE, **STREAMS}):
            return cls(
                memory,
                torch.zeros(4, device="cuda"),
                torch.full((4,), float(GIVEN), pin_memory=True),
                torch.full((4,), float(GIVEN), device="cpu"),
            )

    def late(
        self, step: Callable[[Engine], object], stream: LateStream | None = None
    ) -> LateStream:
        """The stream that was given the step's work, which then ran as late as it may."""
        stream = stream or LateStream(self.memory, self.memory.snapshot())
        with (
            self.memory.over_lanes(),
            late_copies(self.memory, stream),
            cuda_on_cpu({**DEVICE, **STREAMS}),
        ):
            step(self)
        stream.wait()
        stream.repeat(late=True)
        return stream

    def copied(self) -> None:
        self.buffer.copy_(self.pinned, non_blocking=True)


COPIES: dict[str, Callable[[Engine], Tensor]] = {
    "copy_": lambda engine: engine.buffer.copy_(engine.pinned, non_blocking=True),
    "by position": lambda engine: engine.buffer.copy_(engine.pinned, True),
    "to a device": lambda engine: engine.pinned.to("cuda", non_blocking=True),
    "to a device by keyword": lambda engine: engine.pinned.to(device="cuda", non_blocking=True),
    "to the device of a tensor": lambda engine: engine.pinned.to(
        engine.buffer.device, non_blocking=True
    ),
    "with another dtype": lambda engine: engine.pinned.to(
        "cuda", dtype=torch.int64, non_blocking=True
    ),
    "cuda": lambda engine: engine.pinned.cuda(non_blocking=True),
    "a part": lambda engine: engine.buffer[:2].copy_(engine.pinned[2:], non_blocking=True),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_reads_what_pinned_memory_holds_later(copy: Callable[[Engine], Tensor]) -> None:
    found: list[Tensor] = []

    def step(engine: Engine) -> None:
        found.append(copy(engine))
        engine.pinned.fill_(REWRITTEN)

    engine = Engine.opened()
    stream = engine.late(step)
    late = found[0].clone()
    stream.repeat(late=False)
    assert set(late.tolist()) - {0} == {REWRITTEN}
    assert set(found[0].tolist()) - {0} == {GIVEN}


def test_a_read_of_the_harness_waits_for_nothing() -> None:
    def step(engine: Engine) -> None:
        engine.copied()
        with stream.unwaited():
            assert engine.buffer.tolist() == [GIVEN] * 4
        engine.pinned.fill_(REWRITTEN)

    engine = Engine.opened()
    stream = LateStream(engine.memory, engine.memory.snapshot())
    engine.late(step, stream)
    assert (engine.buffer == REWRITTEN).all()


def test_a_model_of_a_kernel_reads_memory_of_the_device_as_kernels_do() -> None:
    def total(memory: KernelMemory, *, lens: Tensor, out: Tensor) -> None:
        out.fill_(float(lens.numpy().sum()))

    engine = Engine.opened()
    engine.buffer.fill_(2)
    late = late_copies(engine.memory, LateStream(engine.memory, engine.memory.snapshot()))
    with engine.memory.over_lanes(), late, cuda_on_cpu({**DEVICE, **STREAMS}):
        launch(ModelKernel("total", total, "a source"), lens=engine.buffer, out=engine.buffer)
    assert engine.buffer.tolist() == [8] * 4


def test_copies_of_a_list_are_late_one_by_one() -> None:
    def step(engine: Engine) -> None:
        targets = [engine.buffer[:2], engine.buffer[2:]]
        torch._foreach_copy_(targets, [engine.pinned[:2], engine.pageable[2:]], non_blocking=True)
        engine.pinned.fill_(REWRITTEN)
        engine.pageable.fill_(REWRITTEN)

    engine = Engine.opened()
    stream = engine.late(step)
    assert engine.buffer.tolist() == [REWRITTEN, REWRITTEN, GIVEN, GIVEN]
    assert len(stream.copies) == 1


def test_a_write_through_numpy_is_seen() -> None:
    def step(engine: Engine) -> None:
        array = engine.pinned.numpy()
        engine.copied()
        array[:] = REWRITTEN

    engine = Engine.opened()
    engine.late(step)
    assert (engine.buffer == REWRITTEN).all()


def test_memory_pinned_by_a_call_of_its_own_is_late_too() -> None:
    def step(engine: Engine) -> None:
        pinned = engine.pageable.pin_memory()
        engine.buffer.copy_(pinned, non_blocking=True)
        pinned.fill_(REWRITTEN)

    engine = Engine.opened()
    engine.late(step)
    assert (engine.buffer == REWRITTEN).all()


IN_TIME: dict[str, Callable[[Engine], object]] = {
    "from pageable memory": lambda engine: engine.buffer.copy_(engine.pageable, non_blocking=True),
    "that blocks": lambda engine: engine.buffer.copy_(engine.pinned),
    "of memory with gaps": lambda engine: engine.buffer[:2].copy_(
        engine.pinned[::2], non_blocking=True
    ),
    "of memory that is repeated": lambda engine: engine.buffer.copy_(
        engine.pinned[0], non_blocking=True
    ),
}


@pytest.mark.parametrize("copy", IN_TIME.values(), ids=IN_TIME)
def test_a_copy_reads_at_the_call(copy: Callable[[Engine], object]) -> None:
    def step(engine: Engine) -> None:
        copy(engine)
        engine.pinned.fill_(REWRITTEN)
        engine.pageable.fill_(REWRITTEN)

    engine = Engine.opened()
    stream = engine.late(step)
    assert set(engine.buffer.tolist()) <= {0, GIVEN}
    assert not stream.copies


def event_behind(engine: Engine) -> None:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[no-untyped-call]
    event.synchronize()  # type: ignore[no-untyped-call]


WAITS: dict[str, Callable[[Engine], object]] = {
    "a value": lambda engine: engine.buffer[0].item(),
    "a list": lambda engine: engine.buffer.tolist(),
    "a truth": lambda engine: bool(engine.buffer.any()),
    "cpu": lambda engine: engine.buffer.cpu(),
    "to the host": lambda engine: engine.buffer.to("cpu"),
    "a copy to the host": lambda engine: engine.pageable.copy_(engine.buffer),
    "a copy to pageable memory": lambda engine: engine.pageable.copy_(
        engine.buffer, non_blocking=True
    ),
    "a copy to the host in another dtype": lambda engine: engine.buffer.to(
        "cpu", torch.int64, non_blocking=True
    ),
    "a copy from the host": lambda engine: engine.buffer.clone().copy_(engine.pageable),
    "a list that becomes a tensor": lambda engine: torch.tensor([1, 2], device="cuda"),
    "a shape that depends on data": lambda engine: engine.buffer.nonzero(),
    "a mask": lambda engine: engine.buffer[engine.buffer > 0],
    "an index of the host": lambda engine: engine.buffer[torch.tensor([0, 1])],
    "synchronize": lambda engine: torch.cuda.synchronize(),
    "a stream": lambda engine: torch.cuda.current_stream().synchronize(),
    "an event": event_behind,
    "an event that a stream records": lambda engine: (
        torch.cuda.current_stream().record_event().synchronize()
    ),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_copy_has_run_when_the_host_has_waited(wait: Callable[[Engine], object]) -> None:
    def step(engine: Engine) -> None:
        engine.copied()
        wait(engine)
        engine.pinned.fill_(REWRITTEN)

    engine = Engine.opened()
    stream = engine.late(step)
    assert (engine.buffer == GIVEN).all()
    assert len(stream.copies) == 1 and not stream.copies[0].rewritten


GOES_ON: dict[str, Callable[[Engine], object]] = {
    "work of the device": lambda engine: engine.buffer.clone().add_(1),
    "a number from the host": lambda engine: engine.buffer.clone().fill_(5),
    "a read of the host's own": lambda engine: engine.pageable.tolist(),
    "work of the host": lambda engine: engine.pageable + torch.ones(4),
    "a copy to the host without waiting": lambda engine: engine.buffer.to("cpu", non_blocking=True),
    "a copy within the device": lambda engine: engine.buffer.clone().copy_(engine.buffer),
    "memory made on the device": lambda engine: torch.arange(4, device=engine.buffer.device),
}


@pytest.mark.parametrize("work", GOES_ON.values(), ids=GOES_ON)
def test_a_copy_is_still_late_where_nothing_waits(work: Callable[[Engine], object]) -> None:
    def step(engine: Engine) -> None:
        engine.copied()
        work(engine)
        engine.pinned.fill_(REWRITTEN)

    engine = Engine.opened()
    assert engine.late(step).copies[0].rewritten
    assert (engine.buffer == REWRITTEN).all()


def test_an_event_waits_for_no_copy_behind_it() -> None:
    def step(engine: Engine) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        engine.copied()
        event.synchronize()  # type: ignore[no-untyped-call]
        engine.pinned.fill_(REWRITTEN)

    engine = Engine.opened()
    engine.late(step)
    assert (engine.buffer == REWRITTEN).all()


def test_what_reads_the_copy_follows_it_through_operations_and_graphs() -> None:
    engine = Engine.opened()
    recorder = Recorder(engine.memory)
    with engine.memory.intercept("engine"):
        graph = recorder.capture(lambda: engine.buffer * 2, key="double")
    summed: list[Tensor] = []

    def step(engine: Engine) -> None:
        engine.copied()
        summed.append(engine.buffer.cumsum(0))
        graph.replay()
        summed.append(graph.outputs.clone())
        engine.pinned.fill_(REWRITTEN)

    engine.late(step)
    assert summed[0].tolist() == [REWRITTEN * rows for rows in (1, 2, 3, 4)]
    assert summed[1].tolist() == [REWRITTEN * 2] * 4


def test_work_in_place_is_not_done_twice() -> None:
    engine = Engine.opened()
    outside = torch.ones(4)

    def step(engine: Engine) -> None:
        engine.copied()
        engine.buffer.add_(1)
        outside.add_(engine.buffer)
        engine.pinned.fill_(REWRITTEN)

    engine.late(step)
    assert engine.buffer.tolist() == [REWRITTEN + 1] * 4
    assert outside.tolist() == [REWRITTEN + 2] * 4


def test_memory_of_the_host_keeps_what_the_step_left_there() -> None:
    engine = Engine.opened()

    def step(engine: Engine) -> None:
        engine.copied()
        engine.pinned.fill_(REWRITTEN)

    engine.late(step)
    assert (engine.pinned == REWRITTEN).all()


def test_a_copy_names_the_line_that_gave_it() -> None:
    stream = Engine.opened().late(Engine.copied)
    assert "test_late_copies.py" in stream.copies[0].line and "copied" in stream.copies[0].line


def test_without_a_stream_nothing_is_late() -> None:
    engine = Engine.opened()
    with engine.memory.over_lanes(), cuda_on_cpu({**DEVICE, **STREAMS}):
        engine.copied()
        engine.pinned.numpy()[:] = np.float32(REWRITTEN)
    assert (engine.buffer == GIVEN).all()
