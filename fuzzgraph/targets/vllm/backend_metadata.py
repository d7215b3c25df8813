"""What each attention backend of vLLM hands its kernels, found in what its builder made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["INDICES", "read_by_kernels"]

_NAMES: Mapping[str, tuple[str, ...]] = {
    "slot_mapping": ("slot_mapping",),
    "seq_lens": ("seq_lens",),
    "block_table": ("block_table", "block_tables"),
    "query_start_loc": ("query_start_loc",),
}
"""Field -> attributes that hold it, the backend's own first found."""
INDICES = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
"""Fields that are buffers of a FlashInfer wrapper."""


def read_by_kernels(built: Any) -> dict[str, torch.Tensor]:
    """Field -> the tensor that kernels of a decode read, whole.

    Builders of latent attention and of FlashInfer keep apart what decodes read. FlashInfer's
    wrappers have copies of their own.
    """
    decode = getattr(built, "decode", None)
    parts = [part for part in (decode, built) if part is not None]
    found = {field: _first(parts, names) for field, names in _NAMES.items()}
    wrapper = getattr(decode, "wrapper", None)
    if wrapper is not None:
        found |= {name: wrapper.buffer(name) for name in INDICES}
    return {field: tensor for field, tensor in found.items() if tensor is not None}


def _first(parts: list[Any], names: tuple[str, ...]) -> Any:
    held = (getattr(part, name, None) for part in parts for name in names)
    return next((value for value in held if value is not None), None)
