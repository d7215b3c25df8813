"""Arguments stay as they were captured, whatever the engine does to its own tensor objects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory


def engine(*tensors: torch.Tensor) -> tuple[Recorder, list[torch.Tensor]]:
    """A recorder on guarded memory, and copies of these buffers in it."""
    memory = GuardedMemory()
    with memory.intercept("engine"):
        buffers = [tensor.clone() for tensor in tensors]
    return Recorder(memory), buffers


def points_elsewhere(x: torch.Tensor, y: torch.Tensor) -> None:
    x.data = y


def is_set(x: torch.Tensor, y: torch.Tensor) -> None:
    x.set_(y)  # type: ignore[call-overload]  # torch takes a tensor, its stubs do not say so


@pytest.mark.parametrize("rebind", [points_elsewhere, is_set])
def test_a_tensor_rebound_inside_a_capture_is_read_where_it_was_each_time(
    rebind: Callable[[torch.Tensor, torch.Tensor], None],
) -> None:
    recorder, (x, y) = engine(torch.ones(2), torch.full((2,), 5.0))

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        before = x + 1
        rebind(x, y)
        return before, x + 1

    old = x.detach()
    graph = recorder.capture(forward, key="k")
    old.fill_(2)
    y.fill_(7)
    graph.replay()
    assert [each.tolist() for each in graph.outputs] == [[3.0, 3.0], [8.0, 8.0]]


def test_a_tensor_transposed_in_place_keeps_its_shapes_in_every_replay() -> None:
    recorder, (x,) = engine(torch.arange(6.0).view(2, 3))

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        flat = x * 1
        before = flat + 0
        flat.t_()
        return before, flat.clone()

    graph = recorder.capture(forward, key="k")
    x.mul_(2)
    for _ in range(2):
        graph.replay()
        before, after = graph.outputs
        assert torch.equal(before, x)
        assert torch.equal(after, x.t())


def test_a_tensor_resized_inside_a_capture_is_read_with_both_sizes() -> None:
    recorder, (x,) = engine(torch.arange(4.0))

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        own = x + 0
        before = own * 1
        own.resize_(2)
        return before, own * 1

    graph = recorder.capture(forward, key="k")
    x.add_(1)
    graph.replay()
    assert [each.tolist() for each in graph.outputs] == [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0]]


def test_a_resize_leaves_what_lies_in_a_transposed_tensor_where_it_lies() -> None:
    recorder, (x,) = engine(torch.arange(6.0).view(2, 3))

    def forward() -> torch.Tensor:
        own = x + 0
        own.t().resize_(6)
        return own

    graph = recorder.capture(forward, key="k")
    x.add_(1)
    graph.replay()
    assert graph.outputs.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_a_transposed_tensor_that_grows_in_a_replay_brings_its_elements_as_they_lay() -> None:
    recorder, (x,) = engine(torch.arange(6.0).view(2, 3))

    def forward() -> torch.Tensor:
        own = (x + 0).t()
        own.resize_(40)
        return own[:6] * 1

    graph = recorder.capture(forward, key="k")
    x.add_(1)
    graph.replay()
    assert graph.outputs.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_outputs_resized_after_the_capture_do_not_disturb_the_trace() -> None:
    recorder, (x,) = engine(torch.ones(4))
    graph = recorder.capture(lambda: x + 1, key="k")
    graph.outputs.resize_(1)
    assert graph.trace[0].outputs[0].shape == (4,)
