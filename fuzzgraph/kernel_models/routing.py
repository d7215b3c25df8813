"""Kernels around a layer of experts: the best experts of each token, tokens by expert, their sums.

Source: sgl-kernel 0.3, csrc/moe/moe_topk_softmax_kernels.cu, moe_align_kernel.cu,
moe_sum_reduce.cu and csrc/elementwise/activation.cu; the last one is sglang's own from 0.5.11 on,
activation.cuh.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.expert_blocks import in_blocks
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory, as_numbers

__all__ = [
    "activation",
    "activation_filtered",
    "mask_topk_ids",
    "moe_align_block_size",
    "moe_sum_reduce",
    "silu_and_mul",
    "topk_softmax",
]

_TOPK = "sgl-kernel 0.3, csrc/moe/moe_topk_softmax_kernels.cu"
_ALIGN = "sgl-kernel 0.3, csrc/moe/moe_align_kernel.cu"
_ACTIVATION = "sgl-kernel 0.3, csrc/elementwise/activation.cu"
_SUMS = "sgl-kernel 0.3, csrc/moe/moe_sum_reduce.cu"
_COMPILED = "sglang 0.5.11 to 0.5.23, csrc/elementwise/activation.cuh"
_MASK = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/hash_topk.cuh"
_VECTOR = 16
"""Bytes of a vector (kMaxVecBytes on a Hopper GPU)."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def topk_softmax(
    topk_weights: Tensor2,
    topk_ids: Tensor2,
    gating_output: Tensor2,
    renormalize: bool = False,
    moe_softcapping: float = 0.0,
    correction_bias: torch.Tensor | None = None,
) -> None:
    """Each token's experts with the largest numbers, the largest first, of equals the first.

    Args:
        topk_weights: float32 [T, k] parts of the softmax over all experts; with `renormalize`, of
            these k alone.
        topk_ids: int32 [T, k].
        gating_output: [T, E].

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("topk_softmax", _TOPK)
    call.leaves_out(
        {"moe_softcapping": moe_softcapping, "correction_bias": correction_bias},
        {"moe_softcapping": 0.0},
    )
    tokens, experts = gating_output.shape
    call.needs_dtype("gating_output", gating_output, *_FLOATS)
    call.needs_dtype("topk_weights", topk_weights, torch.float32)
    call.needs_dtype("topk_ids", topk_ids, torch.int32)
    each = topk_weights.shape[1]
    call.needs(each <= experts, f"topk must be at most the {experts} experts", each)
    for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        call.needs_shape(name, tensor, tokens, each)
    launch(
        _TOPK_SOFTMAX,
        gating_output=gating_output,
        topk_weights=topk_weights,
        topk_ids=topk_ids,
        renormalize=renormalize,
    )


def _run_topk_softmax(
    memory: KernelMemory,
    *,
    gating_output: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    renormalize: bool,
) -> None:
    numbers, each = as_numbers(gating_output), topk_ids.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        parts = np.exp(numbers - numbers.max(axis=1, keepdims=True))
        parts /= parts.sum(axis=1, keepdims=True)
    # A row of NaN compares with nothing: the kernel goes on from its first experts.
    ranked = np.where(np.isnan(numbers), -np.inf, numbers)
    chosen = np.argsort(-ranked, axis=1, kind="stable")[:, :each]
    weights = np.take_along_axis(parts, chosen, axis=1)
    if renormalize:
        weights = weights / weights.sum(axis=1, keepdims=True)
    topk_ids.copy_(torch.from_numpy(chosen))
    topk_weights.copy_(torch.from_numpy(weights))


def moe_align_block_size(
    topk_ids: Tensor2,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor1,
    experts_ids: Tensor1,
    num_tokens_post_pad: Tensor1,
    cumsum_buffer: Tensor1,
    pad_sorted_token_ids: bool = False,
    ignore_invalid_expert: bool = False,
) -> None:
    """Places of `topk_ids` by expert, each expert's filled up to whole blocks.

    An id of -1 counts as an expert before the first one, whose blocks name -1; with
    `ignore_invalid_expert` it has no place and no block (sglang 0.5.23
    lora/moe/base_gemm_provider/input_alignment.py and kernels/ops/lora/moe/align_rows.py, which
    has the same for one token).

    Args:
        topk_ids: int32 or int64 [T, k] in -1..num_experts - 2.
        num_experts: with the one of -1.
        sorted_token_ids: int32, flat places in `topk_ids`; T * k fills blocks up, and with
            `pad_sorted_token_ids` all that lies behind them.
        experts_ids: int32, the expert of each block.
        num_tokens_post_pad: int32 [1] places in use.
        cumsum_buffer: int32 [num_experts + 1] first place of each expert.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("moe_align_block_size", _ALIGN)
    call.needs_dtype("topk_ids", topk_ids, torch.int32, torch.int64)
    outputs = {
        "sorted_token_ids": sorted_token_ids,
        "experts_ids": experts_ids,
        "num_tokens_post_pad": num_tokens_post_pad,
        "cumsum_buffer": cumsum_buffer,
    }
    for name, tensor in outputs.items():
        call.needs_dtype(name, tensor, torch.int32)
    launch(
        _MOE_ALIGN,
        topk_ids=topk_ids,
        num_experts=num_experts,
        block_size=block_size,
        pad=pad_sorted_token_ids,
        leave_out=ignore_invalid_expert,
        **outputs,
    )


