"""`causal_conv1d_update`: a depthwise convolution over the last tokens of each request of a decode.

Source: sglang 0.5.9 to 0.5.23, csrc/mamba/causal_conv1d.cuh, once sgl-kernel's causal_conv1d.cu;
Dao-AILab/causal-conv1d 1.4, causal_conv1d_interface.py `causal_conv1d_update_ref`. Results take the
place of the inputs. A request whose slot is the padding one is not computed: its inputs stay.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["causal_conv1d_update"]

_CONV_SOURCE = "sglang 0.5.9 to 0.5.23, csrc/mamba/causal_conv1d.cuh"
_CONV_NAME = "causal_conv1d_update"
_CONV_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias_: torch.Tensor | None,
    silu_activation: bool,
    cache_seqlens: torch.Tensor | None,
    conv_state_indices: torch.Tensor | None,
    pad_slot_id: int,
) -> None:
    """Convolve the new tokens of each request in place, and move its kept inputs on.

    Args:
        x: [requests, columns, tokens]; weight: [columns, 2 to 4], the newest token last; bias_:
            [columns].
        conv_state: [slots, columns, kept], the newest last. One dtype.
        silu_activation: whether SiLU follows.
        cache_seqlens: not followed; where a buffer that goes round begins.
        conv_state_indices: int32 [requests] slots; None where there is one for each request.
        pad_slot_id: the slot of a request that is not computed.

    Raises:
        KernelNotModelled: `cache_seqlens` is given.
        KernelRefused: the real host code refuses such a call.
    """
    call = Call(_CONV_NAME, _CONV_SOURCE)
    call.leaves_out({"cache_seqlens": cache_seqlens}, {})
    _check_call(call, x, conv_state, weight, bias_, conv_state_indices)
    if len(x):
        launch(
            _CONV_UPDATE,
            x=x,
            conv_state=conv_state,
            weight=weight,
            bias=bias_,
            silu=silu_activation,
            slots=conv_state_indices,
            skipped=pad_slot_id,
        )


def _check_call(
    call: Call,
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    slots: torch.Tensor | None,
) -> None:
    call.needs_dtype("x", x, *_CONV_DTYPES)
    call.needs_shape("x", x, None, None, None)
    rows, columns, _ = x.shape
    call.needs_shape("weight", weight, columns, None)
    call.needs_shape("bias", bias, columns)
    call.needs_shape("conv_state", conv_state, rows if slots is None else None, columns, None)
    for name, tensor in (("weight", weight), ("bias", bias), ("conv_state", conv_state)):
        call.needs_dtype(name, tensor, x.dtype)
    taps, kept = weight.shape[1], conv_state.shape[2]
    call.needs(2 <= taps <= 4, "weights must be of 2 to 4 tokens", taps)
    call.needs(kept >= taps - 1, f"{taps - 1} inputs must be kept", kept)
    call.needs_dtype("conv_state_indices", slots, torch.int32)
    call.needs_shape("conv_state_indices", slots, rows)
    call.needs_contiguous_last("conv_state_indices", slots)


def _convolve(
    memory: KernelMemory,
    *,
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    silu: bool,
    slots: torch.Tensor | None,
    skipped: int,
) -> None:
    named = np.arange(len(x)) if slots is None else memory.ints(slots)
    rows = np.flatnonzero(named != skipped) if slots is not None else named
    if not len(rows):
        return
    at = named[rows]
    every = np.arange(weight.shape[0])
    taps = memory.numbers("weight", weight, every)
    kept = memory.numbers("conv_state", conv_state, at)
    seen = np.concatenate((kept, memory.numbers("x", x, rows)), axis=2)
    width, tokens = taps.shape[1], x.shape[2]
    first = seen.shape[2] - tokens - width + 1
    found = np.zeros((len(rows), len(taps), tokens))
    if bias is not None:
        found += memory.numbers("bias", bias, every)[:, None]
    for tap in range(width):
        found += taps[:, tap, None] * seen[:, :, first + tap : first + tap + tokens]
    if silu:
        found = found / (1.0 + np.exp(-found))
    memory.store("conv_state", conv_state, seen[:, :, tokens:], at)
    memory.store("x", x, found, rows)


_CONV_UPDATE = ModelKernel(_CONV_NAME, _convolve, _CONV_SOURCE)
