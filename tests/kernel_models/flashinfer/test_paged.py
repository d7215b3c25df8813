"""The models of FlashInfer's wrappers over pages, against dense attention and their own rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.accesses import Misuse
from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    fast_decode_plan,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.flashinfer.batches import (
    COLUMNS,
    HEADS,
    KV_HEADS,
    Pages,
    decode_wrapper,
    plan_decode,
    plan_prefill,
    prefill_wrapper,
    workspace,
)

SCALE = COLUMNS**-0.5
FP8 = torch.float8_e4m3fn


def sees_all(*_: int) -> bool:
    return True


def sees_behind(_row: int, _query: int, key: int, place: int) -> bool:
    return key <= place


def misuses(run: Any) -> list[Misuse]:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        run()
    return list(memory.lanes.report.take_misuses())


def fp8_queries(
    page: int,
    keys: torch.dtype = FP8,
    outputs: torch.dtype = torch.float32,
    seq_lens: torch.Tensor | None = None,
    **given: Any,
) -> tuple[Any, Pages]:
    """(a wrapper that is planned for queries in FP8, the batch); rows of 5 and 3 keys."""
    batch = Pages([5, 3], [1, 1], page, dtype=FP8)
    wrapper = decode_wrapper(batch, **{"use_tensor_cores": True, **given})
    wrapper.plan(
        batch.indptr, batch.indices, batch.last, HEADS, KV_HEADS, COLUMNS, page, q_data_type=FP8,
        kv_data_type=keys, o_data_type=outputs, seq_lens=seq_lens,
    )  # fmt: skip
    return wrapper, batch


class TestDecode:
    @pytest.mark.parametrize("page", [1, 4])
    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    @pytest.mark.parametrize("tensor_cores", [False, True])
    def test_rows_of_different_length_give_dense_attention(
        self, page: int, layout: str, tensor_cores: bool
    ) -> None:
        batch = Pages([5, 1, 9], [1, 1, 1], page, layout)
        wrapper = decode_wrapper(batch, use_tensor_cores=tensor_cores)
        plan_decode(wrapper, batch)
        out, lse = wrapper.run(batch.q, batch.cache, return_lse=True)
        want, sums = batch.expected(sees_all, scale=SCALE)
        torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse.double(), sums, rtol=1e-6, atol=1e-6)

    def test_a_cache_in_fp8_is_scaled(self) -> None:
        batch = Pages([5, 3], [1, 1], dtype=torch.float8_e4m3fn)
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        out = wrapper.forward(batch.q, batch.cache, sm_scale=0.5, k_scale=2.0, v_scale=3.0)
        want, _ = batch.expected(sees_all, scale=1.0)
        torch.testing.assert_close(out.double(), want * 3, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("page", [1, 4])
    def test_queries_in_fp8_are_attended_by_offsets_and_lengths_of_the_plan(
        self, page: int
    ) -> None:
        wrapper, batch = fp8_queries(page)
        for name in ("paged_kv_indptr", "paged_kv_last_page_len"):
            wrapper.buffer(name).fill_(1)  # of which its kernel reads nothing
        q = batch.q.to(FP8)
        out = wrapper.run(q, batch.cache, q_scale=0.5, k_scale=2.0, v_scale=3.0)
        batch.q = q.float()
        want, _ = batch.expected(sees_all, scale=SCALE)
        torch.testing.assert_close(out.double(), want * 3, rtol=1e-5, atol=1e-5)

    def test_a_fast_plan_of_queries_in_fp8_goes_by_last_pages(self) -> None:
        wrapper, batch = fp8_queries(page=4)
        fast_decode_plan(
            wrapper, batch.indptr, batch.indices, torch.tensor([4, 2]).int(), HEADS, KV_HEADS,
            COLUMNS, 4,
        )  # fmt: skip
        (out,) = wrapper.run(batch.q.to(FP8), batch.cache)[1:]
        batch.q = batch.q.to(FP8).float()
        want, _ = batch.expected(lambda row, _q, key, _p: row == 0 or key < 2, scale=SCALE)
        torch.testing.assert_close(out.double(), want[1], rtol=1e-5, atol=1e-5)

    def test_lengths_that_a_plan_gets_go_before_those_of_last_pages(self) -> None:
        wrapper, batch = fp8_queries(page=4, seq_lens=torch.tensor([5, 1]))
        batch.q = batch.q.to(FP8).float()
        want, _ = batch.expected(lambda row, _q, key, _p: row == 0 or key < 1, scale=SCALE)
        got = wrapper.run(batch.q.to(FP8), batch.cache)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"backend": "fa2"}, "queries in FP8 must not be for backend fa2"),
            ({"keys": torch.float32}, "kv_data_type must be FP8 as queries are"),
            ({"outputs": torch.float8_e4m3fn}, "o_data_type must not be FP8"),
        ],
    )
    def test_queries_in_fp8_have_a_kernel_for_few_dtypes(self, given: Any, said: str) -> None:
        with pytest.raises(KernelRefused, match=said):
            fp8_queries(1, **given)

    def test_queries_in_fp8_without_tensor_cores_are_not_modelled(self) -> None:
        with pytest.raises(KernelNotModelled, match="queries in FP8 without tensor cores"):
            fp8_queries(1, use_tensor_cores=False)

    def test_keys_and_values_in_one_tensor_of_strided_pages(self) -> None:
        batch = Pages([5, 3], [1, 1], 2)
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        both = torch.stack((batch.k, batch.v), 1)
        want, _ = batch.expected(sees_all, scale=SCALE)
        torch.testing.assert_close(wrapper.run(batch.q, both).double(), want, rtol=1e-6, atol=1e-6)

    def test_a_row_without_pages_gives_zeros(self) -> None:
        batch = Pages([0, 3], [1, 1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        out, lse = wrapper.run(batch.q, batch.cache, return_lse=True)
        assert (out[0] == 0).all() and lse[0].isinf().all() and (out[1] != 0).all()

    def test_a_window_and_capped_logits_are_those_of_the_planned_kernel(self) -> None:
        batch = Pages([9, 3], [1, 1])
        wrapper = decode_wrapper(batch, use_tensor_cores=True)
        plan_decode(wrapper, batch, window_left=2, logits_soft_cap=1.5)
        want, _ = batch.expected(
            lambda _r, _q, key, place: key >= place - 2, scale=SCALE, softcap=1.5
        )
        torch.testing.assert_close(
            wrapper.run(batch.q, batch.cache).double(), want, rtol=1e-6, atol=1e-6
        )

    def test_logits_are_not_capped_by_a_kernel_that_was_not_planned_for_it(self) -> None:
        batch = Pages([9], [1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        (misuse,) = misuses(lambda: wrapper.forward(batch.q, batch.cache, logits_soft_cap=1.5))
        assert "logits_soft_cap must be given to plan" in str(misuse)

    def test_a_fast_plan_copies_nothing_and_plans_by_the_hosts_offsets(self) -> None:
        batch = Pages([5, 3], [1, 1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        fast_decode_plan(
            wrapper, torch.zeros(3).int(), batch.indices, batch.last, HEADS, KV_HEADS, COLUMNS, 1,
            global_override_indptr_cpu=torch.tensor([0, 2, 4]).int(),
        )  # fmt: skip
        assert wrapper.buffer("paged_kv_indptr").tolist() == [0, 5, 8]
        assert wrapper.planned == {"kv_indptr": [0, 2, 4]}

    def test_keys_that_no_work_item_covers_are_left_out(self) -> None:
        batch = Pages([5, 3], [1, 1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        fast_decode_plan(
            wrapper, batch.indptr, batch.indices, batch.last, HEADS, KV_HEADS, COLUMNS, 1,
            global_override_indptr_cpu=torch.tensor([0, 2, 5]).int(),
        )  # fmt: skip
        want, _ = batch.expected(lambda row, _q, key, _p: row == 1 or key < 2, scale=SCALE)
        torch.testing.assert_close(
            wrapper.run(batch.q, batch.cache).double(), want, rtol=1e-6, atol=1e-6
        )

    def test_a_work_item_far_behind_the_keys_of_its_row_is_undefined(self) -> None:
        batch = Pages([5, 3], [1, 1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        fast_decode_plan(
            wrapper, batch.indptr, batch.indices, batch.last, HEADS, KV_HEADS, COLUMNS, 1,
            global_override_indptr_cpu=torch.tensor([0, 300, 303]).int(),
        )  # fmt: skip
        (misuse,) = misuses(lambda: wrapper.run(batch.q, batch.cache))
        assert "300 pages planned for row 0, which has 5 keys" in str(misuse)

    def test_an_index_outside_of_the_cache_is_followed_and_recorded(self) -> None:
        memory = GuardedMemory()
        batch = Pages([2], [1])
        with memory.intercept("engine"):
            cache = torch.zeros(3, 1, KV_HEADS, COLUMNS), torch.zeros(3, 1, KV_HEADS, COLUMNS)
            wrapper = decode_wrapper(batch)
            batch.indices = torch.tensor([1, 3]).int()
            plan_decode(wrapper, batch)
            wrapper.run(batch.q, cache)
        found = memory.lanes.report.take_accesses()
        assert {access.buffer for access in found} == {"k_cache", "v_cache"}

    def test_an_offset_behind_the_indices_is_recorded(self) -> None:
        batch = Pages([2], [1])
        wrapper = decode_wrapper(batch, room=2)
        plan_decode(wrapper, batch)
        wrapper.buffer("paged_kv_indptr")[1] = 5
        found = misuses(lambda: wrapper.run(batch.q, batch.cache))
        assert "paged_kv_indptr must not end beyond the 2 entries" in str(found[0])

    def test_a_last_page_beyond_its_size_breaks_a_rule(self) -> None:
        batch = Pages([3], [1], 4)
        wrapper = decode_wrapper(batch)
        batch.last[0] = 5
        plan_decode(wrapper, batch)
        (misuse,) = misuses(lambda: wrapper.run(batch.q, batch.cache))
        assert "paged_kv_last_page_len must be 1 to 4 for a row with pages; got 5" in str(misuse)


class TestPrefill:
    @pytest.mark.parametrize("page", [1, 4])
    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("window", [-1, 2])
    def test_rows_of_different_length_give_dense_attention(
        self, page: int, layout: str, causal: bool, window: int
    ) -> None:
        batch = Pages([5, 9, 2], [2, 3, 2], page, layout)
        wrapper = prefill_wrapper(batch)
        plan_prefill(wrapper, batch, causal=causal, window_left=window)

        def visible(_row: int, _query: int, key: int, place: int) -> bool:
            return (not causal or key <= place) and (window < 0 or key >= place - window)

        out, lse = wrapper.run(batch.q, batch.cache, return_lse=True)
        want, sums = batch.expected(visible, scale=SCALE)
        torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse.double(), sums, rtol=1e-6, atol=1e-6)

    def test_a_window_only_at_run_leaves_out_what_no_query_of_a_tile_sees(self) -> None:
        # 16 queries times heads of a group fill a tile, 8 queries here.
        batch = Pages([20], [10])
        wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace(), backend="fa2")
        plan_prefill(wrapper, batch, causal=True)
        tile = 64 // (HEADS // KV_HEADS)  # 20 queries times heads take tiles of 64

        def visible(_row: int, query: int, key: int, place: int) -> bool:
            return key <= place and key >= place - query + query // tile * tile - 3

        out = wrapper.forward(batch.q, batch.cache, causal=True, window_left=3)
        want, _ = batch.expected(visible, scale=SCALE)
        torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("graph", [False, True])
    def test_a_mask_decides_alone_which_keys_are_seen(self, graph: bool) -> None:
        batch = Pages([5, 3], [2, 3])
        masks = [torch.rand(new, n) < 0.6 for n, new in zip(batch.lens, batch.news, strict=True)]
        bits: dict[str, Any] = dict(
            custom_mask_buf=torch.zeros(16, dtype=torch.uint8),
            mask_indptr_buf=torch.zeros(3, dtype=torch.int32),
        )
        wrapper = prefill_wrapper(batch, **bits)
        if not graph:
            wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace())
        mask = torch.cat([each.flatten() for each in masks])
        plan_prefill(wrapper, batch, custom_mask=mask, causal=True)
        out = wrapper.run(batch.q, batch.cache)
        want, _ = batch.expected(
            lambda row, query, key, _p: bool(masks[row][query, key]), scale=SCALE
        )
        torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)

    def test_a_graph_with_a_masks_buffer_follows_it_though_planned_without_a_mask(self) -> None:
        batch = Pages([4], [2])
        held = torch.full((16,), 0b11111111, dtype=torch.uint8)
        wrapper = prefill_wrapper(
            batch, custom_mask_buf=held, mask_indptr_buf=torch.zeros(2, dtype=torch.int32)
        )
        plan_prefill(wrapper, batch, causal=True)
        want, _ = batch.expected(sees_all, scale=SCALE)
        torch.testing.assert_close(
            wrapper.run(batch.q, batch.cache).double(), want, rtol=1e-6, atol=1e-6
        )

    def test_a_mask_shorter_than_its_rows_is_read_beyond_its_end(self) -> None:
        memory = GuardedMemory()
        batch = Pages([4, 4], [2, 2])
        with memory.intercept("engine"):
            wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace())
            plan_prefill(wrapper, batch, custom_mask=torch.ones(9, dtype=torch.bool))
        assert {a.buffer for a in memory.lanes.report.take_accesses()} == {"custom_mask"}

    def test_outputs_lie_where_the_plan_says_and_queries_where_the_device_does(self) -> None:
        batch = Pages([4, 4], [1, 2])
        wrapper = prefill_wrapper(batch)
        plan_prefill(wrapper, batch, causal=True)
        whole = wrapper.run(batch.q, batch.cache)
        wrapper.buffer("qo_indptr").copy_(torch.tensor([0, 2, 3]))
        batch.qo, batch.news = torch.tensor([0, 2, 3]).int(), [2, 1]
        want, _ = batch.expected(sees_behind, scale=SCALE)
        out = wrapper.run(batch.q, batch.cache)
        torch.testing.assert_close(out[0].double(), want[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(out[1].double(), want[2], rtol=1e-6, atol=1e-6)
        assert (out[2] == 0).all() and (whole[2] != 0).all()


class TestRefusals:
    def test_another_batch_size_than_the_graphs(self) -> None:
        with pytest.raises(KernelRefused, match="a graph of 2 rows must be planned for as many"):
            plan_decode(decode_wrapper(Pages([1, 1], [1, 1])), Pages([1], [1]))

    def test_indices_that_do_not_fit(self) -> None:
        batch = Pages([9], [1])
        with pytest.raises(KernelRefused, match="must fit the graph's buffer of 8; got 9"):
            plan_decode(decode_wrapper(batch, room=8), batch)

    def test_more_queries_than_at_the_first_plan(self) -> None:
        batch = Pages([5, 5], [1, 1])
        wrapper = prefill_wrapper(batch)
        plan_prefill(wrapper, batch)
        batch.qo = torch.tensor([0, 1, 3]).int()
        with pytest.raises(KernelRefused, match="at most the 2 queries of its first plan; got 3"):
            plan_prefill(wrapper, batch)

    def test_offsets_of_a_plan_that_decrease(self) -> None:
        batch = Pages([5, 5], [1, 1])
        batch.indptr = torch.tensor([0, 6, 5]).int()
        with pytest.raises(KernelRefused, match="indptr of a plan must not decrease; got 6"):
            plan_decode(decode_wrapper(batch), batch)

    def test_a_workspace_without_room_for_partial_results(self) -> None:
        batch = Pages([5, 5], [1, 1])
        wrapper = prefill_wrapper(batch)
        wrapper._float_workspace_buffer = torch.empty(64, dtype=torch.uint8)
        with pytest.raises(KernelRefused, match="the workspace must hold .* got 64 bytes"):
            plan_prefill(wrapper, batch)

    def test_a_plan_that_is_staged_in_memory_of_the_device(self) -> None:
        batch = Pages([5, 5], [1, 1])
        wrapper = prefill_wrapper(batch)
        wrapper._pin_memory_int_workspace_buffer = wrapper._float_workspace_buffer
        with pytest.raises(KernelRefused, match="page_locked_int_workspace_buffer must be memory"):
            plan_prefill(wrapper, batch)

    def test_another_dtype_than_planned(self) -> None:
        batch = Pages([5], [1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        with pytest.raises(KernelRefused, match="q must be float32; got float16"):
            wrapper.run(batch.q.half(), batch.cache)

    def test_keys_and_values_of_other_strides(self) -> None:
        batch = Pages([5], [1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        wide = torch.cat((batch.v, batch.v), -1)[..., :COLUMNS]
        with pytest.raises(KernelRefused, match="must have the same strides"):
            wrapper.run(batch.q, (batch.k, wide))

    def test_as_many_queries_as_were_not_planned(self) -> None:
        batch = Pages([5], [2])
        wrapper = prefill_wrapper(batch)
        plan_prefill(wrapper, batch)
        with pytest.raises(KernelRefused, match="q must have the 2 queries that were planned"):
            wrapper.run(batch.q[:1], batch.cache)

    def test_indices_of_another_dtype(self) -> None:
        batch = Pages([5], [1])
        batch.indices = batch.indices.long()
        wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace())
        plan_decode(wrapper, batch)
        with pytest.raises(KernelRefused, match="paged_kv_indices must be int32; got int64"):
            wrapper.run(batch.q, batch.cache)

    def test_what_the_model_does_not_follow_is_no_finding_about_the_engine(self) -> None:
        batch = Pages([5], [1])
        with pytest.raises(KernelNotModelled, match="does not follow pos_encoding_mode"):
            plan_decode(decode_wrapper(batch), batch, pos_encoding_mode="ROPE_LLAMA")
        wrapper = decode_wrapper(batch, backend="trtllm-gen")
        with pytest.raises(KernelNotModelled, match="does not follow backend='trtllm-gen'"):
            plan_decode(wrapper, batch)


class TestGraph:
    def test_a_replay_follows_the_present_plan_and_buffers_with_captured_scalars(self) -> None:
        memory = GuardedMemory()
        graphs = Recorder(memory)
        batch = Pages([3, 2], [1, 1])
        with memory.intercept("engine"):
            wrapper = decode_wrapper(batch)
            plan_decode(wrapper, batch, sm_scale=0.5)
        graph = graphs.capture(lambda: wrapper.run(batch.q, batch.cache), key="decode/2")
        longer = Pages([5, 2], [1, 1])
        longer.q, longer.k, longer.v = batch.q, batch.k, batch.v
        longer.indices = torch.tensor([1, 2, 3, 4, 5, 2, 4]).int()
        with memory.intercept("engine"):
            plan_decode(wrapper, longer, sm_scale=9.0)
        with memory.over_lanes():
            graph.replay()
        want, _ = longer.expected(sees_all, scale=0.5)
        torch.testing.assert_close(graph.outputs.double(), want, rtol=1e-6, atol=1e-6)

    def test_a_run_without_a_plan_breaks_a_rule_and_leaves_outputs_alone(self) -> None:
        batch = Pages([3], [1])
        wrapper = decode_wrapper(batch)
        plan_decode(wrapper, batch)
        wrapper._int_workspace_buffer.zero_()
        out = torch.full((1, HEADS, COLUMNS), 7.0)
        (misuse,) = misuses(lambda: wrapper.run(batch.q, batch.cache, out=out))
        assert "plan must be called before run" in str(misuse) and (out == 7.0).all()
