"""DeepSeek's layer on TRT-LLM's latent attention: each part is rotated once, by its own place."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, Mode
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

DECODE, VERIFY = "sglang-deepseek-mla", "sglang-deepseek-mla-verify"
_MUTANTS = "tests.targets.sglang.rotated_latent_mutants"
_RELEASES = ["0.5.13", "0.5.16", "0.5.17", "0.5.19", "0.5.20", "0.5.21", "0.5.22",
             "0.5.23"]  # fmt: skip
_BATCHES = (5, 66, 7, 150), (131, 8, 20)
_FULL = (5, 66, 7, 150), (131, 8, 20, 33)
IN_FP8: dict[str, Any] = {"kv_dtype": "float8_e4m3fn", "unit_kv_scale": True}
AS_THE_MODEL: dict[str, Any] = {}


def _case(mode: Mode, settings: dict[str, Any], batches: Any = _BATCHES) -> Case:
    return decode_case(
        *batches, mode=mode, page_size=32, attention="mla", num_q_heads=2, num_kv_heads=1,
        head_dim=8, v_head_dim=4, max_context_len=200, dtype="bfloat16", **settings,
    )  # fmt: skip


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", _RELEASES)
@pytest.mark.parametrize("settings", [IN_FP8, AS_THE_MODEL])
@pytest.mark.parametrize(("target", "mode"), [(DECODE, "decode"), (VERIFY, "target_verify")])
def test_an_engine_that_rotates_once_is_silent(
    workers: Workers, version: str, settings: dict[str, Any], target: str, mode: Mode
) -> None:
    assert workers.findings(version, _case(mode, settings), target) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("target", "mode"), [(DECODE, "decode"), (VERIFY, "target_verify")])
def test_0_5_12_rotates_once_where_no_row_is_padded(
    workers: Workers, target: str, mode: Mode
) -> None:
    assert workers.findings("0.5.12", _case(mode, IN_FP8, _FULL), target) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
@pytest.mark.parametrize(
    "mutant",
    [
        "rotates_before_the_kernel_too",
        "rotates_before_the_kernel_too_in_verify",
        "leaves_the_rotation_out",
        "leaves_the_rotation_out_in_verify",
        "rotates_by_places_of_other_rows",
        "rotates_by_places_of_other_rows_in_verify",
        "pairs_columns_of_two_halves",
        "absorbs_other_heads",
    ],
)
def test_one_changed_line_is_found_out(workers: Workers, version: str, mutant: str) -> None:
    mode: Mode = "target_verify" if mutant.endswith("verify") else "decode"
    found = workers.findings(version, _case(mode, IN_FP8), f"{_MUTANTS}:{mutant}")
    assert "reference" in {one.oracle for one in found}


@pytest.mark.sglang
@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_where_the_layer_rotates_by_itself_nothing_is_rotated_twice(
    workers: Workers, mode: Mode
) -> None:
    """The condition says the same of keys that are not in FP8."""
    mutant = "rotates_before_the_kernel_too" + ("" if mode == "decode" else "_in_verify")
    assert workers.findings("0.5.23", _case(mode, AS_THE_MODEL), f"{_MUTANTS}:{mutant}") == ()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"head_dim": 7, "v_head_dim": 4}, "3 columns cannot be rotated in pairs"),
        (
            {"head_dim": 8, "v_head_dim": 4, "kv_dtype": "float8_e4m3fn", "dtype": "bfloat16"},
            "stores latent rows without the scale",
        ),
    ],
)
def test_what_no_latent_row_of_the_engine_has_is_refused(
    settings: dict[str, Any], reason: str
) -> None:
    config = EngineConfig(attention="mla", page_size=32, num_kv_heads=1, **settings)
    said = open_target(DECODE).unsupported(config)
    assert said is not None and reason in said
