"""DeepGEMM's scores of an indexer over a paged cache of FP8 or FP4 keys, and their schedule.

Source: DeepGEMM 54e2261 (June 2026), csrc/apis/attention.hpp and
deep_gemm/scheduler/sm90_paged_mqa_logits.cuh. Keys of a row are cut into splits, query tokens into
atoms of one or two, and all splits of all atoms are shared out evenly: an entry of the schedule
says with which atom and which of its splits a multiprocessor begins, one entry more than there are
of these. It ends where the next one begins, and never does if its walk does not come by there, as
under the schedule of longer rows. Left out are bfloat16 scores, rows of several lengths that
`indices` names, and for which numbers of heads and columns the kernel is compiled. FP4 has a
Blackwell GPU alone, whose schedule has another layout, which nobody but the kernel reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.arguments import Tensor2, Tensor4
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import SCALE_BYTES, from_bytes, pages_of_rows
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers
from fuzzgraph.kernel_models.mxfp4 import FP4_SCALE_BYTES, fp4_numbers, fp4_pages, scale_bytes
from fuzzgraph.kernel_models.reading import reads_only

__all__ = [
    "fp8_fp4_paged_mqa_logits",
    "fp8_paged_mqa_logits",
    "get_num_sms",
    "get_paged_mqa_logits_metadata",
]

_MQA_SOURCE = "DeepGEMM 54e2261, csrc/apis/attention.hpp"
_MULTIPROCESSORS = 32
"""Few, and no fewer than rows of a case: a caller may split a call with more rows than these."""
_MQA_PAGE = 64
_MQA_SPLIT = 256
"""Keys of a split, and a multiple of the columns that the scores have in memory."""


def get_num_sms() -> int:
    """Multiprocessors among which work is shared out."""
    return _MULTIPROCESSORS


def get_paged_mqa_logits_metadata(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: Any = None
) -> torch.Tensor:
    """Where each multiprocessor begins.

    Args:
        context_lens: int32 [B] or [B, next_n] keys of each query token; the last of a row counts.
        block_kv: keys of a page; num_sms: multiprocessors.

    Returns:
        int32 [num_sms + 1, 2] atom and split.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("get_paged_mqa_logits_metadata", _MQA_SOURCE)
    call.leaves_out({"indices": indices}, {})
    _check_lengths(call, context_lens)
    call.needs(block_kv == _MQA_PAGE, f"block_kv must be {_MQA_PAGE}", block_kv)
    call.needs(num_sms > 0, "num_sms must be positive", num_sms)
    schedule = torch.empty((num_sms + 1, 2), dtype=torch.int32, device=context_lens.device)
    launch(_SCHEDULER, context_lens=context_lens, schedule=schedule)
    return schedule


def fp8_paged_mqa_logits(
    q: Tensor4,
    fused_kv_cache: Tensor4,
    weights: Tensor2,
    context_lens: torch.Tensor,
    block_table: Tensor2,
    schedule_meta: Tensor2,
    max_context_len: int,
    clean_logits: bool = False,
    **others: Any,
) -> torch.Tensor:
    """The weighted sum over heads of each key's products with a query, below 0 taken for 0.

    Args:
        q: fp8 [B, next_n, heads, D].
        fused_kv_cache: uint8 [pages, 64, 1, D + 4] the values of a page, behind them its scales.
        weights: float32 [B * next_n, heads].
        context_lens: int32 [B] or [B, next_n]; block_table: int32 [B, pages of a row].
        schedule_meta: of `get_paged_mqa_logits_metadata`; scores that it leaves out are not made.
        max_context_len: columns of the scores.
        clean_logits: not followed; what lies behind a row's keys is undefined.

    Returns:
        float32 [B * next_n, max_context_len].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: it has arguments that this model does not follow.
    """
    call = Call("fp8_paged_mqa_logits", _MQA_SOURCE)
    call.leaves_out({"clean_logits": clean_logits, **others}, {"clean_logits": False})
    batch, tokens, heads, width = q.shape
    call.needs_dtype("q", q, torch.float8_e4m3fn)
    call.needs_contiguous("q", q)
    _check_cache(call, fused_kv_cache, width + SCALE_BYTES)
    _check_rows(call, weights, batch * tokens, heads)
    call.needs_contiguous("weights", weights)
    _check_lengths(call, context_lens)
    shape = (batch,) if context_lens.dim() == 1 else (batch, tokens)
    call.needs_shape("context_lens", context_lens, *shape)
    _check_plan(call, block_table, schedule_meta, batch)
    return _scores(
        _SCORES,
        max_context_len,
        q=q,
        cache=fused_kv_cache,
        weights=weights,
        context_lens=context_lens,
        block_table=block_table,
        schedule=schedule_meta,
    )


