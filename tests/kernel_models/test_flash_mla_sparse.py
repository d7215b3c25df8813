"""The model of sparse FlashMLA, against dense attention over the keys that are named."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.flash_mla import FlashMLASchedMeta
from fuzzgraph.kernel_models.flash_mla_sparse import (
    flash_mla_sparse_fwd,
    flash_mla_sparse_with_kvcache,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.dense import dense_attention

HEADS, WIDTH, VALUE, SCALE = 2, 8, 6, 0.3


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def cache(pages: int, page: int) -> torch.Tensor:
    return torch.randn(pages, page, 1, WIDTH)


def places(rows: int, columns: int, slots: int, tokens: int = 1) -> torch.Tensor:
    return torch.randint(0, slots, (rows, tokens, columns), dtype=torch.int32)


def decode(
    q: torch.Tensor, k_cache: torch.Tensor, **others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    given = {"tile_scheduler_metadata": FlashMLASchedMeta(), "is_fp8_kvcache": True, **others}
    return flash_mla_sparse_with_kvcache(q, k_cache, head_dim_v=VALUE, softmax_scale=SCALE, **given)


def wanted(
    q: torch.Tensor, rows: list[torch.Tensor], sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each query token over its own rows of keys, and the sums without a sink."""
    outs, sums = [], []
    for token, keys in zip(q, rows, strict=True):
        seen = torch.ones(1, len(keys), dtype=torch.bool)
        named = token[None], keys[:, None], keys[:, None, :VALUE], seen
        outs.append(dense_attention(*named, scale=SCALE, sinks=sinks)[0][0])
        sums.append(dense_attention(*named, scale=SCALE)[1][:, 0])
    return torch.stack(outs), torch.stack(sums)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_query_attends_to_the_named_places_up_to_its_length(tokens: int) -> None:
    pages, indices = cache(5, 16), places(3, 70, 80, tokens)
    indices[1, 0, 2] = -1
    lens = [70, 65, 1]
    q = torch.randn(3, tokens, HEADS, WIDTH)
    out, lse = decode(q, pages, indices=indices, topk_length=ints(*lens))
    flat = pages.view(-1, WIDTH)
    rows = [
        flat[[at for at in indices[row, token, : lens[row]].tolist() if at >= 0]]
        for row in range(3)
        for token in range(tokens)
    ]
    want, sums = wanted(q.flatten(0, 1), rows)
    torch.testing.assert_close(out.flatten(0, 1).double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.transpose(1, 2).flatten(0, 1).double(), sums)


@pytest.mark.parametrize("sink", [None, 0.4, -math.inf])
def test_two_caches_are_attended_to_as_one_and_a_sink_takes_weight(sink: float | None) -> None:
    first, second = cache(2, 8), cache(3, 2)
    indices, extra = places(2, 64, 16), places(2, 64, 6)
    sinks = None if sink is None else torch.full((HEADS,), sink)
    q = torch.randn(2, 1, HEADS, WIDTH)
    out, lse = decode(
        q,
        first,
        indices=indices,
        topk_length=ints(9, 64),
        attn_sink=sinks,
        extra_k_cache=second,
        extra_indices_in_kvcache=extra,
        extra_topk_length=ints(5, 2),
    )
    rows = [
        torch.cat((first.view(-1, WIDTH)[indices[row, 0, :a].long()],
                   second.view(-1, WIDTH)[extra[row, 0, :b].long()]))
        for row, a, b in ((0, 9, 5), (1, 64, 2))
    ]  # fmt: skip
    want, sums = wanted(q[:, 0], rows, sinks)
    torch.testing.assert_close(out[:, 0].double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse[..., 0].double(), sums)


def test_a_query_without_keys_gives_zeros_and_an_infinite_lse() -> None:
    indices = torch.full((2, 1, 64), -1, dtype=torch.int32)
    indices[0, 0, 0] = 3
    out, lse = decode(torch.randn(2, 1, HEADS, WIDTH), cache(1, 4), indices=indices)
    assert out[0].all() and not out[1].any()
    assert lse[0].isfinite().all() and (lse[1] == math.inf).all()


