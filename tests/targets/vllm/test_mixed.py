"""Batches of prompts beside decodes on the V1 runner of released vLLM."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fuzzgraph.case import ReplayStep
from tests.targets.sglang.released import Workers, release_path
from tests.targets.vllm.cases import IDLE, MOVED, NEWEST, VERSIONS, case, decodes, step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
mixed = partial(step, mode="prefill")
mixes = partial(case, capture_bs=(), capture_tokens=(4, 8, 16))

# A prompt in three parts beside decodes; then decodes alone, and a batch above the ladder.
IN_PARTS = (
    mixed((0, 5, 5), (1, 16, 1), (2, 31, 3)),
    mixed((0, 9, 4), (1, 17, 1), (2, 32, 1)),
    mixed((0, 11, 2), (1, 18, 1), (2, 33, 1)),
    mixed((1, 19, 1), (2, 34, 1), finish=(0,)),
    mixed((1, 20, 1), (3, 19, 19)),
)
FULL_THEN_PADDED: tuple[ReplayStep, ...] = (
    mixed((0, 5, 4), (1, 6, 4)),
    mixed((0, 6, 1), (1, 10, 4)),
)


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
    found = vllm.findings(NEWEST, mixes(*FULL_THEN_PADDED, IDLE), target)
    assert {one.buffer for one in found} <= {"dummy_is_prefilling"}


def test_slots_that_padded_tokens_keep_are_found(vllm: Workers) -> None:
    planted = "tests.targets.vllm.mutants:padded_slots_of_mixed"
    found = vllm.findings(NEWEST, mixes(*FULL_THEN_PADDED), planted)
    assert "slot_mapping" in {one.buffer for one in found}


def test_the_device_of_the_target_before_is_forgotten(tmp_path: Path) -> None:
    """FlashAttention has graphs of mixed batches by the device that its import finds."""
    workers = Workers(tmp_path, partial(release_path, package="vllm"))
    try:
        assert not workers.findings("0.25.1", decodes(*MOVED), "vllm-flashinfer-trtllm")
        assert not workers.findings("0.25.1", mixes(*IN_PARTS), "vllm-fa-mixed")
    finally:
        workers.close()
