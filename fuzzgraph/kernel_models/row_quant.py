"""Rows become FP8 or INT8 by scales that the kernel finds, or by one that is known beforehand.

Source: sglang 0.5.17 to 0.5.23, kernels/jit/csrc/gemm: per_token_group_quant.cuh (the flat
schedule, float32 scales, no fused activation), per_token_quant_fp8.cuh and
per_tensor_quant_fp8.cuh.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import FP8_LARGEST, by_inverse, to_fp8_by_fmin
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["per_tensor_quant_fp8", "per_token_group_quant", "per_token_quant_fp8"]

_FOLDER = "sglang 0.5.17 to 0.5.23, kernels/jit/csrc/gemm"
_GROUPS = f"{_FOLDER}/per_token_group_quant.cuh"
_TOKENS = f"{_FOLDER}/per_token_quant_fp8.cuh"
_TENSOR = f"{_FOLDER}/per_tensor_quant_fp8.cuh"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_LEAST = np.float32(1e-10)
"""A group's largest number counts as this at least."""
_INT8 = (-128.0, 127.0)
_ALIGNED = 32
"""Bytes at which each row must begin."""
_QUARTER = 4
"""Columns of which a row must have a multiple."""


def per_token_group_quant(
    input: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    group: int,
    *,
    dtypes: tuple[torch.dtype, torch.dtype] | None = None,
    by_rows: bool | None = None,
    packed: bool = False,
    activates: bool = False,
) -> None:
    """Quantise each group of columns by the largest number in it.

    Args:
        input: float [T, D].
        output_q: float8_e4m3fn or int8 [T, D].
        output_s: float32 [T, D / group], by rows or by columns.
        group: columns that share a scale; dtypes: of `input` and of `output_q`; by_rows: whether
            scales lie by rows. The kernel is compiled for these; None where nothing says for which.
        packed, activates: whether it is compiled to write powers of two, four in an int32, and to
            multiply two halves of a row at first.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: it packs scales, or activates.
    """
    call = Call("per_token_group_quant", _GROUPS)
    if packed:
        call.needs_dtype("output_s", output_s, torch.int32)
    if activates:
        call.needs_shape("input", input, output_q.shape[0], 2 * output_q.shape[-1])
    call.leaves_out({"kUe8m0": packed, "kFuseSiluAndMul": activates},
                    {"kUe8m0": False, "kFuseSiluAndMul": False})  # fmt: skip
    _check_groups(input, output_q, output_s, group, dtypes, by_rows)
    if input.numel():
        launch(_BY_GROUPS, rows=input, quantised=output_q, scales=output_s, group=group)


