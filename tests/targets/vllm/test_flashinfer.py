"""vLLM's FlashInfer backend on its V1 runner: lists of pages, plans, outputs judged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, MOVED, NEWEST, VERSIONS, decode, decodes

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
# The last row is left by a request that was new a step ago.
FULL_THEN_PADDED = (
    decode((0, 5), (1, 6), (2, 7), (3, 8)),
    decode((0, 6), (1, 7), (2, 8), finish=(3,)),
)
TARGET = "vllm-flashinfer"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("steps", [MOVED, FULL_THEN_PADDED], ids=["moved", "padded"])
def test_requests_keep_their_pages_and_tokens(vllm: Workers, version: str, steps: Any) -> None:
    found = {(one.oracle, one.buffer) for one in vllm.findings(version, decodes(*steps), TARGET)}
    assert found <= ({("contract", "is_prefilling")} if version == "0.20.2" else set())


@pytest.mark.parametrize("version", VERSIONS)
def test_kernels_of_tensorrt_llm_read_the_table_of_the_batch(vllm: Workers, version: str) -> None:
    found = vllm.findings(version, decodes(*MOVED), "vllm-flashinfer-trtllm")
    named = {(one.oracle, one.buffer) for one in found}
    assert named <= ({("contract", "is_prefilling")} if version == "0.20.2" else set())


def test_an_idle_rank_names_no_page(vllm: Workers) -> None:
    steps = decode((0, 4)), decode((0, 5)), IDLE
    assert vllm.findings(NEWEST, decodes(*steps), TARGET) == ()


def test_a_batch_above_the_ladder_runs_eagerly(vllm: Workers) -> None:
    steps = decode((0, 5), (1, 6), (2, 7)), decode((0, 6), (1, 7))
    assert vllm.findings(NEWEST, decodes(*steps, capture_bs=(2,)), TARGET) == ()


@pytest.mark.parametrize(
    ("planted", "buffer"),
    [
        ("last_pages_of_before", "paged_kv_last_page_len"),
        ("pages_of_before", "paged_kv_indices"),
    ],
)
def test_a_planted_bug_of_the_lists_of_pages_is_found(
    vllm: Workers, planted: str, buffer: str
) -> None:
    target = f"tests.targets.vllm.flashinfer_mutants:{planted}"
    found = vllm.findings(NEWEST, decodes(*MOVED), target)
    assert {buffer, "attention"} <= {one.buffer for one in found}
