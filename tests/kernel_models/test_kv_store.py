"""KV goes to its slots, by the rules of the kernel that a GPU has for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.kv_store import check_rows, store_kv
from fuzzgraph.kernel_models.launch import ModelKernel, routed, run_kernel
from fuzzgraph.kernel_models.memory import KernelMemory, Stray

SLOTS = 6


class _Seen:
    def __init__(self) -> None:
        self.misuses: list[str] = []
        self.strays: list[Stray] = []

    def misuse(self, argument: str, rule: str, got: str) -> None:
        self.misuses.append(f"{rule}; got {got}")

    def stray(self, found: Stray) -> None:
        self.strays.append(found)


def stored(
    slots: list[int], k_width: int = 4, v_width: int = 2, dtype: Any = torch.float32, **changed: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, _Seen]:
    """(k, v, both caches after the call, what it did wrong)."""
    k, v = torch.randn(len(slots), k_width), torch.randn(len(slots), v_width)
    given: dict[str, Any] = {
        "k": k.to(dtype),
        "v": v.to(dtype),
        "k_cache": torch.zeros(SLOTS, k_width, dtype=dtype),
        "v_cache": torch.zeros(SLOTS, v_width, dtype=dtype),
        "indices": torch.tensor(slots),
        "k_bytes": k_width * dtype.itemsize,
        "v_bytes": v_width * dtype.itemsize,
        "splits": 1,
    } | changed
    seen = _Seen()

    def run(kernel: ModelKernel, **arguments: Any) -> None:
        run_kernel(KernelMemory(seen), kernel, **arguments)

    with routed(run):
        store_kv(**given)
    return given["k"], given["v"], given["k_cache"], given["v_cache"], seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_token_goes_to_its_slot_bit_for_bit(dtype: torch.dtype) -> None:
    k, v, k_cache, v_cache, seen = stored([5, 1], dtype=dtype)
    assert torch.equal(k_cache[[5, 1]], k)
    assert torch.equal(v_cache[[5, 1]], v)
    assert not k_cache[[0, 2, 3, 4]].any()
    assert not seen.misuses


def test_rows_are_read_by_their_stride() -> None:
    packed = torch.randn(2, 12)
    k, _, k_cache, _, _ = stored([2, 3], k=packed[:, 4:8])
    assert torch.equal(k_cache[2:4], packed[:, 4:8])


def test_the_reserved_slot_keeps_what_it_had() -> None:
    k, _, k_cache, v_cache, _ = stored([0, 3], reserved_skip_index=0)
    assert not k_cache[0].any() and not v_cache[0].any()
    assert torch.equal(k_cache[3], k[1])


def test_without_a_reserved_slot_all_are_written() -> None:
    k, _, k_cache, _, _ = stored([0, 3])
    assert torch.equal(k_cache[[0, 3]], k)


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_a_slot_beyond_the_limit_stops_the_device(slot: int) -> None:
    k, _, k_cache, _, seen = stored([slot, 3], size_limit=SLOTS)
    assert seen.misuses == [
        f"indices must lie in the {SLOTS} slots of size_limit; got {slot} for token 0"
    ]
    assert torch.equal(k_cache[3], k[1])


def test_where_the_kernel_asks_no_limit_a_wrong_slot_is_followed() -> None:
    *_, seen = stored([-1])
    assert not seen.misuses
    assert [found.argument for found in seen.strays] == ["k_cache", "v_cache"]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"k": torch.zeros(2, 3)}, "rows of k must have the 16 bytes"),
        ({"k": torch.zeros(8)}, r"k must be \[any, any\]"),
        ({"v": torch.zeros(3, 2)}, r"v must be \[2, any\]"),
        ({"v": torch.zeros(2, 2).half()}, "v must be float32"),
        ({"v_bytes": 16}, "rows of v must have the 16 bytes"),
        ({"indices": torch.zeros(3, dtype=torch.int64)}, r"indices must be \[2\]"),
        ({"indices": torch.zeros(2)}, "indices must be int32 or int64"),
        ({"k": torch.zeros(4, 2).t()}, "k must be contiguous"),
    ],
)
def test_what_the_kernels_host_code_refuses_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        stored([1, 2], **changed)


def test_rows_that_start_between_the_steps_of_a_thread_are_refused() -> None:
    packed = torch.zeros(2, 7, dtype=torch.float16)
    with pytest.raises(KernelRefused, match="multiples of 4 bytes; got a stride of 14"):
        stored([1, 2], dtype=torch.float16, k=packed[:, :4])


def test_widths_that_the_kernel_is_not_built_for_are_refused() -> None:
    check_rows(8, 4, None)
    with pytest.raises(KernelRefused, match="a value's bytes must be a multiple of 4; got 6"):
        check_rows(8, 6, None)
    check_rows(8, 6, 2)
    with pytest.raises(KernelRefused, match="4 warps must divide a value's bytes; got 6"):
        check_rows(8, 6, 4)