@reads_only
def _check_groups(
    rows: torch.Tensor,
    quantised: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    dtypes: tuple[torch.dtype, torch.dtype] | None,
    by_rows: bool | None,
) -> None:
    call = Call("per_token_group_quant", _GROUPS)
    if dtypes is not None:
        call.needs_dtype("input", rows, dtypes[0])
        call.needs_dtype("output_q", quantised, dtypes[1])
    call.needs_shape("input", rows, None, None)
    call.needs_dtype("input", rows, *_FLOATS)
    call.needs_contiguous_last("input", rows)
    step = rows.stride(0) * rows.element_size()
    call.needs(step % _ALIGNED == 0, f"rows must be {_ALIGNED}B-aligned", step)
    call.needs_shape("output_q", quantised, *rows.shape)
    call.needs_dtype("output_q", quantised, torch.float8_e4m3fn, torch.int8)
    call.needs_contiguous_last("output_q", quantised)
    width = rows.shape[1]
    call.needs(width % group == 0, f"columns must be a multiple of {group}", width)
    call.needs_shape("output_s", scales, len(rows), width // group)
    call.needs_dtype("output_s", scales, torch.float32)
    call.needs(1 in scales.stride(), "output_s must lie by rows or by columns", scales.stride())
    if by_rows is not None:
        inner = 1 if by_rows else 0
        lies = scales.shape[inner] < 2 or scales.stride(inner) == 1
        rule = f"output_s must lie by {'rows' if by_rows else 'columns'}"
        call.needs(lies, rule, f"strides {list(scales.stride())}")


def per_token_quant_fp8(
    input: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Quantise each row by the largest number in it.

    Args:
        input: float [T, D], contiguous, T > 0.
        output_q: float8_e4m3fn [at least T, D].
        output_s: float32 [at least T, 1].
        dtype: of `input`, for which the kernel is compiled; None where nothing says it.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    if dtype is not None:
        Call("per_token_quant_fp8", _TOKENS).needs_dtype("input", input, dtype)
    _check_tokens(input, output_q, output_s)
    launch(_BY_TOKENS, rows=input, quantised=output_q, scales=output_s)


@reads_only
def _check_tokens(rows: torch.Tensor, quantised: torch.Tensor, scales: torch.Tensor) -> None:
    call = Call("per_token_quant_fp8", _TOKENS)
    call.needs_shape("input", rows, None, None)
    call.needs_dtype("input", rows, *_FLOATS)
    call.needs_contiguous("input", rows)
    call.needs(len(rows) > 0, "num_tokens must be positive", len(rows))
    width = rows.shape[1]
    call.needs(width % _QUARTER == 0, f"hidden_dim must be divisible by {_QUARTER}", width)
    call.needs_shape("output_q", quantised, None, width)
    call.needs_dtype("output_q", quantised, torch.float8_e4m3fn)
    call.needs_contiguous("output_q", quantised)
    call.needs_shape("output_s", scales, len(quantised), 1)
    call.needs_dtype("output_s", scales, torch.float32)
    held = len(quantised)
    call.needs(held >= len(rows), f"output buffers must have at least {len(rows)} rows", held)


def per_tensor_quant_fp8(
    input: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    is_static: bool,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Quantise all numbers by one scale.

    Args:
        input: float [n].
        output_q: float8_e4m3fn [n].
        output_s: float32 [1]; unless `is_static`, it becomes that of the largest number, if that is
            more than what it holds.
        dtype: of `input`, for which the kernel is compiled; None where nothing says it.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    if dtype is not None:
        Call("per_tensor_quant_fp8", _TENSOR).needs_dtype("input", input, dtype)
    _check_tensor(input, output_q, output_s)
    if input.numel():
        launch(_BY_ONE, numbers=input, quantised=output_q, scale=output_s, finds=not is_static)


@reads_only
def _check_tensor(numbers: torch.Tensor, quantised: torch.Tensor, scale: torch.Tensor) -> None:
    call = Call("per_tensor_quant_fp8", _TENSOR)
    call.needs_shape("input", numbers, None)
    call.needs_dtype("input", numbers, *_FLOATS)
    call.needs_contiguous("input", numbers)
    call.needs_shape("output_q", quantised, len(numbers))
    call.needs_dtype("output_q", quantised, torch.float8_e4m3fn)
    call.needs_shape("output_s", scale, 1)
    call.needs_dtype("output_s", scale, torch.float32)


def _largest_of(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[...] along the last dimension; like the device's, it passes NaN over."""
    found: npt.NDArray[np.float32] = np.fmax.reduce(np.abs(rows), axis=-1)
    return np.nan_to_num(found, nan=0.0, posinf=np.inf)


def _held(scaled: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """What is stored: INT8 cuts off what is behind the point. NaN of FP8 is the largest (from
    0.5.23 on not where groups are of bfloat16)."""
    if dtype == torch.int8:
        least, most = _INT8
        known = np.nan_to_num(scaled, nan=least, posinf=most, neginf=least)
        return torch.from_numpy(np.trunc(np.clip(known, least, most))).to(torch.int8)
    return to_fp8_by_fmin(scaled)


def _quantise_groups(
    memory: KernelMemory,
    *,
    rows: torch.Tensor,
    quantised: torch.Tensor,
    scales: torch.Tensor,
    group: int,
) -> None:
    every = np.arange(len(rows))
    numbers = memory.numbers("input", rows, every).astype(np.float32)
    groups = numbers.reshape(len(rows), -1, group)
    most = np.float32(_INT8[1] if quantised.dtype == torch.int8 else FP8_LARGEST)
    largest = np.maximum(_largest_of(groups), _LEAST)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = groups * (most / largest)[..., None]
        found = largest * (np.float32(1.0) / most)
    memory.store(
        "output_q", quantised, _held(scaled.reshape(numbers.shape), quantised.dtype), every
    )
    memory.store("output_s", scales, found, every)


def _quantise_tokens(
    memory: KernelMemory, *, rows: torch.Tensor, quantised: torch.Tensor, scales: torch.Tensor
) -> None:
    every = np.arange(len(rows))
    numbers = memory.numbers("input", rows, every).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = _largest_of(numbers) / np.float32(FP8_LARGEST)
        scaled = numbers * (np.float32(1.0) / found)[:, None]
    memory.store("output_q", quantised, _held(scaled, quantised.dtype), every)
    memory.store("output_s", scales, found[:, None], every)


def _quantise_by_one(
    memory: KernelMemory,
    *,
    numbers: torch.Tensor,
    quantised: torch.Tensor,
    scale: torch.Tensor,
    finds: bool,
) -> None:
    every = np.arange(len(numbers))
    if finds:
        given = memory.numbers("input", numbers, every).astype(np.float32)
        found = _largest_of(given) / np.float32(FP8_LARGEST)
        held = memory.numbers("output_s", scale, np.arange(1)).astype(np.float32)
        memory.store("output_s", scale, np.fmax(held, found), np.arange(1))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = by_inverse(numbers, scale)
    memory.store("output_q", quantised, _held(scaled, quantised.dtype), every)


_BY_GROUPS = ModelKernel("per_token_group_quant", _quantise_groups, _GROUPS)
_BY_TOKENS = ModelKernel("per_token_quant_fp8", _quantise_tokens, _TOKENS)
_BY_ONE = ModelKernel("per_tensor_quant_fp8", _quantise_by_one, _TENSOR)
