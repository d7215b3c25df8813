"""The device graph keeps the same promises as the recorder: on the emulated device, and on a real
one where there is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from fuzzgraph.errors import AdapterUnavailable, CaptureError
from fuzzgraph.graphs import DeviceGraph, DeviceGraphs, EmulatedDevice, open_engine
from fuzzgraph.graphs.drivers import Cuda
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.poison import poison_row
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs

_HAS_DEVICE = torch.cuda.is_available()
_real = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _HAS_DEVICE, reason="needs a CUDA or HIP device"),
]
Opened = tuple[GuardedMemory, DeviceGraphs, list[torch.Tensor]]
Engine = Callable[..., Opened]


class PoisonsWhileCapturing(GuardedMemory):
    """Writes poison into fresh memory of the pool at once, as the recorder has it."""

    def intercept(self, *args: Any, **kwargs: Any) -> Any:
        return super().intercept(*args, **{**kwargs, "poisons": True})


@pytest.fixture(params=["emulated", pytest.param("device", marks=_real)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Opens guarded memory with copies of some tensors, and device graphs on it."""
    place = "cpu" if request.param == "emulated" else "cuda"

    def opened(*tensors: torch.Tensor, kind: type[GuardedMemory] = GuardedMemory) -> Opened:
        memory = kind(place)
        with memory.intercept("engine"):
            buffers = [tensor.to(place, copy=True) for tensor in tensors]
        graphs = open_engine(request.param, memory)
        assert isinstance(graphs, DeviceGraphs)
        return memory, graphs, buffers

    return opened


def taken_down(graph: DeviceGraph[Any]) -> list[str]:
    """What an emulated device took down in a graph."""
    names: list[str] = graph._graph.names  # type: ignore[attr-defined]
    return names


def on_emulated(*tensors: torch.Tensor, kind: type[GuardedMemory] = GuardedMemory) -> Opened:
    """The same on the emulated device alone, for what a device does not tell."""
    memory = kind()
    with memory.intercept("engine"):
        buffers = [tensor.clone() for tensor in tensors]
    return memory, DeviceGraphs(memory, EmulatedDevice(memory)), buffers


# ---- what a graph freezes and sees


def test_a_replay_sees_buffers_and_freezes_scalars(engine: Engine) -> None:
    memory, graphs, (x,) = engine(torch.arange(4.0))
    scale = [2.0]
    graph = graphs.capture(lambda: x * scale[0], key="4")
    scale[0] = 7.0
    x.fill_(5)
    graph.replay()
    assert graph.outputs.tolist() == [10.0] * 4
    assert graph.engaged
    assert memory.region_of(graph.outputs) is not None


def test_another_replay_clobbers_earlier_outputs(engine: Engine) -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    large = graphs.capture(lambda: x + 1, key="4")
    small = graphs.capture(lambda: x[:2] + 1, key="2")
    large.replay()
    small.replay()
    assert large.outputs.tolist() == [1008.0] * 4
    assert small.outputs.tolist() == [2.0, 2.0]


def test_nothing_has_run_when_a_capture_ends(engine: Engine) -> None:
    _, graphs, (x,) = engine(torch.ones(2))
    with graphs.segment(key="2") as graph:
        x.add_(1)
    assert x.tolist() == [1.0, 1.0]
    graph.replay()
    assert x.tolist() == [2.0, 2.0]


def test_what_an_engine_keeps_of_its_first_run_is_its_own(engine: Engine) -> None:
    memory, graphs, (x,) = engine(torch.ones(4))
    kept = []
    with memory.intercept("scratch"):
        kept.append(x + 6)
    graph = graphs.capture(lambda: x * 3 + kept[0], key="4")
    x.fill_(2)
    graph.replay()
    assert graph.outputs.tolist() == [13.0] * 4


# ---- memory that nobody wrote


def differences(opened: Opened) -> tuple[list[float], list[float]]:
    """What a forward returns in each world that reads memory which nothing has written."""
    memory, graphs, (x,) = opened
    graph = graphs.capture(lambda: torch.empty(2, device=x.device) + x, key="2")
    graph.replay()
    here = graph.outputs.tolist()
    memory.zone_perturbation(1).apply()
    graph.replay()
    return here, graph.outputs.tolist()


