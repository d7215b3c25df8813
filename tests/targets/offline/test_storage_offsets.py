"""Offsets into a buffer mean the same where all buffers lie in one storage."""

from __future__ import annotations

import torch

from fuzzgraph.targets.offline.storage_offsets import OffsetsFromAllocation

STORAGE = torch.arange(100.0)
BUFFER = STORAGE[60:80]


def test_an_offset_counts_from_where_the_buffer_begins() -> None:
    with OffsetsFromAllocation():
        by_name = torch.as_strided(BUFFER, (3,), (2,), storage_offset=5)
        by_place = BUFFER.as_strided((3,), (2,), 5)
    assert by_name.tolist() == by_place.tolist() == [65.0, 67.0, 69.0]


def test_an_offset_that_the_buffer_was_asked_for_stays() -> None:
    with OffsetsFromAllocation():
        view = torch.as_strided(BUFFER, (2,), (1,), storage_offset=BUFFER.storage_offset() + 4)
    assert view.tolist() == [64.0, 65.0]


def test_without_an_offset_a_view_begins_where_the_buffer_does() -> None:
    with OffsetsFromAllocation():
        assert torch.as_strided(BUFFER, (2,), (1,)).tolist() == [60.0, 61.0]
    assert torch.as_strided(BUFFER, (2,), (1,), storage_offset=5).tolist() == [5.0, 6.0]
