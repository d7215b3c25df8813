"""The models of AITER's attention, against dense attention and their own rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.aiter import (
    flash_attn_varlen_func_aiter,
    mha_batch_prefill_func,
    mla_decode_fwd,
    mla_prefill_fwd,
    paged_attention_ragged,
    unified_attention,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.dense import dense_attention

HEADS, COLUMNS = 2, 8
ONE = torch.ones(1)


def _scattered(lens: list[int], page: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(int32 [B + 1] offsets, int32 pages, int32 [B] keys in each last page)."""
    counts = [-(-length // page) for length in lens]
    pages = torch.randperm(sum(counts) + 3)[: sum(counts)]
    last = [length - (count - 1) * page if count else 0 for length, count in
            zip(lens, counts, strict=True)]  # fmt: skip
    offsets = torch.tensor([0, *counts]).cumsum(0)
    return offsets.int(), pages.int(), torch.tensor(last).int()


def _held(cache: torch.Tensor, pages: torch.Tensor, length: int) -> torch.Tensor:
    """[length, heads, columns] of one row."""
    return cache[pages.long()].flatten(0, 1)[:length]


def _causal(new: int, length: int, window: int = -1) -> torch.Tensor:
    seen = torch.zeros(new, length, dtype=torch.bool)
    for token in range(new):
        for key in range(length):
            at = length - new + token
            seen[token, key] = key <= at and (window < 0 or key >= at - window)
    return seen


# ---- ragged decode


def _ragged(lens: list[int], page: int = 1, layout: str = "NHD", **changes: Any) -> Any:
    """(the call's arguments, keys and values as [pages, page, heads, columns])."""
    torch.manual_seed(1)
    offsets, pages, last = _scattered(lens, page)
    shape = (len(pages) + 3, page, HEADS, COLUMNS)
    k, v = torch.randn(shape), torch.randn(shape)
    q = torch.randn(len(lens), 2 * HEADS, COLUMNS)
    flipped = [each.transpose(1, 2).contiguous() if layout == "HND" else each for each in (k, v)]
    cells = len(lens) * 2 * HEADS
    call: dict[str, Any] = dict(
        out=torch.full_like(q, 7.0), workspace_buffer=torch.empty(cells * 17).byte(),
        query=q, key_cache=flipped[0], value_cache=flipped[1], scale=0.5, kv_indptr=offsets,
        kv_page_indices=pages, kv_last_page_lens=last, block_size=page, max_num_partitions=1,
        alibi_slopes=None, kv_cache_dtype="auto", kv_cache_layout=layout, logits_soft_cap=0.0,
        k_scale=ONE, v_scale=ONE,
    )  # fmt: skip
    return call | changes, (k, v)


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_ragged_rows_give_dense_attention(page: int, layout: str, softcap: float) -> None:
    lens = [5, 1, 9]
    call, (k, v) = _ragged(lens, page, layout, logits_soft_cap=softcap)
    paged_attention_ragged(**call)
    offsets = call["kv_indptr"].tolist()
    for row, length in enumerate(lens):
        pages = call["kv_page_indices"][offsets[row] : offsets[row + 1]]
        want, _ = dense_attention(
            call["query"][row : row + 1], _held(k, pages, length), _held(v, pages, length),
            torch.ones(1, length).bool(), scale=0.5, softcap=softcap,
        )  # fmt: skip
        torch.testing.assert_close(call["out"][row].double(), want[0], rtol=1e-6, atol=1e-6)


def test_a_ragged_row_without_keys_keeps_what_was_there() -> None:
    call, _ = _ragged([3, 0])
    paged_attention_ragged(**call)
    assert (call["out"][1] == 7.0).all() and (call["out"][0] != 7.0).all()


def test_fp8_keys_and_values_are_scaled_by_what_the_caller_passes() -> None:
    call, (k, v) = _ragged([3], k_scale=ONE * 2, v_scale=ONE * 0.5, kv_cache_dtype="fp8_e4m3")
    stored = [each.to(torch.float8_e4m3fn) for each in (k, v)]
    paged_attention_ragged(**call | {"key_cache": stored[0], "value_cache": stored[1]})
    pages = call["kv_page_indices"]
    want, _ = dense_attention(
        call["query"], 2 * _held(stored[0].float(), pages, 3),
        0.5 * _held(stored[1].float(), pages, 3), torch.ones(1, 3).bool(), scale=0.5,
    )  # fmt: skip
    torch.testing.assert_close(call["out"].double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"kv_indptr": torch.tensor([0, 3])}, "kv_indptr must be int32; got int64"),
        ({"workspace_buffer": torch.empty(3).byte()}, "workspace_buffer must hold 68 bytes"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype is one of"),
        ({"kv_cache_layout": "DHN"}, "kv_cache_layout is one of"),
        ({"value_cache": torch.zeros(6, 1, HEADS, 4)}, "must have 8 columns and the same strides"),
        ({"key_cache": torch.zeros(6, 1, HEADS, 8).half()}, "key_cache must be float32"),
    ],
)
def test_the_ragged_kernel_refuses(changes: dict[str, Any], rule: str) -> None:
    call, _ = _ragged([3], **changes)
    with pytest.raises(KernelRefused, match=rule):
        paged_attention_ragged(**call)


