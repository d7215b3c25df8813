"""KV in FP4 on released sglang: packed numbers, scales of their blocks, and scales of all."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, Mode
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case
from tests.targets.sglang.test_backends import seen

released = [pytest.mark.sglang, pytest.mark.slow]

FP4 = {"kv_dtype": "nvfp4", "dtype": "bfloat16", "head_dim": 64, "v_head_dim": 64}
TARGETS: dict[Mode, str] = {
    "decode": "sglang-trtllm-mha", "target_verify": "sglang-trtllm-mha-verify"
}  # fmt: skip


def fp4_case(mode: Mode = "decode", **settings: Any) -> Case:
    given = {"page_size": 16, "max_context_len": 200, "num_q_heads": 4, "num_kv_heads": 2}
    return decode_case((5, 66, 7, 150), (130, 8, 20), mode=mode, **{**FP4, **given, **settings})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"head_dim": 32, "v_head_dim": 32}, "head_dim=32 with KV in FP4 is not driven"),
        ({"swa_window": 6}, "swa_window=6 with KV in FP4 is not driven"),
        ({"trtllm_kernel": "xqa"}, "trtllm_kernel='xqa' with KV in FP4 is not driven"),
        ({"dtype": "float32"}, "dtype='float32' with KV in nvfp4 is not driven, only bfloat16"),
    ],
)
def test_what_no_pool_in_fp4_has_is_not_driven(settings: dict[str, Any], reason: str) -> None:
    config = EngineConfig(**{**FP4, "page_size": 16, **settings})
    said = open_target("sglang-trtllm-mha").unsupported(config)
    assert said is not None and reason in said


class TestReleases:
    pytestmark = released

    @pytest.mark.parametrize("version", ["0.5.21", "0.5.23"])
    @pytest.mark.parametrize("mode", TARGETS)
    @pytest.mark.parametrize("settings", [{}, {"row_mixing": "fp8_scale"}])
    def test_keys_and_values_come_back_as_they_were(
        self, workers: Workers, version: str, mode: Mode, settings: dict[str, Any]
    ) -> None:
        case = fp4_case(mode, **settings)
        assert seen(workers, version, case, TARGETS[mode]) == set()

    def test_keys_of_a_later_stage_have_the_scales_of_their_layer(self, workers: Workers) -> None:
        case = fp4_case(later_stage=True)
        assert seen(workers, "0.5.23", case, TARGETS["decode"]) == set()

    def test_pools_of_0_5_20_have_no_scales_in_the_layout_of_the_kernel(
        self, workers: Workers
    ) -> None:
        skipped = workers.skipped("0.5.20", fp4_case(), TARGETS["decode"])
        assert "kv_dtype='nvfp4' is driven from sglang 0.5.21 on" in skipped

    @pytest.mark.parametrize(
        ("mutant", "oracle", "buffer"),
        [
            ("scales_of_keys_for_values", "reference", "attention"),
            ("packed_keys_for_values", "reference", "attention"),
            ("planes_of_scales_swapped", "reference", "attention"),
            ("values_as_their_blocks_are", "reference", "attention"),
            ("keys_by_the_scale_of_values", "reference", "attention"),
            ("queries_of_16_bits", "survival", ""),
            ("outputs_stay_in_fp8", "survival", ""),
            ("a_packed_row_of_all_columns", "survival", ""),
            ("values_stored_with_scales_of_keys", "reference", "native_v_scale_buffer[0]"),
            ("values_quantised_by_the_scale_of_keys", "reference", "native_v_scale_buffer[0]"),
            ("scales_of_values_stored_over_those_of_keys", "footprint", "native_k_scale_buffer[0]"),
            ("scales_not_stored", "survival", ""),
            ("scales_of_checkpoints_as_they_are", "reference", "attention"),
            ("verifies_read_plain_keys", "survival", ""),
            ("verified_by_the_scale_of_keys", "reference", "attention"),
        ],
    )
    def test_a_changed_line_is_found(
        self, workers: Workers, mutant: str, oracle: str, buffer: str
    ) -> None:
        case = fp4_case("target_verify" if mutant.startswith("verif") else "decode")
        found = seen(workers, "0.5.23", case, f"tests.targets.sglang.fp4_mutants:{mutant}")
        assert any(by == oracle and name.endswith(buffer) for by, name in found), found
