"""The models of kernels that store and read NVFP4, against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph import nvfp4
from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models import xqa
from fuzzgraph.kernel_models.nvfp4 import SCALED, interleaved, nvfp4_kv_quantize
from fuzzgraph.kernel_models.trtllm_gen import trtllm_batch_decode_with_kv_cache
from tests.kernel_models.dense import dense_attention

FP8 = torch.float8_e4m3fn
PAGES, HEADS, PAGE, COLUMNS = 3, 2, 16, 64


def block(*first: float) -> torch.Tensor:
    """One row of one block, whose largest magnitude is 6."""
    return torch.tensor([[*first, *[0.0] * (15 - len(first)), 6.0]]).bfloat16()


def codes(row: torch.Tensor) -> list[int]:
    packed, _ = nvfp4_kv_quantize(row, torch.ones(1))
    return [code for byte in packed[0].tolist() for code in (byte % 16, byte // 16)]


def test_numbers_that_the_format_holds_are_stored_as_the_harness_stores_them() -> None:
    content = content_for(EngineConfig(kv_dtype="nvfp4", head_dim=64, v_head_dim=64))
    tokens = torch.arange(20) % 16
    _, keys, _ = content.embed_qkv(tokens, tokens)
    packed, scales = nvfp4_kv_quantize(keys.bfloat16().flatten(0, 1), torch.tensor([0.5]))
    stored = content.kv_planes(tokens, tokens)
    assert torch.equal(packed, stored[0].flatten(0, 1))
    assert torch.equal(scales, stored[2].flatten(0, 1))


def test_a_number_goes_to_the_nearest_and_between_two_to_the_even_code() -> None:
    found = codes(block(0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, -0.2))
    assert found[:10] == [0, 1, 2, 2, 4, 4, 6, 6, 14, 8]


def test_a_block_of_zeros_has_a_scale_of_zero() -> None:
    packed, scales = nvfp4_kv_quantize(torch.zeros(1, SCALED).bfloat16(), torch.ones(1))
    assert not packed.any() and not scales.any()


def test_a_scale_is_the_nearest_that_fp8_has() -> None:
    """A largest number of 7 has the scale 1.125, by which it is 6.2 and becomes 6."""
    row = block(6.0)
    row[0, 0] = 7.0
    packed, scales = nvfp4_kv_quantize(row, torch.ones(1))
    assert scales.view(FP8).float().item() == 1.125
    assert packed[0, 0].item() % 16 == 7


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"input": torch.zeros(1, 24).bfloat16()}, "must be divisible by 16"),
        ({"input": torch.zeros(1, 16)}, "input must be float16 or bfloat16"),
        ({"input": torch.zeros(2, 32).bfloat16()[:, ::2]}, "input must be contiguous"),
        ({"global_scale": torch.ones(2)}, r"global_scale must be \[1\]"),
        ({"global_scale": torch.ones(1).double()}, "global_scale must be float32"),
    ],
)
def test_what_the_host_code_of_the_kernel_refuses_is_refused(
    changed: dict[str, Any], rule: str
) -> None:
    given = {"input": torch.zeros(1, 16).bfloat16(), "global_scale": torch.ones(1), **changed}
    with pytest.raises(KernelRefused, match=rule):
        nvfp4_kv_quantize(**given)


def test_scales_of_four_values_lie_side_by_side() -> None:
    """By the formula of FlashInfer's `nvfp4_quantize_paged_kv_cache`."""
    each = COLUMNS // SCALED
    count = PAGES * HEADS * PAGE * each
    scales = torch.arange(count).view(PAGES, HEADS, PAGE, each)
    by_token = interleaved(scales)
    for token in range(PAGE):
        for scale in range(each):
            at = token // 4 * 4 * each + scale * 4 + token % 4
            got = by_token[:, token // 4, token % 4, :, scale]
            assert torch.equal(got, scales.flatten(2)[..., at])


def test_xqa_reads_scales_of_both_by_the_strides_of_the_keys() -> None:
    given, keys, values = fp4_call()
    _, v_scales = nvfp4.encoded(values)
    k_scales = given["kv_cache_sf"][0].transpose(1, 2).contiguous().transpose(1, 2)
    given["kv_cache_sf"] = k_scales, v_scales.view(FP8).transpose(1, 2)
    given["query"] = given["query"].bfloat16()
    given["workspace_buffer"] = torch.zeros(8 << 20, dtype=torch.uint8)
    out = xqa.trtllm_batch_decode_with_kv_cache(**given)
    assert out.dtype == torch.bfloat16
    for row, length in enumerate((21, 5)):
        want = dense_row(given, keys, values, row, length)
        torch.testing.assert_close(out[row : row + 1].double(), want, rtol=2**-8, atol=1e-6)


def dense_row(
    given: dict[str, Any], keys: torch.Tensor, values: torch.Tensor, row: int, length: int
) -> torch.Tensor:
    """float64 attention of one row over the numbers that were stored."""
    pages = given["block_tables"][row].long()
    key, value = (each[pages].flatten(0, 1)[:length] for each in (keys, values))
    visible = torch.ones(1, length, dtype=torch.bool)
    query = given["query"][row : row + 1].float()
    want, _ = dense_attention(query, key, value, visible, scale=given["bmm1_scale"])
    return want.double() * float(given["bmm2_scale"])


def fp4_call() -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """Arguments of a decode over pages in NVFP4, and the keys and values that lie there."""
    torch.manual_seed(1)
    numbers = torch.randint(-4, 5, (2, PAGES, PAGE, HEADS, COLUMNS)).float()
    numbers[..., 0::16] = torch.where(torch.rand(2, PAGES, PAGE, HEADS, 4) < 0.5, 6.0, -12.0)
    (k, v), (k_scales, v_scales) = nvfp4.encoded(numbers)
    held = torch.empty(PAGES, HEADS, PAGE, COLUMNS // SCALED, dtype=torch.uint8)
    interleaved(held).copy_(v_scales.unflatten(1, (PAGE // 4, 4)))
    given = {
        "query": torch.randint(-4, 5, (2, 4, COLUMNS)).float().div(4).to(FP8),
        "kv_cache": (k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)),
        "kv_cache_sf": (k_scales.permute(0, 2, 1, 3).contiguous().view(FP8), held.view(FP8)),
        "workspace_buffer": torch.zeros(64, dtype=torch.uint8),
        "block_tables": torch.tensor([[2, 1], [1, 0]], dtype=torch.int32),
        "seq_lens": torch.tensor([21, 5], dtype=torch.int32),
        "max_seq_len": 64,
        "bmm1_scale": 0.02,
        "bmm2_scale": 0.5,
    }
    return given, numbers[0], numbers[1]


def test_keys_and_values_in_fp4_give_dense_attention() -> None:
    given, keys, values = fp4_call()
    out = trtllm_batch_decode_with_kv_cache(**given)
    assert out.dtype == FP8
    for row, length in enumerate((21, 5)):
        want = dense_row(given, keys, values, row, length)
        torch.testing.assert_close(out[row : row + 1].double(), want, rtol=2**-4, atol=2**-10)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"kv_cache_sf": None}, "kv_cache_sf must be provided"),
        ({"query": torch.zeros(2, 4, COLUMNS).bfloat16()}, "take queries in float8_e4m3fn alone"),
        ({"out_dtype": torch.bfloat16}, "give float8_e4m3fn alone"),
    ],
)
def test_what_no_kernel_with_keys_in_fp4_takes_is_refused(
    changed: dict[str, Any], rule: str
) -> None:
    given, _, _ = fp4_call()
    with pytest.raises(KernelRefused, match=rule):
        trtllm_batch_decode_with_kv_cache(**{**given, **changed})


def test_scales_with_gaps_between_tokens_are_refused() -> None:
    """As the engine kept them up to 0.5.20, by slot."""
    given, _, _ = fp4_call()
    k_scales, v_scales = given["kv_cache_sf"]
    by_slot = k_scales.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(KernelRefused, match="k_scales must be contiguous in the last two"):
        trtllm_batch_decode_with_kv_cache(**{**given, "kv_cache_sf": (by_slot, v_scales)})
