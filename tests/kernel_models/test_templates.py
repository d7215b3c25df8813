"""Numbers that kernels are compiled for: each is read by the model in its kernel's place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.metadata_copy import DECODE
from fuzzgraph.targets.offline.cxx_signatures import template_of, template_of_function
from fuzzgraph.targets.sglang.backends import dsv4, dsv41, minicpm, minimax, nsa, qsa
from fuzzgraph.targets.sglang.stubs import (
    fused_experts,
    kv_store,
    metadata_copy,
    planned_topk,
    quantised_experts,
)
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers
from tests.kernel_models.strict_runs import strictly
from tests.targets.sglang.released import release_path

_SCHEDULE = {"kUsePDL", "kPDL", "kAligned", "kElementwise"}
"""What only chooses how a kernel is launched."""
_LEFT_OUT = {"kRopeFirst", "kHadamard", "kDenseSiluAndMul", "kLayout"}
"""Which engines leave at its default, or of which pages here have none of their own."""
_UNREAD = {"FusedMetadataCopyMultiKernel::run": {"HAS_REAL_PAGE_TABLE"}}
"""What the kernel's own source does not read: it looks at the tensors."""
_MAKERS: tuple[Makers, ...] = (
    dsv4._COMPILED, dsv41._COMPILED, minicpm._COMPILED, minimax._COMPILED, nsa._COMPILED,
    qsa._COMPILED, fused_experts._MODELS, fused_experts._LORA_MODELS, metadata_copy._COPIES,
    planned_topk.PLANNED_TOPK, *quantised_experts._MODELS.values(),
    {"StoreKVCacheKernel::run": kv_store._store, "FusedFp8QkvKvCache::run": kv_store._store_fp8},
)  # fmt: skip
_SHIPPED = "0.5.23"
_OTHERS = (
    "deepseek_v4/c4.cuh", "deepseek_v4/c128.cuh", "deepseek_v4/fused_norm_rope.cuh",
    "deepseek_v4/store.cuh",
)  # fmt: skip
"""Sources with kernels of the same names that no model stands in for."""


class _Read(dict[str, str]):
    """A template whose parameters remember who asked for them."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def _argument(name: str, kind: str) -> str:
    """An argument of a kernel that a model follows."""
    if kind == "type":
        return {"OutType": "fp8_e4m3_t", "QuantType": "fp8_e4m3_t", "SeqLenT": "int32_t",
                "scalar_t": "int32_t", "IndicesT": "int64_t"}.get(name, "bf16_t")  # fmt: skip
    if kind == "bool":
        return "true" if name in ("kIsNeox", "kRowMajor", "HAS_REAL_PAGE_TABLE") else "false"
    return {"FORWARD_MODE": "0", "kPreshuffleSize": "0", "kLayout": "V4"}.get(name, "128")


def _declared() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    folder = release_path(_SHIPPED) / "sglang/kernels/jit/csrc"
    sources = {
        path: path.read_text()
        for path in sorted((*folder.rglob("*.cuh"), *folder.rglob("*.cu")))
        if str(path.relative_to(folder)) not in _OTHERS
    }
    for makers in _MAKERS:
        for spelt, maker in makers.items():
            kernel, _, method = spelt.partition("::")
            for path, text in sources.items():
                found = _template(path, text, kernel, bool(method))
                if found:
                    yield spelt, maker, found


def _template(path: Path, text: str, kernel: str, is_struct: bool) -> tuple[Any, ...]:
    if not is_struct:
        return template_of_function(text, kernel)
    return template_of(text, kernel) if f"struct {kernel} {{" in text else ()


@pytest.mark.sglang
def test_models_read_all_that_a_kernel_is_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsv4, "_slot_dtype", lambda: torch.int64)
    unread = {}
    for spelt, maker, declared in _declared():
        template = _Read({each.name: _argument(each.name, each.type) for each in declared})
        maker(Compiled(template, ()))
        left = {each.name for each in declared} - template.asked - _SCHEDULE - _LEFT_OUT
        if left:
            unread[spelt] = left
    assert unread == _UNREAD


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _copied(**template: str) -> None:
    """A decode of two rows with pages, and without a plan of FlashMLA's, by such a kernel."""
    given = {"FORWARD_MODE": str(DECODE), "HAS_REAL_PAGE_TABLE": "true", "HAS_FLASHMLA": "false"}
    made = metadata_copy._COPIES["FusedMetadataCopyKernel::run"]
    tensors = (_ints(2), _ints(3), _ints(2, 4), _ints(2), None, _ints(3), _ints(2, 2), None, None)
    made(Compiled({**given, **template}, ()))(*tensors, *tensors, 2, 4, 4, 2)


def test_a_copy_that_is_compiled_for_its_tensors_is_silent() -> None:
    with strictly():
        _copied()


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ({"HAS_REAL_PAGE_TABLE": "false", "HAS_FLASHMLA": "true"}, "flashmla_num_splits must be"),
        ({"FORWARD_MODE": "true"}, "seqlens_expanded must be given"),
    ],
)
def test_a_copy_that_is_compiled_for_others_is_told(template: dict[str, str], rule: str) -> None:
    with strictly(), pytest.raises(AssertionError, match=rule):
        _copied(**template)


def test_a_mode_that_does_not_compile_is_refused() -> None:
    with pytest.raises(KernelRefused, match=r"FORWARD_MODE must be one of \[0, 1, 2\]; got 3"):
        _copied(FORWARD_MODE="3")


@pytest.mark.parametrize(
    ("template", "error", "rule"),
    [
        ({"kHeadDim": "128", "kBf16Store": "true"}, KernelRefused, "has pages of FP8 alone"),
        ({"kHeadDim": "128", "kLayout": "V41"}, KernelRefused, "has pages of FP8 alone"),
        ({"kPreshuffleSize": "16"}, KernelNotModelled, "kPreshuffleSize=16"),
    ],
)
def test_a_store_of_compressed_keys_has_the_pages_that_it_is_compiled_for(
    monkeypatch: pytest.MonkeyPatch, template: dict[str, str], error: Any, rule: str
) -> None:
    monkeypatch.setattr(dsv4, "_slot_dtype", lambda: torch.int64)
    given = {"DType": "bf16_t", "kHeadDim": "512", "kRopeDim": "64", "kPageSize": "64"}
    with pytest.raises(error, match=rule):
        dsv4._COMPILED["FusedNormRopeKernel::forward"](Compiled({**given, **template}, ()))
