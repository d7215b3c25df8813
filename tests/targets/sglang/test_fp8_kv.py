"""KV in FP8 on released sglang: scales on the way in and out, and slots of both pools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, Mode, save_case
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case
from tests.targets.sglang.test_backends import case_for, seen
from tests.targets.sglang.test_prefill import prefill_case

ROOT = Path(__file__).resolve().parents[3]
released = [pytest.mark.sglang, pytest.mark.slow]

FP8 = {"kv_dtype": "float8_e4m3fn", "dtype": "bfloat16"}


ON_TRITON: dict[str, Any] = {
    "kv_dtype": "float8_e4m3fn", "dtype": "float16", "page_size": 16, "max_context_len": 200
}  # fmt: skip
"""Models in bfloat16 are none of the interpreter's."""


def fp8_case(target: str, *batches: tuple[int, ...], **settings: Any) -> Case:
    return case_for(target, *batches, **FP8, **settings)


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-trtllm-mha-verify"])
def test_kv_in_fp8_is_driven_beside_bfloat16_alone(target: str) -> None:
    """Kernels of FP8 queries give bfloat16."""
    mode = "target_verify" if target.endswith("verify") else "decode"
    opened, settings = open_target(target), {"modes": (mode,), "page_size": 16}
    said = opened.unsupported(EngineConfig(kv_dtype="float8_e4m3fn", **settings))  # type: ignore[arg-type]
    assert said == ("dtype='float32' with KV in float8_e4m3fn is not driven, only bfloat16")
    assert opened.unsupported(EngineConfig(**FP8, **settings)) is None  # type: ignore[arg-type]


LATENT: dict[str, Any] = {"attention": "mla", "head_dim": 8, "v_head_dim": 4}


def test_pools_of_latent_rows_have_no_scales_and_are_not_driven() -> None:
    latent = EngineConfig(kv_dtype="float8_e4m3fn", **LATENT)
    said = open_target("sglang-fa3-mla").unsupported(latent)
    assert said == "kv_dtype='float8_e4m3fn' is not driven, only auto"


def test_latent_rows_of_flashinfer_are_stored_without_a_scale() -> None:
    scaled = EngineConfig(kv_dtype="float8_e4m3fn", **LATENT)
    said = str(open_target("sglang-flashinfer-mla").unsupported(scaled))
    assert "unit_kv_scale must be true" in said


