"""`store_kv_index`: a token's keys and values, and its index key, go to its slot by one launch.

Source: sglang 0.5.16 to 0.5.23, csrc/minimax/fused_store_kv_index.cuh. Rows are copied as bytes.
Left out are the cast to FP8, index values and a check of slots, of which the kernel has none.
"""

from __future__ import annotations

import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
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
) -> None:
    """Write each token's key, value and index key to its slot of three caches.

    Args:
        k, v: [n, heads * D]; k_cache, v_cache: [slots, heads * D]. One dtype, rows of any stride.
        idx_k: [n, D]; idx_k_cache: [slots, D]. idx_v, idx_v_cache: not looked at.
        indices: int32 or int64 [n] slots.
        heads_per_token: two for each head and one for the index key.

    Raises:
        KernelRefused: the real host code refuses such a call, or its kernel could not copy rows
            by 16 bytes.
        KernelNotModelled: there are index values.
    """
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
    head = width * k.element_size()
    call.needs(head % _VECTOR == 0, f"a head's bytes must be a multiple of {_VECTOR}", head)
    for name, tensor, count, columns in (
        ("k", k, rows, num_kv_heads * width),
        ("v", v, rows, num_kv_heads * width),
        ("k_cache", k_cache, None, num_kv_heads * width),
        ("v_cache", v_cache, None, num_kv_heads * width),
        ("idx_k", idx_k, rows, width),
        ("idx_k_cache", idx_k_cache, None, width),
    ):
        call.needs_dtype(name, tensor, k.dtype)
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
    memory.store("k_cache", k_cache, k, slots)
    memory.store("v_cache", v_cache, v, slots)
    memory.store("idx_k_cache", idx_k_cache, idx_k, slots)


_KEY_STORE = ModelKernel("store_kv_index", _store_three, _KEY_STORE_SOURCE)
