"""Prompts of DeepSeek V4's attention in prefill graphs that break at it."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import Rows, prefill_case

TARGET = "sglang-dsv4-prefill"
_MUTANTS = "tests.targets.sglang.dsv4_prefill_mutants"

_RELEASES = ["0.5.13", "0.5.16", "0.5.17", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]
_PROMPTS: tuple[Rows, ...] = (
    ((0, 0, 7),),
    ((0, 7, 3), (1, 0, 2)),
    ((1, 130, 5), (2, 254, 4)),
    ((3, 0, 1),),
)
"""Longer, then shorter; a past within the window and beyond it, across a page."""


def prompts(kind: str = "window", batches: tuple[Rows, ...] = _PROMPTS, **settings: Any) -> Case:
    fixed: dict[str, Any] = {
        "page_size": 256, "max_context_len": 512, "capture_tokens": (4, 12), "req_pool_size": 4,
        "kv_pool_pages": 16, "attention": "mla", "head_dim": 8, "v_head_dim": 8,
        "num_q_heads": 2, "num_kv_heads": 1, "kv_compression": kind,
    }  # fmt: skip
    return prefill_case("breakable", *batches, **{**fixed, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", _RELEASES)
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_prompts_give_attention_over_their_window_and_compressed_keys(
    workers: Workers, version: str, kind: str
) -> None:
    assert workers.findings(version, prompts(kind), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "kind", "oracle"),
    [
        ("takes_a_count_for_kept_rows", "window", "survival"),
        ("keeps_metadata_of_the_capture", "c128", "survival"),  # FlashMLA's plan has its shapes
        ("keeps_the_plan_of_the_capture", "c4", "reference"),
        ("gives_lengths_without_the_last_token", "window", "contract"),
    ],
)
def test_one_changed_line_is_found_out(
    workers: Workers, mutant: str, kind: str, oracle: str
) -> None:
    found = workers.findings("0.5.23", prompts(kind), f"{_MUTANTS}:{mutant}")
    assert oracle in {one.oracle for one in found}
