"""DeepGEMM's scores of paged FP8 keys against loops, and its schedule, which they follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.fp8 import pages_of_rows, quantised
from fuzzgraph.kernel_models.paged_mqa import (
    fp8_paged_mqa_logits,
    get_num_sms,
    get_paged_mqa_logits_metadata,
)
from fuzzgraph.memory import GuardedMemory

SPLIT, PAGE, WIDTH, HEADS = 256, 64, 32, 2


def taken(lens: torch.Tensor, units: int) -> list[list[tuple[int, int]]]:
    """(atom, split) that each multiprocessor takes, walked as the kernel walks a schedule."""
    ends = get_paged_mqa_logits_metadata(lens, PAGE, units).tolist()
    each = 1 if lens.dim() == 1 else -(-lens.shape[1] // 2)
    last = lens if lens.dim() == 1 else lens[:, -1]
    splits = [-(-int(length) // SPLIT) for length in last for _ in range(each)]
    found: list[list[tuple[int, int]]] = []
    for (atom, split), stop in zip(ends[:-1], ends[1:], strict=True):
        found.append([])
        while [atom, split] != stop and atom < len(splits):
            if split < splits[atom]:
                found[-1].append((atom, split))
                split += 1
            if split >= splits[atom]:
                atom, split = atom + 1, 0
                while atom < len(splits) and not splits[atom]:
                    atom += 1
    return found


@pytest.mark.parametrize("units", [1, 3, 4, 7])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("lens", [[1], [256, 257, 0, 900], [0, 3], [5, 600, 600]])
def test_every_split_of_every_pair_of_tokens_is_taken_once(
    lens: list[int], tokens: int, units: int
) -> None:
    pairs = -(-tokens // 2)
    want = [
        (row * pairs + pair, split)
        for row, n in enumerate(lens)
        for pair in range(pairs)
        for split in range(-(-n // SPLIT))
    ]
    shares = taken(torch.tensor(lens).int()[:, None].repeat(1, tokens), units)
    assert [each for share in shares for each in share] == want
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


def test_of_several_lengths_of_a_row_the_last_counts() -> None:
    several = torch.tensor([[1, 600], [900, 2]]).int()
    assert taken(several, 2) == taken(torch.tensor([600, 2]).int(), 2)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"context_lens": torch.ones(2)}, "context_lens must be int32"),
        ({"context_lens": torch.ones(1, 1, 1).int()}, "one dimension or two"),
        ({"context_lens": torch.ones(2, 2).int().t()[:1]}, "must be contiguous"),
        ({"block_kv": 32}, "block_kv must be 64; got 32"),
        ({"num_sms": 0}, "num_sms must be positive"),
    ],
)
def test_a_schedule_of_other_arguments_is_refused(changed: dict[str, Any], rule: str) -> None:
    given: dict[str, Any] = {"context_lens": torch.ones(2).int(), "block_kv": PAGE, "num_sms": 4}
    with pytest.raises(KernelRefused, match=rule):
        get_paged_mqa_logits_metadata(**given | changed)


def call_of(lens: list[list[int]], **changed: Any) -> dict[str, Any]:
    """Arguments of the scores; each row's pages lie in an order of its own."""
    torch.manual_seed(4)
    batch, tokens = len(lens), len(lens[0])
    cache = torch.zeros(12, PAGE * (WIDTH + 4), dtype=torch.uint8)
    rows, scales = pages_of_rows(cache, PAGE)
    found, scale = quantised(torch.randn(12, PAGE, WIDTH).double().numpy())
    rows.copy_(found)
    scales.copy_(torch.from_numpy(scale))
    context_lens = torch.tensor(lens).int()
    return {
        "q": torch.randn(batch, tokens, HEADS, WIDTH).to(torch.float8_e4m3fn),
        "fused_kv_cache": cache.view(12, PAGE, 1, WIDTH + 4),
        "weights": torch.randn(batch * tokens, HEADS),
        "context_lens": context_lens,
        "block_table": torch.stack([torch.randperm(12)[:6] for _ in range(batch)]).int(),
        "schedule_meta": get_paged_mqa_logits_metadata(context_lens, PAGE, get_num_sms()),
        "max_context_len": 6 * PAGE,
        "clean_logits": False,
        **changed,
    }


