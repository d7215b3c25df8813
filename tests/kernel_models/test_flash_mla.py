"""The model of FlashMLA, against dense attention, its plan's own rules and its refusals."""

from __future__ import annotations

import math
import re

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models import flash_mla
from fuzzgraph.kernel_models.flash_mla import (
    FlashMLASchedMeta,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.latent_caches import HEADS, VALUE, WIDTH, ints, scattered, wanted

PAGE = 64


def _cache(lens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return scattered(lens, PAGE)


def _want(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lens: list[int], causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return wanted(q, cache, table, lens, causal=causal, scale=0.3)


def _decode(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lens: torch.Tensor, **others: object
) -> tuple[torch.Tensor, torch.Tensor]:
    tiles, splits = get_mla_metadata(lens, q.shape[1] * q.shape[2], 1)
    return flash_mla_with_kvcache(
        q,
        cache,
        table,
        lens,
        VALUE,
        tiles,
        splits,
        softmax_scale=0.3,
        **others,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 5, 40])
def test_rows_of_different_length_give_dense_attention_however_they_are_split(
    monkeypatch: pytest.MonkeyPatch, tokens: int, causal: bool, parts: int
) -> None:
    monkeypatch.setattr(flash_mla, "_HOPPER", parts)
    lens = [5, 64, 65, 400, 3]
    cache, table = _cache(lens)
    q = torch.randn(len(lens), tokens, HEADS, WIDTH)
    out, lse = _decode(q, cache, table, ints(*lens), causal=causal)
    want, sums = _want(q, cache, table, lens, causal and tokens > 1)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.double(), sums)


def test_the_bits_of_a_row_do_not_depend_on_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = [300, 5]
    cache, table = _cache(lens)
    q = torch.randn(2, 1, HEADS, WIDTH)
    outs = []
    for parts in (1, 7):
        monkeypatch.setattr(flash_mla, "_HOPPER", parts)
        outs.append(_decode(q, cache, table, ints(*lens))[0])
    assert torch.equal(*outs)


def test_a_plan_shares_every_block_of_every_row_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_mla, "_HOPPER", 6)
    lens = [64, 1000, 0, 65]
    tiles, splits = get_mla_metadata(ints(*lens), 1, 1)
    blocks: list[tuple[int, int]] = []
    for first, block, last, end, _ in tiles[:, :5].tolist():
        for row in range(first, min(last, len(lens) - 1) + 1):
            start = block if row == first else 0
            stop = end if row == last else -(-lens[row] // PAGE)
            blocks += [(row, each) for each in range(start, stop)]
    assert blocks == [(row, each) for row, n in enumerate(lens) for each in range(-(-n // PAGE))]
    assert splits.tolist()[0] == 0 and (splits.diff() >= 1).all() and splits[2] - splits[1] > 1


def test_a_row_without_keys_gives_zeros_and_an_infinite_lse() -> None:
    cache, table = _cache([64, 0])
    out, lse = _decode(torch.randn(2, 1, HEADS, WIDTH), cache, table, ints(64, 0))
    assert not out[1].any() and out[0].all()
    assert (lse[1] == math.inf).all() and lse[0].isfinite().all()


def test_a_plan_made_for_a_shorter_row_leaves_its_last_blocks_out() -> None:
    cache, table = _cache([200])
    q = torch.randn(1, 1, HEADS, WIDTH)
    tiles, splits = get_mla_metadata(ints(100), HEADS, 1)
    out, _ = flash_mla_with_kvcache(
        q, cache, table, ints(200), VALUE, tiles, splits, softmax_scale=0.3
    )
    want, _ = _want(q, cache, table, [128], False)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def test_a_plan_made_for_a_longer_row_looks_up_pages_behind_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flash_mla, "_HOPPER", 1)
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, _ = _cache([64])
        table = torch.ones(1, 1, dtype=torch.int32)
        lens, planned = ints(60), ints(150)
        tiles, splits = get_mla_metadata(planned, HEADS, 1)
        q = torch.randn(1, 1, HEADS, WIDTH)
        flash_mla_with_kvcache(q, cache, table, lens, VALUE, tiles, splits)
    (misuse,) = memory.lanes.report.take_misuses()
    assert "must name blocks of a table with 1 columns; got blocks 0 to 3" in str(misuse)


def test_a_plan_that_nobody_made_breaks_a_rule_and_leaves_the_rows_as_they_were() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, table = _cache([64, 64])
        lens = ints(64, 64)
        tiles = torch.full((4, 8), 1 << 30, dtype=torch.int32)
        splits = ints(0, 0, 2)
        q = torch.randn(2, 1, HEADS, WIDTH)
        out, _ = flash_mla_with_kvcache(q, cache, table, lens, VALUE, tiles, splits)
        written = out.clone()
    (misuse,) = memory.lanes.report.take_misuses()
    assert "num_splits must count the parts that compute each row; got splits 0 to 2" in str(misuse)
    assert not written[0].any() and not (written[1].abs() < 100).all()


def test_rows_of_a_plan_that_the_batch_lacks_break_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flash_mla, "_HOPPER", 1)
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, table = _cache([64, 64])
        lens = ints(64, 64)
        tiles, splits = get_mla_metadata(lens, HEADS, 1)
        flash_mla_with_kvcache(
            torch.randn(1, 1, HEADS, WIDTH), cache, table[:1], lens[:1], VALUE, tiles,
            splits[:2].clone(),
        )  # fmt: skip
    found = {str(misuse) for misuse in memory.lanes.report.take_misuses()}
    assert any("must name rows of the batch of 1" in each for each in found)


def test_a_narrow_view_of_the_table_hands_over_its_whole_rows() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        lens = [150, 70]
        cache, table = _cache(lens)
        q = torch.randn(2, 1, HEADS, WIDTH)
        lengths = ints(*lens)
        out, _ = _decode(q, cache, table[:, :1], lengths)
    assert not memory.lanes.report.take_accesses()
    want, _ = _want(q, cache, table, lens, False)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def test_a_page_outside_of_the_cache_is_followed_and_recorded() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        cache, table = torch.zeros(2, PAGE, 1, WIDTH), ints(1, 2).view(1, 2)
        _decode(torch.ones(1, 1, 1, WIDTH), cache, table, ints(70))
    accesses = memory.lanes.report.take_accesses()
    assert {(each.buffer, each.kind) for each in accesses} == {("k_cache", "read")}


def test_a_replay_follows_the_plan_and_the_lengths_of_now() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    cache, table = _cache([200])
    with memory.intercept("engine"):
        q, lens = torch.randn(1, 1, HEADS, WIDTH), ints(5)
        tiles, splits = get_mla_metadata(lens, HEADS, 1)
    graph = graphs.capture(
        lambda: flash_mla_with_kvcache(
            q, cache, table, lens, VALUE, tiles, splits, softmax_scale=0.3
        ),
        key="decode/1",
    )
    lens.fill_(200)
    for static, now in zip((tiles, splits), get_mla_metadata(lens, HEADS, 1), strict=True):
        static.copy_(now)
    with memory.over_lanes():
        graph.replay()
    want, _ = _want(q, cache, table, [200], False)
    torch.testing.assert_close(graph.outputs[0].double(), want, rtol=1e-6, atol=1e-6)


def test_a_plan_in_the_object_of_later_versions_is_taken_out_of_it() -> None:
    cache, table = _cache([70])
    q, lens = torch.randn(1, 1, HEADS, WIDTH), ints(70)
    plan = FlashMLASchedMeta(*get_mla_metadata(lens, HEADS, 1))
    out, _ = flash_mla_with_kvcache(q, cache, table, lens, VALUE, plan, softmax_scale=0.3)
    want, _ = _want(q, cache, table, [70], False)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def _refused(**changes: object) -> str:
    cache, table = _cache([64])
    lens = ints(64)
    tiles, splits = get_mla_metadata(lens, HEADS, 1)
    arguments = dict(
        q=torch.randn(1, 1, HEADS, WIDTH), k_cache=cache, block_table=table, cache_seqlens=lens,
        head_dim_v=VALUE, tile_scheduler_metadata=tiles, num_splits=splits,
    )  # fmt: skip
    with pytest.raises(KernelRefused) as refused:
        flash_mla_with_kvcache(**{**arguments, **changes})  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"cache_seqlens": torch.tensor([64])}, "cache_seqlens must be int32; got int64"),
        ({"block_table": torch.ones(1, 1)}, "block_table must be int32; got float32"),
        ({"k_cache": torch.zeros(2, PAGE, 1, WIDTH).half()}, "k_cache must be float32"),
        ({"k_cache": torch.zeros(2, 32, 1, WIDTH)}, "pages must have 64 tokens; got 32"),
        ({"k_cache": torch.zeros(2, PAGE, 2, WIDTH)}, "query heads must be a multiple of the 2"),
        ({"k_cache": torch.zeros(2, PAGE, 1, 8)}, "queries must be as wide as a cached row of 8"),
        ({"head_dim_v": 7}, "a value must fit into a cached row of 6 columns; got 7"),
        ({"num_splits": ints(0, 1, 2)}, r"num_splits must be \[2\]; got \[3\]"),
        ({"cache_seqlens": ints(1, 2, 3)[::2]}, "cache_seqlens must be contiguous"),
        ({"tile_scheduler_metadata": ints(1, 2).view(1, 2)}, r"must be \[1, 8\]; got \[1, 2\]"),
    ],
)  # fmt: skip
def test_what_the_host_code_refuses_is_refused_with_its_rule(
    changes: dict[str, object], rule: str
) -> None:
    assert re.search(rule, _refused(**changes))


def test_fp8_and_attention_sinks_are_not_followed() -> None:
    cache, table = _cache([64])
    with pytest.raises(KernelNotModelled, match="does not follow attn_sink"):
        _decode(torch.randn(1, 1, HEADS, WIDTH), cache, table, ints(64), attn_sink=torch.zeros(3))
