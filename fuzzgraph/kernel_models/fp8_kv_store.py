"""`fused_fp8_qkv_kv_cache`: keys and values go to their slots in FP8, and queries beside them.

Source: sglang 0.5.16 to 0.5.23, csrc/attention/fused_fp8_qkv_kv_cache.cuh. One block for each token
multiplies what it stores with the inverse of its scale; queries have none.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import by_inverse, to_fp8
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory, as_numbers
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["store_fp8_kv"]

_SOURCE = "sglang 0.5.16 to 0.5.23, csrc/attention/fused_fp8_qkv_kv_cache.cuh"


def store_fp8_kv(
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    q_out: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_loc: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    *,
    dtype: torch.dtype,
) -> None:
    """Write each token's key and value, divided by their scales, to its slot.

    Args:
        q, q_out: [n, Dq] and FP8 [n, Dq], or neither.
        k, v: [n, Dkv], rows of any stride; k_cache, v_cache: FP8 [slots, Dkv].
        cache_loc: int32 or int64 [n] slots.
        k_scale, v_scale: float32 [1], read when the launch runs.
        dtype: of q, k and v, for which the kernel is compiled.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    _check(q, k, v, q_out, k_cache, v_cache, cache_loc, k_scale, v_scale, dtype)
    launch(
        _FP8_KV_STORE, q=q, k=k, v=v, q_out=q_out, k_cache=k_cache, v_cache=v_cache,
        cache_loc=cache_loc, k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip


@reads_only
def _check(
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    q_out: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_loc: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    call = Call("fused_fp8_qkv_kv_cache", _SOURCE)
    rule = "q and q_out must both be given or both omitted"
    call.needs((q is None) == (q_out is None), rule, "one of them")
    call.needs_shape("k", k, None, None)
    rows, width = k.shape
    call.needs(rows > 0, "there must be a token", rows)
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        cache = name.endswith("_cache")
        call.needs_shape(name, tensor, None if cache else rows, width)
        call.needs_dtype(name, tensor, torch.float8_e4m3fn if cache else dtype)
        call.needs_contiguous_last(name, tensor)
    call.needs(len(k_cache) == len(v_cache), "both caches must have as many slots", len(v_cache))
    if q is not None and q_out is not None:
        call.needs_shape("q", q, rows, None)
        call.needs_dtype("q", q, dtype)
        call.needs_contiguous_last("q", q)
        call.needs_shape("q_out", q_out, rows, q.shape[1])
        call.needs_dtype("q_out", q_out, torch.float8_e4m3fn)
    call.needs_shape("cache_loc", cache_loc, rows)
    call.needs_dtype("cache_loc", cache_loc, torch.int32, torch.int64)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        call.needs_shape(name, scale, 1)
        call.needs_dtype(name, scale, torch.float32)


def _store(
    memory: KernelMemory,
    *,
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    q_out: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_loc: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    slots = memory.ints(cache_loc)
    if q is not None and q_out is not None:
        memory.store("q_out", q_out, to_fp8(as_numbers(q)), np.arange(len(q)))
    memory.store("k_cache", k_cache, to_fp8(by_inverse(k, k_scale)), slots)
    memory.store("v_cache", v_cache, to_fp8(by_inverse(v, v_scale)), slots)


_FP8_KV_STORE = ModelKernel("fused_fp8_qkv_kv_cache", _store, _SOURCE)
