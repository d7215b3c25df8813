"""EAGLE's proposer beside the V1 runner of released vLLM."""

from __future__ import annotations

from functools import partial

import pytest

from fuzzgraph.case import ReplayStep
from fuzzgraph.errors import AdapterUnavailable
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, NEWEST, VERSIONS, case, step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def drafts(*lengths: tuple[int, int], finish: tuple[int, ...] = ()) -> ReplayStep:
    """One draft; a request and the length of its past for each row."""
    return step(*((name, length, 0) for name, length in lengths), mode="draft", finish=finish)


grown = partial(case, page_size=1, capture_bs=(2, 4), spec_steps=3, draft_tokens=4)
STEPS = (
    drafts((0, 5), (1, 3), (2, 9), (3, 20)),
    drafts((0, 6), (1, 5), (2, 11), finish=(3,)),
    drafts((1, 7)),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_draft_takes_its_own_tokens_hidden_states_and_keys(vllm: Workers, version: str) -> None:
    assert vllm.findings(version, grown(*STEPS), "vllm-eagle-draft") == ()


@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
def test_a_draft_on_graphs_that_break_by_themselves_does_so_too(
    vllm: Workers, version: str
) -> None:
    assert vllm.findings(version, grown(*STEPS), "vllm-eagle-draft-breakable") == ()


def test_a_release_whose_graphs_do_not_break_by_themselves_is_refused(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match="vLLM 0.20.2 has no breakable graphs"):
        vllm.findings("0.20.2", grown(*STEPS), "vllm-eagle-draft-breakable")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_idle_rank_stores_where_its_last_draft_did(vllm: Workers, version: str) -> None:
    found = vllm.findings(version, grown(*STEPS, IDLE), "vllm-eagle-draft")
    stored = {("idle", "slot_mapping"), ("idle", "runner.kv_caches[0]")}
    assert {(one.mode, one.buffer) for one in found} == stored


def test_the_draft_of_an_idle_rank_overwrites_what_has_got_its_slots(vllm: Workers) -> None:
    last = drafts((4, 46), finish=(0, 1, 2, 3))
    found = vllm.findings(NEWEST, grown(STEPS[0], last, IDLE), "vllm-eagle-draft")
    assert ("footprint", "runner.kv_caches[0]") in {(one.oracle, one.buffer) for one in found}


def test_a_request_that_gets_shorter_drafts_behind_its_last_token(vllm: Workers) -> None:
    steps = drafts((0, 9), (1, 3)), drafts((0, 4), (1, 3))
    assert vllm.findings(NEWEST, grown(*steps), "vllm-eagle-draft") == ()


def test_a_draft_above_the_ladder_runs_eagerly(vllm: Workers) -> None:
    steps = drafts((0, 5), (1, 3), (2, 9)), drafts((0, 7), (1, 5))
    assert vllm.findings(NEWEST, grown(*steps, capture_bs=(2,)), "vllm-eagle-draft") == ()


PLANTED = {
    "tokens_not_shifted": ("reference", "attention"),
    "first_hidden_states": ("reference", "hidden_states"),
    "lengths_stay": ("reference", "attention"),
    "inputs_anew": ("contract", "input_ids"),
    "smaller_graph": ("contract", "cu_seqlens_q"),
    "next_rows_sampled": ("reference", "hidden_states"),
    "padded_slots": ("contract", "slot_mapping"),
}
"""Name of the bug -> what is found, among others: oracle and buffer."""


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_of_the_proposer_is_found(vllm: Workers, planted: str) -> None:
    name = f"tests.targets.vllm.eagle_mutants:{planted}"
    found = {(one.oracle, one.buffer) for one in vllm.findings(NEWEST, grown(*STEPS), name)}
    assert PLANTED[planted] in found
