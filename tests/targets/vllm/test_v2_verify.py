"""Verifies of drafts on the V2 runner of released vLLM, whose drafts never leave the device."""

from __future__ import annotations

from functools import partial

import pytest

from fuzzgraph.case import ReplayStep
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, NEWEST, case, step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
verify = partial(step, mode="target_verify")
verifies = partial(case, capture_bs=(2, 4), draft_tokens=3)

# Drafts behind a prompt are placeholders, of which none stays; then two, one and none are accepted.
FEWER_AND_FEWER = (
    verify((0, 5, 3), (1, 16, 3), (2, 31, 3)),
    verify((0, 6, 3), (1, 17, 3), (2, 32, 3)),
    verify((2, 35, 3), (3, 48, 3), (1, 19, 3), finish=(0,)),
    verify((2, 36, 3), (1, 21, 3)),
)


@pytest.mark.parametrize("target", ["vllm-v2-fa-verify", "vllm-v2-triton-verify"])
def test_a_verify_keeps_what_it_accepts_and_drops_the_rest(vllm: Workers, target: str) -> None:
    assert vllm.findings(NEWEST, verifies(*FEWER_AND_FEWER), target) == ()


def test_no_draft_of_a_request_that_was_preempted_stays_at_first(vllm: Workers) -> None:
    steps = verify((0, 5, 3)), ReplayStep(mode="idle", finish=(0,)), verify((0, 6, 3))
    assert vllm.findings(NEWEST, verifies(*steps), "vllm-v2-fa-verify") == ()


def test_an_idle_rank_replays_rows_of_as_many_tokens(vllm: Workers) -> None:
    steps = verify((0, 5, 3), (1, 6, 3)), verify((0, 6, 3), (1, 7, 3)), IDLE
    assert vllm.findings(NEWEST, verifies(*steps), "vllm-v2-fa-verify") == ()


@pytest.mark.parametrize(
    ("planted", "buffer"),
    [
        ("rejected_drafts_stay", "seq_lens"),
        ("drafts_of_before", "input_ids"),
        ("no_draft_stays", "sampled_token_ids"),
    ],
)
def test_a_planted_bug_of_the_verify_is_found(vllm: Workers, planted: str, buffer: str) -> None:
    target = f"tests.targets.vllm.v2_mutants:{planted}"
    found = vllm.findings(NEWEST, verifies(*FEWER_AND_FEWER), target)
    assert buffer in {one.buffer for one in found}