def test_a_plan_of_shorter_rows_leaves_the_last_blocks_out() -> None:
    pages, indices = cache(4, 64), places(1, 192, 256)
    q, plan = torch.randn(1, 1, HEADS, WIDTH), FlashMLASchedMeta()
    named = {"indices": indices, "tile_scheduler_metadata": plan}
    decode(q, pages, topk_length=ints(64), **named)
    out, _ = decode(q, pages, topk_length=ints(192), **named)
    want, _ = wanted(q[:, 0], [pages.view(-1, WIDTH)[indices[0, 0, :64].long()]])
    torch.testing.assert_close(out[:, 0].double(), want, rtol=1e-6, atol=1e-6)


def test_the_plan_of_a_replay_follows_the_lengths_of_the_replay() -> None:
    pages, indices, lens = cache(4, 64), places(1, 192, 256), ints(3)
    q = torch.randn(1, 1, HEADS, WIDTH)
    memory = GuardedMemory()
    graph = Recorder(memory).capture(
        lambda: decode(q, pages, indices=indices, topk_length=lens)[0], key="1"
    )
    lens.fill_(190)
    with memory.over_lanes():
        graph.replay()
    want, _ = wanted(q[:, 0], [pages.view(-1, WIDTH)[indices[0, 0, :190].long()]])
    torch.testing.assert_close(graph.outputs[:, 0].double(), want, rtol=1e-6, atol=1e-6)


def test_a_place_outside_of_the_cache_is_a_stray_read() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        indices = torch.full((1, 1, 64), 4 * 16, dtype=torch.int32)
        decode(torch.randn(1, 1, HEADS, WIDTH), cache(4, 16), indices=indices, topk_length=ints(1))
    accesses = memory.lanes.report.take_accesses()
    assert {(each.buffer, each.kind) for each in accesses} == {("k_cache", "read")}


def test_sparse_prefill_passes_over_places_that_its_keys_do_not_have() -> None:
    kv, indices = torch.randn(10, 1, WIDTH), torch.tensor([[[3, -1, 10, 7]], [[0, 1, 2, 3]]])
    q = torch.randn(2, HEADS, WIDTH)
    out, _, _ = flash_mla_sparse_fwd(q, kv, indices.int(), SCALE, VALUE, topk_length=ints(4, 2))
    want, _ = wanted(q, [kv[[3, 7], 0], kv[[0, 1], 0]])
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


Q, INDICES = torch.zeros(2, 1, HEADS, WIDTH), torch.zeros(2, 1, 64, dtype=torch.int32)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"indices": None}, "must have indices"),
        ({"indices": INDICES.long()}, "indices must be int32"),
        ({"indices": INDICES[:1]}, r"indices must be \[2, 1, 64\]"),
        ({"topk_length": ints(1)}, r"topk_length of indices must be contiguous \[2\]"),
        ({"topk_length": torch.ones(2)}, "topk_length must be int32"),
        ({"is_fp8_kvcache": False}, "is_fp8_kvcache must be True"),
        ({"causal": True}, "causal must be False"),
        ({"extra_topk_length": ints(1, 1)}, "extra_topk_length needs an extra_k_cache"),
        ({"extra_k_cache": cache(1, 4)}, "extra_indices_in_kvcache must be given"),
        ({"attn_sink": torch.zeros(3)}, r"attn_sink must be \[2\]"),
        ({"tile_scheduler_metadata": None}, "FlashMLASchedMeta must be given"),
    ],
)  # fmt: skip
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        decode(Q, cache(1, 64), **{"indices": INDICES, **changed})


def test_a_plan_made_for_other_shapes_is_refused() -> None:
    plan = FlashMLASchedMeta()
    decode(Q, cache(1, 64), indices=INDICES, tile_scheduler_metadata=plan)
    with pytest.raises(KernelRefused, match="the plan was made for shapes"):
        decode(Q[:1], cache(1, 64), indices=INDICES[:1], tile_scheduler_metadata=plan)


def test_a_format_that_the_model_does_not_follow_is_named() -> None:
    with pytest.raises(KernelNotModelled, match="kv_format='V32_NO_ROPE'"):
        decode(Q, cache(1, 64), indices=INDICES, kv_format="V32_NO_ROPE")
