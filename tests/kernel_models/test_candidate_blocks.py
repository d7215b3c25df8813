"""The models of what candidates are made of, against loops and by their own rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fuzzgraph import fp4_index
from fuzzgraph.errors import KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.candidate_blocks import (
    fp8_fp4_paged_sparse_mqa_logits,
    get_paged_sparse_mqa_logits_metadata,
    maxima_of_blocks,
    select_among_blocks,
    sort_blocks,
)
from fuzzgraph.kernel_models.mxfp4 import fp4_pages, packed
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.world import VOCAB

BLOCK, PAGE, UNTOUCHED = 8, 64, 99
NONE = 2**31 - 1


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values).int()


def test_each_block_has_its_greatest_score_and_the_last_one_is_always_best() -> None:
    torch.manual_seed(1)
    scores, lens = torch.randn(3, 32), ints(17, 8, 0)
    found = torch.full((3, 4), float(UNTOUCHED))
    maxima_of_blocks(scores, lens, found, 0, dtypes=(torch.float32, torch.float32))
    first = [float(scores[0, start : start + BLOCK].max()) for start in (0, 8)]
    assert found[0].tolist() == pytest.approx([*first, math.inf, UNTOUCHED])
    assert found[1].tolist() == [math.inf, *[UNTOUCHED] * 3]
    assert found[2].tolist() == [UNTOUCHED] * 4


def test_rows_with_no_more_blocks_than_are_kept_have_no_maxima() -> None:
    found = torch.full((2, 4), float(UNTOUCHED))
    types = torch.float32, torch.float32
    maxima_of_blocks(torch.zeros(2, 32), ints(16, 17), found, 2, dtypes=types)
    assert found.tolist() == [[UNTOUCHED] * 4, [0, 0, math.inf, UNTOUCHED]]


def test_rows_of_scores_begin_with_a_block() -> None:
    scores, types = torch.zeros(2, 12), (torch.float32, torch.float32)
    with pytest.raises(KernelRefused, match="rows of scores must begin with a block"):
        maxima_of_blocks(scores, ints(4, 4), torch.zeros(2, 2), 0, dtypes=types)


def test_blocks_come_in_order_and_where_they_lie_in_the_pool() -> None:
    blocks = torch.tensor([[20, 3, -1, 9], [7, 7, 7, 7]]).int()
    tables = torch.tensor([[5, 6, 2], [4, UNTOUCHED, UNTOUCHED]]).int()
    pages = torch.empty_like(blocks)
    sort_blocks(blocks, ints(21 * BLOCK, 3 * BLOCK - 2), tables, pages, PAGE)
    assert blocks.tolist() == [[3, 9, 20, NONE], [0, 1, 2, NONE]]
    assert pages.tolist() == [[5 * 8 + 3, 6 * 8 + 1, 2 * 8 + 4, NONE], [32, 33, 34, NONE]]


@pytest.mark.parametrize(("size", "blocks"), [(12, 4), (4, 4), (64, 2049)])
def test_sizes_that_no_kernel_sorts_are_refused(size: int, blocks: int) -> None:
    indices = torch.zeros(1, blocks, dtype=torch.int32)
    with pytest.raises(KernelRefused, match="must be"):
        sort_blocks(indices, ints(8), torch.zeros(1, 1).int(), indices.clone(), size)


def cached(tokens: np.ndarray, pages: int) -> torch.Tensor:
    """[pages, PAGE, 1, 68] keys of tokens at the positions that follow from their slots."""
    places = np.arange(pages * PAGE)
    keys = np.hstack((fp4_index.key_tokens()[tokens], fp4_index.key_places(places)))
    cache = torch.zeros(pages, PAGE * 68, dtype=torch.uint8)
    rows, scales = fp4_pages(cache, PAGE)
    numbers, exponents = (torch.from_numpy(each) for each in packed(keys))
    rows.copy_(numbers.view(pages, PAGE, -1))
    scales.copy_(exponents.view(pages, PAGE, -1))
    return cache.view(pages, PAGE, 1, 68)


def queried(tokens: np.ndarray, positions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    numbers, exponents = packed(fp4_index.candidate_heads(tokens, positions))
    words = torch.from_numpy(np.ascontiguousarray(exponents).view(np.int32)[..., 0])
    return torch.from_numpy(numbers.view(np.int8))[:, None], words[:, None]


def test_the_keys_of_a_rows_blocks_have_the_scores_of_the_layer_in_bfloat16() -> None:
    pages, lens = 3, ints(90, 12)
    stored = np.arange(pages * PAGE) * 7 % VOCAB
    tables = torch.tensor([[2, 0], [1, 0]]).int()
    blocks = torch.tensor([[0, 8, 11], [0, 1, NONE]]).int()
    tokens, positions = np.array([3, 9]), np.array([89, 11])
    schedule = get_paged_sparse_mqa_logits_metadata(
        lens, tables, ints(0, 1), PAGE, blocks, torch.int8, BLOCK
    )
    weights = torch.from_numpy(fp4_index.candidate_weights()).to(torch.bfloat16).repeat(2, 1)
    found = fp8_fp4_paged_sparse_mqa_logits(
        queried(tokens, positions), cached(stored, pages), weights, schedule, 3, BLOCK
    )
    assert found.dtype == torch.bfloat16
    for row, own in ((0, (0, 8, 11)), (1, (0, 1))):
        keys = np.concatenate([np.arange(BLOCK) + BLOCK * each for each in own])
        slots = tables[row, keys // PAGE].numpy() * PAGE + keys % PAGE
        asked = tokens[row : row + 1], positions[row : row + 1]
        want = fp4_index.candidate_scores(*asked, stored[slots][None], slots[None])[0]
        assert found[row, : len(keys)].double().tolist() == want.tolist()


def test_rows_of_one_request_share_their_pages() -> None:
    memory = GuardedMemory()
    call = ints(70, 70), torch.tensor([[1, 2], [1, 3]]).int(), ints(4, 4), PAGE
    blocks = torch.tensor([[0, 8], [0, 8]]).int()
    with memory.intercept("engine"):
        get_paged_sparse_mqa_logits_metadata(*call, blocks, torch.int8, BLOCK)
    (misuse,) = memory.lanes.report.take_misuses()
    assert (misuse.argument, misuse.got) == ("request_ids", "4 in row 1")


def test_the_best_scores_are_written_as_slots_of_their_blocks() -> None:
    scores = torch.tensor([[1, 5, 2, 9, 0, 3, 4, 8, 7, 6, 77, 77, 77, 77, 77, 77]])
    out = torch.full((1, 4), UNTOUCHED).int()
    pages = torch.tensor([[40, 11]]).int()
    select_among_blocks(scores.to(torch.bfloat16), ints(10), pages, out, BLOCK)
    assert sorted(out[0].tolist()) == [88, 89, 40 * 8 + 3, 40 * 8 + 7]


def test_a_row_with_fewer_scores_than_columns_ends_with_none() -> None:
    out = torch.full((1, 4), UNTOUCHED).int()
    scores = torch.zeros(1, 16, dtype=torch.bfloat16)
    select_among_blocks(scores, ints(2), torch.tensor([[40, 11]]).int(), out, BLOCK)
    assert out.tolist() == [[320, 321, -1, -1]]


def test_a_recorded_selection_is_run_again_by_a_replay() -> None:
    scores = torch.arange(16).to(torch.bfloat16)[None].clone()
    out, pages, lens = torch.zeros(1, 2).int(), torch.tensor([[1, 2]]).int(), ints(16)
    recorder = Recorder(GuardedMemory())
    graph = recorder.capture(
        lambda: select_among_blocks(scores, lens, pages, out, BLOCK), key="select"
    )
    scores.copy_(scores.flip(1))
    graph.replay()
    assert sorted(out[0].tolist()) == [8, 9]
