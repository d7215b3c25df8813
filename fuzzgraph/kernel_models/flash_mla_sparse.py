"""FlashMLA's sparse kernels: each query attends to the keys whose places it is given.

Source: FlashMLA 02fe0d0 (2026), flash_mla/flash_mla_interface.py. Decoding may read a second cache
beside the first, each with its own places; a sink takes weight. The first decode with a
`FlashMLASchedMeta` makes the plan, later ones follow it. Left out is FP8: a row of the cache has
656 or 584 bytes there, with scales behind its values, and is here a row of numbers in the query's
dtype. So the sizes of bytes and what FP8 rounds are not held against a caller.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor3, Tensor4
from fuzzgraph.kernel_models.attention import Row, Softmax, attend
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flash_mla import FlashMLASchedMeta
from fuzzgraph.kernel_models.latent import latent, needs_one_width
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["flash_mla_sparse_fwd", "flash_mla_sparse_with_kvcache"]

_SOURCE = "FlashMLA 02fe0d0, flash_mla/flash_mla_interface.py"
# The arithmetic in float32 does not exist. It is let through, as in `flash_attention`.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_BLOCK = 64
"""Keys of a block, in which the plan shares a row's work out."""


def flash_mla_sparse_with_kvcache(
    q: Tensor4,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None = None,
    cache_seqlens: torch.Tensor | None = None,
    head_dim_v: int = 512,
    tile_scheduler_metadata: FlashMLASchedMeta | None = None,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`flash_mla_with_kvcache` with `indices`: attention over the places of one cache or two.

    Args:
        q: [B, L, Hq, D].
        k_cache: [pages, page, 1, D], the value in front.
        block_table, cache_seqlens: not read.
        tile_scheduler_metadata: the plan; an empty one is made, a full one followed.
        indices: int32 [B, L, topk] place of each key, page by page; -1 is none.
        attn_sink: float32 [Hq] a logit without a value.
        extra_k_cache, extra_indices_in_kvcache: a second cache, and the places in it.
        topk_length, extra_topk_length: int32 [B] entries of each row that count; None for all.

    Returns:
        ([B, L, Hq, Dv], float32 [B, Hq, L] logarithm of the sum without the sink; plus infinity
        without keys).

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: it has arguments that this model does not follow.
    """
    call = Call("flash_mla_with_kvcache", _SOURCE)
    call.leaves_out(others, {"use_legacy": True})
    call.needs(indices is not None, "a sparse call must have indices", indices)
    call.needs(not causal, "causal must be False where indices are given", causal)
    call.needs(
        is_fp8_kvcache, "is_fp8_kvcache must be True where indices are given", is_fp8_kvcache
    )
    call.needs(num_splits is None, "num_splits must be None", num_splits)
    plan = tile_scheduler_metadata
    call.needs(isinstance(plan, FlashMLASchedMeta), "a FlashMLASchedMeta must be given", plan)
    assert indices is not None and isinstance(plan, FlashMLASchedMeta)
    sizes = tuple(q.shape)
    fits = len(sizes) == 4 and sizes[0] > 0
    call.needs(fits, "q must be [B, L, Hq, D], B positive", list(sizes))
    call.needs_dtype("q", q, *_DTYPES)
    call.needs_contiguous_last("q", q)
    _check_part(call, q, head_dim_v, "k_cache", k_cache, "indices", indices, topk_length)
    second = extra_k_cache is not None
    for name, given in (
        ("extra_indices_in_kvcache", extra_indices_in_kvcache is not None),
        ("extra_topk_length", extra_topk_length is not None),
    ):
        call.needs(second or not given, f"{name} needs an extra_k_cache", "None")
    if extra_k_cache is not None:
        call.needs(
            extra_indices_in_kvcache is not None,
            "extra_indices_in_kvcache must be given with extra_k_cache",
            None,
        )
        assert extra_indices_in_kvcache is not None
        _check_part(
            call, q, head_dim_v, "extra_k_cache", extra_k_cache, "extra_indices_in_kvcache",
            extra_indices_in_kvcache, extra_topk_length,
        )  # fmt: skip
    _check_sink(call, attn_sink, sizes[2])
    shapes = (*sizes[:3], *k_cache.shape[1:3], indices.shape[-1])
    if extra_k_cache is not None and extra_indices_in_kvcache is not None:
        shapes = (*shapes, extra_k_cache.shape[1], extra_indices_in_kvcache.shape[-1])
    if plan.config is None:
        plan.config = shapes
    call.needs(plan.config == shapes, f"the plan was made for shapes {plan.config}", shapes)
    if plan.tile_scheduler_metadata is None:
        planned = torch.empty(sizes[0], dtype=torch.int32, device=q.device)
        launch(
            _SPARSE_PLANNER,
            topk_length=topk_length,
            extra_topk_length=extra_topk_length,
            topk=indices.shape[-1],
            extra_topk=extra_indices_in_kvcache.shape[-1] if second else 0,  # type: ignore[union-attr]
            planned=planned,
        )
        plan.tile_scheduler_metadata = planned
    rows, tokens, heads, width = sizes
    out = torch.empty((rows, tokens, heads, head_dim_v), dtype=q.dtype, device=q.device)
    lse = torch.empty((heads, rows * tokens), dtype=torch.float32, device=q.device)
    launch(
        _SPARSE_DECODE,
        q=q.reshape(-1, heads, width),
        k_cache=k_cache,
        indices=indices,
        topk_length=topk_length,
        extra_k_cache=extra_k_cache,
        extra_indices=extra_indices_in_kvcache,
        extra_topk_length=extra_topk_length,
        attn_sink=attn_sink,
        planned=plan.tile_scheduler_metadata,
        softmax_scale=width**-0.5 if softmax_scale is None else softmax_scale,
        out=out.flatten(0, 1),
        lse=lse,
    )
    return out, lse.view(heads, rows, tokens).transpose(0, 1)


def flash_mla_sparse_fwd(
    q: Tensor3,
    kv: Tensor3,
    indices: Tensor3,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of each query over the rows of `kv` that its places name.

    Args:
        q: [T, Hq, D]; kv: [n, 1, D], the value in front.
        indices: int32 [T, 1, topk] rows of `kv`; below 0 or from n on there is none.
        attn_sink: float32 [Hq]; topk_length: int32 [T], as in decoding.

    Returns:
        ([T, Hq, d_v], float32 [T, Hq] largest logits, float32 [T, Hq] logarithms of the sums). The
        model writes the first only: what the others hold is undefined here.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: it has arguments that this model does not follow.
    """
    call = Call("flash_mla_sparse_fwd", _SOURCE)
    call.leaves_out(others, {"use_legacy": True, "return_log2_lse": True, "indexer_topk": 0})
    call.needs(q.dim() == 3 and len(q) > 0, "q must be [T, Hq, D], T positive", list(q.shape))
    call.needs(kv.dim() == 3, "kv must be [n, 1, D]", list(kv.shape))
    call.needs_dtype("q", q, *_DTYPES)
    _check_part(call, q[:, None], d_v, "kv", kv[:, None], "indices", indices, topk_length)
    _check_sink(call, attn_sink, q.shape[1])
    out = torch.empty((*q.shape[:2], d_v), dtype=q.dtype, device=q.device)
    numbers = torch.empty((2, *q.shape[:2]), dtype=torch.float32, device=q.device)
    launch(
        _SPARSE_PREFILL,
        q=q,
        kv=kv,
        indices=indices,
        topk_length=topk_length,
        attn_sink=attn_sink,
        softmax_scale=sm_scale,
        out=out,
    )
    return out, numbers[0], numbers[1]


@reads_only
def _check_part(
    call: Call,
    q: torch.Tensor,
    value: int,
    cache_name: str,
    cache: torch.Tensor,
    name: str,
    indices: torch.Tensor,
    length: torch.Tensor | None,
) -> None:
    """One cache with the places in it and how many of them count, against q [B, L, Hq, D]."""
    call.needs_dtype(cache_name, cache, q.dtype)
    call.needs_contiguous_last(cache_name, cache)
    needs_one_width(call, q.shape[-1], cache.shape[-1], value)
    call.needs(cache.shape[2] == 1, f"{cache_name} must have one head", cache.shape[2])
    call.needs_dtype(name, indices, torch.int32)
    call.needs_contiguous_last(name, indices)
    shape = [*q.shape[:2], indices.shape[-1]]
    call.needs(list(indices.shape) == shape, f"{name} must be {shape}", list(indices.shape))
    if length is not None:
        call.needs_dtype("topk_length", length, torch.int32)
        rule = f"topk_length of {name} must be contiguous [{len(q)}]"
        fits = list(length.shape) == [len(q)] and length.is_contiguous()
        call.needs(fits, rule, f"{list(length.shape)}, strides {list(length.stride())}")


@reads_only
def _check_sink(call: Call, sink: torch.Tensor | None, heads: int) -> None:
    call.needs_dtype("attn_sink", sink, torch.float32)
    if sink is not None:
        call.needs(list(sink.shape) == [heads], f"attn_sink must be [{heads}]", list(sink.shape))


def _counts(memory: KernelMemory, length: torch.Tensor | None, rows: int, topk: int) -> Ints:
    """Entries of each row that count; more than a row has is a misuse and is followed."""
    if length is None:
        return np.full(rows, topk)
    found = memory.ints(length)
    if found.max(initial=0) > topk:
        rule = f"topk_length must not exceed the {topk} places of a row"
        memory.misused("topk_length", rule, f"{found.max()} at row {int(found.argmax())}")
    return np.maximum(found, 0)


def _blocks(counts: Ints) -> Ints:
    return -(-counts // _BLOCK)


def _plan_sparse(
    memory: KernelMemory,
    *,
    topk_length: torch.Tensor | None,
    extra_topk_length: torch.Tensor | None,
    topk: int,
    extra_topk: int,
    planned: torch.Tensor,
) -> None:
    blocks = _blocks(_counts(memory, topk_length, len(planned), topk))
    if extra_topk:
        blocks = blocks + _blocks(_counts(memory, extra_topk_length, len(planned), extra_topk))
    memory.store("plan", planned, torch.from_numpy(blocks), np.arange(len(planned)))


def _places(
    memory: KernelMemory, name: str, indices: torch.Tensor, row: int, token: int, count: int
) -> Ints:
    """The places of one query's keys, those of no key left out."""
    columns = np.arange(count)
    at = np.full_like(columns, row), np.full_like(columns, token), columns
    found = memory.entries(name, indices, *at)
    return found[found >= 0]


def _sparse_decode(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None,
    extra_k_cache: torch.Tensor | None,
    extra_indices: torch.Tensor | None,
    extra_topk_length: torch.Tensor | None,
    attn_sink: torch.Tensor | None,
    planned: torch.Tensor,
    softmax_scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    rows, tokens, topk = indices.shape
    left = memory.ints(planned) * _BLOCK
    parts = []
    for name, cache, named, places, length in (
        ("k_cache", k_cache, "indices", indices, topk_length),
        (
            "extra_k_cache",
            extra_k_cache,
            "extra_indices_in_kvcache",
            extra_indices,
            extra_topk_length,
        ),
    ):
        if cache is None or places is None:
            continue
        counts = _counts(memory, length, rows, places.shape[-1])
        # A plan that is too short leaves the last blocks out; one that is too long changes nothing.
        counts = np.minimum(counts, np.maximum(left, 0))
        left = left - _BLOCK * _blocks(counts)
        seen = []
        for token in range(rows * tokens):
            row = token // tokens
            keys = _places(memory, named, places, row, token % tokens, int(counts[row]))
            seen.append(Row(token, 1, (keys // cache.shape[1], keys % cache.shape[1])))
        parts.append(_attended(memory, q, cache, seen, softmax_scale, out.shape[-1], name))
    result, sums = _merged(parts)
    whole, blind = torch.from_numpy(_behind_sink(result, sums, attn_sink)), sums == -np.inf
    everyone = np.arange(rows * tokens)
    memory.store("out", out, whole, everyone)
    given = torch.from_numpy(np.where(blind, math.inf, sums).T.copy())
    memory.store("lse", lse.transpose(0, 1), given, everyone)


def _attended(
    memory: KernelMemory,
    q: torch.Tensor,
    cache: torch.Tensor,
    rows: list[Row],
    scale: float,
    value: int,
    name: str,
) -> tuple[Any, Any]:
    """float64 ([T, Hq, Dv] outputs, [Hq, T] logarithms of the sums) over one cache."""
    kept = torch.zeros((*q.shape[:2], value), dtype=torch.float64)
    sums = torch.full((q.shape[1], len(q)), -math.inf, dtype=torch.float64)
    attend(memory, q, latent(cache, value, name), rows, Softmax(scale), kept, sums)
    return kept.numpy(), sums.numpy()


def _merged(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Attention over all parts' keys, of attention over each."""
    if len(parts) == 1:
        return parts[0]
    sums = np.logaddexp(parts[0][1], parts[1][1])
    result = 0.0
    for kept, each in parts:
        share = np.where(sums == -np.inf, 0.0, np.exp(each - np.where(sums == -np.inf, 0.0, sums)))
        result = result + kept * share.T[..., None]
    return result, sums


def _behind_sink(result: Any, sums: Any, sink: torch.Tensor | None) -> Any:
    """Outputs times exp(lse) / (exp(lse) + exp(sink)); zeros without keys."""
    if sink is None:
        return result
    logits = as_numbers(sink)[:, None]
    both = np.logaddexp(sums, logits)
    share = np.where(np.isfinite(both), np.exp(sums - np.where(np.isfinite(both), both, 0.0)), 0.0)
    return result * share.T[..., None]


def _sparse_prefill(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None,
    attn_sink: torch.Tensor | None,
    softmax_scale: float,
    out: torch.Tensor,
) -> None:
    counts = _counts(memory, topk_length, len(q), indices.shape[-1])
    seen = []
    for token in range(len(q)):
        keys = _places(memory, "indices", indices, token, 0, int(counts[token]))
        seen.append(Row(token, 1, (keys[keys < len(kv)],)))
    result, sums = _attended(memory, q, kv, seen, softmax_scale, out.shape[-1], "kv")
    whole = torch.from_numpy(np.ascontiguousarray(_behind_sink(result, sums, attn_sink)))
    memory.store("out", out, whole, np.arange(len(q)))


_SPARSE_PLANNER = ModelKernel("get_mla_metadata", _plan_sparse, _SOURCE, plans=("planned",))
_SPARSE_DECODE = ModelKernel("flash_mla_with_kvcache", _sparse_decode, _SOURCE, plans=("planned",))
_SPARSE_PREFILL = ModelKernel("flash_mla_sparse_fwd", _sparse_prefill, _SOURCE)
