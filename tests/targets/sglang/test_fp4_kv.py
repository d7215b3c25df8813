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
XQA: dict[str, Any] = {"trtllm_kernel": "xqa", "backend_beside": "flashinfer"}
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
        ({"backend_beside": "flashinfer"}, "is not driven, only 'none'"),
        ({"trtllm_kernel": "xqa"}, "backend_beside='none' with KV in FP4 is not driven"),
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

    @pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.23"])
    def test_decodes_by_xqa_read_scales_by_slot(self, workers: Workers, version: str) -> None:
        assert seen(workers, version, fp4_case(**XQA), TARGETS["decode"]) == set()

    def test_0_5_18_asks_for_its_device_in_another_way(self, workers: Workers) -> None:
        skipped = workers.skipped("0.5.18", fp4_case(**XQA), TARGETS["decode"])
        assert "kv_dtype='nvfp4' by XQA is driven from sglang 0.5.19 on" in skipped

    @pytest.mark.parametrize(
        ("version", "says"), [("0.5.20", "decode only"), ("0.5.23", "is invalid for input of size")]
    )
    def test_verifies_by_xqa_fail(self, workers: Workers, version: str, says: str) -> None:
        """Open in 0.5.23; see reports/findings/sglang-xqa-fp4-verify.md."""
        case = fp4_case("target_verify", **XQA)
        (found,) = workers.findings(version, case, TARGETS["target_verify"])
        assert found.symptom == "exception" and says in found.message

    @pytest.mark.parametrize(
        ("mutant", "buffer"),
        [
            ("scales_by_slot_of_keys_for_values", "attention"),
            ("keys_by_the_scale_of_values", "attention"),
            ("values_stored_with_scales_of_keys", "v_scale_buffer[0]"),
            ("linear_scales_stored_for_keys_twice", "k_scale_buffer[0]"),
        ],
    )
    def test_a_changed_line_is_found_by_xqa(
        self, workers: Workers, mutant: str, buffer: str
    ) -> None:
        found = seen(
            workers, "0.5.23", fp4_case(**XQA), f"tests.targets.sglang.fp4_mutants:{mutant}"
        )
        assert any(name.endswith(buffer) for _, name in found), found

    def test_pools_of_0_5_20_have_no_scales_in_the_layout_of_the_kernel(
        self, workers: Workers
    ) -> None:
        skipped = workers.skipped("0.5.20", fp4_case(), TARGETS["decode"])
        assert "kv_dtype='nvfp4' is driven from sglang 0.5.21 on" in skipped

    @pytest.mark.parametrize(
        ("mutant", "oracle", "shown"),
        [
            ("scales_of_keys_for_values", "reference", "attention"),
            ("packed_keys_for_values", "reference", "attention"),
            ("planes_of_scales_swapped", "reference", "attention"),
            ("values_as_their_blocks_are", "reference", "attention"),
            ("keys_by_the_scale_of_values", "reference", "attention"),
            ("queries_of_16_bits", "survival", "take queries in float8_e4m3fn alone"),
            ("outputs_stay_in_fp8", "survival", "float8_e4m3fn"),
            ("a_packed_row_of_all_columns", "survival", "is invalid for input of size"),
            ("values_stored_with_scales_of_keys", "reference", "native_v_scale_buffer[0]"),
            ("values_quantised_by_the_scale_of_keys", "reference", "native_v_scale_buffer[0]"),
            ("scales_of_values_stored_over_those_of_keys", "footprint", "native_k_scale_buffer[0]"),
            ("scales_not_stored", "survival", "one NVFP4 scale layout must be selected"),
            ("scales_of_checkpoints_as_they_are", "reference", "attention"),
            ("verifies_read_plain_keys", "survival", "is invalid for input of size"),
            ("verified_by_the_scale_of_keys", "reference", "attention"),
        ],
    )
    def test_a_changed_line_is_found(
        self, workers: Workers, mutant: str, oracle: str, shown: str
    ) -> None:
        """By the end of the buffer's name, or by what is raised where there is no buffer."""
        case = fp4_case("target_verify" if mutant.startswith("verif") else "decode")
        target = f"tests.targets.sglang.fp4_mutants:{mutant}"
        found = workers.findings("0.5.23", case, target)
        told = [(one.oracle, one.buffer or one.message) for one in found]
        assert any(
            by == oracle and (text.endswith(shown) or (by == "survival" and shown in text))
            for by, text in told
        ), told
