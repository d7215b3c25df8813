"""What the compilers of devices say of the Triton kernels that targets launch, without a device.

The benchmark sweeps all targets: `benchmarks/compile_offline.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.lanes.versions import refusal
from tests.targets.sglang.released import release_path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ALL = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")
TOO_NARROW = "AssertionError: Input shapes should have M >= 1, N >= 1 and K >= 16"
_HALVES = {"bf16", "fp16"}
EVERY_FLOAT = {*_HALVES, "fp32"}
_CONVOLUTION = "_causal_conv1d_fwd_kernel"


@pytest.fixture(scope="module", autouse=True)
def triton() -> None:
    """A version that the notes were written for."""
    version = pytest.importorskip("triton").__version__
    if refusal(version):
        pytest.skip(refusal(version))


def said_by(*command: str) -> list[dict[str, Any]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent)])
    said = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=True
    )
    return list(map(json.loads, said.stdout.splitlines()))


def compiled(
    target: str,
    shape: str,
    architectures: tuple[str, ...] = ALL,
    *,
    cases: int = 3,
    path: Path | None = None,
    profile: str = "ci",
) -> list[dict[str, Any]]:
    """A line for each kernel and architecture, of drawn cases with these head dims.

    Args:
        shape: e.g. "16x16"; with commas between, if several.
        profile: "device" for shapes of servers.
    """
    lines = said_by(
        *(str(BENCHMARKS / "compile_offline.py"), "--one", target, "--shapes", shape),
        *("--architectures", ",".join(architectures), "--cases", str(cases), "--most", "1"),
        *("--profile", profile),
        *(("--path", str(path)) if path else ()),
    )
    # All that was launched was read, and no case was left out.
    assert [line for line in lines if line.get("unread") or line.get("kept")] == []
    return [line for line in lines if "kernel" in line]


def refused(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] != "compiled"]


@lru_cache(maxsize=1)
def planted() -> dict[tuple[str, str], tuple[str, str]]:
    """Kernel and architecture -> what came of it, and why."""
    lines = said_by(str(Path(__file__).with_name("planted_kernels.py")), "sm_90", "gfx942")
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for line in lines:
        found.setdefault((line["kernel"], line["architecture"]), (line["kind"], line["why"]))
    return found


def test_a_kernel_compiles_with_the_functions_that_it_calls() -> None:
    assert planted()["compiles", "sm_90"] == ("compiled", "")
    assert planted()["compiles", "gfx942"] == ("compiled", "")


def test_what_one_compiler_refuses_another_may_take() -> None:
    assert planted()["multiplies", "sm_90"] == ("refused", TOO_NARROW)
    assert planted()["multiplies", "gfx942"] == ("compiled", "")


def test_a_compiler_that_ends_its_process_is_told_of_that_kernel_alone() -> None:
    assert planted()["dies", "sm_90"] == ("crashed", "SIGABRT")
    assert planted()["dies", "gfx942"] == ("crashed", "SIGABRT")
    # They come behind the one that dies.
    assert planted()["keeps_too_much", "sm_90"] == ("compiled", "")


def test_a_kernel_that_asks_for_more_shared_memory_than_there_is_counts_as_refused() -> None:
    kind, why = planted()["keeps_too_much", "gfx942"]
    assert kind == "refused"
    assert why.endswith("of 65536 that gfx942 has")


def test_a_kernel_begins_early_where_an_architecture_has_that() -> None:
    assert planted()["begins_early", "sm_90"] == ("compiled", "")
    assert planted()["begins_early", "gfx942"] == ("compiled", "")
    assert planted()["always_begins_early", "sm_90"] == ("compiled", "")
    assert planted()["always_begins_early", "gfx942"][0] == "refused"


def test_our_own_kernels_compile_for_all_five_architectures() -> None:
    lines = compiled("builtin-triton", "16x16", cases=24)
    assert {line["kernel"] for line in lines} == {"_attend", "_attention", "_merge"}
    assert {line["architecture"] for line in lines} == set(ALL)
    assert {kind for line in lines for kind in line["floats"].split()} >= EVERY_FLOAT
    assert refused(lines) == []


def test_the_kernel_of_a_planted_fault_compiles_for_all_five_architectures() -> None:
    lines = compiled("vllm-pr-57158-gather-past-the-lengths", "4x4")
    planted = [line for line in lines if line["kernel"] == "_lengths_ahead"]
    assert {line["architecture"] for line in planted} == set(ALL)
    assert refused(lines) == []


@pytest.mark.sglang
def test_prompts_of_sglang_need_heads_of_16_columns_on_nvidia_and_compile_from_there_on() -> None:
    path = release_path("0.5.23")
    lines = compiled("sglang-triton-verify", "8x8,16x16", ("sm_90",), path=path)
    attended = [line for line in lines if line["kernel"] == "_fwd_kernel"]
    narrow = [line for line in attended if line["shape"] == "8x8"]
    assert {kind for line in narrow for kind in line["floats"].split()} == _HALVES
    assert refused(lines) == narrow
    assert not any(line["drawn"] for line in narrow)
    assert {line["why"] for line in narrow} == {TOO_NARROW}
    wide = [line for line in attended if line["shape"] == "16x16"]
    assert {kind for line in wide for kind in line["floats"].split()} == _HALVES
    assert all(line["drawn"] for line in wide)


@pytest.mark.sglang
def test_wide_decodes_of_sglang_compile_for_nvidia_and_amd() -> None:
    path = release_path("0.5.23")
    lines = compiled("sglang-triton", "128x128", ("sm_90", "gfx942"), path=path)
    kernels = {line["kernel"] for line in lines}
    assert kernels >= {"_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"}
    assert refused(lines) == []


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_prompts_of_gated_delta_nets_compile_where_inputs_are_kept_in_the_dtype_of_the_model(
    version: str,
) -> None:
    path = release_path(version)
    lines = compiled("sglang-gdn-prefill", "16x16", ("sm_90",), cases=1, path=path)
    assert {line["floats"] for line in lines if line["kernel"] == _CONVOLUTION} == _HALVES
    assert refused(lines) == []


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_they_do_not_where_inputs_are_kept_in_float32(version: str) -> None:
    path = release_path(version)
    wide = "tests.targets.sglang.hybrid_prefill_mutants:inputs_in_float32"
    wrong = refused(compiled(wide, "16x16", ("sm_90",), cases=1, path=path))
    assert {line["kernel"] for line in wrong} == {_CONVOLUTION}
    assert {line["floats"] for line in wrong} == {"fp16 fp32", "bf16 fp32"}


@pytest.mark.sglang
def test_decodes_compile_at_the_shapes_of_servers() -> None:
    path = release_path("0.5.23")
    chips = ("sm_90", "gfx942")
    lines = compiled("sglang-triton", "128x128", chips, cases=3, path=path, profile="device")
    assert lines and not refused(lines)


@pytest.mark.sglang
def test_decodes_of_mamba2_compile_in_the_dtypes_of_servers() -> None:
    path = release_path("0.5.23")
    lines = compiled("sglang-mamba", "16x16", ("sm_90", "gfx942"), cases=1, path=path)
    assert {line["kernel"] for line in lines} >= {
        "_causal_conv1d_update_kernel",
        "_selective_scan_update_kernel",
    }
    assert refused(lines) == []
