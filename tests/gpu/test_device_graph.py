"""The device graph on a device: the same promises as the recorder's."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs import DeviceGraphs
from fuzzgraph.memory import GuardedMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or HIP device"),
]


def engine(*tensors: torch.Tensor) -> tuple[GuardedMemory, DeviceGraphs, list[torch.Tensor]]:
    memory = GuardedMemory("cuda")
    with memory.intercept("engine"):
        buffers = [tensor.to("cuda") for tensor in tensors]
    return memory, DeviceGraphs(memory), buffers


def test_a_replay_sees_buffers_and_freezes_scalars() -> None:
    memory, graphs, (x,) = engine(torch.arange(4.0))
    scale = [2.0]
    graph = graphs.capture(lambda: x * scale[0], key="4")
    scale[0] = 7.0
    x.fill_(5)
    graph.replay()
    assert graph.outputs.tolist() == [10.0] * 4
    assert graph.engaged
    assert memory.region_of(graph.outputs) is not None


def test_another_replay_clobbers_earlier_outputs() -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    large = graphs.capture(lambda: x + 1, key="4")
    small = graphs.capture(lambda: x[:2] + 1, key="2")
    large.replay()
    small.replay()
    assert large.outputs.tolist() == [1008.0] * 4
    assert small.outputs.tolist() == [2.0, 2.0]


def test_an_overrun_in_a_replay_hits_a_red_zone() -> None:
    memory, graphs, (x,) = engine(torch.zeros(4))
    graph = graphs.capture(lambda: x.as_strided((5,), (1,), x.storage_offset()).add_(1), key="4")
    memory.repair_zones()
    graph.replay()
    (hit,) = memory.zone_hits("replay")
    assert (hit.side, hit.offset, hit.elements) == ("after", 0, 1)


def test_a_host_read_is_refused_with_the_devices_message() -> None:
    _, graphs, (x,) = engine(torch.ones(4))
    calls = []

    def forward() -> torch.Tensor:
        calls.append(1)
        return x + (x.sum().item() if len(calls) > 1 else 0)

    with pytest.raises(CaptureError, match="refused to capture graph '4'"):
        graphs.capture(forward, key="4")
