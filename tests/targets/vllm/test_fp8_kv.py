"""KV in FP8 on vLLM's FlashAttention and FlashInfer: scales on the way in and out."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IN_PARTS, MOVED, NEWEST, VERSIONS, decodes, mixes

released = [pytest.mark.vllm, pytest.mark.slow]
FP8 = {"kv_dtype": "float8_e4m3fn", "dtype": "bfloat16"}


def fp8(*steps: Any, **settings: Any) -> Case:
    return decodes(*steps, **FP8, **settings)


def test_graphs_in_pieces_are_not_driven_with_kv_in_fp8() -> None:
    """The compiler would compile what quantises queries, for a device that is not there."""
    config = EngineConfig(modes=("prefill",), page_size=16, capture_tokens=(4,), **FP8)  # type: ignore[arg-type]
    for name in ("vllm-fa-piecewise", "vllm-fa-full-piecewise", "vllm-triton-piecewise"):
        assert "is not driven" in (open_target(name).unsupported(config) or "")
    assert open_target("vllm-fa-mixed").unsupported(config) is None


class TestReleases:
    pytestmark = released

    @pytest.mark.parametrize("version", VERSIONS)
    def test_keys_and_values_come_back_as_they_were(self, vllm: Workers, version: str) -> None:
        assert vllm.findings(version, fp8(*MOVED), "vllm-fa") == ()

    @pytest.mark.parametrize("target", ["vllm-fa", "vllm-v2-fa"])
    def test_a_layer_behind_a_window_has_scales_of_its_own_pool(
        self, vllm: Workers, target: str
    ) -> None:
        assert vllm.findings(NEWEST, fp8(*MOVED, swa_window=6), target) == ()

    @pytest.mark.parametrize(
        ("version", "says"),
        [("0.17.1", {"attention"}), ("0.20.2", {"attention"}), ("0.25.1", set()), (NEWEST, set())],
    )
    def test_triton_attention_applies_scales_beside_queries_in_fp8_from_0_25_on(
        self, vllm: Workers, version: str, says: set[str]
    ) -> None:
        """vLLM PR 42080."""
        case = decodes(*MOVED, kv_dtype="float8_e4m3fn", dtype="float16", num_q_heads=4)
        found = vllm.findings(version, case, "vllm-triton")
        assert {one.buffer for one in found if one.oracle == "reference"} == says

    @pytest.mark.parametrize("target", ["vllm-triton-mixed", "vllm-v2-triton"])
    def test_triton_attention_is_held_to_weights_in_fp8(self, vllm: Workers, target: str) -> None:
        settings = {"kv_dtype": "float8_e4m3fn", "dtype": "float16", "num_q_heads": 4}
        mixed = target.endswith("mixed")
        case = mixes(*IN_PARTS, **settings) if mixed else decodes(*MOVED, **settings)
        assert vllm.findings(NEWEST, case, target) == ()

    def test_prompts_in_parts_are_stored_and_read_by_their_scales(self, vllm: Workers) -> None:
        assert vllm.findings(NEWEST, mixes(*IN_PARTS, **FP8), "vllm-fa-mixed") == ()

    @pytest.mark.parametrize(
        ("planted", "buffer"),
        [
            ("scales_swapped", "attention"),
            ("stored_without_scales", "runner.kv_caches[0]"),
            ("queries_scaled", "attention"),
        ],
    )
    def test_a_wrong_scale_is_found(self, vllm: Workers, planted: str, buffer: str) -> None:
        found = vllm.findings(NEWEST, fp8(*MOVED), f"tests.targets.vllm.fp8_mutants:{planted}")
        assert ("reference", buffer) in {(one.oracle, one.buffer) for one in found}

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("target", ["vllm-flashinfer", "vllm-flashinfer-trtllm"])
    def test_flashinfer_takes_queries_as_each_release_has_them(
        self, vllm: Workers, version: str, target: str
    ) -> None:
        """In the model's dtype by its wrappers up to 0.20, else in FP8."""
        found = {(one.oracle, one.buffer) for one in vllm.findings(version, fp8(*MOVED), target)}
        assert found <= ({("contract", "is_prefilling")} if version == "0.20.2" else set())

    @pytest.mark.parametrize(
        ("planted", "buffer"),
        [
            ("numbers_swapped", "attention"),
            ("queries_by_keys", "attention"),
            ("keys_stored_by_values", "runner.kv_caches[0]"),
            ("lengths_of_full_pages", "attention"),
            ("trtllm_numbers_swapped", "attention"),
            ("trtllm_values_as_stored", "attention"),
            ("trtllm_keys_as_stored", "attention"),
            ("trtllm_stored_without_scales", "runner.kv_caches[0]"),
            ("trtllm_queries_scaled", "attention"),
        ],
    )
    def test_a_wrong_scale_or_length_of_flashinfer_is_found(
        self, vllm: Workers, planted: str, buffer: str
    ) -> None:
        found = vllm.findings(NEWEST, fp8(*MOVED), f"tests.targets.vllm.fp8_mutants:{planted}")
        assert ("reference", buffer) in {(one.oracle, one.buffer) for one in found}
