"""`--attention-backend flashinfer`: FlashInfer's metadata.

Real: `FlashInferAttnBackend`, its forward and the Triton kernel that builds its indices. Stood in
for: FlashInfer's wrappers, by models of them (`fuzzgraph.kernel_models.flashinfer`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.flashinfer_wrappers import MODELS
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    Tensors,
)
from fuzzgraph.targets.sglang.cross_attention import cross_attention

_EAGER = ("decode_wrappers", "prefill_wrappers", "decode_wrapper", "prefill_wrapper")
"""Attributes of the metadata; those of latent attention are single."""
_KINDS = ("decode", "prefill")
_BUFFERS = (
    *("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"),
    *("kv_indptr", "kv_indices", "custom_mask", "mask_indptr"),
)


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


def buffers_of(wrapper: Any) -> Tensors:
    """What the kernels of a wrapper read, whole: of a model, or of FlashInfer's own wrapper, which
    has the same buffers and no list of them."""
    held = {
        name: getattr(wrapper, f"_{name}_buf", None) for name in getattr(wrapper, "order", _BUFFERS)
    }
    return {name: buffer for name, buffer in held.items() if isinstance(buffer, torch.Tensor)}


def planned_offsets(wrappers: list[Any]) -> dict[str, torch.Tensor]:
    """What the plan of the layers that see all keys was made of, as tensors."""
    return _offsets(wrappers[-1])


def _offsets(wrapper: Any) -> dict[str, torch.Tensor]:
    # FlashInfer's own wrappers keep what their plan was made of to themselves.
    made_of: dict[str, list[int]] = getattr(wrapper, "planned", {})
    return {name: torch.tensor(values, dtype=torch.int32) for name, values in made_of.items()}


@dataclass(frozen=True)
class Wrappers:
    """Reads the wrappers of a backend, one for each kind of layer.

    Args:
        kinds: how the names of their fields begin, in the backend's order; the last ones are there
            in every config.
    """

    kinds: tuple[str, ...]

    def planned(self, wrappers: list[Any]) -> Tensors:
        """What their plans were made of, as tensors."""
        return {
            f"planned_{kind}{name}": offsets
            for kind, wrapper in self._by_kind(wrappers)
            for name, offsets in _offsets(wrapper).items()
        }

    def buffers(self, wrappers: list[Any]) -> Tensors:
        """What their kernels read, whole."""
        return {
            kind + name.removeprefix("paged_"): buffer
            for kind, wrapper in self._by_kind(wrappers)
            for name, buffer in buffers_of(wrapper).items()
        }

    def _by_kind(self, wrappers: list[Any]) -> list[tuple[str, Any]]:
        """Those of layers that see all keys of a request come first."""
        pairs = zip(self.kinds[-len(wrappers) :], wrappers, strict=True)
        return sorted(pairs, key=lambda pair: pair[0])


_WINDOWED = Wrappers(("window_", ""))
_CROSS = Wrappers(("", "encoder_"))


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
    caps=True,
    held=held_wrappers,
    read=_WINDOWED.buffers,
    more=(("kv_dtypes", ("auto", "float8_e4m3fn")),),
    widens_fp8=True,
    on_device=(
        ("dtypes", ("bfloat16",)),
        ("head_dims", ((64, 64), (128, 128), (256, 256))),
        ("page_sizes", (1, 16, 64)),
    ),
    kernels=(
        *((_MODULE, name, model) for name, model in MODELS.items()),
        # From 0.5.13 on, for all but very many heads.
        (_MODULE, "_safe_merge_state", MODELS["merge_state"]),
    ),
    refuses=_one_head_dim,
    max_topk=2,
    masks_branches=True,
    stood_in_for=("FlashInfer's wrappers, by models",),
    planned=_WINDOWED.planned,
    beside=("fa3", "triton"),
)

FLASHINFER_CROSS = replace(
    cross_attention(FLASHINFER),
    fields=(
        "kv_indptr",
        "kv_indices",
        "kv_last_page_len",
        "planned_kv_indptr",
        "encoder_kv_indptr",
        "encoder_kv_indices",
        "encoder_kv_last_page_len",
        "planned_encoder_kv_indptr",
    ),
    read=_CROSS.buffers,
    planned=_CROSS.planned,
)

target = FLASHINFER.target
cross_target = FLASHINFER_CROSS.target