def _run_moe_align(
    memory: KernelMemory,
    *,
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    pad: bool,
    leave_out: bool,
    sorted_token_ids: torch.Tensor,
    experts_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
    cumsum_buffer: torch.Tensor,
) -> None:
    buckets = memory.ints(topk_ids).ravel() + 1
    outside = np.flatnonzero((buckets < 0) | (buckets >= num_experts))
    if len(outside):
        got = f"{buckets[outside[0]] - 1} at place {outside[0]}"
        memory.misused("topk_ids", f"topk_ids must lie in -1..{num_experts - 2}", got)
        buckets = np.where((buckets < 0) | (buckets >= num_experts), 0, buckets)
    order = np.argsort(buckets, kind="stable")
    if leave_out:
        order = order[buckets[order] > 0]
    at, taken = in_blocks(buckets[order], num_experts, block_size)
    ends = np.cumsum(taken * block_size)
    if pad:
        sorted_token_ids.fill_(len(buckets))
    filler = np.full(int(ends[-1]), len(buckets), dtype=np.int64)
    filler[at] = order
    memory.store("sorted_token_ids", sorted_token_ids, filler, np.arange(len(filler)))
    blocks = np.repeat(np.arange(num_experts) - 1, taken)
    memory.store("experts_ids", experts_ids, blocks, np.arange(len(blocks)))
    memory.store("cumsum_buffer", cumsum_buffer, np.append(0, ends), np.arange(num_experts + 1))
    memory.store("num_tokens_post_pad", num_tokens_post_pad, ends[-1:], np.arange(1))


def mask_topk_ids(topk_ids: Tensor2, num_token_non_padded: torch.Tensor) -> None:
    """-1 for the experts of each token from the count on.

    Args:
        topk_ids: int32 [T, k]; num_token_non_padded: int32, one number.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("mask_topk_ids", _MASK)
    call.needs_dtype("topk_ids", topk_ids, torch.int32)
    call.needs_dtype("num_token_non_padded", num_token_non_padded, torch.int32)
    numbers = num_token_non_padded.numel()
    call.needs(numbers == 1, "num_token_non_padded should be a scalar", numbers)
    launch(_MASK_TOPK_IDS, topk_ids=topk_ids, count=num_token_non_padded)


def _run_mask_topk_ids(
    memory: KernelMemory, *, topk_ids: torch.Tensor, count: torch.Tensor
) -> None:
    live = max(0, int(memory.ints(count).ravel()[0]))
    topk_ids[live:].fill_(-1)


def moe_sum_reduce(input: Tensor3, output: Tensor2, routed_scaling_factor: float = 0.0) -> None:
    """The sum of what a token's experts gave, times a factor.

    Args:
        input: [T, k, d]; output: [T, d] of the same dtype; both contiguous.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("moe_sum_reduce", _SUMS)
    call.needs_dtype("input", input, *_FLOATS)
    call.needs_dtype("output", output, input.dtype)
    tokens, _, width = input.shape
    call.needs_shape("output", output, tokens, width)
    for name, tensor in (("input", input), ("output", output)):
        call.needs(tensor.is_contiguous(), f"expect {name} to be contiguous", tensor.stride())
    launch(_SUM_REDUCE, input=input, output=output, factor=routed_scaling_factor)


