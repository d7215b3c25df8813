"""An indexer of groups: what its kernels make of tokens and groups, against loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.block_indexer import (
    compress_group_keys,
    group_scores,
    prepare_group_queries,
    select_groups,
)

WIDTH, ROTATED, HEADS, EPS = 64, 16, 2, 1e-6
HALF = ROTATED // 2


def table(positions: int) -> torch.Tensor:
    turns = torch.arange(positions)[:, None] / (2.0 ** torch.arange(HALF))
    return torch.cat((turns.cos(), turns.sin()), 1)


def normed(row: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    row = row.double()
    return (row * (row.square().mean() + EPS) ** -0.5 * (1 + weight.double())).bfloat16()


def turned(row: torch.Tensor, position: int) -> torch.Tensor:
    cos, sin = table(64)[position].bfloat16().double().split(HALF)
    found, row = row.clone(), row.double()
    for pair in range(HALF):
        one, other = row[pair], row[HALF + pair]
        first, second = (one * cos[pair]).bfloat16(), (other * sin[pair]).bfloat16()
        found[pair] = (first.double() - second.double()).bfloat16()
        first, second = (other * cos[pair]).bfloat16(), (one * sin[pair]).bfloat16()
        found[HALF + pair] = (first.double() + second.double()).bfloat16()
    return found


def query_call(**changed: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    rows = 3
    return {
        "qk": torch.randn(rows, (HEADS + 1) * WIDTH).bfloat16(),
        "q_out": torch.full((rows, 8, WIDTH), torch.nan).bfloat16(),
        "weight": torch.randn(WIDTH).bfloat16(),
        "cos_sin_cache": table(64),
        "axis_map": torch.zeros(HALF, dtype=torch.int32),
        "positions": torch.tensor([[5, 0, 33]]),
        "num_axes": 1,
        "cache_loc": torch.tensor([4, 9, 2]),
        "key_state_buffer": torch.zeros(12, WIDTH).bfloat16(),
        "rope_position_buffer": torch.zeros(12, 3, dtype=torch.int64),
        "num_q_heads": HEADS,
        "rotary_dim": ROTATED,
        "eps": EPS,
        **changed,
    }


def key_call(**changed: Any) -> dict[str, Any]:
    torch.manual_seed(4)
    return {
        "key_state_buffer": torch.randn(12, WIDTH).bfloat16(),
        "group_locs": torch.tensor([[4, 5, 6, 7], [9, 8, 11, 10]], dtype=torch.int32),
        "rope_position_buffer": torch.arange(36).view(12, 3),
        "cos_sin_cache": table(64),
        "axis_map": torch.zeros(HALF, dtype=torch.int32),
        "weight": torch.randn(WIDTH).bfloat16(),
        "write_locs": torch.tensor([6, 0], dtype=torch.int32),
        "compressed_k_buffer": torch.zeros(8, WIDTH).bfloat16(),
        "compress_ratio": 4,
        "rotary_dim": ROTATED,
        "eps": EPS,
        **changed,
    }


def test_queries_are_normed_and_turned_by_their_positions_and_further_heads_are_zero() -> None:
    call = query_call()
    prepare_group_queries(**call)
    for row, position in enumerate((5, 0, 33)):
        for head in range(HEADS):
            given = call["qk"][row, head * WIDTH : (head + 1) * WIDTH]
            want = turned(normed(given, call["weight"]), position)
            assert torch.equal(call["q_out"][row, head], want)
    assert (call["q_out"][:, HEADS:] == 0).all()


def test_a_tokens_key_and_position_are_kept_for_its_group() -> None:
    call = query_call()
    prepare_group_queries(**call)
    assert torch.equal(call["key_state_buffer"][[4, 9, 2]], call["qk"][:, HEADS * WIDTH :])
    assert call["rope_position_buffer"][[4, 9, 2]].tolist() == [[5] * 3, [0] * 3, [33] * 3]
    assert not call["rope_position_buffer"][[0, 1, 3]].any()


def test_each_pair_is_turned_by_the_coordinate_that_is_named_for_it() -> None:
    axes = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1], dtype=torch.int32)
    positions = torch.tensor([[5, 1, 2], [0, 7, 3], [33, 4, 6]])
    call = query_call(axis_map=axes, positions=positions, num_axes=3)
    prepare_group_queries(**call)
    row = normed(call["qk"][0, :WIDTH], call["weight"])
    for pair, axis in enumerate(axes.tolist()):
        want = turned(row, int(positions[axis, 0]))
        assert call["q_out"][0, 0, pair] == want[pair]
        assert call["q_out"][0, 0, HALF + pair] == want[HALF + pair]


def test_a_groups_key_is_the_mean_of_its_tokens_turned_by_the_first_ones_position() -> None:
    call = key_call()
    compress_group_keys(**call)
    for group, (slot, position) in enumerate(((6, 12), (0, 27))):
        members = call["group_locs"][group].long()
        mean = call["key_state_buffer"][members].double().mean(0).bfloat16()
        want = turned(normed(mean, call["weight"]), position)
        assert torch.equal(call["compressed_k_buffer"][slot], want)
    assert not call["compressed_k_buffer"][[1, 2, 3, 4, 5, 7]].any()


def test_rows_of_few_groups_are_not_read_and_the_best_of_others_are_selected() -> None:
    scores = torch.tensor([[torch.nan] * 5, [0.0, 4, 1, 3, torch.inf]])
    chosen = torch.full((2, 3), 9, dtype=torch.int32)
    starts, lengths = torch.zeros(2, dtype=torch.int32), torch.tensor([2, 4], dtype=torch.int32)
    select_groups(scores, starts, chosen, lengths)
    assert chosen.tolist() == [[0, 1, -1], [1, 2, 3]]


def test_scores_are_sums_of_products_above_zero_and_what_lies_behind_is_left() -> None:
    torch.manual_seed(5)
    queries, cache = torch.randn(2, 1, 8, WIDTH).bfloat16(), torch.randn(4, 8, 1, WIDTH).bfloat16()
    pages = torch.tensor([[2, 0], [3, 1]], dtype=torch.int32)
    lengths = torch.tensor([3, 11], dtype=torch.int32)
    logits = torch.full((2, 16), torch.nan)
    group_scores(queries, cache, pages, lengths, logits, 8.0, min_scored_len=3)
    assert logits[0].isnan().all()
    assert logits[1, 11:].isnan().all()
    keys = cache[pages[1].long()].reshape(16, WIDTH)[:11].double()
    want = (keys @ queries[1, 0].double().T).clamp_min(0).sum(1) / 8
    torch.testing.assert_close(logits[1, :11].double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"num_axes": 2}, "positions must have 1 or 3 axes"),
        ({"cache_loc": torch.zeros(3, dtype=torch.int32)}, "cache_loc must be int64"),
        ({"rotary_dim": 15}, "rotary_dim must be even"),
        ({"q_out": torch.zeros(3, 1, WIDTH).bfloat16()}, "q_out must hold all heads"),
        ({"qk": torch.zeros(3, 2 * WIDTH).bfloat16()}, "qk must be"),
    ],
)
def test_queries_that_the_kernel_does_not_take_are_refused(
    changed: dict[str, Any], rule: str
) -> None:
    with pytest.raises(KernelRefused, match=rule):
        prepare_group_queries(**query_call(**changed))


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"compress_ratio": 17}, "compress_ratio must lie in 1 to 16"),
        ({"group_locs": torch.zeros(2, 4, dtype=torch.int64)}, "group_locs must be int32"),
        ({"write_locs": torch.zeros(0, dtype=torch.int32)}, "there must be groups"),
    ],
)
def test_groups_that_the_kernel_does_not_take_are_refused(
    changed: dict[str, Any], rule: str
) -> None:
    with pytest.raises(KernelRefused, match=rule):
        compress_group_keys(**key_call(**changed))
