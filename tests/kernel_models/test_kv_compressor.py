"""The models of DeepSeek V4's compressor and of its selection, against loops in plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.fp8 import pages_of_rows
from fuzzgraph.kernel_models.kv_compressor import compress_decode, plan_compress_decode
from fuzzgraph.kernel_models.page_store import store_compressed, store_index_keys, store_rows
from fuzzgraph.kernel_models.paged_topk import topk_transform_paged

WIDTH = 3


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def planned(ratio: int, **changed: Any) -> list[list[int]]:
    """Plans of rows with 9 and 4 tokens, whose slots start at 256 and 512."""
    table = torch.zeros(3, 16, dtype=torch.int32)
    table[1], table[2] = torch.arange(16) + 256, torch.arange(16) + 512
    given: dict[str, Any] = {
        "req_pool_indices": longs(1, 2),
        "req_to_token": table,
        "full_to_state": torch.arange(1024) + 128,
        "seq_lens": longs(9, 4),
        "compress_ratio": ratio,
        "swa_page_size": 128,
        "ring_size": 8 if ratio == 4 else 128,
        **changed,
    }
    plan: list[list[int]] = plan_compress_decode(**given).view(torch.int32).tolist()
    return plan


def test_states_of_groups_of_4_lie_in_rings_of_the_windows_pages() -> None:
    # slot 264 is window slot 392: page 3, place 0 of its ring; the group before began at 260
    assert planned(4) == [[9, 24, 28 // 4, 24 // 4], [4, 5 * 8 + 3, 40 // 4, 43 // 4]]


def test_states_of_groups_of_128_lie_in_rings_of_their_requests() -> None:
    assert planned(128) == [[9, 128 + 8, 1, 1], [4, 256 + 3, 2, 2]]


def test_states_of_groups_of_128_lay_in_rings_of_pages_before() -> None:
    assert planned(128, rings_of_requests=False)[0] == [9, 392, 3, 3]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"req_pool_indices": longs(1, 2).int()}, "req_pool_indices must be int64"),
        ({"seq_lens": longs(9, 4).int()}, "seq_lens must be int64"),
        ({"req_pool_indices": longs(1)}, r"req_pool_indices must be \[2\]"),
        ({"use_req_ring": True, "compress_ratio": 128}, "use_req_ring needs groups of 4"),
    ],
)
def test_a_plan_of_other_arguments_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        planned(**{"ratio": changed.pop("compress_ratio", 4), **changed})


STORE: dict[str, Any] = {
    "page_size": 2,
    "width": WIDTH,
    "dtype": torch.float32,
    "slot_dtype": torch.int64,
}
"""What the kernel that stores keys is compiled for."""


def plan_of(*rows: tuple[int, int, int, int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32).view(torch.uint8)


def built(ratio: int) -> dict[str, Any]:
    """What the kernel of the sums is compiled for."""
    return {"ratio": ratio, "width": WIDTH, "dtypes": (torch.float32,) * 3}


def weighted(states: list[tuple[float, float]]) -> float:
    total = sum(math.exp(score) for _, score in states)
    return sum(value * math.exp(score) for value, score in states) / total


def test_a_whole_group_of_4_is_summed_with_the_one_before() -> None:
    states, new = torch.randn(4, 4, 4 * WIDTH), torch.randn(2, 4 * WIDTH)
    ape, out = torch.randn(8, WIDTH), torch.zeros(2, WIDTH)
    kept = states.clone()
    # row 0 completes its second group, whose last state goes to page 1; row 1 none
    compress_decode(states, new, out, ape, plan_of((8, 7, 0, 1), (6, 9, 2, 2)), **built(4))
    kept[1, 3], kept[2, 1] = new
    assert torch.equal(states, kept)
    for column in range(WIDTH):
        earlier = [(kept[0, at, column], kept[0, at, 2 * WIDTH + column]) for at in range(4)]
        own = [(kept[1, at, WIDTH + column], kept[1, at, 3 * WIDTH + column]) for at in range(4)]
        pairs = [(float(v), float(s + ape[at, column])) for at, (v, s) in enumerate(earlier + own)]
        assert float(out[0, column]) == pytest.approx(weighted(pairs), rel=1e-5)
    assert not out[1].any()


def test_the_first_group_of_4_has_none_before_it() -> None:
    states, new, ape = (
        torch.randn(2, 4, 4 * WIDTH),
        torch.randn(1, 4 * WIDTH),
        torch.zeros(8, WIDTH),
    )
    out = torch.zeros(1, WIDTH)
    compress_decode(states, new, out, ape, plan_of((4, 7, 0, 1)), **built(4))
    pairs = [(float(states[1, at, WIDTH]), float(states[1, at, 3 * WIDTH])) for at in range(4)]
    assert float(out[0, 0]) == pytest.approx(weighted(pairs), rel=1e-5)


def test_a_group_of_128_is_summed_by_itself() -> None:
    states, new = torch.randn(2, 128, 2 * WIDTH), torch.randn(1, 2 * WIDTH)
    out, ape = torch.zeros(1, WIDTH), torch.randn(128, WIDTH)
    compress_decode(states, new, out, ape, plan_of((256, 255, 1, 1)), **built(128))
    assert torch.equal(states[1, 127], new[0])
    pairs = [
        (float(states[1, at, 0]), float(states[1, at, WIDTH] + ape[at, 0])) for at in range(128)
    ]
    assert float(out[0, 0]) == pytest.approx(weighted(pairs), rel=1e-5)


def test_only_whole_groups_are_stored_each_at_its_slot() -> None:
    kv, positions = torch.randn(3, WIDTH), torch.randn(16, WIDTH)
    cache = torch.zeros(4, 2 * WIDTH)
    plan = plan_of((8, 0, 0, 0), (7, 0, 0, 0), (4, 0, 0, 0))
    norm = torch.ones(WIDTH), 0.0
    to = longs(3, 2, 6), cache.view(torch.uint8)
    store_compressed(kv, plan, *norm, positions, *to, True, 4, **STORE)
    want = torch.zeros(8, WIDTH)
    want[3], want[6] = kv[0] + positions[4], kv[2] + positions[0]
    torch.testing.assert_close(cache.view(8, WIDTH), want)


def test_rows_are_stored_at_their_slots() -> None:
    cache, rows = torch.zeros(2, 4 * WIDTH), torch.randn(2, WIDTH)
    store_rows(rows, cache, longs(5, 0), page_size=4, type="flashmla", layout="v4")
    assert torch.equal(cache.view(8, WIDTH)[[5, 0]], rows)
    assert cache.count_nonzero() == rows.numel()


def test_another_cache_than_the_models_is_named() -> None:
    with pytest.raises(KernelNotModelled, match="type='indexer'"):
        store_rows(torch.zeros(1, 4), torch.zeros(1, 4), longs(0), page_size=1, type="indexer")


def selected(scores: torch.Tensor, lens: list[int], table: list[list[int]], count: int) -> Any:
    slots = torch.full((len(lens), count), 99, dtype=torch.int32)
    topk_transform_paged(
        scores,
        torch.tensor(lens).int(),
        torch.tensor(table).int(),
        slots,
        4,
        places := slots.clone(),
    )
    return slots.tolist(), places.tolist()


def test_a_row_with_few_keys_takes_all_of_them_without_a_look_at_scores() -> None:
    slots, places = selected(torch.full((2, 8), math.nan), [3, 0], [[7, 2], [1, 1]], 4)
    assert slots == [[28, 29, 30, -1], [-1] * 4]
    assert places == [[0, 1, 2, -1], [-1] * 4]


def test_a_row_with_many_keys_takes_the_best() -> None:
    scores = torch.tensor([[0.0, 5.0, 1.0, 2.0, 4.0, 9.0]])
    slots, places = selected(scores, [5], [[3, 8]], 2)
    assert (slots, places) == ([[13, 32]], [[1, 4]])


def test_a_page_of_a_size_that_bits_cannot_count_is_refused() -> None:
    with pytest.raises(KernelRefused, match="power of two"):
        topk_transform_paged(
            torch.zeros(1, 4), torch.ones(1).int(), torch.zeros(1, 1).int(),
            torch.zeros(1, 4).int(), 3,
        )  # fmt: skip


@pytest.mark.parametrize("compiled", [torch.int32, torch.int64])
def test_slots_are_of_the_dtype_that_the_kernel_is_compiled_for(compiled: torch.dtype) -> None:
    other = torch.int64 if compiled is torch.int32 else torch.int32
    given = (torch.zeros(1, 4), torch.zeros(1, 16, dtype=torch.uint8), torch.ones(4), 1e-6)
    with pytest.raises(KernelRefused, match="out_loc must be int"):
        store_compressed(
            *given, torch.zeros(8, 4), torch.zeros(1, dtype=other),
            torch.zeros(1, 64, dtype=torch.uint8), True, 4, **STORE | {"slot_dtype": compiled},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("built_for", "rule"),
    [
        ({"ratio": 128}, "kv_score_input must be"),
        ({"width": 2 * WIDTH}, "kv_score_input must be"),
        (
            {"dtypes": (torch.bfloat16, torch.float32, torch.float32)},
            "buffer must be bfloat16",
        ),
        ({"dtypes": (torch.float32, torch.float32, torch.float16)}, "out must be float16"),
    ],
)
def test_sums_of_another_kind_than_the_kernel_is_compiled_for_are_refused(
    built_for: dict[str, Any], rule: str
) -> None:
    given = torch.zeros(2, 4, 4 * WIDTH), torch.zeros(1, 4 * WIDTH), torch.zeros(1, WIDTH)
    with pytest.raises(KernelRefused, match=rule):
        compress_decode(
            *given, torch.zeros(8, WIDTH), plan_of((4, 3, 0, 0)), **built(4) | built_for
        )


def test_a_key_of_the_indexer_is_placed_and_quantised() -> None:
    kv, table = torch.randn(2, 128), torch.randn(16, 64)
    cache = torch.zeros(3, 2 * 132, dtype=torch.uint8)
    stored: dict[str, Any] = {
        "kv": kv,
        "plan": plan_of((8, 0, 0, 0), (6, 0, 0, 0)),
        "norm_weight": torch.ones(128),
        "norm_eps": 0.0,
        "freq_cis": table,
        "out_loc": longs(3, 4),
        "kvcache": cache,
        "is_decode": True,
        "compress_ratio": 4,
        **STORE,
        "width": 128,
    }
    store_compressed(**stored)
    rows, scales = pages_of_rows(cache, 2)
    want = kv[0].clone()
    want[64:] += table[4]
    got = rows[1, 1].view(torch.float8_e4m3fn).float() * scales[1, 1]
    torch.testing.assert_close(got, want, rtol=1 / 16, atol=1e-2)
    assert not scales[2].any()  # the other row completes no group
    with pytest.raises(KernelRefused, match=r"the strides \[264, 1\]"):
        store_compressed(**stored | {"kvcache": cache[:, :-4].contiguous()})


def stored_keys(keys: torch.Tensor, slots: torch.Tensor, **changed: Any) -> torch.Tensor:
    cache = torch.zeros(3, 4 * 132, dtype=torch.uint8)
    given: dict[str, Any] = {
        "input": keys,
        "cache": cache,
        "indices": slots,
        "page_size": 4,
        "dtype": torch.bfloat16,
        "slot_dtype": torch.int64,
        **changed,
    }
    store_index_keys(**given)
    return cache


def test_keys_of_an_indexer_are_quantised_where_they_are_stored() -> None:
    keys = torch.zeros(2, 128, dtype=torch.bfloat16)
    keys[0, 3], keys[1, 127] = 7.0, -448.0
    rows, scales = pages_of_rows(stored_keys(keys, longs(9, 2)), 4)
    assert rows[2, 1].view(torch.float8_e4m3fn).float().tolist() == [0] * 3 + [448] + [0] * 124
    assert scales[2, 1] == 7 / 448
    assert rows[0, 2].view(torch.float8_e4m3fn).float()[-1] == -448
    assert scales.sum() == 1 + 7 / 448


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"dtype": torch.float16}, "input"),
        ({"slot_dtype": torch.int32}, "indices"),
        ({"indices": longs(1)}, "indices"),
        ({"page_size": 8}, "cache must have the strides"),
        ({"page_size": 3}, "power of two"),
    ],
)
def test_keys_of_an_indexer_that_the_kernel_was_not_compiled_for_are_refused(
    changed: dict[str, Any], rule: str
) -> None:
    with pytest.raises(KernelRefused, match=rule):
        stored_keys(torch.zeros(2, 128, dtype=torch.bfloat16), longs(1, 2), **changed)