def score(given: dict[str, Any], row: int, token: int, key: int) -> float:
    """One score by the formula, from the cache's bytes."""
    page = given["fused_kv_cache"][int(given["block_table"][row, key // PAGE])].flatten()
    at = key % PAGE
    value = page[at * WIDTH : (at + 1) * WIDTH].view(torch.float8_e4m3fn).double()
    scale = page[PAGE * WIDTH :].view(torch.float32)[at].double()
    queries = given["q"][row, token].double()
    weights = given["weights"][row * given["q"].shape[1] + token].double()
    heads = [
        float(weight) * max(0.0, float(query @ value))
        for query, weight in zip(queries, weights, strict=True)
    ]
    return sum(heads) * float(scale)


@pytest.mark.parametrize("lens", [[[70], [300], [1]], [[0], [65]], [[68, 69, 70], [299, 300, 301]]])
def test_a_score_is_the_weighted_sum_over_heads_of_what_is_above_0(lens: list[list[int]]) -> None:
    given = call_of(lens)
    got = fp8_paged_mqa_logits(**given)
    tokens = len(lens[0])
    for row, of_row in enumerate(lens):
        for token, length in enumerate(of_row):
            keys = sorted({*range(0, length, 37), *range(max(0, length - 2), length)})
            for key in keys:
                want = score(given, row, token, key)
                assert float(got[row * tokens + token, key]) == pytest.approx(want, rel=1e-5)


def test_what_a_schedule_leaves_out_gets_no_score() -> None:
    shorter = get_paged_mqa_logits_metadata(torch.tensor([[70]]).int(), PAGE, get_num_sms())
    whole = fp8_paged_mqa_logits(**call_of([[70], [300]]))
    given = call_of([[70], [300]], schedule_meta=shorter)
    torch.use_deterministic_algorithms(True)  # memory that nobody writes is NaN
    try:
        cut = fp8_paged_mqa_logits(**given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(cut[0, :70], whole[0, :70])
    assert cut[1].isnan().all()


def test_a_multiprocessor_that_never_comes_by_its_end_breaks_a_rule() -> None:
    longer = get_paged_mqa_logits_metadata(torch.tensor([[300], [70]]).int(), PAGE, get_num_sms())
    memory = GuardedMemory()
    with memory.intercept("engine"):
        fp8_paged_mqa_logits(**call_of([[70], [70]], schedule_meta=longer))
    (misuse,) = memory.lanes.report.take_misuses()
    assert "must end at a split that it comes by; got split 1 of row 0, which has 1" in str(misuse)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"q": torch.zeros(1, 1, HEADS, WIDTH)}, "q must be float8_e4m3fn"),
        ({"weights": torch.zeros(1, HEADS + 1)}, r"weights must be \[1, 2\]"),
        ({"context_lens": torch.ones(2, 1).int()}, r"context_lens must be \[1, 1\]"),
        ({"block_table": torch.ones(1, 2)}, "block_table must be int32"),
        ({"schedule_meta": torch.ones(3, 2).int()}, r"schedule_meta must be \[33, 2\]"),
        ({"fused_kv_cache": torch.zeros(2, PAGE, 1, WIDTH, dtype=torch.uint8)}, "fused_kv_cache"),
    ],
)
def test_scores_of_other_arguments_are_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        fp8_paged_mqa_logits(**call_of([[5]], **changed))


def test_scores_that_are_cleaned_are_not_followed() -> None:
    with pytest.raises(KernelNotModelled, match="clean_logits=True"):
        fp8_paged_mqa_logits(**call_of([[5]], clean_logits=True))
