"""Places of tokens by adapter and expert, for kernels of experts with LoRA adapters.

Source: sglang 0.5.12 to 0.5.23, moe_lora_align_kernel.cu.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.expert_blocks import in_blocks
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["moe_lora_align_block_size"]

_SOURCE = "sglang 0.5.12 to 0.5.23, moe_lora_align_kernel.cu"
_MOST_EXPERTS = 1024
"""Threads of a block, one for each expert of whole warps and one more."""
_WARP = 32


def moe_lora_align_block_size(
    topk_ids: Tensor2,
    seg_indptr: Tensor1,
    req_to_lora: Tensor1,
    num_experts: int,
    block_size: int,
    max_loras: int,
    max_num_tokens_padded: int,
    max_num_m_blocks: int,
    sorted_token_ids: Tensor1,
    expert_ids: Tensor1,
    num_tokens_post_pad: Tensor1,
    adapter_enabled: Tensor1,
    lora_ids: Tensor1,
    maybe_expert_map: torch.Tensor | None,
    cumsum_buffer: Tensor1,
    token_mask: Tensor1,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """For each adapter the places in `topk_ids` of its tokens, by expert, in whole blocks.

    What belongs to an adapter that is not enabled is left as it was.

    Args:
        topk_ids: int32 or int64 [T, k]; an id outside 0..num_experts - 1 has no place.
        seg_indptr: int32 [segments + 1] first token of each segment.
        req_to_lora: int32 [segments] the adapter of each.
        sorted_token_ids: int32 [max_loras * max_num_tokens_padded] places; T * k fills up.
        expert_ids: int32 [max_loras * max_num_m_blocks] the expert of each block, -1 behind them.
        num_tokens_post_pad: int32 [max_loras] places in use.
        adapter_enabled: int32 by adapter; lora_ids: int32 [max_loras], -1 for none.
        cumsum_buffer, token_mask: int32, what the kernel computes with.
        dtype: of ids, for which the kernel is compiled and as which it reads what it is given;
            None for that of `topk_ids`.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("moe_lora_align_block_size", _SOURCE)
    call.leaves_out({"maybe_expert_map": maybe_expert_map}, {})
    call.needs(block_size > 0, "block_size should be greater than 0", block_size)
    padded = -(-num_experts // _WARP) * _WARP
    call.needs(padded < _MOST_EXPERTS, "padded_num_experts must be less than 1024", padded)
    call.needs_dtype("topk_ids", topk_ids, torch.int32, torch.int64)
    tensors = {
        "seg_indptr": seg_indptr,
        "req_to_lora": req_to_lora,
        "sorted_token_ids": sorted_token_ids,
        "expert_ids": expert_ids,
        "num_tokens_post_pad": num_tokens_post_pad,
        "adapter_enabled": adapter_enabled,
        "lora_ids": lora_ids,
        "token_mask": token_mask,
    }
    for name, tensor in tensors.items():
        call.needs_dtype(name, tensor, torch.int32)
    launch(
        _ALIGN,
        topk_ids=topk_ids,
        as_compiled=dtype in (None, topk_ids.dtype),
        num_experts=num_experts,
        block_size=block_size,
        adapters=max_loras,
        places=max_num_tokens_padded,
        blocks=max_num_m_blocks,
        **tensors,
    )


def _run(
    memory: KernelMemory,
    *,
    topk_ids: torch.Tensor,
    as_compiled: bool,
    num_experts: int,
    block_size: int,
    adapters: int,
    places: int,
    blocks: int,
    seg_indptr: torch.Tensor,
    req_to_lora: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
    adapter_enabled: torch.Tensor,
    lora_ids: torch.Tensor,
    token_mask: torch.Tensor,
) -> None:
    tokens, each = topk_ids.shape
    ids, ends = memory.ints(topk_ids), memory.ints(seg_indptr)
    if not as_compiled:
        ids = _misread(memory, topk_ids)
    segments = np.arange(len(ends) - 1)
    owners = memory.entries("req_to_lora", req_to_lora, segments)
    for adapter in memory.entries("lora_ids", lora_ids, np.arange(adapters)):
        which = np.array([adapter])
        if adapter == -1 or not memory.entries("adapter_enabled", adapter_enabled, which)[0]:
            continue
        marks = np.zeros(tokens, dtype=np.int64)
        memory.store("token_mask", token_mask, marks, adapter * tokens + np.arange(tokens))
        for segment in segments[owners == adapter]:
            own = np.arange(ends[segment], ends[segment + 1])
            memory.store("token_mask", token_mask, np.ones_like(own), adapter * tokens + own)
            marks[own[(own >= 0) & (own < tokens)]] = 1
        flat = ids.ravel()
        mine = np.flatnonzero((np.repeat(marks, each) == 1) & (flat >= 0) & (flat < num_experts))
        order = mine[np.argsort(flat[mine], kind="stable")]
        at, taken = in_blocks(flat[order], num_experts, block_size)
        row = np.arange(places)
        memory.store(
            "sorted_token_ids", sorted_token_ids, np.full(places, flat.size), adapter * places + row
        )
        memory.store("sorted_token_ids", sorted_token_ids, order, adapter * places + at)
        of_blocks = np.repeat(np.arange(num_experts), taken)
        rest = np.full(max(0, blocks - len(of_blocks)), -1)
        named = np.concatenate((of_blocks, rest))
        memory.store("expert_ids", expert_ids, named, adapter * blocks + np.arange(len(named)))
        memory.store(
            "num_tokens_post_pad", num_tokens_post_pad, taken.sum(keepdims=True) * block_size, which
        )


def _misread(memory: KernelMemory, ids: torch.Tensor) -> Ints:
    """As many ids by their address, of the other width: a half of each, or two in one."""
    flat = ids.flatten().clone()
    other = torch.int32 if ids.dtype == torch.int64 else torch.int64
    whole = flat[: len(flat) // 2 * 2] if other == torch.int64 else flat
    return memory.entries("topk_ids", whole.view(other), np.arange(len(flat)))


_ALIGN = ModelKernel("moe_lora_align_block_size", _run, _SOURCE)
