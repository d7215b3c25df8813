"""Verifies of drafts on the V1 runner of released vLLM: full graphs for 1 + k tokens a request."""

from __future__ import annotations

from functools import partial

import pytest

from fuzzgraph.case import ReplayStep
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, NEWEST, VERSIONS, case, step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
verify = partial(step, mode="target_verify")
verifies = partial(case, capture_bs=(2, 4), draft_tokens=3)

# From a prompt on, with all drafts accepted, then with one of two, then with none.
ACCEPTED_LESS_AND_LESS = (
    verify((0, 5, 3), (1, 16, 3), (2, 31, 3)),
    verify((1, 19, 3), (2, 34, 3), finish=(0,)),
    verify((2, 36, 3), (3, 48, 3), (1, 21, 3)),
    verify((2, 37, 3), (1, 22, 3)),
)
FULL_THEN_PADDED: tuple[ReplayStep, ...] = (
    verify((0, 5, 3), (1, 6, 3), (2, 7, 3), (3, 8, 3)),
    verify((0, 8, 3), (1, 9, 3), (2, 10, 3), finish=(3,)),
)


@pytest.mark.parametrize("target", ["vllm-fa-verify", "vllm-triton-verify"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_verify_keeps_what_it_accepts_and_drops_the_rest(
    vllm: Workers, version: str, target: str
) -> None:
    found = vllm.findings(version, verifies(*ACCEPTED_LESS_AND_LESS), target)
    known = {("contract", "is_prefilling")} if version == "0.20.2" else set()
    assert {(one.oracle, one.buffer) for one in found} <= known


def test_a_batch_with_fewer_drafts_takes_no_graph_and_its_requests_go_on(vllm: Workers) -> None:
    steps = (
        verify((0, 5, 3), (1, 16, 3)),
        verify((0, 8, 3), (1, 17, 1)),
        verify((0, 10, 2), (1, 20, 3)),
        verify((0, 13, 3), (1, 23, 3)),
    )
    assert vllm.findings(NEWEST, verifies(*steps), "vllm-fa-verify") == ()


@pytest.mark.parametrize(("version", "one_token"), [("0.17.1", True), ("0.20.2", False)])
def test_an_idle_rank_of_0_17_1_has_one_token_for_a_graph_of_several(
    vllm: Workers, version: str, one_token: bool
) -> None:
    """PR 35690."""
    found = vllm.findings(version, verifies(*FULL_THEN_PADDED, IDLE), "vllm-triton-verify")
    said = "query_start_loc gives padded row 0 1 entries, must be 3"
    assert any(said in one.message for one in found) == one_token


def test_an_idle_rank_verifies_one_dummy_request(vllm: Workers) -> None:
    """The finding is open in 0.33.0; see corpus/known_bugs/vllm-stale-prefilling-idle.toml."""
    found = vllm.findings(NEWEST, verifies(*FULL_THEN_PADDED, IDLE), "vllm-triton-verify")
    assert {one.buffer for one in found} <= {"dummy_is_prefilling"}


@pytest.mark.parametrize(
    ("planted", "steps", "buffer"),
    [
        ("padded_lengths_of_a_verify", FULL_THEN_PADDED, "seq_lens"),
        ("another_token_than_the_rejected", ACCEPTED_LESS_AND_LESS, "sampled_token_ids"),
        ("logits_of_the_next_tokens", FULL_THEN_PADDED, "attention"),
    ],
)
def test_a_planted_bug_of_a_verify_is_found(
    vllm: Workers, planted: str, steps: tuple[ReplayStep, ...], buffer: str
) -> None:
    found = vllm.findings(NEWEST, verifies(*steps), f"tests.targets.vllm.mutants:{planted}")
    assert buffer in {one.buffer for one in found}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("planted", ["rejects_all", "rows_the_other_way_round"])
def test_a_wrong_answer_is_found_on_each_release(vllm: Workers, planted: str, version: str) -> None:
    target = f"tests.targets.vllm.answer_mutants:{planted}"
    found = vllm.findings(version, verifies(*ACCEPTED_LESS_AND_LESS), target)
    assert "sampled_token_ids" in {one.buffer for one in found}


@pytest.mark.parametrize("planted", ["accepts_all", "bonus_of_another_row"])
def test_a_token_that_was_never_predicted_is_found_in_the_answer(
    vllm: Workers, planted: str
) -> None:
    target = f"tests.targets.vllm.answer_mutants:{planted}"
    found = vllm.findings(NEWEST, verifies(*ACCEPTED_LESS_AND_LESS), target)
    assert "sampled_token_ids" in {one.buffer for one in found}


@pytest.mark.parametrize("planted", ["plan_one_step_late", "plan_of_nobody"])
def test_a_wrong_plan_of_a_verify_is_found(vllm: Workers, planted: str) -> None:
    steps = (
        verify((0, 5, 3), (1, 6, 3), (2, 7, 3)),
        verify((0, 8, 3), (1, 9, 3), (2, 10, 3), (3, 8, 3)),
    )
    target = f"tests.targets.vllm.mutants:{planted}"
    found = {(one.oracle, one.buffer) for one in vllm.findings(NEWEST, verifies(*steps), target)}
    assert {("handover", "flash_attn_with_kvcache"), ("reference", "attention")} <= found


def test_a_plan_of_more_rows_than_the_batch_has_is_laid_out_otherwise(vllm: Workers) -> None:
    """Four rows of four tokens on a graph of five: the plan of four has an entry more than that."""
    rows = tuple((name, 5 + name, 4) for name in range(4))
    alone = verifies(verify(*rows), capture_bs=(5,), draft_tokens=4)
    assert vllm.findings(NEWEST, alone, "vllm-fa-verify") == ()
    assert vllm.findings(NEWEST, alone, "vllm-v2-fa-verify") == ()
