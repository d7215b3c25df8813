"""Keys and values go to their slots in FP8, each divided by its scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.fp8_kv_store import store_fp8_kv
from fuzzgraph.kernel_models.launch import ModelKernel, routed, run_kernel
from fuzzgraph.kernel_models.memory import KernelMemory, Stray

SLOTS, WIDTH = 6, 4
FP8 = torch.float8_e4m3fn


class _Seen:
    def __init__(self) -> None:
        self.strays: list[Stray] = []

    def misuse(self, argument: str, rule: str, got: str) -> None:
        raise AssertionError(rule)

    def stray(self, found: Stray) -> None:
        self.strays.append(found)


def stored(slots: list[int], **changed: Any) -> tuple[dict[str, Any], _Seen]:
    """(arguments after the call, what it did wrong)."""
    rows = len(slots)
    numbers = torch.arange(rows * WIDTH).view(rows, WIDTH) / 8
    given: dict[str, Any] = {
        "q": numbers.bfloat16(),
        "k": (numbers + 1).bfloat16(),
        "v": (numbers - 1).bfloat16(),
        "q_out": torch.zeros(rows, WIDTH).to(FP8),
        "k_cache": torch.zeros(SLOTS, WIDTH).to(FP8),
        "v_cache": torch.zeros(SLOTS, WIDTH).to(FP8),
        "cache_loc": torch.tensor(slots),
        "k_scale": torch.tensor([0.5]),
        "v_scale": torch.tensor([0.25]),
        "dtype": torch.bfloat16,
    } | changed
    seen = _Seen()

    def run(kernel: ModelKernel, **arguments: Any) -> None:
        run_kernel(KernelMemory(seen), kernel, **arguments)

    with routed(run):
        store_fp8_kv(**given)
    return given, seen


def test_each_token_is_divided_by_the_scales_on_its_way_to_its_slot() -> None:
    given, _ = stored([5, 1])
    assert torch.equal(given["k_cache"].float()[[5, 1]], given["k"].float() / 0.5)
    assert torch.equal(given["v_cache"].float()[[5, 1]], given["v"].float() / 0.25)
    assert not given["k_cache"].float()[[0, 2, 3, 4]].any()


def test_queries_become_fp8_without_a_scale() -> None:
    given, _ = stored([5, 1])
    assert torch.equal(given["q_out"].float(), given["q"].float())


def test_queries_may_be_left_as_they_are() -> None:
    given, _ = stored([2], q=None, q_out=None)
    assert torch.equal(given["v_cache"].float()[2:3], given["v"].float() / 0.25)


def test_what_fp8_cannot_hold_becomes_its_largest_number() -> None:
    given, _ = stored([2], k=torch.full((1, WIDTH), -1000.0).bfloat16())
    assert given["k_cache"].float()[2].tolist() == [-448.0] * WIDTH


def test_rows_are_read_by_their_stride() -> None:
    packed = (torch.arange(24).view(2, 12) % 7).bfloat16() / 8
    given, _ = stored([2, 3], k=packed[:, 4:8])
    assert torch.equal(given["k_cache"].float()[2:4], packed[:, 4:8].float() / 0.5)


def test_a_slot_that_no_cache_has_is_followed() -> None:
    _, seen = stored([SLOTS])
    assert [found.argument for found in seen.strays] == ["k_cache", "v_cache"]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"q_out": None}, "q and q_out must both be given or both omitted"),
        ({"k": torch.zeros(2, WIDTH)}, "k must be bfloat16"),
        ({"v": torch.zeros(3, WIDTH).bfloat16()}, r"v must be \[2, 4\]"),
        ({"k_cache": torch.zeros(SLOTS, WIDTH).bfloat16()}, "k_cache must be float8_e4m3fn"),
        ({"v_cache": torch.zeros(5, WIDTH).to(FP8)}, "both caches must have as many slots"),
        ({"cache_loc": torch.zeros(3, dtype=torch.int64)}, r"cache_loc must be \[2\]"),
        ({"cache_loc": torch.zeros(2)}, "cache_loc must be int32 or int64"),
        ({"k_scale": torch.tensor(0.5)}, r"k_scale must be \[1\]"),
        ({"v_scale": torch.tensor([0.5]).double()}, "v_scale must be float32"),
        ({"q": torch.zeros(2, 3).bfloat16()}, r"q_out must be \[2, 3\]"),
    ],
)
def test_what_the_kernels_host_code_refuses_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        stored([1, 2], **changed)


def test_a_call_without_tokens_is_refused() -> None:
    none = torch.zeros(0, WIDTH).bfloat16()
    with pytest.raises(KernelRefused, match="there must be a token"):
        stored([], q=None, q_out=None, k=none, v=none, cache_loc=torch.zeros(0, dtype=torch.int64))
