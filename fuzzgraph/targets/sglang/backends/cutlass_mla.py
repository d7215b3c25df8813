"""`--attention-backend cutlass_mla`: CUTLASS's latent attention. It verifies no drafts.

Real: `CutlassMLABackend`, its forward, the writing of KV and the Triton kernel that builds its page
table. Modelled: the kernel, and the size of the workspace that it asks for.
"""

from __future__ import annotations

from fuzzgraph.kernel_models import cutlass_mla
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
    latent_table,
)

_MODULE = f"{ATTENTION}.cutlass_mla_backend"

_CUTLASS_MLA = AttentionBackend(
    name="cutlass_mla",
    places=((_MODULE, "CutlassMLABackend"),),
    attentions=("mla",),
    stood_in_for=("the attention kernel, by a model",),
    page_sizes=(128,),  # PAGE_SIZE in the backend's module
    fields=("page_table",),
    held=latent_table,
    read=attributes(page_table="block_kv_indices"),
    kernels=(
        (_MODULE, "cutlass_mla_decode", cutlass_mla.cutlass_mla_decode),
        (_MODULE, "cutlass_mla_get_workspace_size", cutlass_mla.cutlass_mla_get_workspace_size),
    ),
    beside=("flashinfer", "triton"),
)

target = _CUTLASS_MLA.target
