"""Selection of the best blocks of keys for each row and head: MiniMax's sparse attention.

Source: sglang 0.5.16 to 0.5.23, csrc/minimax/minimax_decode_topk.cuh (`minimax_decode_topk`). A row
with no more blocks than are selected has all of them, and its scores are not read. Selected blocks
ascend, as they do from 0.5.17 on; 0.5.16 promises no order, and the Triton kernel that attends to
them needs none. Of equal scores the lower block is taken, as by the kernel in rows of at most 128
blocks (`kSmallThreshold`); which one it takes in longer rows is open. A score that is NaN counts as
-inf. Left out are the variant that looks pages up, and the most blocks that a row may have: 4096,
from 0.5.22 on 16384.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["select_blocks"]

_BLOCK_TOPK_SOURCE = "sglang 0.5.16 to 0.5.23, csrc/minimax/minimax_decode_topk.cuh"
_MOST_BLOCKS = 64
"""`kMaxTopK` from 0.5.17 on; 0.5.16 has no limit. Engines select more than 32 by Triton."""


def select_blocks(
    score: Tensor3,
    seq_lens: Tensor1,
    topk_idx: Tensor3,
    block_size: int,
    topk: int,
    *,
    lens_dtype: torch.dtype | None = None,
) -> None:
    """Write the places of each row's best blocks, -1 behind them.

    Args:
        score: float32 [heads, B, blocks]; read in rows with more blocks than `topk`.
        seq_lens: int32 or int64 [B] keys of each row; blocks behind the columns of `score` are not
            looked at.
        topk_idx: int32 [heads, B, topk] the output.
        block_size: keys of a block.
        lens_dtype: of `seq_lens`, for which the kernel is compiled; None for int32 or int64.

    Raises:
        KernelRefused: the real host code refuses such a call: a `topk` above 64 from 0.5.17 on,
            and one of 0 from 0.5.21 on.
    """
    call = Call("minimax_decode_topk", _BLOCK_TOPK_SOURCE)
    call.needs_dtype("score", score, torch.float32)
    heads, rows = score.shape[:2]
    lens = (torch.int32, torch.int64) if lens_dtype is None else (lens_dtype,)
    call.needs_dtype("seq_lens", seq_lens, *lens)
    call.needs_shape("seq_lens", seq_lens, rows)
    call.needs_dtype("topk_idx", topk_idx, torch.int32)
    call.needs_shape("topk_idx", topk_idx, heads, rows, topk)
    for name, tensor in (("score", score), ("seq_lens", seq_lens), ("topk_idx", topk_idx)):
        call.needs_contiguous(name, tensor)
    call.needs(block_size > 0, "block_size must be > 0", block_size)
    call.needs(1 <= topk <= _MOST_BLOCKS, f"topk must be in [1, {_MOST_BLOCKS}]", topk)
    if heads and rows:
        launch(
            _BLOCK_TOPK, score=score, seq_lens=seq_lens, topk_idx=topk_idx, block_size=block_size
        )


def _run_block_topk(
    memory: KernelMemory,
    *,
    score: torch.Tensor,
    seq_lens: torch.Tensor,
    topk_idx: torch.Tensor,
    block_size: int,
) -> None:
    heads, rows, topk = topk_idx.shape
    blocks = np.minimum(-(-memory.ints(seq_lens) // block_size), score.shape[2])
    chosen = np.full((heads * rows, topk), -1, dtype=np.int64)
    for at in range(heads * rows):
        head, row = divmod(at, rows)
        places = np.arange(max(0, int(blocks[row])))
        if len(places) > topk:
            where = np.full_like(places, head), np.full_like(places, row), places
            read = memory.numbers("score", score, *where)
            read = np.where(np.isnan(read), -np.inf, read)
            places = np.sort(np.argsort(-read, kind="stable")[:topk])
        chosen[at, : len(places)] = places
    every = np.arange(heads * rows)
    memory.store("topk_idx", topk_idx, chosen, every // rows, every % rows)


_BLOCK_TOPK = ModelKernel("minimax_decode_topk", _run_block_topk, _BLOCK_TOPK_SOURCE)
