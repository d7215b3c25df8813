"""`--attention-backend cutlass_mla`: CUTLASS's latent attention, its metadata.

Real: `CutlassMLABackend` and the Triton kernel that builds its page table. Stood in for: the size
of a workspace that a compiled kernel tells. It verifies no drafts.
"""

from __future__ import annotations

from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
    few_bytes,
    latent_table,
)

_MODULE = f"{ATTENTION}.cutlass_mla_backend"

_CUTLASS_MLA = AttentionBackend(
    name="cutlass_mla",
    places=((_MODULE, "CutlassMLABackend"),),
    attention="mla",
    page_sizes=(128,),  # PAGE_SIZE in the backend's module
    fields=("page_table",),
    max_context_len=512,
    held=latent_table,
    read=attributes(page_table="block_kv_indices"),
    stubs=((_MODULE, "cutlass_mla_get_workspace_size", few_bytes),),
)

target = _CUTLASS_MLA.target
