"""Metadata of sparse attention copied by one kernel, from where it was made to one graph or three.

Source: sglang 0.5.9 to 0.5.23, csrc/elementwise/fused_metadata_copy.cuh. Tensors are taken by their
addresses: sources as if contiguous, a table of tokens by its width, a table of pages by the stride
of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["DECODE", "copy_metadata", "copy_metadata_thrice"]

_SOURCE = "sglang 0.5.9 to 0.5.23, csrc/elementwise/fused_metadata_copy.cuh"
DECODE = 0
"""The mode whose rows are requests; in others they are tokens."""
_Given = Sequence[torch.Tensor | None]
_NAMES = (
    "lens", "offsets", "slots", "selected_lens", "expanded_lens", "selected_offsets", "pages",
    "splits", "parts",
)  # fmt: skip
_OF_A_DECODE = tuple(name for name in _NAMES if name != "expanded_lens")
"""What is copied, in this order; last are the two tensors of a plan of FlashMLA's."""


def copy_metadata(
    sources: _Given,
    copies: _Given,
    bs: int,
    max_len: int,
    max_seqlen_k: int,
    seqlens_expanded_size: int,
    *,
    mode: int,
    has_pages: bool = True,
    has_plan: bool = False,
) -> None:
    """`fused_metadata_copy`: copy what was prepared to where a graph reads it.

    Args:
        sources, copies: int32 [B] lengths, [B + 1] offsets, [rows, columns] slots, [rows] keys that
            are selected, [rows] lengths by token or None, [rows + 1] offsets of those selected,
            [rows, pages] pages or None, then splits and a plan of FlashMLA or None.
        max_len: columns of a decode; max_seqlen_k: of other modes.
        seqlens_expanded_size: rows of other modes.
        mode: `DECODE` or another; has_pages, has_plan: whether pages are copied, and what FlashMLA
            plans. The kernel is compiled for these.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fused_metadata_copy", _SOURCE)
    _check(call, sources, copies)
    slots = sources[2]
    assert slots is not None
    decodes = mode == DECODE
    _launch(
        sources,
        copies,
        has_pages=has_pages,
        has_plan=has_plan,
        bs=bs,
        rows=bs if decodes else slots.shape[0],
        columns=max_len if decodes else max_seqlen_k,
        selected=bs if decodes else seqlens_expanded_size,
        expanded=0 if decodes else seqlens_expanded_size,
    )


def copy_metadata_thrice(
    sources: _Given,
    copies: Sequence[_Given],
    bs: int,
    max_len: int,
    *,
    has_plan: bool = False,
) -> None:
    """`fused_metadata_copy_multi`: copy what was prepared for a decode to three graphs.

    Args:
        sources, copies: as of `copy_metadata`, without lengths by token; pages are copied where
            there are any.
        has_plan: whether what FlashMLA plans is copied; the kernel is compiled for it.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fused_metadata_copy_multi", _SOURCE)
    pages = sources[-3] is not None and copies[0][-3] is not None
    for each in copies:
        _check(call, sources, each)
        _launch(
            sources, each, has_pages=pages, has_plan=has_plan,
            bs=bs, rows=bs, columns=max_len, selected=bs, expanded=0,
        )  # fmt: skip


def _check(call: Call, sources: _Given, copies: _Given) -> None:
    for name, tensors in (("source", sources), ("destination", copies)):
        for number, tensor in enumerate(tensors):
            call.needs_dtype(f"{name} {number}", tensor, torch.int32)
        call.needs_shape(f"{name} 2", tensors[2], None, None)
        call.needs_shape(f"pages of the {name}", tensors[-3], None, None)


def _launch(sources: _Given, copies: _Given, **sizes: int) -> None:
    tensors: dict[str, Any] = {}
    for suffix, given in (("src", sources), ("dst", copies)):
        names = _NAMES if len(given) == len(_NAMES) else _OF_A_DECODE
        tensors |= {f"{name}_{suffix}": each for name, each in zip(names, given, strict=True)}
    launch(_COPY, **{"expanded_lens_src": None, "expanded_lens_dst": None, **tensors}, **sizes)