def fp8_fp4_paged_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor],
    fused_kv_cache: Tensor4,
    weights: Tensor2,
    context_lens: Tensor2,
    block_table: Tensor2,
    schedule_meta: Tensor2,
    max_context_len: int,
    clean_logits: bool = False,
    **others: Any,
) -> torch.Tensor:
    """The same over keys of FP4, with queries of FP4.

    Args:
        q: int8 [B, next_n, heads, D / 2] two numbers in a byte; int32 [B, next_n, heads] the
            exponents of their scales.
        fused_kv_cache: uint8 [pages, 64, 1, D / 2 + 4] the numbers of a page, behind them the
            exponents of their scales.
        weights: float32 [B * next_n, heads].
        context_lens: int32 [B, next_n]; block_table: int32 [B, pages of a row].
        schedule_meta, max_context_len, clean_logits: as of `fp8_paged_mqa_logits`.

    Returns:
        float32 [B * next_n, max_context_len].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: it has arguments that this model does not follow.
    """
    call = Call("fp8_fp4_paged_mqa_logits", _MQA_SOURCE)
    given = {"clean_logits": clean_logits, **others}
    call.leaves_out(given, {"clean_logits": False, "logits_dtype": torch.float32})
    call.needs(len(q) == 2, "q must be numbers and the exponents of their scales", f"{len(q)}")
    numbers, exponents = q
    call.needs_shape("q", numbers, None, None, None, None)
    batch, tokens, heads, half = numbers.shape
    call.needs_dtype("q", numbers, torch.int8)
    call.needs_contiguous("q", numbers)
    call.needs_dtype("the scales of q", exponents, torch.int32)
    call.needs_shape("the scales of q", exponents, batch, tokens, heads)
    call.needs_contiguous("the scales of q", exponents)
    _check_cache(call, fused_kv_cache, half + FP4_SCALE_BYTES)
    _check_rows(call, weights, batch * tokens, heads)
    _check_lengths(call, context_lens)
    call.needs_shape("context_lens", context_lens, batch, tokens)
    _check_plan(call, block_table, schedule_meta, batch)
    return _scores(
        _FP4_SCORES,
        max_context_len,
        numbers=numbers,
        exponents=exponents,
        cache=fused_kv_cache,
        weights=weights,
        context_lens=context_lens,
        block_table=block_table,
        schedule=schedule_meta,
    )


def _check_cache(call: Call, fused_kv_cache: torch.Tensor, entry: int) -> None:
    call.needs_dtype("fused_kv_cache", fused_kv_cache, torch.uint8)
    call.needs_shape("fused_kv_cache", fused_kv_cache, None, _MQA_PAGE, 1, entry)
    inner = [*fused_kv_cache.stride()[1::2]]
    rule = "rows of fused_kv_cache must lie one after the other in a page"
    call.needs(inner == [entry, 1], rule, list(fused_kv_cache.stride()))


def _check_rows(call: Call, weights: torch.Tensor, rows: int, heads: int) -> None:
    call.needs_dtype("weights", weights, torch.float32)
    call.needs_shape("weights", weights, rows, heads)


