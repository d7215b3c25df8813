"""The V2 runner of released vLLM: request states, staged writes, tables, idle ranks, answers."""

from __future__ import annotations

import pytest

from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, MOVED, decode, decodes

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
NEWEST = "0.33.0"
BUSY_THEN_IDLE = decode((0, 4), (1, 5)), decode((0, 5), (1, 6)), IDLE


@pytest.mark.parametrize("target", ["vllm-v2-fa", "vllm-v2-triton"])
@pytest.mark.parametrize("version", ["0.20.2", "0.25.1", NEWEST])
def test_requests_that_move_in_the_batch_keep_their_pages_and_tokens(
    vllm: Workers, version: str, target: str
) -> None:
    assert vllm.findings(version, decodes(*MOVED), target) == ()


def test_the_first_token_of_a_prompt_takes_no_graph_by_the_engines_rule(vllm: Workers) -> None:
    steps = decode((0, 1), (1, 6)), decode((0, 2), (1, 7))
    assert vllm.findings(NEWEST, decodes(*steps), "vllm-v2-fa") == ()


@pytest.mark.parametrize(("version", "stale"), [("0.25.1", True), (NEWEST, False)])
def test_an_idle_rank_of_0_25_1_keeps_the_pages_of_its_last_batch(
    vllm: Workers, version: str, stale: bool
) -> None:
    found = {
        one.buffer for one in vllm.findings(version, decodes(*BUSY_THEN_IDLE), "vllm-v2-triton")
    }
    assert found == ({"block_table"} if stale else set())


@pytest.mark.parametrize(("version", "stale"), [("0.17.1", True), ("0.20.2", False)])
def test_padding_of_0_17_1_writes_where_an_earlier_batch_wrote(
    vllm: Workers, version: str, stale: bool
) -> None:
    padded = decode((0, 4), (1, 5), (2, 6), (3, 7)), decode((0, 5), (1, 6), (2, 7), finish=(3,))
    found = {one.buffer for one in vllm.findings(version, decodes(*padded), "vllm-v2-triton")}
    assert ("slot_mapping" in found) == stale


def test_an_idle_rank_of_0_17_1_replays_the_last_batch(vllm: Workers) -> None:
    found = vllm.findings("0.17.1", decodes(*BUSY_THEN_IDLE), "vllm-v2-triton")
    clauses = {(one.oracle, one.buffer) for one in found}
    assert ("contract", "slot_mapping") in clauses
    assert "footprint" in {one.oracle for one in found}


@pytest.mark.parametrize(
    ("planted", "buffer"),
    [
        ("lengths_not_counted", "seq_lens"),
        ("pages_not_staged", "block_table"),
        ("slots_of_padding", "slot_mapping"),
        ("answer_of_the_next_step", "sampled_token_ids"),
        ("prompts_never_end", "is_prefilling"),
    ],
)
def test_a_planted_bug_of_the_runner_is_found(vllm: Workers, planted: str, buffer: str) -> None:
    steps = (
        decode((0, 16), (1, 3), (2, 9), (3, 8)),
        decode((0, 17), (1, 4), (2, 10), finish=(3,)),
        decode((0, 18), (1, 5), (2, 11)),
    )
    found = vllm.findings(NEWEST, decodes(*steps), f"tests.targets.vllm.v2_mutants:{planted}")
    assert buffer in {one.buffer for one in found}


def test_a_runner_that_captures_nothing_is_found(vllm: Workers) -> None:
    planted = "tests.targets.vllm.v2_mutants:nothing_captured"
    (found,) = vllm.findings(NEWEST, decodes(decode((0, 4))), planted)
    assert "capture_model captured no graph" in found.message
