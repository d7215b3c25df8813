"""The models of DeepSeek V4.1's compressors and of what packs its indexer's keys and queries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.fp4_indexer import pack_index_keys, pack_index_queries
from fuzzgraph.kernel_models.low_ratio_compressor import compress_pairs, compress_tokens
from fuzzgraph.kernel_models.mxfp4 import fp4_numbers, fp4_pages, packed

WIDTH, ROTATIONS = 2, 100.0
"""The table's row of a position holds that many times it in each column."""


def table(columns: int = WIDTH) -> torch.Tensor:
    return (torch.arange(16).float() * ROTATIONS)[:, None].expand(-1, columns).contiguous()


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def tokens_compressed(**changed: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(keys before their rotation, the cache) of tokens at 3 and 4 and of a padded row."""
    given: dict[str, Any] = {
        "kv_input": torch.arange(6.0).view(3, 2).bfloat16(),
        "kv_output": torch.full((3, 2), -1.0).bfloat16(),
        "norm_weight": torch.ones(2).bfloat16(),
        "freqs_cis": table(),
        "positions": longs(3, 4, 0),
        "out_loc": longs(5, 2, 0),
        "kvcache": torch.zeros(2, 8),
        "eps": 1e-6,
        **changed,
    }
    compress_tokens(**given, width=WIDTH, page_size=4)
    return given["kv_output"], given["kvcache"]


def test_a_key_of_each_token_lies_in_its_slot_and_padding_writes_none() -> None:
    latent, cache = tokens_compressed()
    assert latent.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert cache.view(8, 2)[[5, 2]].tolist() == [[300, 301], [402, 403]]
    assert not cache.view(8, 2)[[0, 1, 3, 4, 6, 7]].any()


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"kv_input": torch.zeros(3, 2)}, "kv_input must be bfloat16"),
        ({"kv_output": torch.zeros(2, 2).bfloat16()}, r"kv_output must be \[3, 2\]"),
        ({"freqs_cis": table(1)}, "freqs_cis must have 2 columns"),
        ({"out_loc": longs(1, 2)}, r"out_loc must be \[3\]"),
        ({"positions": torch.zeros(3)}, "positions must be int32 or int64"),
    ],
)
def test_keys_of_other_arguments_are_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        tokens_compressed(**changed)


def pairs_compressed(
    *rows: tuple[int, int, int], draft_len: int = 1, ring: int = 4, **changed: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(keys before their rotation, states, cache) of (request, position, slot) rows, whose values
    are 1, 2 and so on. States hold values of -1."""
    states = torch.zeros(4 * ring, 2 * WIDTH)
    states[:, :WIDTH] = -1
    values = torch.arange(1.0, len(rows) + 1)[:, None].expand(-1, WIDTH)
    given: dict[str, Any] = {
        "kv_input": torch.cat((values, torch.zeros_like(values)), 1),
        "kv_state": states,
        "kv_output": torch.full((len(rows), WIDTH), -7.0).bfloat16(),
        "norm_weight": torch.ones(WIDTH).bfloat16(),
        "positions": longs(*(row[1] for row in rows)),
        "req": longs(*(row[0] for row in rows)),
        "raw_out_loc": longs(*(row[2] for row in rows)),
        "eps": 1e-6,
        "freqs_cis": table(),
        "kvcache": torch.zeros(2, 8),
        "ring_size": ring,
        "draft_len": draft_len,
        **changed,
    }
    compress_pairs(**given, width=WIDTH, page_size=4)
    return given["kv_output"], given["kv_state"], given["kvcache"].view(8, 2)


def test_a_first_token_leaves_its_state_and_a_second_one_completes_a_key() -> None:
    latent, states, cache = pairs_compressed((1, 6, 10), (2, 7, 13), (0, 0, 0))
    assert states[1 * 4 + 2].tolist() == [1, 1, 0, 0]
    assert (states[:, 0] != -1).sum() == 1
    assert latent[1].tolist() == [0.5, 0.5]  # of -1 in the ring and 2
    assert latent[0].tolist() == latent[2].tolist() == [-7, -7]
    assert cache[6].tolist() == [600.5, 600.5]
    assert not cache[[0, 1, 2, 3, 4, 5, 7]].any()


def test_a_draft_finds_the_first_of_its_pair_in_the_row_before_and_the_ring_before_drafts() -> None:
    rows = ((1, 5, 5), (1, 6, 6), (1, 7, 7), (2, 2, 10), (2, 3, 11), (2, 4, 12))
    latent, states, cache = pairs_compressed(*rows, draft_len=3)
    assert latent[:, 0].tolist() == [0, -7, 2.5, -7, 4.5, -7]
    assert [states[4 + 2, 0], states[8 + 2, 0], states[8 + 0, 0]] == [2, 4, 6]
    assert cache[[2, 3, 5], 0].tolist() == [400, 602.5, 204.5]


def test_the_scores_of_a_pair_weigh_its_values() -> None:
    given = torch.tensor([[1.0, 1, math.log(3), -1e4]])
    latent, *_ = pairs_compressed((1, 1, 3), kv_input=given)
    assert latent.tolist() == [[0.5, -1.0]]  # a quarter of -1 and three of 1; all of -1


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"kv_input": torch.zeros(2, 4).bfloat16()}, "kv_input must be float32"),
        ({"kv_state": torch.zeros(8, 2)}, r"kv_state must be \[any, 4\]"),
        ({"req": longs(1, 1).int()}, "req must be int64"),
        ({"draft_len": 4}, "rows must come by 4"),
        ({"ring": 2, "draft_len": 2}, "ring_size must exceed 2"),
    ],
)
def test_pairs_of_other_arguments_are_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        pairs_compressed((1, 1, 1), (1, 2, 2), **changed)


