"""`--attention-backend flashinfer`: FlashInfer's metadata.

Real: `FlashInferAttnBackend`, its forward and the Triton kernel that builds its indices. Stood in
for: FlashInfer's wrappers, by models of them (`fuzzgraph.kernel_models.flashinfer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.flashinfer_wrappers import MODELS
from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION, AttentionBackend

_EAGER = ("decode_wrappers", "prefill_wrappers", "decode_wrapper", "prefill_wrapper")
"""Attributes of the metadata; those of latent attention are single."""
_KINDS = ("decode", "prefill")


def held_wrappers(backend: Any, size: int | None) -> list[Any]:
    """The wrapper of the layers that see all keys, behind that of a sliding window if there is one;
    one for verify graphs is a prefill's."""
    if size is None:
        held = backend.forward_metadata
        found = next(getattr(held, name) for name in _EAGER if hasattr(held, name))
    else:
        graphs = (getattr(backend, f"{kind}_cuda_graph_metadata", {}) for kind in _KINDS)
        found = next(held[size] for held in graphs if size in held)
    return found if isinstance(found, list) else [found]


def planned_offsets(wrappers: list[Any]) -> dict[str, torch.Tensor]:
    """What the plan of the layers that see all keys was made of, as tensors."""
    return _offsets(wrappers[-1])


def _offsets(wrapper: Any) -> dict[str, torch.Tensor]:
    made_of: dict[str, list[int]] = wrapper.planned
    return {name: torch.tensor(values, dtype=torch.int32) for name, values in made_of.items()}


def _by_layer(wrappers: list[Any]) -> Iterator[tuple[str, Any]]:
    """(how the names of its fields begin, wrapper)."""
    *windowed, full = wrappers
    yield "", full
    for wrapper in windowed:
        yield "window_", wrapper


def _planned(wrappers: list[Any]) -> dict[str, torch.Tensor]:
    return {
        f"planned_{layer}{name}": offsets
        for layer, wrapper in _by_layer(wrappers)
        for name, offsets in _offsets(wrapper).items()
    }


def _buffers(wrappers: list[Any]) -> dict[str, torch.Tensor]:
    return {
        layer + name.removeprefix("paged_"): wrapper.buffer(name)
        for layer, wrapper in _by_layer(wrappers)
        for name in wrapper.order
    }


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
        "window_kv_indptr",
        "window_kv_indices",
        "window_kv_last_page_len",
        "planned_window_kv_indptr",
    ),
    windows=True,
    unified=True,
    held=held_wrappers,
    read=_buffers,
    more=(("kv_dtypes", ("auto", "float8_e4m3fn")),),
    kernels=(
        *((_MODULE, name, model) for name, model in MODELS.items()),
        # From 0.5.13 on, for all but very many heads.
        (_MODULE, "_safe_merge_state", MODELS["merge_state"]),
    ),
    refuses=_one_head_dim,
    max_topk=2,
    masks_branches=True,
    stood_in_for=("FlashInfer's wrappers, by models",),
    planned=_planned,
)

target = FLASHINFER.target
