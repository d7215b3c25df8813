"""The models of FlashInfer's ragged and latent wrappers and of its merge of partial results."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.flashinfer import (
    BatchMLAPagedAttentionWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    merge_state,
    merge_states,
)
from tests.kernel_models.dense import dense_attention
from tests.kernel_models.flashinfer.batches import (
    COLUMNS,
    HEADS,
    KV_HEADS,
    Pages,
    decode_wrapper,
    offsets,
    plan_decode,
    workspace,
)

LATENT, ROPE = 8, 4
LOG2 = float(torch.log(torch.tensor(2.0)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_ragged_rows_give_dense_attention(causal: bool, layout: str) -> None:
    lens, news = [3, 5], [2, 4]
    torch.manual_seed(2)
    k, v = torch.randn(8, KV_HEADS, COLUMNS), torch.randn(8, KV_HEADS, 6)
    q = torch.randn(6, HEADS, COLUMNS)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(), layout)
    wrapper.begin_forward(
        offsets(news), offsets(lens), HEADS, KV_HEADS, COLUMNS, 6, q_data_type=q.dtype
    )
    held = (k, v) if layout == "NHD" else tuple(x.transpose(0, 1).contiguous() for x in (k, v))
    out, lse = wrapper.forward_return_lse(q, *held, causal=causal, sm_scale=0.3)
    for row, (first, start) in enumerate(((0, 0), (2, 3))):
        new, length = news[row], lens[row]
        seen = torch.ones(new, length).tril(length - new).bool() | (not causal)
        part = slice(first, first + new)
        keys = slice(start, start + length)
        want, sums = dense_attention(q[part], k[keys], v[keys], seen, scale=0.3)
        torch.testing.assert_close(out[part].double(), want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse[part].double(), sums.T / LOG2, rtol=1e-6, atol=1e-6)


def test_a_cutlass_wrapper_is_made_and_not_planned() -> None:
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD", backend="cutlass")
    with pytest.raises(KernelNotModelled, match="backend='cutlass'"):
        wrapper.plan(offsets([1]), offsets([1]), HEADS, KV_HEADS, COLUMNS)


def test_parts_of_the_keys_merge_into_attention_over_all_of_them() -> None:
    batch = Pages([6, 4], [1, 1])
    want, sums = batch.expected(lambda *_: True, scale=COLUMNS**-0.5)
    parts = []
    for low, high in ((0, 2), (2, 6)):
        part = Pages([6, 4], [1, 1])
        lens = [min(6, high) - low, min(4, high) - low]
        starts = torch.tensor([0, 6]) + low
        part.indices = torch.cat(
            [batch.indices[at : at + n] for at, n in zip(starts, lens, strict=True)]
        )
        part.indptr = offsets(lens)
        wrapper = decode_wrapper(part)
        plan_decode(wrapper, part)
        parts.append(wrapper.run(part.q, part.cache, return_lse=True))
    (v_a, s_a), (v_b, s_b) = parts
    merged, lse = merge_state(v_a, s_a, v_b, s_b)
    torch.testing.assert_close(merged.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-6, atol=1e-6)
    stacked, _ = merge_states(torch.stack((v_a, v_b), 1), torch.stack((s_a, s_b), 1))
    torch.testing.assert_close(stacked, merged)


def test_a_part_without_keys_has_no_weight() -> None:
    v, s = torch.randn(1, 2, 4), torch.randn(1, 2)
    none = torch.full_like(s, -torch.inf)
    merged, lse = merge_states(torch.stack((v, torch.ones_like(v)), 1), torch.stack((s, none), 1))
    torch.testing.assert_close(merged, v)
    torch.testing.assert_close(lse, s)


def test_parts_of_other_shapes_are_refused() -> None:
    with pytest.raises(KernelRefused, match=r"s_b must have shape \[1, 2\]"):
        merge_state(*(torch.zeros(1, 2, 4), torch.zeros(1, 2)) * 1, torch.zeros(1, 2, 4),
                    torch.zeros(2, 1))  # fmt: skip


class Latent:
    """Latent rows in scattered pages, and queries behind them."""

    def __init__(self, lens: list[int], news: list[int], page: int = 1) -> None:
        torch.manual_seed(3)
        self.lens, self.news, self.page = lens, news, page
        counts = [-(-n // page) for n in lens]
        self.indices = (torch.randperm(sum(counts)) + 1).int()
        self.qo, self.kv = offsets(news), offsets(counts)
        self.cache = torch.randn(sum(counts) + 1, page, LATENT + ROPE)
        self.q = torch.randn(sum(news), HEADS, LATENT + ROPE)

    def wrapper(self, graph: bool = True) -> BatchMLAPagedAttentionWrapper:
        rows = len(self.lens)
        return BatchMLAPagedAttentionWrapper(
            workspace(), use_cuda_graph=graph,
            qo_indptr=torch.zeros(rows + 1, dtype=torch.int32),
            kv_indptr=torch.zeros(rows + 1, dtype=torch.int32),
            kv_indices=torch.zeros(32, dtype=torch.int32),
            kv_len_arr=torch.zeros(rows, dtype=torch.int32),
        )  # fmt: skip

    def plan(self, wrapper: BatchMLAPagedAttentionWrapper, causal: bool) -> None:
        wrapper.plan(
            self.qo, self.kv, self.indices, torch.tensor(self.lens).int(), HEADS, LATENT, ROPE,
            self.page, causal, 0.25, self.q.dtype, self.cache.dtype,
        )  # fmt: skip

    def run(self, wrapper: BatchMLAPagedAttentionWrapper) -> tuple[torch.Tensor, torch.Tensor]:
        q, cache = self.q, self.cache
        found: tuple[torch.Tensor, torch.Tensor] = wrapper.run(
            q[..., :LATENT], q[..., LATENT:], cache[..., :LATENT], cache[..., LATENT:],
            return_lse=True,
        )  # fmt: skip
        return found

    def expected(self, row: int, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        used = self.indices[self.kv[row] : self.kv[row + 1]].long()
        keys = self.cache[used].flatten(0, 1)[: self.lens[row], None]
        new, length = self.news[row], self.lens[row]
        seen = torch.ones(new, length).tril(length - new).bool() | (not causal)
        part = slice(int(self.qo[row]), int(self.qo[row + 1]))
        return dense_attention(self.q[part], keys, keys[..., :LATENT], seen, scale=0.25)


class TestMla:
    @pytest.mark.parametrize("page", [1, 4])
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("graph", [False, True])
    def test_latent_rows_give_dense_attention(self, page: int, causal: bool, graph: bool) -> None:
        batch = Latent([5, 9, 2], [2, 3, 1], page)
        wrapper = batch.wrapper(graph)
        batch.plan(wrapper, causal)
        out, lse = batch.run(wrapper)
        for row in range(3):
            want, sums = batch.expected(row, causal)
            part = slice(int(batch.qo[row]), int(batch.qo[row + 1]))
            torch.testing.assert_close(out[part].double(), want, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(lse[part].double(), sums.T / LOG2, rtol=1e-6, atol=1e-6)

    def test_the_device_s_offsets_and_lengths_are_not_read(self) -> None:
        batch = Latent([5, 3], [1, 1])
        wrapper = batch.wrapper()
        batch.plan(wrapper, False)
        before, _ = batch.run(wrapper)
        for name in ("qo_indptr", "kv_indptr", "kv_len_arr"):
            wrapper.buffer(name).fill_(7)
        after, _ = batch.run(wrapper)
        assert torch.equal(before, after)

    def test_a_row_without_keys_gives_zeros(self) -> None:
        batch = Latent([0, 3], [1, 1])
        wrapper = batch.wrapper()
        batch.plan(wrapper, False)
        out, lse = batch.run(wrapper)
        assert (out[0] == 0).all() and lse[0].isinf().all() and (out[1] != 0).all()

    def test_host_offsets_in_int64_are_refused(self) -> None:
        batch = Latent([5], [1])
        batch.kv = batch.kv.long()
        with pytest.raises(KernelRefused, match="kv_indptr must be int32; got int64"):
            batch.plan(batch.wrapper(), False)

    def test_outputs_of_another_shape_are_refused(self) -> None:
        batch = Latent([5], [1])
        wrapper = batch.wrapper()
        batch.plan(wrapper, False)
        q, cache = batch.q, batch.cache
        with pytest.raises(KernelRefused, match=r"out must be \[1, 4, 8\]"):
            wrapper.run(
                q[..., :LATENT], q[..., LATENT:], cache[..., :LATENT], cache[..., LATENT:],
                out=torch.empty(1, HEADS, LATENT + ROPE),
            )  # fmt: skip