EVERY = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@pytest.mark.parametrize("factor", [1.0, 0.25, 2.0**20])
def test_every_number_of_fp4_times_a_power_of_two_is_packed_as_it_is(factor: float) -> None:
    row = np.tile(np.concatenate((EVERY, -EVERY)), 8)[None] * factor
    numbers, exponents = packed(row)
    assert (numbers.shape, exponents.shape) == ((1, 64), (1, 4))
    assert (fp4_numbers(numbers, exponents) == row).all()


def test_other_numbers_are_rounded_to_the_nearest_and_to_the_even_one_of_two() -> None:
    row = np.zeros((1, 32))
    row[0, :6] = [6, 0.25, 0.75, 2.5, 3.4, 5]
    assert fp4_numbers(*packed(row))[0, :6].tolist() == [6, 0, 1, 2, 3, 4]


def test_the_even_column_lies_in_the_lower_half_of_a_byte() -> None:
    row = np.zeros((1, 32))
    row[0, :2] = [6, -0.5]
    assert packed(row)[0][0, 0] == 7 | 9 << 4


def test_no_rows_are_packed_as_none() -> None:
    numbers, exponents = packed(np.zeros((0, 128)))
    assert (numbers.shape, exponents.shape) == ((0, 64), (0, 4))


def keys_packed(ratio: int = 2, **changed: Any) -> torch.Tensor:
    """The cache behind keys at positions 3 and 5, and of a row that writes none."""
    keys = torch.zeros(3, 128)
    keys[:, 0] = torch.tensor([1.0, 2, 3])
    given: dict[str, Any] = {
        "input": keys.bfloat16(),
        "norm_weight": torch.ones(128).bfloat16(),
        "freqs_cis": torch.nn.functional.one_hot(torch.arange(64)).float(),
        "positions": longs(3, 5, 7),
        "loc": longs(1, 4, -1),
        "cache": torch.zeros(2, 4 * 68, dtype=torch.uint8),
        "eps": 1e-6,
        **changed,
    }
    pack_index_keys(**given, page_size=4, ratio=ratio)
    cache: torch.Tensor = given["cache"]
    return cache


@pytest.mark.parametrize(("ratio", "places"), [(1, (3, 5)), (2, (2, 4))])
def test_a_key_is_packed_with_the_position_of_its_groups_first_token(
    ratio: int, places: tuple[int, int]
) -> None:
    rows, scales = fp4_pages(keys_packed(ratio), 4)
    found = fp4_numbers(rows.flatten(0, 1).numpy(), scales.flatten(0, 1).numpy())
    for slot, first, place in zip((1, 4), (1, 2), places, strict=True):
        assert np.flatnonzero(found[slot]).tolist() == [0, 64 + place]
        assert found[slot, [0, 64 + place]].tolist() == [first, 1]
    assert not found[[0, 2, 3, 5, 6, 7]].any()


def test_queries_are_packed_with_their_positions_and_their_heads_weights() -> None:
    queries = torch.zeros(2, 4, 128)
    queries[:, :, 0] = 6
    payload, scale = torch.empty(8, 64, dtype=torch.int8), torch.empty(8, dtype=torch.int32)
    weights = torch.empty(2, 4)
    pack_index_queries(
        queries.bfloat16(), torch.eye(64), longs(9, 2), payload, scale,
        torch.full((2, 4), 3.0).bfloat16(), weights, 0.5,
    )  # fmt: skip
    exponents = scale.numpy().view(np.uint8).reshape(8, 4)
    found = fp4_numbers(payload.numpy(), exponents).reshape(2, 4, 128)
    assert found[0, 3, [0, 64 + 9]].tolist() == found[1, 0, [0, 64 + 2]].tolist() == [6, 1]
    assert (np.count_nonzero(found, axis=2) == 2).all()
    assert (weights == 1.5).all()


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"loc": longs(1, 2, 3).int()}, "loc must be int64"),
        ({"cache": torch.zeros(2, 64, dtype=torch.uint8)}, r"cache must be \[any, 272\]"),
        ({"input": torch.zeros(3, 128)}, "input must be bfloat16"),
    ],
)
def test_keys_of_an_indexer_of_other_arguments_are_refused(
    changed: dict[str, Any], rule: str
) -> None:
    with pytest.raises(KernelRefused, match=rule):
        keys_packed(**changed)
