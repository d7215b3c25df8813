"""Latent attention on vLLM's V1 runner: the engine's `MLAAttention` on several backends."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, MOVED, NEWEST, VERSIONS, decode, decodes

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
# The last row is left by a request that was new a step ago.
FULL_THEN_PADDED = (
    decode((0, 5), (1, 6), (2, 7), (3, 8)),
    decode((0, 6), (1, 7), (2, 8), finish=(3,)),
)


def latent(*steps: Any, **settings: Any) -> Case:
    widths = {"attention": "mla", "num_kv_heads": 1, "head_dim": 10, "v_head_dim": 6}
    return decodes(*steps, **{**widths, **settings})


@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
@pytest.mark.parametrize("steps", [MOVED, FULL_THEN_PADDED], ids=["moved", "padded"])
def test_latent_rows_keep_their_pages_and_tokens(vllm: Workers, version: str, steps: Any) -> None:
    assert vllm.findings(version, latent(*steps), "vllm-triton-mla") == ()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("target", "page"), [("vllm-fa-mla", 16), ("vllm-flashmla", 64)])
def test_backends_with_plans_keep_pages_and_tokens(
    vllm: Workers, version: str, target: str, page: int
) -> None:
    steps = (
        decode((0, 5), (1, 64), (2, 65)),
        decode((1, 65), (2, 66), finish=(0,)),
        decode((2, 67), (3, 130), (1, 66)),
    )
    moved = latent(*steps, page_size=page, max_context_len=130)
    found = {(one.oracle, one.buffer) for one in vllm.findings(version, moved, target)}
    assert found == set()


@pytest.mark.parametrize("target", ["vllm-v2-triton-mla", "vllm-v2-fa-mla"])
@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
@pytest.mark.parametrize("steps", [MOVED, FULL_THEN_PADDED], ids=["moved", "padded"])
def test_the_v2_runner_keeps_latent_rows_their_pages_and_tokens(
    vllm: Workers, version: str, target: str, steps: Any
) -> None:
    assert vllm.findings(version, latent(*steps), target) == ()


def test_pages_that_the_v2_runner_does_not_stage_are_found(vllm: Workers) -> None:
    planted = "tests.targets.vllm.v2_mutants:latent_pages_not_staged"
    found = {one.buffer for one in vllm.findings(NEWEST, latent(*MOVED), planted)}
    assert "block_table" in found


def test_a_batch_above_the_ladder_runs_eagerly(vllm: Workers) -> None:
    steps = decode((0, 5), (1, 6), (2, 7)), decode((0, 6), (1, 7))
    assert vllm.findings(NEWEST, latent(*steps, capture_bs=(2,)), "vllm-triton-mla") == ()


def test_an_idle_rank_writes_no_latent_rows(vllm: Workers) -> None:
    steps = decode((0, 4)), decode((0, 5)), IDLE
    assert vllm.findings(NEWEST, latent(*steps), "vllm-triton-mla") == ()


@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
@pytest.mark.parametrize("mixing", ["fp8_scale", "nan"])
def test_zero_by_zero_in_rows_of_padding_reaches_live_rows(
    vllm: Workers, version: str, mixing: str
) -> None:
    """Open in 0.33.0; see corpus/known_bugs/vllm-pr-57094.toml."""
    padded = latent(decode((0, 5)), row_mixing=mixing)
    found = {(one.oracle, one.buffer) for one in vllm.findings(version, padded, "vllm-triton-mla")}
    assert found == {("reference", "mixed"), ("eager", "mixed")}


@pytest.mark.parametrize("mixing", ["fp8_scale", "nan"])
def test_a_full_batch_has_no_rows_of_padding_to_mix(vllm: Workers, mixing: str) -> None:
    full = latent(decode((0, 5), (1, 20)), row_mixing=mixing)
    assert vllm.findings(NEWEST, full, "vllm-triton-mla") == ()


@pytest.mark.parametrize("planted", ["tables_elsewhere", "latents_in_the_next_slot"])
def test_a_planted_bug_of_latent_attention_is_found(vllm: Workers, planted: str) -> None:
    found = vllm.findings(NEWEST, latent(*MOVED), f"tests.targets.vllm.latent_mutants:{planted}")
    assert ("reference", "attention") in {(one.oracle, one.buffer) for one in found}


@pytest.mark.parametrize("version", ["0.17.1", "0.20.2"])
def test_a_release_without_full_graphs_says_so(vllm: Workers, version: str) -> None:
    with pytest.raises(FuzzGraphError, match="no full decode graphs on TritonMLABackend"):
        vllm.findings(version, latent(decode((0, 5))), "vllm-triton-mla")


def test_a_latent_row_without_a_rotary_part_is_not_driven() -> None:
    config = EngineConfig(page_size=16, attention="mla", head_dim=8, v_head_dim=8)
    refused = open_target("vllm-triton-mla").unsupported(config)
    assert refused == "v_head_dim=8 leaves a latent row without a rotary part"
