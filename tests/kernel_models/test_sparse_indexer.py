"""The models of the kernels that select keys, against sorting by hand and their own rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.sparse_indexer import (
    fast_topk_transform_fused,
    fast_topk_transform_ragged_fused,
    fast_topk_v2,
)
from fuzzgraph.memory import GuardedMemory

TOPK = 3


def _scores(rows: int, keys: int = 9) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.stack([torch.randperm(keys).float() for _ in range(rows)])


def _best(score: torch.Tensor, start: int, length: int) -> list[int]:
    """Places of the best keys by repeated search for the largest."""
    left = {place: float(score[start + place]) for place in range(length)}
    found: list[int] = []
    while left and len(found) < TOPK:
        best = max(left, key=lambda place: left[place])
        found.append(best)
        del left[best]
    return sorted(found) + [-1] * (TOPK - len(found))


def _table(rows: int, width: int = 9) -> torch.Tensor:
    return (torch.arange(rows * width).view(rows, width) * 7 + 100).int()


def test_each_row_gives_the_places_of_its_largest_scores() -> None:
    score, lengths = _scores(4), torch.tensor([9, 4, 3, 0]).int()
    got = fast_topk_v2(score, lengths, TOPK)
    assert got.tolist() == [_best(score[row], 0, int(lengths[row])) for row in range(4)]


def test_places_count_from_where_a_row_starts() -> None:
    score, starts = _scores(2), torch.tensor([2, 5]).int()
    got = fast_topk_v2(score, torch.tensor([6, 2]).int(), TOPK, row_starts=starts)
    assert got.tolist() == [_best(score[0], 2, 6), _best(score[1], 5, 2)]


def test_one_query_of_each_row_gives_slots_of_its_own_row() -> None:
    score, lengths, table = _scores(3), torch.tensor([9, 2, 5]).int(), _table(3)
    got = fast_topk_transform_fused(score, lengths, table, torch.arange(4).int(), TOPK)
    for row in range(3):
        places = _best(score[row], 0, int(lengths[row]))
        assert got[row].tolist() == [-1 if at < 0 else int(table[row, at]) for at in places]


def test_queries_find_their_row_by_the_offsets() -> None:
    score, lengths, table = _scores(4), torch.tensor([5, 6, 7, 9]).int(), _table(2)
    offsets = torch.tensor([0, 3, 4]).int()
    got = fast_topk_transform_fused(score, lengths, table, offsets, TOPK)
    for query, row in enumerate([0, 0, 0, 1]):
        places = _best(score[query], 0, int(lengths[query]))
        assert got[query].tolist() == [int(table[row, at]) for at in places]


def test_ragged_places_carry_their_rows_offset() -> None:
    score = _scores(2)
    got = fast_topk_transform_ragged_fused(
        score, torch.tensor([9, 1]).int(), torch.tensor([10, 20]).int(), TOPK
    )
    assert got.tolist() == [[10 + at for at in _best(score[0], 0, 9)], [20, -1, -1]]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"score": _scores(2).double()}, "score must be float32"),
        ({"lengths": torch.tensor([3, 3])}, "lengths must be int32; got int64"),
        ({"lengths": torch.tensor([3]).int()}, "lengths must hold 2 numbers"),
        ({"page_table_size_1": _table(3)}, "page_table_size_1 must have 2 rows"),
        ({"page_table_size_1": _table(2).long()}, "page_table_size_1 must be int32"),
        ({"page_table_size_1": _table(9, 2).T}, "contiguous in its last dimension"),
        ({"cu_seqlens_q": torch.arange(4).int(), "page_table_size_1": _table(3)}, "each of 3 rows"),
    ],
)
def test_the_fused_selection_refuses(changes: dict[str, Any], rule: str) -> None:
    call: dict[str, Any] = dict(
        score=_scores(2), lengths=torch.tensor([3, 3]).int(), page_table_size_1=_table(2),
        cu_seqlens_q=torch.arange(3).int(), topk=TOPK,
    )  # fmt: skip
    with pytest.raises(KernelRefused, match=rule):
        fast_topk_transform_fused(**call | changes)


def test_a_length_beyond_the_page_table_is_followed_and_recorded() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        table = _table(1, 4)
        fast_topk_transform_fused(
            _scores(1), torch.tensor([9]).int(), table, torch.arange(2).int(), 9
        )
    found = memory.lanes.report.take_accesses()
    assert {access.buffer for access in found} == {"page_table_size_1"}


def test_a_replay_selects_by_the_present_lengths() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    score = _scores(1)
    with memory.intercept("engine"):
        lengths = torch.tensor([9]).int()
    graph = graphs.capture(lambda: fast_topk_v2(score, lengths, TOPK), key="decode/1")
    lengths.fill_(4)
    with memory.over_lanes():
        graph.replay()
    assert graph.outputs.tolist() == [_best(score[0], 0, 4)]
