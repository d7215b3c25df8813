"""The model of FlashAttention with a paged cache, against dense attention and its own rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.flash_attention import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from fuzzgraph.kernel_models.flash_attention_plan import get_scheduler_metadata, plan_size
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
    assert (lse[1] == -torch.inf).all() and lse[0].isfinite().all()


def test_lengths_in_int64_are_refused_with_the_rule_and_its_source() -> None:
    k, v, table = _paged([5])
    with pytest.raises(KernelRefused, match=r"cache_seqlens must be int32; got int64 \(flash"):
        flash_attn_with_kvcache(
            torch.randn(1, 4, 8), k, v, cache_seqlens=torch.tensor([5]), page_table=table,
            cu_seqlens_q=torch.tensor([0, 1]).int(), max_seqlen_q=1,
        )  # fmt: skip


def test_an_argument_that_the_model_does_not_follow_is_no_finding_about_the_engine() -> None:
    k, v, table = _paged([5])
    with pytest.raises(KernelNotModelled, match="does not follow rotary_cos"):
        flash_attn_with_kvcache(
            torch.randn(1, 1, 4, 8), k, v, cache_seqlens=torch.tensor([5]).int(),
            page_table=table, rotary_cos=torch.randn(1),
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


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("used", [None, (4, 2, 0)])
def test_keys_one_row_behind_the_other_give_dense_attention(
    causal: bool, used: tuple[int, ...] | None
) -> None:
    torch.manual_seed(3)
    starts, lens = [0, 5, 7, 8], used or (5, 2, 1)
    k, v, q = torch.randn(8, 2, 8), torch.randn(8, 2, 4), torch.randn(4, 4, 8)
    out = flash_attn_varlen_func(
        q, k, v, _ints(0, 2, 3, 4), _ints(*starts), 2, 5, causal=causal,
        seqused_k=None if used is None else _ints(*used),
    )  # fmt: skip
    for row, (first, new) in enumerate([(0, 2), (2, 1), (3, 1)]):
        key = slice(starts[row], starts[row] + lens[row])
        visible = torch.ones(new, lens[row], dtype=torch.bool)
        if causal:
            visible = visible.tril(lens[row] - new)
        want, _ = dense_attention(q[first : first + new], k[key], v[key], visible, scale=8**-0.5)
        torch.testing.assert_close(out[first : first + new].double(), want, rtol=1e-6, atol=1e-6)


def test_queries_of_the_values_add_to_the_logits() -> None:
    k, v, table = _paged([6])
    q, qv = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=_ints(6), page_table=table, qv=qv)
    keys, values = _row(k, table, 0, 6), _row(v, table, 0, 6)
    want, _ = dense_attention(
        torch.cat((q[0], qv[0]), -1), torch.cat((keys, values), -1), values,
        torch.ones(1, 6).bool(), scale=16**-0.5,
    )  # fmt: skip
    torch.testing.assert_close(out[0].double(), want, rtol=1e-6, atol=1e-6)


def test_fp8_is_scaled_by_row_and_head_of_the_keys() -> None:
    k, v, table = (tensor.to(torch.float8_e4m3fn) for tensor in _paged([6, 3]))
    table = table.int()
    q = torch.randn(2, 1, 4, 8).to(torch.float8_e4m3fn)
    descales: dict[str, Any] = {f"{name}_descale": torch.rand(2, 2) + 0.5 for name in "qkv"}
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=_ints(6, 3), page_table=table, **descales)
    assert out.dtype == torch.bfloat16
    for row, length in enumerate((6, 3)):
        per_head = {name: tensor[row].double() for name, tensor in descales.items()}
        keys = _row(k.double(), table, row, length) * per_head["k_descale"][:, None]
        values = _row(v.double(), table, row, length) * per_head["v_descale"][:, None]
        queries = q[row].double() * per_head["q_descale"].repeat_interleave(2)[:, None]
        want, _ = dense_attention(
            queries, keys, values, torch.ones(1, length).bool(), scale=8**-0.5
        )
        torch.testing.assert_close(out[row].double(), want, rtol=2**-8, atol=1e-6)


def test_the_lse_of_equal_rows_has_the_batch_in_front() -> None:
    k, v, table = _paged([6, 3])
    q = torch.randn(2, 1, 4, 8)
    given: dict[str, Any] = {
        "cache_seqlens": _ints(6, 3), "page_table": table, "return_softmax_lse": True,
    }  # fmt: skip
    _, apart = flash_attn_with_kvcache(q, k, v, **given)
    _, packed = flash_attn_with_kvcache(
        q.flatten(0, 1), k, v, cu_seqlens_q=_ints(0, 1, 2), max_seqlen_q=1, **given
    )
    assert apart.shape == (2, 4, 1) and torch.equal(apart[:, :, 0].T, packed)


def _planned(rows: int) -> torch.Tensor:
    return get_scheduler_metadata(
        batch_size=rows, max_seqlen_q=1, max_seqlen_k=64, num_heads=4, num_heads_k=2, headdim=8,
        cache_seqlens=torch.arange(1, rows + 1).int(), qkv_dtype=torch.float16, causal=True,
        cu_seqlens_q=torch.arange(rows + 1).int(), page_size=PAGE,
    )  # fmt: skip


def _by_plan(plan: torch.Tensor | None) -> tuple[torch.Tensor, list[str]]:
    """Outputs of three rows, none of which was written before, and what the launch broke."""
    memory = GuardedMemory()
    k, v, table = _paged([1, 2, 3])
    out = torch.full((3, 4, 8), 7.0)
    with memory.intercept("engine"):
        flash_attn_with_kvcache(
            torch.ones(3, 4, 8), k, v, cache_seqlens=_ints(1, 2, 3), page_table=table,
            cu_seqlens_q=_ints(0, 1, 2, 3), max_seqlen_q=1, causal=True, out=out,
            scheduler_metadata=plan,
        )  # fmt: skip
    return out, [misuse.rule for misuse in memory.lanes.report.take_misuses()]


def test_a_plan_of_the_batch_changes_nothing() -> None:
    planned, broken = _by_plan(_planned(3))
    assert torch.equal(planned, _by_plan(None)[0]) and not broken


def test_rows_that_a_plan_does_not_list_are_not_computed() -> None:
    plan = _planned(3)
    plan[8:11] = torch.tensor([2, 0, 0])
    out, broken = _by_plan(plan)
    assert (out[1] == 7.0).all() and (out[[0, 2]] != 7.0).all()
    assert broken == ["scheduler_metadata must list each row of the batch once"]


def test_an_empty_plan_computes_nothing_and_breaks_two_rules() -> None:
    out, broken = _by_plan(torch.zeros_like(_planned(3)))
    assert (out == 7.0).all() and len(broken) == 2


def test_a_plan_of_another_size_is_refused() -> None:
    with pytest.raises(KernelRefused, match=r"scheduler_metadata must have shape \[13\]"):
        _by_plan(_planned(5))


@pytest.mark.parametrize(
    ("rows", "columns", "window", "size"),
    [(3, 8, (-1, -1), 13), (5, 8, (-1, -1), 25), (3, 128, (-1, -1), 17), (3, 8, (2, 0), 13)],
)
def test_the_size_of_a_plan_follows_from_what_is_planned(
    rows: int, columns: int, window: tuple[int, int], size: int
) -> None:
    # 1 counter, then 3 vectors of rows, or a fourth if a mask is left
    assert plan_size(rows, 1, 64, columns, True, window) == size


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"page_table": torch.zeros(1, 4).int()[:, ::2]}, "page_table must be contiguous in its"),
        ({"cache_seqlens": _ints(5, 5)}, r"cache_seqlens must have shape \[1\]"),
        ({"cu_seqlens_q": _ints(0, 1, 1), "max_seqlen_q": 1}, "cu_seqlens_q must hold 2 offsets"),
        ({"cu_seqlens_q": _ints(0, 1)}, "max_seqlen_q must be given with cu_seqlens_q"),
        ({"out": torch.zeros(1, 1, 4, 8, dtype=torch.float16)}, "out must be float32"),
        ({"qv": torch.zeros(1, 1, 4, 4)}, r"qv must have shape \[1, 1, 4, 8\]"),
    ],
)
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], message: str) -> None:
    k, v, table = _paged([5])
    given: dict[str, Any] = {
        "q": torch.randn(1, 1, 4, 8),
        "cache_seqlens": _ints(5),
        "page_table": table,
    }
    if "cu_seqlens_q" in changed:
        given["q"] = given["q"][0]
    call = {**given, **changed}
    with pytest.raises(KernelRefused, match=message):
        flash_attn_with_kvcache(k_cache=k, v_cache=v, **call)
