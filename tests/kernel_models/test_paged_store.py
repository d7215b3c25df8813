"""New KV goes to its slots in pages, by the rules of the kernels that a GPU has for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.launch import ModelKernel, routed, run_kernel
from fuzzgraph.kernel_models.memory import KernelMemory, Stray
from fuzzgraph.kernel_models.paged_store import concat_and_cache_mla, reshape_and_cache_flash

PAGES, PAGE, RANK, ROTARY, HEADS = 3, 2, 4, 2, 2
FP8 = torch.float8_e4m3fn


class _Seen:
    def __init__(self) -> None:
        self.strays: list[Stray] = []

    def misuse(self, argument: str, rule: str, got: str) -> None:
        raise AssertionError(rule)

    def stray(self, found: Stray) -> None:
        self.strays.append(found)


def stored(slots: list[int], **changed: Any) -> tuple[dict[str, Any], _Seen]:
    """(arguments of the call after it, what it did wrong)."""
    given: dict[str, Any] = {
        "kv_c": torch.randn(len(slots), RANK),
        "k_pe": torch.randn(len(slots), ROTARY),
        "kv_cache": torch.zeros(PAGES, PAGE, RANK + ROTARY),
        "slot_mapping": torch.tensor(slots),
        "kv_cache_dtype": "auto",
        "scale": torch.ones(()),
    } | changed
    return given, called(concat_and_cache_mla, given)


def heads_stored(slots: list[int], **changed: Any) -> tuple[dict[str, Any], _Seen]:
    """The same for keys and values of `HEADS` heads."""
    caches = torch.zeros(2, PAGES, PAGE, HEADS, RANK)
    given: dict[str, Any] = {
        "key": torch.randn(len(slots), HEADS, RANK),
        "value": torch.randn(len(slots), HEADS, RANK),
        "key_cache": caches[0],
        "value_cache": caches[1],
        "slot_mapping": torch.tensor(slots),
        "kv_cache_dtype": "auto",
        "k_scale": torch.ones(()),
        "v_scale": torch.ones(()),
    } | changed
    return given, called(reshape_and_cache_flash, given)


def called(function: Any, given: dict[str, Any]) -> _Seen:
    seen = _Seen()

    def run(kernel: ModelKernel, **arguments: Any) -> None:
        run_kernel(KernelMemory(seen), kernel, **arguments)

    with routed(run):
        function(**given)
    return seen


def test_latent_and_rotary_part_lie_side_by_side_in_the_slot() -> None:
    given, seen = stored([5, 2])
    rows = given["kv_cache"].view(-1, RANK + ROTARY)
    assert torch.equal(rows[[5, 2]], torch.cat((given["kv_c"], given["k_pe"]), 1))
    assert not rows[[0, 1, 3, 4]].any()
    assert not seen.strays


def test_a_slot_below_zero_is_not_written() -> None:
    given, _ = stored([-1, 4])
    rows = given["kv_cache"].view(-1, RANK + ROTARY)
    assert torch.equal(rows[4, :RANK], given["kv_c"][1])
    assert not rows[[0, 1, 2, 3, 5]].any()


def test_tokens_are_as_many_as_slots_however_many_rows_there_are() -> None:
    given, seen = stored([3], kv_c=torch.randn(2, RANK), k_pe=torch.randn(2, ROTARY))
    rows = given["kv_cache"].view(-1, RANK + ROTARY)
    assert torch.equal(rows[3, :RANK], given["kv_c"][0])
    assert not seen.strays


def test_rows_are_found_by_their_stride() -> None:
    joined = torch.randn(2, RANK + ROTARY)
    given, _ = stored([0, 5], kv_c=joined[:, :RANK], k_pe=joined[:, RANK:])
    assert torch.equal(given["kv_cache"].view(-1, RANK + ROTARY)[[0, 5]], joined)


def test_columns_are_taken_for_contiguous() -> None:
    turned = torch.arange(2.0 * RANK).view(RANK, 2).T
    given, _ = stored([0], kv_c=turned[:1], k_pe=torch.zeros(1, ROTARY))
    assert given["kv_cache"][0, 0, :RANK].tolist() == [0, 1, 2, 3]


def test_a_page_outside_of_the_cache_is_a_stray_write() -> None:
    _, seen = stored([PAGES * PAGE])
    assert {one.kind for one in seen.strays} == {"write"}


def test_fewer_rows_than_slots_are_a_stray_read() -> None:
    _, seen = stored([0, 1], kv_c=torch.randn(1, RANK))
    assert [(one.kind, one.argument) for one in seen.strays] == [("read", "kv_c")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slot_mapping": torch.zeros(1, dtype=torch.int32)}, "slot_mapping must be int64"),
        ({"kv_cache": torch.zeros(PAGES, PAGE, RANK)}, "kv_cache must be \\[any, any, 6\\]"),
        ({"k_pe": torch.zeros(1, ROTARY, dtype=torch.float16)}, "k_pe must be float32"),
        ({"k_pe": torch.zeros(1, 1, ROTARY)}, "k_pe must be \\[any, any\\]"),
    ],
)
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelRefused, match=said):
        stored([0], **changed)


@pytest.mark.parametrize("changed", [{"kv_cache_dtype": "fp8_ds_mla"}, {"skip_scale": True}])
def test_other_quantised_caches_of_latent_rows_are_not_modelled(changed: dict[str, Any]) -> None:
    cache = torch.zeros(PAGES, PAGE, RANK + ROTARY).to(FP8)
    with pytest.raises(KernelNotModelled, match="concat_and_cache_mla"):
        stored([0], **{"kv_cache": cache, "kv_cache_dtype": "fp8", **changed})


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_both_parts_of_a_latent_row_are_divided_by_one_scale(dtype: torch.dtype) -> None:
    joined = torch.arange(2.0 * (RANK + ROTARY)).view(2, -1) % 8 / 8
    cache = torch.zeros(PAGES, PAGE, RANK + ROTARY).to(FP8).view(dtype)
    given, seen = stored(
        [5, 2], kv_c=joined[:, :RANK], k_pe=joined[:, RANK:], kv_cache_dtype="fp8_e4m3",
        scale=torch.tensor(0.5), kv_cache=cache,
    )  # fmt: skip
    rows = given["kv_cache"].view(FP8).float().reshape(-1, RANK + ROTARY)
    assert torch.equal(rows[[5, 2]], joined * 2)
    assert not rows[[0, 1, 3, 4]].any()
    assert not seen.strays


def test_keys_and_values_lie_in_the_slot_by_heads() -> None:
    given, seen = heads_stored([5, -1, 2])
    for name in ("key", "value"):
        rows = given[f"{name}_cache"].reshape(-1, HEADS, RANK)
        assert torch.equal(rows[[5, 2]], given[name][[0, 2]])
        assert not rows[[0, 1, 3, 4]].any()
    assert not seen.strays


def test_heads_may_lie_before_the_places_of_a_page() -> None:
    turned = torch.zeros(2, PAGES, HEADS, PAGE, RANK).transpose(2, 3)
    given, _ = heads_stored([3, 0], key_cache=turned[0], value_cache=turned[1])
    assert torch.equal(given["value_cache"][1, 1], given["value"][0])
    assert torch.equal(given["key_cache"][0, 0], given["key"][1])


def test_values_are_found_by_the_strides_of_the_keys() -> None:
    key_cache = torch.zeros(PAGES, HEADS, PAGE, RANK).transpose(1, 2)
    value_cache = torch.zeros(PAGES, PAGE, HEADS, RANK)
    given, _ = heads_stored([1], key_cache=key_cache, value_cache=value_cache)
    # Place 1 of head 0 is one row further for the keys, which is head 1 of place 0 for the values.
    assert torch.equal(value_cache[0, 0, 1], given["value"][0, 0])


def test_tokens_are_found_by_their_stride_and_their_heads_side_by_side() -> None:
    joined = torch.randn(2, 2 * HEADS * RANK)
    parts = joined.view(2, 2, HEADS, RANK)
    given, _ = heads_stored([0, 4], key=parts[:, 0], value=parts[:, 1])
    rows = given["value_cache"].reshape(-1, HEADS, RANK)
    assert torch.equal(rows[[0, 4]], parts[:, 1])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slot_mapping": torch.zeros(1, dtype=torch.int32)}, "slot_mapping must be int64"),
        ({"key_cache": torch.zeros(PAGES, PAGE, HEADS, RANK + 1)}, "key_cache must be"),
        ({"value_cache": torch.zeros(PAGES, 9, HEADS, RANK)}, "must have one stride"),
    ],
)
def test_what_the_host_code_refuses_of_heads_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelRefused, match=said):
        heads_stored([0], **changed)


def stored_in_fp8(slots: list[int], dtype: torch.dtype = FP8, **changed: Any) -> Any:
    """The same of a cache in FP8, beside scales that are powers of two."""
    caches = torch.zeros(2, PAGES, PAGE, HEADS, RANK).to(FP8).view(dtype)
    numbers = torch.arange(len(slots) * HEADS * RANK).view(len(slots), HEADS, RANK) % 8 / 8
    given = {
        "key": (numbers + 1).bfloat16(), "value": (numbers - 1).bfloat16(),
        "key_cache": caches[0], "value_cache": caches[1], "kv_cache_dtype": "fp8_e4m3",
        "k_scale": torch.tensor(0.5), "v_scale": torch.tensor([0.25]),
    }  # fmt: skip
    return heads_stored(slots, **{**given, **changed})


@pytest.mark.parametrize("named", ["fp8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", [FP8, torch.uint8])
def test_keys_and_values_are_divided_by_their_scales(named: str, dtype: torch.dtype) -> None:
    given, seen = stored_in_fp8([5, -1, 2], dtype, kv_cache_dtype=named)
    for name, scale in (("key", 0.5), ("value", 0.25)):
        rows = given[f"{name}_cache"].view(FP8).float().reshape(-1, HEADS, RANK)
        assert torch.equal(rows[[5, 2]], given[name][[0, 2]].float() / scale)
        assert not rows[[0, 1, 3, 4]].any()
    assert not seen.strays


def test_what_fp8_cannot_hold_is_stored_as_its_largest_number() -> None:
    given, _ = stored_in_fp8([1], key=torch.full((1, HEADS, RANK), -300.0))
    assert given["key_cache"].float()[0, 1].unique().tolist() == [-448.0]


def test_a_scale_is_read_when_the_kernel_runs() -> None:
    scale, waiting = torch.tensor(0.5), []

    def hold(kernel: ModelKernel, **arguments: Any) -> None:
        waiting.append((kernel, arguments))

    with routed(hold):
        caches = torch.zeros(2, PAGES, PAGE, HEADS, RANK).to(FP8)
        rows = torch.ones(1, HEADS, RANK)
        reshape_and_cache_flash(
            rows, rows, caches[0], caches[1], torch.tensor([0]), "fp8", scale, scale
        )
    scale.fill_(0.25)
    for kernel, arguments in waiting:
        run_kernel(KernelMemory(_Seen()), kernel, **arguments)
    assert caches.float()[0, 0, 0].unique().tolist() == [4.0]


def test_pages_in_fp8_that_a_cache_has_not_are_a_stray_write() -> None:
    _, seen = stored_in_fp8([PAGES * PAGE])
    assert [one.argument for one in seen.strays] == ["key_cache", "value_cache"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"k_scale": torch.tensor(0.5).double()}, "k_scale must be float32"),
        ({"value_cache": torch.zeros(PAGES, PAGE, HEADS, RANK)}, "value_cache must be uint8 or"),
    ],
)
def test_what_a_cache_in_fp8_cannot_be_stored_with_is_refused(
    changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(KernelRefused, match=said):
        stored_in_fp8([0], **changed)


@pytest.mark.parametrize(
    "changed", [{"kv_cache_dtype": "fp8_e5m2"}, {"v_scale": torch.ones(HEADS)}]
)
def test_other_formats_and_scales_by_head_are_not_modelled(changed: dict[str, Any]) -> None:
    with pytest.raises(KernelNotModelled, match="reshape_and_cache_flash"):
        stored_in_fp8([0], **changed)