def test_alibi_is_not_followed() -> None:
    call, _ = _ragged([3], alibi_slopes=ONE)
    with pytest.raises(KernelNotModelled, match="alibi_slopes"):
        paged_attention_ragged(**call)


def test_a_row_beyond_the_partitions_breaks_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        call, _ = _ragged([5], partition_size=4)
        paged_attention_ragged(**call)
    (misuse,) = memory.lanes.report.take_misuses()
    assert "may have 4 keys" in str(misuse) and "5 at row 0" in str(misuse)


@pytest.mark.parametrize("whole", [False, True])
def test_a_list_is_read_behind_the_part_that_the_kernel_got(whole: bool) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        call, _ = _ragged([3, 4])
        pages = call["kv_page_indices"]
        if whole:
            memory.let_kernels_read_whole([pages])
        paged_attention_ragged(**call | {"kv_page_indices": pages[:2]})
    assert memory.lanes.report.take_misuses() == []
    read = {access.buffer for access in memory.lanes.report.take_accesses()}
    assert read == (set() if whole else {"kv_page_indices"})


def test_offsets_shorter_than_the_batch_are_read_beyond_their_end() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        call, _ = _ragged([5, 3])
        paged_attention_ragged(**call | {"kv_indptr": call["kv_indptr"][:2].clone()})
    found = memory.lanes.report.take_accesses()
    assert ("kv_indptr", 2) in {(access.buffer, access.offset) for access in found}


def test_a_replayed_ragged_call_reads_the_present_offsets() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    with memory.intercept("engine"):
        call, (k, v) = _ragged([5])
    graph = graphs.capture(lambda: paged_attention_ragged(**call), key="decode/1")
    call["kv_indptr"][1] = 2
    with memory.over_lanes():
        graph.replay()
    pages = call["kv_page_indices"]
    want, _ = dense_attention(
        call["query"], _held(k, pages, 2), _held(v, pages, 2), torch.ones(1, 2).bool(), scale=0.5
    )
    torch.testing.assert_close(call["out"].double(), want, rtol=1e-6, atol=1e-6)


# ---- unified