def _run_sum_reduce(
    memory: KernelMemory, *, input: torch.Tensor, output: torch.Tensor, factor: float
) -> None:
    rows = np.arange(len(input))
    with np.errstate(over="ignore", invalid="ignore"):
        sums = memory.numbers("input", input, rows).sum(axis=1) * factor
    memory.store("output", output, sums, rows)


def silu_and_mul(input: Tensor2, out: Tensor2) -> None:
    """`silu(gate) * up` of rows that hold both beside each other.

    Args:
        input: [T, 2 * d]; out: [T, d] of the same dtype.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    _launch_silu(Call("silu_and_mul", _ACTIVATION), input, out, None, 1)


def activation(
    input: Tensor2, out: Tensor2, type: str, *, dtype: torch.dtype | None = None
) -> None:
    """The same by the name of the activation, of which `silu` is followed.

    Args:
        dtype: of both, for which the kernel is compiled; None where nothing says it.
    """
    call = Call("run_activation", _COMPILED)
    _needs_compiled(call, input, dtype)
    _only_silu(call, type)
    _launch_silu(call, input, out, None, 1)


def activation_filtered(
    input: Tensor2,
    out: Tensor2,
    expert_ids: torch.Tensor,
    expert_step: int,
    type: str,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """The same of the rows whose expert is not -1; the others stay as they were.

    Args:
        expert_ids: int32, one for each `expert_step` rows.
    """
    call = Call("run_activation_filtered", _COMPILED)
    _needs_compiled(call, input, dtype)
    _only_silu(call, type)
    call.needs_dtype("expert_ids", expert_ids, torch.int32)
    call.needs(expert_step >= 1, "expert_step must be positive", expert_step)
    _launch_silu(call, input, out, expert_ids, expert_step)


def _needs_compiled(call: Call, input: torch.Tensor, dtype: torch.dtype | None) -> None:
    if dtype is not None:
        call.needs_dtype("input", input, dtype)


def _only_silu(call: Call, type: str) -> None:
    call.leaves_out({"type": type}, {"type": "silu"})


def _launch_silu(
    call: Call,
    input: torch.Tensor,
    out: torch.Tensor,
    expert_ids: torch.Tensor | None,
    step: int,
) -> None:
    call.needs_dtype("input", input, *_FLOATS)
    call.needs_dtype("out", out, input.dtype)
    width = input.shape[1] // 2
    vector = _VECTOR // input.element_size()
    call.needs(width % vector == 0, f"hidden size must be divisible by {vector}", width)
    call.needs_shape("out", out, input.shape[0], width)
    launch(_SILU_AND_MUL, input=input, out=out, expert_ids=expert_ids, step=step)


def _run_silu_and_mul(
    memory: KernelMemory,
    *,
    input: torch.Tensor,
    out: torch.Tensor,
    expert_ids: torch.Tensor | None,
    step: int,
) -> None:
    rows = np.arange(input.shape[0])
    if expert_ids is not None:
        # Its address is all that the kernel has of it.
        flat = expert_ids.as_strided((expert_ids.numel(),), (1,))
        rows = rows[memory.entries("expert_ids", flat, rows // step) != -1]
    gate, up = np.split(memory.numbers("input", input, rows), 2, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        memory.store("out", out, gate / (1.0 + np.exp(-gate)) * up, rows)


_TOPK_SOFTMAX = ModelKernel("topk_softmax", _run_topk_softmax, _TOPK)
_MOE_ALIGN = ModelKernel("moe_align_block_size", _run_moe_align, _ALIGN)
_SILU_AND_MUL = ModelKernel("silu_and_mul", _run_silu_and_mul, _ACTIVATION)
_SUM_REDUCE = ModelKernel("moe_sum_reduce", _run_sum_reduce, _SUMS)
_MASK_TOPK_IDS = ModelKernel("mask_topk_ids", _run_mask_topk_ids, _MASK)
