"""Graphs that break at attention on the V1 runner of released vLLM."""

from __future__ import annotations

import pytest

from fuzzgraph.errors import AdapterUnavailable
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import (
    IDLE,
    IN_PARTS,
    MIXED_THEN_PADDED,
    NEWEST,
    VERSIONS,
    mixed,
    mixes,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
BREAKABLE = (
    "vllm-fa-breakable",
    "vllm-triton-breakable",
    "vllm-v2-fa-breakable",
    "vllm-v2-triton-breakable",
)
PIECEWISE = (
    "vllm-fa-piecewise",
    "vllm-triton-piecewise",
    "vllm-fa-full-piecewise",
    "vllm-triton-full-piecewise",
)


@pytest.mark.parametrize("target", PIECEWISE)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_prompt_is_computed_in_parts_beside_decodes(
    vllm: Workers, version: str, target: str
) -> None:
    found = vllm.findings(version, mixes(*IN_PARTS), target)
    known = {("contract", "is_prefilling")} if version == "0.20.2" else set()
    assert {(one.oracle, one.buffer) for one in found} <= known


@pytest.mark.parametrize("target", BREAKABLE)
@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
def test_graphs_that_break_by_themselves_do_so_too(
    vllm: Workers, version: str, target: str
) -> None:
    assert vllm.findings(version, mixes(*IN_PARTS), target) == ()


@pytest.mark.parametrize("target", ["vllm-fa-breakable", "vllm-fa-full-piecewise"])
def test_a_batch_of_decodes_alone_takes_a_full_graph(vllm: Workers, target: str) -> None:
    """The finding is about the full graph's rows; pieces are never padded by rows."""
    decodes = mixed((0, 5, 1), (1, 6, 1), (2, 7, 1), (3, 8, 1)), mixed((0, 6, 1), (1, 7, 1))
    planted = "tests.targets.vllm.piecewise_mutants:rows_stay"
    assert vllm.findings(NEWEST, mixes(*decodes), target) == ()
    found = vllm.findings(NEWEST, mixes(*decodes), planted)
    assert "seq_lens" in {one.buffer for one in found}


def test_a_release_whose_graphs_do_not_break_by_themselves_is_refused(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match="vLLM 0.20.2 has no breakable graphs"):
        vllm.findings("0.20.2", mixes(*IN_PARTS), "vllm-fa-breakable")


@pytest.mark.parametrize("target", ["vllm-fa-piecewise", "vllm-triton-piecewise"])
@pytest.mark.parametrize(("version", "stale"), [("0.17.1", True), ("0.20.2", False)])
def test_pieces_of_an_idle_rank_store_where_a_request_was_up_to_0_17(
    vllm: Workers, version: str, target: str, stale: bool
) -> None:
    found = vllm.findings(version, mixes(*MIXED_THEN_PADDED, IDLE), target)
    shown = {"slot_mapping", "runner.kv_caches[0]"} if stale else set()
    assert {one.buffer for one in found} == shown


PLANTED = {
    "slots_stay": ("contract", "slot_mapping"),
    "captured_slots_stay": ("contract", "slot_mapping"),
    "inputs_anew": ("contract", "input_ids"),
    "smaller_graph": ("contract", "cu_seqlens_q"),
    "one_entry": ("contract", "cu_seqlens_q"),
    "last_metadata": ("handover", "FlashAttentionMetadataBuilder.returned"),
}
"""Name of the bug -> what is found, among others: oracle and buffer."""


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_found(vllm: Workers, planted: str) -> None:
    steps = (*MIXED_THEN_PADDED, mixed((0, 7, 1), (1, 14, 4)))
    name = f"tests.targets.vllm.piecewise_mutants:{planted}"
    found = {(one.oracle, one.buffer) for one in vllm.findings(NEWEST, mixes(*steps), name)}
    assert PLANTED[planted] in found


def test_the_same_steps_are_healthy_without_a_planted_bug(vllm: Workers) -> None:
    steps = (*MIXED_THEN_PADDED, mixed((0, 7, 1), (1, 14, 4)))
    for target in ("vllm-fa-piecewise", "vllm-fa-breakable"):
        assert vllm.findings(NEWEST, mixes(*steps), target) == ()
