"""EAGLE's speculator in the V2 runner of released vLLM: drafts behind drafts that were verified."""

from __future__ import annotations

import pytest

from fuzzgraph.case import ReplayStep
from fuzzgraph.errors import AdapterUnavailable
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, NEWEST
from tests.targets.vllm.test_eagle import STEPS, drafts, grown

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
TARGETS = ("vllm-v2-eagle-draft", "vllm-v2-eagle-draft-triton")
FOUR = STEPS[0]
"""Without a padded row, every one of them with drafts to verify."""
EIGHT = drafts((0, 5), (1, 3), (2, 9), (3, 20), (4, 4), (5, 6), (6, 7), (7, 11))
"""As many as the runner has rows for."""
WIDE = {"capture_bs": (8,), "req_pool_size": 8, "kv_pool_pages": 128}


@pytest.mark.parametrize("target", TARGETS)
def test_a_draft_goes_on_from_what_stays_of_the_one_before(vllm: Workers, target: str) -> None:
    assert vllm.findings(NEWEST, grown(*STEPS, IDLE), target) == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("version", ["0.20.2", "0.25.1"])
def test_a_draft_without_padded_rows_goes_on_so_on_earlier_releases(
    vllm: Workers, version: str, target: str
) -> None:
    found = vllm.findings(version, grown(FOUR), target)
    assert {(one.oracle, one.buffer) for one in found} <= {("contract", "scheduler_metadata")}


def test_a_draft_of_one_token_is_one_graph(vllm: Workers) -> None:
    case = grown(*STEPS, IDLE, spec_steps=1, draft_tokens=2)
    assert vllm.findings(NEWEST, case, TARGETS[0]) == ()


def test_requests_that_join_with_placeholders_take_graphs(vllm: Workers) -> None:
    joining = drafts((0, 5), (1, 4)), drafts((0, 6), (1, 7))  # 9 and 13 tokens: see `rows_of`
    assert vllm.findings(NEWEST, grown(*joining), TARGETS[0]) == ()


def test_requests_that_compute_several_tokens_of_a_prompt_join_drafts(vllm: Workers) -> None:
    joining = drafts((0, 5), (1, 6)), drafts((0, 8), (1, 7))  # 11 and 15 tokens
    assert vllm.findings(NEWEST, grown(*joining), TARGETS[0]) == ()


def test_a_request_that_was_preempted_drafts_again(vllm: Workers) -> None:
    steps = drafts((0, 5), (1, 6)), ReplayStep(mode="idle", finish=(0,)), drafts((0, 7))
    assert vllm.findings(NEWEST, grown(*steps), TARGETS[0]) == ()


def test_drafts_above_the_ladder_run_eagerly(vllm: Workers) -> None:
    steps = drafts((0, 5), (1, 3), (2, 9)), drafts((0, 7), (1, 5))
    assert vllm.findings(NEWEST, grown(*steps, capture_bs=(2,)), TARGETS[0]) == ()


@pytest.mark.parametrize("version", ["0.20.2", "0.25.1"])
def test_the_draft_of_an_idle_rank_overwrites_what_the_last_requests_left(
    vllm: Workers, version: str
) -> None:
    found = vllm.findings(version, grown(EIGHT, IDLE, **WIDE), TARGETS[0])
    seen = {(one.oracle, one.buffer) for one in found if one.mode == "idle"}
    assert {("contract", "slot_mapping"), ("footprint", "runner.kv_caches[0]")} <= seen


def test_the_draft_of_an_idle_rank_stores_nothing_on_the_newest_release(vllm: Workers) -> None:
    assert vllm.findings(NEWEST, grown(EIGHT, IDLE, **WIDE), TARGETS[0]) == ()


def test_a_capture_runs_on_the_plan_of_its_own_rows_on_the_newest_release(vllm: Workers) -> None:
    plans = ("contract", "scheduler_metadata")
    found = [vllm.findings(version, grown(FOUR), TARGETS[0]) for version in ("0.25.1", NEWEST)]
    told = [plans in {(one.oracle, one.buffer) for one in each} for each in found]
    assert told == [True, False]


def test_a_release_without_graphs_of_the_first_forward_is_refused(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match="vLLM 0.17.1 has no graphs of a draft's first"):
        vllm.findings("0.17.1", grown(FOUR), TARGETS[0])


PLANTED = {
    "tokens_not_moved": ("contract", "first_input_ids"),
    "rejected_stay": ("contract", "first_rows"),
    "lengths_with_rejected": ("contract", "seq_lens"),
    "first_hidden_states": ("reference", "draft_tokens"),
    "lengths_stay": ("reference", "attention"),
    "inputs_anew": ("contract", "input_ids"),
    "smaller_graph": ("contract", "graph"),
    "no_graph": ("contract", "graphs"),
    "idle_slots": ("contract", "slot_mapping"),
    "padded_slots": ("footprint", "runner.kv_caches[0]"),
    "slots_of_the_first": ("reference", "runner.kv_caches[0]"),
    "next_rows_drafts": ("reference", "draft_tokens"),
    "step_stays": ("reference", "draft_tokens"),
}
"""Name of the bug -> what is found, among others: oracle and buffer."""


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_of_the_speculator_is_found(vllm: Workers, planted: str) -> None:
    name = f"tests.targets.vllm.v2_eagle_mutants:{planted}"
    found = {(one.oracle, one.buffer) for one in vllm.findings(NEWEST, grown(*STEPS, IDLE), name)}
    assert PLANTED[planted] in found
