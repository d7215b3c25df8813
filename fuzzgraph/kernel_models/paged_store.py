"""vLLM's kernels that store new KV in pages, one block of threads for each token.

Rows of tokens are found by the stride of their first dimension, and their columns are taken for
contiguous. There are as many tokens as slots, however many rows there are, and a token whose slot
is below 0 is not stored. A cache in FP8 may be told as bytes: the host code takes its address.

Source: vLLM 0.10 to 0.33, csrc/cache_kernels.cu `concat_and_cache_mla_kernel` and
`reshape_and_cache_flash_kernel`; csrc/quantization/w8a8/fp8/nvidia/quant_utils.cuh
`scaled_vec_conversion`.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import scaled_to_fp8
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["concat_and_cache_mla", "reshape_and_cache_flash"]

_SOURCE = "vLLM 0.10 to 0.33, csrc/cache_kernels.cu"
_UNQUANTISED = ("auto", "float16", "bfloat16", "float32")
_FP8 = ("fp8", "fp8_e4m3")
_BYTES = (torch.uint8, torch.float8_e4m3fn)


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
        kv_cache: [pages, page_size, rank + rotary], of one dtype with them or FP8 (as it is or as
            uint8), of any strides but the last.
        slot_mapping: int64 [n].
        kv_cache_dtype: "auto" or a float type, stored as it is; "fp8" or "fp8_e4m3", of numbers
            that are divided by their scale.
        scale: float32 of one number, read when the launch runs; of FP8 alone.
        skip_scale: left out where the cache is FP8.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: another quantised cache.
    """
    fp8 = kv_cache_dtype in _FP8
    _check_latents(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype)
    if fp8:
        _check_scales("concat_and_cache_mla", scale=scale)
        if skip_scale:
            raise KernelNotModelled("concat_and_cache_mla: skip_scale=True")
    if len(slot_mapping):
        launch(
            _LATENTS,
            kv_c=kv_c,
            k_pe=k_pe,
            kv_cache=kv_cache.view(torch.uint8) if fp8 else kv_cache,
            slot_mapping=slot_mapping,
            scale=scale if fp8 else None,
        )


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
        key_cache, value_cache: [pages, page_size, heads, columns], of one dtype with them or FP8
            (as it is or as uint8), of any strides but the last; values are found by the strides of
            the keys.
        slot_mapping: int64 [n].
        kv_cache_dtype: "auto" or a float type, stored as it is; "fp8" or "fp8_e4m3", of numbers
            that are divided by their scale.
        k_scale, v_scale: float32 of one number, read when the launch runs; of FP8 alone.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: another quantised cache, or a scale for each head.
    """
    fp8 = kv_cache_dtype in _FP8
    _check_heads(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype)
    if fp8:
        _check_scales("reshape_and_cache_flash", k_scale=k_scale, v_scale=v_scale)
    if len(slot_mapping):
        launch(
            _HEADS,
            key=key,
            value=value,
            key_cache=key_cache.view(torch.uint8) if fp8 else key_cache,
            value_cache=value_cache.view(torch.uint8) if fp8 else value_cache,
            slot_mapping=slot_mapping,
            scales=(k_scale, v_scale) if fp8 else None,
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
    call.needs_dtype("k_pe", k_pe, kv_c.dtype)
    call.needs_dtype("kv_cache", kv_cache, *_stored_as(kv_cache_dtype, kv_c))
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
        call.needs_dtype(name, tensor, *_stored_as(kv_cache_dtype, key))
        call.needs_shape(name, tensor, None, None, *key.shape[1:])
    got = f"{key_cache.stride(0)} and {value_cache.stride(0)}"
    rule = "pages of key_cache and value_cache must have one stride"
    call.needs(key_cache.stride(0) == value_cache.stride(0), rule, got)


@reads_only
def _check_scales(kernel: str, **scales: torch.Tensor) -> None:
    call = Call(kernel, _SOURCE)
    for name, scale in scales.items():
        call.needs_dtype(name, scale, torch.float32)
        if scale.numel() != 1:
            raise KernelNotModelled(f"{kernel}: {name} of {scale.numel()} numbers")


def _stored_as(kv_cache_dtype: str, rows: torch.Tensor) -> tuple[torch.dtype, ...]:
    return _BYTES if kv_cache_dtype in _FP8 else (rows.dtype,)


def _call(kernel: str, kv_cache_dtype: str, slot_mapping: torch.Tensor) -> Call:
    if kv_cache_dtype not in (*_UNQUANTISED, *_FP8):
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
    scale: torch.Tensor | None,
) -> None:
    tokens, page, place = _slots(memory, slot_mapping, kv_cache.shape[1])
    rank = kv_c.shape[1]
    for name, rows, part in (
        ("kv_c", kv_c, kv_cache[..., :rank]),
        ("k_pe", k_pe, kv_cache[..., rank:]),
    ):
        found = _rows(memory, name, rows, tokens)
        if scale is not None:
            found = scaled_to_fp8(found, scale).view(torch.uint8)
        memory.store("kv_cache", part, found, page, place)


def _store_heads(
    memory: KernelMemory,
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    tokens, page, place = _slots(memory, slot_mapping, key_cache.shape[1])
    strides = (*key_cache.stride()[:3], 1)
    parts = ("key", key, key_cache), ("value", value, value_cache)
    for (name, rows, cache), scale in zip(parts, scales or (None, None), strict=True):
        found = _rows(memory, name, rows, tokens).view(len(tokens), *rows.shape[1:])
        if scale is not None:
            found = scaled_to_fp8(found, scale).view(torch.uint8)
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
