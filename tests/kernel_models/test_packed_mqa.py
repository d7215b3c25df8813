"""DeepGEMM's scores of FP8 keys that lie one behind the other, against loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.launch import routed, run_kernel
from fuzzgraph.kernel_models.memory import KernelMemory, Stray
from fuzzgraph.kernel_models.packed_mqa import fp8_mqa_logits

WIDTH, HEADS = 32, 2
BLOCK = 128 // HEADS
"""Queries of a block."""


def call_of(ranges: list[tuple[int, int]], keys: int = 600, **changed: Any) -> dict[str, Any]:
    """Arguments of the scores of queries with these ranges of keys."""
    torch.manual_seed(4)
    starts, ends = zip(*ranges, strict=True)
    return {
        "q": torch.randn(len(ranges), HEADS, WIDTH).to(torch.float8_e4m3fn),
        "kv": (torch.randn(keys, WIDTH).to(torch.float8_e4m3fn), torch.rand(keys) + 0.5),
        "weights": torch.randn(len(ranges), HEADS),
        "cu_seq_len_k_start": torch.tensor(starts).int(),
        "cu_seq_len_k_end": torch.tensor(ends).int(),
        "clean_logits": False,
        "max_seqlen_k": 640,
        **changed,
    }


def score(given: dict[str, Any], token: int, key: int) -> float:
    """One score by the formula."""
    queries = given["q"][token].double()
    value, scale = given["kv"][0][key].double(), given["kv"][1][key].double()
    heads = [
        float(weight) * max(0.0, float(query @ value))
        for query, weight in zip(queries, given["weights"][token].double(), strict=True)
    ]
    return sum(heads) * float(scale)


class _Told:
    """What a launch did wrong."""

    def __init__(self) -> None:
        self.misuses: list[str] = []
        self.strays: list[Stray] = []

    def stray(self, found: Stray) -> None:
        self.strays.append(found)

    def misuse(self, argument: str, rule: str, got: str) -> None:
        self.misuses.append(f"{rule}; got {got}")


def scored(given: dict[str, Any]) -> tuple[torch.Tensor, _Told]:
    """Scores, NaN where none is made, and what the launch did wrong."""
    told = _Told()
    torch.use_deterministic_algorithms(True)  # memory that nobody writes is NaN
    try:
        with routed(lambda kernel, **them: run_kernel(KernelMemory(told), kernel, **them)):
            return fp8_mqa_logits(**given), told
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 70), (0, 300), (0, 1)],
        [(0, 0), (0, 65)],
        [(3, 70), (257, 600)],
        [(0, 5 + token) for token in range(BLOCK + 3)],
    ],
)
def test_each_key_of_a_range_has_a_score_by_its_place_in_it(ranges: list[tuple[int, int]]) -> None:
    given = call_of(ranges)
    got, told = scored(given)
    assert not told.misuses and not told.strays
    assert got.shape == (len(ranges), 640)
    for token, (start, end) in enumerate(ranges):
        assert got[token, end - start :].isnan().all()
        for key in sorted({*range(start, end, 37), *range(max(start, end - 2), end)}):
            want = score(given, token, key)
            assert float(got[token, key - start]) == pytest.approx(want, rel=1e-5)


def test_a_key_behind_the_last_one_scores_0_within_a_tile_and_has_none_behind_it() -> None:
    got, told = scored(call_of([(0, 600)], keys=100))
    assert not told.misuses and not told.strays
    assert (got[0, 100:256] == 0).all()
    assert got[0, 256:].isnan().all()


def test_a_range_that_is_longer_than_the_scores_runs_into_the_next_row() -> None:
    _, told = scored(call_of([(0, 600), (0, 1)], max_seqlen_k=256))
    assert [(each.argument, each.kind) for each in told.strays] == [("logits", "write")]


def test_a_block_that_ends_before_it_begins_never_ends() -> None:
    got, told = scored(call_of([(300, 8)]))
    assert told.misuses == [
        "cu_seq_len_k_end of a block must not lie before its cu_seq_len_k_start; "
        "got 8 before 300 at token 0"
    ]
    assert got.isnan().all()


@pytest.mark.parametrize(
    "changed", [{"clean_logits": True}, {"max_seqlen_k": 0}, {"logits_dtype": torch.bfloat16}]
)
def test_scores_of_another_form_are_not_modelled(changed: dict[str, Any]) -> None:
    with pytest.raises(KernelNotModelled):
        fp8_mqa_logits(**call_of([(0, 3)], **changed))


def test_no_queries_have_no_scores() -> None:
    given = call_of([(0, 3)])
    for name in ("q", "weights", "cu_seq_len_k_start", "cu_seq_len_k_end"):
        given[name] = given[name][:0]
    assert fp8_mqa_logits(**given).shape == (0, 640)
