"""The kernel that sorts tokens by adapter and expert."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.launch import routed
from fuzzgraph.kernel_models.lora_alignment import moe_lora_align_block_size
from tests.kernel_models.test_routing import _Strays

_EXPERTS, _BLOCK, _PLACES, _BLOCKS = 3, 2, 12, 6


def _numbers(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def aligned(
    ids: list[list[int]],
    ends: list[int],
    owners: list[int],
    enabled: list[int],
    room: int = _PLACES,
    block: int = _BLOCK,
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """([adapters, places], [adapters, blocks], places in use of each) of a call."""
    adapters = len(enabled)
    places = torch.full((adapters * room,), -7, dtype=torch.int32)
    of_blocks = torch.full((adapters * _BLOCKS,), -7, dtype=torch.int32)
    used = torch.full((adapters,), -7, dtype=torch.int32)
    moe_lora_align_block_size(
        _numbers([expert for row in ids for expert in row]).view(len(ids), -1),
        _numbers(ends), _numbers(owners), _EXPERTS, block, adapters, _PLACES, _BLOCKS,
        places, of_blocks, used, _numbers(enabled), torch.arange(adapters, dtype=torch.int32),
        None, torch.zeros(adapters * (_EXPERTS + 1), dtype=torch.int32),
        torch.zeros(adapters * len(ids), dtype=torch.int32),
    )  # fmt: skip
    return places.view(adapters, room), of_blocks.view(adapters, _BLOCKS), used.tolist()


def test_an_adapter_has_the_places_of_its_segments_by_expert() -> None:
    # Tokens 0 and 2 are of adapter 1, token 1 of adapter 2.
    ids = [[2, 0], [1, 2], [0, 1]]
    places, of_blocks, used = aligned(ids, [0, 1, 2, 3], [1, 2, 1], [0, 1, 1])
    assert used[1:] == [6, 4]
    assert places[1].tolist() == [1, 4, 5, 6, 0, 6, 6, 6, 6, 6, 6, 6]
    assert of_blocks[1].tolist() == [0, 1, 2, -1, -1, -1]
    assert places[2, :4].tolist() == [2, 6, 3, 6]
    assert of_blocks[2, :2].tolist() == [1, 2]


def test_an_adapter_that_is_not_enabled_is_left_as_it_was() -> None:
    places, of_blocks, used = aligned([[0]], [0, 1], [0], [0, 1])
    assert (places[0] == -7).all() and (of_blocks[0] == -7).all() and used[0] == -7
    assert used[1] == 0 and (of_blocks[1] == -1).all()


def test_ids_without_an_expert_have_no_place() -> None:
    places, _, used = aligned([[-1, 2]], [0, 1], [0], [1])
    assert (used, places[0, :2].tolist()) == ([2], [1, 2])


def test_places_that_have_no_room_are_strays() -> None:
    seen = _Strays()
    with routed(seen.run):
        aligned([[0]], [0, 1], [0], [1], room=4)
    assert {stray.argument for stray in seen.found} == {"sorted_token_ids"}


def test_blocks_of_nothing_are_refused() -> None:
    with pytest.raises(KernelRefused, match="block_size should be greater than 0"):
        aligned([[0]], [0, 1], [0], [1], block=0)