def _check_plan(
    call: Call, block_table: torch.Tensor, schedule_meta: torch.Tensor, batch: int
) -> None:
    call.needs_dtype("block_table", block_table, torch.int32)
    call.needs_shape("block_table", block_table, batch, None)
    call.needs_contiguous_last("block_table", block_table)
    call.needs_dtype("schedule_meta", schedule_meta, torch.int32)
    call.needs_shape("schedule_meta", schedule_meta, _MULTIPROCESSORS + 1, 2)
    call.needs(schedule_meta.is_contiguous(), "schedule_meta must be contiguous", "strides")


def _scores(
    kernel: ModelKernel, max_context_len: int, *, weights: torch.Tensor, **given: torch.Tensor
) -> torch.Tensor:
    """What a kernel scores of arguments that have been checked, a row for each of `weights`."""
    columns = -(-max_context_len // _MQA_SPLIT) * _MQA_SPLIT  # as many as there are in memory
    shape = (len(weights), columns)
    logits = torch.empty(shape, dtype=torch.float32, device=weights.device)
    if len(weights):
        launch(kernel, weights=weights, logits=logits, **given)
    return logits[:, :max_context_len]


@reads_only
def _check_lengths(call: Call, context_lens: torch.Tensor) -> None:
    call.needs_dtype("context_lens", context_lens, torch.int32)
    rule = "context_lens must have one dimension or two"  # two alone from 2026 on
    call.needs(context_lens.dim() in (1, 2), rule, list(context_lens.shape))
    call.needs_contiguous("context_lens", context_lens)


# ---- the bodies


def _atoms_of(tokens: int) -> int:
    """Atoms of a row: pairs of query tokens, where there are several."""
    return -(-tokens // 2) if tokens > 1 else 1


def _splits(memory: KernelMemory, context_lens: torch.Tensor) -> Ints:
    """[B] splits of each row's keys; of several lengths the last counts."""
    lens = memory.ints(context_lens)
    if not lens.size:  # rows without tokens have no keys either
        return np.zeros(len(lens), dtype=np.int64)
    found: Ints = -(-np.maximum(lens if lens.ndim == 1 else lens[:, -1], 0) // _MQA_SPLIT)
    return found


def _share_out(memory: KernelMemory, *, context_lens: torch.Tensor, schedule: torch.Tensor) -> None:
    splits = _splits(memory, context_lens)
    atoms = _atoms_of(context_lens.shape[1] if context_lens.dim() == 2 else 1)
    each = np.repeat(splits, atoms)
    ends = np.cumsum(each)
    units = len(schedule) - 1
    share, rest = divmod(int(ends[-1]) if len(ends) else 0, units)
    at = np.arange(units + 1)
    firsts = at * share + np.maximum(at - (units - rest), 0)
    found = np.searchsorted(ends, firsts, side="right")
    before = np.concatenate((np.zeros(1, dtype=np.int64), ends))[found]
    memory.store("schedule_metadata", schedule, np.stack((found, firsts - before), axis=1), at)


def _check_ends(memory: KernelMemory, schedule: Ints, splits: Ints, atoms: int) -> None:
    """A walk comes by the first split of each row, and by those that the row has."""
    for atom, split in schedule:
        row = atom // atoms
        has = splits[row] if 0 <= row < len(splits) else 0
        if split and split >= has:
            rule = "a multiprocessor must end at a split that it comes by"
            memory.misused("schedule_meta", rule, f"split {split} of row {row}, which has {has}")
            return


def _planned(schedule: Ints, splits: Ints, atoms: int) -> Iterator[tuple[int, int]]:
    """(atom, split) that the multiprocessors take, one after the other."""
    for (atom, split), (last, stop) in zip(schedule[:-1], schedule[1:], strict=True):
        while 0 <= atom < len(splits) * atoms and (atom, split) < (last, stop):
            if split < splits[atom // atoms]:
                yield int(atom), int(split)
                split += 1
            if split >= splits[atom // atoms]:
                atom, split = atom + 1, 0


def _score_keys(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    values, scales = pages_of_rows(_pages(cache), _MQA_PAGE)

    def stored(*places: Ints) -> npt.NDArray[np.float64]:
        rows = from_bytes(memory.rows("fused_kv_cache", values, *places))
        return rows * memory.numbers("fused_kv_cache", scales, *places)[:, None]

    _score(memory, as_numbers(q), stored, weights, context_lens, block_table, schedule, logits)


def _score_fp4_keys(
    memory: KernelMemory,
    *,
    numbers: torch.Tensor,
    exponents: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    values, scales = fp4_pages(_pages(cache), _MQA_PAGE)

    def stored(*places: Ints) -> npt.NDArray[np.float64]:
        rows = as_numbers(memory.rows("fused_kv_cache", values, *places))
        return fp4_numbers(rows, as_numbers(memory.rows("fused_kv_cache", scales, *places)))

    queries = fp4_numbers(as_numbers(numbers), scale_bytes(exponents))
    _score(memory, queries, stored, weights, context_lens, block_table, schedule, logits)


def _pages(cache: torch.Tensor) -> torch.Tensor:
    """[pages, bytes] of a cache."""
    entry = cache.shape[1] * cache.shape[3]
    return cache.as_strided((len(cache), entry), (cache.stride(0), 1))


def _score(
    memory: KernelMemory,
    queries: npt.NDArray[np.float64],
    stored: Callable[..., npt.NDArray[np.float64]],
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    """Score as the schedule says.

    Args:
        queries: [B, next_n, heads, D].
        stored: pages and places in them -> [n, D] the keys there.
    """
    tokens, lens = queries.shape[1], memory.ints(context_lens)
    lens = np.repeat(lens[:, None], tokens, 1) if lens.ndim == 1 else lens
    factors = as_numbers(weights).reshape(len(queries), tokens, -1)
    planned, splits = memory.ints(schedule), _splits(memory, context_lens)
    _check_ends(memory, planned, splits, _atoms_of(tokens))
    parts = [*_scored(planned, splits, lens)]
    if not parts:
        return
    keys = np.concatenate([each for _, _, each in parts])
    counts = [len(each) for _, _, each in parts]
    rows = np.repeat([row for row, _, _ in parts], counts)
    # All rows at once: a call for each would take longer than what it computes.
    page = memory.entries("block_table", block_table, rows, keys // _MQA_PAGE)
    read = stored(page, keys % _MQA_PAGE)
    found, start = np.empty(len(keys)), 0
    for (row, token, _), count in zip(parts, counts, strict=True):
        part = slice(start, start + count)
        products = np.maximum(queries[row, token] @ read[part].T, 0)
        found[part] = factors[row, token] @ products
        start += count
    queried = np.repeat([row * tokens + token for row, token, _ in parts], counts)
    memory.store("logits", logits, found, queried, keys)


def _scored(schedule: Ints, splits: Ints, lens: Ints) -> Iterator[tuple[int, int, Ints]]:
    """(row, query token, keys) that the multiprocessors score.

    Args:
        lens: [B, next_n] keys of each query token.
    """
    tokens = lens.shape[1]
    atoms = _atoms_of(tokens)
    for atom, split in _planned(schedule, splits, atoms):
        row, first = atom // atoms, atom % atoms * 2
        for token in range(first, min(first + 2, tokens)):
            stop = min((split + 1) * _MQA_SPLIT, int(lens[row, token]))
            keys = np.arange(split * _MQA_SPLIT, stop)
            if len(keys):
                yield row, token, keys


_SCHEDULER = ModelKernel(
    "get_paged_mqa_logits_metadata", _share_out, _MQA_SOURCE, plans=("schedule",)
)
_SCORES = ModelKernel("fp8_paged_mqa_logits", _score_keys, _MQA_SOURCE, plans=("schedule",))
_FP4_SCORES = ModelKernel(
    "fp8_fp4_paged_mqa_logits", _score_fp4_keys, _MQA_SOURCE, plans=("schedule",)
)
