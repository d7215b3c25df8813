"""DeepSeek V4.1's compressors, which keep a key of each token, or of each two.

Source: sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/c1.cuh and c2.cuh. One launch makes a key of what
a token or two of them leave, and writes it to its slot. The first token of two is found in a ring
of its request; in a verify a row's tokens are drafts that follow one another, and all but the first
find it in the row before. Left out are what a key goes through before it is written, its norm, its
rotation and its rounding to FP4: the model adds the leading columns of a row of the table of
rotations, so that the position still decides. A table may have more columns than the kernel's 64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["compress_pairs", "compress_tokens"]

_TOKENS_SOURCE = "sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/c1.cuh"
_PAIRS_SOURCE = "sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/c2.cuh"
_INTS = (torch.int32, torch.int64)


def compress_tokens(
    kv_input: torch.Tensor,
    kv_output: torch.Tensor,
    norm_weight: torch.Tensor,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    kvcache: torch.Tensor,
    eps: float,
    *,
    width: int,
    page_size: int,
    rotated: int | None = None,
) -> None:
    """Write the key of each token to its slot, and what it was before its rotation to `kv_output`.

    Args:
        kv_input, kv_output: bfloat16 [N, D]; norm_weight: bfloat16 [D].
        freqs_cis: float32 [positions, R]; positions: int [N].
        out_loc: int [N] slots; a row with 0 or less is padding, and writes no key.
        kvcache: [pages, bytes], here rows of numbers one after the other.
        width: D; page_size: slots of a page; rotated: R. The kernel is compiled for these; None for
            any R.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("c1_decode_norm_rope_store", _TOKENS_SOURCE)
    _check(call, kv_input, kv_output, norm_weight, freqs_cis, positions, kvcache, width, width,
           rotated)  # fmt: skip
    call.needs_dtype("kv_input", kv_input, torch.bfloat16)
    call.needs_dtype("out_loc", out_loc, *_INTS)
    call.needs_shape("out_loc", out_loc, kv_input.shape[0])
    if kv_input.shape[0]:
        launch(
            _TOKENS,
            kv_input=kv_input,
            kv_output=kv_output,
            freqs_cis=freqs_cis,
            positions=positions,
            out_loc=out_loc,
            kvcache=kvcache,
            page_size=page_size,
        )


