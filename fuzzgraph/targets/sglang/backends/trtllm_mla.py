"""`--attention-backend trtllm_mla`: TensorRT-LLM's latent attention.

Real: `TRTLLMMLABackend`, its forwards, the writing of KV and the Triton kernel that builds its page
table. Modelled: the kernels, those of a device with compute capability 10. Stood in for: the number
of multiprocessors, and a compilation ahead. Beneath DeepSeek's own layer (`-deepseek`) it gets what
the layer absorbs, and where the KV is in FP8, rotary parts that its kernel rotates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.kernel_models import trtllm_gen, trtllm_gen_mla
from fuzzgraph.kernel_models.rope_quantize import mla_rope_quantize_fp8
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    FP8_KV,
    AttentionBackend,
    attributes,
    not_compiled,
)
from fuzzgraph.targets.sglang.release import is_before
from fuzzgraph.targets.sglang.rotated_latent_model import RotatedDeepseekModel
from fuzzgraph.targets.sglang.split_backends import names_by_mode
from fuzzgraph.targets.sglang.stubs.flashinfer import package

_MODULE = f"{ATTENTION}.trtllm_mla_backend"
# The backend looks its kernels up in FlashInfer's package.
_FLASHINFER = Stub(
    decode=Stub(
        trtllm_batch_decode_with_kv_cache_mla=trtllm_gen_mla.trtllm_batch_decode_with_kv_cache_mla,
    ),
    prefill=Stub(
        trtllm_ragged_attention_deepseek=trtllm_gen_mla.trtllm_ragged_attention_deepseek,
    ),
    utils=Stub(
        get_device_sm_count=lambda device: trtllm_gen.SM_COUNT,
        get_trtllm_gen_multi_ctas_kv_counter_bytes=trtllm_gen.counter_bytes,
    ),
)


def _held(backend: Any, size: int | None) -> Any:
    if size is None:
        return backend.forward_decode_metadata
    return backend.decode_cuda_graph_metadata[size]


TRTLLM_MLA = AttentionBackend(
    name="trtllm_mla",
    places=((_MODULE, "TRTLLMMLABackend"),),
    attentions=("mla",),
    page_sizes=(32, 64),  # what ServerArgs accepts for it
    on_device=(("dtypes", ("bfloat16",)),),  # its kernel takes no float16
    fields=("cache_seqlens", "page_table"),
    stood_in_for=("attention kernels, by models", "a compilation ahead", "the number of cores"),
    held=_held,
    read=attributes(page_table="block_kv_indices", cache_seqlens="seq_lens_k"),
    stubs=((_MODULE, "_jit_fixup_module", not_compiled),),
    kernels=((_MODULE, "flashinfer", _FLASHINFER),),
    beside=("flashinfer", "triton"),
)

target = TRTLLM_MLA.target


def _refuses(config: EngineConfig) -> str | None:
    if (config.head_dim - config.v_head_dim) % 2:
        return f"{config.head_dim - config.v_head_dim} columns cannot be rotated in pairs"
    if config.kv_dtype != "auto" and not config.unit_kv_scale:
        return _SCALED
    return None


def _named_by_mode(config: EngineConfig) -> dict[str, str]:
    """What the layer asks the server by, up to 0.5.15: the engine's model runner leaves it there
    (model_runner.py `_get_attention_backend`)."""
    if not is_before((0, 5, 16)):
        return {}
    prefills, decodes = names_by_mode(config, TRTLLM_MLA.name)
    return {"prefill_attention_backend": prefills, "decode_attention_backend": decodes}


def _put_rotation(runner: Any) -> None:
    """The engine imports the kernel when it calls it."""
    if runner.device == "cpu":
        put_model(package("rope"), "mla_rope_quantize_fp8", mla_rope_quantize_fp8)


_SCALED = "sglang trtllm_mla_backend.py stores latent rows without the scale that it computes with"

TRTLLM_MLA_DEEPSEEK = replace(
    TRTLLM_MLA,
    part=" beneath DeepSeek's layer",
    model=RotatedDeepseekModel,
    refuses=_refuses,
    more=(*FP8_KV, ("unit_kv_scales", True)),
    adapt=_put_rotation,
    chosen=_named_by_mode,
    stood_in_for=(
        "attention kernels and the one that rotates and converts, by models",
        *TRTLLM_MLA.stood_in_for[1:],
        "projections, norms and the table of rotations",
    ),
)
"""DeepSeek V2 Lite's layer, which has no low rank of queries."""

deepseek_target = TRTLLM_MLA_DEEPSEEK.target
