"""`--attention-backend flashinfer` with latent attention: FlashInfer's MLA metadata.

Real: `FlashInferMLAAttnBackend` and the Triton kernel that builds its indices. Stood in for:
FlashInfer's wrappers, which keep what the compiled planner gets. Lengths and offsets of latent
attention reach its kernels by the plan alone.
"""

from __future__ import annotations

from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION, AttentionBackend
from fuzzgraph.targets.sglang.backends.flashinfer import held_wrapper, planned_offsets

_FLASHINFER_MLA = AttentionBackend(
    name="flashinfer_mla",
    places=((f"{ATTENTION}.flashinfer_mla_backend", "FlashInferMLAAttnBackend"),),
    attention="mla",
    page_sizes=(1, 16),
    fields=("kv_indptr", "kv_indices", "qo_indptr"),
    held=held_wrapper,
    read=lambda wrapper: {"kv_indices": wrapper.buffer("kv_indices")},
    planned=planned_offsets,
)

target = _FLASHINFER_MLA.target
