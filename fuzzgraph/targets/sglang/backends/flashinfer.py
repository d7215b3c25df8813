"""`--attention-backend flashinfer`: FlashInfer's metadata.

Real: `FlashInferAttnBackend`, its forward and the Triton kernel that builds its indices. Stood in
for: FlashInfer's wrappers, by models of them (`fuzzgraph.kernel_models.flashinfer`).
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.flashinfer_wrappers import MODELS
from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION, AttentionBackend

_EAGER = ("decode_wrappers", "prefill_wrappers", "decode_wrapper", "prefill_wrapper")
"""Attributes of the metadata; those of latent attention are single."""
_KINDS = ("decode", "prefill")


def held_wrapper(backend: Any, size: int | None) -> Any:
    """The wrapper, of several the first; one for verify graphs is a prefill's."""
    if size is None:
        held = backend.forward_metadata
        found = next(getattr(held, name) for name in _EAGER if hasattr(held, name))
    else:
        graphs = (getattr(backend, f"{kind}_cuda_graph_metadata", {}) for kind in _KINDS)
        found = next(held[size] for held in graphs if size in held)
    return found[0] if isinstance(found, list) else found


def planned_offsets(wrapper: Any) -> dict[str, torch.Tensor]:
    """What the plan was made of, as tensors."""
    made_of: dict[str, list[int]] = wrapper.planned
    return {name: torch.tensor(values, dtype=torch.int32) for name, values in made_of.items()}


def _buffers(wrapper: Any) -> dict[str, torch.Tensor]:
    return {name.removeprefix("paged_"): wrapper.buffer(name) for name in wrapper.order}


def _one_head_dim(config: EngineConfig) -> str | None:
    """sglang flashinfer_backend.py, forward_decode and forward_extend: outputs have `head_dim`."""
    if config.head_dim != config.v_head_dim:
        return f"v_head_dim={config.v_head_dim} differs from head_dim={config.head_dim}"
    return None


_MODULE = f"{ATTENTION}.flashinfer_backend"
FLASHINFER = AttentionBackend(
    name="flashinfer",
    places=((_MODULE, "FlashInferAttnBackend"),),
    attentions=("mha",),
    page_sizes=(1, 16),
    fields=(
        "kv_indptr",
        "kv_indices",
        "kv_last_page_len",
        "qo_indptr",
        "planned_kv_indptr",
        "planned_qo_indptr",
    ),
    held=held_wrapper,
    read=_buffers,
    more=(("kv_dtypes", ("auto", "float8_e4m3fn")),),
    kernels=tuple((_MODULE, name, model) for name, model in MODELS.items()),
    refuses=_one_head_dim,
    max_topk=2,
    masks_branches=True,
    stood_in_for=("FlashInfer's wrappers, by models",),
    planned=lambda wrapper: {f"planned_{k}": v for k, v in planned_offsets(wrapper).items()},
)

target = FLASHINFER.target
