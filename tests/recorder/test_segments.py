"""A forward that is captured piece by piece: each piece a graph, one pool for all of them."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory


def engine() -> tuple[Recorder, torch.Tensor]:
    """A recorder, and a buffer of two ones in its guarded memory."""
    memory = GuardedMemory()
    with memory.intercept("engine"):
        buffer = torch.ones(2)
    return Recorder(memory), buffer


def test_a_piece_goes_on_with_what_the_piece_before_it_left() -> None:
    recorder, x = engine()
    with recorder.segment(key="1") as first:
        doubled = x * 2
    with recorder.segment(key="2", continues=True) as second:
        total = doubled + 1
    x.fill_(5)
    first.replay()
    second.replay()
    assert total.tolist() == [11.0, 11.0]


def test_what_ran_between_two_pieces_is_part_of_neither() -> None:
    recorder, x = engine()
    with recorder.segment(key="1") as first:
        doubled = x * 2
    x.fill_(7)
    with recorder.segment(key="2", continues=True) as second:
        total = doubled + x
    x.fill_(1)
    first.replay()
    second.replay()
    assert x.tolist() == [1.0, 1.0]
    assert total.tolist() == [3.0, 3.0]


def test_a_piece_that_continues_nothing_finds_the_pool_clobbered() -> None:
    recorder, x = engine()
    with recorder.segment(key="1") as first:
        doubled = x * 2
    with recorder.segment(key="2") as second:
        total = doubled + 1
    first.replay()
    second.replay()
    assert total.tolist() != [3.0, 3.0]


def test_pieces_count_as_captured_graphs_and_their_replays_are_noted() -> None:
    recorder, x = engine()
    with recorder.segment(key="1") as first:
        x * 2
    first.replay()
    assert (recorder.captured, recorder.replayed) == (1, [first])
    assert first.engaged.replays == 1


def test_a_piece_forbids_what_a_capture_forbids() -> None:
    recorder, x = engine()
    refused = pytest.raises(CaptureError, match=r"Tensor.item\(\) read .* while graph 'k'")
    with refused, recorder.segment(key="k"):
        x.sum().item()
    assert recorder.captured == 0


def preparation() -> tuple[Recorder, torch.Tensor, torch.Tensor]:
    """A recorder, a buffer of the device, and one of the host."""
    memory = GuardedMemory()
    with memory.intercept("engine"):
        on_device = torch.ones(2, device=memory.device)
        on_host = torch.tensor([3, 4], device="cpu")
    return Recorder(memory), on_device, on_host


def test_a_captured_preparation_keeps_what_it_read_on_the_host() -> None:
    recorder, on_device, on_host = preparation()
    with recorder.segment(key="k", prepares=True) as graph:
        on_device.fill_(on_host.max().item())
    on_host.fill_(9)
    on_device.zero_()
    graph.replay()
    assert on_device.tolist() == [4.0, 4.0]


def test_work_on_the_host_is_in_no_graph_of_a_preparation() -> None:
    recorder, on_device, on_host = preparation()
    with recorder.segment(key="k", prepares=True) as graph:
        on_host.add_(1)
        on_device.add_(1)
    graph.replay()
    assert on_host.tolist() == [4, 5]
    assert on_device.tolist() == [3.0, 3.0]


def test_a_captured_preparation_may_not_read_the_device() -> None:
    recorder, on_device, _ = preparation()
    refused = pytest.raises(CaptureError, match=r"Tensor.item\(\) read .* while graph 'k'")
    with refused, recorder.segment(key="k", prepares=True):
        on_device.max().item()
