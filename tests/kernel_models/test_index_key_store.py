"""A token's keys, values and index key go to its slot, by the rules of the kernel for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.index_key_store import store_with_index_key
from fuzzgraph.kernel_models.launch import ModelKernel, routed, run_kernel
from fuzzgraph.kernel_models.memory import KernelMemory, Stray

SLOTS, HEADS, WIDTH = 6, 2, 4


class _Seen:
    def __init__(self) -> None:
        self.strays: list[Stray] = []

    def misuse(self, argument: str, rule: str, got: str) -> None:
        raise AssertionError(rule)

    def stray(self, found: Stray) -> None:
        self.strays.append(found)


def stored(
    slots: list[int], dtype: torch.dtype = torch.float32, width: int = WIDTH, **changed: Any
) -> tuple[dict[str, Any], _Seen]:
    """(arguments of the call after it, what it did wrong)."""
    tokens, row = len(slots), HEADS * width
    given: dict[str, Any] = {
        "k": torch.randn(tokens, row).to(dtype),
        "v": torch.randn(tokens, row).to(dtype),
        "k_cache": torch.zeros(SLOTS, row, dtype=dtype),
        "v_cache": torch.zeros(SLOTS, row, dtype=dtype),
        "idx_k": torch.randn(tokens, width).to(dtype),
        "idx_k_cache": torch.zeros(SLOTS, width, dtype=dtype),
        "indices": torch.tensor(slots),
        "num_kv_heads": HEADS,
        "heads_per_token": 2 * HEADS + 1,
    } | changed
    given.setdefault("idx_v", given["idx_k"])
    given.setdefault("idx_v_cache", given["idx_k_cache"])
    seen = _Seen()

    def run(kernel: ModelKernel, **arguments: Any) -> None:
        run_kernel(KernelMemory(seen), kernel, **arguments)

    with routed(run):
        store_with_index_key(**given)
    return given, seen


CACHES = (("k", "k_cache"), ("v", "v_cache"), ("idx_k", "idx_k_cache"))


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 8), (torch.float16, 8)]
)
def test_all_three_rows_of_a_token_go_to_its_slot_bit_for_bit(
    dtype: torch.dtype, width: int
) -> None:
    given, seen = stored([5, 1], dtype, width)
    for name, cache in CACHES:
        assert torch.equal(given[cache][[5, 1]], given[name])
        assert not given[cache][[0, 2, 3, 4]].any()
    assert not seen.strays


def test_numbers_by_hand_lie_where_they_belong() -> None:
    given, _ = stored(
        [2],
        k=torch.arange(8.0).view(1, 8),
        v=torch.arange(10.0, 18.0).view(1, 8),
        idx_k=torch.arange(20.0, 24.0).view(1, 4),
        indices=torch.tensor([2], dtype=torch.int32),
    )
    assert given["k_cache"][2].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert given["v_cache"][2].tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert given["idx_k_cache"][2].tolist() == [20, 21, 22, 23]


def test_rows_of_tokens_and_slots_are_found_by_their_strides() -> None:
    joined, pool = torch.randn(2, 5 * WIDTH), torch.zeros(SLOTS, 5 * WIDTH)
    cut = ((0, 8), (8, 16), (16, 20))
    views: dict[str, Any] = {}
    for (name, cache), (start, end) in zip(CACHES, cut, strict=True):
        views |= {name: joined[:, start:end], cache: pool[:, start:end]}
    _, seen = stored([4, 0], **views)
    assert torch.equal(pool[[4, 0]], joined)
    assert not pool[[1, 2, 3, 5]].any()
    assert not seen.strays


def test_bfloat16_becomes_the_nearest_fp8_and_what_is_too_large_the_largest() -> None:
    caches = {
        cache: torch.zeros(SLOTS, heads * 16, dtype=torch.float8_e4m3fn)
        for cache, heads in (("k_cache", HEADS), ("v_cache", HEADS), ("idx_k_cache", 1))
    }
    keys = torch.full((1, HEADS * 16), 17.0)  # halfway between 16 and 18: to the even one
    keys[0, 0], keys[0, 1] = 1000.0, -449.0
    given, seen = stored([4], torch.bfloat16, 16, k=keys.bfloat16(), **caches)
    assert given["k_cache"][4].float().tolist() == [448.0, -448.0] + [16.0] * (HEADS * 16 - 2)
    for name, cache in CACHES[1:]:
        near = given[name][0].float()
        assert (given[cache][4].float() - near).abs().max() <= near.abs().max() / 16
    assert not seen.strays


def test_a_cast_is_one_of_bfloat16() -> None:
    with pytest.raises(KernelRefused, match="k must be bfloat16"):
        stored([4], torch.float16, 16, k_cache=torch.zeros(SLOTS, HEADS * 16))


def test_a_cache_of_index_keys_in_another_dtype_is_refused_beside_fp8() -> None:
    caches = {
        cache: torch.zeros(SLOTS, HEADS * 16, dtype=torch.float8_e4m3fn)
        for cache in ("k_cache", "v_cache")
    }
    with pytest.raises(KernelRefused, match="idx_k_cache must be float8_e4m3fn"):
        stored([4], torch.bfloat16, 16, **caches)


def test_index_values_are_not_looked_at() -> None:
    given, _ = stored([3], idx_v=torch.full((1, WIDTH), 9.0), idx_v_cache=torch.zeros(0, WIDTH))
    assert torch.equal(given["idx_k_cache"][3], given["idx_k"][0])


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_a_slot_outside_of_the_caches_is_a_stray_write_to_each(slot: int) -> None:
    given, seen = stored([slot, 3])
    assert [(one.kind, one.argument) for one in seen.strays] == [
        ("write", cache) for _, cache in CACHES
    ]
    assert torch.equal(given["k_cache"][3], given["k"][1])


def test_no_tokens_are_no_launch() -> None:
    _, seen = stored([], indices=torch.zeros(0, dtype=torch.int64))
    assert not seen.strays


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"idx_k": torch.zeros(8)}, r"idx_k must be \[any, any\]"),
        ({"idx_k": torch.zeros(3, WIDTH)}, r"k must be \[3, 8\]"),
        ({"k": torch.zeros(2, WIDTH)}, r"k must be \[2, 8\]"),
        ({"v": torch.zeros(3, 2 * WIDTH)}, r"v must be \[2, 8\]"),
        ({"v": torch.zeros(2, 2 * WIDTH).half()}, "v must be float32"),
        ({"idx_k": torch.zeros(2, WIDTH).half()}, "idx_k must be float32"),
        ({"k_cache": torch.zeros(SLOTS, WIDTH)}, r"k_cache must be \[any, 8\]"),
        ({"v_cache": torch.zeros(SLOTS, 2 * WIDTH).half()}, "v_cache must be float32"),
        ({"idx_k_cache": torch.zeros(SLOTS, WIDTH).half()}, "idx_k_cache must be float32"),
        ({"idx_k_cache": torch.zeros(SLOTS, 5)}, r"idx_k_cache must be \[any, 4\]"),
        ({"k": torch.zeros(2 * WIDTH, 2).T}, "k must be contiguous in its last dimension"),
        ({"num_kv_heads": 1, "heads_per_token": 3}, r"k must be \[2, 4\]"),
        ({"indices": torch.zeros(2)}, "indices must be int32 or int64"),
        ({"indices": torch.zeros(3).long()}, r"indices must be \[2\]"),
    ],
)
def test_what_the_kernels_host_code_refuses_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        stored([1, 2], **changed)


def test_heads_that_a_thread_cannot_copy_are_refused() -> None:
    with pytest.raises(KernelRefused, match="a head's bytes must be a multiple of 16; got 12"):
        stored([1], width=3)


def test_rows_that_start_between_the_steps_of_a_thread_are_refused() -> None:
    joined = torch.zeros(2, 9)
    with pytest.raises(KernelRefused, match="multiples of 16 bytes; got a stride of 36"):
        stored([1, 2], k=joined[:, :8])


def test_index_values_have_no_model() -> None:
    with pytest.raises(KernelNotModelled, match="does not follow heads_per_token=6"):
        stored([1], heads_per_token=2 * HEADS + 2)
