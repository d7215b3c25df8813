"""`--attention-backend cutlass_mla`: CUTLASS's latent attention, its metadata.

Real: `CutlassMLABackend` and the Triton kernel that builds its page table. Stood in for: the size
of a workspace that a compiled kernel tells. It verifies no drafts.
"""

from __future__ import annotations

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.backends.metadata_backend import (
    ATTENTION,
    MetadataBackend,
    attributes,
    few_bytes,
    latent_table,
)
from fuzzgraph.targets.sglang.backends.metadata_only import MetadataTarget

__all__ = ["target"]

_MODULE = f"{ATTENTION}.cutlass_mla_backend"

_CUTLASS_MLA = MetadataBackend(
    name="cutlass_mla",
    places=((_MODULE, "CutlassMLABackend"),),
    attention="mla",
    page_sizes=(128,),
    fields=("page_table",),
    max_context_len=512,
    held=latent_table,
    read=attributes(page_table="block_kv_indices"),
    stubs=((_MODULE, "cutlass_mla_get_workspace_size", few_bytes),),
)


def target(name: str, mode: Mode) -> MetadataTarget:
    return MetadataTarget(name, _CUTLASS_MLA, mode)
