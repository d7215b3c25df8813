"""`store_cache`: new keys and values go to their slots, one warp or more for each token.

Source: sglang 0.5.9 to 0.5.23, csrc/elementwise/kvcache.cuh. Rows are copied as bytes. From 0.5.13
on a slot outside of `size_limit` stops the device; from 0.5.17 on the reserved slot is not written.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["check_rows", "store_kv"]

_KV_STORE_SOURCE = "sglang 0.5.9 to 0.5.23, csrc/elementwise/kvcache.cuh"
_WARP = 32
_WIDEST = 16
"""Bytes that a thread copies at once."""


def check_rows(k_bytes: int, v_bytes: int, splits: int | None) -> None:
    """Refuse widths that the kernel is not built for.

    Args:
        k_bytes, v_bytes: of a token's key and value.
        splits: warps for each token, where the build is told; None where a call is, for which
            widths are a multiple of 4.

    Raises:
        KernelRefused: a static assertion of the kernel fails.
    """
    call = Call("store_cache", _KV_STORE_SOURCE)
    for name, width in (("key", k_bytes), ("value", v_bytes)):
        call.needs(width > 0, f"a {name} must have bytes", width)
        if splits is None:
            call.needs(width % 4 == 0, f"a {name}'s bytes must be a multiple of 4", width)
        else:
            call.needs(splits > 0, "there must be a warp for each token", splits)
            rule = f"{splits} warps must divide a {name}'s bytes"
            call.needs(width % splits == 0, rule, width)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    k_bytes: int,
    v_bytes: int,
    splits: int,
    size_limit: int | None = None,
    reserved_skip_index: int = -1,
) -> None:
    """Write each token's key and value to its slot.

    Args:
        k, k_cache: [n, Dk] and [slots, Dk]; v, v_cache: [n, Dv] and [slots, Dv]. One dtype, rows of
            any stride.
        indices: int32 or int64 [n] slots.
        k_bytes, v_bytes: of a row, for which the kernel was built; splits: warps for each token.
        size_limit: slots that there are; None where the kernel does not ask.
        reserved_skip_index: the slot that is not written; -1 for none.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    _check_tokens(k, v, k_cache, v_cache, indices, k_bytes, v_bytes, splits)
    if k.shape[0]:
        launch(
            _KV_STORE,
            k=_as_bits(k),
            v=_as_bits(v),
            k_cache=_as_bits(k_cache),
            v_cache=_as_bits(v_cache),
            indices=indices,
            limit=size_limit,
            skip=reserved_skip_index,
        )


@reads_only
def _check_tokens(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    k_bytes: int,
    v_bytes: int,
    splits: int,
) -> None:
    call = Call("store_cache", _KV_STORE_SOURCE)
    call.needs_shape("k", k, None, None)
    rows = len(k)
    for name, tensor, width in (
        ("k", k, k_bytes),
        ("v", v, v_bytes),
        ("k_cache", k_cache, k_bytes),
        ("v_cache", v_cache, v_bytes),
    ):
        call.needs_dtype(name, tensor, k.dtype)
        call.needs_shape(name, tensor, None if name.endswith("_cache") else rows, None)
        got = tensor.shape[1] * tensor.element_size()
        call.needs(got == width, f"rows of {name} must have the {width} bytes of the kernel", got)
        call.needs_contiguous_last(name, tensor)
        step = _at_once(width // splits)
        got = tensor.stride(0) * tensor.element_size()
        rule = f"rows of {name} must start at multiples of {step} bytes"
        call.needs(tensor.shape[0] < 2 or got % step == 0, rule, f"a stride of {got}")
    call.needs_dtype("indices", indices, torch.int32, torch.int64)
    call.needs_shape("indices", indices, rows)


def _at_once(width: int) -> int:
    """Bytes that a thread copies at once of a row of `width`, and starts at multiples of."""
    return math.gcd(width // _WARP, _WIDEST) if width % (4 * _WARP) == 0 else math.gcd(width, 4)


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: numbers are copied, whatever they are."""
    return tensor.view(_BITS[tensor.element_size()])


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _store_tokens(
    memory: KernelMemory,
    *,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    limit: int | None,
    skip: int,
) -> None:
    slots = memory.ints(indices)
    kept = slots != skip if skip >= 0 else np.ones(len(slots), dtype=bool)
    if limit is not None:
        wrong = (slots < 0) | (slots >= limit)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            rule = f"indices must lie in the {limit} slots of size_limit"
            memory.misused("indices", rule, f"{slots[at]} for token {at}")
            kept &= ~wrong  # the device stops here
    if not kept.all():
        chosen = torch.from_numpy(np.flatnonzero(kept))
        k, v, slots = k[chosen], v[chosen], slots[kept]
    if len(slots):
        memory.store("k_cache", k_cache, k, slots)
        memory.store("v_cache", v_cache, v, slots)


_KV_STORE = ModelKernel("store_cache", _store_tokens, _KV_STORE_SOURCE)
