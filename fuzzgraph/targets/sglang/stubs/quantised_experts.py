"""Experts in FP8 and INT8 as on a server with CUDA: what quantises their inputs, and their configs.

The engine's own code chooses what quantises, and its wrappers check it; behind those are models of
what it compiles. INT8 by rows is one of its Triton kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fuzzgraph.experts.quantised import GROUP
from fuzzgraph.kernel_models import row_quant
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models

__all__ = ["QUANTISED_MODULES", "has_quantised_experts", "quantise_as_on_cuda", "quantisation"]

_OPS = "sglang.kernels.ops.quantization"
_FP8 = f"{_OPS}.fp8_kernel"
_GROUPS, _TOKENS, _TENSOR = (
    f"{_OPS}.{name}" for name in ("per_token_group_quant", "per_token_quant_fp8",
                                  "per_tensor_quant_fp8")
)  # fmt: skip
_EXPERTS = "sglang.kernels.ops.moe.fused_moe_triton_kernels"
_CONFIGS = "sglang.srt.layers.quantization"
_OF_CHECKPOINTS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = MappingProxyType({
    "fp8_blocks": ("fp8", "Fp8Config", {
        "quant_method": "fp8", "activation_scheme": "dynamic",
        "weight_block_size": [GROUP, GROUP],
    }),
    "fp8_tensors": ("fp8", "Fp8Config", {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8_dynamic": ("fp8", "Fp8Config", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "fp8_channels": ("w8a8_fp8", "W8A8Fp8Config", {"quant_method": "w8a8_fp8"}),
    "int8_channels": ("w8a8_int8", "W8A8Int8Config", {"quant_method": "w8a8_int8"}),
})  # fmt: skip
"""Kind of `EngineConfig.expert_quantisation` -> module, class, and what a checkpoint's config.json
says (DeepSeek V3 has blocks of 128)."""
QUANTISED_MODULES = (
    _FP8, _GROUPS, _TOKENS, _TENSOR, _EXPERTS,
    *(f"{_CONFIGS}.{name}" for name in ("fp8", "w8a8_fp8", "w8a8_int8")),
)  # fmt: skip
"""What `quantise_as_on_cuda` needs loaded."""


def _groups(compiled: Compiled) -> Callable[..., Any]:
    return functools.partial(
        row_quant.per_token_group_quant,
        group=compiled.number("kGroupSize"),
        dtypes=(compiled.dtype("InputType"), compiled.dtype("QuantType")),
        by_rows=bool(compiled.number("kRowMajor")),
        packed=bool(compiled.number("kUe8m0")),
        activates=bool(compiled.number("kFuseSiluAndMul")),
    )


def _tokens(compiled: Compiled) -> Callable[..., Any]:
    return functools.partial(row_quant.per_token_quant_fp8, dtype=compiled.dtype("T", "DType"))


def _tensor(compiled: Compiled) -> Callable[..., Any]:
    return functools.partial(
        row_quant.per_tensor_quant_fp8,
        is_static=bool(compiled.number("kIsStatic")),
        dtype=compiled.dtype("DType"),
    )


_MODELS: Mapping[str, Makers] = MappingProxyType({
    _GROUPS: {"PerTokenGroupQuantFlatKernel::run": _groups},
    _TOKENS: {"per_token_quant_fp8": _tokens},
    _TENSOR: {"per_tensor_quant_fp8": _tensor},
})  # fmt: skip


def has_quantised_experts() -> bool:
    """Whether this release compiles all that quantises here."""
    return all(map(has_module, (_FP8, *_MODELS)))


def quantise_as_on_cuda() -> None:
    """Have the kernels of experts quantise as on a server with CUDA, for the process's life."""
    fp8 = engine_module(_FP8)
    for name, models in _MODELS.items():
        compile_to_models(engine_module(name), models)
    for module in (fp8, engine_module(_EXPERTS)):
        module._is_cuda = True
    fp8.per_token_group_quant = engine_module(_GROUPS).per_token_group_quant
    fp8.sgl_per_token_quant_fp8 = engine_module(_TOKENS).per_token_quant_fp8
    fp8.sgl_per_tensor_quant_fp8 = engine_module(_TENSOR).per_tensor_quant_fp8


def quantisation(kind: str) -> Any:
    """The engine's config of a checkpoint with such experts; None where they are not quantised."""
    if kind not in _OF_CHECKPOINTS:
        return None
    module, name, said = _OF_CHECKPOINTS[kind]
    return getattr(engine_module(f"{_CONFIGS}.{module}"), name).from_config(dict(said))
