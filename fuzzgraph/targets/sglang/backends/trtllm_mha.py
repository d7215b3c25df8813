"""`--attention-backend trtllm_mha`: TensorRT-LLM's multi-head attention.

Real: `TRTLLMHAAttnBackend`, whose metadata has the form of FlashAttention's, its forwards and the
writing of KV up to the kernel that does it in FP8. Its kernels are modelled: those of a device with
compute capability 10, and XQA, which it takes on one with 9 or 12. Stood in for: the device that it
asks for, the number of multiprocessors, and a compilation ahead.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import NotInRelease
from fuzzgraph.kernel_models import trtllm_gen, xqa
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    FP8_KV,
    AttentionBackend,
    attributes,
    not_compiled,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA_FIELDS, FA_METADATA
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.kv_store import store_fp8_kv_by_model
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.workspaces import FLASHINFER_BYTES

_MODULE = f"{ATTENTION}.trtllm_mha_backend"
_LATENT = f"{ATTENTION}.trtllm_mla_backend"
# The backend looks its kernels up in FlashInfer's package.
_FLASHINFER = Stub(
    decode=Stub(
        trtllm_batch_decode_with_kv_cache=trtllm_gen.trtllm_batch_decode_with_kv_cache,
    ),
    prefill=Stub(
        trtllm_batch_context_with_kv_cache=trtllm_gen.trtllm_batch_context_with_kv_cache,
    ),
)


_XQA = Stub(
    decode=Stub(trtllm_batch_decode_with_kv_cache=xqa.trtllm_batch_decode_with_kv_cache),
    prefill=Stub(),
)
"""The same on a device on which it is XQA."""


def _counter_bytes(device: Any, num_q_heads: int, batch_size: int) -> int:
    """As FlashInfer says it, for a device of that many multiprocessors."""
    return trtllm_gen.counter_bytes(batch_size, num_q_heads)


def _refuses(config: EngineConfig) -> str | None:
    """The kernels give values the width of keys (FlashInfer 0.6.18, `out` like `query`)."""
    if config.v_head_dim != config.head_dim:
        return f"v_head_dim={config.v_head_dim} is not driven, only head_dim={config.head_dim}"
    return _refuses_fp4(config) if config.kv_dtype == "nvfp4" else None


def _refuses_fp4(config: EngineConfig) -> str | None:
    """The same of KV in FP4 (sglang fp4_kv_cache_quant_method.py create_buffers,
    kv_cache_configurator.py, kv_cache_hook.py handle_kv4_compatibility)."""
    if config.head_dim % _FP4_COLUMNS:
        return f"head_dim={config.head_dim} with KV in FP4 is not driven, only multiples of 64"
    if config.drafted_blocks != "none":
        return "blocks that a draft model drafts are not driven with KV in FP4"
    # A pool for prefills by FlashInfer has scales by slot, as XQA reads them.
    beside = "flashinfer" if config.trtllm_kernel == "xqa" else "none"
    others = {
        "swa_window": 0, "max_encoder_len": 0, "attention_chunk_size": 0,
        "backend_beside": beside, "verifies_as_prefill": False,
    }  # fmt: skip
    for name, only in others.items():
        if getattr(config, name) != only:
            return f"{name}={getattr(config, name)!r} with KV in FP4 is not driven, only {only!r}"
    return None


def _fp4_arguments(config: EngineConfig) -> dict[str, Any]:
    """Few tokens of prompts, for which the backend keeps room for outputs in FP8."""
    return {"max_prefill_tokens": config.max_context_len} if config.kv_dtype == "nvfp4" else {}


def _adapt(runner: ModelRunner) -> None:
    """KV in FP8 goes to its slots by the model of the engine's kernel.

    Raises:
        NotInRelease: the release divides FP8 queries by a scale of their own, as 0.5.14 alone
            does, by a kernel that has no model (trtllm_mha_backend.py, `scaled_fp8_quant`).
    """
    if runner.kv_cache_dtype == torch.float8_e4m3fn and hasattr(engine_module(_MODULE), _QUANTISE):
        raise NotInRelease(
            f"kv_dtype='float8_e4m3fn' is not driven where queries go through {_QUANTISE}, whose "
            "kernel has no model"
        )
    store_fp8_kv_by_model()
    _take_device(runner)


def _take_device(runner: ModelRunner) -> None:
    """Let the backend find the device of the config's kernel, and that kernel in its package.

    Raises:
        NotInRelease: no server of the release has it on such a device, as up to 0.5.9.
    """
    module = engine_module(_MODULE)
    config = runner.configuration.config
    by_xqa, fp4 = config.trtllm_kernel == "xqa", config.kv_dtype == "nvfp4"
    if hasattr(module, "get_platform"):
        # XQA reads FP4 on a device with compute capability 12 alone.
        device = Stub(is_sm90=by_xqa and not fp4, is_sm100=not by_xqa, is_sm120=by_xqa and fp4)
        module.get_platform = lambda: device
    elif hasattr(module, _ASKED):
        setattr(module, _ASKED, lambda: by_xqa)
    elif by_xqa:
        raise NotInRelease("trtllm_kernel='xqa' is not driven where the backend asks for no device")
    if hasattr(module, _SEMAPHORES):
        setattr(module, _SEMAPHORES, FLASHINFER_BYTES)
    if by_xqa and runner.device == "cpu":
        put_model(module, "flashinfer", _XQA)


_ASKED = "is_sm90_supported"
"""What it asks up to 0.5.18, beside `is_sm120_supported`, which a machine without a GPU denies."""
_SEMAPHORES = "_XQA_SEMAPHORE_BYTES"
_QUANTISE = "scaled_fp8_quant"
_FP4_COLUMNS = 64
"""Of a head are those of whole groups of four scales."""
_KV_DTYPES = ("kv_dtypes", ("auto", "float8_e4m3fn", "nvfp4"))

TRTLLM_MHA = AttentionBackend(
    name="trtllm_mha",
    places=((_MODULE, "TRTLLMHAAttnBackend"),),
    attentions=("mha",),
    page_sizes=(16, 32, 64),  # what ServerArgs accepts for it
    fields=FA_FIELDS,
    stood_in_for=("attention kernels, by models", "the number of multiprocessors"),
    read=attributes(**FA_METADATA),
    stubs=(
        (_LATENT, "_multi_ctas_kv_counter_bytes", _counter_bytes),
        (_LATENT, "_jit_fixup_module", not_compiled),
    ),
    kernels=((_MODULE, "flashinfer", _FLASHINFER),),
    globals=("flashinfer",),
    refuses=_refuses,
    windows=True,
    unified=True,
    adapt=_adapt,
    chosen=_fp4_arguments,
    more=(*FP8_KV, _KV_DTYPES, ("trtllm_kernels", ("trtllm_gen", "xqa"))),
    beside=("fa3", "flashinfer", "triton"),
)

target = TRTLLM_MHA.target
