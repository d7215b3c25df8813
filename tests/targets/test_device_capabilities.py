"""What targets express on a device: shapes and dtypes that compiled kernels take."""

from __future__ import annotations

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.ports import use_device
from fuzzgraph.process.interpreter import engine_environment
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import BUILT_IN, open_target


def drawn(name: str, device: str, count: int = 40) -> list[EngineConfig]:
    target = open_target(name)
    use_device(target, device)
    found: list[Case] = []
    supports = lambda config: target.unsupported(config) is None  # noqa: E731
    draw(cases(target.capabilities, DEFAULT, supports=supports), 3, count, found.append)
    return [case.config for case in found]


@pytest.mark.parametrize(
    "name", ["sglang-triton", "sglang-gdn", "sglang-breakable-prefill", "vllm-triton"]
)
def test_heads_on_a_device_are_as_wide_as_a_product_of_tiles_takes(name: str) -> None:
    assert min(config.head_dim for config in drawn(name, "cpu")) < 16
    assert min(config.head_dim for config in drawn(name, "cuda")) == 16


@pytest.mark.parametrize("name", [row.name for row in BUILT_IN])
def test_a_target_drives_what_is_drawn_for_it_on_a_device(name: str) -> None:
    """A draw falls back to the simplest config where a target refuses all others."""
    target = open_target(name)
    if getattr(target, "not_on_device", ""):
        return
    use_device(target, "cuda")
    assert {target.unsupported(config) for config in drawn(name, "cuda", 4)} == {None}


def test_kernels_that_are_built_for_one_width_get_it_on_a_device() -> None:
    assert {config.head_dim for config in drawn("sglang-minimax", "cuda")} == {128}


def test_pages_on_a_device_are_as_large_as_those_of_servers() -> None:
    pages = {config.page_size for config in drawn("sglang-fa3", "cuda")}
    assert pages == {1, 2, 16, 64}
    assert {config.page_size for config in drawn("sglang-fa4", "cuda")} == {128}


def test_kv_in_fp8_on_a_device_is_that_of_kernels_whose_rounding_is_known() -> None:
    on_both = {
        name
        for name in ("sglang-fa3", "sglang-triton", "sglang-flashinfer", "sglang-minimax",
                     "sglang-dflash-draft-fa3", "sglang-trtllm-mha", "vllm-flashinfer")
        if "float8_e4m3fn" in {config.kv_dtype for config in drawn(name, "cuda", 60)}
    }  # fmt: skip
    assert on_both == {"sglang-fa3", "sglang-triton", "sglang-flashinfer"}


def test_latent_rows_on_a_device_are_those_of_models() -> None:
    widths = {(each.head_dim, each.v_head_dim) for each in drawn("sglang-triton-mla", "cuda")}
    assert widths and widths <= {(576, 512), (288, 256)}


def test_a_device_gets_the_dtypes_that_servers_run() -> None:
    assert {config.dtype for config in drawn("sglang-triton", "cuda")} == {"bfloat16", "float16"}
    assert "bfloat16" not in {config.dtype for config in drawn("sglang-triton", "cpu")}


@pytest.mark.parametrize("name", ["sglang-trtllm-mla", "sglang-trtllm-mla-draft-extend"])
def test_a_kernel_that_takes_no_float16_gets_none_on_a_device(name: str) -> None:
    assert {config.dtype for config in drawn(name, "cuda")} == {"bfloat16"}


def test_heads_that_no_kernel_is_built_for_are_refused_on_a_device() -> None:
    target = open_target("sglang-triton")
    narrow = EngineConfig(dtype="float16")
    assert target.unsupported(narrow) is None
    use_device(target, "cuda")
    assert target.unsupported(narrow) == (
        "head_dim=4 with v_head_dim=4 is not driven, only 16 and 16, 32 and 32, 64 and 64, "
        "128 and 128, 256 and 256"
    )


def test_a_target_that_cannot_be_judged_on_a_device_says_so() -> None:
    with pytest.raises(AdapterUnavailable, match=r"'vllm-gdn' does not run on a device: .*cpu"):
        use_device(open_target("vllm-gdn"), "cuda")
    use_device(open_target("vllm-gdn"), "cpu")


def test_the_built_in_engine_expresses_the_same_everywhere() -> None:
    target = open_target("builtin")
    before = target.capabilities
    use_device(target, "cuda")
    assert target.capabilities == before


def test_an_engine_on_a_cpu_sees_no_gpu_of_the_machine() -> None:
    hidden = engine_environment("cpu")
    assert hidden["CUDA_VISIBLE_DEVICES"] == hidden["HIP_VISIBLE_DEVICES"] == "-1"


def test_an_engine_on_a_device_sees_what_the_user_lets_it_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    seen = engine_environment("cuda")
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"
    assert "TRITON_INTERPRET" not in seen
