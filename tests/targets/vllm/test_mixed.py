"""Batches of prompts beside decodes on the V1 runner of released vLLM."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fuzzgraph.errors import AdapterUnavailable
from tests.targets.sglang.released import Workers, release_path
from tests.targets.vllm.cases import (
    IDLE,
    IN_PARTS,
    MIXED_THEN_PADDED,
    MOVED,
    NEWEST,
    VERSIONS,
    decodes,
    mixes,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.mark.parametrize("target", ["vllm-fa-mixed", "vllm-triton-mixed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_prompt_is_computed_in_parts_beside_decodes(
    vllm: Workers, version: str, target: str
) -> None:
    found = vllm.findings(version, mixes(*IN_PARTS), target)
    known = {("contract", "is_prefilling")} if version == "0.20.2" else set()
    assert {(one.oracle, one.buffer) for one in found} <= known


@pytest.mark.parametrize("target", ["vllm-fa-mixed", "vllm-triton-mixed"])
def test_an_idle_rank_runs_one_dummy_request(vllm: Workers, target: str) -> None:
    """The finding is open in 0.33.0; see corpus/known_bugs/vllm-stale-prefilling-idle.toml."""
    found = vllm.findings(NEWEST, mixes(*MIXED_THEN_PADDED, IDLE), target)
    assert {one.buffer for one in found} <= {"dummy_is_prefilling"}


def test_slots_that_padded_tokens_keep_are_found(vllm: Workers) -> None:
    planted = "tests.targets.vllm.mutants:padded_slots_of_mixed"
    found = vllm.findings(NEWEST, mixes(*MIXED_THEN_PADDED), planted)
    assert "slot_mapping" in {one.buffer for one in found}


def test_the_device_of_the_target_before_is_forgotten(tmp_path: Path) -> None:
    """FlashAttention has graphs of mixed batches by the device that its import finds."""
    workers = Workers(tmp_path, partial(release_path, package="vllm"))
    try:
        assert not workers.findings("0.25.1", decodes(*MOVED), "vllm-flashinfer-trtllm")
        assert not workers.findings("0.25.1", mixes(*IN_PARTS), "vllm-fa-mixed")
    finally:
        workers.close()


def test_releases_that_pad_no_rows_of_mixed_batches_are_refused(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match=r"vLLM 0\.16\.0 pads no rows of mixed batches"):
        vllm.findings("0.16.0", mixes(*IN_PARTS), "vllm-triton-mixed")
