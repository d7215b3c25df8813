"""The model of XQA, against dense attention and its own rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.xqa import trtllm_batch_decode_with_kv_cache
from tests.kernel_models.dense import dense_attention

PAGE, HEADS, COLUMNS = 16, 2, 8
LENS = (21, 9, 40)


def _given(new: int, **more: Any) -> dict[str, Any]:
    """Arguments of rows with `new` tokens each; the cache is a permuted view, as engines pass."""
    torch.manual_seed(1)
    cache = [torch.randn(10, PAGE, HEADS, COLUMNS).permute(0, 2, 1, 3) for _ in "kv"]
    return {
        "query": torch.randn(len(LENS) * new, 4, COLUMNS),
        "kv_cache": tuple(cache),
        "workspace_buffer": torch.zeros(64, dtype=torch.uint8),
        "block_tables": (torch.randperm(9) + 1).view(3, 3).int(),
        "seq_lens": torch.tensor(LENS, dtype=torch.int32),
        "max_seq_len": 48,
        "bmm1_scale": 0.4,
        "bmm2_scale": 1.5,
        "q_len_per_req": new,
        **more,
    }


def _packed(seen: torch.Tensor) -> torch.Tensor:
    """[rows, tokens, words] of [tokens, tokens], the same for every row."""
    tokens = len(seen)
    words = torch.zeros(tokens, -(-tokens // 32) * 2, dtype=torch.int64)
    for token, other in seen.nonzero().tolist():
        words[token, other // 16] |= 1 << other % 16
    return words.to(torch.uint16).expand(len(LENS), -1, -1).contiguous()


def _wanted(given: dict[str, Any], row: int, seen: torch.Tensor, left: int = -1) -> torch.Tensor:
    length, new = LENS[row], len(seen)
    key, value = (
        cache.permute(0, 2, 1, 3)[given["block_tables"][row].long()].flatten(0, 1)[:length]
        for cache in given["kv_cache"]
    )
    visible = torch.ones(new, length, dtype=torch.bool)
    visible[:, length - new :] = seen
    for token in range(new):
        if left >= 0:
            visible[token, : max(0, length - new + token - left)] = False
    query = given["query"][row * new : (row + 1) * new]
    want, _ = dense_attention(query, key, value, visible, scale=0.4)
    return want * 1.5


@pytest.mark.parametrize("left", [-1, 5])
@pytest.mark.parametrize("new", [2, 5, 9])
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_drafts_see_what_their_mask_says(kind: str, new: int, left: int) -> None:
    seen = torch.ones(new, new, dtype=torch.bool).tril()
    if kind == "tree":
        seen[1:, 1:] = torch.eye(new - 1, dtype=torch.bool)
    given = _given(new, mask=_packed(seen), window_left=left)
    out = trtllm_batch_decode_with_kv_cache(**given)
    for row in range(len(LENS)):
        got = out[row * new : (row + 1) * new].double()
        torch.testing.assert_close(got, _wanted(given, row, seen, left), rtol=1e-6, atol=1e-6)


def test_bits_beyond_a_word_are_read_from_the_next_one() -> None:
    seen = torch.zeros(9, 9, dtype=torch.bool).fill_diagonal_(True)
    wide = torch.ones(18, 18, dtype=torch.bool).tril()
    assert _packed(wide).shape == (3, 18, 2)
    given = _given(9, mask=_packed(seen))
    out = trtllm_batch_decode_with_kv_cache(**given)
    torch.testing.assert_close(out[:9].double(), _wanted(given, 0, seen), rtol=1e-6, atol=1e-6)


def test_a_decode_reads_no_mask() -> None:
    given = _given(1)
    out = trtllm_batch_decode_with_kv_cache(**given, mask=torch.zeros(1))
    want = _wanted(given, 1, torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(out[1:2].double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mask": None}, "mask is required"),
        ({"mask": torch.zeros(3, 2, 2, dtype=torch.int32)}, "mask must be uint16"),
        ({"mask": torch.zeros(3, 3, 2, dtype=torch.uint16)}, "mask must be"),
        ({"cum_seq_lens_q": torch.zeros(4).int()}, "cum_seq_lens_q must not be given"),
        ({"out_dtype": torch.bfloat16}, "the same dtype"),
    ],
)
def test_what_the_host_code_refuses_is_refused(change: dict[str, Any], said: str) -> None:
    given = _given(2, **{"mask": torch.zeros(3, 2, 2, dtype=torch.uint16), **change})
    with pytest.raises(KernelRefused, match=said):
        trtllm_batch_decode_with_kv_cache(**given)


def test_scales_of_blocks_beside_other_caches_are_not_modelled() -> None:
    with pytest.raises(KernelNotModelled, match="kv_cache_sf"):
        trtllm_batch_decode_with_kv_cache(**_given(1), kv_cache_sf=(torch.ones(1), torch.ones(1)))
