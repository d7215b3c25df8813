"""The models of trtllm-gen's multi-head kernels, against dense attention and their own rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.trtllm_gen import (
    counter_bytes,
    trtllm_batch_context_with_kv_cache,
    trtllm_batch_decode_with_kv_cache,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.dense import dense_attention

PAGE, HEADS, COLUMNS = 4, 2, 8


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _given(lens: list[int], news: list[int], **more: Any) -> dict[str, Any]:
    """Arguments of a decode over scattered pages; the cache is a permuted view, as engines pass."""
    torch.manual_seed(1)
    width = max(1, max(-(-n // PAGE) for n in lens))
    pages = 1 + width * len(lens)
    cache = [torch.randn(pages, PAGE, HEADS, COLUMNS).permute(0, 2, 1, 3) for _ in "kv"]
    table = (torch.randperm(pages - 1)[: width * len(lens)] + 1).view(len(lens), width)
    return {
        "query": torch.randn(sum(news), 4, COLUMNS),
        "kv_cache": tuple(cache),
        "workspace_buffer": torch.zeros(64, dtype=torch.uint8),
        "block_tables": table.int(),
        "seq_lens": _ints(*lens),
        "max_seq_len": 64,
        **more,
    }


def _wanted(given: dict[str, Any], row: int, first: int, new: int, left: int = -1) -> torch.Tensor:
    length = int(given["seq_lens"][row])
    key, value = (
        cache.permute(0, 2, 1, 3)[given["block_tables"][row].long()].flatten(0, 1)[:length]
        for cache in given["kv_cache"]
    )
    visible = torch.zeros(new, length, dtype=torch.bool)
    for token in range(new):
        at = length - new + token
        visible[token, : max(0, at + 1)] = True
        if left >= 0:
            visible[token, : max(0, at - left)] = False
    want, _ = dense_attention(
        given["query"][first : first + new], key, value, visible,
        scale=given["bmm1_scale"], sinks=given.get("sinks"),
    )  # fmt: skip
    return want * float(given["bmm2_scale"])


@pytest.mark.parametrize("left", [-1, 2])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("new", [1, 3])
def test_rows_of_as_many_tokens_give_dense_attention(left: int, with_sinks: bool, new: int) -> None:
    given = _given([5, 9, 4], [new] * 3, bmm1_scale=0.4, bmm2_scale=1.5)
    if with_sinks:
        given["sinks"] = torch.randn(4)
    out = trtllm_batch_decode_with_kv_cache(**given, q_len_per_req=new, window_left=left)
    for row in range(3):
        want = _wanted(given, row, row * new, new, left)
        got = out[row * new : (row + 1) * new].double()
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", ["decode", "context"])
def test_ragged_rows_give_dense_attention(kernel: str) -> None:
    given = _given([5, 9, 2], [1, 3, 2], bmm1_scale=0.4, bmm2_scale=1.0)
    starts = _ints(0, 1, 4, 6)
    if kernel == "decode":
        out = trtllm_batch_decode_with_kv_cache(
            **given, q_len_per_req=None, max_q_len=3, cum_seq_lens_q=starts
        )
    else:
        out = trtllm_batch_context_with_kv_cache(
            max_q_len=3, max_kv_len=given["max_seq_len"], batch_size=3, cum_seq_lens_q=starts,
            cum_seq_lens_kv=_ints(0, 5, 14, 16),
            **{name: value for name, value in given.items() if name != "max_seq_len"},
        )  # fmt: skip
    for row, (first, new) in enumerate([(0, 1), (1, 3), (4, 2)]):
        want = _wanted(given, row, first, new)
        torch.testing.assert_close(out[first : first + new].double(), want, rtol=1e-6, atol=1e-6)


def test_a_window_beyond_the_announced_maximum_masks_nothing() -> None:
    given = _given([9], [1], bmm1_scale=0.4, bmm2_scale=1.0)
    given["max_seq_len"] = 3
    out = trtllm_batch_decode_with_kv_cache(**given, window_left=2)
    torch.testing.assert_close(out.double(), _wanted(given, 0, 0, 1), rtol=1e-6, atol=1e-6)


def test_rows_without_keys_stay_undefined() -> None:
    given = _given([0, 5], [1, 1], bmm1_scale=0.4, bmm2_scale=1.0)
    out = torch.full_like(given["query"], 7.0)
    trtllm_batch_decode_with_kv_cache(**given, out=out)
    assert (out[0] == 7.0).all() and (out[1] != 7.0).all()


def test_a_scale_in_memory_is_read_by_each_replay() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    given = _given([5], [1], bmm2_scale=1.0)
    with memory.intercept("engine"):
        scale = torch.tensor([0.5])
    graph = graphs.capture(
        lambda: trtllm_batch_decode_with_kv_cache(**given, bmm1_scale=scale), key="decode/1"
    )
    scale.fill_(0.125)
    with memory.over_lanes():
        graph.replay()
    want = _wanted({**given, "bmm1_scale": 0.125}, 0, 0, 1)
    torch.testing.assert_close(graph.outputs.double(), want, rtol=1e-6, atol=1e-6)


def test_a_table_that_is_cut_out_of_a_wider_one_is_read_as_if_it_were_contiguous() -> None:
    given = _given([3, 3], [1, 1], bmm1_scale=0.4, bmm2_scale=1.0)
    wide = torch.cat((given["block_tables"], torch.zeros(2, 1, dtype=torch.int32)), dim=1)
    cut = trtllm_batch_decode_with_kv_cache(**{**given, "block_tables": wide[:, :1]})
    flat = {**given, "block_tables": wide.flatten()[:2].view(2, 1).contiguous()}
    assert torch.equal(cut, trtllm_batch_decode_with_kv_cache(**flat))
    assert not torch.equal(cut, trtllm_batch_decode_with_kv_cache(**given))


def test_values_are_found_by_the_strides_of_the_keys() -> None:
    given = _given([3], [1], bmm1_scale=0.4, bmm2_scale=1.0)
    keys, values = given["kv_cache"]
    alike = trtllm_batch_decode_with_kv_cache(**given)
    other = {**given, "kv_cache": (keys, values.contiguous())}
    assert not torch.equal(trtllm_batch_decode_with_kv_cache(**other), alike)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seq_lens": torch.tensor([5])}, "seq_lens must be int32 or uint32; got int64"),
        ({"block_tables": torch.ones(1, 2, 1).int()}, "block_tables must be 2D; got 3D"),
        ({"out_dtype": torch.float64}, "out_dtype must be of query, float16 or bfloat16"),
        ({"sinks": torch.ones(4, dtype=torch.float16)}, "sinks must be float32; got float16"),
        ({"q_len_per_req": None}, "q_len_per_req, or max_q_len with cum_seq_lens_q, must be"),
        ({"multi_ctas_kv_counter_buffer": torch.zeros(8, dtype=torch.uint8)}, "must hold 32 bytes"),
        ({"query": torch.randn(1, 4, 16)}, "head_dim of query and k_cache must be the same"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], message: str) -> None:
    given = {**_given([5], [1], bmm1_scale=0.4, bmm2_scale=1.0), **changed}
    with pytest.raises(KernelRefused, match=message):
        trtllm_batch_decode_with_kv_cache(**given)


def test_keys_and_values_of_different_width_are_refused() -> None:
    given = _given([5], [1], bmm1_scale=0.4, bmm2_scale=1.0)
    keys, values = given["kv_cache"]
    given["kv_cache"] = keys, values[..., :4]
    with pytest.raises(KernelRefused, match="k_cache and v_cache must have one shape"):
        trtllm_batch_decode_with_kv_cache(**given)


def test_block_sparsity_is_not_followed() -> None:
    given = _given([5], [1], bmm1_scale=0.4, bmm2_scale=1.0)
    with pytest.raises(KernelNotModelled, match="enable_block_sparse_attention"):
        trtllm_batch_decode_with_kv_cache(**given, enable_block_sparse_attention=True)


@pytest.mark.parametrize("front", [0, 1])
def test_counters_that_are_not_zero_break_a_rule(front: int) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        given = _given([5], [1], bmm1_scale=0.4, bmm2_scale=1.0)
        counters = torch.zeros(64, dtype=torch.uint8)
        counters[3] = front
        trtllm_batch_decode_with_kv_cache(**given, multi_ctas_kv_counter_buffer=counters)
    found = [misuse.argument for misuse in memory.lanes.report.take_misuses()]
    assert found == ["multi_ctas_kv_counter_buffer"] * front


def test_prefix_sums_of_other_lengths_break_a_rule() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        given = _given([5, 3], [1, 1], bmm1_scale=0.4, bmm2_scale=1.0)
        del given["max_seq_len"]
        trtllm_batch_context_with_kv_cache(
            **given, max_q_len=1, max_kv_len=64, batch_size=2, cum_seq_lens_q=_ints(0, 1, 2),
            cum_seq_lens_kv=_ints(0, 5, 9),
        )  # fmt: skip
    (misuse,) = memory.lanes.report.take_misuses()
    assert misuse.argument == "cum_seq_lens_kv" and "[0, 5, 9] of [5, 3]" in misuse.got


def test_lengths_that_are_missing_for_a_row_are_read_behind_their_end() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        given = _given([5, 3], [1, 1], bmm1_scale=0.4, bmm2_scale=1.0)
        given["seq_lens"] = _ints(5)
        trtllm_batch_decode_with_kv_cache(**given)
    assert "seq_lens" in {one.buffer for one in memory.lanes.report.take_accesses()}


def test_counters_cover_the_batch_and_the_device() -> None:
    assert counter_bytes(3, 4, 1) == 4 * 16
    assert counter_bytes(1, 4, 148) == 4 * 152
