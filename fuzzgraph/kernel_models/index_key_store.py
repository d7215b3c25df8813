"""`store_kv_index`: a token's keys and values, and its index key, go to its slot by one launch.

Source: sglang 0.5.16 to 0.5.23, csrc/minimax/fused_store_kv_index.cuh. Rows are copied as bytes, or
from 0.5.23 on numbers in bfloat16 become the nearest ones in FP8, the largest where they are too
large. Left out are index values and a check of slots, of which the kernel has none.
"""

from __future__ import annotations

import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import to_fp8
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory, as_numbers
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["store_with_index_key"]

_KEY_STORE_SOURCE = "sglang 0.5.16 to 0.5.23, csrc/minimax/fused_store_kv_index.cuh"
_VECTOR = 16
"""Bytes that a thread copies at once."""


def store_with_index_key(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    idx_k: torch.Tensor,
    idx_k_cache: torch.Tensor,
    idx_v: torch.Tensor,
    idx_v_cache: torch.Tensor,
    indices: torch.Tensor,
    num_kv_heads: int,
    heads_per_token: int,
    *,
    head_bytes: int | None = None,
    casts: bool | None = None,
) -> None:
    """Write each token's key, value and index key to its slot of three caches.

    Args:
        k, v: [n, heads * D]; k_cache, v_cache: [slots, heads * D]. One dtype, or bfloat16 for
            caches of float8_e4m3fn; rows of any stride.
        idx_k: [n, D]; idx_k_cache: [slots, D]. idx_v, idx_v_cache: not looked at.
        indices: int32 or int64 [n] slots.
        heads_per_token: two for each head and one for the index key.
        head_bytes: of a stored head; casts: whether numbers become FP8. The kernel is compiled for
            these; None where nothing says for which.

    Raises:
        KernelRefused: the real host code refuses such a call, or its kernel could not copy rows
            by 16 bytes.
        KernelNotModelled: there are index values.
    """
    call = Call("store_kv_index", _KEY_STORE_SOURCE)
    call.needs_shape("idx_k", idx_k, None, None)
    if casts is not None:
        rule = f"k and k_cache must {'not ' if casts else ''}have one dtype"
        call.needs(casts == (k.dtype != k_cache.dtype), rule, f"{k.dtype} and {k_cache.dtype}")
    if head_bytes is not None:
        size = idx_k.shape[1] * k_cache.element_size()
        call.needs(
            size == head_bytes, f"a head must have the {head_bytes} bytes compiled for", size
        )
    _check_index_store(
        k, v, k_cache, v_cache, idx_k, idx_k_cache, indices, num_kv_heads, heads_per_token
    )
    if k.shape[0]:
        launch(
            _KEY_STORE,
            k=k,
            v=v,
            k_cache=k_cache,
            v_cache=v_cache,
            idx_k=idx_k,
            idx_k_cache=idx_k_cache,
            indices=indices,
        )


@reads_only
def _check_index_store(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    idx_k: torch.Tensor,
    idx_k_cache: torch.Tensor,
    indices: torch.Tensor,
    num_kv_heads: int,
    heads_per_token: int,
) -> None:
    call = Call("store_kv_index", _KEY_STORE_SOURCE)
    call.needs_shape("idx_k", idx_k, None, None)
    rows, width = idx_k.shape
    cast = k.dtype != k_cache.dtype  # for which the engine compiles it
    given = torch.bfloat16 if cast else k.dtype
    kept = torch.float8_e4m3fn if cast else k.dtype
    head = width * kept.itemsize
    call.needs(head % _VECTOR == 0, f"a head's bytes must be a multiple of {_VECTOR}", head)
    for name, tensor, count, columns in (
        ("k", k, rows, num_kv_heads * width),
        ("v", v, rows, num_kv_heads * width),
        ("k_cache", k_cache, None, num_kv_heads * width),
        ("v_cache", v_cache, None, num_kv_heads * width),
        ("idx_k", idx_k, rows, width),
        ("idx_k_cache", idx_k_cache, None, width),
    ):
        call.needs_dtype(name, tensor, kept if name.endswith("_cache") else given)
        call.needs_shape(name, tensor, count, columns)
        call.needs_contiguous_last(name, tensor)
        step = tensor.stride(0) * tensor.element_size()
        rule = f"rows of {name} must start at multiples of {_VECTOR} bytes"
        call.needs(len(tensor) < 2 or step % _VECTOR == 0, rule, f"a stride of {step}")
    call.needs_dtype("indices", indices, torch.int32, torch.int64)
    call.needs_shape("indices", indices, rows)
    without_values = 2 * num_kv_heads + 1
    call.leaves_out({"heads_per_token": heads_per_token}, {"heads_per_token": without_values})


def _store_three(
    memory: KernelMemory,
    *,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    idx_k: torch.Tensor,
    idx_k_cache: torch.Tensor,
    indices: torch.Tensor,
) -> None:
    slots = memory.ints(indices)
    pairs = (k_cache, k), (v_cache, v), (idx_k_cache, idx_k)
    for name, (cache, rows) in zip(("k_cache", "v_cache", "idx_k_cache"), pairs, strict=True):
        same = cache.dtype == rows.dtype
        memory.store(name, cache, rows if same else to_fp8(as_numbers(rows)), slots)


_KEY_STORE = ModelKernel("store_kv_index", _store_three, _KEY_STORE_SOURCE)
