"""The models of trtllm-gen's latent kernels, against dense attention, rules and refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.trtllm_gen_mla import (
    trtllm_batch_decode_with_kv_cache_mla,
    trtllm_ragged_attention_deepseek,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.dense import dense_attention
from tests.kernel_models.latent_caches import HEADS, VALUE, WIDTH, ints, scattered, wanted

PAGE = 32
COLUMNS = 128 // PAGE


def _call(q: torch.Tensor, cache: torch.Tensor, **more: Any) -> torch.Tensor:
    arguments = dict(
        query=q, kv_cache=cache.transpose(1, 2), qk_nope_head_dim=VALUE, kv_lora_rank=VALUE,
        workspace_buffer=torch.zeros(512, dtype=torch.int8), qk_rope_head_dim=WIDTH - VALUE,
        max_seq_len=200, bmm1_scale=0.3,
    )  # fmt: skip
    return trtllm_batch_decode_with_kv_cache_mla(**{**arguments, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("flat", [False, True])
def test_rows_of_different_length_give_causal_dense_attention(tokens: int, flat: bool) -> None:
    lens = [5, 32, 33, 100]
    cache, table = scattered(lens, PAGE, COLUMNS)
    q = torch.randn(len(lens), tokens, HEADS, WIDTH)
    given = {"kv_cache": cache[:, :, 0]} if flat else {}
    out = _call(q, cache, block_tables=table, seq_lens=ints(*lens), **given)
    want, _ = wanted(q, cache, table, lens, causal=True, scale=0.3)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def test_bfloat16_queries_give_bfloat16_outputs_and_values_are_scaled() -> None:
    cache, table = scattered([40], PAGE, COLUMNS)
    q, half = torch.randn(1, 1, HEADS, WIDTH).bfloat16(), cache.bfloat16()
    out = _call(q, half, block_tables=table, seq_lens=ints(40), bmm2_scale=torch.tensor(2.0))
    want, _ = wanted(q, half, table, [40], causal=True, scale=0.3)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), 2 * want, rtol=1e-2, atol=1e-2)


def test_a_row_without_keys_keeps_what_was_there() -> None:
    cache, table = scattered([32, 0], PAGE, COLUMNS)
    out = torch.full((2, 1, HEADS, VALUE), 7.0)
    q = torch.randn(2, 1, HEADS, WIDTH)
    _call(q, cache, block_tables=table, seq_lens=ints(32, 0), out=out)
    assert (out[1] == 7.0).all() and (out[0] != 7.0).all()


def test_a_replay_reads_the_lengths_of_now() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    cache, table = scattered([100], PAGE, COLUMNS)
    with memory.intercept("engine"):
        q, lens = torch.randn(1, 1, HEADS, WIDTH), ints(3)
    graph = graphs.capture(
        lambda: _call(q, cache, block_tables=table, seq_lens=lens), key="decode/1"
    )
    lens.fill_(100)
    with memory.over_lanes():
        graph.replay()
    want, _ = wanted(q, cache, table, [100], causal=True, scale=0.3)
    torch.testing.assert_close(graph.outputs.double(), want, rtol=1e-6, atol=1e-6)


def test_a_table_that_is_not_contiguous_is_read_as_if_it_were() -> None:
    cache, table = scattered([32, 32], PAGE, 2 * COLUMNS)
    q = torch.randn(2, 1, HEADS, WIDTH)
    out = _call(q, cache, block_tables=table[:, :COLUMNS], seq_lens=ints(32, 32))
    misread = torch.stack((table[0, :1], table[0, COLUMNS : COLUMNS + 1]))
    want, _ = wanted(q, cache, misread, [32, 32], causal=True, scale=0.3)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"max_seq_len": 31}, "max_seq_len must be at least the length of every row; got 31"),
        (
            {"multi_ctas_kv_counter_buffer": torch.ones(64, dtype=torch.uint8)},
            "the counters must be zero when a launch begins",
        ),
        (
            {"workspace_buffer": torch.ones(512, dtype=torch.int8)},
            "the counters must be zero when a launch begins",
        ),
    ],
)
def test_content_that_breaks_a_rule_is_recorded(more: dict[str, Any], rule: str) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, table = scattered([32], PAGE, COLUMNS)
        q = torch.randn(1, 1, HEADS, WIDTH)
        _call(q, cache, block_tables=table, seq_lens=ints(32), **more)
    (misuse,) = memory.lanes.report.take_misuses()
    assert rule in str(misuse)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"seq_lens": torch.tensor([32])}, "seq_lens must be int32; got int64"),
        ({"block_tables": torch.ones(1, 4).long()}, "block_tables must be int32"),
        ({"block_tables": ints(1, 2, 3).view(1, 3)}, "must be a multiple of 4 pages wide; got 3"),
        ({"block_tables": ints(*range(8)).view(2, 4)}, "must have 1 rows, as many as query"),
        ({"kv_lora_rank": 5}, "must have kv_lora_rank .* = 7 columns; got 6"),
        ({"query": torch.randn(1, 1, 100, WIDTH)}, "must not lie between 64 and 128; got 100"),
        ({"query": torch.randn(1, HEADS, WIDTH)}, "query must be 4D; got 3D"),
        ({"kv_cache": torch.zeros(9, 1, 16, WIDTH)}, "block_size must be 32 or 64; got 16"),
        ({"kv_cache": torch.zeros(9, 1, PAGE, WIDTH).half()}, "kv_cache must be float32"),
        (
            {"multi_ctas_kv_counter_buffer": torch.zeros(4, dtype=torch.uint8)},
            "multi_ctas_kv_counter_buffer must hold 32 bytes; got 4",
        ),
    ],
)
def test_what_the_host_code_refuses_is_refused(more: dict[str, Any], rule: str) -> None:
    cache, table = scattered([32], PAGE, COLUMNS)
    given = {"block_tables": table, "seq_lens": ints(32), **more}
    with pytest.raises(KernelRefused) as refused:
        _call(given.pop("query", torch.randn(1, 1, HEADS, WIDTH)), cache, **given)
    assert re.search(rule, str(refused.value))


@pytest.mark.parametrize("name", ["sparse_mla_top_k", "cum_seq_lens_q", "return_lse"])
def test_what_is_left_out_is_no_finding_about_the_engine(name: str) -> None:
    cache, table = scattered([32], PAGE, COLUMNS)
    with pytest.raises(KernelNotModelled, match=f"does not follow {name}"):
        _call(
            torch.randn(1, 1, HEADS, WIDTH), cache, block_tables=table, seq_lens=ints(32),
            **{name: 5},
        )  # fmt: skip


def _ragged(causal: bool, **more: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(2)
    q, k, v = torch.randn(4, 4, 6), torch.randn(7, 2, 6), torch.randn(7, 2, 3)
    arguments = dict(
        query=q, key=k, value=v, workspace_buffer=torch.zeros(64, dtype=torch.int8),
        seq_lens=ints(5, 2), max_q_len=3, max_kv_len=5, bmm1_scale=0.3, bmm2_scale=1.0,
        o_sf_scale=1.0, batch_size=2, window_left=-1, cum_seq_lens_q=ints(0, 3, 4),
        cum_seq_lens_kv=ints(0, 5, 7), enable_pdl=False, is_causal=causal, return_lse=True,
    )  # fmt: skip
    return trtllm_ragged_attention_deepseek(**{**arguments, **more}), (q, k, v)


@pytest.mark.parametrize("causal", [False, True])
def test_ragged_rows_give_dense_attention_and_its_sums(causal: bool) -> None:
    (out, lse), (q, k, v) = _ragged(causal)
    for first, tokens, start, length in ((0, 3, 0, 5), (3, 1, 5, 2)):
        at = length - tokens + torch.arange(tokens)[:, None]
        visible = (torch.arange(length)[None, :] <= at) | torch.tensor(not causal)
        keys = slice(start, start + length)
        row = slice(first, first + tokens)
        want, sums = dense_attention(q[row], k[keys], v[keys], visible, scale=0.3)
        torch.testing.assert_close(out[row].double(), want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse[row].T.double(), sums, rtol=1e-6, atol=1e-6)


def test_a_ragged_row_longer_than_announced_breaks_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        _ragged(True, max_kv_len=4)
    (misuse,) = memory.lanes.report.take_misuses()
    assert "max_kv_len must be at least the length of every row; got 4 for row 0 of 5" in str(
        misuse
    )


def test_ragged_offsets_of_another_batch_size_are_refused() -> None:
    with pytest.raises(KernelRefused, match="cum_seq_lens_kv must hold 3 offsets"):
        _ragged(True, cum_seq_lens_kv=ints(0, 5))
