"""`--attention-backend flashinfer` with latent attention: FlashInfer's MLA.

Real: `FlashInferMLAAttnBackend`, its forward and the Triton kernel that builds its indices. Stood
in for: FlashInfer's wrappers, by models of them (`fuzzgraph.kernel_models.flashinfer`). Lengths and
offsets of latent attention reach its kernels by the plan alone.
"""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.flashinfer_wrappers import MODELS
from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION, AttentionBackend
from fuzzgraph.targets.sglang.backends.flashinfer import buffers_of, held_wrappers, planned_offsets

_MODULE = f"{ATTENTION}.flashinfer_mla_backend"


def _refuses(config: EngineConfig) -> str | None:
    if config.kv_dtype != "auto" and not config.unit_kv_scale:
        return "latent rows are stored and read without a scale: unit_kv_scale must be true"
    return None


FLASHINFER_MLA = AttentionBackend(
    name="flashinfer_mla",
    places=((_MODULE, "FlashInferMLAAttnBackend"),),
    attentions=("mla",),
    stood_in_for=("FlashInfer's wrappers, by models",),
    page_sizes=(1, 16),
    fields=("kv_indptr", "kv_indices", "qo_indptr"),
    held=held_wrappers,
    read=lambda wrappers: {"kv_indices": buffers_of(wrappers[-1])["kv_indices"]},
    planned=planned_offsets,
    kernels=tuple((_MODULE, name, model) for name, model in MODELS.items()),
    beside=("fa3", "triton"),
    refuses=_refuses,
    more=(("kv_dtypes", ("auto", "float8_e4m3fn")), ("unit_kv_scales", True)),
    widens_fp8=True,
)

target = FLASHINFER_MLA.target
