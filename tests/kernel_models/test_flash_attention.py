"""The model of FlashAttention with a paged cache, against dense attention and its own rules."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.flash_attention import flash_attn_with_kvcache
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.dense import dense_attention

PAGE = 4


def _paged(lens: list[int], heads: int = 2, columns: int = 8) -> tuple[torch.Tensor, ...]:
    """(k_cache, v_cache, page_table) with the pages of each row scattered."""
    torch.manual_seed(1)
    width = max(1, max(-(-n // PAGE) for n in lens))
    pages = 1 + width * len(lens)
    k = torch.randn(pages, PAGE, heads, columns)
    v = torch.randn(pages, PAGE, heads, columns)
    table = (torch.randperm(pages - 1)[: width * len(lens)] + 1).view(len(lens), width)
    return k, v, table.int()


def _row(cache: torch.Tensor, table: torch.Tensor, row: int, length: int) -> torch.Tensor:
    return cache[table[row].long()].flatten(0, 1)[:length]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (2, -1), (3, 0)])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_rows_of_different_length_give_dense_attention(
    causal: bool, window: tuple[int, int], softcap: float, with_sinks: bool
) -> None:
    lens, news = [5, 9, 1], [1, 3, 1]
    k, v, table = _paged(lens)
    q = torch.randn(sum(news), 4, 8)
    sinks = torch.randn(4) if with_sinks else None
    offsets = torch.tensor([0, 1, 4, 5], dtype=torch.int32)
    out, lse = flash_attn_with_kvcache(
        q, k, v, cache_seqlens=torch.tensor(lens).int(), page_table=table,
        cu_seqlens_q=offsets, max_seqlen_q=3, causal=causal, window_size=window,
        softcap=softcap, sinks=sinks, return_softmax_lse=True,
    )  # fmt: skip
    right = 0 if causal else window[1]
    for row, (length, new) in enumerate(zip(lens, news, strict=True)):
        visible = torch.ones(new, length, dtype=torch.bool)
        for token in range(new):
            at = length - new + token
            for key in range(length):
                late = right >= 0 and key > at + right
                early = window[0] >= 0 and key < at - window[0]
                visible[token, key] = not late and not early
        first = int(offsets[row])
        want, sums = dense_attention(
            q[first : first + new], _row(k, table, row, length), _row(v, table, row, length),
            visible, scale=8**-0.5, softcap=softcap, sinks=sinks,
        )  # fmt: skip
        torch.testing.assert_close(out[first : first + new].double(), want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse[:, first : first + new].double(), sums)


def test_a_row_without_keys_gives_zeros_and_no_weight() -> None:
    k, v, table = _paged([3, 0])
    out, lse = flash_attn_with_kvcache(
        torch.randn(2, 1, 4, 8), k, v, cache_seqlens=torch.tensor([3, 0]).int(),
        page_table=table, return_softmax_lse=True,
    )  # fmt: skip
    assert not out[1].any() and out[0].all()
    assert (lse[:, 1] == -torch.inf).all() and lse[:, 0].isfinite().all()


def test_lengths_in_int64_are_refused_with_the_rule_and_its_source() -> None:
    k, v, table = _paged([5])
    with pytest.raises(KernelRefused, match=r"cache_seqlens must be int32; got int64 \(flash"):
        flash_attn_with_kvcache(
            torch.randn(1, 4, 8), k, v, cache_seqlens=torch.tensor([5]), page_table=table,
            cu_seqlens_q=torch.tensor([0, 1]).int(), max_seqlen_q=1,
        )  # fmt: skip


def test_an_argument_that_the_model_does_not_follow_is_no_finding_about_the_engine() -> None:
    k, v, table = _paged([5])
    with pytest.raises(KernelNotModelled, match="does not follow qv"):
        flash_attn_with_kvcache(
            torch.randn(1, 1, 4, 8), k, v, cache_seqlens=torch.tensor([5]).int(),
            page_table=table, qv=torch.randn(1),
        )  # fmt: skip


def test_a_replay_reads_the_present_lengths_and_keeps_captured_scalars() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    k, v, table = _paged([8])
    with memory.intercept("engine"):
        q, lens = torch.randn(1, 1, 4, 8), torch.tensor([3], dtype=torch.int32)
    scale = [0.5]
    graph = graphs.capture(
        lambda: flash_attn_with_kvcache(
            q, k, v, cache_seqlens=lens, page_table=table, softmax_scale=scale[0]
        ),
        key="decode/1",
    )
    lens.fill_(7)
    scale[0] = 9.0
    with memory.over_lanes():
        graph.replay()
    want, _ = dense_attention(
        q[0], _row(k, table, 0, 7), _row(v, table, 0, 7), torch.ones(1, 7).bool(), scale=0.5
    )
    torch.testing.assert_close(graph.outputs[0].double(), want, rtol=1e-6, atol=1e-6)


def test_a_page_outside_of_the_cache_is_followed_and_recorded() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        k, v = torch.zeros(2, PAGE, 1, 8), torch.zeros(2, PAGE, 1, 8)
        table = torch.tensor([[1, 2]], dtype=torch.int32)
        q, lens = torch.ones(1, 1, 1, 8), torch.tensor([5], dtype=torch.int32)
        flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, page_table=table)
    found = memory.lanes.report.take_accesses()
    assert {access.buffer for access in found} == {"k_cache", "v_cache"}
    assert {access.kind for access in found} == {"read"}


def test_a_row_longer_than_its_page_table_reads_the_next_row_and_is_recorded() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        k, v, _ = _paged([8, 8])
        table = torch.tensor([[1], [2]], dtype=torch.int32)
        q, lens = torch.ones(2, 1, 4, 8), torch.tensor([5, 1], dtype=torch.int32)
        out = flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, page_table=table)
    (access,) = memory.lanes.report.take_accesses()
    assert (access.buffer, access.offset, access.kind) == ("page_table", 1, "read")
    assert out.isfinite().all()


def test_query_offsets_that_decrease_break_a_rule_of_the_kernel() -> None:
    memory = GuardedMemory()
    k, v, table = _paged([3, 3])
    with memory.intercept("engine"):
        flash_attn_with_kvcache(
            torch.ones(2, 4, 8), k, v, cache_seqlens=torch.tensor([3, 3]).int(),
            page_table=table, cu_seqlens_q=torch.tensor([0, 2, 1]).int(), max_seqlen_q=2,
        )  # fmt: skip
    (misuse,) = memory.lanes.report.take_misuses()
    assert str(misuse).startswith("flash_attn_with_kvcache: cu_seqlens_q must not decrease; got 2")


def test_tokens_of_no_row_keep_what_was_there() -> None:
    k, v, table = _paged([3])
    out = torch.full((2, 4, 8), 7.0)
    flash_attn_with_kvcache(
        torch.ones(2, 4, 8), k, v, cache_seqlens=torch.tensor([3]).int(), page_table=table,
        cu_seqlens_q=torch.tensor([0, 1]).int(), max_seqlen_q=1, out=out,
    )  # fmt: skip
    assert (out[1] == 7.0).all() and (out[0] != 7.0).all()
