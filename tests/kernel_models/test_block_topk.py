"""The model of the selection of blocks, against repeated search for the best and by its rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.block_topk import select_blocks
from fuzzgraph.memory import GuardedMemory

BLOCK, BLOCKS, TOPK = 4, 6, 3
UNTOUCHED = 99


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values).int()


def scores(heads: int, rows: int) -> torch.Tensor:
    torch.manual_seed(1)
    every = [torch.randperm(BLOCKS).float() for _ in range(heads * rows)]
    return torch.stack(every).view(heads, rows, BLOCKS)


def best(score: torch.Tensor, blocks: int) -> list[int]:
    """Places of the best blocks by repeated search for the largest."""
    left = {place: float(score[place]) for place in range(blocks)}
    found: list[int] = []
    while left and len(found) < TOPK:
        found.append(max(left, key=lambda place: left[place]))
        del left[found[-1]]
    return sorted(found) + [-1] * (TOPK - len(found))


def selected(score: torch.Tensor, seq_lens: torch.Tensor, **changed: Any) -> torch.Tensor:
    topk_idx = torch.full((*score.shape[:2], TOPK), UNTOUCHED).int()
    call = {"topk_idx": topk_idx, "block_size": BLOCK, "topk": TOPK, **changed}
    select_blocks(score=score, seq_lens=seq_lens, **call)
    found: torch.Tensor = call["topk_idx"]
    return found


def accesses(score: torch.Tensor, seq_lens: torch.Tensor) -> list[str]:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        selected(score, seq_lens)
    return [access.buffer for access in memory.lanes.report.take_accesses()]


def test_best_blocks_of_scores_by_hand_ascend() -> None:
    row = torch.tensor([0.5, -2.0, 7.0, 1.5, 1.0, 6.0])
    assert selected(row.view(1, 1, BLOCKS), ints(24)).tolist() == [[[2, 3, 5]]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_head_of_each_row_has_its_own_best_blocks(dtype: torch.dtype) -> None:
    given, lens = scores(2, 3), torch.tensor([24, 17, 21], dtype=dtype)
    found = selected(given, lens)
    for head in range(2):
        for row, blocks in enumerate((6, 5, 6)):
            assert found[head, row].tolist() == best(given[head, row], blocks)


@pytest.mark.parametrize(
    ("length", "blocks"),
    [(0, [-1, -1, -1]), (1, [0, -1, -1]), (5, [0, 1, -1]), (9, [0, 1, 2]), (12, [0, 1, 2])],
)
def test_a_row_with_few_blocks_has_all_of_them_without_a_look_at_scores(
    length: int, blocks: list[int]
) -> None:
    assert selected(torch.full((1, 1, BLOCKS), math.nan), ints(length)).tolist() == [[blocks]]
    assert accesses(torch.zeros(1, 1, 0), ints(length)) == []


def test_a_block_that_is_not_full_is_a_block() -> None:
    row = torch.tensor([4.0, 3.0, 2.0, 9.0, 8.0, 7.0]).view(1, 1, BLOCKS)
    assert selected(row, ints(12)).tolist() == [[[0, 1, 2]]]
    assert selected(row, ints(13)).tolist() == [[[0, 1, 3]]]


def test_scores_behind_a_rows_last_block_are_not_selected() -> None:
    row = torch.tensor([1.0, 2.0, 3.0, 4.0, 100.0, math.nan]).view(1, 1, BLOCKS)
    assert selected(row, ints(16)).tolist() == [[[1, 2, 3]]]


def test_blocks_behind_the_columns_of_scores_are_not_looked_at() -> None:
    given = scores(1, 1)
    assert selected(given, ints(1000))[0, 0].tolist() == best(given[0, 0], BLOCKS)
    assert accesses(given, ints(1000)) == []


def test_of_equal_scores_the_lower_block_is_taken() -> None:
    row = torch.tensor([1.0, 5.0, 1.0, 1.0, 5.0, 1.0]).view(1, 1, BLOCKS)
    assert selected(row, ints(24)).tolist() == [[[0, 1, 4]]]


def test_a_score_that_is_not_a_number_is_the_worst() -> None:
    row = torch.tensor([math.nan, 5.0, math.nan, -9.0, -8.0, math.nan]).view(1, 1, BLOCKS)
    assert selected(row, ints(24)).tolist() == [[[1, 3, 4]]]


def test_no_rows_are_no_launch() -> None:
    assert selected(torch.zeros(2, 0, BLOCKS), ints()).shape == (2, 0, TOPK)


def blocks_for(topk: int) -> dict[str, Any]:
    return {"topk_idx": torch.zeros(1, 2, topk).int(), "topk": topk}


def test_as_many_blocks_as_the_kernel_has_room_for_are_selected() -> None:
    found = selected(torch.zeros(1, 2, 80), ints(80 * BLOCK, BLOCK), **blocks_for(64))
    assert found[0].tolist() == [list(range(64)), [0, *[-1] * 63]]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"score": torch.zeros(1, 2, BLOCKS).double()}, "score must be float32"),
        ({"score": torch.zeros(1, BLOCKS, 2).mT}, "score must be contiguous"),
        ({"seq_lens": torch.zeros(2)}, "seq_lens must be int32 or int64"),
        ({"seq_lens": ints(3)}, r"seq_lens must be \[2\]"),
        ({"seq_lens": ints(3, 3, 3, 3)[::2]}, "seq_lens must be contiguous"),
        ({"topk_idx": torch.zeros(1, 2, TOPK)}, "topk_idx must be int32"),
        ({"topk_idx": torch.zeros(1, 3, TOPK).int()}, r"topk_idx must be \[1, 2, 3\]"),
        ({"topk": 2}, r"topk_idx must be \[1, 2, 2\]"),
        ({"topk_idx": torch.zeros(1, TOPK, 2).int().mT}, "topk_idx must be contiguous"),
        ({"block_size": 0}, "block_size must be > 0"),
        (blocks_for(0), r"topk must be in \[1, 64\]; got 0"),
        (blocks_for(65), r"topk must be in \[1, 64\]; got 65"),
    ],
)
def test_a_selection_refuses(changed: dict[str, Any], rule: str) -> None:
    given = {"score": scores(1, 2), "seq_lens": ints(24, 24), **changed}
    with pytest.raises(KernelRefused, match=rule):
        selected(**given)


def test_a_replay_selects_by_the_present_scores_and_lengths() -> None:
    given, lens = scores(1, 2), ints(24, 24)
    graph = Recorder(GuardedMemory()).capture(lambda: selected(given, lens), key="decode/2")
    given.copy_(given.flip(2))
    lens.copy_(ints(20, 8))
    graph.replay()
    assert graph.outputs[0].tolist() == [best(given[0, 0], 5), [0, 1, -1]]