class TestReleases:
    pytestmark = released

    @pytest.mark.parametrize(
        ("version", "target", "expected"),
        [
            ("0.5.12", "sglang-flashinfer-mla", set()),
            ("0.5.23", "sglang-flashinfer-mla", set()),
            (
                "0.5.23",
                "tests.targets.sglang.flashinfer_mutants:latent_rows_as_they_are_stored",
                {("survival", "")},
            ),
        ],
        ids=["0.5.12", "0.5.23", "not converted"],
    )
    def test_latent_rows_are_converted_for_the_kernel(
        self, workers: Workers, version: str, target: str, expected: set[tuple[str, str]]
    ) -> None:
        settings = {"kv_dtype": "float8_e4m3fn", "unit_kv_scale": True}
        case = case_for("flashinfer-mla", (5, 66), (6, 67), **settings)
        assert seen(workers, version, case, target) == expected

    @pytest.mark.parametrize(
        ("version", "target"),
        [("0.5.13", "fa3"), ("0.5.23", "fa3"), ("0.5.16", "trtllm-mha"), ("0.5.23", "trtllm-mha")],
    )
    @pytest.mark.parametrize("window", [0, 6])
    def test_keys_and_values_come_back_as_they_were(
        self, workers: Workers, version: str, target: str, window: int
    ) -> None:
        case = fp8_case(target, (5, 66, 7, 150), (131, 8, 20), swa_window=window)
        assert seen(workers, version, case, f"sglang-{target}") == set()

    @pytest.mark.parametrize("target", ["fa3", "trtllm-mha"])
    def test_drafts_are_verified_cleanly(self, workers: Workers, target: str) -> None:
        case = fp8_case(target, (5, 66, 7, 150), (130, 6, 7), mode="target_verify")
        assert seen(workers, "0.5.23", case, f"sglang-{target}-verify") == set()

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
    @pytest.mark.parametrize("mode", ["decode", "target_verify"])
    def test_triton_rounds_weights_to_fp8_and_is_held_to_that(
        self, workers: Workers, version: str, mode: Mode
    ) -> None:
        """Of several query heads for each of keys, whose kernels multiply in FP8."""
        rows = (5, 66, 7, 150) if mode == "decode" else (5, 66, 7)
        target = "sglang-triton" if mode == "decode" else "sglang-triton-verify"
        case = decode_case(
            rows, **ON_TRITON, mode=mode, num_q_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=16
        )
        assert seen(workers, version, case, target) == set()

    @pytest.mark.parametrize(
        ("kind", "version"),
        [("breakable", "0.5.23"), ("breakable", "0.5.21"), ("piecewise", "0.5.13")],
    )
    def test_prompts_read_a_past_in_fp8(self, workers: Workers, kind: str, version: str) -> None:
        batches = ((0, 5, 3), (1, 0, 5)), ((2, 17, 4),)
        case = prefill_case(kind, *batches, **ON_TRITON, num_q_heads=2)
        assert seen(workers, version, case, f"sglang-{kind}-prefill") == set()

    @pytest.mark.parametrize(
        "mutant", ["scales_swapped_on_triton", "values_of_triton_as_they_are_stored"]
    )
    def test_a_wrong_scale_on_triton_is_found(self, workers: Workers, mutant: str) -> None:
        case = decode_case((5, 66, 7), **ON_TRITON)
        found = seen(workers, "0.5.23", case, f"tests.targets.sglang.fp8_mutants:{mutant}")
        assert ("reference", "attention") in found

    def test_a_script_rounds_to_fp8_as_it_was_judged(self, tmp_path: Path) -> None:
        """Triton's own interpreter does not, so that a mended script would go on to accuse."""
        case = decode_case(
            (5, 66, 7, 150), **ON_TRITON, num_q_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=16
        )
        save_case(case, tmp_path / "case.json")
        planted = "tests.targets.sglang.fp8_mutants:values_of_triton_as_they_are_stored"
        words = ["export", str(tmp_path / "case.json"), "--as", "script", "--target", planted]
        python = [sys.executable, "-m", "fuzzgraph", *words, "--release", "0.5.23"]
        text = subprocess.run(python, capture_output=True, text=True, cwd=ROOT).stdout
        scale = "        1.0,\n"
        assert text.count(scale) == 1 and "import fuzzgraph" not in text
        told = []
        for name, source in (("broken.py", text), ("mended.py", text.replace(scale, "0.25,\n"))):
            (tmp_path / name).write_text(source)
            done = subprocess.run([sys.executable, tmp_path / name], capture_output=True, text=True)
            told.append((done.returncode, done.stdout.splitlines()[-1]))
        assert told[0][0] == 1 and "against float64 attention" in told[0][1]
        assert told[1] == (0, "Not reproduced.")

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
    def test_branches_find_a_scale_for_each_request_where_the_kernel_takes_one_for_each_token(
        self, workers: Workers, version: str
    ) -> None:
        """Open in 0.5.23; see reports/findings/sglang-fa3-fp8-branches.md."""
        case = fp8_case("fa3", (5, 7), (6, 7), mode="target_verify", spec_topk=2)
        (found,) = workers.findings(version, case, "sglang-fa3-verify")
        assert found.symptom == "exception" and "k_descale must have shape" in found.message

    @pytest.mark.parametrize(
        ("version", "buffers"),
        [("0.5.9", {"kv_pool.swa_kv_pool.k_buffer[0]", "attention"}), ("0.5.13", {"attention"})],
    )
    def test_what_old_releases_do_wrong_is_found(
        self, workers: Workers, version: str, buffers: set[str]
    ) -> None:
        """0.5.9 writes to slots of the other pool, and up to 0.5.13 values keep their scale."""
        case = fp8_case("trtllm-mha", (5, 66, 7, 150), (131, 8, 20, 3), swa_window=6)
        found = {buffer for _, buffer in seen(workers, version, case, "sglang-trtllm-mha")}
        assert buffers <= found

    def test_a_release_that_scales_queries_skips_the_case_with_the_reason(
        self, workers: Workers
    ) -> None:
        case = fp8_case("trtllm-mha", (5, 7))
        skipped = workers.skipped("0.5.14", case, "sglang-trtllm-mha")
        assert "scaled_fp8_quant, whose kernel has no model" in skipped

    @pytest.mark.parametrize(
        ("mutant", "target", "buffer"),
        [
            ("scales_swapped", "fa3", "attention"),
            ("values_as_they_are_stored", "fa3", "attention"),
            ("keys_stored_without_a_scale", "fa3", "kv_pool.k_buffer[0]"),
            ("values_of_trtllm_as_they_are_stored", "trtllm-mha", "attention"),
            ("keys_stored_by_the_scale_of_values", "trtllm-mha", "kv_pool.k_buffer[0]"),
            ("slots_of_the_other_pool", "trtllm-mha", "kv_pool.swa_kv_pool.k_buffer[0]"),
        ],
    )
    def test_a_wrong_scale_or_slot_is_found(
        self, workers: Workers, mutant: str, target: str, buffer: str
    ) -> None:
        window = 6 if "pool" in mutant else 0
        case = fp8_case(target, (5, 66, 7), (131, 8, 20), swa_window=window)
        found = seen(workers, "0.5.23", case, f"tests.targets.sglang.fp8_mutants:{mutant}")
        assert buffer in {name for _, name in found}
