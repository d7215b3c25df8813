"""vLLM's kernels that store new KV in pages, one block of threads for each token.

Rows of tokens are found by the stride of their first dimension, and their columns are taken for
contiguous. There are as many tokens as slots, however many rows there are, and a token whose slot
is below 0 is not stored.

Source: vLLM 0.10 to 0.33, csrc/cache_kernels.cu `concat_and_cache_mla_kernel` and
`reshape_and_cache_flash_kernel`.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["concat_and_cache_mla", "reshape_and_cache_flash"]

_SOURCE = "vLLM 0.10 to 0.33, csrc/cache_kernels.cu"
_UNQUANTISED = ("auto", "float16", "bfloat16", "float32")


def concat_and_cache_mla(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    scale: torch.Tensor,
    skip_scale: bool = False,
) -> None:
    """Write each token's latent, then its rotary part, to its slot.

    Args:
        kv_c: [tokens, rank]; k_pe: [tokens, rotary]. One dtype.
        kv_cache: [pages, page_size, rank + rotary], of any strides but the last.
        slot_mapping: int64 [n].
        kv_cache_dtype: "auto" or a float type, stored as it is.
        scale, skip_scale: of quantised caches.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: a quantised cache.
    """
    _check_latents(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype)
    if len(slot_mapping):
        launch(_LATENTS, kv_c=kv_c, k_pe=k_pe, kv_cache=kv_cache, slot_mapping=slot_mapping)


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Write each token's keys and values to its slot.

    Args:
        key, value: [tokens, heads, columns]; heads of a token lie side by side.
        key_cache, value_cache: [pages, page_size, heads, columns], of one dtype with them and of
            any strides but the last; values are found by the strides of the keys.
        slot_mapping: int64 [n].
        kv_cache_dtype: "auto" or a float type, stored as it is.
        k_scale, v_scale: of quantised caches.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: a quantised cache.
    """
    _check_heads(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype)
    if len(slot_mapping):
        launch(
            _HEADS,
            key=key,
            value=value,
            key_cache=key_cache,
            value_cache=value_cache,
            slot_mapping=slot_mapping,
        )


@reads_only
def _check_latents(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
) -> None:
    call = _call("concat_and_cache_mla", kv_cache_dtype, slot_mapping)
    call.needs_shape("kv_c", kv_c, None, None)
    call.needs_shape("k_pe", k_pe, None, None)
    for name, tensor in (("k_pe", k_pe), ("kv_cache", kv_cache)):
        call.needs_dtype(name, tensor, kv_c.dtype)
    call.needs_shape("kv_cache", kv_cache, None, None, kv_c.shape[1] + k_pe.shape[1])


@reads_only
def _check_heads(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
) -> None:
    call = _call("reshape_and_cache_flash", kv_cache_dtype, slot_mapping)
    for name, tensor in (("key", key), ("value", value)):
        call.needs_shape(name, tensor, None, None, None)
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache)):
        call.needs_dtype(name, tensor, key.dtype)
        call.needs_shape(name, tensor, None, None, *key.shape[1:])
    got = f"{key_cache.stride(0)} and {value_cache.stride(0)}"
    rule = "pages of key_cache and value_cache must have one stride"
    call.needs(key_cache.stride(0) == value_cache.stride(0), rule, got)


def _call(kernel: str, kv_cache_dtype: str, slot_mapping: torch.Tensor) -> Call:
    if kv_cache_dtype not in _UNQUANTISED:
        raise KernelNotModelled(f"{kernel}: a cache of {kv_cache_dtype!r}")
    call = Call(kernel, _SOURCE)
    call.needs_dtype("slot_mapping", slot_mapping, torch.int64)
    call.needs_shape("slot_mapping", slot_mapping, None)
    return call


def _store_latents(
    memory: KernelMemory,
    *,
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    tokens, page, place = _slots(memory, slot_mapping, kv_cache.shape[1])
    rank = kv_c.shape[1]
    for name, rows, part in (
        ("kv_c", kv_c, kv_cache[..., :rank]),
        ("k_pe", k_pe, kv_cache[..., rank:]),
    ):
        memory.store("kv_cache", part, _rows(memory, name, rows, tokens), page, place)


def _store_heads(
    memory: KernelMemory,
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    tokens, page, place = _slots(memory, slot_mapping, key_cache.shape[1])
    strides = (*key_cache.stride()[:3], 1)
    for name, rows, cache in (("key", key, key_cache), ("value", value, value_cache)):
        found = _rows(memory, name, rows, tokens).view(len(tokens), *rows.shape[1:])
        memory.store(f"{name}_cache", cache.as_strided(cache.shape, strides), found, page, place)


def _slots(memory: KernelMemory, slot_mapping: torch.Tensor, page_size: int) -> tuple[Ints, ...]:
    """(tokens that are stored, the page of each, the place in it)."""
    slots = memory.ints(slot_mapping)
    tokens = np.flatnonzero(slots >= 0)
    return tokens, *np.divmod(slots[tokens], page_size)


def _rows(memory: KernelMemory, name: str, rows: torch.Tensor, tokens: Ints) -> torch.Tensor:
    columns = rows.shape[1:].numel()
    return memory.rows(name, rows.as_strided((len(rows), columns), (rows.stride(0), 1)), tokens)


_LATENTS = ModelKernel("concat_and_cache_mla", _store_latents, _SOURCE)
_HEADS = ModelKernel("reshape_and_cache_flash", _store_heads, _SOURCE)
