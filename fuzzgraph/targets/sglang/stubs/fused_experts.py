"""Fused experts as on a server with CUDA: Triton kernels, and models of the compiled ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fuzzgraph.kernel_models import lora_alignment, routing
from fuzzgraph.memory.side_requests import SESSION_CPU
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models

__all__ = [
    "DISPATCHER",
    "MODULES",
    "RECORDER",
    "SETTINGS",
    "TOPK",
    "align_adapters_as_on_cuda",
    "run_experts_as_on_cuda",
]

TOPK = "sglang.srt.layers.moe.topk"
DISPATCHER = "sglang.srt.layers.moe.token_dispatcher.standard"
SETTINGS = "sglang.srt.layers.moe.utils"
RECORDER = "sglang.srt.eplb.expert_distribution"
MODULES = (RECORDER, TOPK, SETTINGS)
"""What `run_experts_as_on_cuda` needs loaded, beside a model's block of experts."""
_GATES = ("sglang.kernels.ops.moe.moe_fused_gate", "sglang.jit_kernel.moe_fused_gate")
"""Where the kernel lies that routes, by release."""
_FUSED = ("sglang.srt.layers.moe.moe_runner.triton_utils", "sglang.srt.layers.moe.fused_moe_triton")
"""Where the fused experts lie, by release."""
_SMALL = "sglang.kernels.ops.moe.moe_align_small_numel"
_ACTIVATIONS = ("sglang.kernels.ops.activation.activation", "sglang.jit_kernel.activation")


def _of_dtype(model: Callable[..., Any], parameter: str) -> Callable[[Compiled], Any]:
    return lambda compiled: functools.partial(model, dtype=compiled.dtype(parameter))


_MODELS: Makers = {
    "ActivationKernel::run_activation": _of_dtype(routing.activation, "T"),
    "ActivationKernel::run_activation_filtered": _of_dtype(routing.activation_filtered, "T"),
}
_COMPILED = (
    "moe_sum_reduce_torch_compile",
    "swiglu_gpt_oss_sigmoid_alpha",
    "_swiglu_gpt_oss_sigmoid_alpha",
)
_LORA_HOOKS = "sglang.srt.lora.lora_moe_runners"
_LORA_ALIGNS = (
    "sglang.kernels.ops.lora.moe.moe_lora_align",
    "sglang.kernels.ops.moe.moe_lora_align",
    "sglang.jit_kernel.moe_lora_align",
)
_LORA_MODELS: Makers = {
    "MoeLoraAlignBlockSizeKernel::run": _of_dtype(
        lora_alignment.moe_lora_align_block_size, "scalar_t"
    ),
}
_COMPILED_ROUTING = ("_biased_grouped_topk_postprocess", "biased_grouped_topk_impl")


def run_experts_as_on_cuda() -> None:
    """Have the modules of this process take what a server with CUDA takes: its kernels in Triton,
    models of the compiled ones, and torch's own code of what the compiler would have made."""
    topk, fused, align = engine_module(TOPK), _fused("fused_moe"), _fused("moe_align_block_size")
    for module in (topk, fused, align):
        module._is_cuda = True
    topk.topk_softmax, topk.fused_topk_deepseek = routing.topk_softmax, None
    topk.mask_topk_ids = routing.mask_topk_ids
    fused.silu_and_mul, fused.moe_sum_reduce = _activation(), routing.moe_sum_reduce
    align.sgl_moe_align_block_size = routing.moe_align_block_size
    if has_module(_SMALL):
        small = engine_module(_SMALL)
        align.SMALL_NUMEL_LIMIT = small.SMALL_NUMEL_LIMIT
        align.moe_align_small_numel = small.moe_align_small_numel
    gate = next(filter(has_module, _GATES), None)
    if gate is not None:
        # What the process asks of its device keeps its first answer, which may come from elsewhere.
        engine_module(gate).is_arch_support_pdl = lambda: True
    _fused("fused_moe_triton_config").get_device_name = lambda *_: "CPU"
    for module in map(engine_module, (RECORDER, DISPATCHER)):
        if hasattr(module, "get_device"):  # it looks for an accelerator
            module.get_device = lambda *_: str(SESSION_CPU)  # the device, not the host
    for module, names in ((fused, _COMPILED), (topk, _COMPILED_ROUTING)):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, inspect.unwrap(getattr(module, name)))


def _fused(name: str) -> Any:
    found = (f"{folder}.{name}" for folder in _FUSED)
    return engine_module(next(filter(has_module, found)))


def _activation() -> Any:
    """The engine's own wrapper of what it compiles, from 0.5.11 on."""
    wrapper = next(filter(has_module, _ACTIVATIONS), None)
    if wrapper is None:
        return routing.silu_and_mul
    module = engine_module(wrapper)
    compile_to_models(module, _MODELS)
    return module.silu_and_mul


def align_adapters_as_on_cuda() -> None:
    """Have the hooks of LoRA sort tokens as on a server with CUDA."""
    module = engine_module(next(filter(has_module, _LORA_ALIGNS)))
    compile_to_models(module, _LORA_MODELS)
    engine_module(_LORA_HOOKS).moe_lora_align_block_size = module.moe_lora_align_block_size
