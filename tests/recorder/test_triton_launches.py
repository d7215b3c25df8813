"""Triton kernels are recorded at launch, with their arguments frozen."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.tracing import RecordedOp, tracing

triton = pytest.importorskip("triton")
interpreter = pytest.importorskip("triton.runtime.interpreter")
tl = pytest.importorskip("triton.language")


def _add_scaled(x, y, count, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def, name-defined]  # noqa: ANN001, ANN202
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(y + offsets, tl.load(x + offsets, mask=inside) * scale, mask=inside)


add_scaled = interpreter.InterpretedFunction(_add_scaled)


def buffers(memory: GuardedMemory, read: int, written: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of the device: ones, and some without content."""
    return torch.ones(read, device=memory.device), torch.empty(written, device=memory.device)


def test_a_launch_is_replayed_with_its_scalars_frozen() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x = torch.arange(6.0, device=memory.device)
    scale = [2.0]

    def forward() -> torch.Tensor:
        out = torch.empty_like(x)
        add_scaled[(2,)](x, out, 6, scale[0], BLOCK=4)
        return out + 1

    graph = Recorder(memory).capture(forward, key="k")
    scale[0] = 5.0
    x.add_(10)
    graph.replay()

    assert graph.outputs.tolist() == [21.0, 23.0, 25.0, 27.0, 29.0, 31.0]
    assert graph.engaged
    assert memory.zones_intact()


def test_the_trace_shows_one_launch_and_none_of_its_inner_work() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x, y = buffers(memory, 4, 4)
    graph = Recorder(memory).capture(lambda: add_scaled[(1,)](x, y, 4, 2.0, BLOCK=4), key="k")
    work = [op for op in graph.trace if op.replayed]
    assert [(op.kind, op.name, op.grid) for op in work] == [("launch", "_add_scaled", (1,))]
    assert work[0].source.startswith("test_triton_launches.py:")


def test_the_interpreter_is_left_as_it_was() -> None:
    before = interpreter.GridExecutor.__call__
    memory = GuardedMemory()
    with memory.intercept("engine"):
        pass
    assert interpreter.GridExecutor.__call__ is before


def test_a_kernel_that_overruns_hits_the_zone_behind_its_buffer() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x, y = buffers(memory, 8, 5)
        add_scaled[(2,)](x, y, 8, 2.0, BLOCK=4)
    memory.name_regions({"y": y})
    (hit,) = memory.zone_hits("warmup")
    assert (hit.region, hit.side, hit.offset, hit.elements) == ("y", "after", 0, 3)


def test_memory_that_a_kernel_was_given_counts_as_written() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x, y = buffers(memory, 4, 4)
        untouched = torch.empty(4)
        add_scaled[(1,)](x, y, 4, 1008.0, BLOCK=4)  # the very value of the poison
    memory.name_regions({"y": y, "untouched": untouched})
    assert [change.region for change in memory.unwritten_perturbation(1)] == ["untouched"]


def test_a_launch_under_guard_allocates_nothing() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x, y = buffers(memory, 4, 4)
        add_scaled[(1,)](x, y, 4, 2.0, BLOCK=4)
    assert len(memory.regions) == 2


def test_a_trace_without_a_capture_reports_operations_and_launches() -> None:
    seen: list[RecordedOp] = []
    x, y = torch.ones(4), torch.empty(4)
    with tracing(seen.append):
        add_scaled[(1,)](x, y, 4, 2.0, BLOCK=4)
        y.add_(1)
    assert [op.name for op in seen if op.name != "aten.detach.default"] == [
        "_add_scaled",
        "aten.add_.Tensor",
    ]
    assert y.tolist() == [3.0] * 4