def test_a_read_of_unwritten_memory_differs_between_the_worlds(engine: Engine) -> None:
    assert differences(engine(torch.zeros(2))) == ([1008.0] * 2, [-624.0] * 2)


def test_a_guard_that_poisons_while_a_device_captures_hides_that_read(engine: Engine) -> None:
    opened = engine(torch.zeros(2), kind=PoisonsWhileCapturing)
    assert differences(opened) == ([1008.0] * 2, [1008.0] * 2)


@pytest.mark.parametrize(
    ("kind", "intact"), [(GuardedMemory, True), (PoisonsWhileCapturing, False)]
)
def test_red_zones_hold_the_other_world_after_a_replay_in_it(
    engine: Engine, kind: type[GuardedMemory], intact: bool
) -> None:
    opened = engine(torch.zeros(2), kind=kind)
    differences(opened)
    assert opened[0].zones_intact() == intact


def test_an_overrun_in_a_replay_hits_a_red_zone(engine: Engine) -> None:
    memory, graphs, (x,) = engine(torch.zeros(4))
    graph = graphs.capture(lambda: x.as_strided((5,), (1,), x.storage_offset()).add_(1), key="4")
    memory.repair_zones()
    graph.replay()
    (hit,) = memory.zone_hits("replay")
    assert (hit.side, hit.offset, hit.elements) == ("after", 0, 1)


def test_an_overrun_within_the_pool_is_seen_in_the_other_world_too(engine: Engine) -> None:
    memory, graphs, (x,) = engine(torch.zeros(4))

    def forward() -> torch.Tensor:
        made = x + 1
        return made.as_strided((5,), (1,), made.storage_offset()).add_(1)

    graph = graphs.capture(forward, key="4")
    memory.zone_perturbation(1).apply()
    graph.replay()
    assert not memory.zones_intact()


def test_a_result_of_a_rare_dtype_is_captured(engine: Engine) -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    graph = graphs.capture(lambda: torch.complex(x, x), key="4")
    x.fill_(2)
    graph.replay()
    assert graph.outputs.tolist() == [2 + 2j] * 4


# ---- what a device forbids


