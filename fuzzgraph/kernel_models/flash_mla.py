"""FlashMLA's decoding over pages: the plan of tiles, and attention that follows it.

Source: FlashMLA 1408756 (2025-10-01), flash_mla_interface.py, csrc/pybind.cpp,
csrc/smxx/get_mla_metadata.cu, csrc/sm90/decode/dense/splitkv_mla.cu and csrc/smxx/mla_combine.cu.
That is the interface with a plan in tensors, which later versions keep as their legacy side. Left
out are FP8 caches in the dense form, which the source refuses on every architecture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor4
from fuzzgraph.kernel_models.attention import Row, Softmax, attend
from fuzzgraph.kernel_models.checks import Call, check_offsets
from fuzzgraph.kernel_models.latent import (
    as_wide_as_rows,
    hidden_behind,
    latent,
    needs_one_width,
    paged,
)
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["FlashMLASchedMeta", "flash_mla_with_kvcache", "get_mla_metadata"]

_SOURCE = "FlashMLA 1408756, csrc/pybind.cpp"
# The arithmetic in float32 does not exist. It is let through, as in `flash_attention`.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FLASH_MLA_PAGE = 64
"""Tokens of a page, and of a block that the plan counts in."""
_ROW_OVERHEAD = 5
"""Blocks that a row costs beyond its own, as the planner reckons."""
_PART_COLUMNS = 8
"""Of a part in the plan: first row, its first block, last row, its end block, its first split; the
others are padding."""
_HOPPER = 132
"""Multiprocessors where torch knows of no device."""


@dataclass
class FlashMLASchedMeta:
    """What later versions keep a plan in; their legacy kernels take the two tensors out of it."""

    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None
    config: tuple[int, ...] | None = None
    """Shapes of the sparse call that made the plan; others must not use it."""


# ---- the plan


def get_mla_metadata(
    cache_seqlens: Tensor1,
    num_q_tokens_per_head_k: int,
    num_heads_k: int,
    num_heads_q: int | None = None,
    is_fp8_kvcache: bool = False,
    topk: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Share the blocks of all rows out among the multiprocessors.

    Args:
        cache_seqlens: int32 [B] keys of each row.
        num_q_tokens_per_head_k: query tokens of a row times its query heads for each key head.

    Returns:
        (int32 [parts, 8] tiles of each part, int32 [B + 1] first split of each row).
    """
    call = Call("get_mla_metadata", _SOURCE)
    call.leaves_out({"topk": topk, **others}, {"use_legacy": True})
    call.needs_dtype("cache_seqlens", cache_seqlens, torch.int32)
    call.needs(cache_seqlens.is_contiguous(), "cache_seqlens must be contiguous", "strides")
    call.needs(not is_fp8_kvcache, "a dense cache must not be fp8", is_fp8_kvcache)
    # The host divides by both.
    for name, size in (
        ("num_q_tokens_per_head_k", num_q_tokens_per_head_k), ("num_heads_k", num_heads_k)
    ):  # fmt: skip
        call.needs(size > 0, f"{name} must be positive", size)
    parts = _multiprocessors(cache_seqlens.device) // num_heads_k
    parts = max(parts // -(-num_q_tokens_per_head_k // 64), 1)  # 64 query rows for each of them
    device, rows = cache_seqlens.device, len(cache_seqlens)
    tiles = torch.empty((parts, _PART_COLUMNS), dtype=torch.int32, device=device)
    splits = torch.empty(rows + 1, dtype=torch.int32, device=device)
    launch(_PLANNER, cache_seqlens=cache_seqlens, tiles=tiles, num_splits=splits)
    return tiles, splits


def _multiprocessors(device: torch.device) -> int:
    try:
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    except (AssertionError, RuntimeError, ValueError):
        return _HOPPER


def _plan_tiles(
    memory: KernelMemory,
    *,
    cache_seqlens: torch.Tensor,
    tiles: torch.Tensor,
    num_splits: torch.Tensor,
) -> None:
    lens = memory.ints(cache_seqlens)
    blocks = np.maximum(lens - 1, 0) // FLASH_MLA_PAGE + 1
    payload = -(-int((blocks + _ROW_OVERHEAD).sum()) // len(tiles)) + _ROW_OVERHEAD
    parts, firsts = [], [0]
    row = block = split = 0
    for _ in range(len(tiles)):
        begin = (row, block)
        first_split, left = split, payload
        while row < len(lens):
            rest = int(blocks[row]) - block
            if left < rest + _ROW_OVERHEAD:
                if left > _ROW_OVERHEAD:
                    block += left - _ROW_OVERHEAD
                    split += 1
                break
            firsts.append(firsts[-1] + split + 1)
            left -= rest + _ROW_OVERHEAD
            row, block, split = row + 1, 0, 0
        last = row if block else row - 1
        end = block if block else int(blocks[last]) if last >= 0 and lens[last] else 0
        parts.append((*begin, last, end, first_split))
    place = np.arange(len(parts))
    memory.store("tile_scheduler_metadata", tiles[:, :5], torch.tensor(parts), place)
    memory.store("num_splits", num_splits, torch.tensor(firsts), np.arange(len(firsts)))


_PLANNER = ModelKernel(
    "get_mla_metadata",
    _plan_tiles,
    "FlashMLA 1408756, get_mla_metadata.cu",
    plans=("tiles",),
)


# ---- attention


def flash_mla_with_kvcache(
    q: Tensor4,
    k_cache: Tensor4,
    block_table: Tensor2,
    cache_seqlens: Tensor1,
    head_dim_v: int,
    tile_scheduler_metadata: torch.Tensor | FlashMLASchedMeta,
    num_splits: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latent attention of each row's last tokens over its pages, part by part of the plan.

    Args:
        q: [B, L, Hq, D].
        k_cache: [pages, 64, Hkv, D]; the first `head_dim_v` columns are values.
        block_table: int32 [B, width].
        cache_seqlens: int32 [B] keys of each row.
        tile_scheduler_metadata, num_splits: what `get_mla_metadata` gave.

    Returns:
        ([B, L, Hq, head_dim_v], float32 [B, Hq, L] natural lse, infinity without keys).

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("flash_mla_with_kvcache", _SOURCE)
    call.leaves_out(others, {"is_fp8_kvcache": False, "use_legacy": True})
    if isinstance(tile_scheduler_metadata, FlashMLASchedMeta):
        num_splits = tile_scheduler_metadata.num_splits
        tiles = tile_scheduler_metadata.tile_scheduler_metadata
    else:
        tiles = tile_scheduler_metadata
    assert tiles is not None and num_splits is not None, "a plan is made before it is used"
    _check_dense(call, q, k_cache, block_table, cache_seqlens, head_dim_v, tiles, num_splits)
    rows, tokens, heads, _ = q.shape
    out = torch.empty((rows, tokens, heads, head_dim_v), dtype=q.dtype, device=q.device)
    lse = torch.empty((heads, rows * tokens), dtype=torch.float32, device=q.device)
    launch(
        _DENSE,
        q=q.reshape(-1, heads, q.shape[-1]),
        k_cache=k_cache,
        block_table=block_table,
        cache_seqlens=cache_seqlens,
        tiles=tiles,
        num_splits=num_splits,
        softmax_scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        causal=causal and tokens > 1,  # pybind.cpp: one token sees all keys
        out=out.flatten(0, 1),
        lse=lse,
    )
    return out, lse.view(heads, rows, tokens).transpose(0, 1)


def _check_dense(
    call: Call,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    tiles: torch.Tensor,
    num_splits: torch.Tensor,
) -> None:
    call.needs_dtype("q", q, *_DTYPES)
    call.needs_dtype("k_cache", k_cache, q.dtype)
    for name, tensor in (
        ("cache_seqlens", cache_seqlens),
        ("block_table", block_table),
        ("tile_scheduler_metadata", tiles),
        ("num_splits", num_splits),
    ):
        call.needs_dtype(name, tensor, torch.int32)
    for name, tensor in (("q", q), ("k_cache", k_cache), ("block_table", block_table)):
        call.needs_contiguous_last(name, tensor)
    for name, tensor in (
        ("cache_seqlens", cache_seqlens),
        ("tile_scheduler_metadata", tiles),
        ("num_splits", num_splits),
    ):
        call.needs_contiguous(name, tensor)
    call.needs(q.dim() == 4 and len(q) > 0, "q must be [B, L, Hq, D], B positive", list(q.shape))
    rows = len(q)
    needs_one_width(call, q.shape[-1], k_cache.shape[-1], head_dim_v)
    call.needs(
        k_cache.shape[1] == FLASH_MLA_PAGE,
        f"pages must have {FLASH_MLA_PAGE} tokens",
        k_cache.shape[1],
    )
    call.needs(
        q.shape[2] % k_cache.shape[2] == 0,
        f"query heads must be a multiple of the {k_cache.shape[2]} key heads",
        q.shape[2],
    )
    for name, tensor, shape in (
        ("cache_seqlens", cache_seqlens, [rows]),
        ("block_table", block_table, [rows, *block_table.shape[1:2]]),
        ("tile_scheduler_metadata", tiles, [*tiles.shape[:1], _PART_COLUMNS]),
        ("num_splits", num_splits, [rows + 1]),
    ):
        call.needs(list(tensor.shape) == shape, f"{name} must be {shape}", list(tensor.shape))


@dataclass(frozen=True, slots=True)
class _TilePiece:
    """Blocks of one row that a part of the plan computes."""

    row: int
    split: int
    start: int
    stop: int


def _decode_by_tiles(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    tiles: torch.Tensor,
    num_splits: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    block_table = as_wide_as_rows(block_table)
    lens = np.maximum(memory.ints(cache_seqlens), 0)
    splits = memory.ints(num_splits)
    check_offsets(memory, "num_splits", splits, len(lens) + len(tiles))
    pieces = _tile_pieces(memory, memory.ints(tiles), lens, block_table.shape[1], causal)
    tokens = len(q) // len(lens)
    rows = []
    for row, group in _tile_results(memory, pieces, splits, len(lens)):
        length = int(lens[row])
        positions = [_tile_positions(memory, block_table, piece, length) for piece in group]
        keys = np.concatenate(positions) if positions else np.zeros(0, np.int64)
        hidden = hidden_behind(keys, tokens, length) if causal else None
        places = paged(memory, "block_table", block_table, row, keys, FLASH_MLA_PAGE)
        rows.append(Row(row * tokens, tokens, places, hidden))
    cache = latent(k_cache, out.shape[-1], "k_cache")
    attend(memory, q, cache, rows, Softmax(softmax_scale), out, lse)
    blind = [row.first + np.flatnonzero(_tokens_without_keys(row)) for row in rows]
    if blind:
        tokens_left = np.concatenate(blind)
        # splitkv_mla.cu: the logarithm of a sum without terms is plus infinity
        values = torch.full((len(tokens_left), lse.shape[0]), math.inf)
        memory.store("lse", lse.transpose(0, 1), values, tokens_left)


def _tokens_without_keys(row: Row) -> Any:
    if not len(row.keys[0]):
        return np.ones(row.tokens, dtype=bool)
    return np.zeros(row.tokens, dtype=bool) if row.hidden is None else row.hidden.all(1)


def _tile_pieces(
    memory: KernelMemory, tiles: Ints, lens: Ints, width: int, causal: bool
) -> list[_TilePiece]:
    """What the parts compute, in their order; a part that begins behind the batch has nothing."""
    found = []
    for part, (begin, first_block, last, end_block, split) in enumerate(tiles[:, :5].tolist()):
        if begin >= len(lens):
            continue
        if begin < 0 or last >= len(lens):
            rule = f"tile_scheduler_metadata must name rows of the batch of {len(lens)}"
            memory.misused(
                "tile_scheduler_metadata", rule, f"rows {begin} to {last} in part {part}"
            )
        for row in range(max(begin, 0), min(last, len(lens) - 1) + 1):
            start = first_block if row == begin else 0
            whole = -(-int(lens[row]) // FLASH_MLA_PAGE)
            stop = end_block if row == last else whole
            if start < 0 or stop > max(width, whole):
                rule = f"tile_scheduler_metadata must name blocks of a table with {width} columns"
                got = f"blocks {start} to {stop} of row {row} in part {part}"
                memory.misused("tile_scheduler_metadata", rule, got)
                start, stop = max(start, 0), min(stop, max(width, whole))
            stop = min(stop, whole) if causal else stop
            found.append(_TilePiece(row, split if row == begin else 0, start, stop))
    return found


def _tile_results(
    memory: KernelMemory, pieces: list[_TilePiece], splits: Ints, rows: int
) -> list[tuple[int, list[_TilePiece]]]:
    """(row, the pieces that its result is made of) for every result that is written."""
    written = []
    partial: dict[int, _TilePiece] = {}
    for piece in pieces:
        if splits[piece.row + 1] - splits[piece.row] == 1:
            written.append((piece.row, [piece]))
        else:
            partial[int(splits[piece.row]) + piece.split] = piece
    for row in range(rows):
        low, high = int(splits[row]), int(splits[row + 1])
        if high - low == 1:
            continue
        group = [partial.get(split) for split in range(low, min(high, low + len(pieces) + 1))]
        own = [piece for piece in group if piece is not None and piece.row == row]
        if len(own) < len(group):
            # The rest is uninitialised scratch memory or another row's, and so is the result.
            rule = "num_splits must count the parts that compute each row"
            memory.misused("num_splits", rule, f"splits {low} to {high} for row {row}")
            continue
        written.append((row, own))
    return written


def _tile_positions(
    memory: KernelMemory, block_table: torch.Tensor, piece: _TilePiece, length: int
) -> Ints:
    """Positions of a piece's keys; blocks behind the row's end are looked up as well."""
    behind = np.arange(max(piece.start, -(-length // FLASH_MLA_PAGE)), piece.stop)
    if len(behind):
        memory.entries("block_table", block_table, np.full_like(behind, piece.row), behind)
    return np.arange(piece.start * FLASH_MLA_PAGE, min(piece.stop * FLASH_MLA_PAGE, length))


_DENSE = ModelKernel(
    "flash_mla_with_kvcache",
    _decode_by_tiles,
    "FlashMLA 1408756, splitkv_mla.cu and mla_combine.cu",
    plans=("tiles",),
)
