"""`fused_metadata_copy`: tables and lengths of sparse attention, by address."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.metadata_copy import DECODE, copy_metadata, copy_metadata_thrice

_BY_TOKEN = 1
"""A mode whose rows are tokens."""


def _ints(*shape: int, value: int = 0) -> torch.Tensor:
    return torch.full(shape, value, dtype=torch.int32)


def _made(rows: int, *, tokens: int) -> list[torch.Tensor]:
    """What is prepared for a batch, every number another one."""
    sizes = ((rows,), (rows + 1,), (tokens, 4), (tokens,), (tokens,), (tokens + 1,), (tokens, 2))
    found, first = [], 1
    for size in sizes:
        count = int(torch.tensor(size).prod())
        found.append(torch.arange(first, first + count, dtype=torch.int32).view(size))
        first += count
    return found


def _places(rows: int, *, tokens: int) -> list[torch.Tensor]:
    """Where a graph reads it: tables are wider than what is prepared."""
    shapes = ((rows,), (rows + 1,), (tokens, 6), (tokens,), (tokens,), (tokens + 1,), (tokens, 3))
    return [_ints(*shape) for shape in shapes]


def test_a_decode_has_a_row_for_each_request_and_no_lengths_by_token() -> None:
    made, places = _made(2, tokens=2), _places(2, tokens=2)
    copy_metadata([*made, None, None], [*places, None, None], 2, 4, 0, 2, mode=DECODE)
    lens, offsets, slots, selected, expanded, selected_offsets, pages = places
    assert lens.equal(made[0])
    assert selected.equal(made[3])
    assert not expanded.any()
    assert offsets.tolist() == [0, *made[1][1:].tolist()]
    assert selected_offsets.tolist() == [0, *made[5][1:].tolist()]
    assert slots[:, :4].equal(made[2])
    assert not slots[:, 4:].any()
    assert pages[:, :2].equal(made[6])


def test_in_other_modes_rows_are_tokens() -> None:
    made, places = _made(1, tokens=3), _places(1, tokens=3)
    copy_metadata([*made, None, None], [*places, None, None], 1, 0, 4, 3, mode=_BY_TOKEN)
    assert places[2][:, :4].equal(made[2])
    assert places[4].equal(made[4])
    assert places[6][:, :2].equal(made[6])


def test_three_steps_get_the_same() -> None:
    made = _made(2, tokens=2)
    source = [*made[:4], *made[5:], None, None]
    places = [_places(2, tokens=2) for _ in range(3)]
    copy_metadata_thrice(source, [[*each[:4], *each[5:], None, None] for each in places], 2, 4)
    for each in places:
        assert each[0].equal(made[0])
        assert each[6][:, :2].equal(made[6])


def test_other_numbers_are_refused() -> None:
    made, places = _made(2, tokens=2), _places(2, tokens=2)
    made[0] = made[0].long()
    with pytest.raises(KernelRefused, match="must be int32"):
        copy_metadata([*made, None, None], [*places, None, None], 2, 4, 0, 2, mode=DECODE)


def test_what_flash_mla_plans_is_not_followed() -> None:
    made, places = _made(2, tokens=2), _places(2, tokens=2)
    with pytest.raises(KernelNotModelled, match="flashmla_num_splits"):
        copy_metadata([*made, _ints(3), _ints(2)], [*places, None, None], 2, 4, 0, 2, mode=DECODE)
