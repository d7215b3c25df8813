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