def _unified(lens: list[int], news: list[int], page: int = 4, **changes: Any) -> Any:
    torch.manual_seed(1)
    width = max(1, max(-(-length // page) for length in lens))
    table = torch.randperm(width * len(lens) + 2)[: width * len(lens)].view(len(lens), width)
    shape = (width * len(lens) + 2, page, HEADS, COLUMNS)
    q = torch.randn(sum(news), 2 * HEADS, COLUMNS)
    call: dict[str, Any] = dict(
        q=q, k=torch.randn(shape), v=torch.randn(shape), out=torch.full_like(q, 7.0),
        cu_seqlens_q=torch.tensor([0, *news]).cumsum(0).int(), max_seqlen_q=max(news),
        seqused_k=torch.tensor(lens), max_seqlen_k=width * page, softmax_scale=0.5, causal=True,
        window_size=(-1, -1), block_table=table.int(), softcap=0.0, q_descale=None, k_descale=None,
        v_descale=None,
    )  # fmt: skip
    return call | changes


@pytest.mark.parametrize("news", [[1, 1, 1], [3, 1, 2]])
@pytest.mark.parametrize("window", [-1, 2])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_unified_rows_give_dense_attention(
    news: list[int], window: int, softcap: float, with_sinks: bool
) -> None:
    lens = [5, 9, 2]
    sinks = torch.randn(2 * HEADS) if with_sinks else None
    call = _unified(lens, news, window_size=(window, 0), softcap=softcap, sinks=sinks)
    unified_attention(**call)
    first = 0
    for row, (length, new) in enumerate(zip(lens, news, strict=True)):
        pages = call["block_table"][row]
        want, _ = dense_attention(
            call["q"][first : first + new], _held(call["k"], pages, length),
            _held(call["v"], pages, length), _causal(new, length, window), scale=0.5,
            softcap=softcap, sinks=sinks,
        )  # fmt: skip
        got = call["out"][first : first + new].double()
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        first += new


def test_strided_heads_of_one_key_head_are_read_as_they_are() -> None:
    call = _unified([5], [2])
    one = {name: call[name][:, :, :1].expand(-1, -1, 2 * HEADS, -1) for name in ("k", "v")}
    unified_attention(**call | one)
    pages = call["block_table"][0]
    want, _ = dense_attention(
        call["q"], _held(one["k"], pages, 5), _held(one["v"], pages, 5), _causal(2, 5), scale=0.5
    )
    torch.testing.assert_close(call["out"].double(), want, rtol=1e-6, atol=1e-6)


def test_descales_count_together_or_not_at_all() -> None:
    plain, scaled = _unified([5], [1]), _unified([5], [1], k_descale=ONE * 3)
    unified_attention(**plain)
    unified_attention(**scaled)
    torch.testing.assert_close(plain["out"], scaled["out"])
    both = _unified([5], [1], k_descale=ONE * 3, v_descale=ONE * 2)
    unified_attention(**both)
    pages = both["block_table"][0]
    want, _ = dense_attention(
        both["q"], 3 * _held(both["k"], pages, 5), 2 * _held(both["v"], pages, 5),
        torch.ones(1, 5).bool(), scale=0.5,
    )  # fmt: skip
    torch.testing.assert_close(both["out"].double(), want, rtol=1e-6, atol=1e-6)


def test_tokens_that_see_no_key_keep_what_was_there() -> None:
    call = _unified([0, 1], [1, 2])
    unified_attention(**call)
    assert (call["out"][:2] == 7.0).all() and (call["out"][2] != 7.0).all()


def test_unified_attention_that_is_not_causal_is_refused() -> None:
    with pytest.raises(KernelRefused, match="only causal attention"):
        unified_attention(**_unified([5], [1], causal=False))


def test_as_many_sinks_as_query_heads_are_needed() -> None:
    with pytest.raises(KernelRefused, match="sinks must hold 4 logits"):
        unified_attention(**_unified([5], [1], sinks=torch.zeros(2)))


def test_offsets_of_several_tokens_with_a_longest_of_one_break_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        unified_attention(**_unified([5, 5], [2, 1], max_seqlen_q=1))
    (misuse,) = memory.lanes.report.take_misuses()
    assert "one token to a row where max_seqlen_q is 1; got [0, 2, 3]" in str(misuse)


def test_a_row_longer_than_its_block_table_is_recorded() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        call = _unified([8, 8], [1, 1])
        unified_attention(**call | {"block_table": call["block_table"][:, :1].contiguous()})
    found = memory.lanes.report.take_accesses()
    assert {access.buffer for access in found} == {"block_table"}


# ---- latent


def _latent(lens: list[int], news: list[int], page: int = 1, **changes: Any) -> Any:
    torch.manual_seed(1)
    offsets, pages, last = _scattered(lens, page)
    q = torch.randn(sum(news), 16, COLUMNS)
    call: dict[str, Any] = dict(
        q=q, kv_buffer=torch.randn(len(pages) + 3, page, 1, COLUMNS),
        o=torch.full((sum(news), 16, 5), 7.0),
        qo_indptr=torch.tensor([0, *news]).cumsum(0).int(), kv_indptr=offsets, kv_indices=pages,
        kv_last_page_lens=last, max_seqlen_q=max(news), page_size=page, sm_scale=0.5,
    )  # fmt: skip
    return call | changes


@pytest.mark.parametrize("kernel", ["decode", "prefill"])
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("news", [[1, 1, 1], [3, 1, 2]])
def test_latent_rows_give_dense_attention(kernel: str, page: int, news: list[int]) -> None:
    lens = [5, 9, 2]
    call = _latent(lens, news, page)
    if kernel == "decode":
        _, lse = mla_decode_fwd(**call, return_lse=True)
        assert lse is not None
    else:
        given = {name: value for name, value in call.items() if name != "page_size"}
        lse = mla_prefill_fwd(**given)[1].view(-1, 16)
    first, offsets = 0, call["kv_indptr"].tolist()
    for row, (length, new) in enumerate(zip(lens, news, strict=True)):
        pages = call["kv_indices"][offsets[row] : offsets[row + 1]]
        keys = _held(call["kv_buffer"], pages, length)
        want, sums = dense_attention(
            call["q"][first : first + new], keys, keys[..., :5], _causal(new, length), scale=0.5
        )
        got = call["o"][first : first + new].double()
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse[first : first + new].T.double(), sums, rtol=1e-6, atol=1e-6)
        first += new


def test_fp8_latent_rows_are_scaled_as_keys_and_as_values() -> None:
    call = _latent([5], [1], q_scale=ONE * 2, kv_scale=ONE * 3)
    call |= {name: call[name].to(torch.float8_e4m3fn) for name in ("q", "kv_buffer")}
    mla_decode_fwd(**call)
    keys = 3 * _held(call["kv_buffer"].float(), call["kv_indices"], 5)
    want, _ = dense_attention(
        2 * call["q"].float(), keys, keys[..., :5], torch.ones(1, 5).bool(), scale=0.5
    )
    torch.testing.assert_close(call["o"].double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"logit_cap": 1.0}, "logit_cap is not supported"),
        ({"nhead_kv": 2}, "one head of keys"),
        ({"q": torch.zeros(1, 16, 2 * COLUMNS)[..., :COLUMNS]}, "q must be contiguous"),
        ({"q": torch.zeros(1, 16, 6)}, "q must have 8 columns; got 6"),
        ({"q": torch.zeros(1, 16, COLUMNS).half()}, "q must be bfloat16 or"),
        ({"o": torch.zeros(1, 4, 5)}, "query heads are one of"),
        ({"kv_indices": torch.arange(5)}, "kv_indices must be int32; got int64"),
    ],
)
def test_the_latent_kernel_refuses(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        mla_decode_fwd(**_latent([5], [1], **changes))


def test_parts_of_a_plan_without_its_first_are_not_read() -> None:
    call = _latent([5], [1])
    mla_decode_fwd(**call, work_indptr=torch.zeros(1), num_kv_splits=3)
    assert (call["o"] != 7.0).all()


def test_a_last_page_that_holds_nothing_breaks_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        mla_decode_fwd(**_latent([5], [1], kv_last_page_lens=torch.zeros(1).int()))
    (misuse,) = memory.lanes.report.take_misuses()
    assert "kv_last_page_lens must be between 1 and 1; got 0 at row 0" in str(misuse)


def test_a_row_with_more_tokens_than_the_longest_breaks_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        mla_decode_fwd(**_latent([5], [3], max_seqlen_q=2))
    (misuse,) = memory.lanes.report.take_misuses()
    assert "max_seqlen_q must be at least the tokens of every row" in str(misuse)


# ---- prefill


def _dense_rows(call: Any, keys: Any, lens: list[int], news: list[int], **how: Any) -> Any:
    """([T, Hq, Dv], [Hq, T]) of all rows by dense attention; `keys(row)` gives (keys, values)."""
    outs, sums, first = [], [], 0
    for row, (length, new) in enumerate(zip(lens, news, strict=True)):
        k, v = keys(row)
        window = how.get("window", -1)
        out, lse = dense_attention(
            call["q"][first : first + new], k, v, _causal(new, length, window), scale=0.5,
            softcap=how.get("softcap", 0.0), sinks=how.get("sinks"),
        )  # fmt: skip
        outs.append(out)
        sums.append(lse)
        first += new
    return torch.cat(outs), torch.cat(sums, 1)


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("window", [-1, 2])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_prefill_over_listed_pages_gives_dense_attention(
    page: int, window: int, with_sinks: bool
) -> None:
    torch.manual_seed(1)
    lens, news = [5, 9, 2], [3, 1, 2]
    offsets, pages, last = _scattered(lens, page)
    shape = (len(pages) + 3, page, HEADS, COLUMNS)
    k, v, sinks = torch.randn(shape), torch.randn(shape), torch.randn(2 * HEADS)
    call: dict[str, Any] = dict(
        q=torch.randn(sum(news), 2 * HEADS, COLUMNS), k=k if page > 1 else k[:, 0],
        v=v if page > 1 else v[:, 0], kv_indptr=offsets, kv_page_indices=pages,
        cu_seqlens_q=torch.tensor([0, *news]).cumsum(0).int(), max_seqlen_q=3, max_seqlen_k=9,
        softmax_scale=0.5, causal=True, window_size=(window, -1), return_lse=True,
        sink_ptr=sinks if with_sinks else None, kv_last_page_lens=last if page > 1 else None,
        logits_soft_cap=1.5, alibi_slopes=None, return_attn_probs=False,
    )  # fmt: skip
    out, lse = mha_batch_prefill_func(**call)

    def keys(row: int) -> Any:
        own = pages[int(offsets[row]) : int(offsets[row + 1])]
        return _held(k, own, lens[row]), _held(v, own, lens[row])

    want, sums = _dense_rows(
        call, keys, lens, news, window=window, softcap=1.5, sinks=sinks if with_sinks else None
    )
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-6, atol=1e-6)


