"""TensorRT-LLM's attention by XQA, the kernel of devices with compute capability 9 and 12."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, Mode
from tests.targets.sglang.released import Workers, decode_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.xqa_mutants:"
DECODE, VERIFY = "sglang-trtllm-mha", "sglang-trtllm-mha-verify"
FOUND = ("sees_no_self", "sees_the_next", "sees_all", "one_mask_too_few", "masks_of_all_rows",
         "no_mask")  # fmt: skip


def xqa_case(mode: Mode = "target_verify", **settings: Any) -> Case:
    """Graphs of two sizes and a batch above them, short of the context."""
    given = {"page_size": 16, "trtllm_kernel": "xqa", **settings}
    return decode_case((5, 17, 40), (9,), (60, 58, 61, 57), (8, 20, 7, 12, 3), mode=mode, **given)


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.19", "0.5.23"])
def test_decodes_run_by_xqa(workers: Workers, version: str) -> None:
    assert workers.findings(version, xqa_case("decode"), DECODE) == ()


@pytest.mark.parametrize("settings", [{}, {"swa_window": 6}, {"backend_beside": "fa3"}])
@pytest.mark.parametrize("kv_dtype", ["auto", "float8_e4m3fn"])
def test_verifies_run_by_xqa(workers: Workers, kv_dtype: str, settings: dict[str, Any]) -> None:
    case = xqa_case(kv_dtype=kv_dtype, dtype="bfloat16", **settings)
    assert workers.findings("0.5.23", case, VERIFY) == ()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.20"])
def test_verifies_had_no_mask_up_to_0_5_20(workers: Workers, version: str) -> None:
    found = workers.findings(version, xqa_case(), VERIFY)
    assert {(each.oracle, each.symptom) for each in found} == {("survival", "exception")}
    assert "mask is required" in found[0].message


@pytest.mark.parametrize("name", FOUND)
def test_a_changed_mask_is_found(workers: Workers, name: str) -> None:
    case = xqa_case()
    assert workers.findings("0.5.23", case, f"{MUTANTS}{name}")
    assert workers.findings("0.5.23", case, VERIFY) == ()


def test_queries_in_fp8_are_found(workers: Workers) -> None:
    case = xqa_case(kv_dtype="float8_e4m3fn", dtype="bfloat16")
    assert workers.findings("0.5.23", case, f"{MUTANTS}converted_queries")


def test_a_mask_of_one_token_is_not_read(workers: Workers) -> None:
    """A verify has its mask either way, so that nothing differs."""
    assert workers.findings("0.5.23", xqa_case(), f"{MUTANTS}mask_of_every_width") == ()


def test_no_server_of_0_5_9_has_it(workers: Workers) -> None:
    assert "asks for no device" in workers.skipped("0.5.9", xqa_case("decode"), DECODE)
