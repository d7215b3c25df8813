"""Released vLLM with two KV cache groups: full attention, and a window whose pages are freed."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, ReplayStep
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import NEWEST, VERSIONS, decode, decodes, step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

# A window of 4 tokens, the query's own included; pages of 16. The first request's first page leaves
# the window with its token 21, and the third request may get it at once.
LEAVING = (
    decode((0, 19), (1, 5)),
    decode((0, 20), (1, 6)),
    decode((0, 21), (1, 7), (2, 3)),
    decode((0, 22), (2, 4), finish=(1,)),
)


def windowed(*steps: ReplayStep, **settings: Any) -> Case:
    return decodes(*steps, **{"swa_window": 3, **settings})


@pytest.mark.parametrize("target", ["vllm-fa", "vllm-triton"])
@pytest.mark.parametrize("version", VERSIONS)
def test_both_layers_attend_to_their_own_pages_while_pages_leave_the_window(
    vllm: Workers, version: str, target: str
) -> None:
    found = {(one.oracle, one.buffer) for one in vllm.findings(version, windowed(*LEAVING), target)}
    assert found <= ({("contract", "is_prefilling")} if version == "0.20.2" else set())


@pytest.mark.parametrize("target", ["vllm-fa-verify", "vllm-triton-verify"])
def test_drafts_are_verified_while_pages_leave_the_window(vllm: Workers, target: str) -> None:
    # Of the second step's drafts some are rejected: the third begins before its end.
    steps = [
        step((0, 18, 3), (1, 5, 3), mode="target_verify"),
        step((0, 21, 3), (1, 8, 3), mode="target_verify"),
        step((0, 23, 3), (1, 11, 3), (2, 30, 3), mode="target_verify"),
    ]
    assert vllm.findings(NEWEST, windowed(*steps, draft_tokens=3), target) == ()


def test_the_v2_runner_has_a_table_for_each_group(vllm: Workers) -> None:
    assert vllm.findings(NEWEST, windowed(*LEAVING), "vllm-v2-triton") == ()


@pytest.mark.parametrize(
    ("planted", "buffer"),
    [
        ("one_table", "swa_block_table"),
        ("one_slot_mapping", "swa_slot_mapping"),
        ("short_window", "swa_attention"),
    ],
)
def test_a_planted_bug_of_the_second_group_is_found(
    vllm: Workers, planted: str, buffer: str
) -> None:
    target = f"tests.targets.vllm.sliding_mutants:{planted}"
    found = vllm.findings(NEWEST, windowed(*LEAVING), target)
    assert buffer in {one.buffer for one in found}
