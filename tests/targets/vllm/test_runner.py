"""The V1 runner of released vLLM: persistent batch, padded replay, idle ranks, outputs judged."""

from __future__ import annotations

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, MOVED, decode, decodes

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
TARGETS = ("vllm-fa", "vllm-triton")
NEWEST = "0.33.0"
# The last row is left by a request that was new a step ago.
FULL_THEN_PADDED = (
    decode((0, 5), (1, 6), (2, 7), (3, 8)),
    decode((0, 6), (1, 7), (2, 8), finish=(3,)),
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("version", ["0.17.1", "0.20.2", "0.25.1", NEWEST])
def test_requests_that_move_in_the_batch_keep_their_pages_and_tokens(
    vllm: Workers, version: str, target: str
) -> None:
    found = {(one.oracle, one.buffer) for one in vllm.findings(version, decodes(*MOVED), target)}
    assert found <= ({("contract", "is_prefilling")} if version == "0.20.2" else set())


@pytest.mark.parametrize("target", ["vllm-fa", "vllm-v2-fa"])
def test_a_request_that_waits_goes_on_where_it_was(vllm: Workers, target: str) -> None:
    waits = decode((0, 16), (1, 3)), decode((1, 4)), decode((0, 17), (1, 5))
    assert vllm.findings(NEWEST, decodes(*waits), target) == ()


@pytest.mark.parametrize("target", ["vllm-fa", "vllm-v2-fa"])
def test_a_preempted_request_resumes_with_other_pages(vllm: Workers, target: str) -> None:
    steps = (
        decode((0, 16), (1, 3)),
        decode((1, 4), finish=(0,)),
        decode((2, 30), (1, 5)),
        decode((0, 17), (1, 6)),
    )
    assert vllm.findings(NEWEST, decodes(*steps), target) == ()


@pytest.mark.parametrize("target", ["vllm-triton", "vllm-v2-triton"])
def test_a_batch_above_the_ladder_runs_eagerly(vllm: Workers, target: str) -> None:
    steps = decode((0, 5), (1, 6), (2, 7)), decode((0, 6), (1, 7))
    assert vllm.findings(NEWEST, decodes(*steps, capture_bs=(2,)), target) == ()


_LEFT = {
    "0.15.1": {"block_table", "slot_mapping", "query_start_loc", "runner.kv_caches[0]"},
    "0.17.1": {"block_table", "slot_mapping", "query_start_loc", "runner.kv_caches[0]"},
    "0.19.1": {"slot_mapping", "query_start_loc", "runner.kv_caches[0]"},
    "0.20.2": {"query_start_loc"},
    "0.25.1": set(),
    NEWEST: set(),
}
"""What the dummy batch of an idle rank has of requests that left, and stores into; PRs 37728, 39444
and 40003."""


_ONE_SLOT = ("0.15.1", "0.17.1", "0.19.1")
"""Releases whose dummy batch hands builders one write slot where their graph has two tokens."""


@pytest.mark.parametrize("version", _LEFT)
def test_an_idle_rank_keeps_of_requests_that_left_what_its_release_says(
    vllm: Workers, version: str
) -> None:
    steps = decode((0, 4), (1, 5)), decode((0, 5), (1, 6)), IDLE
    said = vllm.findings(version, decodes(*steps), "vllm-triton")
    found = {one.buffer for one in said if one.oracle != "handover"}
    assert found - {"dummy_is_prefilling"} == _LEFT[version]
    handed = [one for one in said if "slot_mapping is [1]" in one.message]
    assert bool(handed) == (version in _ONE_SLOT), handed


def test_a_release_whose_flash_attention_plans_otherwise_is_refused(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match="vllm 0.15.1 has a FlashAttention whose plans"):
        vllm.findings("0.15.1", decodes(decode((0, 4))), "vllm-fa")


@pytest.mark.parametrize(("version", "stale"), [("0.20.2", True), (NEWEST, False)])
def test_padded_rows_of_0_20_2_count_as_prefill(vllm: Workers, version: str, stale: bool) -> None:
    found = {one.buffer for one in vllm.findings(version, decodes(*FULL_THEN_PADDED), "vllm-fa")}
    assert found == ({"is_prefilling"} if stale else set())


def test_dummy_rows_of_an_idle_rank_count_as_prefill(vllm: Workers) -> None:
    """Open in 0.33.0; see corpus/known_bugs/vllm-stale-prefilling-idle.toml."""
    found = vllm.findings(NEWEST, decodes(decode((0, 4)), IDLE), "vllm-fa")
    assert {one.buffer for one in found} == {"dummy_is_prefilling"}


@pytest.mark.parametrize(("version", "outside"), [("0.20.2", True), (NEWEST, False)])
def test_unified_attention_of_0_20_2_reads_behind_a_narrow_table(
    vllm: Workers, version: str, outside: bool
) -> None:
    # Without a graph, where the kernel is the one that takes a row in one piece.
    narrow = decodes(decode((0, 1), (1, 1)), capture_bs=(1,), max_context_len=1)
    found = vllm.findings(version, narrow, "vllm-triton")
    assert any("block_table.gpu" in one.message for one in found) == outside


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("version", ["0.17.1", NEWEST])
@pytest.mark.parametrize(("mixing", "reached"), [("none", False), ("nan", True)])
def test_rows_of_padding_reach_live_rows_through_a_layer_that_mixes_rows(
    vllm: Workers, version: str, target: str, mixing: str, reached: bool
) -> None:
    """Open in 0.33.0; see reports/findings/vllm-padded-attention-rows.md."""
    padded = decodes(decode((0, 5)), row_mixing=mixing)
    found = {(one.oracle, one.buffer) for one in vllm.findings(version, padded, target)}
    assert (("reference", "mixed") in found) == reached
    assert found <= {("reference", "mixed"), ("eager", "mixed"), ("noninterference", "mixed")}


@pytest.mark.parametrize("target", TARGETS)
def test_a_full_batch_has_no_rows_of_padding_to_mix(vllm: Workers, target: str) -> None:
    full = decodes(decode((0, 5), (1, 20)), row_mixing="nan")
    assert vllm.findings(NEWEST, full, target) == ()


@pytest.mark.parametrize("planted", ["padded_lengths", "first_pages_only"])
def test_a_planted_bug_of_the_runner_is_found(vllm: Workers, planted: str) -> None:
    steps = {
        "padded_lengths": FULL_THEN_PADDED,
        "first_pages_only": (decode((0, 16), (1, 3)), decode((0, 17), (1, 4))),
    }[planted]
    found = vllm.findings(NEWEST, decodes(*steps), f"tests.targets.vllm.mutants:{planted}")
    named = {"padded_lengths": "seq_lens", "first_pages_only": "block_table"}[planted]
    assert named in {one.buffer for one in found}


def test_a_graph_reads_the_table_that_it_was_captured_with(vllm: Workers) -> None:
    steps = decode((0, 5), (1, 20)), decode((0, 6), (1, 21))
    found = vllm.findings(NEWEST, decodes(*steps), "tests.targets.vllm.mutants:tables_elsewhere")
    told = {(one.oracle, one.buffer) for one in found}
    assert ("reference", "attention") in told
    assert ("handover", "FlashAttentionMetadataBuilder.returned.block_table") in told


@pytest.mark.parametrize(("target", "stays"), [("vllm-fa", False), ("prompts_stay", True)])
def test_a_request_that_moves_to_another_row_is_no_prefill(
    vllm: Workers, target: str, stays: bool
) -> None:
    steps = (
        decode((0, 20), (1, 5)),
        decode((0, 21), (1, 6)),
        decode((1, 7), finish=(0,)),
    )
    name = f"tests.targets.vllm.mutants:{target}" if stays else target
    found = {(one.oracle, one.buffer) for one in vllm.findings(NEWEST, decodes(*steps), name)}
    assert (("contract", "is_prefilling") in found) == stays


def test_a_graph_reads_the_inputs_that_it_was_captured_with(vllm: Workers) -> None:
    steps = decode((0, 5), (1, 20)), decode((0, 6), (1, 21))
    found = vllm.findings(NEWEST, decodes(*steps), "tests.targets.vllm.mutants:inputs_anew")
    assert ("handover", "CUDAGraphWrapper.input_ids") in {(one.oracle, one.buffer) for one in found}


def test_values_of_another_width_than_keys_are_not_driven() -> None:
    config = EngineConfig(page_size=16, head_dim=8, v_head_dim=4)
    refused = open_target("vllm-fa").unsupported(config)
    assert refused == "the engine's cache has one head size for keys and values"
