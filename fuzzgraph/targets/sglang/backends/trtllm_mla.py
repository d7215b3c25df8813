"""`--attention-backend trtllm_mla`: TensorRT-LLM's latent attention.

Real: `TRTLLMMLABackend`, its forwards, the writing of KV and the Triton kernel that builds its page
table. Modelled: the kernels, those of a device with compute capability 10. Stood in for: the number
of multiprocessors, and a compilation ahead.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.kernel_models import trtllm_gen, trtllm_gen_mla
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
    not_compiled,
)

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