def _copy(
    memory: KernelMemory,
    *,
    lens_src: torch.Tensor,
    offsets_src: torch.Tensor,
    slots_src: torch.Tensor,
    selected_lens_src: torch.Tensor,
    expanded_lens_src: torch.Tensor | None,
    selected_offsets_src: torch.Tensor,
    pages_src: torch.Tensor | None,
    splits_src: torch.Tensor | None,
    parts_src: torch.Tensor | None,
    lens_dst: torch.Tensor,
    offsets_dst: torch.Tensor,
    slots_dst: torch.Tensor,
    selected_lens_dst: torch.Tensor,
    expanded_lens_dst: torch.Tensor | None,
    selected_offsets_dst: torch.Tensor,
    pages_dst: torch.Tensor | None,
    splits_dst: torch.Tensor | None,
    parts_dst: torch.Tensor | None,
    bs: int,
    rows: int,
    columns: int,
    selected: int,
    expanded: int,
    has_pages: bool,
    has_plan: bool,
) -> None:
    _copy_entries(memory, "cache_seqlens", lens_src, lens_dst, 0, bs)
    _copy_entries(memory, "cu_seqlens_k", offsets_src, offsets_dst, 1, bs)
    _table(memory, "page_table_1", slots_src, slots_dst, rows, columns, slots_dst.shape[1])
    _copy_entries(
        memory, "cache_seqlens of selected keys", selected_lens_src, selected_lens_dst, 0, selected
    )
    _copy_entries(
        memory, "cu_seqlens_k of selected keys", selected_offsets_src, selected_offsets_dst, 1,
        selected,
    )  # fmt: skip
    if expanded:
        _copy_optional(memory, "seqlens_expanded", expanded_lens_src, expanded_lens_dst, expanded)
    if has_pages and pages_src is not None:
        if pages_dst is None:
            _misses(memory, "real_page_table")
        else:
            pages, stride = pages_src.shape[1], pages_dst.stride(0)
            _table(memory, "real_page_table", pages_src, pages_dst, rows, pages, stride)
    if has_plan:
        _copy_optional(memory, "flashmla_num_splits", splits_src, splits_dst, selected + 1)
        if parts_src is not None:
            count = parts_src.numel()
            _copy_optional(memory, "flashmla_metadata", parts_src, parts_dst, count)


def _copy_optional(
    memory: KernelMemory,
    name: str,
    source: torch.Tensor | None,
    copy: torch.Tensor | None,
    count: int,
) -> None:
    if source is None or copy is None:
        _misses(memory, name)
    else:
        _copy_entries(memory, name, source, copy, 0, count)


def _misses(memory: KernelMemory, name: str) -> None:
    """A kernel that is compiled for a copy reads and writes, whatever address it is given."""
    memory.misused(name, f"{name} must be given to a kernel that copies it", "address 0")


def _copy_entries(
    memory: KernelMemory,
    name: str,
    source: torch.Tensor,
    copy: torch.Tensor,
    first: int,
    count: int,
) -> None:
    at = np.arange(first, first + count)
    memory.store(name, _flat(copy), memory.entries(name, _flat(source), at), at)


def _table(
    memory: KernelMemory,
    name: str,
    source: torch.Tensor,
    copy: torch.Tensor,
    rows: int,
    columns: int,
    stride: int,
) -> None:
    at = np.arange(rows * columns)
    found = memory.entries(name, _flat(source), at)
    memory.store(name, _flat(copy), found, at // max(columns, 1) * stride + at % max(columns, 1))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All from the first element to the last, as addresses count."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach + 1 if tensor.numel() else 0,), (1,))


_COPY = ModelKernel("fused_metadata_copy", _copy, _SOURCE)