def compress_pairs(
    kv_input: torch.Tensor,
    kv_state: torch.Tensor,
    kv_output: torch.Tensor,
    norm_weight: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    raw_out_loc: torch.Tensor,
    eps: float,
    freqs_cis: torch.Tensor,
    kvcache: torch.Tensor,
    ring_size: int,
    draft_len: int,
    *,
    width: int,
    page_size: int,
    rotated: int | None = None,
) -> None:
    """Keep the state of each first token of two, and write the key that each second one completes.

    Args:
        kv_input: float32 [N, 2 * D] value and score of each token.
        kv_state: float32 [states, 2 * D]; that of a token lies at its request's row of the pool
            times `ring_size`, plus its position in the ring.
        kv_output: bfloat16 [N, D], written where a key is completed; norm_weight: bfloat16 [D].
        positions: int [N]; req: int64 [N] rows of the request pool.
        raw_out_loc: int [N] slots of the tokens, twice the key's; a row with 0 is padding, and
            writes nothing, but its state is looked up all the same.
        freqs_cis: float32 [positions, R]; the row of the first token's position counts.
        kvcache: [pages, bytes], here rows of numbers one after the other.
        draft_len: tokens of each row, one after the other; the ring must be larger.
        width: D; page_size: slots of a page; rotated: R. The kernel is compiled for these; None for
            any R.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("c2_decode_norm_rope_store", _PAIRS_SOURCE)
    _check(call, kv_input, kv_output, norm_weight, freqs_cis, positions, kvcache, width, 2 * width,
           rotated)  # fmt: skip
    rows = kv_input.shape[0]
    for name, tensor in (("kv_input", kv_input), ("kv_state", kv_state)):
        call.needs_dtype(name, tensor, torch.float32)
        call.needs_contiguous(name, tensor)
    call.needs_shape("kv_state", kv_state, None, 2 * width)
    call.needs_dtype("req", req, torch.int64)
    call.needs_dtype("raw_out_loc", raw_out_loc, *_INTS)
    for name, tensor in (("req", req), ("raw_out_loc", raw_out_loc)):
        call.needs_shape(name, tensor, rows)
        call.needs_contiguous(name, tensor)
    call.needs(ring_size > 0, "ring_size must be positive", ring_size)
    call.needs(draft_len >= 1, "draft_len must be positive", draft_len)
    if draft_len > 1 and rows:
        call.needs(rows % draft_len == 0, f"rows must come by {draft_len}", rows)
        call.needs(ring_size > draft_len, f"ring_size must exceed {draft_len}", ring_size)
    if rows:
        launch(
            _PAIRS,
            kv_input=kv_input,
            kv_state=kv_state,
            kv_output=kv_output,
            positions=positions,
            req=req,
            raw_out_loc=raw_out_loc,
            freqs_cis=freqs_cis,
            kvcache=kvcache,
            ring_size=ring_size,
            draft_len=draft_len,
            page_size=page_size,
        )


def _check(
    call: Call,
    kv_input: torch.Tensor,
    kv_output: torch.Tensor,
    norm_weight: torch.Tensor,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    kvcache: torch.Tensor,
    width: int,
    given: int,
    rotated: int | None,
) -> None:
    """What both kernels ask of the arguments that they share.

    Args:
        given: columns of `kv_input`.
    """
    call.needs_shape("kv_input", kv_input, None, given)
    rows = kv_input.shape[0]
    call.needs_shape("kv_output", kv_output, rows, width)
    call.needs_shape("norm_weight", norm_weight, width)
    for name, tensor in (("kv_output", kv_output), ("norm_weight", norm_weight)):
        call.needs_dtype(name, tensor, torch.bfloat16)
    call.needs_dtype("freqs_cis", freqs_cis, torch.float32)
    call.needs_shape("freqs_cis", freqs_cis, None, rotated)
    columns = freqs_cis.shape[1]
    call.needs(columns >= width, f"freqs_cis must have {width} columns", columns)
    call.needs_dtype("positions", positions, *_INTS)
    call.needs_shape("positions", positions, rows)
    call.needs_shape("kvcache", kvcache, None, None)
    for name, tensor in (("kv_input", kv_input), ("positions", positions)):
        call.needs_contiguous(name, tensor)


# ---- the bodies


def _compress_tokens(
    memory: KernelMemory,
    *,
    kv_input: torch.Tensor,
    kv_output: torch.Tensor,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    kvcache: torch.Tensor,
    page_size: int,
) -> None:
    every = np.arange(len(kv_input))
    rows = memory.numbers("kv_input", kv_input, every)
    memory.store("kv_output", kv_output, rows, every)
    slots = memory.ints(out_loc)
    live = np.flatnonzero(slots > 0)
    places = memory.ints(positions)[live]
    _store_entries(memory, kvcache, rows[live], freqs_cis, places, slots[live], page_size)


def _compress_pairs(
    memory: KernelMemory,
    *,
    kv_input: torch.Tensor,
    kv_state: torch.Tensor,
    kv_output: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    raw_out_loc: torch.Tensor,
    freqs_cis: torch.Tensor,
    kvcache: torch.Tensor,
    ring_size: int,
    draft_len: int,
    page_size: int,
) -> None:
    every, places = np.arange(len(kv_input)), memory.ints(positions)
    new = memory.numbers("kv_input", kv_input, every)
    rings = memory.ints(req) * ring_size
    earlier = np.roll(new, 1, axis=0)
    firsts = every[every % draft_len == 0]
    before = rings[firsts] + (places[firsts] - 1) % ring_size
    earlier[firsts] = memory.numbers("kv_state", kv_state, before)
    live = memory.ints(raw_out_loc) != 0
    pending = np.flatnonzero(live & (places % 2 == 0))
    kept = rings[pending] + places[pending] % ring_size
    memory.store("kv_state", kv_state, new[pending], kept)
    whole = np.flatnonzero(live & (places % 2 == 1))
    rows = _pooled(earlier[whole], new[whole])
    memory.store("kv_output", kv_output, rows, whole)
    slots = memory.ints(raw_out_loc)[whole] // 2
    _store_entries(memory, kvcache, rows, freqs_cis, places[whole] - 1, slots, page_size)


def _pooled(
    earlier: npt.NDArray[np.float64], new: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """[n, D] the mean of two values, weighted by the exponentials of their scores."""
    width = new.shape[1] // 2
    both = np.stack((earlier, new), axis=1)
    scores = both[..., width:]
    weights = np.exp(scores - scores.max(1, keepdims=True))
    found: npt.NDArray[np.float64] = (both[..., :width] * weights).sum(1) / weights.sum(1)
    return found


def _store_entries(
    memory: KernelMemory,
    kvcache: torch.Tensor,
    rows: npt.NDArray[np.float64],
    freqs_cis: torch.Tensor,
    places: Ints,
    slots: Ints,
    page_size: int,
) -> None:
    if not len(slots):
        return
    width = rows.shape[1]
    rotated = rows + memory.numbers("freqs_cis", freqs_cis, places)[:, :width]
    by_slot = kvcache[:, : page_size * width].unflatten(1, (page_size, width))
    memory.store("kvcache", by_slot, rotated, slots // page_size, slots % page_size)


_TOKENS = ModelKernel("c1_decode_norm_rope_store", _compress_tokens, _TOKENS_SOURCE)
_PAIRS = ModelKernel("c2_decode_norm_rope_store", _compress_pairs, _PAIRS_SOURCE)
