"""The models of a selection by pooled keys, against loops over single keys and by their rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.pooled_selection import (
    infllmv2_attn_stage1,
    max_pooling_1d_varlen,
    selected_slots,
)
from fuzzgraph.memory import GuardedMemory

GROUP, WIDTH = 16, 8


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values).int()


def halves(*shape: int) -> torch.Tensor:
    torch.manual_seed(3)
    return (torch.randint(-4, 5, shape) / 4).half()


def score_call(**changed: Any) -> dict[str, Any]:
    """Three rows of a decode, of 5, 0 and 3 keys, for two KV heads."""
    given = {
        "q": halves(3, 2 * GROUP, WIDTH),
        "k": halves(8, 2, WIDTH),
        "v": halves(4, 2, WIDTH),
        "cu_seqlens_q": ints(0, GROUP, 2 * GROUP, 3 * GROUP),
        "cu_seqlens_k": ints(0, 5, 5, 8),
        "cu_seqlens_v": ints(0, 2, 2, 4),
        "max_seqlen_q": GROUP,
        "max_seqlen_k": 6,
    }
    return {**given, **changed}


def weight(call: dict[str, Any], row: int, head: int, key: int) -> float:
    """What sixteen query heads give a key, one head after the other."""
    scale, coarse = WIDTH**-0.5, call["cu_seqlens_v"].tolist()
    total = 0.0
    for each in range(GROUP):
        query = call["q"][row, head * GROUP + each].double()
        unit = sum(
            math.exp(scale * float(query @ call["v"][at, head].double()))
            for at in range(coarse[row], coarse[row + 1])
        )
        total += math.exp(scale * float(query @ call["k"][key, head].double())) / unit
    return total


def accesses(memory: GuardedMemory) -> list[tuple[str, str]]:
    return [(each.buffer, each.kind) for each in memory.lanes.report.take_accesses()]


def test_scores_are_weights_of_all_heads_in_units_of_the_coarser_keys() -> None:
    call = score_call()
    found = infllmv2_attn_stage1(**call)
    assert found.shape == (2, 3, 128)
    starts = call["cu_seqlens_k"].tolist()
    for row in range(3):
        for head in range(2):
            want = [weight(call, row, head, key) for key in range(starts[row], starts[row + 1])]
            got = found[head, row].double().tolist()
            assert got[: len(want)] == pytest.approx(want, rel=1e-3)
            assert not any(got[len(want) :])


def test_scores_of_keys_without_coarser_ones_are_zero() -> None:
    found = infllmv2_attn_stage1(**score_call(cu_seqlens_v=ints(0, 0, 0, 0)))
    assert not found.any()


def test_a_replayed_score_reads_present_keys() -> None:
    call = score_call()
    recorder = Recorder(GuardedMemory())
    graph = recorder.capture(lambda: infllmv2_attn_stage1(**call), key="decode/3")
    call["k"].neg_()
    graph.replay()
    assert torch.equal(graph.outputs, infllmv2_attn_stage1(**call))


@pytest.mark.parametrize("whole", [False, True])
def test_keys_behind_a_first_part_are_strays_unless_kernels_may_read_it_whole(whole: bool) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        call = score_call()
        buffer = halves(8, 2, WIDTH)
        if whole:
            memory.let_kernels_read_whole([buffer])
        found = infllmv2_attn_stage1(**{**call, "k": buffer[:4]})
        assert torch.equal(found, infllmv2_attn_stage1(**{**call, "k": buffer}))
    assert accesses(memory) == ([] if whole else [("k", "read")])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"q": halves(3, 2 * GROUP, WIDTH).float()}, "q must be float16 or bfloat16"),
        ({"k": halves(8, 2, WIDTH).bfloat16()}, "k must be float16"),
        ({"q": halves(3, GROUP, WIDTH)}, "16 query heads"),
        ({"cu_seqlens_k": ints(0, 5, 5, 8).long()}, "cu_seqlens_k must be int32"),
        ({"cu_seqlens_v": ints(0, 2)}, "cu_seqlens_v must be"),
    ],
)
def test_other_calls_of_scores_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(KernelRefused, match=why):
        infllmv2_attn_stage1(**score_call(**changed))


def test_prompts_are_not_modelled() -> None:
    with pytest.raises(KernelNotModelled, match="causal"):
        infllmv2_attn_stage1(**score_call(causal=True))


def pooled(**changed: Any) -> torch.Tensor:
    """Blocks of four keys of which each pools four tokens, in rows of 14 and 3 keys."""
    given: dict[str, Any] = {
        "input": torch.arange(32).view(1, 2, 16).half(),
        "cu_seqlens_q": ints(0, 1, 2),
        "cu_seqlens_k": ints(0, 14, 17),
        "cache_lens": ints(59, 3),
        "max_seqlen_q": 1,
        "max_context_len": 64,
        "local_blocks": 1,
        "init_blocks": 1,
        "block_size": 16,
        "stride": 4,
    }
    return max_pooling_1d_varlen(**{**given, **changed})


def test_a_block_is_as_good_as_the_best_key_that_begins_or_ends_in_it() -> None:
    inf = math.inf
    # Keys 3 to 7 of the first row; its newest block is the fourth. The second row has one block.
    assert pooled().tolist() == [[[inf, 7.0, inf, inf], [inf, -inf, -inf, -inf]]]
    assert pooled(local_blocks=0, init_blocks=0).tolist() == [
        [[4.0, 7.0, 11.0, inf], [inf, -inf, -inf, -inf]]
    ]


def test_a_score_that_is_no_number_makes_no_block_better() -> None:
    scores = torch.arange(32).view(1, 2, 16).half()
    scores[0, 0, 7] = math.nan
    assert pooled(input=scores)[0, 0, 1] == 6


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"input": torch.zeros(1, 2, 16)}, "input must be float16 or bfloat16"),
        ({"cache_lens": ints(59, 3).long()}, "cache_lens must be int32"),
        ({"cache_lens": ints(59)}, "cache_lens must be"),
    ],
)
def test_other_calls_of_pooling_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(KernelRefused, match=why):
        pooled(**changed)


def table_call(**changed: Any) -> dict[str, Any]:
    """Two queries of two heads, which select two blocks of three keys."""
    given: dict[str, Any] = {
        "out": torch.full((2, 2, 6), 99).int(),
        "topk_idx": torch.tensor([[[0, 2], [0, 1]], [[1, 2], [0, -1]]]).int(),
        "block_table": torch.arange(10, 30).view(2, 10).int(),
        "token_to_bs": ints(1, 0),
        "token_pos_in_bs": ints(8, 5),
        "seqlen_q": ints(4, 8),
    }
    return {**given, **changed}


def test_a_table_has_the_places_of_selected_keys_that_a_query_sees() -> None:
    call = table_call()
    selected_slots(**call)
    assert call["out"].tolist() == [
        [[40, 42, 44, 52, 54, 0], [47, 49, 51, 53, 55, 0]],
        [[20, 22, 24, 26, 0, 0], [21, 23, 25, 0, 0, 0]],
    ]


def test_a_key_beyond_its_table_is_a_stray_read() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        call = table_call(block_table=torch.arange(8).view(2, 4).int(), seqlen_q=ints(4, 8))
        selected_slots(**call)
    assert ("block_table", "read") in accesses(memory)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"out": torch.zeros(2, 2, 7).int()}, "whole blocks of 2"),
        ({"out": torch.zeros(2, 1, 6).int()}, "out must be"),
        ({"token_to_bs": ints(1)}, "token_to_bs must be"),
        ({"seqlen_q": ints(4, 8).long()}, "seqlen_q must be int32"),
    ],
)
def test_other_tables_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(KernelRefused, match=why):
        selected_slots(**table_call(**changed))