def reads_its_second_run(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A forward whose warm-up passes and whose capture is refused."""
    calls: list[int] = []

    def forward() -> torch.Tensor:
        calls.append(1)
        return x + (x.sum().item() if len(calls) > 1 else 0)

    return forward


def test_a_refused_capture_names_the_line_of_what_was_forbidden(engine: Engine) -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    said = r"refused to capture graph '4': .*captur.*, at test_device_graph\.py:\d+ in forward\. "
    with pytest.raises(CaptureError, match=said) as refused:
        graphs.capture(reads_its_second_run(x), key="4")
    assert isinstance(refused.value.__cause__, RuntimeError)
    assert "forward" in [each.name for each in refused.traceback]


def test_the_current_stream_is_that_of_before_a_refused_capture(engine: Engine) -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    before = graphs.driver.current_stream()
    with pytest.raises(CaptureError):
        graphs.capture(reads_its_second_run(x), key="4")
    assert graphs.driver.current_stream() == before


def test_the_capture_after_a_refused_one_works(engine: Engine) -> None:
    memory, graphs, (x,) = engine(torch.ones(4))
    with pytest.raises(CaptureError):
        graphs.capture(reads_its_second_run(x), key="4")
    graph = graphs.capture(lambda: x + 1, key="4")
    x.fill_(3)
    graph.replay()
    assert graph.outputs.tolist() == [4.0] * 4
    assert graphs.captured == 1 and memory.zones_intact()


def test_a_refused_capture_leaves_red_zones_as_they_must_be(engine: Engine) -> None:
    memory, graphs, (x,) = engine(torch.ones(4))

    def forward() -> float:
        return float((x + 1).sum().item())

    with pytest.raises(CaptureError), graphs.segment(key="4"):
        forward()
    assert memory.zones_intact()


def test_a_refusal_that_the_engine_swallows_is_refused_at_the_end(engine: Engine) -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    before = graphs.driver.current_stream()
    refused = pytest.raises(CaptureError, match="refused")
    with refused, graphs.segment(key="4"), suppress(RuntimeError):
        x.sum().item()
    assert graphs.driver.current_stream() == before


def test_an_error_of_the_engine_itself_comes_out_as_it_is(engine: Engine) -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    with pytest.raises(ZeroDivisionError), graphs.segment(key="4"):
        x.add_(1 // 0)
    with graphs.segment(key="4"):
        x.add_(1)
    assert graphs.captured == 1


# ---- engines that capture by torch.cuda's names


def test_a_capture_by_stand_ins_of_torch_cuda_ends_in_the_device(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    for name, stand_in in CudaGraphs(graphs, "decode").names().items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    graph: Any = torch.cuda.CUDAGraph()
    graph.capture_begin()
    result = x * 2
    graph.capture_end()
    x.fill_(4)
    graph.replay()
    assert result.tolist() == [8.0] * 4 and graphs.captured == 1


def test_the_real_device_is_never_asked_through_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: asked.append("CUDAGraph"))
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: asked.append("graph"))
    cuda: Any = object.__new__(Cuda)
    cuda._pool = cuda._stream = None
    for ask in (cuda.graph, lambda: cuda.capturing(None, prepares=False)):
        with suppress(RuntimeError):  # torch without a device has none to give
            ask()
    assert asked == []


# ---- what only the emulated device tells


def test_a_graph_holds_the_engines_work_and_one_copy_of_the_guard_for_each_result() -> None:
    poison_row.cache_clear()
    _, graphs, (x,) = on_emulated(torch.ones(4))
    graph = graphs.capture(lambda: torch.complex(x, x), key="4")
    assert taken_down(graph) == ["aten.complex.default", "aten.copy_.default"]


def test_poison_that_is_written_while_capturing_is_part_of_the_graph() -> None:
    _, graphs, (x,) = on_emulated(torch.ones(4), kind=PoisonsWhileCapturing)
    graph = graphs.capture(lambda: x + 1, key="4")
    assert taken_down(graph) == ["aten.add.Tensor", "aten.copy_.default", "aten.copy_.default"]


def test_what_the_harness_does_past_the_guard_is_part_of_the_graph() -> None:
    memory, graphs, (x,) = on_emulated(torch.ones(4))
    graphs.capture(lambda: x + 1, key="4")
    memory.poison_graph_pool()  # the first time it copies rows from the host, which is refused
    with graphs.segment(key="k") as graph:
        memory.poison_graph_pool()
    assert taken_down(graph) == ["aten.copy_.default"]


def test_memory_elsewhere_has_no_emulated_device() -> None:
    memory = GuardedMemory("meta", capacity=2 << 20)
    with pytest.raises(AdapterUnavailable, match="memory lies on meta"):
        open_engine("emulated", memory)


def preparation() -> tuple[DeviceGraphs, torch.Tensor, torch.Tensor]:
    """Graphs, a buffer of the device, and one of the host."""
    memory = GuardedMemory()
    with memory.intercept("engine"):
        on_device = torch.ones(2, device=memory.device)
        on_host = torch.tensor([3, 4], device="cpu")
    return DeviceGraphs(memory, EmulatedDevice(memory)), on_device, on_host


def test_a_captured_preparation_works_on_the_host_at_once_and_on_the_device_when_replayed() -> None:
    graphs, on_device, on_host = preparation()
    with graphs.segment(key="k", prepares=True) as graph:
        on_device.fill_(on_host.max().item())
        on_host.add_(1)
    assert (on_device.tolist(), on_host.tolist()) == ([1.0, 1.0], [4, 5])
    graph.replay()
    assert (on_device.tolist(), on_host.tolist()) == ([4.0, 4.0], [4, 5])


def test_a_captured_preparation_may_not_read_the_device() -> None:
    graphs, on_device, _ = preparation()
    with pytest.raises(CaptureError, match="refused"), graphs.segment(key="k", prepares=True):
        on_device.max().item()