def test_keys_one_behind_the_other_give_dense_attention() -> None:
    torch.manual_seed(1)
    lens, news = [5, 9, 2], [3, 1, 2]
    k, v = torch.randn(16, HEADS, COLUMNS), torch.randn(16, HEADS, 5)
    starts = torch.tensor([0, *lens]).cumsum(0).int()
    call: dict[str, Any] = dict(
        q=torch.randn(6, 2 * HEADS, COLUMNS), k=k, v=v, cu_seqlens_k=starts, max_seqlen_q=3,
        cu_seqlens_q=torch.tensor([0, *news]).cumsum(0).int(), max_seqlen_k=9, softmax_scale=0.5,
        causal=True,
    )  # fmt: skip
    out = flash_attn_varlen_func_aiter(**call)

    def keys(row: int) -> Any:
        low, high = int(starts[row]), int(starts[row + 1])
        return k[low:high], v[low:high]

    want, _ = _dense_rows(call, keys, lens, news)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def test_pages_without_the_lengths_of_their_last_are_refused() -> None:
    with pytest.raises(KernelRefused, match="kv_last_page_lens must be given with pages"):
        mha_batch_prefill_func(
            torch.zeros(1, 2, COLUMNS), torch.zeros(2, 4, 2, COLUMNS),
            torch.zeros(2, 4, 2, COLUMNS), torch.tensor([0, 1]).int(), torch.tensor([0, 1]).int(),
            torch.tensor([1]).int(), 1, 4,
        )  # fmt: skip


def test_keys_beyond_what_offsets_cut_break_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        k = torch.zeros(4, 2, COLUMNS)
        flash_attn_varlen_func_aiter(
            torch.zeros(1, 2, COLUMNS), k, k.clone(), torch.tensor([0, 1]).int(),
            torch.tensor([0, 9]).int(), 1, 9,
        )  # fmt: skip
    rules = [str(misuse) for misuse in memory.lanes.report.take_misuses()]
    assert any("cu_seqlens_k must not end beyond the 4 entries" in rule for rule in rules)
    assert {access.buffer for access in memory.lanes.report.take_accesses()} == {"k", "v"}
