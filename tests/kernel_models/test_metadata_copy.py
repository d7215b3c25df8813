"""`fused_metadata_copy`: tables and lengths of sparse attention, by address."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.metadata_copy import DECODE, copy_metadata, copy_metadata_thrice
from tests.kernel_models.strict_runs import strictly

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


def test_what_flash_mla_plans_is_copied_by_a_kernel_that_is_compiled_for_it() -> None:
    made, places = _made(2, tokens=2), _places(2, tokens=2)
    splits, parts = _ints(3), _ints(2, 2)
    given = [*made, _ints(3, value=5), _ints(2, 2, value=6)], [*places, splits, parts]
    copy_metadata(*given, 2, 4, 0, 2, mode=DECODE)
    assert not splits.any()
    copy_metadata(*given, 2, 4, 0, 2, mode=DECODE, has_plan=True)
    assert splits.tolist() == [5, 5, 5]
    assert parts.tolist() == [[6, 6], [6, 6]]


def test_pages_are_left_by_a_kernel_that_is_compiled_without_them() -> None:
    made, places = _made(2, tokens=2), _places(2, tokens=2)
    given = [*made, None, None], [*places, None, None]
    copy_metadata(*given, 2, 4, 0, 2, mode=DECODE, has_pages=False)
    assert places[2][:, :4].equal(made[2])
    assert not places[6].any()


@pytest.mark.parametrize(
    ("changed", "mode", "has_plan", "rule"),
    [
        ((1, 6), DECODE, False, "real_page_table must be given"),
        ((0, 4), _BY_TOKEN, False, "seqlens_expanded must be given"),
        ((1, 4), _BY_TOKEN, False, "seqlens_expanded must be given"),
        ((0, 7), DECODE, True, "flashmla_num_splits must be given"),
        ((1, 8), DECODE, True, "flashmla_metadata must be given"),
    ],
)
def test_what_a_kernel_is_compiled_to_copy_must_be_given(
    changed: tuple[int, int], mode: int, has_plan: bool, rule: str
) -> None:
    plan = [_ints(3), _ints(2)]
    given: list[list[torch.Tensor | None]] = [
        [*_made(2, tokens=2), *plan], [*_places(2, tokens=2), *plan]
    ]  # fmt: skip
    given[changed[0]][changed[1]] = None
    with strictly(), pytest.raises(AssertionError, match=rule):
        copy_metadata(given[0], given[1], 2, 4, 4, 2, mode=mode, has_plan=has_plan)
